// The kernel "tile" by way of LDS (tile_lds_kernel.h): its plans, and their launch.
#include <hip/hip_runtime.h>

#include <cstring>

#include "final_states.h"
#include "kernels.h"
#include "launch/compute_units.h"
#include "tile.h"
#include "tile_lds.h"
#include "token_taps.h"

namespace hipconv {

namespace {

int32_t modulo_16(int64_t step) { return static_cast<int32_t>((step % 16 + 16) % 16); }
int64_t parts(int64_t n, int64_t each) { return (n + each - 1) / each; }

bool lies_along_tokens(const Sequences& s) {
    const auto magnitude = [](int64_t stride) { return stride < 0 ? -stride : stride; };
    return magnitude(s.seqlen_stride) < magnitude(s.dim_stride);
}

// This tells how lines of a tensor begin in their aligned vectors: all alike, or not.
struct Beginnings {
    bool alike;
    int at;  // if so
    bool on_boundaries() const { return alike && at == 0; }
};
Beginnings beginnings_of(const CausalConv1dFwdParams& p, const Sequences& s) {
    const int size = element_bytes(p.dtype);
    const int64_t line_stride = lies_along_tokens(s) ? s.dim_stride : s.seqlen_stride;
    const bool alike = modulo_16(line_stride * size) == 0 && (p.batch == 1 || modulo_16(s.batch_stride * size) == 0);
    return {alike, static_cast<int>(reinterpret_cast<uintptr_t>(s.data) % 16)};
}

// The tokens whose time a run takes: it is made in whole steps.
int64_t run_cost(int64_t run) { return kTokensOfStart + parts(run, kTapGroup) * kTapGroup; }

// Divides channels into tiles so that few threads are idle. Neighbouring tiles share the channels of a vector where tokens of
// out do not begin on boundaries: then each vector is whole in one of them.
void divide_channels(const CausalConv1dFwdParams& p, LdsPlan* plan) {
    const int size = element_bytes(p.dtype), threads = lds_threads(size), vector = 16 / size;
    const bool x_along_tokens = lies_along_tokens(p.x), out_along_tokens = lies_along_tokens(p.out);
    const int shared = out_along_tokens || beginnings_of(p, p.out).on_boundaries() ? 0 : vector;
    int most = threads, least_channels = 4 * vector;
    if (x_along_tokens || out_along_tokens) {
        const bool both = x_along_tokens && out_along_tokens;
        const int64_t needed = parts(p.seqlen, longest_lds_run(size));  // runs of a row
        const int64_t limit = both ? threads / 4 : size == 4 || !kHasPredicates ? 4 : 2;
        int64_t runs = needed < limit ? needed : limit;
        double fewest = 0;  // of the tokens that a thread makes for a channel, what it does before counted in
        for (int64_t tiles = parts(needed, limit); both && tiles < 24; ++tiles) {
            const int64_t own = parts(needed, tiles);
            const int64_t run = parts(p.seqlen, tiles * own);
            const double of_edges = 1 + 64.0 / static_cast<double>(run * own);  // pieces of memory that are short cost more
            // A token's id is looked at once for all channels of a tile, which takes as long as an output or more.
            const double of_ids = p.seq_idx.data ? 1 + 1.25 * static_cast<double>(own) / threads : 1;
            const double cost =
                static_cast<double>(tiles * run_cost(run)) * of_edges * of_ids / static_cast<double>(threads / own);
            if (fewest == 0 || cost < fewest) runs = own, fewest = cost;
            if (own == 1) break;
        }
        most = static_cast<int>(threads / runs);
        const int least = both && needed == 1 ? most / 8 : most / 2;
        least_channels = least < 4 ? 4 : least;
    }
    double least = 0;
    for (int groups = 1; groups < p.dim / most + 16; ++groups) {
        const int even = (p.dim + (groups - 1) * shared + groups - 1) / groups;
        const bool both_along_tokens = x_along_tokens && out_along_tokens;
        const int channels = groups == 1 || both_along_tokens ? even : (even + vector - 1) / vector * vector;
        const int on = groups == 1 ? channels : channels - shared;
        if (channels > most) continue;
        if (plan->channels > 0 && channels < least_channels) break;
        const int runs = threads / channels, covering = groups == 1 ? 1 : (p.dim - shared + on - 1) / on;
        if (runs < 1 || on < 1) break;
        const double cost = static_cast<double>(covering) * threads / runs * (1 + 8.0 / (channels * size));
        if (plan->channels > 0 && cost >= least) continue;
        least = cost;
        plan->channels = channels;
        plan->channels_on = on;
        plan->runs = runs;
        plan->groups = covering;
    }
}

LdsTensor lds_tensor(const CausalConv1dFwdParams& p, const Sequences& s, const LdsPlan& plan, bool is_x) {
    const int size = element_bytes(p.dtype), threads = lds_threads(size);
    LdsTensor how{};
    how.along_tokens = lies_along_tokens(s);
    how.batch_step = s.batch_stride * size;
    how.token_step = static_cast<int32_t>(s.seqlen_stride * size);
    how.channel_step = static_cast<int32_t>(s.dim_stride * size);
    const auto next = [&](int32_t least, int64_t step) { return least + (modulo_16(step) - least % 16 + 16) % 16; };
    const bool is_whole = plan.blocks_a_sequence == 1;
    const int tokens = plan.tokens + (is_x && !is_whole ? p.width - 1 : 0);
    how.inner = how.along_tokens ? tokens : plan.channels;
    how.lines = how.along_tokens ? plan.channels : tokens;
    const int bytes = how.inner * size, line_step = how.line_step();
    const bool dense = how.inner_step() == size;
    // Where lanes lie across lines, these are an odd number of vectors apart, if any: else more of them meet in LDS banks.
    const bool across = how.along_tokens && !lies_along_tokens(is_x ? p.out : p.x);
    const bool is_tight = dense && !plan.lies_apart && !(across && line_step % 32 == 0) &&
                          (how.along_tokens ? is_whole : plan.groups == 1) && line_step >= bytes &&
                          line_step <= (is_x ? 2 : 1) * bytes;
    // Sequences of whole rounds of LDS banks would meet there.
    const bool meets = plan.channels < 32 && how.batch_step % 64 == 0;
    const bool joined = is_tight && plan.sequences > 1 && !meets && (!how.along_tokens || plan.groups == 1) &&
                        how.batch_step == int64_t{line_step} * how.lines;
    how.pieces = joined ? LdsPieces::tiles : is_tight ? LdsPieces::sequences : LdsPieces::lines;
    const Beginnings begins = beginnings_of(p, s);
    const bool alike = begins.alike && (!how.along_tokens || is_whole);
    const int surrounded = alike ? (begins.at + bytes + 15) / 16 * 16 : bytes + 32 - size;
    int lds_line_step = is_tight ? line_step : next(surrounded, line_step);
    if ((across || plan.lies_apart) && lds_line_step % 32 == 0) lds_line_step += 16;
    how.lds_token_step = how.along_tokens ? size : lds_line_step;
    how.lds_channel_step = how.along_tokens ? lds_line_step : size;
    const int of_lines = (how.lines - 1) * lds_line_step + bytes;
    how.lds_batch_step = joined ? static_cast<int32_t>(how.batch_step) : next(of_lines + 32, how.batch_step);
    if (!joined && how.lds_batch_step % 32 < 16) how.lds_batch_step += 16;
    const int piece = joined ? (plan.sequences - 1) * how.lds_batch_step + of_lines : is_tight ? of_lines : bytes;
    const int vectors = ((alike && !is_tight ? begins.at : 16 - size) + piece + 15) / 16;
    how.lanes = vectors < threads ? vectors : threads;
    how.repeats = vectors > threads;
    how.at_once = threads / how.lanes;
    const bool of_several = how.pieces == LdsPieces::lines && plan.sequences > 1;       // sequences
    if (of_several && how.at_once > how.lines) how.at_once -= how.at_once % how.lines;  // so that walks do not wrap
    how.of_lanes = reciprocal_of(how.lanes);
    how.of_inner = reciprocal_of(how.inner);
    how.of_lines = reciprocal_of(how.lines);
    how.lines_on = of_several ? how.at_once % how.lines : 0;
    how.wraps = how.lines_on > 0;
    const int sequences_on = how.pieces == LdsPieces::sequences ? how.at_once : of_several ? how.at_once / how.lines : 0;
    const int lines_on = how.pieces != LdsPieces::lines ? 0 : of_several ? how.lines_on : how.at_once;
    how.step = sequences_on * how.batch_step + int64_t{lines_on} * line_step;
    how.lds_step = sequences_on * how.lds_batch_step + lines_on * lds_line_step;
    how.wrap = how.batch_step - int64_t{how.lines} * line_step;
    how.lds_wrap = how.lds_batch_step - how.lines * lds_line_step;
    const int64_t line_span = int64_t{how.lines - 1} * line_step, batch_span = (plan.sequences - 1) * how.batch_step;
    how.reach_back = 15 - (line_span < 0 ? line_span : 0) - (batch_span < 0 ? batch_span : 0);
    how.reach_on = (line_span > 0 ? line_span : 0) + (batch_span > 0 ? batch_span : 0) + bytes + 15;
    const int64_t row = how.along_tokens ? p.seqlen : p.dim;
    how.has_edges = !(begins.on_boundaries() && row * size % 16 == 0);
    how.by_elements = !dense;
    return how;
}

// The bytes of LDS that a tensor's tile takes.
int64_t lds_bytes(const LdsPlan& plan, const LdsTensor& how, int size) {
    return 32 + int64_t{plan.sequences - 1} * how.lds_batch_step + int64_t{how.lines - 1} * how.lds_line_step() +
           how.inner * size;
}

// Where only out is along tokens, waves read x past LDS: that is faster in 32 bits.
bool is_direct(const CausalConv1dFwdParams& p, const LdsPlan& plan) {
    return element_bytes(p.dtype) == 4 && plan.out.along_tokens && !plan.x.along_tokens && p.x.dim_stride == 1 &&
           plan.channels >= 32;
}

// Some measure of the time that a plan takes, by the blocks that each multiprocessor gets: they make tokens in whole steps, and
// all before the first takes as long as some. The more of them are there at a time, the less each waits (measured on an H100:
// of 41 calls with up to ten plans each, those that this prefers take 0.987 of the time of the longest runs, 1.02 at most).
double cost_of(const CausalConv1dFwdParams& p, const LdsPlan& plan, double blocks) {
    constexpr int kLdsOfUnit = 227 << 10, kOfBlock = 1 << 10, kStart = 24, kRoundStart = 4;
    constexpr double kWaits[] = {8, 4, 2.2, 1.6, 1.3, 1.13, 1, 0.92, 0.87};
    const int size = element_bytes(p.dtype);
    const int64_t lds = (is_direct(p, plan) ? 0 : lds_bytes(plan, plan.x, size)) + lds_bytes(plan, plan.out, size) + kOfBlock;
    const int most = lds_tile_blocks(p.width), fit = static_cast<int>(kLdsOfUnit / lds), there = fit < most ? fit : most;
    const int run = plan.run < p.seqlen ? plan.run : p.seqlen;
    const int64_t tokens = kStart + parts(run, kTapGroup) * kTapGroup * plan.rounds + (plan.rounds - 1) * kRoundStart;
    const double at_least = blocks > there / 2.0 ? blocks : there / 2.0;
    return (at_least + 0.4 * there) * kWaits[there] * static_cast<double>(tokens);
}

LdsPlan new_plan(const CausalConv1dFwdParams& p) {
    const int size = element_bytes(p.dtype), vector = 16 / size;
    LdsPlan plan{};
    divide_channels(p, &plan);
    const bool x_along_tokens = lies_along_tokens(p.x), out_along_tokens = lies_along_tokens(p.out);
    // Tells how many lanes of a wave meet in an LDS bank.
    const auto meeting = [&](const LdsTensor& how) {
        const bool tokens_first = x_along_tokens && out_along_tokens;
        int words[32], lanes_of[32] = {}, most = 1;
        for (int lane = 0; lane < 32; ++lane) {
            const int c = tokens_first ? lane / plan.runs : lane % plan.channels;
            const int number = tokens_first ? lane % plan.runs : lane / plan.channels;
            const int sequence = number / plan.sequence_runs, run = number - sequence * plan.sequence_runs;
            const int word =
                (c * how.lds_channel_step + run * plan.run * how.lds_token_step + sequence * how.lds_batch_step) / 4;
            const int bank = word % 32;
            if (lanes_of[bank] > 0 && words[bank] == word) continue;
            words[bank] = word;
            if (++lanes_of[bank] > most) most = lanes_of[bank];
        }
        return most;
    };
    int more = 0;  // tokens of a run, lest lanes meet
    const auto divide = [&](int longest, int most_runs) {
        const int longest_run = longest > kShortestRun ? longest : kShortestRun;
        const int needed = static_cast<int>(parts(p.seqlen, longest_run));
        plan.sequences = most_runs / needed > 1 ? (most_runs / needed < p.batch ? most_runs / needed : p.batch) : 1;
        plan.sequence_runs = most_runs / plan.sequences;
        const bool spread = plan.channels < 32 || (x_along_tokens && out_along_tokens);
        const int odd = most_runs > 1 && spread ? 1 : 0;           // threads are in LDS banks of their own then
        if (plan.sequences > 1 || needed <= plan.sequence_runs) {  // whole sequences
            plan.run = static_cast<int>(parts(p.seqlen, plan.sequence_runs));
            if (plan.run < kShortestRun) plan.run = kShortestRun;
            plan.run = (plan.run | odd) + more;
            plan.sequence_runs = static_cast<int>(parts(p.seqlen, plan.run));
            plan.tokens = plan.tokens_on = p.seqlen;
            plan.blocks_a_sequence = 1;
        } else {
            // Neighbouring tiles share the tokens of a vector, as they do channels.
            const int shared = out_along_tokens ? vector : 0;
            const auto tiles_of = [&](int runs) { return parts(p.seqlen - shared, longest_run * runs - shared); };
            const auto run_of = [&](int runs) {
                return parts(p.seqlen + (tiles_of(runs) - 1) * shared, tiles_of(runs) * runs);
            };
            const auto cost = [&](int runs) { return tiles_of(runs) * run_cost(run_of(runs)); };
            const int all = plan.sequence_runs;
            for (int runs = all - 1; runs >= all / 2 && runs > 1; --runs)
                if (cost(runs) < cost(plan.sequence_runs)) plan.sequence_runs = runs;
            plan.run = static_cast<int>(run_of(plan.sequence_runs));
            const int least = static_cast<int>(parts(kShortestRun + shared, plan.sequence_runs));
            if (plan.run < least) plan.run = least;
            if (plan.run < kShortestRun) plan.run = kShortestRun;
            plan.run = (plan.run | odd) + more;
            plan.tokens = plan.run * plan.sequence_runs;
            plan.tokens_on = plan.tokens - shared;
            plan.blocks_a_sequence = static_cast<uint32_t>(parts(p.seqlen - shared, plan.tokens_on));
            // Rows end where they end, so that what lies between them is not taken for theirs.
            if (plan.blocks_a_sequence == 1) plan.tokens = plan.tokens_on = p.seqlen;
        }
        plan.runs = plan.sequences * plan.sequence_runs;
        plan.at_once = plan.sequences;
        plan.rounds = 1;
        if (plan.blocks_a_sequence == 1 && plan.sequence_runs == 1 && p.seqlen < 2 * kShortestRun) {
            const int64_t most = parts(p.batch, plan.at_once), wanted = longest / p.seqlen;
            plan.rounds = static_cast<int>(wanted < 1 ? 1 : wanted < most ? wanted : most);
            plan.sequences = plan.at_once * plan.rounds;
            if (plan.sequences > p.batch) plan.sequences = p.batch;
        }
        plan.x = lds_tensor(p, p.x, plan, true);
        plan.out = lds_tensor(p, p.out, plan, false);
    };
    const auto fits = [&] {
        return parts(plan.tokens, kTapGroup) * kTapGroup * plan.sequences <= kMostTokens &&
               lds_bytes(plan, plan.x, size) <= kInBytes && lds_bytes(plan, plan.out, size) <= kOutBytes;
    };
    const auto blocks = [&] { return int64_t{plan.blocks_a_sequence} * parts(p.batch, plan.sequences); };
    const auto steps_fit = [&](const Sequences& s) {
        const auto fits = [&](int64_t stride) { return stride * size < kOffsetLimit && stride * size > -kOffsetLimit; };
        return fits(s.seqlen_stride) && fits(s.dim_stride);
    };
    if (!steps_fit(p.x) || !steps_fit(p.out) || plan.channels == 0) return plan;
    const bool many_small = kHasPredicates && size == 2 && x_along_tokens == out_along_tokens;  // blocks
    const int enough_blocks = kEnoughThreads / (many_small ? 128 : 256);
    const bool is_short = p.seqlen < 2 * kShortestRun, both = x_along_tokens && out_along_tokens;
    const bool few = plan.channels < 32 && p.x.dim_stride == 1;
    const int most_runs = plan.runs;
    // Divides tokens into runs of so many at most, or fewer.
    const auto divide_for = [&](int longest) {
        int runs = most_runs;
        more = 0;
        plan.lies_apart = false;
        divide(longest, runs);
        while (longest > (is_short ? 1 : kShortestRun) && (!fits() || blocks() * plan.groups < enough_blocks))
            divide(longest -= 4, runs);
        while (runs > 1 && !fits()) divide(longest, --runs);
        // Longer runs, or lines that lie apart, where more than two lanes meet otherwise.
        const auto meet = [&] {
            if (!both && !(few && !x_along_tokens && plan.runs > 1)) return 1;
            const int of_x = meeting(plan.x), of_out = both ? meeting(plan.out) : 1;
            return of_x > of_out ? of_x : of_out;
        };
        const auto divide_so = [&](int way) {
            more = way % 4 * 2;
            plan.lies_apart = way >= 4;
            divide(longest, runs);
        };
        if (!fits()) return;
        const int last = both ? (plan.runs > 1 ? 7 : 4) : 3;
        int least = meet(), best = 0, way = plan.runs > 1 ? 0 : 3;
        while (least > 2 && way < last) {
            ++way;
            divide_so(way);
            if (const int met = meet(); fits() && met < least) least = met, best = way;
        }
        if (plan.lies_apart != (best >= 4) || more != best % 4 * 2) divide_so(best);
    };
    int longest = longest_lds_run(size);
    divide_for(longest);
    if (kHasPredicates && fits()) {  // Shorter runs take less LDS, so that more blocks are there at a time.
        LdsPlan best = plan;
        const double units = compute_units_here();
        double least = cost_of(p, plan, static_cast<double>(blocks() * plan.groups) / units);
        const int step = longest / 8;
        for (int i = 0; i < 3; ++i) {
            divide_for(longest -= step);
            const double cost = cost_of(p, plan, static_cast<double>(blocks() * plan.groups) / units);
            if (fits() && cost * 1.02 < least) least = cost, best = plan;
        }
        plan = best;
    }
    plan.tokens_first = x_along_tokens && out_along_tokens && plan.runs > 1;
    plan.of_channels = reciprocal_of(plan.channels);
    plan.of_runs = reciprocal_of(plan.runs);
    plan.of_run = reciprocal_of(plan.run);
    plan.of_at_once = reciprocal_of(plan.at_once);
    plan.of_sequence_runs = reciprocal_of(plan.sequence_runs);
    plan.tap_groups = static_cast<int32_t>(parts(plan.tokens, kTapGroup));
    plan.of_tap_groups = reciprocal_of(plan.tap_groups);
    plan.of_blocks = long_reciprocal_of(plan.blocks_a_sequence);
    plan.all_blocks = fits() && blocks() < int64_t{1} << 31 ? static_cast<uint32_t>(blocks()) : 0;
    const auto span = [&](int64_t count, int64_t stride, bool forward) {
        return (stride > 0) == forward ? (count - 1) * stride * size : 0;
    };
    const auto spans = [&](bool forward) {
        return span(p.batch, p.x.batch_stride, forward) + span(p.dim, p.x.dim_stride, forward) +
               span(p.seqlen, p.x.seqlen_stride, forward);
    };
    plan.x_begin = static_cast<uint64_t>(spans(false));
    plan.x_end = static_cast<uint64_t>(spans(true) + size);
    return plan;
}

// All that a plan depends on, but for the card: those of a process are taken to be alike.
struct PlanKey {
    int32_t batch, dim, seqlen, width, types, beginnings;  // dtype and whether there are ids; of x and out, in their 16 bytes
    int64_t x[3], out[3];                                  // strides

