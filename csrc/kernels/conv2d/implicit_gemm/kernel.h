// The implicit GEMM: a block makes a tile of output pixels by filters, wave by wave on matrix cores, from tiles of x and of the
// filters that it stages in LDS step by step. x is gathered while it is staged: no unfolded (im2col) copy of it exists
// anywhere.
//
// Operands are staged in one of two ways. Where LDS can only be written from registers, the next step's loads are issued before
// the products of this step, and written to LDS after them. Where there are asynchronous copies (cp.async), they fill a ring of
// stages, two steps ahead.
#pragma once

#include "../gemm/epilogue.h"
#include "launch/check.h"
#include "mainloop.h"

namespace hipconv {

// ---- the kernel -------------------------------------------------------------------------------------------------------

// The number of a block's tile, such that the tiles of a die follow each other. The last few blocks, of which not every die has
// one, keep their own number.
HIPCONV_INLINE uint32_t number_on_die(uint32_t block, uint32_t blocks) {
    const uint32_t of_die = blocks / kDies;
    return block < of_die * kDies ? block % kDies * of_die + block / kDies : block;
}

// The epilogue: stores a wave's sums through LDS, kEpiloguePixels of its pixels at a time. The integers come by reference,
// because by value the compilers make other code.
template <typename T, int kPixels, int kFilters, typename Pixels>
__device__ __forceinline__ void store_sums(const ConvGemmParams& p, const typename Mma<T, kPixels, kFilters>::Sums& sums,
                                           Words4* const& lds, const int& wave, const int& lane, const int& wave_pixel,
                                           const int& wave_filter, const int& first_filter, const int& group, const int& part,
                                           Pixels run) {
    float* const epilogue_tile = reinterpret_cast<float*>(lds) + wave * kEpiloguePixels * kFilters;
    static_assert(kPixels <= 2 * kEpiloguePixels, "two epilogue tiles at most");
#pragma unroll 1
    for (int number = 0; number < kPixels / kEpiloguePixels; ++number) {
        __syncthreads();  // the operands, or the epilogue tile before, are read
        const auto write = [&](int pixel, int filter, auto sum) {
            *reinterpret_cast<decltype(sum)*>(&epilogue_tile[epilogue_index<kFilters>(pixel, filter)]) = sum;
        };
        if (number == 0) {
            Mma<T, kPixels, kFilters>::template for_each<0, kEpiloguePixels>(sums, lane, write);
            keep_apart<0>();
        } else {
            Mma<T, kPixels, kFilters>::template for_each<kPixels - kEpiloguePixels, kEpiloguePixels>(sums, lane, write);
            keep_apart<1>();
        }
        __syncthreads();
        const ConvGemmParams& again = first_parameter_again(p);
        const int64_t first = static_cast<int64_t>(group) * again.group_filters + first_filter + wave_filter;
        store_epilogue_tile<kEpiloguePixels, kFilters>(
            again, epilogue_tile, lane, run.from(wave_pixel + number * kEpiloguePixels), first_filter + wave_filter, group,
            part, BiasInMemory{again.conv, first});
    }
}

// T is float or a 16-bit type; where kHalvesShareKernels, f16 stands for both 16-bit types.
template <typename T, int kTileM, int kTileN, XForm kForm>
__global__ void HIPCONV_LAUNCH_BOUNDS((gemm_shape<T, kTileM, kTileN, kForm>().threads),
                                      (gemm_shape<T, kTileM, kTileN, kForm>().blocks_per_unit))
    conv2d_implicit_gemm_kernel(ConvGemmParams p) {
    constexpr GemmShape kShape = gemm_shape<T, kTileM, kTileN, kForm>();
    constexpr bool kIsLegal = gemm_tile_is_legal<T>(kMatrixUnit, kTileM, kTileN, kForm);
    HIPCONV_LARGE_SHARED(Words4, lds, kIsLegal ? gemm_shared_bytes(kShape, kWaveSize) / 16 : 1);
    if constexpr (kIsLegal) {
        constexpr int kWaves = kShape.threads / kWaveSize, kWavesM = waves_along_pixels(kTileM, kTileN, kWaves);
        constexpr int kPixels = kTileM / kWavesM, kFilters = kTileN / (kWaves / kWavesM);  // of a wave
        // RDNA 3 has no registers left for addresses of LDS beside so many elements and sums.
        constexpr bool kFreesAddresses = kMatrixUnit == MatrixUnit::wmma11 && kForm == XForm::elements && kTileN == 128;
        using Wave = Mma<T, kPixels, kFilters>;
        using Pixels = PixelLoader<T, kTileM, kShape.threads, kForm>;
        using Filters = FilterLoader<T, kTileN, kShape.threads>;

        const uint32_t of_block = threadIdx.x % kShape.threads;  // compilers need not ask whether this is negative
        const int thread = of_block, wave = of_block / kWaveSize, lane = of_block % kWaveSize;
        const int wave_pixel = wave % kWavesM * kPixels, wave_filter = wave / kWavesM * kFilters;
        const int group = blockIdx.y, part = blockIdx.z;

        // Tiles of the same pixels follow each other, so that they find x in the cache; so do the tiles of a die.
        const uint32_t number = number_on_die(blockIdx.x, gridDim.x);
        const int tile_m = static_cast<int>(divide(number, p.divide_by_tiles_n));
        const int first_filter = (static_cast<int>(number) - tile_m * p.tiles_n) * kTileN;
        int image = 0, of_image = tile_m;
        if (p.by_image) {
            image = static_cast<int>(divide(tile_m, p.divide_by_tiles_m));
            of_image = tile_m - image * p.tiles_m;
        }
        const int first_step = part * p.steps_per_part;
        const int end = first_step + p.steps_per_part < p.steps ? first_step + p.steps_per_part : p.steps;
        Filters filters(p, thread, group, first_filter, first_step);
        typename Wave::Sums sums;
        Wave::clear(sums);

        const auto store_out = [&](auto run) {
            store_sums<T, kPixels, kFilters>(p, sums, lds, wave, lane, wave_pixel, wave_filter, first_filter, group, part, run);
        };

        if constexpr (kForm == XForm::patches) {
            const int down = static_cast<int>(divide(of_image, p.divide_by_patches));
            const PixelPatch<kPatchColumns> out{image, down * (kTileM / kPatchColumns),
                                                (of_image - down * p.patches_across) * kPatchColumns, 0};
            const auto multiply_patches = [&](auto by_vectors) {
                constexpr bool kByVectors = decltype(by_vectors)::value;
                using Patch = PatchLoader<T, kTileM, kShape.threads, kByVectors>;
                uint32_t* const offsets =
                    reinterpret_cast<uint32_t*>(lds + 2 * Patch::kCount + kShape.stages * kTileN * kTileChunks);
                const Patch patch(p, offsets, thread, group, image, out.row, out.column);
                mainloop_patches<T, kTileM, kTileN, kShape.stages, kPixels, kFilters, kByVectors>(
                    p, patch, filters, end, wave_pixel, wave_filter, lane, lds, sums);
            };
            if (p.by_vectors)
                multiply_patches(std::true_type{});
            else
                multiply_patches(std::false_type{});
            store_out(out);
            return;
        }

        const int first_pixel = of_image * kTileM;
        if (!p.by_image) image = static_cast<int>(divide(first_pixel, p.divide_by_image));
        Pixels pixels(p, thread, group, image, first_pixel, first_step);
        const auto same_row = [](int row) { return row; };

        if constexpr (kShape.stages > 1) {
            mainloop_async_copies<T, kTileM, kTileN, kShape.stages, kPixels, kFilters>(
                p, pixels, filters, first_step, end, wave_pixel, wave_filter, lane, lds, sums);
        } else {
            // Prologue: the first step's loads.
            Words4 filter_chunks[Filters::kCount];
            typename Pixels::Loaded pixel_chunks;
            if (first_step < end) {
                pixels.load(p, pixel_chunks);
                filters.load(filter_chunks);
            }
            // Mainloop: store what was loaded, load the next step's operands, multiply.
#pragma unroll 1
            for (int step = first_step; step < end; ++step) {
                pixels.store(lds, pixel_chunks);
                filters.store(lds + kTileM * kTileChunks, filter_chunks);
                __syncthreads();
                if (step + 1 < end) {
                    pixels.advance(p);
                    filters.advance(p);
                    pixels.load(p, pixel_chunks);
                    filters.load(filter_chunks);
                }
                keep_order();
                multiply<T, kPixels, kFilters, kFreesAddresses>(p.conv.dtype, sums, lds + wave_pixel * kTileChunks,
                                                                lds + (kTileM + wave_filter) * kTileChunks, lane, same_row);
                keep_order();
                __syncthreads();
            }
        }

        store_out(PixelRun{image, first_pixel});
    }
}

// ---- launches ---------------------------------------------------------------------------------------------------------

template <typename T, int kTileM, int kTileN, XForm kForm>
void launch_gemm_instance(const ConvGemmParams& p, int split_k, void* stream) {
    constexpr GemmShape kShape = gemm_shape<T, kTileM, kTileN, kForm>();
    const auto kernel = conv2d_implicit_gemm_kernel<T, kTileM, kTileN, kForm>;
    const int shared = launch_shared_bytes(gemm_shared_bytes(kShape, kWaveSize));
    if (shared > 48 * 1024)
        (void)hipFuncSetAttribute(reinterpret_cast<const void*>(kernel), hipFuncAttributeMaxDynamicSharedMemorySize, shared);
    const int64_t tiles = static_cast<int64_t>(p.by_image ? p.conv.batch : 1) * p.tiles_m * p.tiles_n;
    const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(p.conv.groups), static_cast<unsigned>(split_k));
    hipLaunchKernelGGL((conv2d_implicit_gemm_kernel<T, kTileM, kTileN, kForm>), grid, dim3(kShape.threads, 1, 1), shared,
                       static_cast<hipStream_t>(stream), p);
    check_launch("conv2d");
}

