// This says how a block loads the filters, step by step: where each of a thread's chunks comes from.
#pragma once

#include "../gemm/gemm.h"
#include "device/vec.h"
#include "thread_chunks.h"

namespace hipconv {

template <typename T, int kTileN, int kThreads>
struct FilterLoader {
    static constexpr int kRowsApart = kThreads / kTileChunks, kCount = kTileN / kRowsApart;

    const char* base;  // the same for all lanes; where copies go past the registers, the thread's own
    uint32_t offset;
    uint32_t rows_apart;  // bytes
    int rows_left;        // filters from this thread's first one on
    int place;            // of the first chunk, in LDS
    int steps_left;       // until `filter_wrap`

    HIPCONV_INLINE FilterLoader(const ConvGemmParams& p, int thread, int group, int first_filter, int first_step) {
        const ChunkOfThread mine = chunk_of_thread<kThreads>(thread, false);
        place = swizzled_chunk(mine.first_row, mine.chunk);
        const int filters = p.group_filters - first_filter;
        const int row = mine.first_row < filters ? mine.first_row : filters - 1;  // sums beyond the last filter are not stored
        rows_left = filters - row;
        rows_apart = static_cast<uint32_t>(p.filter_stride) * kRowsApart;
        base = global_pointer<const char>(p.filters) +
               (static_cast<int64_t>(group) * p.group_filters + first_filter) * p.filter_stride;
        const int channel_blocks = first_step / p.taps;
        offset = static_cast<uint32_t>(row) * static_cast<uint32_t>(p.filter_stride) + mine.chunk * 16 +
                 static_cast<uint32_t>(first_step) * p.filter_step + static_cast<uint32_t>(channel_blocks) * p.filter_wrap;
        steps_left = p.taps - (first_step - channel_blocks * p.taps);
        if constexpr (kCopiesPastRegisters) {
            base += offset;
            offset = 0;
        }
    }

    HIPCONV_INLINE const char* address(int i) const {
        const uint32_t at = i * kRowsApart < rows_left ? offset + i * rows_apart : offset;
        return base + at;
    }

    HIPCONV_INLINE void advance(const ConvGemmParams& p) {
        uint32_t step = p.filter_step;
        if (--steps_left == 0) {
            steps_left = p.taps;
            step += p.filter_wrap;
        }
        if constexpr (kCopiesPastRegisters)
            base += static_cast<int32_t>(step);  // back, where steps wrap
        else
            offset += step;
    }

    HIPCONV_INLINE void copy(Words4* tile) const {
#pragma unroll
        for (int i = 0; i < kCount; ++i)
            copy_later(&tile[place + i * kRowsApart * kTileChunks], base + i * rows_apart, i * kRowsApart >= rows_left);
    }

    HIPCONV_INLINE void load(Words4 (&chunks)[kCount]) const {
#pragma unroll
        for (int i = 0; i < kCount; ++i) chunks[i] = *reinterpret_cast<const Words4*>(address(i));
    }

    HIPCONV_INLINE void store(Words4* tile, const Words4 (&chunks)[kCount]) const {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            if constexpr (kRoundsOnStore<T>)
                tile[place + i * kRowsApart * kTileChunks] = rounded_to_tf32(chunks[i]);
            else
                tile[place + i * kRowsApart * kTileChunks] = chunks[i];
        }
    }
};

}  // namespace hipconv
