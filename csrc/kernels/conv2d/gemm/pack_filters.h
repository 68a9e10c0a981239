// Packs filters into the order in which the GEMMs read them: for each filter its taps, each of 16-byte chunks of channels.
#pragma once

#include "../common/epilogue.h"
#include "matrix/mma.h"

namespace hipconv {

struct PackParams {
    Image weight;
    void* packed;
    int64_t filter_elements;  // of a packed filter
    int32_t filters, channels, chunks, kernel_height, kernel_width;
    int32_t padding;   // chunks of zeros behind each filter
    bool taps_inside;  // all taps of the same kTileChunks chunks follow each other; else all chunks of a tap do
};

HIPCONV_INLINE int64_t pack_chunks(const PackParams& p) {
    return (static_cast<int64_t>(p.kernel_height) * p.kernel_width * p.chunks + p.padding) * p.filters;
}

// Stores chunk `number` of a row of chunks. Of split f32, each eight chunks of large parts are followed by those of small
// parts.
template <typename T>
HIPCONV_INLINE void store_chunk(Words4* row, int64_t number, Words4 words) {
    if constexpr (kIsSplit<T>) {
        const SplitWords parts = split_to_tf32(words);
        row += number / kTileChunks * (2 * kTileChunks) + number % kTileChunks;
        row[0] = parts.large;
        row[kTileChunks] = parts.small;
    } else {
        row[number] = words;
    }
}

// A thread packs 16 bytes of channels of a tap. Lanes lie along taps, so that they read neighbouring addresses of KCRS. Zeros
// fill up the last chunk, and threads of their own fill the padding.
template <typename T>
HIPCONV_INLINE void pack_chunk(const PackParams& p, int64_t i) {
    constexpr int kElements = 16 / static_cast<int>(sizeof(T));
    const int32_t taps = p.kernel_height * p.kernel_width;
    const int64_t of_filter = static_cast<int64_t>(taps) * p.chunks + p.padding;
    const bool fits = (i | of_filter) >> 32 == 0;  // then 32-bit division will do
    const int64_t filter = fits ? static_cast<uint32_t>(i) / static_cast<uint32_t>(of_filter) : i / of_filter;
    const int32_t number = static_cast<int32_t>(i - filter * of_filter), chunk = number / taps, tap = number - chunk * taps;
    T* const packed = global_pointer<T>(p.packed);
    Words4* const row = reinterpret_cast<Words4*>(packed + filter * p.filter_elements);
    if (chunk >= p.chunks) {
        row[number] = Words4{};
        return;
    }
    const int32_t r = tap / p.kernel_width;
    const T* const first = global_pointer<const T>(p.weight.data) +
                           offset_in(p.weight, filter, static_cast<int64_t>(chunk) * kElements, r, tap - r * p.kernel_width);
    Words4 words{};
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
        if (chunk * kElements + e >= p.channels) continue;
        const uint32_t bits = bit_cast<typename WordsOf<sizeof(T)>::type>(first[e * p.weight.channel_stride]);
        constexpr int kInWord = 4 / static_cast<int>(sizeof(T));
        set_word(words, e / kInWord, word(words, e / kInWord) | bits << (e % kInWord * 16));
    }
    const int32_t step_chunk = chunk % kTileChunks, channel_block = chunk / kTileChunks;
    store_chunk<T>(row, p.taps_inside ? (channel_block * taps + tap) * kTileChunks + step_chunk : tap * p.chunks + chunk,
                   words);
}

}  // namespace hipconv
