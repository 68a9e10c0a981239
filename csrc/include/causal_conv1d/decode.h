// This file declares the causal conv1d of a few new tokens a row, with the tokens before them in a pool of states ("decode"),
// as the bindings hand it to the kernels. It depends on neither torch nor HIP.
//
//   out[t] = act(bias + sum_i weight[i] * h[t + i]),   h = the width - 1 values of the row's window, then its new tokens
//
// and the window is advanced past the new tokens in the pool.
#pragma once

#include <cstdint>

#include "causal_conv1d/parameters.h"
#include "device/arch.h"
#include "device/dtype.h"
#include "launch/kernel_table.h"

namespace hipconv {

// A pointer as a kernel's many parameters hold it: see `first_parameter`.
struct Address {
    uint64_t bits;

    HIPCONV_INLINE explicit operator bool() const { return bits != 0; }
    template <typename T>
    HIPCONV_INLINE T* as() const {
        return global_pointer<T>(bits);
    }
};
HIPCONV_INLINE Address address(const void* pointer) { return {reinterpret_cast<uintptr_t>(pointer)}; }

// Integers of 32 or (wide) 64 bits, one-dimensional or (row, column); null for none. They are not the IndexArray of prefill, of
// integers of any size: with that one, the kernel "step" takes more instructions on AMD than its limit allows.
struct Indices {
    Address data;
    int64_t row_stride, column_stride;
    int32_t columns;
    bool wide;
};

// Element (row, channel, token). A packed batch has row_stride 0 and counts its tokens through all rows.
struct Tokens {
    Address data;
    int64_t row_stride, dim_stride, token_stride;
};

constexpr int kMaxOutputs = 3;
constexpr int kMaxTreeTokens = 1024;

struct CausalConv1dUpdateParams : FilterParams<Address> {
    int32_t batch, dim, width;
    int32_t seqlen;        // tokens of each row, where there is no query_start_loc
    int32_t total_tokens;  // of a packed batch
    DType dtype;           // of x and the outputs
    DType state_dtype;     // of conv_state and intermediate
    bool zero_padding;     // whether the outputs of padded rows, and of tokens past the last row, are set to zero or left alone

    Tokens x;
    Tokens out[kMaxOutputs];       // side by side along the channels; may be x itself
    int32_t out_end[kMaxOutputs];  // the channel after the last of each; the ones not in use end at dim

    // The pool: element (slot, channel, column). A row's history is `history` columns, the window their last width - 1: columns
    // 0 to width - 2 of a slot ("head"), or the last of all state_len, which then move together ("tail").
    Address state;
    int64_t slot_stride, state_dim_stride, column_stride;
    int32_t slots, state_len, history;

    Indices write_slots, read_slots;      // of each row; none: row b has slot b
    Indices write_columns, read_columns;  // of each row, into the tables above; none: column 0
    bool fork;                            // whether the slots read may not be the slots written
    int64_t pad_slot;                     // rows with this slot are padding, as are those with a slot outside the pool
    bool has_pad_slot;

    Indices query_start_loc;  // (batch + 1,): where a packed batch's rows begin and end
    // Speculative: the history starts at this column less one, and all new tokens are kept after it.
    Indices num_accepted_tokens;
    Indices cache_seqlens;  // circular: token n of a row is in column n mod state_len

    // Windows after each token, (slot, token, channel, column), or null.
    Address intermediate;
    int64_t intermediate_slot_stride, intermediate_token_stride, intermediate_dim_stride, intermediate_column_stride;
    int32_t intermediate_slots, intermediate_tokens;
    Indices intermediate_slot;  // of each row; none: row b has slot b

    // A tree of draft tokens: links to a token's first child and next sibling, (batch, seqlen), -1 for none. Then the pool is
    // not advanced, and each token's parent is written to tree_parent if that is not null.
    Indices tree_child, tree_sibling, tree_parent;
};

constexpr KernelNames kCausalConv1dUpdateNames = {"HIPCONV_UPDATE_KERNEL",
                                                  {"step", "vector", "turn", "wave", "pair", "channel", "naive"},
                                                  {"simd", "openmp"}};

// These are defined twice: in csrc/kernels for GPUs and simt, in csrc/cpu for host memory (whose launches ignore the stream).
// In calls, no size is zero; for launches, every tensor lies on the current device.
KernelTable<CausalConv1dUpdateParams> causal_conv1d_update_kernels();

}  // namespace hipconv
