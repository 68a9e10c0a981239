// This kernel is "tile" by way of LDS: for memory in which no aligned vector lies, and for few channels, of which a token takes
// less memory than accesses of a wave should have in one piece.
//
// A tile is some channels of some tokens, cut out of x. It comes to LDS in whole aligned vectors, and lies there in its 16
// bytes as it lies in memory: from token to token and from sequence to sequence, LDS has steps of as many bytes, modulo 16,
// as memory. So nothing is shifted. A thread walks a run of one channel, the last tokens of which are a ring in registers,
// and puts outputs into another such tile, that of out.
//
// Memory without gaps comes and goes in one piece: a token, the tokens of a sequence, or all sequences of a tile. Of out,
// vectors that hold something else too are written element by element. A run belongs to one sequence, so only its first tokens
// may see a state, or nothing. With ids, a byte a token says which taps see something (token_taps.h); a wave of which all do
// looks no further.
//
// Bytes: each input is read once (and kWidth - 1 tokens a tile once more), each output is written once.
#include <hip/hip_runtime.h>

#include <cstring>

#include "../common/vector_math.h"
#include "channel_parameters.h"
#include "final_states.h"
#include "kernels.h"
#include "launch/check.h"
#include "launch/compute_units.h"
#include "tile.h"
#include "tile_lds.h"
#include "token_taps.h"

