// A frame of the result as conv2d's GEMMs have it: its pixels are the rows of a product, its filters the columns. The inner
// product goes on over the taps of several frames.
#pragma once

#include "../../conv2d/gemm/epilogue.h"
#include "../../conv2d/gemm/layout.h"
#include "frames.h"

namespace hipconv {

// The convolution of a frame of x, of the first sample; the frames are its batch.
inline Conv2dParams frame_params(const Conv3dParams& p) {
    const auto image = [](const Volume& v) {
        return Image{v.data, v.frame_stride, v.channel_stride, v.row_stride, v.column_stride};
    };
    Conv2dParams c{};
    c.batch = p.out_frames;
    c.in_channels = p.in_channels, c.in_height = p.in_height, c.in_width = p.in_width;
    c.out_channels = p.out_channels, c.out_height = p.out_height, c.out_width = p.out_width;
    c.kernel_height = p.kernel_height, c.kernel_width = p.kernel_width;
    c.stride_h = p.stride_h, c.stride_w = p.stride_w, c.pad_top = p.pad_top, c.pad_left = p.pad_left;
    c.dilation_h = p.dilation_h, c.dilation_w = p.dilation_w, c.groups = p.groups;
    c.padding_mode = p.padding_mode, c.activation = p.activation;
    c.dtype = p.dtype;
    c.x = image(p.x),
    c.weight = {p.weight.data, p.weight.batch_stride, p.weight.channel_stride, p.weight.row_stride, p.weight.column_stride};
    c.out_dtype = p.out_dtype, c.out = image(p.out);
    c.bias = p.bias, c.bias_stride = p.bias_stride, c.bias_dtype = p.bias_dtype;
    c.residual = image(p.residual), c.residual_dtype = p.residual_dtype;
    return c;
}

// Tiles of the pixels of a frame, in runs, or in rectangles which the kernel itself counts.
inline ConvGemmParams frame_gemm_params(const Conv3dParams& p, int tile_m, int tile_n) {
    const Conv2dParams c = frame_params(p);
    ConvGemmParams g = common_params(c, GemmLayout(c, false), {"", tile_m, tile_n, 1}, {true, 0}, nullptr);
    for (const auto& [volume, is_there] : {std::pair{&p.out, true}, {&p.residual, p.residual.data != nullptr}}) {
        if (!is_there) continue;
        g.vector_stores = g.vector_stores && multiple_of(volume->batch_stride, p.batch, 8);
        g.pair_stores = g.pair_stores && multiple_of(volume->batch_stride, p.batch, 2);
    }
    return g;
}

// The parameters of the epilogue for a sample.
HIPCONV_INLINE ConvGemmParams of_sample(const Conv3dParams& p, const ConvGemmParams& frame, int64_t sample) {
    ConvGemmParams g = frame;
    g.conv.out.data = static_cast<char*>(g.conv.out.data) + sample * p.out.batch_stride * element_bytes(p.out_dtype);
    if (g.conv.residual.data)
        g.conv.residual.data =
            static_cast<char*>(g.conv.residual.data) + sample * p.residual.batch_stride * element_bytes(p.residual_dtype);
    return g;
}

// The frames of taps that an output frame sees: the others are zeros. They are consecutive.
struct TapFrames {
    int first, end;

    HIPCONV_INLINE TapFrames(const Conv3dParams& p, int t) : first(0), end(p.kernel_frames) {
        if (p.time_mode != PaddingMode::zeros) return;
        const int64_t at = static_cast<int64_t>(t) * p.stride_t - p.front,
                      frames = static_cast<int64_t>(p.cached) + p.in_frames;
        while (first < end && at + static_cast<int64_t>(first) * p.dilation_t < 0) ++first;
        while (end > first && at + static_cast<int64_t>(end - 1) * p.dilation_t >= frames) --end;
    }
};

}  // namespace hipconv
