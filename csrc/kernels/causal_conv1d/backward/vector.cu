// This kernel is the causal conv1d backward, channel-first ("vector"): neighbouring tokens are neighbours in memory. It also
// serves tensors whose tokens lie apart, and tensors of different orders, by single elements, or x through LDS.
//
// A lane makes the dx of a vector of tokens of one channel. From their x and dout and the inputs before them it computes their
// gradients g, which have a part in the dx of its own tokens and of the kWidth - 1 before them: the lane before gets that part,
// one shuffle a token, with no LDS and no barrier. Lanes of a channel stand side by side and walk from the end to the start, so
// that the last lane gets what the first one had a step before. Where a walk does not start at the end of a row, that is worked
// out in a prologue.
//
// The rows of a channel, one sequence after another, are one stream of vectors. A walk goes through a piece of it, whatever the
// length of the rows, and leaves its dweight and dbias in the workspace.
//
// Vectors lie on the 16-byte boundaries of dx; vector_load.h brings x and dout from wherever they lie. Where all tokens of a
// wave see all that their taps may see, no tap is looked at; elsewhere a lane has a bit for each. Whole rows of the usual
// widths have a kernel of their own (whole.cu). This file divides the work of both.
//
// Bytes: x and dout are read once from memory (and up to half of x once more from cache), dx is written once.
#include <hip/hip_runtime.h>

#include "../common/launch.h"
#include "derivative.h"
#include "kernels.h"
#include "sums.h"
#include "taps.h"
#include "vector_walk.h"
#include "whole_walk.h"

namespace hipconv {

namespace {

// The bytes by which addresses of rows may differ from multiples of 16: as a power of two that divides them all.
int64_t alignment_of_rows(const CausalConv1dBwdParams& p, const Sequences& s, const Sequences* from) {
    const auto less = [&](int64_t value, int64_t other) { return from ? value - other : value; };
    const int64_t size = element_bytes(p.in.dtype);
    int64_t bits = 16 | less(reinterpret_cast<int64_t>(s.data), from ? reinterpret_cast<int64_t>(from->data) : 0);
    if (p.in.dim > 1) bits |= less(s.dim_stride, from ? from->dim_stride : 0) * size;
    if (p.in.batch > 1) bits |= less(s.batch_stride, from ? from->batch_stride : 0) * size;
    return bits & -bits;
}

struct BwdVectorShape {
    unsigned lanes, channels, parts;              // of a block: a channel has as many rows of lanes as parts
    int64_t vectors;                              // of a row
    int64_t items, channel_groups, steps_of_row;  // the last where is_whole
    bool on_boundaries, may_store_vectors, x_is_aligned, dout_is_aligned, has_steps, is_plain, is_whole, is_aligned;
    int piece;  // bytes of a copy of x to LDS, if it comes so, else 0

