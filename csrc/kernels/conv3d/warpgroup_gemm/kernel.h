// The kernel of the warpgroup GEMM (params.h), and the launch of an instance.
#pragma once

#include "consumer.h"
#include "edges.h"
#include "launch/check.h"
#include "producer.h"

namespace hipconv {

template <typename T, int kTileM, int kTileN>
__global__ void HIPCONV_LAUNCH_BOUNDS((FrameWarpgroupShape{kTileM, kTileN}.threads()), 1)
    conv3d_warpgroup_gemm_kernel(HIPCONV_IN_PLACE const FrameWarpgroupParams p) {
    using Shape = FrameWarpgroupShape;
    HIPCONV_LARGE_SHARED(Words4, lds, kHasWarpgroups ? Shape::kBytes / 16 : 1);
    if constexpr (kHasWarpgroups) {
        constexpr Shape kShape{kTileM, kTileN};
        constexpr int kConsumerWaves = kShape.consumers() / 32, kWarpgroups = kShape.consumers() / kWarpgroupThreads;
        constexpr int kBlocks = kTileM / kWarpgroupPixels / kWarpgroups;  // blocks of 64 pixels of a warpgroup
        const int thread = threadIdx.x, wave = __shfl(thread / 32, 0), lane = thread % 32;
        Barrier* const barriers = reinterpret_cast<Barrier*>(lds + kShape.barriers_offset() / 16);
        const Ring x{lds, p.patch_chunks, p.x_stages, barriers, barriers + kMaxStages};
        const Ring filters{lds + p.x_stages * p.patch_chunks, kShape.filter_bytes() / 16, p.filter_stages,
                           barriers + 2 * kMaxStages, barriers + 3 * kMaxStages};
        if (thread == 0) {
            if (p.conv.in_frames) prefetch_tensor_map(p.x);
            if (p.conv.cached) prefetch_tensor_map(p.cache);
            prefetch_tensor_map(p.filters);
            for (int i = 0; i < kMaxStages; ++i) {
                init_barrier(&x.full[i], 1);
                init_barrier(&filters.full[i], 1);
                init_barrier(&x.empty[i], kConsumerWaves);
                init_barrier(&filters.empty[i], kConsumerWaves);
            }
            fence_barrier_init();
        }
        __syncthreads();
        if (wave >= kConsumerWaves) {  // the producers
            dealloc_registers<Shape::kProducerRegisters>();
            if (wave == kConsumerWaves) {
                if (lane == 0) produce_frame_filters<kTileM, kTileN>(p, filters);
            } else if (wave == kConsumerWaves + 1) {
                if (lane == 0) produce_patches<kTileM>(p, x);
            } else {
                const int saver = wave - kConsumerWaves - 2, savers = p.first_landed ? 1 : 2;
                if (saver == savers)
                    fill_edges<kTileM>(p, x, lane);
                else
                    save_frames<T>(p.conv, p.save, int64_t{blockIdx.x} * savers + saver, int64_t{gridDim.x} * savers, lane, 32);
            }
            return;
        }
        alloc_registers<kShape.consumer_registers()>();
        int first_rows[kBlocks];  // of LDS, of a patch
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) {
            const int block = wave / 4 * kBlocks + i, down = block >> p.log2_block_columns;
            first_rows[i] = down * kBlockSide * p.pitch + (block - (down << p.log2_block_columns)) * kBlockSide;
        }
        RingState x_state, filter_state;
        for (int number = blockIdx.x; number < p.tiles; number += gridDim.x) {
            const FrameTile t = frame_tile<kTileM>(p, number);
            WarpgroupSums<kTileN> sums[kBlocks];
            float bias[kTileN / 32];
            load_bias(p.frame, t.group, t.first_filter, lane, bias);
            prefetch_residual<kTileM, kTileN>(p, t, thread_again());
            multiply_frames<T>(p, t.frame, x, x_state, filters, filter_state, first_rows, lane, sums);
            int again = number;
            from_here_on(again);  // the tile is worked out again, and not kept in registers beside the sums
            const FrameTile u = frame_tile<kTileM>(p, again);
            const auto pixels_from = [&](int first) {
                return BlockPixels{u.sample * p.frames_of_sample + u.frame, u.row, u.column, first, p.log2_block_columns};
            };
            const EpilogueLds epilogue = epilogue_lds<kTileN>(reinterpret_cast<float*>(lds + kShape.epilogue_offset() / 16),
                                                              kConsumerWaves, thread_again() / 32);
            RowsOfOut<kBlocks> rows{};
            if (stores_vectors<T>(p.frame))
                rows.template find<T>(p.frame, u.group, u.first_filter, pixels_from,
                                      first_pixel_of_wave<kBlocks>(thread_again()), lane);
            store_warpgroup_sums<T>(p.frame, u.group, u.first_filter, 0, pixels_from, rows, sums, bias, epilogue,
                                    thread_again());
        }
    }
}

template <typename T, int kTileM, int kTileN>
void launch_frame_instance(const FrameWarpgroupParams& p, int units, void* stream) {
    const auto kernel = conv3d_warpgroup_gemm_kernel<T, kTileM, kTileN>;
    const int shared = launch_shared_bytes(FrameWarpgroupShape::kBytes);
    (void)hipFuncSetAttribute(reinterpret_cast<const void*>(kernel), hipFuncAttributeMaxDynamicSharedMemorySize, shared);
    const dim3 grid(p.tiles < units ? p.tiles : units, 1, 1), block(FrameWarpgroupShape{kTileM, kTileN}.threads(), 1, 1);
    hipLaunchKernelGGL((conv3d_warpgroup_gemm_kernel<T, kTileM, kTileN>), grid, block, shared, static_cast<hipStream_t>(stream),
                       p);
    check_launch("conv3d");
}

template <typename T>
void launch_frame_warpgroups(const FrameWarpgroupParams& p, int tile_m, int tile_n, int units, void* stream) {
    const auto launch = tile_m == 128   ? launch_frame_instance<T, 128, 128>
                        : tile_m == 384 ? launch_frame_instance<T, 384, 96>
                        : tile_n == 128 ? launch_frame_instance<T, 256, 128>
                        : tile_n == 96  ? launch_frame_instance<T, 256, 96>
                                        : launch_frame_instance<T, 256, 32>;
    launch(p, units, stream);
}

}  // namespace hipconv
