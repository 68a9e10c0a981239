// Brings the patch of x that a block's pixels see to LDS: zeros, or what the padding mode says, stand for what is outside.
#pragma once

#include "../common/padding.h"
#include "params.h"

namespace hipconv {

// The first image, row and column of a block's pixels.
struct DirectTile {
    int image, row, column;
};

// A column of the patch: where it is in x, and its place in a row of slots.
struct PatchColumn {
    int x, place;
};

// A pixel of the tile: the byte of LDS of its first slot, and its offset in out from the tile's first pixel, or -1 beyond out.
struct TilePixel {
    int slot, out;
};

// LDS: the places of the sum's chunks, the tile's pixels, the patch's rows and columns, and the patch.
struct DirectTables {
    int* places;
    TilePixel* pixels;
    int64_t* rows;         // of each image: bytes from x's first element, or negative where there are zeros
    PatchColumn* columns;  // `x`: bytes from the row's first element, or negative; with windows, of each tap of a column
    char* patch;
};

HIPCONV_INLINE DirectTables tables_of(const DirectParams& p, Words4* lds) {
    char* const bytes = reinterpret_cast<char*>(lds);
    return {reinterpret_cast<int*>(bytes), reinterpret_cast<TilePixel*>(bytes + p.pixels_begin),
            reinterpret_cast<int64_t*>(bytes + p.rows_begin), reinterpret_cast<PatchColumn*>(bytes + p.columns_begin),
            bytes + p.patch_begin};
}

// As padded_index, for what may also be far outside, where only pixels beyond out are concerned: then it is a zero.
HIPCONV_INLINE int patch_index(int64_t at, int32_t size, PaddingMode mode) {
    const int64_t index = padded_index(at, size, mode);
    return index < size ? static_cast<int>(index) : -1;
}

HIPCONV_INLINE void write_tables(const DirectParams& p, const DirectTables& t, const DirectTile& tile, int thread,
                                 int threads) {
    const Conv2dParams& c = p.conv;
    const int lines = p.tile_images * p.patch_rows;
#pragma unroll 1
    for (int i = thread; i < lines + p.patch_columns * p.column_taps; i += threads) {
        if (i < lines) {
            const int image = static_cast<int>(divide(i, p.divide_by_patch_rows)), row = i - image * p.patch_rows;
            const int64_t at = static_cast<int64_t>(tile.row) * c.stride_h - c.pad_top + static_cast<int64_t>(row) * p.row_step;
            const int y = tile.image + image < c.batch ? patch_index(at, c.in_height, c.padding_mode) : -1;
            t.rows[i] = y < 0 ? -1 : 2 * ((tile.image + image) * c.x.batch_stride + y * c.x.row_stride);
        } else {
            const int column = static_cast<int>(divide(i - lines, p.divide_by_column_taps)),
                      tap = i - lines - column * p.column_taps;
            const int of_phase = static_cast<int>(divide(column, p.divide_by_phases));
            const int64_t at = static_cast<int64_t>(tile.column) * c.stride_w - c.pad_left +
                               static_cast<int64_t>(column) * p.column_step + static_cast<int64_t>(tap) * c.dilation_w;
            const int x = patch_index(at, c.in_width, c.padding_mode);
            t.columns[i - lines] = {x < 0 ? -1 : static_cast<int>(2 * x * c.x.column_stride),
                                    (column - of_phase * p.phases) * p.phase_columns + of_phase};
        }
    }
}

// Where the chunks of the sum lie, from a pixel's first slot on. Behind the last there are some more that are multiplied by
// zero.
HIPCONV_INLINE void write_places(const DirectParams& p, const DirectTables& t, int thread, int threads) {
#pragma unroll 1
    for (int i = thread; i < p.entries + kMostStepChunks; i += threads) {
        const int tap = static_cast<int>(divide(i, p.divide_by_chunks)),
                  r = static_cast<int>(divide(tap, p.divide_by_taps_across));
        const int column = (tap - r * p.taps_across) * p.columns_a_tap,
                  of_phase = static_cast<int>(divide(column, p.divide_by_phases));
        const int slot = r * p.rows_a_tap * p.patch_pitch + (column - of_phase * p.phases) * p.phase_columns + of_phase;
        t.places[i] = tap < p.taps ? slot * p.slot_bytes + (i - tap * p.chunks) * 16 : 0;
    }
}

// A pixel of a tile: its image, row and column in the tile, and whether out has it.
struct DirectPixel {
    int image, row, column;
    bool exists;
};

HIPCONV_INLINE DirectPixel direct_pixel(const DirectParams& p, const DirectTile& tile, int number) {
    const int image = static_cast<int>(divide(number, p.divide_by_image_pixels)), of_image = number - image * p.image_pixels;
    const int row = static_cast<int>(divide(of_image, p.divide_by_columns)), column = of_image - row * p.tile_columns;
    const Conv2dParams& c = p.conv;
    return {image, row, column,
            image < p.tile_images && tile.image + image < c.batch && tile.row + row < c.out_height &&
                tile.column + column < c.out_width};
}

HIPCONV_INLINE void write_pixels(const DirectParams& p, const DirectTables& t, const DirectTile& tile, int thread,
                                 int threads) {
#pragma unroll 1
    for (int i = thread; i < 1 << p.log2_tile; i += threads) {
        const DirectPixel at = direct_pixel(p, tile, i);
        const int slot = at.image * p.image_slots + at.row * p.rows_a_pixel * p.patch_pitch + at.column;
        t.pixels[i] = {p.patch_begin + (at.exists ? slot * p.slot_bytes : 0),
                       at.exists ? at.image * p.out_image + at.row * p.out_row + at.column * p.out_column : -1};
    }
}

// By vectors of channels: lanes lie along chunks.
HIPCONV_INLINE void stage_vectors(const DirectParams& p, const DirectTables& t, int first_bundle, int pass, int thread,
                                  int threads) {
    constexpr int kAtOnce = kCopiesPastRegisters ? 1 : 4;
    const int count = p.patch_slots * p.slot_chunks;
    const int first_channel = first_bundle * p.bundle_channels + pass * p.chunks * kChunkElements;
    const int behind = (first_bundle + p.block_bundles) * p.bundle_channels;
    const int channels = (behind < p.conv.in_channels ? behind : p.conv.in_channels) - first_channel;
    const uint64_t x = reinterpret_cast<uint64_t>(p.conv.x.data) + 2 * static_cast<int64_t>(first_channel);
#pragma unroll 1
    for (int first = thread; first < count; first += kAtOnce * threads) {
        Words4 loaded[kAtOnce];
        int places[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            places[i] = -1;
            loaded[i] = Words4{};
            const int number = first + i * threads;
            if (kAtOnce > 1 && number >= count) continue;
            const int pixel = static_cast<int>(divide(number, p.divide_by_slot_chunks)), chunk = number - pixel * p.slot_chunks;
            const int line = static_cast<int>(divide(pixel, p.divide_by_patch_columns));
            const PatchColumn column = t.columns[pixel - line * p.patch_columns];
            const int64_t row = t.rows[line];
            const bool inside = row >= 0 && column.x >= 0 && chunk * kChunkElements < channels;
            const uint64_t from = inside ? x + row + static_cast<uint32_t>(column.x + chunk * 16) : x;
            places[i] = (line * p.patch_pitch + column.place) * p.slot_bytes + chunk * 16;
            if constexpr (kCopiesPastRegisters)
                copy_later(reinterpret_cast<Words4*>(t.patch + places[i]), global_pointer<const void>(from), !inside);
            else if (inside)
                loaded[i] = *global_pointer<const Words4>(from);
        }
        if constexpr (!kCopiesPastRegisters) {
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i)
                if (places[i] >= 0) *reinterpret_cast<Words4*>(t.patch + places[i]) = loaded[i];
        }
    }
    close_copies();
}