    unsigned rows() const { return channels * parts; }
};

bool has_neighbours(const Sequences& s) { return s.seqlen_stride == 1; }

// The channels of a block with so many rows of lanes: fewer than it has rows, if a fifth of them would have no channel.
unsigned channels_of_block(int64_t dim, unsigned rows) {
    unsigned channels = power_of_two_up_to(dim, rows);
    while (channels > 4 && 5 * dim < 4 * ((dim + channels - 1) / channels * channels)) channels /= 2;
    return channels;
}

// Where x comes to LDS, tokens are fetched into the cache a step ahead at widths up to this: others wait for arithmetic.
constexpr int kWidestOfFetched = 2;

// In f32, single tokens of x are as fast at widths up to this.
constexpr int kWidestOfSingleTokens = 5;

// The bytes of which each is a copy of x to LDS where its channels are neighbours, or 0 if they do not lie so.
int bwd_piece_across(const CausalConv1dBwdParams& p) {
    const int64_t size = element_bytes(p.in.dtype);
    if (!kCopiesPastRegisters || p.in.x.dim_stride != 1 || has_neighbours(p.in.x)) return 0;
    if (size == 4 && p.in.width <= kWidestOfSingleTokens) return 0;
    int64_t bits = 16 | reinterpret_cast<int64_t>(p.in.x.data) | p.in.dim * size | p.in.x.seqlen_stride * size;
    if (p.in.batch > 1) bits |= p.in.x.batch_stride * size;
    return (bits & 15) == 0 ? 16 : (bits & 3) == 0 && size == 2 ? 4 : 0;
}

BwdVectorShape bwd_vector_shape(const CausalConv1dBwdParams& p) {
    const int64_t size = element_bytes(p.in.dtype);
    const int64_t tokens = bwd_vector_tokens(static_cast<int>(size), p.in.width);
    const int64_t before =  // the most tokens of a vector before its row
        has_neighbours(p.dx) ? (16 - alignment_of_rows(p, p.dx, nullptr)) / size : 0;
    const auto vectors = [&](int64_t size_of_row) { return (size_of_row + tokens - 1) / tokens; };
    BwdVectorShape s{};
    // Boundaries make loads and stores wide, but a short row may take a vector more.
    s.on_boundaries = before > 0 && 4 * vectors(p.in.seqlen + before) <= 5 * vectors(p.in.seqlen);
    s.may_store_vectors = before == 0 || s.on_boundaries;
    const auto is_aligned = [&](const Sequences& other) {
        return alignment_of_rows(p, other, s.on_boundaries ? &p.dx : nullptr) == 16;
    };
    s.x_is_aligned = is_aligned(p.in.x);
    s.dout_is_aligned = is_aligned(p.dout);
    s.has_steps = !has_neighbours(p.in.x) || !has_neighbours(p.dout) || !has_neighbours(p.dx);
    s.vectors = vectors(p.in.seqlen + (s.on_boundaries ? before : 0));
    const auto steps = [&](int64_t vectors) { return (vectors + s.lanes - 1) / s.lanes; };
    const bool has_whole_rows = !s.has_steps && before == 0 && s.x_is_aligned && s.dout_is_aligned &&
                                p.in.seqlen % tokens == 0 && p.in.seqlen >= p.in.width;
    s.is_plain = has_whole_rows && !bwd_has_states(p) && !p.in.seq_idx.data;
    if (s.is_plain && bwd_whole_has_width(p.in.width)) {  // each row ends with the last lane: few lanes may be behind it
        s.lanes = power_of_two_up_to(s.vectors, kBwdVectorLanes);
        while (s.lanes > 2 && 5 * s.vectors < 4 * steps(s.vectors) * s.lanes) s.lanes /= 2;
        s.channels = kBwdVectorThreads / s.lanes;
        s.is_whole = channels_of_block(p.in.dim, s.channels) == s.channels;
    }
    if (s.is_whole) {
        s.parts = 1;
        s.steps_of_row = steps(s.vectors);
        s.items = s.steps_of_row * p.in.batch;
    } else {
        s.lanes = power_of_two_up_to(s.vectors / 2 + 1, kBwdVectorLanes);  // no more than vectors
        // Where a row begins or ends, a wave moves states for the few lanes that do: fewer lanes are there less often. Small
        // calls need the lanes.
        if (kHasPredicates && bwd_has_states(p)) {
            constexpr int64_t kShortRow = 32, kLongRow = 130, kManyLanes = 1 << 15;  // vectors of a row; lanes of all rows
            const unsigned most = s.vectors <= kShortRow ? 8 : s.vectors <= kLongRow ? 16 : kBwdVectorLanes;
            if (s.lanes > most && int64_t{p.in.batch} * p.in.dim * most >= kManyLanes) s.lanes = most;
        }
        if (s.has_steps) {  // a wave has neighbouring channels: 64 bytes of them, where those are neighbours in memory
            const unsigned wide = power_of_two_up_to(p.in.dim, 64 / static_cast<unsigned>(size));
            if (s.lanes > kBwdVectorThreads / wide) s.lanes = kBwdVectorThreads / wide;
            // Few channels are one wave's, which then reads sectors for all of them. Float32 of different orders was slower.
            const bool crossed = has_neighbours(p.in.x) != has_neighbours(p.dout);
            if (wide <= 8 && !(size == 4 && crossed) && s.lanes > kBwdVectorLanes / wide) s.lanes = kBwdVectorLanes / wide;
        }
        const unsigned rows = kBwdVectorThreads / s.lanes;
        s.channels = channels_of_block(p.in.dim, rows);
        // Rows of few vectors leave a block more channels than it copies x of.
        const unsigned across = kBwdAcrossBytes / static_cast<unsigned>(size);
        s.piece = has_neighbours(p.dout) && has_neighbours(p.dx) && s.channels >= across &&
                          channels_of_block(p.in.dim, across) == across
                      ? bwd_piece_across(p)
                      : 0;
        if (s.piece) s.channels = across;
        s.parts = rows / s.channels;
        s.is_aligned = has_whole_rows && !s.is_plain && s.parts == 1 && kHasPredicates;
        s.is_plain = s.is_plain && s.parts == 1 && !bwd_whole_has_width(p.in.width);
        s.items = steps(s.vectors * p.in.batch);
    }
    s.channel_groups = (static_cast<int64_t>(p.in.dim) + s.channels - 1) / s.channels;
    return s;
}

// Takes walks that leave a large card enough threads, or twice or half as long ones where these cost clearly less: a start and
// an end take as long as some steps; compute units hold so many blocks at once, and a last round of fewer takes as long as
// another; few blocks leave much of a unit's time unused; and the sums of one piece need no kernel to add them up.
Taper bwd_vector_taper(const CausalConv1dBwdParams& p, const BwdVectorShape& s) {
    constexpr double kOfStartAndEnd = 2, kLeastBlocks = 2.5, kClearly = 0.92;  // steps; blocks of a unit
    // A kernel that adds up sums takes as long as so many steps of one block of each unit. Long walks of few blocks are no use.
    constexpr double kOfSums = 10, kLeastBlocksOfLongPiece = 4;
    constexpr int64_t kLongPiece = 8;  // steps
    const BwdForm form = s.is_plain     ? BwdForm::plain
                         : s.is_aligned ? BwdForm::aligned
                         : s.piece      ? BwdForm::across
                                        : BwdForm::any;
    const int at_once = s.is_whole ? kBwdWholeBlocks : bwd_vector_blocks(p.in.width, form, element_bytes(p.in.dtype));
    const auto cost_of = [&](uint32_t log2, double least_blocks) {
        const int64_t longest = int64_t{s.parts} << log2, pieces = (s.items + longest - 1) / longest;
        const int64_t of_unit = (pieces * s.channel_groups + kUnitsOfLargeCard - 1) / kUnitsOfLargeCard;
        const int64_t in_rounds = of_unit > at_once ? (of_unit + at_once - 1) / at_once * at_once : of_unit;
        const double busy = static_cast<double>(in_rounds) > least_blocks ? static_cast<double>(in_rounds) : least_blocks;
        const int64_t steps = pieces > 1 ? int64_t{1} << log2 : (s.items + s.parts - 1) / s.parts;
        return busy * (static_cast<double>(steps) + kOfStartAndEnd);
    };
    uint32_t log2_steps = kBwdVectorLog2Steps;
    const double threads = static_cast<double>(s.items) * s.channel_groups * s.lanes * s.channels;
    while (log2_steps > 0 && (threads / (1u << log2_steps) < kEnoughThreads || s.items <= 1 << (log2_steps - 1))) --log2_steps;
    const uint32_t usual = log2_steps;
    if (usual < kBwdVectorLog2Steps && cost_of(usual + 1, kLeastBlocks) < kClearly * cost_of(usual, kLeastBlocks))
        log2_steps = usual + 1;
    if (usual > 0 && cost_of(usual - 1, kLeastBlocks) < kClearly * cost_of(log2_steps, kLeastBlocks)) log2_steps = usual - 1;
    uint32_t all = 0;  // a channel's steps are one piece then
    while (int64_t{s.parts} << all < s.items) ++all;
    const double least_blocks = s.items > kLongPiece * s.parts ? kLeastBlocksOfLongPiece : kLeastBlocks;
    if (all <= kBwdVectorLog2Steps && cost_of(all, least_blocks) < kClearly * (cost_of(log2_steps, kLeastBlocks) + kOfSums))
        log2_steps = all;
    if (s.parts == 1) return tapered(static_cast<uint32_t>(s.items), s.channel_groups, log2_steps);
    // A part has as many items as each other part of its block.
    Taper taper{static_cast<uint32_t>(s.items), log2_steps, {}, {}, 0};
    for (unsigned parts = s.parts; parts > 1; parts /= 2) ++taper.log2_longest;
    const int64_t pieces = (s.items + (int64_t{1} << taper.log2_longest) - 1) >> taper.log2_longest;
    taper.blocks = static_cast<uint32_t>(pieces * s.channel_groups);
    for (int zone = 1; zone < kTaperZones; ++zone) {
        taper.first_block[zone] = taper.blocks;
        taper.first_row[zone] = static_cast<uint32_t>(s.channel_groups);
    }
    return taper;
}

// Tells whether each block makes the taps of its tokens. On an H200 a million takes all of them together 4 us; a kernel that
// does it once takes 2.5 us and, by its instructions, 2 us a million.
bool bwd_vector_makes_taps(const CausalConv1dBwdParams& p, const BwdVectorShape& s, const Taper& taper) {
    if (!p.in.seq_idx.data) return false;
    const double millions = 1e-6 * p.in.batch * p.in.seqlen;
    if (4 * millions * static_cast<double>(s.channel_groups) > 2.5 + 2 * millions) return false;
    const int64_t of_item = int64_t{s.lanes} * bwd_vector_tokens(element_bytes(p.in.dtype), p.in.width);
    return of_item << taper.log2_longest <= kBwdVectorOwnTaps;
}

BwdMemory memory_of(const CausalConv1dBwdParams& p, const Sequences& s) {
    const int64_t size = element_bytes(p.in.dtype);
    BwdMemory memory{static_cast<const char*>(s.data), static_cast<const char*>(s.data) + size};
    const int64_t steps[][2] = {{p.in.batch, s.batch_stride}, {p.in.dim, s.dim_stride}, {p.in.seqlen, s.seqlen_stride}};
    for (const auto& [count, stride] : steps) (stride < 0 ? memory.begin : memory.end) += (count - 1) * stride * size;
    return memory;
}

BwdVectorPlan plan_of(const CausalConv1dBwdParams& p, const BwdVectorShape& shape) {
    const int size = element_bytes(p.in.dtype);
    BwdVectorPlan plan{};
    plan.taper = bwd_vector_taper(p, shape);
    plan.channels = shape.channels;
    plan.vectors = static_cast<uint32_t>(shape.vectors);
    plan.most_before = shape.on_boundaries ? 16 / size - 1 : 0;
    plan.before_step = static_cast<int32_t>(p.dx.batch_stride & 7);
    plan.may_store_vectors = shape.may_store_vectors;
    plan.x_is_aligned = shape.x_is_aligned;
    plan.dout_is_aligned = shape.dout_is_aligned;
    plan.loads_vectors = shape.dout_is_aligned && (shape.piece || (shape.x_is_aligned && !shape.has_steps));
    plan.shifts = !(shape.x_is_aligned && shape.dout_is_aligned);
    plan.has_states = bwd_has_states(p);
    plan.makes_taps = bwd_vector_makes_taps(p, shape, plan.taper);
    plan.ids_in_quads = bwd_ids_are_quads(p.in);
    plan.piece = shape.piece;
    const bool fetches_ahead = shape.piece ? p.in.width <= kWidestOfFetched : !shape.has_steps;
    plan.ahead = !fetches_ahead ? 0 : static_cast<int32_t>(shape.lanes) * bwd_vector_tokens(size, p.in.width);
    plan.x_batch = p.in.x.batch_stride * size;
    plan.dout_batch = p.dout.batch_stride * size;
    plan.dx_batch = p.dx.batch_stride * size;
    plan.taps_batch = plan.makes_taps ? shape.vectors * bwd_vector_tokens(size, p.in.width) : bwd_taps_pitch(p.in.seqlen);
    plan.x_step = p.in.x.seqlen_stride * size;
    plan.dout_step = p.dout.seqlen_stride * size;
    plan.dx_step = p.dx.seqlen_stride * size;
    return plan;
}

BwdWholePlan whole_plan_of(const CausalConv1dBwdParams& p, const BwdVectorShape& shape) {
    const int size = element_bytes(p.in.dtype);
    const int32_t steps = static_cast<int32_t>(shape.steps_of_row);
    BwdWholePlan plan{};
    plan.taper = bwd_vector_taper(p, shape);
    plan.steps_of_row = static_cast<uint32_t>(steps);
    plan.stretch = static_cast<int32_t>(shape.lanes) * (16 / size);
    plan.last_stretch = (steps - 1) * plan.stretch;
    plan.back = int64_t{plan.stretch} * size;
    plan.x_batch = p.in.x.batch_stride * size;
    plan.dout_batch = p.dout.batch_stride * size;
    plan.dx_batch = p.dx.batch_stride * size;
    plan.x_batch_back = steps * plan.back - plan.x_batch;
    plan.dout_batch_back = steps * plan.back - plan.dout_batch;
    plan.dx_batch_back = steps * plan.back - plan.dx_batch;
    return plan;
}

void launch(const CausalConv1dBwdParams& p, hipStream_t stream) {
    const BwdVectorShape shape = bwd_vector_shape(p);
    const BwdVectorPlan plan = plan_of(p, shape);
    const BwdVectorParams with_memory{p, memory_of(p, p.in.x), memory_of(p, p.dout)};
    const dim3 block(shape.lanes, shape.rows(), 1);
    const unsigned blocks = plan.taper.blocks;
    const dim3 grid = blocks <= kGridLimit ? dim3(blocks, 1, 1) : grid_of(kGridLimit, (blocks + kGridLimit - 1) / kGridLimit);
    if (shape.is_whole)
        launch_bwd_whole(p, whole_plan_of(p, shape), grid, block, stream);
    else if (shape.is_plain)
        launch_bwd_plain(with_memory, plan, grid, block, stream);
    else if (shape.is_aligned)
        launch_bwd_aligned(with_memory, plan, grid, block, stream);
    else if (shape.piece)
        launch_bwd_across(with_memory, plan, grid, block, stream);
    else if (p.in.dtype == DType::f32 || plan.has_states || shape.has_steps)
        launch_bwd_any_with_states(with_memory, plan, grid, block, stream);
    else
        launch_bwd_any(with_memory, plan, grid, block, stream);
}

bool looks_at_taps(const CausalConv1dBwdParams& p) {
    const BwdVectorShape shape = bwd_vector_shape(p);
    return !bwd_vector_makes_taps(p, shape, bwd_vector_taper(p, shape));
}

BwdPartials partials_of(const CausalConv1dBwdParams& p) {
    const BwdVectorShape shape = bwd_vector_shape(p);
    const Taper taper = bwd_vector_taper(p, shape);
    BwdPartials partials{};
    for (int zone = 0; zone < kTaperZones; ++zone) {
        partials.first_channel[zone] = static_cast<int64_t>(taper.first_row[zone]) * shape.channels;
        partials.rows[zone] = pieces_of_row(taper, zone);
    }
    return sums_or_partials(partials);
}

}  // namespace

const char* causal_conv1d_bwd_vector_refusal(const CausalConv1dBwdParams& p) {
    const char* served = "at least one token, widths 1 to 8";
    if (p.in.width > kMaxBwdVectorWidth || p.in.seqlen < 1 || p.in.seqlen > INT32_MAX - 4096) return served;
    const BwdVectorShape shape = bwd_vector_shape(p);
    const double blocks = static_cast<double>(shape.items) * shape.channel_groups, vectors = static_cast<double>(shape.vectors);
    return blocks < kOffsetLimit && vectors * p.in.batch < kOffsetLimit ? nullptr : served;  // counted in 32 bits
}

// A dout that repeats its elements is what a sum of out has for gradient. Beside channel-last x it is left to `staged`, which
// adds up a token's dx in one order however a row is cut into shards.
bool causal_conv1d_bwd_vector_is_faster(const CausalConv1dBwdParams& p) {
    const bool repeats = p.dout.dim_stride == 0 || p.dout.seqlen_stride == 0;
    return !(repeats && p.in.x.dim_stride == 1 && p.in.dim > 1);
}

int64_t causal_conv1d_bwd_vector_workspace(const CausalConv1dBwdParams& p) {
    return bwd_sums_workspace(p, partials_of(p), looks_at_taps(p));
}

void causal_conv1d_bwd_vector(const CausalConv1dBwdParams& params, void* workspace, void* stream) {
    const hipStream_t s = static_cast<hipStream_t>(stream);
    const BwdPartials partials = partials_of(params);
    const CausalConv1dBwdParams p = bwd_sums_begin(params, partials, looks_at_taps(params), workspace, s);
    launch(p, s);
    bwd_sums_add_up(p, partials, s);
}

}  // namespace hipconv