namespace hipconv {

constexpr int lds_tile_blocks(int width) {
    if (!kHasPredicates) return 2;
    return width <= 4 ? 8 : width <= 6 ? 7 : 6;
}

template <typename T, int kWidth, bool kDirect>
__global__ void HIPCONV_LAUNCH_BOUNDS(kTileThreadsOf<T>, lds_tile_blocks(kWidth)) causal_conv1d_fwd_tile_lds(LdsCall call) {
    const auto again = [&]() -> const LdsCall& { return first_parameter_again(call); };
    constexpr int kThreads = kTileThreadsOf<T>, kPast = kWidth - 1, kSize = static_cast<int>(sizeof(T));
    // Tokens that are made at a time; a multiple of the ring's size, so that its positions repeat.
    constexpr int kBatch = kTapGroup, kRing = kWidth > 4 ? 8 : kWidth;
    // The tile of x, that of out, of runs whether a tap sees nothing, and of tokens what taps see: as much as the plan takes.
    HIPCONV_LARGE_SHARED(Words4, in, kCopiesPastRegisters ? 1 : (kMostLds - (kDirect ? kInBytes : 0)) / 16);

    const uint32_t block = blockIdx.z * gridDim.y + blockIdx.y;
    if (block >= again().plan.all_blocks) return;
    let_next_kernel_begin();
    const int thread = static_cast<int>(threadIdx.x);
    Words4* const results = in + again().plan.results_at;
    uint8_t* const differs = reinterpret_cast<uint8_t*>(in + again().plan.differs_at);
    uint32_t* const taps = reinterpret_cast<uint32_t*>(differs + kThreads);
    const uint64_t of_blocks = again().plan.of_blocks;
    const uint32_t of_sequences = of_blocks != 0 ? long_quotient(block, of_blocks) : block;
    const int b = static_cast<int>(of_sequences) * again().plan.sequences;
    const int t = static_cast<int>(block - of_sequences * again().plan.blocks_a_sequence) * again().plan.tokens_on;
    const int sequences = again().batch - b < again().plan.sequences ? again().batch - b : again().plan.sequences;
    const int tokens = again().seqlen - t < again().plan.tokens ? again().seqlen - t : again().plan.tokens;
    const int first_channel = static_cast<int>(blockIdx.x) * again().plan.channels_on, left = again().dim - first_channel;
    const int channels = left < again().plan.channels ? left : again().plan.channels;

    // The thread's run.
    const int outer = quotient(thread, again().plan.tokens_first ? again().plan.of_runs : again().plan.of_channels);
    const int rest = thread - outer * (again().plan.tokens_first ? again().plan.runs : again().plan.channels);
    int c = again().plan.tokens_first ? outer : rest, number = again().plan.tokens_first ? rest : outer;
    int first_sequence = quotient(number, again().plan.of_sequence_runs);
    int begin = (number - first_sequence * again().plan.sequence_runs) * again().plan.run;
    for (int* value : {&c, &number, &first_sequence, &begin}) in_a_register(*value);  // or they are worked out anew, later
    const bool begins_row = t + begin == 0, may_run = number < again().plan.runs && begin < tokens && c < channels;
    int run_tokens = !may_run ? 0 : tokens - begin < again().plan.run ? tokens - begin : again().plan.run;
    in_a_register(run_tokens);  // or each round works it out anew
    const int d = first_channel + (c < channels ? c : 0);

    wait_for_kernel_before();
    const int left_out = kWidth - again().width;  // taps: none, or one, the oldest
    const auto has_tap = [&](int i) { return i > 0 || left_out == 0; };
    const auto part_of = [&](const Sequences& tensor, const LdsTensor& how, Words4* lds, int past) -> LdsPart {
        char* const memory = static_cast<char*>(tensor.data) + b * how.batch_step + int64_t{t - past} * how.token_step +
                             int64_t{first_channel} * how.channel_step;
        const int inner = how.along_tokens ? tokens + past : channels, lines = how.along_tokens ? channels : tokens + past;
        return {how,       memory, reinterpret_cast<char*>(lds) + reinterpret_cast<uintptr_t>(memory) % 16, inner, lines,
                sequences, kSize};
    };
    const int past = t == 0 ? 0 : kPast - left_out;
    const LdsPart x = part_of(again().x, again().plan.x, in, past), out = part_of(again().out, again().plan.out, results, 0);
    if constexpr (!kDirect) bring_tile<T>(x, again().plan.x_begin, again().plan.x_end);
    const bool has_ids = again().seq_idx.data, has_states = again().initial_states.data;
    if (has_ids) {
        differs[thread] = 0;
        __syncthreads();
        const int groups = again().plan.tap_groups;
        for (int i = thread; i < groups * sequences; i += kThreads) {
            const int of_tile = sequences > 1 ? quotient(i, again().plan.of_tap_groups) : 0,
                      own = (i - of_tile * groups) * kTapGroup;
            if (own >= tokens) continue;
            const GroupTaps found = taps_of_group(again(), b + of_tile, t + own);
#pragma unroll
            for (int w = 0; w < kTapGroup / 4; ++w) taps[i * (kTapGroup / 4) + w] = found.words[w];
            if (!found.differ) continue;
            const int at_once = of_tile - quotient(of_tile, again().plan.of_at_once) * again().plan.at_once;
            const int last = own + kTapGroup < tokens ? own + kTapGroup - 1 : tokens - 1;
            uint8_t* const of_sequence = differs + at_once * again().plan.sequence_runs;
            of_sequence[quotient(own, again().plan.of_run)] = of_sequence[quotient(last, again().plan.of_run)] = 1;
        }
    }
    // The state of a sequence is under way while what comes before it is made.
    T state[kPast + 1];
    const T* next_state = has_states ? &at<const T>(again().initial_states, b + first_sequence, d, 0) : nullptr;
    const auto load_state = [&](int s) {
        if (run_tokens == 0 || s >= sequences) return;
        const T* from = next_state;
        next_state += again().plan.states_on;
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            if (!has_tap(i)) continue;
            state[i] = *global_pointer<const T>(from);
            from += again().initial_states.seqlen_stride;
        }
    };
#pragma unroll
    for (int i = 0; i < kPast; ++i) state[i] = T{};
    if (has_states && begins_row) load_state(first_sequence);
    ChannelParameters<kWidth, kWidth - 1> parameters;
    parameters.load(again(), d);
    if constexpr (kCopiesPastRegisters && !kDirect) wait_for_copies<0>();
    if (!kDirect || has_ids) __syncthreads();

