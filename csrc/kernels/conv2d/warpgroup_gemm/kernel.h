// The kernel of the warpgroup GEMM (params.h). A block is persistent: it makes tile after tile. Its producers are ahead of its
// consumers by as much as the rings hold, across tiles too, so that the products pause only while sums leave the registers.
#pragma once

#include <type_traits>

#include "cluster_split_k.h"
#include "consumer.h"
#include "epilogue.h"
#include "gather.h"
#include "launch/check.h"
#include "producer.h"

namespace hipconv {

// The roles of a block's waves: the first ones are the consumers, the next one loads filters, and those behind it load x. The
// consumers' warpgroups share a tile's pixels, or make tiles in turns: then the products of one go on while the other stores.
template <typename T, int kTileM, int kTileN, bool kByTma, bool kInTurns>
struct WarpgroupRoles {
    static constexpr WarpgroupShape kShape = warpgroup_shape(kTileM, kTileN, kByTma, kParts<T>);
    static constexpr int kConsumerWaves = kShape.consumers() / 32, kWarpgroups = kShape.consumers() / kWarpgroupThreads;
    static constexpr int kTurns = kInTurns ? kWarpgroups : 1, kWavesOfTile = kConsumerWaves / kTurns;
    static constexpr int kBlocks = kTileM / kWarpgroupPixels * kTurns / kWarpgroups;  // blocks of 64 pixels of a warpgroup
    static constexpr int kLoaders = kByTma ? 1 : kShape.producers - 32;               // threads that fill x's ring
    static constexpr int kFirstLoader = kShape.consumers() + 32;
    using Cluster = ClusterSplit<kTileM * kTileN>;
    static constexpr int kProducerRegisters = kShape.producer_registers, kConsumerRegisters = kShape.consumer_registers;
};

// Threads fetch the tensor maps and initialise the barriers of a stage each, before the others use them.
template <typename Roles, bool kByTma, BoxesOf kBoxes>
HIPCONV_INLINE void prologue(const WarpgroupGemmParams& p, const Ring& x, const Ring& filters, int thread) {
    using Cluster = typename Roles::Cluster;
    if (thread == kMaxStages) {
        if constexpr (kByTma) prefetch_tensor_map(p.x);
        prefetch_tensor_map(p.filters);
        if (kBoxes != BoxesOf::none && !p.boxes_by_lanes) prefetch_tensor_map(p.out);
        if (p.split.by_clusters) Cluster(p.split).init_barriers(x.full + WarpgroupShape::kOfCluster, Roles::kConsumerWaves);
        for (int i = 0; i < Roles::kWarpgroups; ++i) {
            init_barrier(x.full + WarpgroupShape::kOfBoxes + i, kWarpgroupThreads / 32);
            if (Roles::kTurns > 1) init_barrier(x.full + WarpgroupShape::kOfTurns + i, kWarpgroupThreads / 32);
        }
        fence_barrier_init();
    }
    if (thread >= kMaxStages) return;
    const bool in_common = x.full == filters.full;
    init_barrier(&x.full[thread], Roles::kLoaders + in_common);
    const int of_filters = p.shared != Shared::nothing ? 2 * Roles::kWavesOfTile : Roles::kWavesOfTile;
    init_barrier(&x.empty[thread], in_common ? of_filters : Roles::kWavesOfTile);
    if (!in_common) {
        init_barrier(&filters.full[thread], 1);
        init_barrier(&filters.empty[thread], of_filters);
    }
    fence_barrier_init();
}

// The producer waves: a thread of each loads filters or x, or one loads filters and all threads of the others gather x.
template <typename T, typename Roles, int kTileM, int kTileN, bool kByTma, bool kPlanes>
HIPCONV_INLINE void produce(const WarpgroupGemmParams& p, const Ring& x, const Ring& filters, int wave, int lane, int thread) {
    if constexpr (Roles::kProducerRegisters != 0) dealloc_registers<Roles::kProducerRegisters>();
    if constexpr (kByTma) {  // two waves load filters, two x
        if (!elect_lane(lane)) return;
        const int producer = wave - Roles::kConsumerWaves;
        const Turns turns{producer % 2 == 0, true};
        if (producer < 2)
            produce_filters<T, kTileM, kTileN>(p, filters, turns);
        else
            produce_x<T, kTileM, kPlanes>(p, x, turns);
    } else if (wave == Roles::kConsumerWaves) {
        if (elect_lane(lane)) produce_filters<T, kTileM, kTileN>(p, filters, {true, false});
    } else {
        wait_for_kernel_before();
        gather_x<kTileM, Roles::kLoaders>(p, thread - Roles::kFirstLoader, x);
    }
}

// The turns of a block's warpgroups at the products. One begins when the other has seen all its stages filled: a phase only
// tells even from odd, so that a stage that is to be filled twice before would seem to be full.
struct TurnsOfWarpgroups {
    Barrier *mine, *next;
    int phase;  // of `mine`; the first warpgroup does not wait for its first turn

