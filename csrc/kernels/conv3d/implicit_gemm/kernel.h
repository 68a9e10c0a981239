// The kernel of the implicit GEMM: a block makes a tile of a frame's pixels by filters, wave by wave on matrix cores. The next
// step's loads are issued before the products of this step, and written to LDS after them. x is gathered while it is loaded:
// no unfolded copy of it exists, and no concatenation of the cache and x.
#pragma once

#include <type_traits>

#include "launch/check.h"
#include "loaders.h"

namespace hipconv {

// The waves of a block share a tile: along its pixels, and along its filters. A wave without matrix instructions has many
// pixels and few filters, because it holds the filters of a phase, but one pixel after another. So has RDNA 3's in the widest
// tile: it would hold more filters than fit into registers beside the sums.
template <typename T, int kTileN>
struct FrameWaves {
    static constexpr int kWaves = kGemmThreads / kWaveSize;
    static constexpr bool kHasMatrices = matrix_unit_of<T>() != MatrixUnit::fma;
    static constexpr bool kFewFilters = kTileN == 128 && (kWaves == 4 || kMatrixUnit == MatrixUnit::wmma11);
    static constexpr int kAlongPixels = kFewFilters || !kHasMatrices ? 2 : 4;
    static constexpr int kAlongFilters = kWaves / kAlongPixels;
    static constexpr int kPixels = kGemmPixels / kAlongPixels, kFilters = kTileN / kAlongFilters;
    // A wave's epilogue tile has a power of two of filters, as its swizzle needs.
    static constexpr int kPart = kFilters % 32 == 0 ? 32 : kFilters % 16 == 0 ? 16 : 8;
    static constexpr int kOperandBytes = (kGemmPixels + kTileN) * kTileRowBytes;
    static constexpr int kEpilogueBytes = kWaves * kEpiloguePixels * kPart * 4;
    static constexpr int kBytes = kOperandBytes > kEpilogueBytes ? kOperandBytes : kEpilogueBytes;
};

// T is a 16-bit type, where f16 stands for both if kHalvesShareKernels, or one of the ways in which float32 is multiplied.
template <typename T, int kTileN, bool kByVectors>
__global__ void HIPCONV_LAUNCH_BOUNDS(kGemmThreads, 2) conv3d_implicit_gemm_kernel(FrameGemmParams p) {
    constexpr bool kIsLegal = gemm_tile_is_legal<T>(kMatrixUnit, kGemmPixels, kTileN);
    using Waves = FrameWaves<T, kTileN>;
    HIPCONV_SHARED(Words4, lds, kIsLegal ? Waves::kBytes / 16 : 1);
    if constexpr (kIsLegal) {
        constexpr int kPixels = Waves::kPixels, kFilters = Waves::kFilters;
        using Wave = Mma<T, kPixels, kFilters>;
        using Pixels = FramePixels<T, kByVectors>;
        using Filters = FrameFilters<T, kTileN>;
        const int thread = threadIdx.x, wave = thread / kWaveSize, lane = thread % kWaveSize;
        const int wave_pixel = wave % Waves::kAlongPixels * kPixels, wave_filter = wave / Waves::kAlongPixels * kFilters;
        const int group = blockIdx.y;

        // Tiles of the same pixels follow each other, so that they find x in the cache.
        const uint32_t number = blockIdx.x;
        uint32_t rest = divide(number, p.frame.divide_by_tiles_n);
        const int first_filter = static_cast<int>(number - rest * p.frame.tiles_n) * kTileN;
        const uint32_t of_all = divide(rest, p.frame.divide_by_tiles_m);
        const int first_pixel = static_cast<int>(rest - of_all * p.frame.tiles_m) * kGemmPixels;
        const int sample = static_cast<int>(divide(of_all, p.divide_by_frames));
        const int frame = static_cast<int>(of_all) - sample * p.conv.out_frames;

        const Pixels pixels(p, thread, sample, frame, group, first_pixel);
        const Filters filters(p, thread, group, first_filter);
        typename Wave::Sums sums;
        Wave::clear(sums);
        const TapFrames frames(p.conv, frame);
        const int first_step = frames.first * p.chunks_of_frame / kTileChunks;
        const int end = (frames.end * p.chunks_of_frame + kTileChunks - 1) / kTileChunks;

        Words4 pixel_chunks[Pixels::kCount], filter_chunks[Filters::kCount];
        if (first_step < end) {
            pixels.load(p, first_step, pixel_chunks);
            filters.load(p, first_step, filter_chunks);
        }
#pragma unroll 1
        for (int step = first_step; step < end; ++step) {
            pixels.store(lds, pixel_chunks);
            filters.store(lds + kGemmPixels * kTileChunks, filter_chunks);
            __syncthreads();
            if (step + 1 < end) {
                pixels.load(p, step + 1, pixel_chunks);
                filters.load(p, step + 1, filter_chunks);
            }
            keep_order();
            const auto same_row = [](int row) { return row; };
            const Words4 *x = lds + wave_pixel * kTileChunks, *w = lds + (kGemmPixels + wave_filter) * kTileChunks;
            if constexpr (sizeof(T) == 2 && kHalvesShareKernels) {
                if (p.conv.dtype == DType::bf16)
                    Mma<bf16, kPixels, kFilters>::step(sums, x, w, lane, same_row);
                else
                    Wave::step(sums, x, w, lane, same_row);
            } else {
                Wave::step(sums, x, w, lane, same_row);
            }
            keep_order();
            __syncthreads();
        }

        // The epilogue: through LDS, kEpiloguePixels by kPart sums of each wave at a time.
        float* const epilogue_tile = reinterpret_cast<float*>(lds) + wave * kEpiloguePixels * Waves::kPart;
        const FrameGemmParams& again = first_parameter_again(p);
        const ConvGemmParams& g = again.frame;
        const int out_frame = sample * again.frames_of_sample + frame;
        constexpr int kParts = kFilters / Waves::kPart, kBlocks = kPixels / kEpiloguePixels;
        static_assert(kBlocks <= 2, "two blocks of pixels at most");
#pragma unroll 1
        for (int part = 0; part < kBlocks * kParts; ++part) {
            const int block = part / kParts, first = (part - block * kParts) * Waves::kPart;
            const auto write = [&](int pixel, int filter, auto sum) {
                if (filter < first || filter >= first + Waves::kPart) return;
                *reinterpret_cast<decltype(sum)*>(&epilogue_tile[epilogue_index<Waves::kPart>(pixel, filter - first)]) = sum;
            };
            __syncthreads();  // the operands, or the epilogue tile before, are read
            if (block == 0) {
                Wave::template for_each<0, kEpiloguePixels>(sums, lane, write);
                keep_apart<0>();
            } else {
                Wave::template for_each<kPixels - kEpiloguePixels, kEpiloguePixels>(sums, lane, write);
                keep_apart<1>();
            }
            __syncthreads();
            const int filter = first_filter + wave_filter + first;
            store_epilogue_tile<kEpiloguePixels, Waves::kPart>(
                g, epilogue_tile, lane, PixelRun{out_frame, first_pixel + wave_pixel + block * kEpiloguePixels}, filter, group,
                0, BiasInMemory{g.conv, static_cast<int64_t>(group) * g.group_filters + filter});
        }
        const int64_t blocks = static_cast<int64_t>(gridDim.x) * gridDim.y,
                      block = blockIdx.y * int64_t{gridDim.x} + blockIdx.x;
        using Element = std::conditional_t<sizeof(T) == 4, float, T>;
        save_frames<Element>(again.conv, again.save, block * Waves::kWaves + wave, blocks * Waves::kWaves, lane, kWaveSize);
    }
}

// ---- launches ---------------------------------------------------------------------------------------------------------

template <typename T, int kTileN, bool kByVectors>
void launch_frame_gemm_instance(const FrameGemmParams& p, void* stream) {
    const int64_t tiles = int64_t{p.conv.batch} * p.conv.out_frames * p.frame.tiles_m * p.frame.tiles_n;
    const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(p.conv.groups), 1);
    hipLaunchKernelGGL((conv3d_implicit_gemm_kernel<T, kTileN, kByVectors>), grid, dim3(kGemmThreads, 1, 1), 0,
                       static_cast<hipStream_t>(stream), p);
    check_launch("conv3d");
}

template <int kTileN, bool kByVectors>
void launch_frame_gemm(const FrameGemmParams& p, void* stream) {
    if constexpr (!kHalvesShareKernels) {
        if (p.conv.dtype == DType::bf16) return launch_frame_gemm_instance<bf16, kTileN, kByVectors>(p, stream);
    }
    launch_frame_gemm_instance<f16, kTileN, kByVectors>(p, stream);
}

// T is one of the ways in which float32 is multiplied.
template <typename T>
void launch_frame_gemm_32bit(const FrameGemmParams& p, int tile_n, void* stream) {
    const auto by = [&](auto by_vectors) {
        constexpr bool kByVectors = decltype(by_vectors)::value;
        (tile_n == 96   ? launch_frame_gemm_instance<T, 96, kByVectors>
         : tile_n == 64 ? launch_frame_gemm_instance<T, 64, kByVectors>
                        : launch_frame_gemm_instance<T, 32, kByVectors>)(p, stream);
    };
    if (p.by_vectors)
        by(std::true_type{});
    else
        by(std::false_type{});
}

}  // namespace hipconv
