// The channel-first backward kernel divides its work in this way: the rows of a channel, one sequence after another, are one
// stream of vectors, through which the lanes of the channel walk side by side, from the end to the start.
#pragma once

#include "causal_conv1d/backward.h"
#include "launch/taper.h"
#include "vector_load.h"

namespace hipconv {

constexpr int kBwdVectorLanes = 32;          // the most lanes of a channel: a shuffle reaches no further on any card
constexpr uint32_t kBwdVectorLog2Steps = 5;  // of the longest walk
constexpr int kMaxBwdVectorWidth = 8;        // a byte has bits for so many taps
// Where LDS is large, a block may make the taps of its own tokens there: of so many, and of some on either side.
constexpr int kBwdVectorOwnTaps = kCopiesPastRegisters ? 8192 : 0, kBwdVectorOwnTapsAround = 16;

// The plan says how a launch divides the work. A block is blockDim.x lanes by blockDim.y rows of them: `channels` channels, of
// which each has blockDim.y / channels parts of the block's piece, one behind the other. The items of a channel are the steps
// of its lanes through the stream; a thread does its part of a piece, from the last to the first. A row has no fewer vectors
// than a channel has lanes.
struct BwdVectorPlan {
    Taper taper;        // rows are groups of `channels` channels
    uint32_t channels;  // of a block
    uint32_t vectors;   // of a row: a lane's tokens each
    // The most tokens of a vector before the row that it begins: where vectors lie on the 16-byte boundaries of dx. It is 0
    // where they count from the row's start.
    int32_t most_before, before_step;  // from sequence to sequence, there are so many more (or so many less than a vector has)
    bool may_store_vectors;            // dx has its vectors on 16-byte boundaries,
    bool x_is_aligned, dout_is_aligned;  // and so have these
    bool loads_vectors;                  // tokens are neighbours in both, and aligned; in the form `across`, in dout
    bool has_states;
    bool makes_taps;    // each block makes those of its tokens,
    bool ids_in_quads;  // for which bwd_taps_of_quad serves
    bool shifts;        // x or dout may not be aligned
    int32_t piece;      // bytes of a copy of x to LDS, in the form `across`
    int32_t ahead;      // how many tokens further back than the next step those lie that are fetched into the cache; none, if 0
    int64_t x_batch, dout_batch, dx_batch, taps_batch;  // bytes from sequence to sequence
    int64_t x_step, dout_step, dx_step;                 // bytes from token to token: an element's, where these are neighbours
};

// The kernel's first parameter, of which AMD's lanes read again what has no room in scalar registers.
struct BwdVectorParams : CausalConv1dBwdParams {
    BwdMemory x_memory, dout_memory;
};

// A lane is here in the stream: the token of its row that its vector begins with, negative where the vector begins before the
// row.
struct BwdVectorPlace {
    int32_t b, t;
};

template <typename T, int kTokens>
HIPCONV_INLINE BwdVectorPlace bwd_vector_place(const CausalConv1dBwdParams& p, const BwdVectorPlan& plan, int64_t d,
                                               uint32_t vector) {
    const uint32_t last = static_cast<uint32_t>(p.in.batch) - 1;
    const uint32_t row = vector / plan.vectors, b = row < last ? row : last;  // past the stream's end: past its last row
    const uint32_t of_row = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p.dx.data) / sizeof(T)) +
                            static_cast<uint32_t>(d * p.dx.dim_stride + b * p.dx.batch_stride);
    const int32_t before = static_cast<int32_t>(of_row) & plan.most_before;
    return {static_cast<int32_t>(b), static_cast<int32_t>(vector - b * plan.vectors) * kTokens - before};
}

// Where t is before the row's first vector, it returns how many tokens later the same place is in the row before.
template <int kTokens, bool kWhole>
HIPCONV_INLINE int32_t bwd_vector_row_before(const BwdVectorPlan& plan, int32_t t) {
    const int32_t of_row = static_cast<int32_t>(plan.vectors) * kTokens;
    if (kWhole) return of_row;
    const int32_t before = -t & (kTokens - 1);
    return of_row + before - ((before - plan.before_step) & plan.most_before);
}

