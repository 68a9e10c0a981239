// Filters as the GEMMs read them: for each filter its taps, frame by frame, each of 16-byte chunks of channels. Those in
// channels_last_3d memory are read in place; others are packed into the workspace first.
#pragma once

#include "../../conv2d/gemm/layout.h"
#include "conv3d/conv3d.h"

namespace hipconv {

struct FilterLayout {
    int64_t chunks;                    // of a tap's channels
    int64_t taps;                      // of all frames
    bool packs;                        // they are not read in place
    int64_t filter_stride, tap_bytes;  // bytes, to the next filter and tap
    int64_t packed_bytes;

    // With `dense`, nothing may stand between a filter's taps.
    FilterLayout(const Conv3dParams& p, bool dense) {
        const int64_t channels = p.in_channels / p.groups, element = element_bytes(p.dtype), elements = 16 / element;
        chunks = ceil_of(channels, elements);
        taps = int64_t{p.kernel_frames} * p.kernel_height * p.kernel_width;
        const Volume& w = p.weight;
        const int64_t tap = p.kernel_width > 1    ? w.column_stride
                            : p.kernel_height > 1 ? w.row_stride
                            : p.kernel_frames > 1 ? w.frame_stride
                                                  : channels;
        const bool even = (p.kernel_height == 1 || w.row_stride == p.kernel_width * tap) &&
                          (p.kernel_frames == 1 || w.frame_stride == int64_t{p.kernel_height} * p.kernel_width * tap);
        packs = !(channels % elements == 0 && (w.channel_stride == 1 || channels == 1) && is_aligned(w.data) &&
                  tap % elements == 0 && (dense ? tap == channels : tap >= channels) && even &&
                  (p.out_channels == 1 || (w.batch_stride % elements == 0 && w.batch_stride >= taps * tap)));
        tap_bytes = packs ? chunks * 16 : tap * element;
        filter_stride = packs || p.out_channels == 1 ? taps * tap_bytes : w.batch_stride * element;
        packed_bytes = packs ? round_up(filter_stride * p.out_channels, 256) : 0;
    }
};

// Packs filters into the workspace.
void conv3d_pack_filters(const Conv3dParams& params, const FilterLayout& layout, void* workspace, void* stream);

}  // namespace hipconv
