// The parameters of a channel, for kernels in which a thread has one.
#pragma once

#include <type_traits>

#include "causal_conv1d/forward.h"

namespace hipconv {

// Taps that the width, kLeastWidth or more, leaves out, the oldest, are zero. Parameters are loaded as they lie in memory, and
// converted when x is there, in the same registers: a conversion would wait for each.
template <int kWidth, int kLeastWidth>
class ChannelParameters {
  public:
    HIPCONV_INLINE void load(const CausalConv1dInputs& in, int d) {
        constexpr int kMostLeftOut = kWidth - kLeastWidth;
        const int left_out = kMostLeftOut > 0 ? kWidth - in.width : 0;
        const auto bits_of = [&](auto type) {
            using Bits = decltype(type);
            const Bits* at = global_pointer<const Bits>(in.weight) + d * in.weight_dim_stride;
            const auto load_taps = [&](auto stride) {
                if (kMostLeftOut > 0) at -= left_out * stride;
#pragma unroll
                for (int i = 0; i < kWidth; ++i) {
                    weight_[i] = 0;
                    if (i >= kMostLeftOut || i >= left_out) weight_[i] = *at;
                    at += stride;
                }
            };
            if (in.weight_width_stride == 1)  // by fewer instructions
                load_taps(std::integral_constant<int, 1>{});
            else
                load_taps(in.weight_width_stride);
        };
        if (in.weight_dtype == DType::f32)
            bits_of(uint32_t{});
        else
            bits_of(uint16_t{});
        bias_ = load_bias_bits(in, d);
    }
    HIPCONV_INLINE void convert(const CausalConv1dInputs& in) {
        with_dtype(in.weight_dtype, [&](auto type) {
            using P = decltype(type);
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
                if constexpr (sizeof(P) == 4)
                    weight_[i] = bit_cast<uint32_t>(canonical_nan(bit_cast<float>(weight_[i])));
                else
                    weight_[i] = bit_cast<uint32_t>(to_float(P{static_cast<uint16_t>(weight_[i])}));
            }
        });
        bias_ = bit_cast<uint32_t>(parameter_of(bias_, in.bias_dtype));
    }
    HIPCONV_INLINE void weights(float (&to)[kWidth]) const {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) to[i] = bit_cast<float>(weight_[i]);
    }
    HIPCONV_INLINE float bias() const { return bit_cast<float>(bias_); }

  private:
    uint32_t weight_[kWidth], bias_;
};

}  // namespace hipconv
