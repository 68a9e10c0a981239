// Clusters of sm_90: up to eight blocks of neighbouring numbers that run at the same time and read each other's LDS.
#pragma once

#include "matrix/tma.h"

namespace hipconv {

constexpr int kMostBlocksOfACluster = 8;

// All threads of the cluster that have not ended come to this; what each wrote to LDS before is seen by all behind it.
#if defined(HIPCONV_HOST)
inline void sync_cluster(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    simt::Block::current()->cluster_barrier({"sync_cluster", file, line});
}
#else
HIPCONV_INLINE void sync_cluster() {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile(
        "barrier.cluster.arrive.release.aligned;\n"
        "barrier.cluster.wait.acquire.aligned;" ::
            : "memory");
#endif
}
#endif

// Reads LDS of block `rank` of the cluster, at the place where `from` is in this block's.
HIPCONV_INLINE Words4 load_from_block(const Words4* from, int rank) {
    Words4 words{};
#if defined(HIPCONV_HAS_WARPGROUPS)
    uint32_t address, w[4];
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(lds_address(from)), "r"(rank));
    asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(address)
                 : "memory");
#pragma unroll
    for (int i = 0; i < 4; ++i) set_word(words, i, w[i]);
#elif defined(HIPCONV_HOST)
    words = *static_cast<const Words4*>(simt::Block::current()->in_block(from, rank));
#else
    (void)from, (void)rank;
#endif
    return words;
}

}  // namespace hipconv
