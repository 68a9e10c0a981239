// The parts of a split sum, added in their order by the wave that comes last of those that make them: no kernel behind the GEMM.
//
// Each wave leaves its sums in the workspace, and then a flag. The one that finds the flags of all parts adds them up, and takes
// the flags away. The workspace is not cleared before: a flag is 64 bits that a process draws anew, which nothing in memory has by
// chance. Where several waves find all flags, they add up the same and write the same.
#pragma once

#include "../gemm/epilogue.h"
#include "matrix/warpgroup_mma.h"

namespace hipconv {

struct SplitK {
    int32_t parts;    // 1: nothing is split
    float* sums;      // (tiles, waves, parts, words of a thread, lanes), in words of 16 bytes
    uint64_t* flags;  // (tiles, waves, parts)
    uint64_t flag;
};

// Bytes, of tiles whose waves are a warpgroup's or several's.
constexpr int64_t split_k_sums_bytes(int64_t tiles, int parts, int tile_m, int tile_n) {
    return tiles * parts * tile_m * tile_n * 4;
}
constexpr int64_t split_k_flags_bytes(int64_t tiles, int parts, int waves) { return tiles * parts * waves * 8; }

// What NVIDIA's compiler is to keep as a float: as the integer that it becomes behind this, it would be moved between each
// product and the next.
HIPCONV_INLINE float as_float(float v) {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("" : "+f"(v));
#endif
    return v;
}

// Whether this wave's sums are now those of all parts, and it is to store them.
template <int kTileN, int kBlocks>
HIPCONV_INLINE bool reduce_split_k(const SplitK& p, int tile, int part, int waves, int thread,
                                    WarpgroupSums<kTileN> (&sums)[kBlocks]) {
#if defined(HIPCONV_HAS_WARPGROUPS) || defined(HIPCONV_HOST)
    constexpr int kOfBlock = kTileN / 8, kAtATime = kBlocks * kOfBlock > 16 ? 4 : 8;  // words of a thread
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
    // All lanes' sums are seen before the flag; and of two waves, one at least sees the other's flag.
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
        const auto load = [&](Words4 (&words)[kAtATime], int m) {
#pragma unroll
            for (int n = 0; n < kAtATime; ++n) words[n] = first[(m * (kBlocks * kOfBlock) + i + n) * 32];
        };
        const auto add = [&](const Words4 (&words)[kAtATime]) {
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
        for (; m + 1 < p.parts; m += 2) {  // two under way at once
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
