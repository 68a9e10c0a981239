// The kernel of few filters (params.h) by warpgroups and TMA, on sm_90: what it serves and its launch.
//
// TMA brings a frame's square to LDS, 64 channels a stage, and each of two warpgroups multiplies half of its pixels. All taps
// stand side by side, 32 columns for each tap of time, so that an element of x is read from LDS once: the columns of a tap of
// time are the sums of the frame of the result that sees this frame by it. When a frame is done, its sums go to LDS, where both
// warpgroups add them, and the others move on by 32 columns. Waves beside the producer copy squares from LDS to the next call's
// cache.
#include <hip/hip_runtime.h>

#include "../../conv2d/gemm/ring.h"
#include "../common/launchers.h"
#include "../common/volume_maps.h"
#include "launch.h"
#include "launch/check.h"
#include "matrix/chunk_mma.h"
#include "matrix/warpgroup_mma.h"
#include "square.h"

namespace hipconv {

constexpr int kColumns = kFewFrames * kFewColumns, kStages = 4, kSavers = 3;  // waves that write the next call's cache
constexpr int kThreads = kFewThreads + 128, kProducerRegisters = 88, kConsumerRegisters = 208;
// A block's threads share the registers that it began with: one that asked for more would wait forever.
static_assert(kFewThreads * kConsumerRegisters + 128 * kProducerRegisters <= kThreads * (65536 / kThreads / 8 * 8),
              "the registers of a block");
constexpr int kSquareChunks = kFewThreads * kTileRowBytes / 16, kFilterChunks = kColumns * kTileRowBytes / 16;
constexpr int kMostBlocks = kFewSteps * kFewStepChunks * 16 / kTileRowBytes;  // of 64 channels
// LDS: the ring of squares, the filters, the sums of two frames, the bias, the barriers.
constexpr int kFiltersAt = kStages * kSquareChunks * 16, kSumsAt = kFiltersAt + kMostBlocks * kFilterChunks * 16;
constexpr int kBiasAt = kSumsAt + 2 * kFewSumBytes, kBarriersAt = kBiasAt + kFewMostFilters * 4;
constexpr int kBytes = (kBarriersAt + (2 * kStages + 1) * 8 + 15) / 16 * 16;
static_assert(kBytes <= 227 * 1024, "LDS of a block");

struct FewWarpgroupParams {
    FewFiltersParams few;
    int32_t channel_blocks;
    bool ends_early;  // the last of them has 32 channels at most
    TensorMap x, cache;
};

// The frames that a tile's walk sees, from first to last: their numbers, or -1 for one of zeros, which takes no step.
struct FewWalk {
    int seen, time;

