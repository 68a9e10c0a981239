// Clusters of sm_90: up to eight blocks of neighbouring numbers that run at the same time and reach each other's LDS.
#pragma once

#include "matrix/tma.h"

namespace hipconv {

constexpr int kMostBlocksOfACluster = 8;

// True for one lane of a wave that comes here as a whole. The compiler knows then that it is one, which issues TMA copies
// without a loop over lanes.
HIPCONV_INLINE bool elect_lane(int lane) {
#if defined(HIPCONV_HAS_WARPGROUPS)
    (void)lane;
    int elected;
    asm volatile(
        "{\n"
        ".reg .pred is_elected;\n"
        "elect.sync _|is_elected, 0xffffffff;\n"
        "selp.b32 %0, 1, 0, is_elected;\n"
        "}"
        : "=r"(elected));
    return elected != 0;
#else
    return lane == 0;
#endif
}

// All threads of the cluster that have not ended come to this, in halves: a thread that has arrived goes on, and waits later.
// (simt comes to it as a whole there.) Barriers in LDS are seen behind it, by fence_barrier_init(). Nothing else that was
// written before need be: to have all of it seen, a thread would wait for the card's memory.
#if defined(HIPCONV_HOST)
inline void arrive_at_cluster() {}
inline void wait_for_cluster(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    simt::Block::current()->cluster_barrier({"sync_cluster", file, line});
}
inline void sync_cluster(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { wait_for_cluster(file, line); }
#else
HIPCONV_INLINE void arrive_at_cluster() {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
HIPCONV_INLINE void wait_for_cluster() {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
HIPCONV_INLINE void sync_cluster() {
    arrive_at_cluster();
    wait_for_cluster();
}
#endif

// Copies LDS of this block, which it has written before fence_async_proxy(), to the place of block `rank` of the cluster that
// is `to` in this one. The barrier of that block which is `barrier` in this one counts the bytes. No block ends before the
// others have what it has sent them.
HIPCONV_INLINE void copy_to_block(void* to, const void* from, int bytes, Barrier* barrier, int rank) {
#if defined(HIPCONV_HAS_WARPGROUPS)
    uint32_t its_place, its_barrier;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(its_place) : "r"(lds_address(to)), "r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(its_barrier) : "r"(lds_address(barrier)), "r"(rank));
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(its_place),
        "r"(lds_address(from)), "r"(bytes), "r"(its_barrier)
        : "memory");
#elif defined(HIPCONV_HOST)
    std::memcpy(simt::Block::current()->in_block(to, rank), from, static_cast<size_t>(bytes));
    Barrier* const its = static_cast<Barrier*>(simt::Block::current()->in_block(barrier, rank));
    its->bytes -= bytes;
    its->settle();
#else
    (void)to, (void)from, (void)bytes, (void)barrier, (void)rank;
#endif
}

// Barriers of a block of the cluster. Arriving at them orders nothing that this thread has written: a fence would wait for all
// memory of the card.
struct BarriersOfBlock {
    Barriers places;

    HIPCONV_INLINE BarriersOfBlock at(int number) const { return {places.at(number)}; }
};

// The same of this block, whose LDS has its addresses in the cluster too.
HIPCONV_INLINE BarriersOfBlock barriers_of_this_block(Barrier* first) {
#if defined(HIPCONV_HOST)
    return {{first}};
#else
    return {{lds_address(first)}};
#endif
}

// Those of block `rank`, at the places where `first` and those behind it are in this block's.
HIPCONV_INLINE BarriersOfBlock barriers_of_block(Barrier* first, int rank) {
#if defined(HIPCONV_HOST)
    return {{static_cast<Barrier*>(simt::Block::current()->in_block(first, rank))}};
#else
    BarriersOfBlock barriers{};
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(barriers.places.first) : "r"(lds_address(first)), "r"(rank));
#else
    (void)first, (void)rank;
#endif
    return barriers;
#endif
}

HIPCONV_INLINE void arrive(BarriersOfBlock barrier) {
#if defined(HIPCONV_HOST)
    arrive(barrier.places);
#elif defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier.places.first) : "memory");
#else
    (void)barrier;
#endif
}

// ---- multicast: both blocks of a cluster of two get a box, at the same place of LDS, each with its own barrier there ------

#if defined(HIPCONV_HOST)
template <typename Load>
void simt_load_to_both(Words4* to, Barrier* barrier, const Load& load) {
    for (int rank = 0; rank < 2; ++rank)
        load(static_cast<Words4*>(simt::Block::current()->in_block(to, rank)),
             static_cast<Barrier*>(simt::Block::current()->in_block(barrier, rank)));
}
#endif

// tma_load_box for both.
HIPCONV_INLINE void tma_load_box_to_both(Words4* to, const TensorMap& map, Barrier* barrier, const int (&at)[3]) {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%3, %4, %5}], [%2], %6;" ::"r"(lds_address(to)),
        "l"(&map), "r"(lds_address(barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "h"(static_cast<uint16_t>(3))
        : "memory");
#elif defined(HIPCONV_HOST)
    simt_load_to_both(to, barrier, [&](Words4* its, Barrier* its_barrier) { tma_load_box(its, map, its_barrier, at); });
#else
    (void)to, (void)map, (void)barrier, (void)at;
#endif
}

// tma_load_im2col for both.
HIPCONV_INLINE void tma_load_im2col_to_both(Words4* to, const TensorMap& map, Barrier* barrier, const int (&at)[4], int row,
                                            int column) {
#if defined(HIPCONV_HAS_WARPGROUPS)
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%3, %4, %5, %6}], [%2], {%7, %8}, %9;" ::"r"(lds_address(to)),
        "l"(&map), "r"(lds_address(barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "h"(static_cast<short>(column)),
        "h"(static_cast<short>(row)), "h"(static_cast<uint16_t>(3))
        : "memory");
#elif defined(HIPCONV_HOST)
    simt_load_to_both(to, barrier,
                      [&](Words4* its, Barrier* its_barrier) { tma_load_im2col(its, map, its_barrier, at, row, column); });
#else
    (void)to, (void)map, (void)barrier, (void)at, (void)row, (void)column;
#endif
}

}  // namespace hipconv
