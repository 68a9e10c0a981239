// This says where a frame of the sequence lies, in the cache or in x, and copies the last ones to the cache of the next call.
#pragma once

#include "../../conv2d/common/padding.h"
#include "conv3d/conv3d.h"
#include "device/vec.h"

namespace hipconv {

// A frame of one sample: the address of its first element, and how its channels, rows and columns lie. 0: it is all zeros. The
// address is a number until it is used, because compilers lose the kind of memory of a pointer that may be null.
template <typename T>
struct Frame {
    uint64_t address;
    int64_t channel_stride, row_stride, column_stride;

    HIPCONV_INLINE const T* at(int64_t offset) const { return global_pointer<const T>(address + offset * sizeof(T)); }
};

// The number of a frame in the sequence of the cache and x, or -1 for one of zeros; `at` counts from the first frame that there
// is.
HIPCONV_INLINE int64_t frame_number(const Conv3dParams& p, int64_t at, PaddingMode mode) {
    return padded_index(at, p.cached + p.in_frames, mode);
}

template <typename T>
HIPCONV_INLINE Frame<T> frame_at(const Conv3dParams& p, int64_t sample, int64_t number) {
    if (number < 0) return {0, 0, 0, 0};
    const bool is_cached = number < p.cached;
    const int64_t frame = is_cached ? number : number - p.cached;
    // Member by member, because compilers would else choose between addresses of parameters, and load them by lanes.
    const auto of = [&](int64_t cached, int64_t other) { return is_cached ? cached : other; };
    const uint64_t data = reinterpret_cast<uint64_t>(is_cached ? p.cache.data : p.x.data);
    const int64_t first =
        sample * of(p.cache.batch_stride, p.x.batch_stride) + frame * of(p.cache.frame_stride, p.x.frame_stride);
    return {data + first * sizeof(T), of(p.cache.channel_stride, p.x.channel_stride), of(p.cache.row_stride, p.x.row_stride),
            of(p.cache.column_stride, p.x.column_stride)};
}

// ---- the cache of the next call -----------------------------------------------------------------------------------------

// This says how frames are copied: in rows of elements that are dense in memory, of all channels or of one, by 16 bytes or
// each.
struct SavePlan {
    int64_t rows;       // of all frames that are saved
    int32_t length;     // elements of a row
    bool all_channels;  // a row has the channels of its pixels; else there is a row for each channel
    bool dense, vectors;
};

inline SavePlan save_plan(const Conv3dParams& p) {
    SavePlan plan{};
    if (!p.saved.data) return plan;
    const int64_t element = element_bytes(p.dtype);
    const auto all = [&](auto property) {
        return property(p.saved) && (p.in_frames == 0 || property(p.x)) && (p.cached == 0 || property(p.cache));
    };
    plan.all_channels = all([&](const Volume& v) {
        return (v.channel_stride == 1 || p.in_channels == 1) && (v.column_stride == p.in_channels || p.in_width == 1);
    });
    plan.dense = plan.all_channels || all([&](const Volume& v) { return v.column_stride == 1 || p.in_width == 1; });
    plan.length = plan.all_channels ? p.in_width * p.in_channels : p.in_width;
    plan.vectors = plan.dense && plan.length * element % 16 == 0 && all([&](const Volume& v) {
                       const int64_t each = 16 / element;
                       return reinterpret_cast<uintptr_t>(v.data) % 16 == 0 && v.batch_stride % each == 0 &&
                              v.frame_stride % each == 0 && v.row_stride % each == 0 &&
                              (plan.all_channels || v.channel_stride % each == 0);
                   });
    plan.rows = int64_t{p.batch} * p.saved_frames * p.in_height * (plan.all_channels ? 1 : p.in_channels);
    return plan;
}

// Copies rows `first`, `first` + `step`, …, each by `lanes` threads of which this one is number `lane`. Three loads of each are
// under way, because a load takes long beside a GEMM.
template <typename T>
HIPCONV_INLINE void save_frames(const Conv3dParams& p, const SavePlan& plan, int64_t first, int64_t step, int lane, int lanes) {
    constexpr int kUnderWay = 3;
    const int32_t channels = plan.all_channels ? 1 : p.in_channels;
#pragma unroll 1
    for (int64_t row = first; row < plan.rows; row += step) {
        const int64_t y = row % p.in_height, outer = row / p.in_height;
        const int64_t frame = outer % p.saved_frames, more = outer / p.saved_frames;
        const int64_t channel = more % channels, sample = more / channels;
        const int64_t from_end = p.cached + p.in_frames - p.saved_frames + frame;
        const Frame<T> from =
            frame_at<T>(p, sample, p.cached + p.in_frames ? frame_number(p, from_end, p.saved_mode) : int64_t{-1});
        const uint64_t to =
            reinterpret_cast<uint64_t>(p.saved.data) + (sample * p.saved.batch_stride + frame * p.saved.frame_stride +
                                                        channel * p.saved.channel_stride + y * p.saved.row_stride) *
                                                           sizeof(T);
        const bool is_there = from.address != 0;
        const int64_t first_element = is_there ? channel * from.channel_stride + y * from.row_stride : 0;
        if (plan.vectors) {
            const int32_t count = plan.length / (16 / static_cast<int32_t>(sizeof(T)));
            const uint64_t source = from.address + first_element * static_cast<int64_t>(sizeof(T));
#pragma unroll 1
            for (int32_t i = lane; i < count; i += kUnderWay * lanes) {
                Words4 words[kUnderWay];
#pragma unroll
                for (int n = 0; n < kUnderWay; ++n) {
                    words[n] = Words4{};
                    if (is_there && i + n * lanes < count)
                        words[n] = *global_pointer<const Words4>(source + (i + n * lanes) * int64_t{16});
                }
#pragma unroll
                for (int n = 0; n < kUnderWay; ++n)
                    if (i + n * lanes < count) *global_pointer<Words4>(to + (i + n * lanes) * int64_t{16}) = words[n];
            }
        } else {
            const int64_t to_stride = plan.dense ? 1 : p.saved.column_stride, stride = plan.dense ? 1 : from.column_stride;
#pragma unroll 1
            for (int32_t i = lane; i < plan.length; i += lanes)
                *global_pointer<T>(to + i * to_stride * sizeof(T)) =
                    is_there ? *from.at(first_element + i * stride) : from_float<T>(0.0f);
        }
    }
}

}  // namespace hipconv
