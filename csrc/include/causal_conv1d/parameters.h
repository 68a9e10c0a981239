// The filters, the bias and the activation of a causal convolution, as the params of all its forms have them.
#pragma once

#include <cstdint>

#include "device/dtype.h"

namespace hipconv {

template <typename Pointer>
struct FilterParams {
    Pointer weight;  // (dim, width)
    int64_t weight_dim_stride, weight_width_stride;
    DType weight_dtype;

    Pointer bias;  // (dim,), or null for none
    int64_t bias_stride;
    DType bias_dtype;

    bool use_silu;
};

}  // namespace hipconv
