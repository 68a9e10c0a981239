// This says how a block loads x and the filters, step by step, into registers and from there to LDS.
#pragma once

#include "matrix/mma.h"
#include "params.h"

namespace hipconv {

// The tap of a chunk, and its number among the tap's chunks.
struct TapChunk {
    int frame, row, column, chunk;

    HIPCONV_INLINE TapChunk(const FrameGemmParams& p, int number) {
        frame = static_cast<int>(divide(number, p.divide_by_frame));
        const int of_frame = number - frame * p.chunks_of_frame;
        const int tap = static_cast<int>(divide(of_frame, p.divide_by_chunks));
        chunk = of_frame - tap * p.chunks;
        row = static_cast<int>(divide(tap, p.divide_by_width));
        column = tap - row * p.conv.kernel_width;
    }
};

// A chunk as LDS holds it.
template <typename T>
HIPCONV_INLINE Words4 as_multiplied(Words4 chunk) {
    if constexpr (kRoundsOnStore<T>) return rounded_to_tf32(chunk);
    return chunk;
}

// In a step, a thread loads one chunk of kCount pixels, or kCount chunks of one pixel: lanes lie along the chunks of a pixel,
// or along pixels, whichever are neighbours in memory.
template <typename T, bool kByVectors>
struct FramePixels {
    static constexpr int kCount = kGemmPixels * kTileChunks / kGemmThreads, kElements = 16 / static_cast<int>(sizeof(T));
    static constexpr int kInWord = 4 / static_cast<int>(sizeof(T));
    static constexpr int kPixelsApart = kGemmThreads / kTileChunks, kChunksApart = kGemmThreads / kGemmPixels;

    int sample, group, time;  // time: of the first tap, counted from the first frame that there is
    int top[kCount], left[kCount];
    int first_row, first_chunk;
    bool along_pixels;

    HIPCONV_INLINE FramePixels(const FrameGemmParams& p, int thread, int number, int out_frame, int in_group, int first_pixel)
        : sample(number), group(in_group), time(out_frame * p.conv.stride_t - p.conv.front) {
        along_pixels = !kByVectors && p.lanes_along_pixels;
        first_row = along_pixels ? thread % kGemmPixels : thread / kTileChunks;
        first_chunk = along_pixels ? thread / kGemmPixels : thread % kTileChunks;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            int pixel = first_pixel + row(i);
            pixel = pixel < p.frame.pixels ? pixel : p.frame.pixels - 1;  // sums beyond the last pixel are not stored
            const int y = static_cast<int>(divide(pixel, p.frame.divide_by_row));
            top[i] = y * p.conv.stride_h - p.conv.pad_top;
            left[i] = (pixel - y * p.conv.out_width) * p.conv.stride_w - p.conv.pad_left;
        }
    }

    HIPCONV_INLINE int row(int i) const { return along_pixels ? first_row : first_row + i * kPixelsApart; }
    HIPCONV_INLINE int chunk(int i) const { return along_pixels ? first_chunk + i * kChunksApart : first_chunk; }

    // The place of a tap along an axis; whether it is inside.
    static HIPCONV_INLINE bool find(int& at, int size, PaddingMode mode) {
        if (mode != PaddingMode::zeros) at = static_cast<int>(padded_index(at, size, mode));
        return static_cast<uint32_t>(at) < static_cast<uint32_t>(size);
    }

    HIPCONV_INLINE Frame<T> frame_of(const FrameGemmParams& p, const TapChunk& tap, bool exists) const {
        const int64_t at = time + static_cast<int64_t>(tap.frame) * p.conv.dilation_t;
        return frame_at<T>(p.conv, sample, exists ? frame_number(p.conv, at, p.conv.time_mode) : int64_t{-1});
    }

