// A block loads x so for 3x3 taps of stride 1: a tile's pixels are a rectangle of an image, and LDS holds the patch of x that
// they see, the rectangle with its halo, once for all nine taps, for a step's channels at a time. x is then read 1.3 to 1.4
// times instead of nine times, in either layout, and gathering it across channels on the way costs little.
#pragma once

#include "../common/epilogue.h"
#include "../gemm/gemm.h"
#include "device/vec.h"

namespace hipconv {

template <typename T, int kTileM, int kThreads>
struct PatchLoader {
    static constexpr int kElements = 16 / static_cast<int>(sizeof(T));
    static constexpr int kCount = patch_rows(kTileM) * kTileChunks;
    // The next patch is loaded in parts, one during each tap but the last: the patch must be complete after that.
    static constexpr int kParts = kPatchTaps * kPatchTaps - 1;
    static constexpr int kOfPart = (kCount + kParts - 1) / kParts, kRounds = (kOfPart + kThreads - 1) / kThreads;

    const char* base;  // of the group's channels in the image
    int h, w;          // the patch's first row and column of x
    int thread;

    HIPCONV_INLINE PatchLoader(const ConvGemmParams& p, int thread, int group, int image, int first_row, int first_column)
        : h(first_row - p.conv.pad_top), w(first_column - p.conv.pad_left), thread(thread) {
        const Image& x = p.conv.x;
        base = global_pointer<const char>(x.data) +
               offset_in(x, image, static_cast<int64_t>(group) * p.group_channels, 0, 0) * static_cast<int64_t>(sizeof(T));
    }

    // A chunk that a thread loads in a round: its place in LDS, or a negative one for no chunk, and its source.
    struct Chunk {
        int place;
        uint32_t offset;
        bool inside;
    };

    HIPCONV_INLINE Chunk chunk(const ConvGemmParams& p, int part, int round, int channel_block) const {
        const int of_part = round * kThreads + thread, number = part * kOfPart + of_part;
        if (of_part >= kOfPart || number >= kCount) return {-1, 0, false};
        constexpr int kRows = patch_rows(kTileM);
        const int row = p.lanes_along_pixels ? number % kRows : number / kTileChunks;
        const int chunk = p.lanes_along_pixels ? number / kRows : number % kTileChunks;
        const int y = h + row / kPatchPitch, x = w + row % kPatchPitch;
        const bool inside = y >= 0 && y < p.conv.in_height && x >= 0 && x < p.conv.in_width;
        const uint32_t offset = static_cast<uint32_t>(y) * p.x_row + static_cast<uint32_t>(x) * p.x_column +
                                static_cast<uint32_t>(channel_block * kTileChunks + chunk) * p.x_chunk;
        return {swizzled_chunk(row, chunk), inside ? offset : 0, inside};
    }

    HIPCONV_INLINE void copy(const ConvGemmParams& p, int part, int channel_block, Words4* patch) const {
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const Chunk c = chunk(p, part, round, channel_block);
            if (c.place >= 0) copy_later(&patch[c.place], base + c.offset, !c.inside);
        }
    }

    struct Loaded {
        uint32_t bits[kRounds][kElements];
        int place[kRounds];
        bool inside[kRounds];
    };

    HIPCONV_INLINE void load(const ConvGemmParams& p, int part, int channel_block, Loaded& v) const {
        using Bits = typename WordsOf<sizeof(T)>::type;
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const Chunk c = chunk(p, part, round, channel_block);
            v.place[round] = c.place;
            v.inside[round] = c.inside;
#pragma unroll
            for (int e = 0; e < kElements; ++e)
                v.bits[round][e] = *reinterpret_cast<const Bits*>(base + (c.offset + e * p.x_channel));
        }
    }

    HIPCONV_INLINE void store(Words4* patch, const Loaded& v) const {
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            Words4 words{};
#pragma unroll
            for (int n = 0; n < 4; ++n)
                set_word(words, n, v.inside[round] ? v.bits[round][2 * n] | v.bits[round][2 * n + 1] << 16 : 0);
            if (v.place[round] >= 0) patch[v.place[round]] = words;
        }
    }

    // Loads the whole first patch.
    HIPCONV_INLINE void fill(const ConvGemmParams& p, Words4* patch, Loaded& v) const {
#pragma unroll 1
        for (int part = 0; part < kParts; ++part) {
            if (p.by_vectors) {
                copy(p, part, 0, patch);
            } else {
                load(p, part, 0, v);
                store(patch, v);
            }
        }
    }
};

}  // namespace hipconv
