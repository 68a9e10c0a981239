// The gathering producers: waves that read x whose channels are not dense, and transpose it on its way to LDS.
#pragma once

#include "../gemm/ring.h"
#include "../gemm/transpose.h"
#include "tile_scheduler.h"

namespace hipconv {

// Fills a stage with a k-block. A thread takes one block of eight pixels by eight channels after another; neighbouring lanes
// take neighbouring channels, so that in LDS they write along a row. The eight pixels are consecutive: in a row of x, from a
// multiple of eight on; or in an image, where taps are 1x1.
template <int kTileM, int kThreads>
HIPCONV_INLINE void gather_k_block(const WarpgroupGemmParams& p, const WarpgroupTile& t, int channel_block, int thread,
                                   Words4* to) {
    constexpr int kRowsOfX = kTileM / kWide + kPatchTaps - 1, kPitch = kWide + kPatchTaps - 1;
    constexpr int kAcross = (kPitch + 7 + 7) / 8;  // blocks that a row of a patch can touch, wherever it begins
    const Conv2dParams& c = p.gemm.conv;
    const int chunk = thread % kTileChunks, channels = p.gemm.group_channels - channel_block * 64 - chunk * 8;  // left
    const int y = t.row - c.pad_top, x = t.column - c.pad_left, begins_at = x & 7;
    const int64_t first_channel = static_cast<int64_t>(t.group) * p.gemm.group_channels + channel_block * 64 + chunk * 8;
    const char* const base = global_pointer<const char>(c.x.data) +
                             (first_channel * c.x.channel_stride + (p.patches ? t.image * c.x.batch_stride : 0)) * 2;
    const int blocks = p.patches ? kRowsOfX * kAcross : kTileM / 8;
#pragma unroll 1
    for (int block = thread / kTileChunks; block < blocks; block += kThreads / kTileChunks) {
        int64_t offset;
        bool is_inside;
        int row, column = 0;  // the first pixel's row of LDS; its column of the patch, negative if the patch begins later
        if (p.patches) {
            const int down = block / kAcross;
            column = (block - down * kAcross) * 8 - begins_at;
            is_inside = y + down >= 0 && y + down < c.in_height && x + column >= 0 && x + column < c.in_width;
            offset = static_cast<int64_t>(y + down) * c.x.row_stride + x + column;
            row = down * kPitch + column;
        } else {
            const int pixel = t.first_pixel + block * 8, n = static_cast<int>(divide(pixel, p.gemm.divide_by_image));
            is_inside = pixel < p.gemm.pixels;
            offset = n * c.x.batch_stride + (pixel - n * c.out_height * c.out_width);
            row = block * 8;
        }
        const char* from = base + offset * 2;
        Words4 loaded[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            loaded[i] = Words4{};
            if (is_inside && i < channels) loaded[i] = *reinterpret_cast<const Words4*>(from);
            from += c.x.channel_stride * 2;
        }
#pragma unroll
        for (int pixel = 0; pixel < 8; ++pixel) {
            const Words4 words = channels_of_pixel(loaded, pixel);
            if (static_cast<uint32_t>(column + pixel) < kPitch) to[swizzled_chunk(row + pixel, chunk)] = words;
        }
    }
}

template <int kTileM, int kThreads>
HIPCONV_INLINE void gather_x(const WarpgroupGemmParams& p, int thread, const Ring& ring) {
    RingState place;
    for (int number = blockIdx.x; number < p.tiles; number += gridDim.x) {
        const WarpgroupTile t = warpgroup_tile<kTileM>(p, number);
#pragma unroll 1
        for (int k_block = t.first_k_block; k_block < t.end_k_block; ++k_block) {  // 64 channels each
            wait_for_phase(&ring.empty[place.stage], place.phase ^ 1);
            int again = number;  // working the tile out again is cheaper than keeping it in registers
            from_here_on(again);
            gather_k_block<kTileM, kThreads>(p, warpgroup_tile<kTileM>(p, again), k_block, thread, ring.at(place));
            fence_async_proxy();
            arrive(&ring.full[place.stage]);
            place.advance(ring.stages);
        }
    }
}

}  // namespace hipconv