HIPCONV_INLINE void store_chunk(const DirectParams& p, char* patch, int line, int place, int chunk,
                                const uint32_t (&bits)[kChunkElements]) {
    Words4 words{};
#pragma unroll
    for (int w = 0; w < 4; ++w) set_word(words, w, bits[2 * w] | bits[2 * w + 1] << 16);
    *reinterpret_cast<Words4*>(patch + (line * p.patch_pitch + place) * p.slot_bytes + chunk * 16) = words;
}

// Element by element: lanes lie along pixels.
HIPCONV_INLINE void stage_elements(const DirectParams& p, const DirectTables& t, int first_bundle, int pass, int thread,
                                   int threads) {
    const Conv2dParams& c = p.conv;
    const int64_t next = 2 * c.x.channel_stride;
#pragma unroll 1
    for (int chunk = 0; chunk < p.slot_chunks; ++chunk) {
        const int bundle = p.block_bundles == 1 ? 0 : static_cast<int>(divide(chunk, p.divide_by_chunks));
        const int element = (pass * p.chunks + chunk - bundle * p.chunks) * kChunkElements;  // the chunk's first, of the bundle
        const int first_channel = (first_bundle + bundle) * p.bundle_channels + element;
        int count = p.bundle_channels - element;
        if (count > c.in_channels - first_channel) count = c.in_channels - first_channel;
        const uint64_t from_channel = reinterpret_cast<uint64_t>(c.x.data) + first_channel * next;
#pragma unroll 1
        for (int number = thread; number < p.patch_slots; number += threads) {
            const int line = static_cast<int>(divide(number, p.divide_by_patch_columns));
            const PatchColumn column = t.columns[number - line * p.patch_columns];
            const int64_t row = t.rows[line];
            uint32_t bits[kChunkElements] = {};
            if (row >= 0 && column.x >= 0) {
                uint64_t from = from_channel + row + static_cast<uint32_t>(column.x);
#pragma unroll
                for (int e = 0; e < kChunkElements; ++e, from += next)
                    if (e < count) bits[e] = *global_pointer<const uint16_t>(from);
            }
            store_chunk(p, t.patch, line, column.place, chunk, bits);
        }
    }
}

