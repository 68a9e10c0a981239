// The kernel that repacks x, and filters that cannot be read in place, so that the GEMMs can read them by 16 bytes.
#pragma once

#include "../common/padding.h"
#include "../gemm/gemm.h"
#include "../gemm/pack_filters.h"
#include "../gemm/transpose.h"

namespace hipconv {

constexpr int kRepackThreads = 128;

// Where the elements of a patch of x lie, in the order in which the filters have them in memory: along three axes, channels
// the outermost or the innermost one, of which the inner two have these sizes.
struct PatchOrder {
    int32_t middle, inner;  // inner is zero where there is no patch
    Divisor divide_by_middle, divide_by_inner;
    int64_t outer_stride, middle_stride, inner_stride;  // of x

    HIPCONV_INLINE int64_t offset(int32_t element) const {
        const uint32_t line = divide(static_cast<uint32_t>(element), divide_by_inner), outer = divide(line, divide_by_middle);
        const uint32_t of_line = static_cast<uint32_t>(element) - line * static_cast<uint32_t>(inner);
        return outer * outer_stride + (line - outer * static_cast<uint32_t>(middle)) * middle_stride + of_line * inner_stride;
    }
};

struct RepackParams {
    Image x;
    int32_t channels, height, width, pad_top, pad_left;
    int32_t step_h, step_w;  // in x, from the source of a repacked pixel to that of the next
    PaddingMode padding_mode;
    void* repacked;
    int32_t image_pixels, row_pixels, pixels, chunks;  // of the repacked x
    Divisor divide_by_image, divide_by_row, divide_by_across;
    PatchOrder patch;       // no axes unless channels are all elements of a patch of x
    int32_t log2_lanes;     // of the lanes along chunks; the others lie along pixels
    int32_t across, tiles;  // blocks of work along chunks, and in all
    PackParams filters;     // packed is null if they are read in place
};

// The pixel of x that becomes a repacked pixel, unless that is padding.
struct PixelOfX {
    int64_t offset;  // of its first channel
    bool is_inside;
};

HIPCONV_INLINE PixelOfX source_of(const RepackParams& p, uint32_t number) {
    const uint32_t n = divide(number, p.divide_by_image), of_image = number - n * static_cast<uint32_t>(p.image_pixels);
    const uint32_t row = divide(of_image, p.divide_by_row), column = of_image - row * static_cast<uint32_t>(p.row_pixels);
    const int64_t h = padded_index(static_cast<int64_t>(row) * p.step_h - p.pad_top, p.height, p.padding_mode);
    const int64_t w = padded_index(static_cast<int64_t>(column) * p.step_w - p.pad_left, p.width, p.padding_mode);
    const bool is_inside = h >= 0 && w >= 0;
    return {is_inside ? offset_in(p.x, n, 0, h, w) : 0, is_inside};
}

// A thread repacks 16 bytes of channels of kPixels pixels: of one pixel, wherever it is; or, in images that keep their size, of
// consecutive pixels, which it loads as a vector of each channel and transposes.
template <typename T, int kPixels>
__global__ void HIPCONV_LAUNCH_BOUNDS(kRepackThreads, 6) conv2d_repack(RepackParams p) {
    let_next_kernel_begin();
    wait_for_kernel_before();
    using Vector = Words<T, kPixels>;
    using Bits = typename WordsOf<sizeof(T)>::type;
    constexpr int kChunkChannels = 16 / static_cast<int>(sizeof(T));
    Words4* const repacked = global_pointer<Words4>(p.repacked);
    for (uint32_t block = blockIdx.x; block < static_cast<uint32_t>(p.tiles); block += gridDim.x) {
        const uint32_t down = divide(block, p.divide_by_across), lanes = 1u << p.log2_lanes;
        const uint32_t chunk = (block - down * static_cast<uint32_t>(p.across)) * lanes + threadIdx.x % lanes;
        const uint32_t pixel = (down * (kRepackThreads >> p.log2_lanes) + (threadIdx.x >> p.log2_lanes)) * kPixels;
        if (chunk >= static_cast<uint32_t>(p.chunks) || pixel >= static_cast<uint32_t>(p.pixels)) continue;
        PixelOfX source;
        if constexpr (kPixels == 1) {
            source = source_of(first_parameter_again(p), pixel);
        } else {
            const uint32_t n = divide(pixel, p.divide_by_image);
            source = {n * p.x.batch_stride + (pixel - n * static_cast<uint32_t>(p.image_pixels)), true};
        }
        const int32_t first = static_cast<int32_t>(chunk) * kChunkChannels, channels = p.channels - first;  // left
        const Bits* const from = global_pointer<const Bits>(p.x.data) + source.offset;
        Vector loaded[kChunkChannels];
#pragma unroll
        for (int e = 0; e < kChunkChannels; ++e) {
            loaded[e] = Vector{};
            int64_t at = (first + e) * p.x.channel_stride;
            if constexpr (kPixels == 1) {
                if (p.patch.inner > 0) at = p.patch.offset(first + e);
            }
            if (source.is_inside && e < channels) loaded[e] = *reinterpret_cast<const Vector*>(from + at);
        }
#pragma unroll
        for (int i = 0; i < kPixels; ++i) {
            store_chunk<T>(repacked, static_cast<int64_t>(pixel + i) * p.chunks + chunk, channels_of_pixel(loaded, i));
        }
    }
    const PackParams& filters = first_parameter_again(p).filters;
    if (!filters.packed) return;
    // The blocks that have no part of x begin with the filters, and all others join them when they are done.
    const uint32_t first = (blockIdx.x + gridDim.x - static_cast<uint32_t>(p.tiles) % gridDim.x) % gridDim.x;
    const int64_t count = pack_chunks(filters);
    for (int64_t i = static_cast<int64_t>(first) * kRepackThreads + threadIdx.x; i < count;
         i += static_cast<int64_t>(gridDim.x) * kRepackThreads)
        pack_chunk<T>(filters, i);
}

}  // namespace hipconv
