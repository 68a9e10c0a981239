// Convolutions of few channels or few filters (`direct`): a block stages the patch of x that its pixels see in LDS once, and each
// wave multiplies it, tap by tap, by a strip of filters that it reads from the cache, packed as its matrix instruction takes them.
//
// Groups of few channels share a strip: a bundle of groups is one product of matrices whose filters are zero where channel and
// filter are of different groups, which costs no more than the padding that each group would need.
#pragma once

#include "epilogue.h"
#include "launch/check.h"
#include "params.h"
#include "staging.h"

namespace hipconv {

template <typename T, int kStripAtoms>
struct DirectWave {
    using A = SmallAtom<matrix_unit_of<T>(), T>;
    static constexpr int kRows = 2 * kWaveSize / kAtomPixels;       // atoms of pixels
    static constexpr int kRowsAtOnce = kWaveSize / 2 / kAtomPixels;  // that are stored
    static constexpr int kFilters = kStripAtoms * kAtomFilters;
    static constexpr int kStepVectors = A::kStepChunks * kAtomFilters;  // of an atom's packed filters
    using Sums = typename A::Sums[kRows][kStripAtoms];
    static constexpr int kElements = sizeof(typename A::Sums) / sizeof(float);

    static HIPCONV_INLINE void clear(Sums& sums) {
#pragma unroll
        for (int i = 0; i < kRows; ++i)
#pragma unroll
            for (int j = 0; j < kStripAtoms; ++j)
#pragma unroll
                for (int e = 0; e < kElements; ++e) sums[i][j][e] = 0.0f;
    }

    // Takes the steps of a pass. Places and filters of the next step are under way while this one is multiplied; behind the last
    // one there is room for another.
    template <typename Like>
    static HIPCONV_INLINE void multiply(Sums& sums, const char* lds, const int (&pixels)[kRows], const int* table,
                                        const Words4* filters, int steps, int lane) {
        using B = SmallAtom<matrix_unit_of<Like>(), Like>;  // T, or what it stands for
        Places at = B::places(table, lane);
        decltype(B::load_filters(filters, lane)) f[kStripAtoms];
#pragma unroll
        for (int j = 0; j < kStripAtoms; ++j) f[j] = B::load_filters(filters + j * kStepVectors, lane);
#pragma unroll 2
        for (int step = 0; step < steps; ++step) {
            table += A::kStepChunks;
            filters += kStripAtoms * kStepVectors;
            const Places next = B::places(table, lane);
            decltype(B::load_filters(filters, lane)) more[kStripAtoms];
#pragma unroll
            for (int j = 0; j < kStripAtoms; ++j) more[j] = B::load_filters(filters + j * kStepVectors, lane);
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                const auto a = B::load_pixels(lds + pixels[i], at);
#pragma unroll
                for (int j = 0; j < kStripAtoms; ++j) B::multiply(sums[i][j], a, f[j]);
            }
            at = next;
#pragma unroll
            for (int j = 0; j < kStripAtoms; ++j) f[j] = more[j];
        }
    }

    // Writes the sums of kRowsAtOnce atoms of pixels to scratch.
    template <int kNumber>
    static HIPCONV_INLINE void write(const Sums& sums, float* scratch, int lane) {
#pragma unroll
        for (int i = 0; i < kRowsAtOnce; ++i)
#pragma unroll
            for (int j = 0; j < kStripAtoms; ++j)
#pragma unroll
                for (int e = 0; e < kElements; ++e)
                    scratch[(i * kAtomPixels + A::pixel(lane, e)) * (kFilters + 4) + j * kAtomFilters + A::filter(lane, e)] =
                        sums[kNumber * kRowsAtOnce + i][j][e];
    }
};