// The kernel has five forms, each of which has a file of its own.
enum class BwdForm {
    // rows of whole vectors, which are one sequence each without states and lie on 16-byte boundaries in all tensors, at widths
    // that whole.cu does not serve
    plain,
    aligned,          // such rows of any width that have states or hold several sequences, where lanes have predicates
    any,              // rows without states, tokens side by side
    any_with_states,  // all others, and all others of f32
    across,           // rows with or without states whose channels are neighbours in x, as tokens are in dout and dx
};

// Blocks of a compute unit. On NVIDIA's cards these are as many as have registers without a value spilled, as many threads are
// worth more than registers; but float32 with four and five taps was slower with more.
constexpr int bwd_vector_blocks(int width, BwdForm form, int element_bytes) {
    const bool plain = form == BwdForm::plain;
    if (!kHasPredicates) return width <= 4 ? (plain ? 10 : 6) : (plain ? 6 : 4);
    const bool is_float = element_bytes == 4;
    if (plain) return width <= (is_float ? 3 : 5) ? 8 : is_float ? (width <= 5 ? 7 : 5) : width <= 6 ? 7 : 6;
    if (width == 1 && (form == BwdForm::aligned || is_float)) return 8;
    if (form == BwdForm::aligned && width <= 3) return 7;
    if (form == BwdForm::aligned) return is_float && width <= 5 ? 6 : is_float ? 4 : 5;
    if (form == BwdForm::across) return width <= 3 ? 6 : width <= (is_float ? 6 : 7) ? 5 : 4;
    if (form == BwdForm::any) return width <= 3 ? 6 : width <= 6 ? 5 : 4;
    return width <= (is_float ? 3 : 2) ? 6 : width <= (is_float ? 4 : 5) ? 5 : 4;
}

// Tells whether a walk's first step is on its way before what comes after it in the row has arrived. AMD's cards have no scalar
// registers for it, and these instances no registers without a value spilled.
HIPCONV_INLINE constexpr bool bwd_vector_loads_first_at_once(int width, BwdForm form, int element_bytes) {
    if (form == BwdForm::plain && element_bytes == 4 && width == 8) return false;
    if (form == BwdForm::any && width == 3) return false;
    if (form == BwdForm::any_with_states && element_bytes == 2 && width == 2) return false;
    return kHasPredicates;
}

// Tells whether tokens that a lane loads itself come into the second cache a step before. Instances of 16-bit types that would
// spill a value for it are left out, and the rest of `plain` with them.
HIPCONV_INLINE constexpr bool bwd_vector_fetches(int width, BwdForm form, int element_bytes) {
    if (form == BwdForm::across) return false;
    if (element_bytes == 4) return true;
    if (form == BwdForm::plain || (form == BwdForm::aligned && width == 8) || (form == BwdForm::any && width == 6))
        return false;
    return bwd_vector_loads_first_at_once(width, form, element_bytes);
}

void launch_bwd_plain(const BwdVectorParams& params, const BwdVectorPlan& plan, dim3 grid, dim3 block, hipStream_t stream);
void launch_bwd_aligned(const BwdVectorParams& params, const BwdVectorPlan& plan, dim3 grid, dim3 block, hipStream_t stream);
void launch_bwd_any(const BwdVectorParams& params, const BwdVectorPlan& plan, dim3 grid, dim3 block, hipStream_t stream);
void launch_bwd_any_with_states(const BwdVectorParams& params, const BwdVectorPlan& plan, dim3 grid, dim3 block,
                                hipStream_t stream);
void launch_bwd_across(const BwdVectorParams& params, const BwdVectorPlan& plan, dim3 grid, dim3 block, hipStream_t stream);

}  // namespace hipconv
