// How a block reads its operands, step by step: where in x and in the filters each of a thread's chunks comes from.
#pragma once

#include "async_copy.h"
#include "conv2d_implicit_gemm.h"
#include "conv2d_padding.h"

namespace hipconv {

// Which of a tile's chunks a thread loads: chunk `chunk` of rows first_row, first_row + kThreads / 8, … Lanes lie along a row's chunks, or
// along rows where neighbours in memory are pixels.
struct ChunkOfThread {
    int first_row, chunk;
};

template <int kThreads>
HIPCONV_INLINE ChunkOfThread chunk_of_thread(int thread, bool lanes_along_rows) {
    constexpr int kRows = kThreads / kTileChunks;
    if (lanes_along_rows) return {thread % kRows, thread / kRows};
    return {thread / kTileChunks, thread % kTileChunks};
}

// ---- filters ----------------------------------------------------------------------------------------------------------

template <int kTileN, int kThreads>
struct FilterChunks {
    static constexpr int kRowsApart = kThreads / kTileChunks, kCount = kTileN / kRowsApart;

    const char* base;  // all lanes'
    uint32_t offset;
    uint32_t rows_apart;  // bytes
    int rows_left;        // filters from this thread's first on
    int place;            // in LDS, of the first
    int turn;             // steps until `filter_turn`

    HIPCONV_INLINE FilterChunks(const ConvGemmParams& p, int thread, int group, int first_filter, int first_step) {
        const ChunkOfThread mine = chunk_of_thread<kThreads>(thread, false);
        place = chunk_at(mine.first_row, mine.chunk);
        const int filters = p.group_filters - first_filter;
        const int row = mine.first_row < filters ? mine.first_row : filters - 1;  // beyond the last, sums are not stored
        rows_left = filters - row;
        rows_apart = static_cast<uint32_t>(p.filter_stride) * kRowsApart;
        base = global_pointer<const char>(reinterpret_cast<uint64_t>(p.filters)) +
               (static_cast<int64_t>(group) * p.group_filters + first_filter) * p.filter_stride;
        const int turns = first_step / p.taps;
        offset = static_cast<uint32_t>(row) * static_cast<uint32_t>(p.filter_stride) + mine.chunk * 16 +
                 static_cast<uint32_t>(first_step) * p.filter_step + static_cast<uint32_t>(turns) * p.filter_turn;
        turn = p.taps - (first_step - turns * p.taps);
    }

    HIPCONV_INLINE const char* address(int i) const {
        const uint32_t at = i * kRowsApart < rows_left ? offset + i * rows_apart : offset;
        return base + at;
    }

    HIPCONV_INLINE void advance(const ConvGemmParams& p) {
        offset += p.filter_step;
        if (--turn == 0) {
            turn = p.taps;
            offset += p.filter_turn;
        }
    }

    HIPCONV_INLINE void copy(Words4* tile) const {
#pragma unroll
        for (int i = 0; i < kCount; ++i) copy_later(&tile[place + i * kRowsApart * kTileChunks], address(i), false);
    }

    HIPCONV_INLINE void load(Words4 (&chunks)[kCount]) const {
#pragma unroll
        for (int i = 0; i < kCount; ++i) chunks[i] = *reinterpret_cast<const Words4*>(address(i));
    }

    HIPCONV_INLINE void store(Words4* tile, const Words4 (&chunks)[kCount]) const {
#pragma unroll
        for (int i = 0; i < kCount; ++i) tile[place + i * kRowsApart * kTileChunks] = chunks[i];
    }
};

// ---- pixels -----------------------------------------------------------------------------------------------------------

constexpr int kMostTapsAcross = 15;  // rows or columns of taps that have a bit each below

template <typename T, int kTileM, int kThreads>
struct PixelChunks {
    static constexpr int kRowsApart = kThreads / kTileChunks, kCount = kTileM / kRowsApart;
    static constexpr int kElements = 16 / static_cast<int>(sizeof(T));  // of a chunk

