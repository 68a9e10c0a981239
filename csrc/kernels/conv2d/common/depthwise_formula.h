// An output of a depthwise layer by the formula, for kernels that multiply by bands: where x has what is not finite, a sum with
// products by the zeros of a band is wrong. A kernel whose frame is made after it needs no mode of padding.
#pragma once

#include "device/vec.h"
#include "epilogue.h"
#include "padding.h"

namespace hipconv {

HIPCONV_INLINE float depthwise_by_formula(const Conv2dParams& c, int image, int channel, int filter, int row, int column,
                                          PaddingMode mode = PaddingMode::zeros) {
    const int64_t plane = offset_in(c.x, image, channel, 0, 0), taps = offset_in(c.weight, filter, 0, 0, 0);
    float sum = 0.0f;
#pragma unroll 1
    for (int r = 0; r < c.kernel_height; ++r) {
        const int y = padded_index_of(row * c.stride_h - c.pad_top + r * c.dilation_h, c.in_height, mode);
        if (y < 0 || y >= c.in_height) continue;
#pragma unroll 1
        for (int s = 0; s < c.kernel_width; ++s) {
            const int z = padded_index_of(column * c.stride_w - c.pad_left + s * c.dilation_w, c.in_width, mode);
            if (z < 0 || z >= c.in_width) continue;
            sum += load_parameter(global_pointer<void>(c.x.data), plane + y * c.x.row_stride + z * c.x.column_stride, c.dtype) *
                   load_parameter(global_pointer<void>(c.weight.data),
                                  taps + r * c.weight.row_stride + s * c.weight.column_stride, c.dtype);
        }
    }
    return sum;
}

template <typename T>
HIPCONV_INLINE uint32_t rounded_pair(Pair v) {
    if constexpr (!kRoundsNan) v = make_pair(canonical_nan(low(v)), canonical_nan(high(v)));
    return pack<T>(v);
}

// Two outputs as 16-bit numbers of a type that is known at run time.
HIPCONV_INLINE uint32_t rounded_pair(DType dtype, Pair v) {
    return dtype == DType::bf16 ? rounded_pair<bf16>(v) : rounded_pair<f16>(v);
}

}  // namespace hipconv
