// This file declares the causal conv1d over packed sequences with a pool of conv states, as the bindings hand it to the
// kernels. It depends on neither torch nor HIP.
//
//   out[d, begin + i] = act(bias[d] + sum_j weight[d, j] * window(d, i - width + 1 + j)),   begin the sequence's first token
//   window(d, i >= 0) = x[d, begin + i],   window(d, i < 0) = the initial state's column width - 1 + i, or nothing
//
// and afterwards the width - 1 last inputs of each sequence are its new state.
#pragma once

#include <cstdint>

#include "causal_conv1d/parameters.h"
#include "device/dtype.h"
#include "device/index_array.h"
#include "launch/kernel_table.h"

namespace hipconv {

constexpr int32_t kNoNumber = INT32_MIN;  // of a slot

// Tells what becomes of dead tokens, which belong to no sequence or to a padding one.
enum class DeadTokens : int32_t { zero, leave, copy };

struct CausalConv1dVarlenParams : FilterParams<const void*> {
    int32_t dim, tokens, sequences, width;
    DType dtype;  // of x and the outputs

    const void* x;  // (dim, tokens)
    int64_t x_dim_stride, x_token_stride;

    // One output (dim, tokens); or, if k_dim >= 0, q, k and v as contiguous rows of tokens, of k_dim, k_dim and the other
    // channels.
    void *out, *k, *v;
    int64_t out_dim_stride, out_token_stride;
    int32_t k_dim;

    void* states;  // (slots, dim, columns); the window begins in column `first_column`
    int64_t slot_stride, state_dim_stride, column_stride;
    int32_t slots, first_column;
    DType state_dtype;

    IndexArray query_start_loc;    // (sequences + 1,)
    IndexArray cache_indices;      // (sequences,) or a block table (sequences, columns); none: slot b for sequence b
    IndexArray cache_indices_in;   // the slots to read, where they are others
    IndexArray has_initial_state;  // (sequences,); none: no sequence has one
    // Prefix caching; (sequences,) each, or none. Columns of the block table:
    IndexArray initial_state_idx;  // which to read from,
    IndexArray block_idx_last;     // where the final state goes,
    IndexArray block_idx_first;    // and where the first of the states at the block boundaries before the end goes.
    IndexArray num_computed_tokens;
    int32_t block_size;  // in tokens

    int32_t pad_slot, null_block;  // kNoNumber: none
    DeadTokens dead_tokens;
};

// A tile that the caller forces on a block, in powers of two. Zero means the kernel's own choice, and a size that the kernel
// does not have means the nearest one.
struct VarlenTile {
    int32_t tokens, channels, warps;
};

constexpr KernelNames kCausalConv1dVarlenNames = {"HIPCONV_VARLEN_KERNEL",
                                                  {"tile", "words", "staged", "naive"},
                                                  {"simd", "openmp"}};

// These are defined twice: in csrc/kernels for GPUs and simt, in csrc/cpu for host memory (whose launches ignore the tile and
// the stream). In calls, dim and tokens are not zero; for launches, every tensor lies on the current device.
KernelTable<CausalConv1dVarlenParams, VarlenTile> causal_conv1d_varlen_kernels();

// These kernels serve calls whose `out` is x, in its memory and with its strides, which leave dead tokens alone and have
// sequences. The other kernels (`also`) serve such calls by way of a new tensor.
KernelTable<CausalConv1dVarlenParams, VarlenTile> causal_conv1d_varlen_in_place_kernels();

}  // namespace hipconv