    const char* base;  // all lanes'
    // Of each pixel. Not mapped: the offset of its first tap, and a bit for each row and, from 16 on, column of taps inside the image.
    // Mapped: row and column of its first tap.
    uint32_t first[kCount], second[kCount];
    int place;            // in LDS, of the first
    int chunk, row, column;  // of channels; of the tap
    uint32_t tap;            // its offset from the first

    // `image`: of the tile's first pixel, which is number first_pixel.
    HIPCONV_INLINE PixelChunks(const ConvGemmParams& p, int thread, int group, int image, int first_pixel, int first_step) {
        const Conv2dParams& c = p.conv;
        const ChunkOfThread mine = chunk_of_thread<kThreads>(thread, p.lanes_along_pixels);
        place = chunk_at(mine.first_row, mine.chunk);

        // Offsets count from the first image; from the first row of x that the tile needs where only one image is concerned.
        int first_row = 0;
        if (p.by_image && !p.mapped) {
            first_row = static_cast<int>(divide(first_pixel, p.divide_by_row)) * c.stride_h - c.pad_top;
            first_row = first_row < 0 ? 0 : first_row < c.in_height ? first_row : c.in_height - 1;
        }
        base = global_pointer<const char>(reinterpret_cast<uint64_t>(c.x.data)) +
               (image * c.x.batch_stride + first_row * c.x.row_stride + static_cast<int64_t>(group) * p.group_channels * c.x.channel_stride) *
                   static_cast<int64_t>(sizeof(T));
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            int pixel = first_pixel + mine.first_row + i * kRowsApart;
            if (pixel >= p.pixels) pixel = p.pixels - 1;  // its sums are not stored
            int of_image = pixel, images = 0;
            if (!p.by_image) {
                const int number = static_cast<int>(divide(pixel, p.divide_by_image));
                of_image = pixel - number * c.out_height * c.out_width;
                images = number - image;
            }
            const int y = static_cast<int>(divide(of_image, p.divide_by_row));
            const int h = y * c.stride_h - c.pad_top, w = (of_image - y * c.out_width) * c.stride_w - c.pad_left;
            if (p.mapped) {
                first[i] = static_cast<uint32_t>(h);
                second[i] = static_cast<uint32_t>(w);
            } else {
                first[i] = images * p.x_image + static_cast<uint32_t>(h - first_row) * p.x_row + static_cast<uint32_t>(w) * p.x_column;
                second[i] = 0;
#pragma unroll 1
                for (int r = 0; r < c.kernel_height; ++r) {
                    const int at = h + r * c.dilation_h;
                    if (at >= 0 && at < c.in_height) second[i] |= 1u << r;
                }
#pragma unroll 1
                for (int s = 0; s < c.kernel_width; ++s) {
                    const int at = w + s * c.dilation_w;
                    if (at >= 0 && at < c.in_width) second[i] |= 0x10000u << s;
                }
            }
        }

        int number;  // of the tap
        if (p.taps_inside) {
            const int turns = first_step / p.taps;
            number = first_step - turns * p.taps;
            chunk = turns * kTileChunks + mine.chunk;
        } else {
            const int of_all = first_step * kTileChunks + mine.chunk;
            number = of_all / p.chunks;
            chunk = of_all - number * p.chunks;
        }
        row = number / c.kernel_width;
        column = number - row * c.kernel_width;
        tap = static_cast<uint32_t>(row) * p.tap_row + static_cast<uint32_t>(column) * p.tap_column;
    }

    HIPCONV_INLINE void advance(const ConvGemmParams& p) {
        if (p.taps_inside) {
            ++column;
            tap += p.tap_column;
        } else {
            chunk += p.next_chunk;
            column += p.next_column;
            row += p.next_row;
            tap += p.next_tap;
            if (chunk >= p.chunks) {
                chunk -= p.chunks;
                ++column;
                tap += p.tap_column;
            }
        }
        if (column >= p.conv.kernel_width) {
            column -= p.conv.kernel_width;
            ++row;
            tap += p.tap_row - p.conv.kernel_width * p.tap_column;
        }
        if (p.taps_inside && row == p.conv.kernel_height) {
            row = 0;
            tap = 0;
            chunk += kTileChunks;
        }
    }