    float weight[kWidth], probe = 0.0f;
    parameters.convert(again());
    parameters.weights(weight);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) probe += weight[i] * 0.0f;
    const float bias = parameters.bias();
    using Step = typename std::conditional<kDirect, int64_t, int>::type;
    const Step x_step = kDirect ? again().plan.x.token_step : again().plan.x.lds_token_step;
    const int out_step = again().plan.out.lds_token_step;
    const bool use_silu = again().use_silu;
    const auto input = [&](const char* from) { return to_float(*reinterpret_cast<const T*>(from)); };

    // One sequence after another, if they are short.
    const char* first_from;
    Step round_step;
    if constexpr (kDirect) {
        round_step = again().plan.at_once * again().plan.x.batch_step;
        first_from = global_address<const char>(again().x.data) + (b + first_sequence) * again().plan.x.batch_step +
                     int64_t{t + begin} * x_step + int64_t{d} * again().plan.x.channel_step;
    } else {
        round_step = again().plan.at_once * again().plan.x.lds_batch_step;
        first_from = x.lds + first_sequence * again().plan.x.lds_batch_step + (past + begin) * x_step +
                     c * again().plan.x.lds_channel_step;
    }
    char* first_to =
        out.lds + first_sequence * again().plan.out.lds_batch_step + begin * out_step + c * again().plan.out.lds_channel_step;
    int first_found = first_sequence * again().plan.tap_groups * kTapGroup + begin;
    const bool looks = has_ids && __ballot(differs[number < again().plan.runs ? number : 0]) != 0;
    for (int s = first_sequence, round = 0; round < again().plan.rounds; ++round, s += again().plan.at_once) {
        const int count = s < sequences ? run_tokens : 0;
        float ring[kRing];  // the token before the run is in slot kPast - 1
#pragma unroll
        for (int i = 0; i < kRing; ++i) ring[i] = 0.0f;
        if (count > 0 && !begins_row) {
#pragma unroll
            for (int i = 0; i < kPast; ++i)
                if (has_tap(i)) ring[i] = input(first_from - (kPast - i) * x_step);
        } else if (has_states) {
#pragma unroll
            for (int i = 0; i < kPast; ++i) ring[i] = to_float(state[i]);
            if (round + 1 < again().plan.rounds) load_state(s + again().plan.at_once);
        }

        const auto walk = [&](auto looks, auto oldest, auto activates) {
            constexpr bool kLooks = decltype(looks)::value, kHasOldest = decltype(oldest)::value;
            constexpr bool kActivates = decltype(activates)::value;
            const char* from = first_from;
            char* to = first_to;
            const uint32_t* found = taps + first_found / 4;
            const int found_bits = first_found % 4 * 8;
            // The output of the token in this slot of the ring.
            const auto output = [&](int slot, int token_taps) {
                float sum = bias;
#pragma unroll
                for (int i = 0; i < kWidth; ++i) {
                    if (kLooks ? i < kPast && !(token_taps >> (kPast - 1 - i) & 1) : i == 0 && !kHasOldest) continue;
                    sum = low(multiply_add(twice(weight[i]), twice(ring[(slot + kRing - kPast + i) % kRing]),
                                           twice(sum)));  // as the others
                }
                return kActivates ? silu(sum) : sum;
            };
            // The inputs of `most` tokens, and their outputs. From memory, the next ones are under way meanwhile.
            T ahead[kBatch];
            const auto fetch = [&](int begin, int end, int most) {
#pragma unroll
                for (int j = 0; j < kBatch; ++j) {
                    if (j < begin || j >= end) continue;
                    ahead[j] = T{};
                    if (j >= most) continue;
                    ahead[j] = *reinterpret_cast<const T*>(from);
                    from += x_step;
                }
            };
            const auto make_some = [&](int begin, int end, int most, int next) {
                if (!kDirect) fetch(begin, end, most);
                float inputs[kBatch], outputs[kBatch];
                uint32_t seen[kTapGroup / 4];  // a byte a token, from words, in which a run begins anywhere
#pragma unroll
                for (int w = 0; w < kTapGroup / 4; ++w)
                    seen[w] = kLooks ? static_cast<uint32_t>((uint64_t{found[w + 1]} << 32 | found[w]) >> found_bits) : 0;
#pragma unroll
                for (int j = 0; j < kBatch; ++j) {
                    if (j < begin || j >= end) continue;
                    inputs[j] = to_float(ahead[j]);
                }
                if (kDirect) fetch(begin, end, next);
#pragma unroll
                for (int j = 0; j < kBatch; ++j) {
                    if (j < begin || j >= end) continue;
                    ring[(kPast + j) % kRing] = inputs[j];
                    outputs[j] = output((kPast + j) % kRing, static_cast<int>(seen[j / 4] >> j % 4 * 8));
                    if (kLooks) keep_order();  // or the masks of all tokens take scalar registers at once
                }
                if (kLooks && ((seen[0] | seen[1]) & 0x01010101u << kPaddingBit) != 0) {
#pragma unroll
                    for (int j = 0; j < kBatch; ++j) {
                        if (j < begin || j >= end) continue;
                        if (seen[j / 4] >> (j % 4 * 8 + kPaddingBit) & 1) outputs[j] = 0.0f;
                    }
                }
#pragma unroll
                for (int j = 0; j < kBatch; ++j) {
                    if (j < begin || j >= end) continue;
                    if (j < most) *reinterpret_cast<T*>(to) = from_float<T>(outputs[j]);
                    to += out_step;
                }
            };
            const auto make = [&](int most, int next) {
                make_some(0, kBatch, most, next);
                found += kBatch / 4;
            };
            // The same of a run's end: tokens that are not there are not made.
            const auto make_last = [&](int most, int next) {
                make_some(0, 1, most, next);
                if (most > 1) make_some(1, 4, most, next);
                if (most > 4) make_some(4, kBatch, most, next);
                found += kBatch / 4;
            };
            int left_over = count;
            constexpr int kSteady = kDirect ? 2 * kBatch : kBatch;
            if (kDirect) fetch(0, kBatch, left_over);
            for (; left_over >= kSteady; left_over -= kBatch) make(kBatch, kBatch);
            for (; left_over > 0; left_over -= kBatch) make_last(left_over, left_over - kBatch);
        };
        const auto walk_all = [&](auto looks, auto oldest) {
            if (use_silu)
                walk(looks, oldest, std::true_type{});
            else
                walk(looks, oldest, std::false_type{});
        };
        if (looks)
            walk_all(std::true_type{}, std::true_type{});
        else if (left_out == 0)
            walk_all(std::false_type{}, std::true_type{});
        else
            walk_all(std::false_type{}, std::false_type{});
        if (begins_row && !looks && !has_states && !(probe == 0.0f)) {
            // Zeros stood in for the tokens before the row, and some weight is infinite or NaN: skip those taps instead.
#pragma unroll 1
            for (int own = 0; own < kPast && own < count; ++own) {
                float sum = bias;
#pragma unroll
                for (int i = 0; i < kWidth; ++i)
                    if (own + i >= kPast) sum += weight[i] * input(first_from + (own + i - kPast) * x_step);
                *reinterpret_cast<T*>(first_to + own * out_step) = from_float<T>(use_silu ? silu(sum) : sum);
            }
        }
        if (count > 0 && again().final_states.data && t + begin + count == again().seqlen)
            write_final_state<T, kPast>(
                again(), b + s, d, [&](int back) { return *reinterpret_cast<const T*>(first_from + (count - back) * x_step); });
        first_from += round_step;
        first_to += again().plan.at_once * again().plan.out.lds_batch_step;
        first_found += again().plan.at_once * again().plan.tap_groups * kTapGroup;
    }
    __syncthreads();
    const bool along_tokens = again().plan.out.along_tokens;
    take_tile<T>(out, along_tokens ? t == 0 : first_channel == 0,
                 along_tokens ? t + tokens == again().seqlen : first_channel + channels == again().dim);
}

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

// All that a plan depends on.
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
    with_even_width<kMaxFastWidth>(p.dtype, p.width, [&](auto type, auto width) {
        using T = decltype(type);
        constexpr int kWidth = decltype(width)::value;
        const dim3 grid = grid_of(plan.groups, plan.all_blocks), block(kTileThreadsOf<T>, 1, 1);
        if constexpr (sizeof(T) == 4) {
            if (direct) HIPCONV_LAUNCH(true, (causal_conv1d_fwd_tile_lds<T, kWidth, true>), grid, block, shared, stream, call);
        }
        if (sizeof(T) == 2 || !direct)
            HIPCONV_LAUNCH(true, (causal_conv1d_fwd_tile_lds<T, kWidth, false>), grid, block, shared, stream, call);
    });
    check_launch("causal_conv1d_fwd");
    return writes_states;
}

}  // namespace hipconv
