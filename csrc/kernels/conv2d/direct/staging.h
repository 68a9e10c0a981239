// Brings the patch of x that a block's pixels see to LDS: zeros, or what the padding mode says, stand for what is outside.
#pragma once

#include "../common/padding.h"
#include "params.h"

namespace hipconv {

// The images, rows and columns of a block's pixels.
struct DirectTile {
    int image, row, column;
};

// A pixel of x that lies in a patch: where it is in x (-1 for a zero), and its slot.
struct PatchPixel {
    int image, slot;
    int64_t row, column;
};

// Pixel `number` of the patch. With windows, `column` is that of a window's first tap, and may be outside x.
HIPCONV_INLINE PatchPixel patch_pixel(const DirectParams& p, const DirectTile& tile, uint32_t number) {
    const int line = static_cast<int>(divide(number, p.divide_by_patch_columns));
    const int column = static_cast<int>(number) - line * p.patch_columns;
    const int image = static_cast<int>(divide(line, p.divide_by_patch_rows)), row = line - image * p.patch_rows;
    const int of_phase = static_cast<int>(divide(column, p.divide_by_phases)), phase = column - of_phase * p.phases;
    const Conv2dParams& c = p.conv;
    const int64_t y = static_cast<int64_t>(tile.row) * c.stride_h - c.pad_top + static_cast<int64_t>(row) * p.row_step;
    const int64_t x = static_cast<int64_t>(tile.column) * c.stride_w - c.pad_left + static_cast<int64_t>(column) * p.column_step;
    PatchPixel pixel{tile.image + image, image * p.image_slots + row * p.patch_pitch + phase * p.phase_columns + of_phase,
                     padded_index(y, c.in_height, c.padding_mode), x};
    if (!p.windows) pixel.column = padded_index(x, c.in_width, c.padding_mode);
    if (pixel.image >= c.batch) pixel.row = -1;
    return pixel;
}

// Whether a padded index may be used: reaching beyond what a padding mode serves happens only for pixels outside out.
HIPCONV_INLINE bool lies_inside(int64_t index, int32_t size) { return index >= 0 && index < size; }

// The byte of LDS of a chunk of a slot.
HIPCONV_INLINE int chunk_place(const DirectParams& p, int slot, int chunk) { return slot * p.slot_bytes + chunk * 16; }

// The first element of a chunk among the block's bundles: its bundle within the block, and its number in the bundle.
struct BundleElement {
    int bundle, element;
};
HIPCONV_INLINE BundleElement element_of(const DirectParams& p, int chunk, int pass) {
    const int bundle = p.block_bundles == 1 ? 0 : static_cast<int>(divide(chunk, p.divide_by_chunks));
    return {bundle, (pass * p.chunks + chunk - bundle * p.chunks) * kChunkElements};
}

// By vectors of channels: lanes lie along chunks.
template <int kThreadsAtMost>
HIPCONV_INLINE void stage_vectors(const DirectParams& p, const DirectTile& tile, int first_bundle, int pass, int thread,
                                  int threads, char* patch) {
    constexpr int kAtOnce = 4;
    const Conv2dParams& c = p.conv;
    const int count = p.patch_slots * p.slot_chunks;
    const uint64_t x = reinterpret_cast<uint64_t>(c.x.data);
    for (int first = thread; first < count; first += kAtOnce * threads) {
        Words4 loaded[kAtOnce];
        int places[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            loaded[i] = Words4{};
            places[i] = -1;
            const int number = first + i * threads;
            if (number >= count) continue;
            const int slot = static_cast<int>(divide(number, p.divide_by_slots)), chunk = number - slot * p.slot_chunks;
            const PatchPixel pixel = patch_pixel(p, tile, slot);
            const BundleElement at = element_of(p, chunk, pass);
            const int channel = (first_bundle + at.bundle) * p.bundle_channels + at.element;
            const bool inside = lies_inside(pixel.row, c.in_height) && lies_inside(pixel.column, c.in_width) &&
                                at.element < p.bundle_channels && channel < c.in_channels;
            const int64_t offset =
                inside ? pixel.image * c.x.batch_stride + pixel.row * c.x.row_stride + pixel.column * c.x.column_stride + channel
                       : 0;
            places[i] = chunk_place(p, pixel.slot, chunk);
            if constexpr (kCopiesPastRegisters)
                copy_later(reinterpret_cast<Words4*>(patch + places[i]), global_pointer<const void>(x + 2 * offset), !inside);
            else if (inside)
                loaded[i] = *global_pointer<const Words4>(x + 2 * offset);
        }
        if constexpr (!kCopiesPastRegisters) {
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i)
                if (places[i] >= 0) *reinterpret_cast<Words4*>(patch + places[i]) = loaded[i];
        }
    }
    close_copies();
}

// Element by element: lanes lie along pixels.
HIPCONV_INLINE void stage_elements(const DirectParams& p, const DirectTile& tile, int first_bundle, int pass, int thread,
                                   int threads, char* patch) {
    const Conv2dParams& c = p.conv;
    const uint64_t x = reinterpret_cast<uint64_t>(c.x.data);
    for (int chunk = 0; chunk < p.slot_chunks; ++chunk) {
        const BundleElement at = element_of(p, chunk, pass);
        const int first_channel = (first_bundle + at.bundle) * p.bundle_channels + at.element;
        for (int number = thread; number < p.patch_slots; number += threads) {
            const PatchPixel pixel = patch_pixel(p, tile, number);
            uint32_t bits[kChunkElements] = {};
            if (lies_inside(pixel.row, c.in_height)) {
                const int64_t line = pixel.image * c.x.batch_stride + pixel.row * c.x.row_stride;
                if (p.windows) {
                    int channel = at.element % c.in_channels, tap = at.element / c.in_channels;
#pragma unroll
                    for (int e = 0; e < kChunkElements; ++e) {
                        const int64_t column = padded_index(pixel.column + static_cast<int64_t>(tap) * c.dilation_w, c.in_width,
                                                            c.padding_mode);
                        if (tap < c.kernel_width && lies_inside(column, c.in_width))
                            bits[e] = *global_pointer<const uint16_t>(
                                x + 2 * (line + column * c.x.column_stride + channel * c.x.channel_stride));
                        if (++channel == c.in_channels) {
                            channel = 0;
                            ++tap;
                        }
                    }
                } else if (lies_inside(pixel.column, c.in_width)) {
                    const int64_t first = line + pixel.column * c.x.column_stride + first_channel * c.x.channel_stride;
#pragma unroll
                    for (int e = 0; e < kChunkElements; ++e)
                        if (at.element + e < p.bundle_channels && first_channel + e < c.in_channels)
                            bits[e] = *global_pointer<const uint16_t>(x + 2 * (first + e * c.x.channel_stride));
                }
            }
            Words4 words{};
#pragma unroll
            for (int w = 0; w < 4; ++w) set_word(words, w, bits[2 * w] | bits[2 * w + 1] << 16);
            *reinterpret_cast<Words4*>(patch + chunk_place(p, pixel.slot, chunk)) = words;
        }
    }
}

}  // namespace hipconv