    HIPCONV_INLINE Words4 load_one(const FrameGemmParams& p, int i, const TapChunk& tap, const Frame<T>& frame) const {
        int y = top[i] + tap.row * p.conv.dilation_h, x = left[i] + tap.column * p.conv.dilation_w;
        const bool has_row = find(y, p.conv.in_height, p.conv.padding_mode);
        const bool has_column = find(x, p.conv.in_width, p.conv.padding_mode);
        const bool inside = has_row && has_column && frame.address != 0;
        Words4 words{};
        const int first = tap.chunk * kElements;
        if constexpr (kByVectors) {
            const int64_t offset = y * frame.row_stride + x * frame.column_stride + group * p.frame.group_channels + first;
            const uint64_t safe = reinterpret_cast<uint64_t>(p.filters);  // there is always one
            const Words4 loaded = *global_pointer<const Words4>(inside ? frame.address + offset * sizeof(T) : safe);
#pragma unroll
            for (int w = 0; w < 4; ++w) set_word(words, w, inside ? word(loaded, w) : 0);
        } else {
            const int left_over = inside ? p.frame.group_channels - first : 0;
            const int64_t at = y * frame.row_stride + x * frame.column_stride +
                               (static_cast<int64_t>(group) * p.frame.group_channels + first) * frame.channel_stride;
#pragma unroll
            for (int e = 0; e < kElements; ++e) {
                uint32_t bits = 0;
                if (e < left_over) bits = bit_cast<typename WordsOf<sizeof(T)>::type>(*frame.at(at + e * frame.channel_stride));
                set_word(words, e / kInWord, word(words, e / kInWord) | bits << (e % kInWord * 16));
            }
        }
        return words;
    }

    HIPCONV_INLINE void load(const FrameGemmParams& parameter, int step, Words4 (&chunks)[kCount]) const {
        // Parameters are loaded again, because not all of them fit the scalar registers beside the masks of lanes.
        const FrameGemmParams& p = first_parameter_again(parameter);
        if (!along_pixels) {
            const int number = step * kTileChunks + first_chunk;
            const TapChunk tap(p, number);
            const Frame<T> frame = frame_of(p, tap, number < p.all_chunks);
#pragma unroll
            for (int i = 0; i < kCount; ++i) chunks[i] = load_one(p, i, tap, frame);
            return;
        }
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const int number = step * kTileChunks + chunk(i);
            const TapChunk tap(p, number);
            chunks[i] = load_one(p, i, tap, frame_of(p, tap, number < p.all_chunks));
        }
    }

    HIPCONV_INLINE void store(Words4* tile, const Words4 (&chunks)[kCount]) const {
#pragma unroll
        for (int i = 0; i < kCount; ++i) tile[swizzled_chunk(row(i), chunk(i))] = as_multiplied<T>(chunks[i]);
    }
};

// A thread loads a chunk of kCount filters.
template <typename T, int kTileN>
struct FrameFilters {
    static constexpr int kApart = kGemmThreads / kTileChunks, kCount = kTileN / kApart;

    const char* first;
    int row, chunk, rows_left;

    HIPCONV_INLINE FrameFilters(const FrameGemmParams& p, int thread, int group, int first_filter)
        : row(thread / kTileChunks), chunk(thread % kTileChunks) {
        const int filters = p.frame.group_filters - first_filter;
        const int mine = row < filters ? row : filters - 1;  // sums beyond the last filter are not stored
        rows_left = filters - mine;
        first = global_pointer<const char>(p.filters) +
                (static_cast<int64_t>(group) * p.frame.group_filters + first_filter + mine) * p.filter_stride;
    }

    // Chunks beyond the last tap are not read; those of x are zeros there, and so are these.
    HIPCONV_INLINE void load(const FrameGemmParams& p, int step, Words4 (&chunks)[kCount]) const {
        const int number = step * kTileChunks + chunk;
        const bool exists = number < p.all_chunks;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const char* const at = i * kApart < rows_left ? first + i * kApart * p.filter_stride : first;
            const Words4 loaded = *reinterpret_cast<const Words4*>(at + (exists ? int64_t{number} * 16 : int64_t{0}));
            Words4 words{};
#pragma unroll
            for (int w = 0; w < 4; ++w) set_word(words, w, exists ? word(loaded, w) : 0);
            chunks[i] = words;
        }
    }

    HIPCONV_INLINE void store(Words4* tile, const Words4 (&chunks)[kCount]) const {
#pragma unroll
        for (int i = 0; i < kCount; ++i) tile[swizzled_chunk(row + i * kApart, chunk)] = as_multiplied<T>(chunks[i]);
    }
};

}  // namespace hipconv