// T is one of the ways in which f32 is multiplied, in tiles of 64 filters.
template <typename T>
void launch_gemm_32bit(const ConvGemmParams& p, Conv2dTile tile, int split_k, void* stream) {
    const bool large = tile.tile_m == 128, vectors = p.form == XForm::vectors;
    const auto launch = p.form == XForm::anything ? launch_gemm_instance<T, 64, 64, XForm::anything>
                        : large && vectors        ? launch_gemm_instance<T, 128, 64, XForm::vectors>
                        : large                   ? launch_gemm_instance<T, 128, 64, XForm::elements>
                        : vectors                 ? launch_gemm_instance<T, 64, 64, XForm::vectors>
                                                  : launch_gemm_instance<T, 64, 64, XForm::elements>;
    launch(p, split_k, stream);
}

template <int kTileM, int kTileN, XForm kForm>
void launch_gemm_16bit(const ConvGemmParams& p, int split_k, void* stream) {
    if constexpr (!kHalvesShareKernels) {
        if (p.conv.dtype == DType::bf16) return launch_gemm_instance<bf16, kTileM, kTileN, kForm>(p, split_k, stream);
    }
    launch_gemm_instance<f16, kTileM, kTileN, kForm>(p, split_k, stream);
}

}  // namespace hipconv
