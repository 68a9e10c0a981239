// The backward kernel of few channels ("runs", runs_kernel.h): its plan. Each type has a file with its instances.
#include <hip/hip_runtime.h>

#include "../common/launch.h"
#include "derivative.h"
#include "kernels.h"
#include "runs_plan.h"
#include "sums.h"
#include "taps.h"

namespace hipconv {

namespace {

constexpr int64_t kEnoughRunsBlocks = 2048;
constexpr int kMostRunsStages = 8;
constexpr int kLongestRow = INT32_MAX / 2;
constexpr int64_t kMostRuns = 1 << 25;
constexpr int kLeastTokens = 8;  // of a row; shorter ones are left to others

// The bytes of LDS between things that lanes of a wave read side by side, of which each is `bytes` long: next to `least`, so
// that they meet in banks as little as 16-byte units allow.
int64_t bwd_runs_apart(int64_t bytes, int64_t least) {
    int64_t units = ceil_of(bytes, kBwdRunsUnit), whole = 1;
    while (whole < units && whole < 4) whole *= 2;  // an odd multiple of these
    int64_t found = round_up(least, kBwdRunsUnit * whole);
    if (found / kBwdRunsUnit / whole % 2 == 0) found += kBwdRunsUnit * whole;
    return found;
}

// Lays x or dout out in LDS, but for its place there, for the tiles of a plan. Returns the bytes of its tiles.
int64_t bwd_runs_lay_out(const CausalConv1dBwdParams& p, const Sequences& s, const BwdRunsPlan& plan, bool is_x,
                         BwdRunsTensor* how) {
    const int64_t size = element_bytes(p.in.dtype), dim = p.in.dim, past = (p.in.width + 1) / 2 * 2 - 1;
    const bool whole_rows = (plan.flags & kRunsWholeRows) != 0;
    *how = {};
    how->row_memory = s.batch_stride * size;
    how->d_memory = s.dim_stride * size;
    how->t_memory = s.seqlen_stride * size;
    const bool tokens_inside = s.seqlen_stride == 1 && dim > 1 && s.dim_stride >= p.in.seqlen;
    const bool channels_inside = (dim == 1 || s.dim_stride == 1) && s.seqlen_stride >= dim && s.seqlen_stride <= 2 * dim;
    how->is_flat = tokens_inside || channels_inside;
    how->stretches = tokens_inside ? static_cast<int32_t>(dim) : 1;
    how->t_step = static_cast<int32_t>(how->is_flat ? how->t_memory : dim * size);
    const auto multiple = [&](int64_t value) { return value % kBwdRunsUnit == 0; };
    const bool has_units = multiple(dim * size) && s.dim_stride == 1 && multiple(reinterpret_cast<int64_t>(s.data)) &&
                           multiple(how->t_memory) && (p.in.batch == 1 || multiple(how->row_memory));
    how->is_aligned = how->is_flat && multiple(reinterpret_cast<int64_t>(s.data)) &&
                      (p.in.batch == 1 || multiple(how->row_memory)) && (!tokens_inside || multiple(how->d_memory));
    how->pieces = static_cast<int32_t>(has_units ? dim * size / kBwdRunsUnit : dim);
    how->run = plan.run * how->t_step;
    const int64_t of_lane = tokens_inside ? size : dim * size;
    how->gap = static_cast<int32_t>(bwd_runs_apart(of_lane, how->run + kBwdRunsUnit) - how->run);
    const int64_t around = round_up(past * how->t_step, kBwdRunsUnit);
    how->head = static_cast<int32_t>(whole_rows || !is_x ? 0 : how->gap + around);
    // The tokens behind the last run may end in a unit that another run would begin with.
    const int64_t tail = whole_rows                         ? kBwdRunsUnit
                         : around + kBwdRunsUnit > how->run ? how->run + how->gap + kBwdRunsUnit
                                                            : around + 2 * kBwdRunsUnit;
    int64_t step = how->head + int64_t{plan.runs} * (how->run + how->gap) + tail;
    if (plan.runs == 1 || tokens_inside) step = bwd_runs_apart(of_lane, step);
    how->stretch_step = static_cast<int32_t>(step);
    return step * how->stretches * plan.rows;
}

// Adds what only a plan that is taken needs of x or dout.
void bwd_runs_complete(const CausalConv1dBwdParams& p, const BwdRunsPlan& plan, BwdRunsTensor* how) {
    const int64_t size = element_bytes(p.in.dtype), end = int64_t{p.in.seqlen - 1} * how->t_step;
    const int64_t bytes = end + (how->stretches > 1 ? size : p.in.dim * size);
    how->of_pieces = small_divisor_of(how->pieces);
    how->units_of_run = small_divisor_of(how->run / kBwdRunsUnit);
    how->units_of_stretch = small_divisor_of(plan.flags & kRunsWholeRows ? (bytes + 2 * kBwdRunsUnit - 2) / kBwdRunsUnit : 1);
}

// Says how dx goes back from dout's place.
void bwd_runs_lay_dx_out(const CausalConv1dBwdParams& p, const BwdRunsTensor& dout, BwdRunsTensor* how, uint32_t* flags) {
    const int64_t size = element_bytes(p.in.dtype), dim = p.in.dim;
    *how = dout;
    how->row_memory = p.dx.batch_stride * size;
    how->d_memory = p.dx.dim_stride * size;
    how->t_memory = p.dx.seqlen_stride * size;
    const bool by_channels = dout.stretches > 1;
    const bool has_no_gaps =
        by_channels ? p.dx.seqlen_stride == 1 : (dim == 1 || p.dx.dim_stride == 1) && p.dx.seqlen_stride == dim;
    const auto multiple = [&](int64_t value) { return value % kBwdRunsUnit == 0; };
    const auto all_multiples = [&](int64_t data, int64_t row, int64_t d) {
        return multiple(data) && (p.in.batch == 1 || multiple(row)) && (!by_channels || multiple(d));
    };
    const int64_t dx = reinterpret_cast<int64_t>(p.dx.data);
    const bool is_alike = all_multiples(dx - reinterpret_cast<int64_t>(p.dout.data), how->row_memory - dout.row_memory,
                                        how->d_memory - dout.d_memory);
    if (dout.is_flat && has_no_gaps && how->t_memory == dout.t_step && is_alike) {
        *flags |= kRunsDxHasUnits;
        if (all_multiples(dx, how->row_memory, how->d_memory)) *flags |= kRunsDxIsAligned;
    }
    const bool lies_in_units = !by_channels && multiple(dout.t_step) &&
                               (!dout.is_flat || all_multiples(reinterpret_cast<int64_t>(p.dout.data), dout.row_memory, 0));
    const bool has_units = lies_in_units && multiple(dim * size) && p.dx.dim_stride == 1 && multiple(how->t_memory) &&
                           all_multiples(dx, how->row_memory, 0);
    how->pieces = static_cast<int32_t>(has_units ? dim * size / kBwdRunsUnit : dim);
    how->of_pieces = small_divisor_of(how->pieces);
}

// Tells whether the bytes of a tile can be counted in 32 bits.
bool bwd_runs_is_near(const CausalConv1dBwdParams& p, const BwdRunsPlan& plan) {
    const auto is_near = [&](const BwdRunsTensor& how) {
        const auto size = [](int64_t count, int64_t step) {
            return static_cast<double>(count) * static_cast<double>(step < 0 ? -step : step);
        };
        const int64_t tokens = int64_t{plan.run} * plan.runs + 2 * kBwdRunsMaxWidth;
        return size(plan.rows, how.row_memory) * (plan.rows > 1) + size(tokens, how.t_memory) + size(p.in.dim, how.d_memory) <
               1e9;
    };
    BwdRunsTensor dx = plan.dout;
    const int64_t size_of_element = element_bytes(p.in.dtype);
    dx.row_memory = p.dx.batch_stride * size_of_element;
    dx.d_memory = p.dx.dim_stride * size_of_element;
    dx.t_memory = p.dx.seqlen_stride * size_of_element;
    return is_near(plan.x) && is_near(plan.dout) && is_near(dx);
}

// The plan for runs of so many tokens, of which a tile has `lines` at most.
BwdRunsPlan bwd_runs_plan_of(const CausalConv1dBwdParams& p, int run, int lines) {
    BwdRunsPlan plan{};
    const int64_t runs = ceil_of(p.in.seqlen, run), batch = p.in.batch;
    plan.run = run;
    const auto flag = [](bool set, BwdRunsFlags value) { return set ? value : 0u; };
    plan.flags = flag(p.in.use_silu, kRunsSilu) | flag(p.in.seq_idx.data, kRunsIds) |
                 flag(p.in.initial_states.data, kRunsInitial) | flag(p.dinitial_states.data, kRunsGiveInitial) |
                 flag(p.dfinal_states.data, kRunsFinal) | flag(runs <= lines, kRunsWholeRows) |
                 flag(bwd_ids_are_quads(p.in), kRunsIdsInQuads);
    const int64_t tiles_of_row = ceil_of(runs, lines);
    plan.tiles_of_row = static_cast<int32_t>(tiles_of_row);
    plan.runs = static_cast<int32_t>(ceil_of(runs, tiles_of_row));
    const int64_t rows = tiles_of_row == 1 ? lines / plan.runs : 1;
    plan.rows = static_cast<int32_t>(rows < batch ? rows : batch);
    const int64_t tiles = tiles_of_row == 1 ? ceil_of(batch, plan.rows) : batch * tiles_of_row;
    plan.tiles = tiles < kGridLimit ? static_cast<int32_t>(tiles) : 0;
    const int64_t of_x = bwd_runs_lay_out(p, p.in.x, plan, true, &plan.x);
    const int64_t of_dout = bwd_runs_lay_out(p, p.dout, plan, false, &plan.dout);
    plan.dout.begin = static_cast<int32_t>(of_x);
    plan.taps_begin = static_cast<int32_t>(of_x + of_dout);
    plan.taps_pitch = plan.runs * run + kBwdRunsChunk;
    const int64_t of_taps = p.in.seq_idx.data ? int64_t{plan.taps_pitch} * plan.rows : 0;
    plan.lds_bytes = static_cast<int32_t>(of_x + of_dout + round_up(of_taps, kBwdRunsUnit));
    return plan;
}

// Takes the length of run that costs a large card least: a tile has a start and an end, which take as long as some tokens, a
// last round of fewer tiles takes as long as another, and few blocks leave much of a compute unit's time unused.
BwdRunsPlan bwd_runs_plan(const CausalConv1dBwdParams& p) {
    constexpr double kLeastBlocks = 4, kOfStartAndEnd = 6, kOfHalo = 0.7;
    const int64_t at_once = bwd_runs_blocks(p.in.width);
    BwdRunsPlan best{};
    double least = 0;
    for (int run = kBwdRunsChunk; run <= kBwdRunsLongest; run += kBwdRunsChunk) {
        int lines = kBwdRunsThreads / p.in.dim;
        BwdRunsPlan plan = bwd_runs_plan_of(p, run, lines);
        while ((plan.lds_bytes > kBwdRunsLds || !bwd_runs_is_near(p, plan)) && lines > 1) {
            const int fit = static_cast<int>(int64_t{lines} * kBwdRunsLds / plan.lds_bytes);
            lines = fit < 1 ? 1 : fit < lines ? fit : lines - 1;
            plan = bwd_runs_plan_of(p, run, lines);
        }
        if (plan.lds_bytes > kBwdRunsLds || plan.tiles == 0 || !bwd_runs_is_near(p, plan)) continue;
        const int64_t of_unit = ceil_of(plan.tiles, kUnitsOfLargeCard);
        const double busy = static_cast<double>(of_unit > at_once ? round_up(of_unit, at_once) : of_unit);
        const double halo = p.in.seqlen > run ? kOfHalo * (p.in.width - 1) : 0;
        const double cost = (busy > kLeastBlocks ? busy : kLeastBlocks) * (run + halo + kOfStartAndEnd);
        if (best.rows > 0 && cost >= least) continue;
        best = plan;
        least = cost;
    }
    bwd_runs_complete(p, best, &best.x);
    bwd_runs_complete(p, best, &best.dout);
    bwd_runs_lay_dx_out(p, best.dout, &best.dx, &best.flags);
    constexpr int kSums = (kBwdRunsMaxWidth + 1) * 4 * kBwdRunsThreads;
    if (best.lds_bytes < kSums) best.lds_bytes = kSums;
    best.stages = 1;
    while (best.stages < kMostRunsStages && best.tiles / (2 * best.stages) >= kEnoughRunsBlocks) best.stages *= 2;
    best.blocks = static_cast<uint32_t>(ceil_of(best.tiles, best.stages));
    best.of_runs = small_divisor_of(best.runs);
    best.of_channels = small_divisor_of(p.in.dim);
    best.of_run = small_divisor_of(best.run);
    best.of_tokens = small_divisor_of(best.flags & kRunsWholeRows ? p.in.seqlen : 1);
    best.of_taps = small_divisor_of(best.taps_pitch / 4);
    return best;
}

}  // namespace

const char* causal_conv1d_bwd_runs_refusal(const CausalConv1dBwdParams& p) {
    const char* served = "up to 16 channels, widths 1 to 8, at least one token";
    if (p.in.width > kBwdRunsMaxWidth || p.in.dim > kBwdRunsMostChannels || p.in.seqlen < 1 || p.in.seqlen > kLongestRow)
        return served;
    if (p.in.batch * ceil_of(p.in.seqlen, kBwdRunsChunk) > kMostRuns) return "up to 2^25 runs of 8 tokens";
    return bwd_runs_is_near(p, bwd_runs_plan_of(p, kBwdRunsChunk, 1)) ? nullptr : "neighbouring tokens within 1 GB";
}

// Takes channel-last rows of eight tokens and more, a run's least, where a card showed it faster. `vector` is, in small calls
// of few channels, and where their tokens lie apart, which come here one element at a time; and so are, without
// ids and states, `vector` of fewer than eight channels in float32 and `tile` of eight and more, unless filters are short.
bool causal_conv1d_bwd_runs_is_faster(const CausalConv1dBwdParams& p) {
    constexpr int64_t kEnoughTokens = 1 << 14;
    const int64_t size = element_bytes(p.in.dtype);
    const auto of_channels = [&](const Sequences& s) {
        const bool is_flat = s.seqlen_stride >= p.in.dim && s.seqlen_stride <= 2 * int64_t{p.in.dim};
        return s.dim_stride == 1 && (is_flat || p.in.dim * size % kBwdRunsUnit == 0);
    };
    if (p.in.dim < 2 || p.in.seqlen < kLeastTokens) return false;
    if (p.in.dim < 8 && p.in.batch * p.in.seqlen < kEnoughTokens) return false;
    const bool is_plain = !p.in.seq_idx.data && !p.in.initial_states.data && !p.dfinal_states.data;
    if (is_plain && (p.in.dim >= 8 ? p.in.width > 2 : size == 4)) return false;
    return of_channels(p.in.x) && of_channels(p.dout) && p.dx.dim_stride == 1;
}

int64_t causal_conv1d_bwd_runs_workspace(const CausalConv1dBwdParams& p) {
    return bwd_sums_workspace(p, sums_or_partials(equal_partials(bwd_runs_plan(p).blocks)), /*looks_at_taps=*/false);
}

void causal_conv1d_bwd_runs(const CausalConv1dBwdParams& params, void* workspace, void* stream) {
    const hipStream_t s = static_cast<hipStream_t>(stream);
    BwdRunsCall call{params, bwd_runs_plan(params)};
    const BwdPartials partials = sums_or_partials(equal_partials(call.plan.blocks));
    call.p = bwd_sums_begin(params, partials, /*looks_at_taps=*/false, workspace, s);
    const auto launch = params.in.dtype == DType::f16    ? launch_bwd_runs_f16
                        : params.in.dtype == DType::bf16 ? launch_bwd_runs_bf16
                                                         : launch_bwd_runs_f32;
    launch(call, stream);
    bwd_sums_add_up(call.p, partials, s);
}

}  // namespace hipconv
