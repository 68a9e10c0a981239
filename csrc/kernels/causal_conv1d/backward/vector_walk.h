// The channel-first backward kernel divides its work in this way: the rows of a channel, one sequence after another, are one
// stream of vectors, through which the lanes of the channel walk side by side, from the end to the start.
#pragma once

#include "causal_conv1d/backward.h"
#include "launch/taper.h"
#include "vector_load.h"

namespace hipconv {

constexpr int kBwdVectorThreads = 128;
constexpr int kBwdVectorLanes = 32;          // the most lanes of a channel: a shuffle reaches no further on any card
constexpr uint32_t kBwdVectorLog2Steps = 5;  // of the longest walk
constexpr int kMaxBwdVectorWidth = 8;        // a byte has bits for so many taps

// This plan says how a launch divides the work. A block is blockDim.x lanes by blockDim.y channels. The items of a channel are
// the steps of its lanes through the stream; a thread does a piece of them, from the last to the first. A row has no fewer
// vectors than a channel has lanes.
struct BwdVectorPlan {
    Taper taper;       // rows are groups of blockDim.y channels
    uint32_t vectors;  // of a row: a lane's tokens each
    // 15 where vectors lie on the 16-byte boundaries of dx, so that the first of a row may begin before it; 0 where they count
    // from the row's start
    uint32_t boundary;
    bool may_store_vectors;                             // dx has vectors on such boundaries
    int64_t x_batch, dout_batch, dx_batch, taps_batch;  // bytes from sequence to sequence
};

// Where a lane is in the stream, which is where the next tokens are loaded from.
struct BwdVectorPlace {
    const char *x, *dout;  // its row
    char* dx;
    int32_t b, vector;  // of the row
};

HIPCONV_INLINE BwdVectorPlace bwd_vector_place(const CausalConv1dBwdParams& p, const BwdVectorPlan& plan, int64_t d,
                                               int64_t element_bytes, uint32_t vector) {
    const uint32_t last = static_cast<uint32_t>(p.in.batch) - 1;
    const uint32_t row = vector / plan.vectors, b = row < last ? row : last;  // past the stream's end: past its last row
    BwdVectorPlace place;
    place.x = global_pointer<const char>(p.in.x.data) + d * p.in.x.dim_stride * element_bytes + b * plan.x_batch;
    place.dout = global_pointer<const char>(p.dout.data) + d * p.dout.dim_stride * element_bytes + b * plan.dout_batch;
    place.dx = global_pointer<char>(p.dx.data) + d * p.dx.dim_stride * element_bytes + b * plan.dx_batch;
    place.b = static_cast<int32_t>(b);
    place.vector = static_cast<int32_t>(vector - b * plan.vectors);
    return place;
}

// Moves towards the start of the stream, by no more vectors than a row has.
HIPCONV_INLINE void bwd_vector_go_back(const BwdVectorPlan& plan, int32_t vectors, BwdVectorPlace& place) {
    place.vector -= vectors;
    if (place.vector < 0) {
        place.vector += static_cast<int32_t>(plan.vectors);
        place.x -= plan.x_batch;
        place.dout -= plan.dout_batch;
        place.dx -= plan.dx_batch;
        --place.b;
    }
}

// The token that a lane's vector begins with; it is negative where the vector begins before the row.
template <typename T, int kTokens>
HIPCONV_INLINE int32_t bwd_vector_token(const BwdVectorPlan& plan, const BwdVectorPlace& place) {
    const uint32_t before = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(place.dx)) & plan.boundary;
    return place.vector * kTokens - static_cast<int32_t>(before / sizeof(T));
}

// These launch the two forms of the kernel, each of which has a file of its own: `plain` for rows of one sequence each without
// states, which lie at the same place of 16-byte vectors in x, dout and dx, and `any` for all others.
void launch_bwd_plain(const CausalConv1dBwdParams& params, const BwdVectorPlan& plan, dim3 grid, dim3 block,
                      hipStream_t stream);
void launch_bwd_any(const CausalConv1dBwdParams& params, const BwdVectorPlan& plan, dim3 grid, dim3 block, hipStream_t stream);

}  // namespace hipconv
