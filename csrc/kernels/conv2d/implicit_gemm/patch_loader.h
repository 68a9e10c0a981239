// A block loads x so for 3x3 taps of stride 1: a tile's pixels are a rectangle of an image, and LDS holds the patch of x that
// they see, the rectangle with its halo, once for all nine taps, for a step's channels at a time. x is then read 1.3 to 1.4
// times instead of nine times, in either layout, and gathering it across channels on the way costs little.
#pragma once

#include "../common/epilogue.h"
#include "../gemm/gemm.h"
#include "device/vec.h"

namespace hipconv {

template <typename T, int kTileM, int kThreads, bool kByVectors>
struct PatchLoader {
    static constexpr int kElements = 16 / static_cast<int>(sizeof(T)), kTaps = kPatchTaps * kPatchTaps;
    static constexpr int kRows = patch_rows(kTileM), kCount = kRows * kTileChunks;
    // A thread loads one chunk of channels of some pixels. By vectors, lanes lie along a pixel's chunks; else along pixels.
    static constexpr int kRowsApart = kByVectors ? kThreads / kTileChunks : kThreads;
    static constexpr int kRounds = (kRows + kRowsApart - 1) / kRowsApart;  // of rows, for a chunk of each of their pixels
    // The next patch is loaded in parts, one during each tap but the last: by vectors some rounds, else all of a chunk.
    static constexpr int kOfPart = kByVectors ? (kRounds + kTaps - 2) / (kTaps - 1) : kRounds;
    static constexpr int kParts = kByVectors ? (kRounds + kOfPart - 1) / kOfPart : kTileChunks;
    static_assert(kRowsApart % kTileChunks == 0, "all of a thread's rows have one order of chunks");
    static_assert(kRounds * kRowsApart <= patch_offsets(kTileM), "the table has all rows");

    const char* base;         // of the group's channels in the image
    const uint32_t* offsets;  // in LDS: where the pixel of each row of the patch lies in x, or kOutside
    int first_row, chunk;     // the thread's
    static constexpr uint32_t kOutside = 0xffffffffu;

    // The table is there behind a barrier.
    HIPCONV_INLINE PatchLoader(const ConvGemmParams& p, uint32_t* table, int thread, int group, int image, int out_row,
                               int out_column)
        : offsets(table) {
        const Image& x = p.conv.x;
        base = global_pointer<const char>(x.data) +
               offset_in(x, image, static_cast<int64_t>(group) * p.group_channels, 0, 0) * static_cast<int64_t>(sizeof(T));
        first_row = kByVectors ? thread / kTileChunks : thread;
        chunk = kByVectors ? thread % kTileChunks : 0;
#pragma unroll 1
        for (int row = thread; row < patch_offsets(kTileM); row += kThreads) {
            const int h = out_row - p.conv.pad_top + row / kPatchPitch, w = out_column - p.conv.pad_left + row % kPatchPitch;
            const bool inside = row < kRows && h >= 0 && h < p.conv.in_height && w >= 0 && w < p.conv.in_width;
            table[row] = inside ? static_cast<uint32_t>(h) * p.x_row + static_cast<uint32_t>(w) * p.x_column : kOutside;
        }
    }

    HIPCONV_INLINE const char* channels(const ConvGemmParams& p, int of_block, int channel_block) const {
        return base + static_cast<uint32_t>(channel_block * kTileChunks + of_block) * p.x_chunk;
    }

    HIPCONV_INLINE void copy(const ConvGemmParams& p, int part, int channel_block, Words4* patch) const {
        const char* const from = channels(p, chunk, channel_block);
        const int first = first_row + part * (kOfPart * kRowsApart);
        Words4* const to = patch + swizzled_chunk(first, chunk);
        uint32_t at[kOfPart];
#pragma unroll
        for (int i = 0; i < kOfPart; ++i) at[i] = offsets[first + i * kRowsApart];
#pragma unroll
        for (int i = 0; i < kOfPart; ++i)
            if (first + i * kRowsApart < kRows) copy_later(&to[i * kRowsApart * kTileChunks], from + at[i], at[i] == kOutside);
    }

    using Bits = typename WordsOf<sizeof(T)>::type;
    struct Loaded {
        Bits bits[kRounds][kElements];
    };

    HIPCONV_INLINE void load(const ConvGemmParams& p, int part, int channel_block, Loaded& v) const {
        const char* const from = channels(p, part, channel_block);
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const uint32_t at = offsets[first_row + round * kRowsApart], safe = at == kOutside ? 0 : at;
#pragma unroll
            for (int e = 0; e < kElements; ++e)
                v.bits[round][e] = *reinterpret_cast<const Bits*>(from + (safe + e * p.x_channel));
        }
    }

    HIPCONV_INLINE void store(int part, Words4* patch, const Loaded& v) const {
        Words4* const to = patch + swizzled_chunk(first_row, part);
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const int row = first_row + round * kRowsApart;
            const bool inside = offsets[row] != kOutside;
            Words4 words{};
#pragma unroll
            for (int n = 0; n < 4; ++n)
                set_word(words, n, inside ? v.bits[round][2 * n] | static_cast<uint32_t>(v.bits[round][2 * n + 1]) << 16 : 0);
            if (row < kRows) to[round * kRowsApart * kTileChunks] = words;
        }
    }

    // Loads the whole first patch.
    HIPCONV_INLINE void fill(const ConvGemmParams& p, Words4* patch, Loaded& v) const {
#pragma unroll 1
        for (int part = 0; part < kParts; ++part) {
            if constexpr (kByVectors) {
                copy(p, part, 0, patch);
            } else {
                load(p, part, 0, v);
                store(part, patch, v);
            }
        }
    }
};

}  // namespace hipconv
