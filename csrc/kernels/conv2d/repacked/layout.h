// The layout into which a call's x and filters are repacked, and the call that the GEMM then gets.
#pragma once

#include "../gemm/layout.h"
#include "kernel.h"

namespace hipconv {

// The call that the GEMM gets, and the repacking before it.
struct Repacking {
    Conv2dParams inner;
    RepackParams repack;
    int vector;                             // pixels that a thread repacks at once
    int64_t pixels, x_bytes, filter_bytes;  // filter_bytes: of the workspace
    Conv2dPacking packing;                  // of the filters
};

// One axis of the repacked x: its size, the step in x from a pixel to the next, and the padding that is laid out with it; and
// the stride and padding that remain for the GEMM.
struct RepackedAxis {
    int64_t size;
    int32_t step, pad, inner_stride, inner_pad;
};

inline RepackedAxis repacked_axis(int32_t in, int32_t out, int32_t taps, int32_t stride, int32_t pad, int32_t dilation,
                                  bool pads) {
    if (taps == 1) return {out, stride, pad, 1, 0};  // pixels that no output sees are left out
    if (!pads) return {in, 1, 0, stride, pad};
    return {int64_t{out - 1} * stride + int64_t{taps - 1} * dilation + 1, 1, pad, stride, 0};
}

inline int64_t channels_of_chunk(const Conv2dParams& p) { return 16 / element_bytes(p.dtype); }

inline bool has_windows(const Conv2dParams& p) {
    return p.in_channels <= channels_of_chunk(p) && p.groups == 1 && p.kernel_width > 1 && p.dilation_w == 1;
}

// Tells whether filters lie in memory as rows of all their elements, with channels outermost or innermost.
inline bool has_dense_filters(const Conv2dParams& p, bool channels_inside) {
    const int64_t height = p.kernel_height, width = p.kernel_width, channels = p.in_channels;
    const Image& w = p.weight;
    if (channels_inside) return w.channel_stride == 1 && w.column_stride == channels && w.row_stride == width * channels;
    return w.column_stride == 1 && w.row_stride == width && w.channel_stride == height * width;
}

// Tells whether outputs see patches of x that neither overlap nor lie outside of it, of few channels: the elements of a patch
// then become channels of a pixel, and the GEMM's taps one.
inline bool has_patches(const Conv2dParams& p) {
    return p.groups == 1 && p.in_channels <= channels_of_chunk(p) && p.kernel_height > 1 && p.kernel_width > 1 &&
           p.stride_h == p.kernel_height && p.stride_w == p.kernel_width && p.dilation_h == 1 && p.dilation_w == 1 &&
           p.pad_top == 0 && p.pad_left == 0 && int64_t{p.out_height} * p.stride_h <= p.in_height &&
           int64_t{p.out_width} * p.stride_w <= p.in_width &&
           int64_t{p.in_channels} * p.kernel_height * p.kernel_width < kLimit31 / 2 &&
           (has_dense_filters(p, false) || has_dense_filters(p, true));
}

// The call whose pixels are the patches of this one's x.
inline Conv2dParams call_of_patches(const Conv2dParams& p) {
    Conv2dParams of = p;
    of.in_channels = p.in_channels * p.kernel_height * p.kernel_width;
    of.in_height = p.out_height, of.in_width = p.out_width;
    of.kernel_height = of.kernel_width = of.stride_h = of.stride_w = 1;
    of.weight = {p.weight.data, p.weight.batch_stride, 1, of.in_channels, of.in_channels};
    return of;
}

inline PatchOrder patch_order_of(const Conv2dParams& p) {
    const auto by = [](int32_t size) { return divisor_of(static_cast<uint32_t>(size)); };
    const Image& x = p.x;
    if (has_dense_filters(p, true))
        return {p.kernel_width, p.in_channels,   by(p.kernel_width), by(p.in_channels),
                x.row_stride,   x.column_stride, x.channel_stride};
    return {p.kernel_height,  p.kernel_width, by(p.kernel_height), by(p.kernel_width),
            x.channel_stride, x.row_stride,   x.column_stride};
}

// This says how many pixels of a channel can be read as one vector; 1 unless images keep their size.
inline int pixels_of_vector(const Conv2dParams& p, const RepackedAxis& down, const RepackedAxis& across) {
    const bool as_they_are = down.step == 1 && across.step == 1 && down.pad == 0 && across.pad == 0 &&
                             down.size == p.in_height && across.size == p.in_width;
    const bool dense = (p.x.column_stride == 1 || p.in_width == 1) && (p.x.row_stride == p.in_width || p.in_height == 1);
    const int element = element_bytes(p.dtype);
    for (const int pixels : {8, 4})
        if (pixels * element <= 16 && as_they_are && dense && down.size * across.size % pixels == 0 &&
            reinterpret_cast<uintptr_t>(p.x.data) % (pixels * element) == 0 &&
            multiple_of(p.x.channel_stride, p.in_channels, pixels) && multiple_of(p.x.batch_stride, p.batch, pixels))
            return pixels;
    return 1;
}

// `splits`: f32 into two parts, which follow each other for each row of channels. Channels are then whole rows.
inline Repacking repacking_of(const Conv2dParams& call, bool steps_across_taps, bool splits, void* workspace) {
    const bool patches = has_patches(call);
    const Conv2dParams p = patches ? call_of_patches(call) : call;
    const bool windows = has_windows(p) && !splits, pads = windows || p.padding_mode != PaddingMode::zeros;
    const RepackedAxis down =
        repacked_axis(p.in_height, p.out_height, p.kernel_height, p.stride_h, p.pad_top, p.dilation_h, pads);
    const RepackedAxis across =
        repacked_axis(p.in_width, p.out_width, p.kernel_width, p.stride_w, p.pad_left, p.dilation_w, pads);
    const int64_t of_chunk = channels_of_chunk(p), element = element_bytes(p.dtype), parts = splits ? 2 : 1;
    const int64_t channels = round_up(p.in_channels, splits ? kTileChunks * of_chunk : of_chunk), chunks = channels / of_chunk;
    char* const memory = static_cast<char*>(workspace);
    Repacking r{};
    r.pixels = down.size * across.size * p.batch;
    r.x_bytes = round_up(r.pixels * channels * parts * element, 256);

    Conv2dParams& inner = r.inner;
    inner = p;
    inner.in_channels = static_cast<int32_t>(windows ? p.kernel_width * channels : channels);
    inner.in_height = static_cast<int32_t>(down.size);
    inner.in_width = static_cast<int32_t>(windows ? p.out_width : across.size);
    inner.stride_h = down.inner_stride;
    inner.stride_w = windows ? 1 : across.inner_stride;
    inner.pad_top = down.inner_pad, inner.pad_left = across.inner_pad;
    inner.padding_mode = PaddingMode::zeros;
    inner.packed_filters = nullptr;
    const int64_t pixel = channels * parts;
    inner.x = {memory, down.size * across.size * pixel, 1, across.size * pixel, windows ? p.stride_w * pixel : pixel};
    if (splits) inner.float32_precision = Float32Precision::tf32;  // of each part
    if (windows) inner.kernel_width = 1;

    const bool same_channels = channels == p.in_channels && !windows;
    if (splits || !same_channels || GemmLayout(inner, steps_across_taps).packs) {
        const int64_t group_channels = inner.in_channels / p.groups, row = parts * p.kernel_width * channels / p.groups;
        void* const filters = p.packed_filters ? const_cast<void*>(p.packed_filters) : memory + r.x_bytes;
        inner.weight = {filters, p.kernel_height * row, 1, row, parts * group_channels};
        r.repack.filters = {p.weight,
                            filters,
                            p.kernel_height * row,
                            p.out_channels,
                            p.in_channels / p.groups,
                            static_cast<int32_t>(chunks / p.groups),
                            p.kernel_height,
                            p.kernel_width,
                            0,
                            false};
        const GemmLayout l(inner, steps_across_taps);
        if (l.packs) {  // the GEMM's own order then, whose filters are of whole steps
            inner.packed_filters = filters;
            r.repack.filters.filter_elements = l.filter_stride / l.element;
            r.repack.filters.padding = static_cast<int32_t>(l.steps * kTileChunks - l.taps * l.chunks);
        }
        const int64_t bytes = p.out_channels * r.repack.filters.filter_elements * element;
        r.packing = packing_of(r.repack.filters, round_up(bytes, 256), splits);
        if (p.packed_filters)
            r.repack.filters.packed = nullptr;
        else
            r.filter_bytes = r.packing.bytes;
    }

    // Single pixels: two lanes lie along chunks, so that the others read 32 bytes of a channel together. Vectors of pixels, and
    // dense channels: eight lanes lie along chunks.
    r.vector = patches ? 1 : pixels_of_vector(p, down, across);
    RepackParams& repack = r.repack;
    repack.log2_lanes = r.vector > 1 || (p.x.channel_stride == 1 && !patches) ? 3 : 1;
    while ((1 << repack.log2_lanes) > chunks) --repack.log2_lanes;
    repack.x = p.x;
    repack.channels = p.in_channels, repack.height = call.in_height, repack.width = call.in_width;
    repack.pad_top = down.pad, repack.pad_left = across.pad;
    repack.step_h = patches ? call.stride_h : down.step, repack.step_w = patches ? call.stride_w : across.step;
    if (patches) repack.patch = patch_order_of(call);
    repack.padding_mode = p.padding_mode;
    repack.repacked = memory;
    repack.image_pixels = static_cast<int32_t>(down.size * across.size);
    repack.row_pixels = static_cast<int32_t>(across.size);
    repack.pixels = static_cast<int32_t>(r.pixels);
    repack.chunks = static_cast<int32_t>(chunks);
    repack.across = static_cast<int32_t>(ceil_of(chunks, int64_t{1} << repack.log2_lanes));
    repack.tiles = static_cast<int32_t>(ceil_of(r.pixels, r.vector * (kRepackThreads >> repack.log2_lanes)) * repack.across);
    if (r.pixels < kLimit31) {
        repack.divide_by_image = divisor_of(static_cast<uint32_t>(repack.image_pixels));
        repack.divide_by_row = divisor_of(static_cast<uint32_t>(repack.row_pixels));
        repack.divide_by_across = divisor_of(static_cast<uint32_t>(repack.across));
    }
    return r;
}

}  // namespace hipconv