    // The bits of the tap; beyond the last one, a bit that no pixel has.
    HIPCONV_INLINE uint32_t bits(const ConvGemmParams& p) const {
        return row < p.conv.kernel_height ? 1u << row | 0x10000u << column : 0x80000000u;
    }

    // ---- x by vectors ----

    // Of chunk i; an offset that may be read, where the tap is outside.
    HIPCONV_INLINE uint32_t offset(int i, uint32_t bits) const {
        return (second[i] & bits) == bits ? first[i] + tap + static_cast<uint32_t>(chunk) * 16 : 0;
    }

    HIPCONV_INLINE void copy(const ConvGemmParams& p, Words4* tile) const {
        const uint32_t needed = bits(p);
#pragma unroll
        for (int i = 0; i < kCount; ++i)
            copy_later(&tile[place + i * kRowsApart * kTileChunks], base + offset(i, needed), (second[i] & needed) != needed);
    }

    struct Vectors {
        Words4 chunks[kCount];
        uint32_t needed;
    };

    HIPCONV_INLINE void load(const ConvGemmParams& p, Vectors& v) const {
        v.needed = bits(p);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            v.chunks[i] = *reinterpret_cast<const Words4*>(base + offset(i, v.needed));
        }
    }

    // Chunks outside the image become zeros here and no sooner: right after the load, that would wait for it.
    HIPCONV_INLINE void store(const ConvGemmParams&, Words4* tile, const Vectors& v) const {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const uint32_t keep = (second[i] & v.needed) == v.needed ? 0xffffffffu : 0;
            Words4 chunk = v.chunks[i];
#pragma unroll
            for (int n = 0; n < 4; ++n) set_word(chunk, n, word(chunk, n) & keep);
            tile[place + i * kRowsApart * kTileChunks] = chunk;
        }
    }

    // ---- x element by element: any strides, any channels, any padding ----

    struct Elements {
        uint32_t bits[kCount][kElements];
        uint32_t inside;  // a bit for each pixel
        int channels;     // of the chunk that there are
    };

    HIPCONV_INLINE void load(const ConvGemmParams& p, Elements& v) const {
        using Bits = typename WordsOf<sizeof(T)>::type;
        const Conv2dParams& c = p.conv;
        const uint32_t needed = bits(p);
        v.inside = 0;
        v.channels = p.group_channels - chunk * kElements;
        const char* channel = base + static_cast<int64_t>(chunk) * kElements * p.x_channel;
        uint32_t offsets[kCount];
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            bool inside = (second[i] & needed) == needed;
            uint32_t at = first[i] + tap;
            if (p.mapped) {
                const int64_t h = padded_index(static_cast<int32_t>(first[i]) + row * c.dilation_h, c.in_height, c.padding_mode);
                const int64_t w = padded_index(static_cast<int32_t>(second[i]) + column * c.dilation_w, c.in_width, c.padding_mode);
                inside = row < c.kernel_height && h >= 0 && w >= 0;
                at = static_cast<uint32_t>(h) * p.x_row + static_cast<uint32_t>(w) * p.x_column;
            }
            offsets[i] = inside ? at : 0;
            v.inside |= static_cast<uint32_t>(inside) << i;
        }
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
#pragma unroll
            for (int i = 0; i < kCount; ++i) v.bits[i][e] = *reinterpret_cast<const Bits*>(channel + offsets[i]);
            if (e + 1 < v.channels) channel += p.x_channel;  // else the last channel again
        }
    }

    HIPCONV_INLINE void store(const ConvGemmParams&, Words4* tile, const Elements& v) const {
        constexpr int kInWord = 4 / static_cast<int>(sizeof(T));
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            Words4 chunk{};
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const int channels = v.inside >> i & 1 ? v.channels - n * kInWord : 0;
                uint32_t both = v.bits[i][n * kInWord];
                if (kInWord == 2) both |= v.bits[i][n * kInWord + kInWord - 1] << 16;
                const uint32_t keep = channels >= kInWord ? 0xffffffffu : channels == 1 ? 0xffffu : 0;
                set_word(chunk, n, channels <= 0 ? 0 : both & keep);
            }
            tile[place + i * kRowsApart * kTileChunks] = chunk;
        }
    }
};

}  // namespace hipconv
