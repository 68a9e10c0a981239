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

// The epilogue counts frames through all samples: this is how many frames one sample is from the next, in out and in the
// residual; 0 if they do not lie so.
inline int32_t frames_of_sample(const Conv3dParams& p) {
    if (p.batch == 1) return p.out_frames;
    const auto apart = [&](const Volume& v) {
        const bool even = v.frame_stride != 0 && v.batch_stride % v.frame_stride == 0;
        const int64_t frames = even ? v.batch_stride / v.frame_stride : 0;
        return frames > 0 && frames * p.batch < kLimit31 ? frames : int64_t{0};
    };
    const int64_t frames = apart(p.out);
    if (p.residual.data && apart(p.residual) != frames) return 0;
    return static_cast<int32_t>(frames);
}

// Calls launch(params) once, or for each sample alone.
template <typename Launch>
void launch_samples(const Conv3dParams& p, Launch launch) {
    if (frames_of_sample(p)) return launch(p);
    for (int64_t n = 0; n < p.batch; ++n) {
        Conv3dParams one = p;
        one.batch = 1;
        const auto shift = [&](Volume& v, DType dtype) {
            if (v.data) v.data = static_cast<char*>(v.data) + n * v.batch_stride * element_bytes(dtype);
        };
        shift(one.x, p.dtype), shift(one.cache, p.dtype), shift(one.saved, p.dtype);
        shift(one.out, p.out_dtype), shift(one.residual, p.residual_dtype);
        launch(one);
    }
}

// Tells whether 16 bytes of a pixel's channels are neighbours, and aligned.
inline bool has_vectors(const Conv3dParams& p, const Volume& v, int64_t frames) {
    const int64_t each = 16 / element_bytes(p.dtype);
    return (v.channel_stride == 1 || p.in_channels == 1) && is_aligned(v.data) && multiple_of(v.batch_stride, p.batch, each) &&
           multiple_of(v.frame_stride, frames, each) && multiple_of(v.row_stride, p.in_height, each) &&
           multiple_of(v.column_stride, p.in_width, each);
}

// The same of x and the cache, of each group.
inline bool has_vectors(const Conv3dParams& p) {
    return p.in_channels / p.groups % (16 / element_bytes(p.dtype)) == 0 &&
           (p.in_frames == 0 || has_vectors(p, p.x, p.in_frames)) && (p.cached == 0 || has_vectors(p, p.cache, p.cached));
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
