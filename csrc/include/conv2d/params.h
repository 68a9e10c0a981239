// The parameters of a call of conv2d, as kernels take them; conv2d.h has the formula. Kernel files see this header and not that
// one, whose strings and vectors take the compilers longer to read than most kernels take.
#pragma once

#include <cstdint>

#include "device/dtype.h"

namespace hipconv {

enum class PaddingMode : int32_t { zeros, reflect, replicate, circular };
enum class Float32Precision : int32_t { ieee, tf32 };
enum class Conv2dActivation : int32_t { none, relu, relu6, gelu, gelu_tanh, silu, sigmoid, tanh, leaky_relu, hardswish };

// A (batch, channels, height, width) tensor, or a filter's (out_channels, in_channels / groups, height, width). Strides count
// elements, and may be zero or negative for an input.
struct Image {
    void* data;
    int64_t batch_stride, channel_stride, row_stride, column_stride;
};

struct Conv2dParams {
    int32_t batch, in_channels, in_height, in_width;
    int32_t out_channels, out_height, out_width;
    int32_t kernel_height, kernel_width;
    int32_t stride_h, stride_w, pad_top, pad_left, dilation_h, dilation_w, groups;
    PaddingMode padding_mode;
    Conv2dActivation activation;

    DType dtype;  // of x and weight
    Image x, weight;
    // Tells whether the factors of f32 products may be rounded to TF32, 11 bits. It means nothing for other types. `tf32` is
    // for architectures that conv2d_has_tf32 names.
    Float32Precision float32_precision;

    DType out_dtype;
    Image out;

    const void* bias;  // (out_channels,), or null for none
    int64_t bias_stride;
    DType bias_dtype;

    Image residual;  // of out's shape; data null for none
    DType residual_dtype;

    // The filters as conv2d_pack_filters has written them for the plan, or null: then the call packs `weight` itself.
    const void* packed_filters;
};

struct Conv2dTile {
    int32_t tile_m, tile_n;
};

}  // namespace hipconv
