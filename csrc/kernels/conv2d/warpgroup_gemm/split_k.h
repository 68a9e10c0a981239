// Split-K without a second kernel: the wave that finishes last of those that share an output tile adds up their parts, in
// order.
//
// Each wave writes its partial sums to the workspace, and then sets a flag. The wave that finds the flags of all parts set adds
// the parts up and clears the flags. The workspace is not cleared beforehand: the flag is 64 bits that each process draws anew,
// so that nothing in memory equals it by chance. Where several waves find all flags set, they add up and write the same.
#pragma once

#include "../gemm/epilogue.h"
#include "matrix/warpgroup_mma.h"

namespace hipconv {

struct SplitK {
    int32_t parts;  // 1: not split
    SmallDivisor divide_by_parts;
    bool by_clusters;        // the parts of a tile are blocks of a cluster (cluster_split_k.h); else what follows is used
    int32_t first_received;  // where a block of a cluster has what it gets: floats from the begin of LDS
    float* sums;             // (tiles, waves, parts, words of a thread, lanes) of words of 16 bytes
    uint64_t* flags;         // (tiles, waves, parts)
    uint64_t flag;
};

// The bytes of all partial sums, and of all flags.
constexpr int64_t split_k_sums_bytes(int64_t tiles, int parts, int tile_m, int tile_n) {
    return tiles * parts * tile_m * tile_n * 4;
}
constexpr int64_t split_k_flags_bytes(int64_t tiles, int parts, int waves) { return tiles * parts * waves * 8; }

// Has NVIDIA's compiler keep a value as a float. Kept as the integer that it becomes behind this, it would be moved between
// each product and the next.
HIPCONV_INLINE float as_float(float v) {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("" : "+f"(v));
#endif
    return v;
}

// Adds up the parts of this wave's sums if all of them are there. Returns whether they are: then this wave stores the tile.
template <typename T, int kTileN, int kBlocks>
HIPCONV_INLINE bool reduce_split_k(const SplitK& p, int tile, int part, int waves, int thread,
                                   WarpgroupSums<kTileN> (&sums)[kBlocks]) {
#if defined(HIPCONV_HAS_WARPGROUPS) || defined(HIPCONV_HOST)
    constexpr int kOfBlock = kTileN / 8;                                         // words of a thread
    constexpr int kAtATime = kBlocks * kOfBlock > 16 || sizeof(T) == 4 ? 4 : 8;  // f32's mainloops leave fewer registers
    const int wave = thread / 32, lane = thread % 32;
    const int64_t of_wave = (static_cast<int64_t>(tile) * waves + wave) * p.parts;
    Words4* const first = reinterpret_cast<Words4*>(p.sums) + of_wave * (kBlocks * kOfBlock * 32) + lane;
    Words4* const mine = first + part * (kBlocks * kOfBlock * 32);
#pragma unroll
    for (int i = 0; i < kBlocks * kOfBlock; ++i) {
        Words4 four{};
#pragma unroll
        for (int e = 0; e < 4; ++e)
            set_word(four, e, bit_cast<uint32_t>(as_float(sums[i / kOfBlock].values[i % kOfBlock * 4 + e])));
        mine[i * 32] = four;
    }
    // Other waves see all lanes' sums before they see the flag; and of two waves, at least one sees the other's flag.
    volatile uint64_t* const flags = p.flags + of_wave;
    __threadfence();
    sync_wave();
    if (lane == 0) flags[part] = p.flag;
    sync_wave();
    __threadfence();
    bool is_complete = true;
    for (int m = lane; m < p.parts; m += 32) is_complete = is_complete && flags[m] == p.flag;
    if (__ballot(!is_complete) != 0) return false;
    __threadfence();
    for (int m = lane; m < p.parts; m += 32) flags[m] = 0;
#pragma unroll
    for (int i = 0; i < kBlocks * kOfBlock; i += kAtATime) {
        Words4 total[kAtATime], next[2][kAtATime];
        const auto load = [&](Words4(&words)[kAtATime], int m) {
#pragma unroll
            for (int n = 0; n < kAtATime; ++n) words[n] = first[(m * (kBlocks * kOfBlock) + i + n) * 32];
        };
        const auto add = [&](const Words4(&words)[kAtATime]) {
#pragma unroll
            for (int n = 0; n < kAtATime; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    set_word(total[n], e,
                             bit_cast<uint32_t>(bit_cast<float>(word(total[n], e)) + bit_cast<float>(word(words[n], e))));
        };
        load(total, 0);
        int m = 1;
#pragma unroll 1
        for (; m + 1 < p.parts; m += 2) {  // two loads are under way at once
            load(next[0], m);
            load(next[1], m + 1);
            add(next[0]);
            add(next[1]);
        }
        if (m < p.parts) {
            load(next[0], m);
            add(next[0]);
        }
#pragma unroll
        for (int n = 0; n < kAtATime; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                sums[(i + n) / kOfBlock].values[(i + n) % kOfBlock * 4 + e] = as_float(bit_cast<float>(word(total[n], e)));
    }
    return true;
#else
    (void)p, (void)tile, (void)part, (void)waves, (void)thread, (void)sums;
    return false;
#endif
}

}  // namespace hipconv
