// The filters of a block of depthwise conv2d's kernels of square filters: they pass through LDS, as all its threads read them.
#pragma once

#include "../common/epilogue.h"
#include "depthwise.h"

namespace hipconv {

// Brings the filters of a block's units to LDS, from the order of memory to that of taps. A barrier has to follow.
template <int kTaps>
HIPCONV_INLINE void stage_filters(Pair* filters, const DepthwiseParams& parameter, const DepthwisePlace& at) {
    constexpr int kAllTaps = kTaps * kTaps, kEach = (kMostUnits * kAllTaps + kDepthwiseThreads - 1) / kDepthwiseThreads;
    const DepthwiseParams& p = first_parameter_again(parameter);
    const auto stage = [&](auto bits) {
        using Bits = decltype(bits);
        struct Filters {
            Bits first, second;
        };
        const Bits* const weights = global_pointer<const Bits>(p.conv.weight.data);
        const auto load = [&](int i) {
            const int of_block = i / kAllTaps, tap = i - of_block * kAllTaps, r = tap / kTaps;
            const int filter = depthwise_unit(p, at, of_block) * 2;
            const int first = filter * p.weight_filter + r * p.weight_row + (tap - r * kTaps) * p.weight_column;
            return Filters{weights[first], weights[first + (filter + 1 < p.conv.out_channels ? p.weight_filter : 0)]};
        };
        const auto store = [&](int i, const Filters& of) {
            const int of_block = i / kAllTaps, tap = i - of_block * kAllTaps;
            Pair pair;
            if constexpr (sizeof(Bits) == 4)
                pair = make_pair(bit_cast<float>(of.first), bit_cast<float>(of.second));
            else if (p.conv.dtype == DType::bf16)
                pair = make_pair(to_float(bf16{of.first}), to_float(bf16{of.second}));
            else
                pair = make_pair(to_float(f16{of.first}), to_float(f16{of.second}));
            filters[tap * kFilterPitch + of_block] = pair;
        };
        constexpr int kAtOnce = kEach < 7 ? kEach : 7;
        load_and_store<kAtOnce>(at.block_units * kAllTaps, load, store);
    };
    if (p.conv.dtype == DType::f32)
        stage(uint32_t{});
    else
        stage(uint16_t{});
}

// Loads the filters of channels k and k + 1, which follow each other in memory, at multiples of 4 bytes.
template <typename T, int kAllTaps>
HIPCONV_INLINE void load_dense_filters(Pair (&taps)[kAllTaps], const void* weight, int64_t k) {
    constexpr int kWords = 2 * kAllTaps * static_cast<int>(sizeof(T)) / 4;
    const auto* const from = global_pointer<const uint32_t>(static_cast<const char*>(weight) + k * kAllTaps * sizeof(T));
    uint32_t words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = from[i];
    const auto element = [&](int i) {
        if constexpr (sizeof(T) == 4) {
            return bit_cast<float>(words[i]);
        } else {
            const Pair both = unpack<T>(words[i / 2]);
            return i % 2 ? high(both) : low(both);
        }
    };
#pragma unroll
    for (int i = 0; i < kAllTaps; ++i) {
        float first = element(i), second = element(kAllTaps + i);
        if constexpr (sizeof(T) == 2) {  // else each step would convert them again
            in_a_register(first);
            in_a_register(second);
        }
        taps[i] = make_pair(first, second);
    }
}

// Tells whether filters follow each other in memory, each pair of them at a multiple of 4 bytes.
inline bool has_dense_filters(const Conv2dParams& c) {
    const Image& w = c.weight;
    return w.column_stride == 1 && w.row_stride == c.kernel_width && w.batch_stride == c.kernel_height * c.kernel_width &&
           reinterpret_cast<uint64_t>(w.data) % 4 == 0;
}

// The bias of a thread's pair of channels, whose load is under way until it is needed.
class PairOfBias {
  public:
    HIPCONV_INLINE PairOfBias(const Conv2dParams& c, int k, bool has_work = true) {
        if (!c.bias || !has_work) return;
        const int second = k + 1 < c.out_channels ? k + 1 : k;
        bits_[0] = load_parameter_bits(c.bias, k * c.bias_stride, c.bias_dtype);
        bits_[1] = load_parameter_bits(c.bias, second * c.bias_stride, c.bias_dtype);
    }
    HIPCONV_INLINE Pair get(const Conv2dParams& c) const {
        return make_pair(parameter_of(bits_[0], c.bias_dtype), parameter_of(bits_[1], c.bias_dtype));
    }

  private:
    uint32_t bits_[2] = {};
};

}  // namespace hipconv
