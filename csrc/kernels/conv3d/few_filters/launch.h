// The host side that the kernels of few filters share.
#pragma once

#include "params.h"

namespace hipconv {

// Blocks that share a sample's frames: as many as leave no unit idle, since each reads two frames more than it makes.
inline int32_t walks_of(const Conv3dParams& p, int64_t squares, const Conv3dCard& card) {
    const int64_t wanted = ceil_of(card.compute_units, squares * p.batch);
    return static_cast<int32_t>(wanted < p.out_frames ? wanted : p.out_frames);
}

// The next call's cache can be written by those who have read its frames: pixel by pixel, by 16 bytes.
inline bool saves_on_the_way(const Conv3dParams& p) {
    const Volume& v = p.saved;
    const int64_t frames = int64_t{p.cached} + p.in_frames;
    if (!v.data || frames < p.saved_frames || p.out_height != p.in_height || p.out_width != p.in_width) return false;
    if (p.pad_top >= p.kernel_height || p.pad_left >= p.kernel_width) return false;
    if (-int64_t{p.front} > frames - p.saved_frames || int64_t{p.out_frames} - p.front + p.kernel_frames - 1 < frames)
        return false;
    return has_vectors(p, v, p.saved_frames) && p.in_width * v.column_stride < kLimit31 / 2 && v.column_stride >= 0;
}

// Null if the sizes are those of few filters, else what those are.
inline const char* few_filters_shape_refusal(const Conv3dParams& p, const Conv3dCard& card) {
    const int64_t taps = int64_t{p.kernel_height} * p.kernel_width;
    if (p.out_channels > kFewMostFilters || taps * p.out_channels > kFewColumns || p.kernel_frames > kFewFrames ||
        p.kernel_height > kFewSide / 2 || p.kernel_width > kFewSide / 2)
        return "up to 8 filters, of 3 taps of time and, all filters together, 32 taps of rows and columns";
    if (p.groups != 1) return "one group";
    if (p.stride_t != 1 || p.stride_h != 1 || p.stride_w != 1 || p.dilation_t != 1 || p.dilation_h != 1 || p.dilation_w != 1)
        return "stride 1 and dilation 1";
    if (p.in_channels > kFewSteps * kFewStepChunks * 8) return "up to 128 channels";
    const int64_t reach = int64_t{p.out_frames} + p.front;
    if (p.pad_top >= kLimit31 / 2 || p.pad_left >= kLimit31 / 2 || reach >= kLimit31 / 2 || p.out_height >= kLimit31 / 2 ||
        p.out_width >= kLimit31 / 2)
        return "sizes and padding of less than 2^30";
    const int64_t rows = kFewSide + 1 - p.kernel_height, columns = kFewSide + 1 - p.kernel_width;
    const int64_t squares = ceil_of(p.out_height, rows) * ceil_of(p.out_width, columns);
    if (squares * walks_of(p, squares, card) * p.batch >= kLimit31 / 2) return "up to 2^30 squares of 16 by 16 pixels";
    return nullptr;
}

inline FewFiltersParams few_filters_params(const Conv3dParams& p, const FilterLayout& l, const void* filters, bool saves,
                                           const Conv3dCard& card) {
    FewFiltersParams f{};
    f.conv = p;
    f.frame = frame_params(p);
    f.frame.bias = nullptr;
    f.saves = saves;
    f.frames_of_sample = frames_of_sample(p);
    f.out_rows = kFewSide + 1 - p.kernel_height, f.out_columns = kFewSide + 1 - p.kernel_width;
    f.across = static_cast<int32_t>(ceil_of(p.out_width, f.out_columns));
    f.down = static_cast<int32_t>(ceil_of(p.out_height, f.out_rows));
    f.walk = static_cast<int32_t>(ceil_of(p.out_frames, walks_of(p, int64_t{f.across} * f.down, card)));
    f.walks = static_cast<int32_t>(ceil_of(p.out_frames, f.walk));
    f.tiles = f.across * f.down * f.walks * p.batch;
    f.taps = p.kernel_height * p.kernel_width;
    f.chunks = static_cast<int32_t>(l.chunks);
    f.steps = static_cast<int32_t>(ceil_of(l.chunks, kFewStepChunks));
    f.filters = filters;
    f.filter_stride = l.filter_stride, f.tap_bytes = l.tap_bytes;
    return f;
}

}  // namespace hipconv