    HIPCONV_INLINE TurnsOfWarpgroups(Barrier* barriers, int warpgroup)
        : mine(barriers + warpgroup), next(barriers + (warpgroup ^ 1)), phase(warpgroup ^ 1) {}
    HIPCONV_INLINE void wait() {
        wait_for_phase(mine, phase);
        phase ^= 1;
    }
    HIPCONV_INLINE void pass_on(int lane) const {
        if (lane == 0) arrive(next);
    }
};

// Where out is stored from boxes, sums are not split.
template <typename T, int kTileM, int kTileN, bool kByTma, bool kPlanes, BoxesOf kBoxes, bool kInTurns>
__global__ void HIPCONV_LAUNCH_BOUNDS((warpgroup_shape(kTileM, kTileN, kByTma, kParts<T>).threads()),
                                      (warpgroup_shape(kTileM, kTileN, kByTma, kParts<T>).blocks_per_unit))
    conv2d_warpgroup_gemm_kernel(HIPCONV_IN_PLACE const WarpgroupGemmParams p) {
    using Roles = WarpgroupRoles<T, kTileM, kTileN, kByTma, kInTurns>;
    HIPCONV_LARGE_SHARED(Words4, lds, kHasWarpgroups ? Roles::kShape.shared_bytes(false) / 16 : 1);
    if constexpr (kHasWarpgroups) {
        const int thread = threadIdx.x, wave = __shfl(thread / 32, 0), lane = thread % 32;
        constexpr WarpgroupShape kShape = Roles::kShape;
        Barrier* const barriers = reinterpret_cast<Barrier*>(lds + kShape.epilogue_bytes() / 16);
        Words4* const rings = lds + kShape.rings_offset() / 16;
        const int columns = !kPlanes && p.patches ? p.patch_columns : 0;
        using Cluster = typename Roles::Cluster;
        const int x_stages = columns ? 2 : p.stages;
        const int x_bytes = columns == kNarrow ? kShape.patch_bytes(kNarrow)
                            : columns          ? kShape.patch_bytes(kWide)
                                               : kShape.run_bytes();
        const int x_chunks = x_bytes / 16;
        const Ring x{rings, x_chunks, x_stages, barriers, barriers + kMaxStages};
        // Without patches, the stages of both rings are filled and read together, and have their barriers in common.
        Barrier* const of_filters = barriers + (columns ? 2 * kMaxStages : 0);
        const Ring filters{rings + x_stages * x_chunks, kShape.filter_bytes() / 16, p.stages, of_filters,
                           of_filters + kMaxStages};
        prologue<Roles, kByTma, kBoxes>(p, x, filters, thread);
        if (p.shared != Shared::nothing)
            sync_cluster();
        else
            __syncthreads();
        if (p.split.by_clusters) arrive_at_cluster();
        let_next_kernel_begin();
        if (wave >= Roles::kConsumerWaves) {
            produce<T, Roles, kTileM, kTileN, kByTma, kPlanes>(p, x, filters, wave, lane, thread);
            if (p.split.by_clusters) Cluster::wait_for_blocks();
            return;
        }

        // The consumers: for each tile the mainloop, then the epilogue.
        wait_for_kernel_before();
        if constexpr (Roles::kConsumerRegisters != 0) alloc_registers<Roles::kConsumerRegisters>();
        constexpr int kBlocks = Roles::kBlocks;
        const int turn = kInTurns ? wave / 4 : 0;
        const int first_block_row = (kInTurns ? 0 : wave / 4) * kBlocks * p.rows_of_64;  // of this warpgroup
        RingState x_state, filter_state;
        TurnsOfWarpgroups turns(barriers + WarpgroupShape::kOfTurns, turn);
        const auto skip_tile = [&](int number) {  // of the other warpgroup
            const int skipped = k_blocks_of_tile(p, number);
            x_state.skip(skipped, x.stages);
            filter_state.skip(skipped * p.taps_per_k_block, filters.stages);
        };
        int box_phase = 0;
        int k_blocks = 0;  // of the tile
        float next_bias[kTileN / 32];
        const auto begin_tile = [&](int number) {
            const WarpgroupTile t = warpgroup_tile<kTileM>(p, number);
            k_blocks = t.end_k_block - t.first_k_block;
            load_bias(p.gemm, t.group, t.first_filter, thread_again() % 32, next_bias);
        };
        const int first_tile = static_cast<int>(blockIdx.x + turn * gridDim.x);
        const int to_next_tile = static_cast<int>(Roles::kTurns * gridDim.x);
        if (!kInTurns || first_tile < p.tiles) begin_tile(first_tile);
        if (turn > 0) skip_tile(blockIdx.x);
        for (int number = first_tile; number < p.tiles; number += to_next_tile) {
            WarpgroupSums<kTileN> sums[kBlocks];
            RowsOfOut<kBlocks> rows{};
            float bias[kTileN / 32];
#pragma unroll
            for (int i = 0; i < kTileN / 32; ++i) bias[i] = next_bias[i];
            int again = number;
            // While the last products are under way, this works out where the sums go, and what the next tile is.
            const auto meanwhile = [&] {
                if (kInTurns) turns.pass_on(thread_again() % 32);
                from_here_on(again);  // so that this is not done before, and kept in registers
                if (kBoxes == BoxesOf::none && stores_vectors<T>(p.gemm)) {
                    const WarpgroupTile t = warpgroup_tile<kTileM>(p, again);
                    rows.template find<T>(
                        p.gemm, t.group, t.first_filter,
                        [&](int first) { return WarpgroupPixels{columns_of<kPlanes>(p), t, first}; },
                        first_pixel_of_wave<kBlocks>(thread_of_tile<kInTurns>()), thread_again() % 32);
                }
                const int next = again + to_next_tile;
                if (next >= p.tiles) return;
                begin_tile(next);
                if (kInTurns) skip_tile(next - static_cast<int>(gridDim.x));
            };
            if (kInTurns) turns.wait();
            if constexpr (kPlanes && kIsTf32<T>)
                mainloop_by_registers<steps_under_way(kTileM * kTileN, kBoxes)>(
                    p, k_blocks, x, filters, x_state, thread_of_tile<kInTurns>() / kWarpgroupThreads * kBlocks, meanwhile,
                    sums);
            else
                mainloop<T, kPlanes>(p, k_blocks, x, x_state, filters, filter_state, first_block_row, lane, meanwhile, sums);
            const EpilogueLds epilogue =
                epilogue_lds<kTileN>(reinterpret_cast<float*>(lds), Roles::kConsumerWaves, thread_again() / 32);
            if constexpr (kBoxes != BoxesOf::none) {
                store_boxes<T, kBoxes, kInTurns>(p, warpgroup_tile<kTileM>(p, again), sums, bias, epilogue,
                                                 barriers + WarpgroupShape::kOfBoxes, box_phase);
                continue;
            }
            if constexpr (!kInTurns)
                if (p.split.by_clusters) {
                    // Sums from other blocks lie behind the rings, and those for them in place of these.
                    return Cluster(p.split).template store_sums<T, kPlanes>(
                        p, warpgroup_tile<kTileM>(p, again), Roles::kConsumerWaves, sums, bias, epilogue,
                        reinterpret_cast<float*>(rings), reinterpret_cast<float*>(lds) + p.split.first_received,
                        barriers + WarpgroupShape::kOfCluster, thread_again());
                }
            if (p.split.parts > 1) {
                const int part = again / p.tiles_per_part, tile = again - part * p.tiles_per_part;
                if (!reduce_split_k<T>(p.split, tile, part, Roles::kWavesOfTile, thread_of_tile<kInTurns>(), sums)) continue;
            }
            store_sums<T, kPlanes>(p, warpgroup_tile<kTileM>(p, again), rows, sums, bias, epilogue, thread_of_tile<kInTurns>());
        }
        if (kBoxes != BoxesOf::none && lane == 0) wait_for_stores();
        if (p.shared != Shared::nothing) sync_cluster();  // no block ends while another still loads into its LDS
    }
}

// ---- launches ---------------------------------------------------------------------------------------------------------

template <typename T, int kTileM, int kTileN, bool kByTma, bool kPlanes, BoxesOf kBoxes, bool kInTurns>
void launch_warpgroup_kernel(const WarpgroupGemmParams& p, int units, void* stream) {
    constexpr WarpgroupShape kShape = warpgroup_shape(kTileM, kTileN, kByTma, kParts<T>);
    const auto kernel = conv2d_warpgroup_gemm_kernel<T, kTileM, kTileN, kByTma, kPlanes, kBoxes, kInTurns>;
    // Few blocks get an SM each, by asking for all of its LDS. Blocks that begin early would else share the first free SMs.
    const int shared = launch_shared_bytes(kShape.shared_bytes(p.is_alone));
    (void)hipFuncSetAttribute(reinterpret_cast<const void*>(kernel), hipFuncAttributeMaxDynamicSharedMemorySize, shared);
    const int blocks = units * kShape.blocks_per_unit;
    const int cluster = p.split.by_clusters ? p.split.parts : blocks_that_share(p);
    const int clusters = blocks < cluster ? 1 : blocks / cluster;
    const dim3 grid(p.tiles < blocks ? p.tiles : clusters * cluster, 1, 1), block(kShape.threads(), 1, 1);
    HIPCONV_LAUNCH_CLUSTERS(cluster, (conv2d_warpgroup_gemm_kernel<T, kTileM, kTileN, kByTma, kPlanes, kBoxes, kInTurns>), grid,
                            block, shared, static_cast<hipStream_t>(stream), p);
    check_launch("conv2d");
}

template <typename T, int kTileM, int kTileN, bool kByTma, bool kPlanes, bool kInTurns = false>
void launch_warpgroup_instance(const WarpgroupGemmParams& p, int units, void* stream) {
    const auto launch = [&](auto boxes) {
        constexpr BoxesOf kBoxes = decltype(boxes)::value;
        if constexpr (has_boxes(kBoxes, kTileM, kTileN, sizeof(T), kByTma, kPlanes))
            launch_warpgroup_kernel<T, kTileM, kTileN, kByTma, kPlanes, kBoxes, kInTurns>(p, units, stream);
    };
    if (p.boxes == BoxesOf::filters) return launch(std::integral_constant<BoxesOf, BoxesOf::filters>{});
    if (p.boxes == BoxesOf::pixels) return launch(std::integral_constant<BoxesOf, BoxesOf::pixels>{});
    launch(std::integral_constant<BoxesOf, BoxesOf::none>{});
}

template <typename T, bool kByTma, bool kPlanes>
void launch_warpgroup_gemm(const WarpgroupGemmParams& p, Conv2dTile tile, int units, void* stream) {
    if constexpr (kByTma && kParts<T> == 1)
        if (has_turns(tile.tile_m))
            return launch_warpgroup_instance<T, pixels_of_turn(256), 128, kByTma, kPlanes, true>(p, units, stream);
    if constexpr (kByTma)
        if (tile.tile_m == 64) return launch_warpgroup_instance<T, 64, 64, kByTma, kPlanes>(p, units, stream);
    if (tile.tile_n == 128) return launch_warpgroup_instance<T, 128, 128, kByTma, kPlanes>(p, units, stream);
    launch_warpgroup_instance<T, 128, 64, kByTma, kPlanes>(p, units, stream);
}

}  // namespace hipconv
