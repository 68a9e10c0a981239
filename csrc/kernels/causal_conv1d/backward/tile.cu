// The channel-last backward's plan, and its kernel (tile_kernel.h) for widths up to 3.
#include <hip/hip_runtime.h>

#include "kernels.h"
#include "sums.h"
#include "tile_kernel.h"

namespace hipconv {

namespace {

// Tells whether every lane's channels of every token of a tensor are an aligned vector of memory.
bool bwd_vectors_are_aligned(const CausalConv1dBwdParams& p, const Sequences& s, int channels) {
    return p.in.dim % channels == 0 &&
           reinterpret_cast<uintptr_t>(s.data) % static_cast<uintptr_t>(channels * element_bytes(p.in.dtype)) == 0 &&
           s.seqlen_stride % channels == 0 && s.batch_stride % channels == 0;
}
bool bwd_vectors_are_aligned(const CausalConv1dBwdParams& p, int channels) {
    const auto aligned = [&](const Sequences& s) { return bwd_vectors_are_aligned(p, s, channels); };
    return aligned(p.in.x) && aligned(p.dout) && aligned(p.dx);
}

// Tells whether lanes have two channels, in a call of rows of so many tokens. Of short rows few tokens see all their taps:
// there thin lanes were faster where they look at taps alone (at width 4, and at 8 in float32, they did not yet); with short
// filters in 16-bit types, where few channels leave a wave several runs, which meet the ends of rows at different times. At
// width 4, halves take the registers of a block. Few channels have more threads so.
bool bwd_is_thin(const CausalConv1dBwdParams& p, int seqlen) {
    constexpr int kShortRow = 32, kShortFilter = 4, kFewChannels = 256, kVeryFewChannels = 16;
    if (!kBwdStages) return false;
    const int size = element_bytes(p.in.dtype), width = p.in.width;
    const bool has_pairs = size == 4 || bwd_vectors_are_aligned(p, 2);
    if (width > 1 && seqlen > 1 && seqlen < kShortRow) {
        const bool was_faster = bwd_tile_sees_blocks(width, !has_pairs) && width != 4 && (width < 8 || size == 2);
        if (bwd_has_states(p) || !was_faster) return false;
        if (size == 2 && width <= kShortFilter && p.in.dim > kFewChannels) return false;
    }
    if (size == 4 || p.in.dim <= kVeryFewChannels) return true;
    return !bwd_vectors_are_aligned(p, 4) && (width != 4 || has_pairs);
}

constexpr int kMostPeriod = 512;          // tokens of a sequence, among others in one row
constexpr unsigned kFewBwdTileLanes = 4;  // of a block whose lanes are halved for a dim that they do not divide

struct BwdTileShape {
    bool thin;
    unsigned lanes, rows;
    int run;  // tokens
    unsigned runs_a_block, sequences_a_block;
    int64_t groups;  // blocks along the channels
    int64_t blocks_a_sequence, blocks;
};

int bwd_tile_channels(const CausalConv1dBwdParams& p, bool thin) {
    return hipconv::bwd_tile_channels(element_bytes(p.in.dtype), p.in.width, thin);
}

// Tells whether the sequences follow each other in memory as tokens do, so that a walk can go on from one to the next.
bool bwd_rows_follow(const CausalConv1dBwdParams& p) {
    const auto follow = [&](const Sequences& s) { return p.in.seqlen == 1 || s.batch_stride == p.in.seqlen * s.seqlen_stride; };
    return p.in.batch > 1 && p.in.seqlen > 0 && !bwd_has_states(p) && follow(p.in.x) && follow(p.dout) && follow(p.dx) &&
           int64_t{p.in.batch} * p.in.seqlen <= INT32_MAX - 4096;
}

// The same call with all sequences in one row.
CausalConv1dBwdParams bwd_in_one_row(CausalConv1dBwdParams p) {
    for (Sequences* s : {&p.in.x, &p.dout, &p.dx}) {
        if (p.in.seqlen == 1) s->seqlen_stride = s->batch_stride;
        s->batch_stride = 0;
    }
    p.in.seqlen *= p.in.batch;
    p.in.batch = 1;
    return p;
}

BwdTileShape bwd_tile_shape_of_run(const CausalConv1dBwdParams& p, bool thin, int run) {
    BwdTileShape s{};
    s.thin = thin;
    const int channels = bwd_tile_channels(p, thin), block = bwd_tile_block(p.in.width, thin);
    const int64_t lanes = (int64_t{p.in.dim} + channels - 1) / channels, seqlen = p.in.seqlen > 0 ? p.in.seqlen : 1;
    s.lanes = power_of_two_up_to(lanes, kBwdTileLanes);
    while (s.lanes > kFewBwdTileLanes && 5 * lanes < 4 * ((lanes + s.lanes - 1) / s.lanes * s.lanes)) s.lanes /= 2;
    s.rows = kBwdTileThreads / s.lanes < kBwdTileRows ? kBwdTileThreads / s.lanes : kBwdTileRows;
    const auto runs_of = [&](int tokens) { return (seqlen + tokens - 1) / tokens; };
    s.runs_a_block = power_of_two_up_to(runs_of(run), s.rows);
    const int64_t wanted = (runs_of(run) + s.runs_a_block - 1) / s.runs_a_block * s.runs_a_block;
    s.run = (static_cast<int>((seqlen + wanted - 1) / wanted) + block - 1) / block * block;
    s.sequences_a_block = s.rows / s.runs_a_block;
    s.groups = (lanes + s.lanes - 1) / s.lanes;
    s.blocks_a_sequence = (runs_of(s.run) + s.runs_a_block - 1) / s.runs_a_block;
    s.blocks = s.blocks_a_sequence * ((static_cast<int64_t>(p.in.batch) + s.sequences_a_block - 1) / s.sequences_a_block);
    return s;
}

// Takes the length of run that costs a large card least. Its compute units are busy with as many tokens as the fullest one has,
// halos included, and more with those that are checked; each round of blocks that it holds at once has a start and an end,
// which take as long as some tokens; and few blocks leave much of its time unused.
BwdTileShape bwd_tile_shape_of(const CausalConv1dBwdParams& p, int period, double* cost) {
    constexpr double kOfStartAndEnd = 20, kMoreIfChecked = 0.4;
    const bool thin = bwd_is_thin(p, period ? period : p.in.seqlen);
    const int size = element_bytes(p.in.dtype);
    const int blocks_of_unit = thin ? bwd_tile_thin_blocks(p.in.width, size, /*halves=*/false)
                                    : bwd_tile_blocks(p.in.width, bwd_vectors_are_aligned(p, bwd_tile_channels(p, thin)));
    const double least_blocks = 1 + 0.7 * blocks_of_unit;
    const int past = p.in.width - 1, block = bwd_tile_block(p.in.width, thin);
    BwdTileShape best{};
    for (int run = kBwdTileMaxRun; run >= kBwdTileMinRun; run = run % 3 ? run / 4 * 3 : run / 3 * 2) {
        const BwdTileShape s = bwd_tile_shape_of_run(p, thin, run);
        if ((p.in.seq_idx.data || period) && static_cast<int>(s.rows) * (s.run + past) > kBwdTileTapBytes) continue;
        const int64_t blocks = (s.groups * s.blocks + kUnitsOfLargeCard - 1) / kUnitsOfLargeCard;  // of a unit
        const int less = kBwdTileThreads / static_cast<int>(s.lanes * s.rows);  // times as many small blocks fit
        const int64_t rounds = (blocks + blocks_of_unit * less - 1) / (blocks_of_unit * less);
        const double all = static_cast<double>(blocks) / less, busy = all > least_blocks ? all : least_blocks;
        const int ends = period ? past > 0 ? (s.run + period - 1) / period : 0 : p.in.seqlen <= s.run ? 1 : 0;
        const int at_ends = ends * 2 * block + (ends ? past : block);
        const double checked = at_ends < s.run + past ? at_ends : s.run + past;
        const double each = busy * (s.run + past + kMoreIfChecked * checked) + kOfStartAndEnd * static_cast<double>(rounds);
        if (best.run && each >= *cost) continue;
        best = s;
        *cost = each;
    }
    return best;
}

// A call as it is walked: its sequences may be one row.
struct BwdTileWalk {
    CausalConv1dBwdParams p;
    BwdTileShape shape;
    int period;  // the tokens of each sequence of such a row, else 0
};

BwdTileWalk bwd_tile_walk(const CausalConv1dBwdParams& p) {
    double cost = 0;
    BwdTileWalk walk{p, bwd_tile_shape_of(p, 0, &cost), 0};
    if (p.in.seqlen <= kMostPeriod && bwd_rows_follow(p)) {
        const CausalConv1dBwdParams one = bwd_in_one_row(p);
        double other = 0;
        const BwdTileShape shape = bwd_tile_shape_of(one, p.in.seqlen, &other);
        if (other < cost) walk = {one, shape, p.in.seqlen};
    }
    return walk;
}

int64_t bwd_least_bytes(const CausalConv1dBwdParams& p, int64_t Sequences::* stride) {
    const int64_t x = p.in.x.*stride, dout = p.dout.*stride;
    return (x < dout ? x : dout) * element_bytes(p.in.dtype);
}

// Copies of granules would reach past the tensor's end at more tokens than the last one, which alone is not copied so.
bool bwd_tokens_share_granules(const CausalConv1dBwdParams& p) {
    return kBwdStages && p.in.seqlen > 1 && !bwd_vectors_are_aligned(p, 8 / element_bytes(p.in.dtype)) &&
           bwd_least_bytes(p, &Sequences::seqlen_stride) < kBwdGranule;
}

BwdTileCall bwd_tile_call(const BwdTileWalk& walk) {
    const CausalConv1dBwdParams& p = walk.p;
    const BwdTileShape& shape = walk.shape;
    const int channels = bwd_tile_channels(p, shape.thin), bytes = element_bytes(p.in.dtype);
    BwdTileCall call{};
    call.p = p;
    call.groups = shape.groups;
    call.lanes = shape.lanes;
    call.rows = shape.rows;
    call.has_pairs = bwd_vectors_are_aligned(p, 2);
    call.thin = shape.thin;
    call.aligned = !call.thin && bwd_vectors_are_aligned(p, channels);
    BwdTilePlan& plan = call.plan;
    plan.run = shape.run;
    while (1u << plan.log2_runs_a_block < shape.runs_a_block) ++plan.log2_runs_a_block;
    plan.sequences_a_block = shape.sequences_a_block;
    plan.blocks_a_sequence = static_cast<uint32_t>(shape.blocks_a_sequence);
    plan.blocks = static_cast<uint32_t>(shape.blocks);
    plan.period = static_cast<uint32_t>(walk.period);
    plan.x_step = p.in.x.seqlen_stride * bytes;
    plan.dout_step = p.dout.seqlen_stride * bytes;
    plan.dx_step = p.dx.seqlen_stride * bytes;
    while (1u << plan.log2_channels < shape.lanes * static_cast<unsigned>(channels)) ++plan.log2_channels;
    const auto flag = [](bool set, BwdTileFlags value) { return set ? value : 0u; };
    plan.flags =
        flag(p.in.use_silu, kBwdSilu) | flag(p.in.seq_idx.data || walk.period, kBwdTaps) |
        flag(p.in.initial_states.data, kBwdInitial) | flag(p.dinitial_states.data, kBwdGivesInitial) |
        flag(p.dfinal_states.data, kBwdFinal) |
        flag(p.in.batch > 1 && bwd_least_bytes(p, &Sequences::batch_stride) < kBwdGranule, kBwdAllRowsEnd) |
        flag(p.in.dim % channels == 0 && parameters_are_packed(p.in), kBwdPacked) |
        flag(bwd_vectors_are_aligned(p, p.in.x, channels), kBwdXHasVectors) |
        flag(bwd_vectors_are_aligned(p, p.dout, channels), kBwdDoutHasVectors) |
        flag(bwd_vectors_are_aligned(p, p.dx, channels), kBwdDxHasVectors) |
        flag(bwd_ids_are_quads(p.in) && (walk.period == 0 || (walk.period % 4 == 0 && p.in.seq_idx.batch_stride % 4 == 0)),
             kBwdIdsInQuads);
    return call;
}

auto launcher_of_thin_lanes(const BwdTileCall& call) {
    switch (call.p.in.dtype) {
        case DType::f16:
            return call.has_pairs ? launch_bwd_tile_thin<f16, false> : launch_bwd_tile_thin<f16, true>;
        case DType::bf16:
            return call.has_pairs ? launch_bwd_tile_thin<bf16, false> : launch_bwd_tile_thin<bf16, true>;
        default:
            return launch_bwd_tile_thin<float, false>;
    }
}

}  // namespace

const char* causal_conv1d_bwd_tile_refusal(const CausalConv1dBwdParams& p) {
    const char* served = kBwdStages ? "channel-last x, dout and dx (stride 1 along dim) of eight bytes a token, widths 1 to 8"
                                    : "channel-last x, dout and dx (stride 1 along dim), widths 1 to 8; four channels or more";
    if (p.in.width > kBwdTileMaxWidth || p.in.seqlen > INT32_MAX - 4096) return served;
    if (!kBwdStages && p.in.dim < bwd_tile_channels(p, false)) return served;
    if (p.in.x.dim_stride != 1 || p.dout.dim_stride != 1 || p.dx.dim_stride != 1) return served;
    const BwdTileWalk walk = bwd_tile_walk(p);
    const BwdTileShape& shape = walk.shape;
    if (bwd_tokens_share_granules(walk.p)) return served;
    return shape.groups <= kGridLimit && shape.blocks < int64_t{1} << 31 ? nullptr : served;
}

// A token of few channels is less than a lane reads at once, and is left to the kernel that reads single elements. From four
// channels on the length of a row has no say: only this kernel gives dx the same bits however a row is cut into shards.
bool causal_conv1d_bwd_tile_is_faster(const CausalConv1dBwdParams& p) {
    constexpr int kFewChannels = 3, kShortRow = 8;
    return p.in.dim > kFewChannels || p.in.seqlen < kShortRow;
}

int64_t causal_conv1d_bwd_tile_workspace(const CausalConv1dBwdParams& p) {
    return bwd_sums_workspace(p, sums_or_partials(equal_partials(bwd_tile_walk(p).shape.blocks)), /*looks_at_taps=*/false);
}

void causal_conv1d_bwd_tile(const CausalConv1dBwdParams& params, void* workspace, void* stream) {
    const hipStream_t s = static_cast<hipStream_t>(stream);
    BwdTileWalk walk = bwd_tile_walk(params);
    const BwdPartials partials = sums_or_partials(equal_partials(walk.shape.blocks));
    walk.p = bwd_sums_begin(walk.p, partials, /*looks_at_taps=*/false, workspace, s);
    const BwdTileCall call = bwd_tile_call(walk);
    const int width = walk.p.in.width;
    static_assert(kBwdTileMaxWidth == 8, "the widest has a file, too");
    const auto launch = call.thin    ? launcher_of_thin_lanes(call)
                        : width <= 3 ? launch_bwd_tile<3, 1>
                        : width <= 5 ? launch_bwd_tile<5, 4>
                        : width == 6 ? launch_bwd_tile<6, 6>
                        : width == 7 ? launch_bwd_tile<7, 7>
                                     : launch_bwd_tile<8, 8>;
    launch(call, s);
    bwd_sums_add_up(walk.p, partials, s);
}

}  // namespace hipconv
