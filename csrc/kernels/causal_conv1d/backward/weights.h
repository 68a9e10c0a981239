// The weights of a thread's channel, as backward kernels have them whose width is a constant (rows_kernel.h, runs_kernel.h).
#pragma once

#include "../common/launch.h"
#include "causal_conv1d/backward.h"

namespace hipconv {

// Loads the taps of a channel as floats, and its bias, which are on their way together: a conversion waits for what it
// converts. The first tap is `left_out` where the width is one less than kWidth, and zero then.
template <int kWidth>
HIPCONV_INLINE void load_bwd_weights(const CausalConv1dInputs& in, int channel, int left_out, float (&weight)[kWidth],
                                     float& bias) {
    const uint32_t bias_bits = load_bias_bits(in, channel);
    const void* const weights = global_pointer<const void>(in.weight);
    with_dtype(in.weight_dtype, [&](auto type) {
        using P = decltype(type);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
            weight[i] = 0.0f;
            if (i > 0 || left_out == 0)
                weight[i] = parameter<P>(weights, channel * in.weight_dim_stride + (i - left_out) * in.weight_width_stride);
        }
    });
    bias = parameter_of(bias_bits, in.bias_dtype);
}

}  // namespace hipconv