    HIPCONV_INLINE FewWalk(const FewFiltersParams& p, const FewTile& tile)
        : seen(tile.count + p.conv.kernel_frames - 1), time(tile.begin - p.conv.front) {}
    HIPCONV_INLINE int number(const Conv3dParams& c, int frame) const {
        return static_cast<int>(frame_number(c, time + frame, c.time_mode));
    }
};

// Row n of the filters in LDS is column n of the product.
HIPCONV_INLINE void load_filter_columns(const FewFiltersParams& p, int blocks, Words4* filters, int thread) {
    for (int i = thread; i < blocks * kFilterChunks; i += kThreads) {
        const int block = i / kFilterChunks, column = i % kFilterChunks / 8, of_row = i % 8;
        const int slot = column / kFewColumns, of_frame = column % kFewColumns;
        const int filter = of_frame / p.taps, tap = of_frame - filter * p.taps, frame = p.conv.kernel_frames - 1 - slot;
        const int chunk = block * 8 + of_row;
        const bool wanted = frame >= 0 && filter < p.conv.out_channels && chunk < p.chunks;
        filters[block * kFilterChunks + swizzled_chunk(column, of_row)] =
            load_chunk(reinterpret_cast<uint64_t>(p.filters) + filter * p.filter_stride + (frame * p.taps + tap) * p.tap_bytes +
                           chunk * int64_t{16},
                       wanted);
    }
}

HIPCONV_INLINE void produce_squares(const FewWarpgroupParams& p, const Ring& ring) {
    const Conv3dParams& c = p.few.conv;
    RingState place;
    for (int number = blockIdx.x; number < p.few.tiles; number += gridDim.x) {
        const FewTile tile(p.few, number);
        const FewWalk walk(p.few, tile);
#pragma unroll 1
        for (int i = 0; i < walk.seen; ++i) {
            const int frame = walk.number(c, i);
            if (frame < 0) continue;
            const bool is_cached = frame < c.cached;
#pragma unroll 1
            for (int block = 0; block < p.channel_blocks; ++block) {
                Barrier* const full = ring.begin_filling(place, kSquareChunks * 16);
                tma_load_box<5>(ring.at(place), is_cached ? p.cache : p.x, full,
                                {block * (kTileRowBytes / 2), tile.out_column - c.pad_left, tile.out_row - c.pad_top,
                                 is_cached ? frame : frame - c.cached, tile.sample});
                place.advance(kStages);
            }
        }
    }
}

// Copies the pixels of a square that are its own, not its halo, from a stage to a frame of the next call's cache: row by row, a
// wave each. Lanes lie along channels, then along columns.
HIPCONV_INLINE void save_square(const FewFiltersParams& p, const FewTile& tile, const Words4* square, int block, uint64_t frame,
                                int wave, int lane) {
    constexpr int kRowChunks = kTileRowBytes / 16, kEach = kFewSide / (32 / kRowChunks);
    const Conv3dParams& c = p.conv;
    const int log2_chunks = p.chunks - block * kRowChunks <= kRowChunks / 2 ? 2 : 3;
    const int chunk = lane & ((1 << log2_chunks) - 1), first = lane >> log2_chunks, step = 32 >> log2_chunks;
    const bool has_chunk = block * kRowChunks + chunk < p.chunks;
    const int columns = p.out_columns < c.in_width - tile.out_column ? p.out_columns : c.in_width - tile.out_column;
    const int rows = p.out_rows < c.in_height - tile.out_row ? p.out_rows : c.in_height - tile.out_row;
    const int64_t column_bytes = c.saved.column_stride * 2;
    const uint64_t to = frame + (block * kRowChunks + chunk) * 16 + (tile.out_column + first) * column_bytes;
#pragma unroll 1
    for (int row = wave; row < rows; row += kSavers) {
        const int of_square = (row + c.pad_top) * kFewSide + c.pad_left + first;
        const uint64_t to_row = to + (tile.out_row + row) * c.saved.row_stride * 2;
        Words4 words[kEach];
#pragma unroll
        for (int i = 0; i < kEach; ++i)
            if (first + i * step < columns) words[i] = square[swizzled_chunk(of_square + i * step, chunk)];
#pragma unroll
        for (int i = 0; i < kEach; ++i)
            if (first + i * step < columns && has_chunk) *global_pointer<Words4>(to_row + i * step * column_bytes) = words[i];
    }
}

HIPCONV_INLINE void save_squares(const FewWarpgroupParams& p, const Ring& ring, int wave, int lane) {
    const Conv3dParams& c = p.few.conv;
    RingState place;
    for (int number = blockIdx.x; number < p.few.tiles; number += gridDim.x) {
        const FewTile tile(p.few, number);
        const FewWalk walk(p.few, tile);
#pragma unroll 1
        for (int i = 0; i < walk.seen; ++i) {
            if (walk.number(c, i) < 0) continue;
            const SavedFrame saved(p.few, tile.sample, walk.time + i);
#pragma unroll 1
            for (int block = 0; block < p.channel_blocks; ++block) {
                wait_for_phase(&ring.full[place.stage], place.phase);
                if (saved.address) save_square(p.few, tile, ring.at(place), block, saved.address, wave, lane);
                sync_wave();
                if (lane == 0) arrive(&ring.empty[place.stage]);
                place.advance(kStages);
            }
        }
    }
}

// Multiplies a stage by the filters of its channels. Where products were under way behind this, the assembler would add waits.
template <typename T, int kBlocks>
HIPCONV_INLINE void multiply_square(const Words4* square, const int (&first_rows)[kBlocks], const Words4* filters,
                                    bool ends_early, WarpgroupSums<kColumns> (&sums)[kBlocks]) {
    const auto multiply = [&](int bytes) {
#pragma unroll
        for (int block = 0; block < kBlocks; ++block)
            wgmma<T>(sums[block], square, first_rows[block], 8 * kTileRowBytes, filters, bytes, true);
    };
    if (ends_early) {
        wgmma_fence();
#pragma unroll
        for (int bytes = 0; bytes < kTileRowBytes / 2; bytes += kWgmmaBytes) multiply(bytes);
        wgmma_commit();
        wgmma_wait<0>();
    } else {
        wgmma_fence();
#pragma unroll
        for (int bytes = 0; bytes < kTileRowBytes; bytes += kWgmmaBytes) multiply(bytes);
        wgmma_commit();
        wgmma_wait<0>();
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) fence_sums(sums[block]);
}

template <typename T>
__global__ void HIPCONV_LAUNCH_BOUNDS(kThreads, 1) conv3d_few_warpgroups_kernel(HIPCONV_IN_PLACE const FewWarpgroupParams p) {
    HIPCONV_LARGE_SHARED(Words4, lds, kHasWarpgroups ? kBytes / 16 : 1);
    if constexpr (kHasWarpgroups) {
        constexpr int kConsumerWaves = kFewThreads / 32, kBlocks = kFewThreads / kWarpgroupPixels / 2;
        const int thread = threadIdx.x, wave = thread / 32, lane = thread % 32;
        char* const bytes = reinterpret_cast<char*>(lds);
        Words4* const filters = lds + kFiltersAt / 16;
        float* const columns = reinterpret_cast<float*>(bytes + kSumsAt);
        float* const bias = reinterpret_cast<float*>(bytes + kBiasAt);
        Barrier* const barriers = reinterpret_cast<Barrier*>(bytes + kBarriersAt);
        Barrier* const written = barriers + 2 * kStages;  // the sums of a frame are in LDS
        const Ring x{lds, kSquareChunks, kStages, barriers, barriers + kStages};
        const Conv3dParams& c = p.few.conv;
        if (thread == 0) {
            if (c.in_frames) prefetch_tensor_map(p.x);
            if (c.cached) prefetch_tensor_map(p.cache);
            for (int i = 0; i < kStages; ++i) {
                init_barrier(&x.full[i], 1);
                init_barrier(&x.empty[i], kConsumerWaves + (p.few.saves ? kSavers : 0));
            }
            init_barrier(written, kConsumerWaves);
            fence_barrier_init();
        }
        if (thread < kFewMostFilters)
            bias[thread] = c.bias && thread < c.out_channels
                               ? load_parameter(global_pointer<const void>(c.bias), thread * c.bias_stride, c.bias_dtype)
                               : 0.0f;
        load_filter_columns(p.few, p.channel_blocks, filters, thread);
        fence_async_proxy();
        __syncthreads();
        if (wave >= kConsumerWaves) {
            dealloc_registers<kProducerRegisters>();
            if (wave == kConsumerWaves) {
                if (lane == 0) produce_squares(p, x);
            } else if (p.few.saves) {
                save_squares(p, x, wave - kConsumerWaves - 1, lane);
            }
            return;
        }
        alloc_registers<kConsumerRegisters>();
        const int warpgroup = thread / kWarpgroupThreads, last_tap = c.kernel_frames - 1;
        int first_rows[kBlocks];
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) first_rows[block] = (warpgroup * kBlocks + block) * kWarpgroupPixels;
        RingState place;
        int made = 0;  // frames of the result
        for (int number = blockIdx.x; number < p.few.tiles; number += gridDim.x) {
            const FewTile tile(p.few, number);
            const FewWalk walk(p.few, tile);
            WarpgroupSums<kColumns> sums[kBlocks];
#pragma unroll
            for (int block = 0; block < kBlocks; ++block)
#pragma unroll
                for (int e = 0; e < kColumns / 2; ++e) sums[block].values[e] = 0.0f;
#pragma unroll 1
            for (int frame = 0; frame < walk.seen; ++frame) {
                if (walk.number(c, frame) >= 0) {
#pragma unroll 1
                    for (int block = 0; block < p.channel_blocks; ++block) {
                        wait_for_phase(&x.full[place.stage], place.phase);
                        multiply_square<T>(x.at(place), first_rows, filters + block * kFilterChunks,
                                           p.ends_early && block + 1 == p.channel_blocks, sums);
                        if (lane == 0) arrive(&x.empty[place.stage]);
                        place.advance(kStages);
                    }
                }
                if (frame >= last_tap) {
                    // The sums of the frame before lie in the other half, and all threads have read those before them.
                    float* const to = columns + made % 2 * (kFewSumBytes / 4);
#pragma unroll
                    for (int block = 0; block < kBlocks; ++block)
#pragma unroll
                        for (int e = 0; e < kFewColumns / 2; ++e)
                            to[sums[0].filter(thread, e) * kFewPitch + first_rows[block] +
                               sums[0].pixel(thread % kWarpgroupThreads, e)] = sums[block].values[e];
                    sync_wave();
                    if (lane == 0) arrive(written);
                    wait_for_phase(written, made % 2);
                    ++made;
                    const int out_frame = tile.sample * p.few.frames_of_sample + tile.begin + frame - last_tap;
                    if (c.kernel_height == 3 && c.kernel_width == 3)
                        store_square<3>(p.few, to, bias, thread, out_frame, tile);
                    else
                        store_square<0>(p.few, to, bias, thread, out_frame, tile);
                }
#pragma unroll
                for (int block = 0; block < kBlocks; ++block)
#pragma unroll
                    for (int e = 0; e < kColumns / 2; ++e)
                        sums[block].values[e] = e + kFewColumns / 2 < kColumns / 2
                                                    ? sums[block].values[(e + kFewColumns / 2) % (kColumns / 2)]
                                                    : 0.0f;
            }
        }
    }
}

