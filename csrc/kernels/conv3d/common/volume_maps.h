// This says whether TMA (sm_90) can read x and the cache, and makes their tensor maps: boxes are 64 channels of a rectangle of
// a frame's pixels.
#pragma once

#include <string>

#include "conv3d/conv3d.h"
#include "frame_gemm.h"
#include "matrix/tma.h"

namespace hipconv {

// Tells whether a card has warpgroups and TMA. simt emulates them with waves of 32 lanes.
inline bool has_warpgroups(const std::string& arch) {
    const bool emulated = arch == "wave32" && kHasWarpgroups;
    return kHasTensorMaps && (arch == "sm_90" || emulated);
}

// The stride of an axis in bytes. An axis of one element may have any aligned stride.
inline int64_t bytes_of_stride(int64_t stride, int64_t size) { return size == 1 ? 16 : stride * 2; }

inline bool fits_tma(const Conv3dParams& p, const Volume& v, int64_t frames) {
    if (frames == 0) return true;
    if (!(v.channel_stride == 1 || p.in_channels == 1) || !is_aligned(v.data)) return false;
    for (const auto& [stride, size] : {std::pair{v.column_stride, int64_t{p.in_width}},
                                       {v.row_stride, int64_t{p.in_height}},
                                       {v.frame_stride, frames},
                                       {v.batch_stride, int64_t{p.batch}}}) {
        const int64_t bytes = bytes_of_stride(stride, size);
        if (bytes <= 0 || bytes >= int64_t{1} << 40 || bytes % 16 != 0) return false;
    }
    return true;
}

// The tensor map of the frames of x or the cache.
inline TensorMapSpec volume_map(const Conv3dParams& p, const Volume& v, int64_t frames, int rows, int columns) {
    TensorMapSpec t{};
    t.dtype = p.dtype;
    t.data = v.data;
    t.rank = 5;
    const int64_t sizes[] = {p.in_channels, p.in_width, p.in_height, frames, p.batch};
    const int64_t strides[] = {1, v.column_stride, v.row_stride, v.frame_stride, v.batch_stride};
    const int box[] = {kTileRowBytes / 2, columns, rows, 1, 1};
    for (int axis = 0; axis < 5; ++axis) {
        t.sizes[axis] = sizes[axis];
        t.strides[axis] = axis ? bytes_of_stride(strides[axis], sizes[axis]) : 2;
        t.box[axis] = box[axis];
    }
    return t;
}

}  // namespace hipconv