// T is a 16-bit type; where kHalvesShareKernels, f16 stands for both.
template <typename T, int kStripAtoms, bool kVectors>
__global__ void HIPCONV_LAUNCH_BOUNDS(kDirectThreads, kStripAtoms == 1 ? 3 : 2) conv2d_direct_kernel(DirectParams p) {
    constexpr bool kIsLegal = matrix_unit_of<T>() != MatrixUnit::fma;
    HIPCONV_LARGE_SHARED(Words4, lds, kIsLegal && !kCopiesPastRegisters ? kDirectLds / 16 : 1);
    if constexpr (kIsLegal) {
        using Wave = DirectWave<T, kStripAtoms>;
        const int thread = threadIdx.x, threads = blockDim.x, wave = thread / kWaveSize, lane = thread % kWaveSize;

        // The tile. Blocks of the same pixels follow each other, so that they find x in the cache.
        const uint32_t number = blockIdx.x;
        const int pixel_tile = static_cast<int>(divide(number, p.divide_by_filter_blocks));
        const int filter_block = static_cast<int>(number) - pixel_tile * p.filter_blocks;
        const int line = static_cast<int>(divide(pixel_tile, p.divide_by_across)), across = pixel_tile - line * p.tiles_across;
        const int images = static_cast<int>(divide(line, p.divide_by_down)), down = line - images * p.tiles_down;
        const DirectTile tile{images * p.tile_images, down * p.tile_rows, across * p.tile_columns};

        // The wave's pixels and strip.
        const int waves = threads / kWaveSize, along = waves / p.block_strips > 0 ? waves / p.block_strips : 1;
        const int wave_strip = wave / along, first_pixel = wave % along * (2 * kWaveSize);
        const int bundle_of_blocks = filter_block / p.bundle_blocks;
        const int first_bundle = bundle_of_blocks * p.block_bundles;
        const int of_block = p.block_bundles > 1 ? wave_strip / p.strips : 0;
        const int strip = (filter_block - bundle_of_blocks * p.bundle_blocks) * p.block_strips + wave_strip - of_block * p.strips;
        const int bundle = first_bundle + of_block;
        const bool works = bundle < p.bundles && strip < p.strips;

        char* const bytes = reinterpret_cast<char*>(lds);
        int* const table = reinterpret_cast<int*>(lds);
        char* const patch = bytes + p.table_bytes;
        for (int i = thread; i < p.entries + kMostStepChunks; i += threads) {
            int place = 0;
            if (i < p.taps * p.chunks) {
                const int tap = i / p.chunks, r = tap / p.taps_across, s = tap - r * p.taps_across;
                const int column = s * p.columns_a_tap;
                place = (r * p.rows_a_tap * p.patch_pitch + column % p.phases * p.phase_columns + column / p.phases) * p.slot_bytes +
                        (i - tap * p.chunks) * 16;
            }
            table[i] = place;
        }
        int pixels[Wave::kRows];
#pragma unroll
        for (int i = 0; i < Wave::kRows; ++i) {
            const int at = first_pixel + i * kAtomPixels + lane % kAtomPixels;
            const int image = static_cast<int>(divide(at, p.divide_by_image_pixels)), of_image = at - image * p.image_pixels;
            const int row = static_cast<int>(divide(of_image, p.divide_by_columns)), column = of_image - row * p.tile_columns;
            const int slot = image * p.image_slots + row * p.rows_a_pixel * p.patch_pitch + column;
            pixels[i] = p.table_bytes + (image < p.tile_images ? slot : 0) * p.slot_bytes + of_block * p.chunks * 16;
        }

        typename Wave::Sums sums;
        Wave::clear(sums);
        const int64_t of_strip = (static_cast<int64_t>(bundle) * p.strips + strip) * p.strip_vectors;
        const Words4* filters = global_pointer<const Words4>(p.filters) + (works ? of_strip : 0);
        const int steps = (p.taps * p.chunks + Wave::A::kStepChunks - 1) / Wave::A::kStepChunks;
        const int pass_vectors = p.entries * kAtomFilters * kStripAtoms;
#pragma unroll 1
        for (int pass = 0; pass < p.passes; ++pass) {
            if (pass > 0) __syncthreads();  // the patch before is read
            if constexpr (kVectors)
                stage_vectors<kDirectThreads>(p, tile, first_bundle, pass, thread, threads, patch);
            else
                stage_elements(p, tile, first_bundle, pass, thread, threads, patch);
            if (pass == 0) wait_for_kernel_before();  // which packed the filters
            wait_for_copies<0>();
            __syncthreads();
            if (works) {
                if constexpr (kHalvesShareKernels) {
                    if (p.conv.dtype == DType::bf16)
                        Wave::template multiply<bf16>(sums, bytes, pixels, table, filters, steps, lane);
                    else
                        Wave::template multiply<f16>(sums, bytes, pixels, table, filters, steps, lane);
                } else {
                    Wave::template multiply<T>(sums, bytes, pixels, table, filters, steps, lane);
                }
            }
            filters += pass_vectors;
        }

        __syncthreads();  // the patch is read: scratch lies there
        if (!works) return;
        float* const scratch = reinterpret_cast<float*>(lds) + wave * (kWaveSize / 2) * (Wave::kFilters + 4);
        const int strip_first = strip * Wave::kFilters, bundle_first = bundle * p.bundle_filters;
        int count = p.bundle_filters - strip_first;
        if (count > p.conv.out_channels - bundle_first - strip_first) count = p.conv.out_channels - bundle_first - strip_first;
#pragma unroll 1
        for (int number = 0; number < Wave::kRows / Wave::kRowsAtOnce; ++number) {
            if (number > 0) sync_wave();  // what was there is stored
            switch (number) {
                case 0:
                    Wave::template write<0>(sums, scratch, lane);
                    keep_apart<0>();
                    break;
                case 1:
                    Wave::template write<1>(sums, scratch, lane);
                    keep_apart<1>();
                    break;
                case 2:
                    Wave::template write<2>(sums, scratch, lane);
                    keep_apart<2>();
                    break;
                default:
                    Wave::template write<3>(sums, scratch, lane);
                    keep_apart<3>();
            }
            sync_wave();
            store_direct<Wave::kFilters>(first_parameter_again(p), tile, first_pixel + number * (kWaveSize / 2),
                                         {bundle_first + strip_first, count}, scratch, lane);
        }
    }
}

template <typename T, int kStripAtoms, bool kVectors>
void launch_direct_instance(const DirectParams& p, unsigned blocks, int threads, int shared_bytes, void* stream) {
    HIPCONV_LAUNCH(true, (conv2d_direct_kernel<T, kStripAtoms, kVectors>), dim3(blocks, 1, 1),
                   dim3(static_cast<unsigned>(threads), 1, 1), static_cast<unsigned>(launch_shared_bytes(shared_bytes)),
                   static_cast<hipStream_t>(stream), p);
    check_launch("conv2d");
}

template <bool kVectors>
void launch_direct(const DirectParams& p, unsigned blocks, int threads, int shared_bytes, void* stream) {
    const auto of_type = [&](auto type) {
        using T = decltype(type);
        const auto launch = p.strip_filters == 16 ? launch_direct_instance<T, 1, kVectors> : launch_direct_instance<T, 2, kVectors>;
        launch(p, blocks, threads, shared_bytes, stream);
    };
    if constexpr (!kHalvesShareKernels) {
        if (p.conv.dtype == DType::bf16) return of_type(bf16{});
    }
    of_type(f16{});
}

}  // namespace hipconv