namespace {

template <typename T>
void launch_warpgroups(const FewWarpgroupParams& p, int units, void* stream) {
    const auto kernel = conv3d_few_warpgroups_kernel<T>;
    const int shared = launch_shared_bytes(kBytes);
    (void)hipFuncSetAttribute(reinterpret_cast<const void*>(kernel), hipFuncAttributeMaxDynamicSharedMemorySize, shared);
    const dim3 grid(static_cast<unsigned>(p.few.tiles < units ? p.few.tiles : units), 1, 1);
    hipLaunchKernelGGL((conv3d_few_warpgroups_kernel<T>), grid, dim3(kThreads, 1, 1), shared, static_cast<hipStream_t>(stream),
                       p);
    check_launch("conv3d");
}

}  // namespace

const char* conv3d_few_warpgroups_refusal(const Conv3dParams& p, const Conv3dCard& card) {
    if (!has_warpgroups(card.arch)) return "sm_90";
    if (p.dtype == DType::f32) return "x of 16-bit types";
    if (const char* served = few_filters_shape_refusal(p, card)) return served;
    if (p.padding_mode != PaddingMode::zeros) return "rows and columns that are padded with zeros";
    if (p.in_channels % 8 != 0) return "C a multiple of 8";
    if (!fits_tma(p, p.x, p.in_frames) || !fits_tma(p, p.cache, p.cached))
        return "x and cache in channels_last_3d memory, with 16-byte alignment";
    return nullptr;
}

