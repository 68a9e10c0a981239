// conv3d as a product of matrices by warpgroups (wgmma) on sm_90. A block is persistent: it makes tile after tile. Its
// producers are ahead of its consumers by as much as the rings hold, across tiles too.
//
// A tile is a rectangle of a frame's pixels, made of blocks of 8 by 8, by filters. For each frame that a tap sees, and each 64
// channels, TMA brings the rectangle with its halo to LDS, from the cache or from x, whichever has the frame: this patch serves
// all taps of a row and column, and what is outside the frame arrives as zeros; in other padding modes one of the waves beside
// the producers copies pixels of the patch there (edges.h). A frame of zeros takes no step. Of the last channels, a step
// multiplies as many as there are, by 32.
#pragma once

#include "../../conv2d/gemm/warpgroup_epilogue.h"
#include "../common/filters.h"
#include "../common/frame_gemm.h"
#include "matrix/tma.h"

namespace hipconv {

constexpr int kBlockSide = 8;                 // pixels
constexpr int kChannels = kTileRowBytes / 2;  // of a row of LDS
constexpr int kMaxStages = 8;
constexpr int kFirstLanded = kMaxStages / 2;  // of the barriers of x, of whose stages there are so many at most

struct FrameWarpgroupParams {
    Conv3dParams conv;
    SavePlan save;
    ConvGemmParams frame;
    int32_t tile_n;
    int32_t frames_of_sample;          // in out
    int32_t log2_block_columns;        // blocks of a tile side by side
    int32_t pitch;                     // columns of a patch
    int32_t patch_rows, patch_chunks;  // rows of LDS that arrive; chunks of a stage
    int32_t x_stages, filter_stages;   // of the rings
    int32_t tiles_across, tiles;       // of a frame, from left to right; of all frames
    Divisor divide_by_across, divide_by_frames, divide_by_groups;
    int32_t channel_blocks;  // of 64 channels
    bool ends_early;         // the last of them has 32 channels at most
    int32_t first_landed;    // of the barriers of x: where edges are filled, others than "full" tell that a patch has landed
    TensorMap x, cache, filters;
};

// A block and its LDS: x's stages, then the filters' stages, then, at the end, an epilogue tile for each consumer wave and
// the barriers. Host and device compute the same.
struct FrameWarpgroupShape {
    int tile_m, tile_n;
    static constexpr int kProducerRegisters = 32;
    static constexpr int kBytes = 227 * 1024, kBarrierBytes = 4 * kMaxStages * 8;

    // A consumer warpgroup has 128 pixels, or 64 of the smallest tiles.
    HIPCONV_INLINE constexpr int consumers() const { return tile_m == 384 ? 384 : 256; }
    HIPCONV_INLINE constexpr int threads() const { return consumers() + 128; }
    HIPCONV_INLINE constexpr int consumer_registers() const { return tile_m == 384 ? 160 : 232; }
    HIPCONV_INLINE constexpr int filter_bytes() const { return tile_n * kTileRowBytes; }
    HIPCONV_INLINE constexpr int epilogue_bytes() const { return WarpgroupEpilogue::bytes(consumers() / 32, tile_n); }
    HIPCONV_INLINE constexpr int epilogue_offset() const { return kBytes - kBarrierBytes - epilogue_bytes(); }
    HIPCONV_INLINE constexpr int barriers_offset() const { return kBytes - kBarrierBytes; }
    // A patch lasts as many steps as a frame has taps: where it has one, more patches have to be under way.
    static HIPCONV_INLINE constexpr int x_stages(int taps_of_frame) { return taps_of_frame == 1 ? 4 : 2; }
    HIPCONV_INLINE constexpr int filter_stages(int patch_bytes, int x_stages) const {
        const int left = epilogue_offset() - x_stages * patch_bytes;
        const int stages = left < 0 ? 0 : left / filter_bytes();
        return stages < kMaxStages ? stages : kMaxStages;
    }
};

// The most rows and columns on a side of a frame that are other pixels of it, or none.
struct FrameEdges {
    int down = 0, across = 0;

    explicit FrameEdges(const Conv3dParams& p) {
        if (p.padding_mode == PaddingMode::zeros) return;
        const int below = p.out_height + p.kernel_height - 1 - p.pad_top - p.in_height;
        const int right = p.out_width + p.kernel_width - 1 - p.pad_left - p.in_width;
        down = p.pad_top > below ? p.pad_top : below, across = p.pad_left > right ? p.pad_left : right;
    }
    bool any() const { return down > 0 || across > 0; }

    // Null if a patch has the pixels that stand for those of it outside the frame, else what has to be.
    const char* refusal(const Conv3dParams& p) const {
        const int each = p.padding_mode == PaddingMode::reflect ? 2 : 1;
        if (!any() ||
            (p.padding_mode != PaddingMode::circular && each * down < p.kernel_height && each * across < p.kernel_width))
            return nullptr;
        return "padding with zeros, in replicate mode by less than a filter, or in reflect mode by less than half of one";
    }
};

// Launches the instance of a tile. Each type has a file of its own.
template <typename T>
void launch_frame_warpgroups(const FrameWarpgroupParams& params, int tile_m, int tile_n, int units, void* stream);

// Launches the product of a call that is served, by filters that lie as `layout` says.
void conv3d_launch_warpgroups(const Conv3dParams& params, const FilterLayout& layout, const void* filters,
                              const Conv3dCard& card, void* stream);

}  // namespace hipconv