// The same with the taps of a row of a filter side by side, each with all channels.
HIPCONV_INLINE void stage_windows(const DirectParams& p, const DirectTables& t, int pass, int thread, int threads) {
    const Conv2dParams& c = p.conv;
    const int64_t next = 2 * c.x.channel_stride;
#pragma unroll 1
    for (int chunk = 0; chunk < p.slot_chunks; ++chunk) {
        const int element = (pass * p.chunks + chunk) * kChunkElements, count = c.kernel_width * c.in_channels - element;
        const int first_tap = element / c.in_channels, first_channel = element - first_tap * c.in_channels;
#pragma unroll 1
        for (int number = thread; number < p.patch_slots; number += threads) {
            const int line = static_cast<int>(divide(number, p.divide_by_patch_columns));
            const PatchColumn* const columns = t.columns + (number - line * p.patch_columns) * p.column_taps;
            const int64_t row = t.rows[line];
            uint32_t bits[kChunkElements] = {};
            if (row >= 0) {
                const uint64_t from = reinterpret_cast<uint64_t>(c.x.data) + row;
                int channel = first_channel, tap = first_tap;
                int64_t of_channel = first_channel * next;
#pragma unroll
                for (int e = 0; e < kChunkElements; ++e) {
                    const int at = e < count ? columns[tap].x : -1;
                    if (at >= 0) bits[e] = *global_pointer<const uint16_t>(from + static_cast<uint32_t>(at) + of_channel);
                    of_channel += next;
                    if (++channel == c.in_channels) {
                        channel = 0;
                        of_channel = 0;
                        ++tap;
                    }
                }
            }
            const PatchColumn column = columns[0];
            store_chunk(p, t.patch, line, column.place, chunk, bits);
        }
    }
}

}  // namespace hipconv