void conv3d_few_warpgroups(const Conv3dParams& p, const Conv3dCard& card, void* workspace, void* stream) {
    const FilterLayout l(p, false);
    if (l.packs) conv3d_pack_filters(p, workspace, stream);
    conv3d_launch_few_warpgroups(p, l, l.packs ? workspace : p.weight.data, card, stream);
    if (!saves_on_the_way(p)) conv3d_save(p, stream);
}

void conv3d_launch_few_warpgroups(const Conv3dParams& all, const FilterLayout& l, const void* filters, const Conv3dCard& card,
                                  void* stream) {
    launch_samples(all, [&](const Conv3dParams& p) {
        FewWarpgroupParams f{};
        f.few = few_filters_params(p, l, filters, saves_on_the_way(all), card);
        const int of_block = kTileRowBytes / 16;
        f.channel_blocks = static_cast<int32_t>(ceil_of(l.chunks, of_block));
        f.ends_early = l.chunks - (f.channel_blocks - 1) * of_block <= of_block / 2;
        if (p.in_frames) f.x = make_tensor_map(volume_map(p, p.x, p.in_frames, kFewSide, kFewSide));
        if (p.cached) f.cache = make_tensor_map(volume_map(p, p.cache, p.cached, kFewSide, kFewSide));
        (p.dtype == DType::bf16 ? launch_warpgroups<bf16> : launch_warpgroups<f16>)(f, card.compute_units, stream);
    });
}

}  // namespace hipconv
