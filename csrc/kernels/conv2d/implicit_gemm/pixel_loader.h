// This says how a block loads x, step by step: where each of a thread's chunks comes from.
#pragma once

#include <type_traits>

#include "../common/epilogue.h"
#include "../common/padding.h"
#include "../gemm/gemm.h"
#include "device/vec.h"
#include "thread_chunks.h"

namespace hipconv {

template <typename T, int kTileM, int kThreads, XForm kForm>
struct PixelLoader {
    static constexpr bool kMapped = kForm == XForm::anything;
    static constexpr int kRowsApart = kThreads / kTileChunks, kCount = kTileM / kRowsApart;
    static constexpr int kElements = 16 / static_cast<int>(sizeof(T));  // of a chunk

    const char* base;  // the same for all lanes
    // For each pixel the offset of its first tap, and a bit for each row of taps inside the image and, from bit 16 on, for each
    // column. In form `anything`: the row and the column of its first tap.
    uint32_t first[kCount], second[kCount];
    int place;               // of the first chunk, in LDS
    int chunk, row, column;  // chunk of channels; row and column of the tap
    uint32_t tap;            // the tap's offset from the first tap

    // `image` is that of the tile's first pixel, whose number is first_pixel.
    HIPCONV_INLINE PixelLoader(const ConvGemmParams& p, int thread, int group, int image, int first_pixel, int first_step) {
        const Conv2dParams& c = p.conv;
        const ChunkOfThread mine = chunk_of_thread<kThreads>(thread, p.lanes_along_pixels);
        place = swizzled_chunk(mine.first_row, mine.chunk);

        // Offsets count from the first image, or, where a tile lies in one image, from the first row of x that it needs.
        int first_row = 0;
        if (p.by_image && !kMapped) {
            first_row = static_cast<int>(divide(first_pixel, p.divide_by_row)) * c.stride_h - c.pad_top;
            first_row = first_row < 0 ? 0 : first_row < c.in_height ? first_row : c.in_height - 1;
        }
        const int64_t first_channel = static_cast<int64_t>(group) * p.group_channels;
        base = global_pointer<const char>(c.x.data) +
               offset_in(c.x, image, first_channel, first_row, 0) * static_cast<int64_t>(sizeof(T));
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            int pixel = first_pixel + mine.first_row + i * kRowsApart;
            if (pixel >= p.pixels) pixel = p.pixels - 1;  // sums beyond the last pixel are not stored
            int of_image = pixel, images = 0;
            if (!p.by_image) {
                const int number = static_cast<int>(divide(pixel, p.divide_by_image));
                of_image = pixel - number * c.out_height * c.out_width;
                images = number - image;
            }
            const int y = static_cast<int>(divide(of_image, p.divide_by_row));
            const int h = y * c.stride_h - c.pad_top, w = (of_image - y * c.out_width) * c.stride_w - c.pad_left;
            if constexpr (kMapped) {
                first[i] = static_cast<uint32_t>(h);
                second[i] = static_cast<uint32_t>(w);
            } else {
                first[i] =
                    images * p.x_image + static_cast<uint32_t>(h - first_row) * p.x_row + static_cast<uint32_t>(w) * p.x_column;
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

        go_to_step(p, first_step, mine.chunk);
    }

    // Sets chunk and tap to those of a step, for a thread that loads chunk `thread_chunk` of each step.
    HIPCONV_INLINE void go_to_step(const ConvGemmParams& p, int step, int thread_chunk) {
        int number;  // of the tap
        if (p.taps_inside) {
            const int channel_blocks = step / p.taps;
            number = step - channel_blocks * p.taps;
            chunk = channel_blocks * kTileChunks + thread_chunk;
        } else {
            const int of_all = step * kTileChunks + thread_chunk;
            number = of_all / p.chunks;
            chunk = of_all - number * p.chunks;
        }
        row = number / p.conv.kernel_width;
        column = number - row * p.conv.kernel_width;
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

    // The bits of the tap, or, beyond the last tap, a bit that no pixel has.
    HIPCONV_INLINE uint32_t bits(const ConvGemmParams& p) const {
        return row < p.conv.kernel_height ? 1u << row | 0x10000u << column : 0x80000000u;
    }

    // The offset of chunk i's first channel, or some offset that may be read where the tap is outside the image.
    HIPCONV_INLINE uint32_t offset(int i, uint32_t bits, uint32_t chunk_bytes) const {
        return (second[i] & bits) == bits ? first[i] + tap + static_cast<uint32_t>(chunk) * chunk_bytes : 0;
    }

    // The vectors or single elements of x that a thread has loaded and not yet stored to LDS.
    static constexpr int kLoads = kForm == XForm::vectors ? 1 : kElements;
    using Load = typename std::conditional<kForm == XForm::vectors, Words4, uint32_t>::type;
    struct Loaded {
        Load values[kCount][kLoads];
        uint32_t inside;  // the bits of the tap; in form `anything`, one for each pixel
        int channels;     // that are left from the chunk's first on
    };

    HIPCONV_INLINE void copy(const ConvGemmParams& p, Words4* tile) const {
        const uint32_t needed = bits(p), of_step = tap + static_cast<uint32_t>(chunk) * 16;
#pragma unroll
        for (int i = 0; i < kCount; ++i)
            copy_later(&tile[place + i * kRowsApart * kTileChunks], base + (first[i] + of_step),
                       (second[i] & needed) != needed);
    }

    HIPCONV_INLINE void load(const ConvGemmParams& p, Loaded& v) const {
        using Bits = typename WordsOf<sizeof(T)>::type;
        v.channels = p.group_channels - chunk * kElements;
        if constexpr (kMapped) return load_anything(p, v);
        const uint32_t needed = bits(p);
        v.inside = needed;
        if constexpr (kForm == XForm::vectors) {
#pragma unroll
            for (int i = 0; i < kCount; ++i) v.values[i][0] = *reinterpret_cast<const Words4*>(base + offset(i, needed, 16));
        } else {
            uint32_t offsets[kCount];
#pragma unroll
            for (int i = 0; i < kCount; ++i) offsets[i] = offset(i, needed, p.x_chunk);
#pragma unroll
            for (int e = 0; e < kElements; ++e) {
                // No chunk has element e, and NVIDIA skips its loads. AMD's compiler would make a select for each load of this
                // branch.
                const bool is_of_none = kCopiesPastRegisters && e >= p.group_channels;
                const uint32_t next =
                    e + 1 < v.channels ? p.x_channel : 0;  // beyond the last channel, the last one is read again
#pragma unroll
                for (int i = 0; i < kCount; ++i) {
                    v.values[i][e] = is_of_none ? 0 : *reinterpret_cast<const Bits*>(base + offsets[i]);
                    offsets[i] += next;
                }
            }
        }
    }

    // Loads the taps of x padded in any way, with 64-bit offsets.
    HIPCONV_INLINE void load_anything(const ConvGemmParams& p, Loaded& v) const {
        using Bits = typename WordsOf<sizeof(T)>::type;
        const Conv2dParams& c = p.conv;
        v.inside = 0;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const int64_t down = static_cast<int32_t>(first[i]) + static_cast<int64_t>(row) * c.dilation_h;
            const int64_t across = static_cast<int32_t>(second[i]) + static_cast<int64_t>(column) * c.dilation_w;
            const int64_t h = padded_index(down, c.in_height, c.padding_mode);
            const int64_t w = padded_index(across, c.in_width, c.padding_mode);
            const bool is_inside = row < c.kernel_height && h >= 0 && w >= 0;
            v.inside |= static_cast<uint32_t>(is_inside) << i;
            int64_t at = is_inside ? offset_in(c.x, 0, static_cast<int64_t>(chunk) * kElements, h, w) : 0;
#pragma unroll
            for (int e = 0; e < kElements; ++e) {
                v.values[i][e] = *reinterpret_cast<const Bits*>(base + at * static_cast<int64_t>(sizeof(T)));
                if (e + 1 < v.channels) at += c.x.channel_stride;
            }
        }
    }

    // Taps outside the image, and channels beyond the last, become zeros here. Doing this right after the load would wait for
    // the load.
    HIPCONV_INLINE void store(Words4* tile, const Loaded& v) const {
        constexpr int kInWord = 4 / static_cast<int>(sizeof(T));
        uint32_t there[4];  // masks of the channels that exist
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const int channels = v.channels - n * kInWord;
            there[n] = kForm == XForm::vectors || channels >= kInWord ? 0xffffffffu : channels == 1 ? 0xffffu : 0;
        }
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const bool is_inside = kMapped ? v.inside >> i & 1 : (second[i] & v.inside) == v.inside;
            const uint32_t keep = is_inside ? 0xffffffffu : 0;
            Words4 chunk{};
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                uint32_t w;
                if constexpr (kForm == XForm::vectors)
                    w = word(v.values[i][0], n);
                else
                    w = v.values[i][n * kInWord] | (kInWord == 2 ? v.values[i][n * kInWord + kInWord - 1] << 16 : 0);
                set_word(chunk, n, w & there[n] & keep);
            }
            if constexpr (kRoundsOnStore<T>) chunk = rounded_to_tf32(chunk);
            tile[place + i * kRowsApart * kTileChunks] = chunk;
        }
    }
};

}  // namespace hipconv