    explicit PlanKey(const CausalConv1dFwdParams& p)
        : batch(p.batch), dim(p.dim), seqlen(p.seqlen), width(p.width),
          types(2 * static_cast<int32_t>(p.dtype) + (p.seq_idx.data ? 1 : 0)),
          beginnings(static_cast<int32_t>(reinterpret_cast<uintptr_t>(p.x.data) % 16 * 16 +
                                          reinterpret_cast<uintptr_t>(p.out.data) % 16)),
          x{p.x.batch_stride, p.x.dim_stride, p.x.seqlen_stride},
          out{p.out.batch_stride, p.out.dim_stride, p.out.seqlen_stride} {}
    size_t place() const {
        uint64_t words[sizeof(PlanKey) / 8], mixed = 0;
        std::memcpy(words, this, sizeof(words));
        for (const uint64_t word : words) mixed = (mixed ^ word) * 0x9e3779b97f4a7c15u;
        return mixed >> 60;
    }
};
static_assert(std::has_unique_object_representations_v<PlanKey>, "keys are compared byte by byte");

// A call needs its plan when a kernel is chosen for it, and again when that is launched, and so do the calls of other layers.
const LdsPlan& plan_of(const CausalConv1dFwdParams& p) {
    struct Entry {
        PlanKey key{CausalConv1dFwdParams{}};
        LdsPlan plan{};
    };
    static thread_local Entry entries[16];
    const PlanKey key(p);
    Entry& entry = entries[key.place()];
    if (std::memcmp(&entry.key, &key, sizeof(key)) != 0) entry = {key, new_plan(p)};
    return entry.plan;
}

}  // namespace

bool causal_conv1d_tile_lds_fits(const CausalConv1dFwdParams& p) {
    const LdsPlan& plan = plan_of(p);
    return plan.all_blocks > 0 && plan.groups <= kGridLimit;
}

bool causal_conv1d_tile_lds_fills_threads(const CausalConv1dFwdParams& p) {
    const LdsPlan& plan = plan_of(p);
    return int64_t{10} * p.dim * plan.runs >= int64_t{9} * plan.groups * lds_threads(element_bytes(p.dtype));
}

bool causal_conv1d_tile_lds(const CausalConv1dFwdParams& p, hipStream_t stream) {
    const LdsPlan& plan = plan_of(p);
    LdsCall call{};
    static_cast<CausalConv1dFwdParams&>(call) = p;
    const bool writes_states = threads_write_final_states(p);
    if (!writes_states) call.final_states = {};
    call.plan = plan;
    const uint64_t x = reinterpret_cast<uint64_t>(p.x.data);
    call.plan.x_begin += x;
    call.plan.x_end += x;
    const bool direct = is_direct(p, plan);
    const auto vectors = [](int64_t bytes) { return static_cast<int32_t>((bytes + 15) / 16); };
    const int size = element_bytes(p.dtype);
    call.plan.results_at = direct ? 0 : vectors(lds_bytes(plan, plan.x, size));
    call.plan.differs_at = call.plan.results_at + vectors(lds_bytes(plan, plan.out, size));
    const int for_ids = p.seq_idx.data ? lds_threads(size) + plan.tap_groups * kTapGroup * plan.sequences + 16 : 0;
    const int shared = launch_shared_bytes(call.plan.differs_at * 16 + for_ids);
    call.plan.states_on = plan.at_once * p.initial_states.batch_stride;
    const dim3 grid = grid_of(plan.groups, plan.all_blocks);
    with_dtype(p.dtype, [&](auto type) { launch_tile_lds<decltype(type)>(call, grid, direct, shared, stream); });
    return writes_states;
}

}  // namespace hipconv
