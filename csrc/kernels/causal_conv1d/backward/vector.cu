// This kernel is the causal conv1d backward, channel-first ("vector"): neighbouring tokens are neighbours in memory.
//
// A thread makes the dx of a vector of tokens of one channel: from their x and dout and the inputs before them it computes
// their gradients g, and it needs the kWidth - 1 gradients after them, which the next lane has. Lanes of a row stand side by
// side and walk from the end of the row to its start, so that the last lane gets the gradients that the first lane had a step
// before: this takes one shuffle a gradient, no LDS and no barrier. Where a walk does not start at the end of its row, the
// gradients that its first step needs are computed in a prologue.
//
// A walk goes on through several sequences of its channel, if rows are short, and leaves its dweight and dbias in the
// workspace.
//
// One kernel serves rows that begin and end on 16-byte boundaries (vector_whole.cu), another one any rows (vector_ragged.cu).
// This file divides their work.
//
// Bytes: x and dout are read once from memory (and up to half of x once more from cache), dx is written once.
#include <hip/hip_runtime.h>

#include "../common/launch.h"
#include "kernels.h"
#include "parts.h"
#include "sums.h"
#include "taps.h"
#include "vector_walk.h"

namespace hipconv {

namespace {

// Tells whether every row of x, dout and dx begins and ends on a 16-byte boundary, without states.
bool bwd_rows_are_whole(const CausalConv1dBwdParams& p) {
    const int tokens = 16 / element_bytes(p.in.dtype);
    const auto aligned = [&](const Sequences& s) {
        return reinterpret_cast<uintptr_t>(s.data) % 16 == 0 && s.dim_stride % tokens == 0 && s.batch_stride % tokens == 0;
    };
    if (bwd_has_states(p) || (p.in.seq_idx.data && p.in.width != kPackedWidth)) return false;
    return p.in.seqlen % tokens == 0 && aligned(p.in.x) && aligned(p.dout) && aligned(p.dx);
}

struct BwdVectorShape {
    unsigned lanes, rows;
    int64_t steps_of_row, items, channel_groups;
    bool on_boundaries;
};

BwdVectorShape bwd_vector_shape(const CausalConv1dBwdParams& p) {
    const int each = 16 / element_bytes(p.in.dtype);
    BwdVectorShape s{};
    s.on_boundaries = p.in.seqlen > each && !bwd_rows_are_whole(p) && !bwd_has_states(p);
    const int64_t tokens = static_cast<int64_t>(p.in.seqlen) + (s.on_boundaries ? each - 1 : 0);
    const int64_t vectors = (tokens + each - 1) / each;
    s.lanes = power_of_two_up_to(vectors, bwd_rows_are_whole(p) ? kBwdVectorLanes : kBwdRaggedLanes);
    s.rows = kBwdVectorThreads / s.lanes;
    s.steps_of_row = (vectors + s.lanes - 1) / s.lanes;
    s.items = s.steps_of_row * p.in.batch;
    s.channel_groups = (static_cast<int64_t>(p.in.dim) + s.rows - 1) / s.rows;
    return s;
}

Taper bwd_vector_taper(const BwdVectorShape& s) {
    // Long walks need fewer partial sums, but cards need enough threads.
    uint32_t log2_steps = kBwdVectorLog2Steps;
    const double threads = static_cast<double>(s.items) * s.channel_groups * kBwdVectorThreads;
    while (log2_steps > 0 && (threads / (1u << log2_steps) < kEnoughThreads || s.items <= 1 << (log2_steps - 1))) --log2_steps;
    return tapered(static_cast<uint32_t>(s.items), s.channel_groups, log2_steps);
}

BwdVectorPlan plan_of(const CausalConv1dBwdParams& p, const BwdVectorShape& shape) {
    const int size = element_bytes(p.in.dtype);
    BwdVectorPlan plan{};
    plan.taper = bwd_vector_taper(shape);
    plan.steps_of_row = static_cast<uint32_t>(shape.steps_of_row);
    plan.stretch = static_cast<int32_t>(shape.lanes) * (16 / size);
    plan.last_stretch = (static_cast<int32_t>(shape.steps_of_row) - 1) * plan.stretch;
    plan.back = int64_t{plan.stretch} * size;
    const int64_t row = shape.steps_of_row * plan.back;
    plan.x_batch = p.in.x.batch_stride * size;
    plan.dout_batch = p.dout.batch_stride * size;
    plan.dx_batch = p.dx.batch_stride * size;
    plan.x_batch_back = row - plan.x_batch;
    plan.dout_batch_back = row - plan.dout_batch;
    plan.dx_batch_back = row - plan.dx_batch;
    plan.bits_batch_back = shape.steps_of_row * plan.stretch - bwd_taps_pitch(p.in.seqlen);
    plan.on_boundaries = shape.on_boundaries;
    return plan;
}

void launch(const CausalConv1dBwdParams& p, hipStream_t stream) {
    const BwdVectorShape shape = bwd_vector_shape(p);
    const BwdVectorPlan plan = plan_of(p, shape);
    const dim3 block(shape.lanes, shape.rows, 1);
    const unsigned blocks = plan.taper.blocks;
    const dim3 grid = blocks <= kGridLimit ? dim3(blocks, 1, 1) : grid_of(kGridLimit, (blocks + kGridLimit - 1) / kGridLimit);
    bwd_rows_are_whole(p) ? launch_bwd_whole(p, plan, grid, block, stream) : launch_bwd_ragged(p, plan, grid, block, stream);
}

BwdPartials partials_of(const CausalConv1dBwdParams& p) {
    const BwdVectorShape shape = bwd_vector_shape(p);
    const Taper taper = bwd_vector_taper(shape);
    BwdPartials partials{};
    for (int zone = 0; zone < kTaperZones; ++zone) {
        partials.first_channel[zone] = static_cast<int64_t>(taper.first_row[zone]) * shape.rows;
        partials.rows[zone] = pieces_of_row(taper, zone);
    }
    return partials;
}

}  // namespace

const char* causal_conv1d_bwd_vector_refusal(const CausalConv1dBwdParams& p) {
    const char* served = "channel-first x, dout and dx (stride 1 along seqlen) of at least one token, widths 2 to 4";
    if (p.in.width < 2 || p.in.width > kMaxFastBwdWidth || p.in.seqlen < 1 || p.in.seqlen > INT32_MAX - 4096) return served;
    if (p.in.x.seqlen_stride != 1 || p.dout.seqlen_stride != 1 || p.dx.seqlen_stride != 1) return served;
    const BwdVectorShape shape = bwd_vector_shape(p);
    return static_cast<double>(shape.items) * shape.channel_groups < kOffsetLimit ? nullptr : served;  // counted in 32 bits
}

int64_t causal_conv1d_bwd_vector_workspace(const CausalConv1dBwdParams& p) {
    return bwd_sums_workspace(p, partials_of(p), /*looks_at_taps=*/true);
}

void causal_conv1d_bwd_vector(const CausalConv1dBwdParams& params, void* workspace, void* stream) {
    const hipStream_t s = static_cast<hipStream_t>(stream);
    const BwdPartials partials = partials_of(params);
    const CausalConv1dBwdParams p = bwd_sums_begin(params, partials, /*looks_at_taps=*/true, workspace, s);
    launch(p, s);
    bwd_sums_add_up(p, partials, s);
}

}  // namespace hipconv
