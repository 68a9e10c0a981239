// Convolutions of few channels or few filters (`direct`): a block stages the patch of x that its pixels see in LDS once,
// and each wave multiplies it, tap by tap, by a strip of filters that it reads from the cache, packed as its matrix
// instruction takes them.
//
// Groups of few channels share a strip: a bundle of groups is one product of matrices whose filters are zero where channel and
// filter are of different groups, which costs no more than the padding that each group would need.
#pragma once

#include "epilogue.h"
#include "launch/check.h"
#include "params.h"
#include "staging.h"

namespace hipconv {

template <int kValue>
struct Constant {
    static constexpr int value = kValue;
};

template <typename T, int kStripAtoms>
struct DirectWave {
    using A = SmallAtom<matrix_unit_of<T>(), T>;
    static constexpr int kFilters = kStripAtoms * kAtomFilters;
    static constexpr int kPixels = kPartPixels * (kWaveSize / 32), kRows = kPixels / kAtomPixels;
    static constexpr int kRowsAtOnce = direct_atoms_stored(kFilters) * (kWaveSize / 32);  // that are stored
    static constexpr int kPixelsAtOnce = kRowsAtOnce * kAtomPixels;
    static constexpr int kStepVectors = A::kStepChunks * kAtomFilters;  // of an atom's packed filters
    static constexpr int kStepsAtOnce =
        kCopiesPastRegisters ? 2 : 1;  // AMD's compiler does not unroll a loop of matrix instructions
    using Sums = typename A::Sums[kRows][kStripAtoms];
    static constexpr int kElements = sizeof(typename A::Sums) / sizeof(float);

    // The sums begin with the bias of the strip's filters from `first` on, of which there are `count`.
    static HIPCONV_INLINE void begin(Sums& sums, const Conv2dParams& c, int first, int count, int lane) {
        float bias[kStripAtoms][kElements] = {};
        if (c.bias)
            with_dtype(c.bias_dtype, [&](auto type) {
                const auto* from = global_pointer<const decltype(type)>(c.bias) + first * c.bias_stride;
#pragma unroll
                for (int j = 0; j < kStripAtoms; ++j)
#pragma unroll
                    for (int e = 0; e < kElements; ++e) {
                        const int filter = j * kAtomFilters + A::filter(lane, e);
                        if (filter < count) bias[j][e] = canonical_nan(to_float(from[filter * c.bias_stride]));
                    }
            });
#pragma unroll
        for (int i = 0; i < kRows; ++i)
#pragma unroll
            for (int j = 0; j < kStripAtoms; ++j)
#pragma unroll
                for (int e = 0; e < kElements; ++e) sums[i][j][e] = bias[j][e];
    }

    // Takes the steps of a pass. Places and filters of the next step are under way while this one is multiplied; behind the
    // last one there is room for another.
    template <typename Like>
    static HIPCONV_INLINE void multiply(Sums& sums, const char* lds, const int (&pixels)[kRows], const int* table,
                                        const Words4* filters, int steps, int lane) {
        using B = SmallAtom<matrix_unit_of<Like>(), Like>;  // T, or what it stands for
        Places at = B::places(table, lane);
        decltype(B::load_filters(filters, lane)) f[kStripAtoms];
#pragma unroll
        for (int j = 0; j < kStripAtoms; ++j) f[j] = B::load_filters(filters + j * kStepVectors, lane);
#pragma unroll kStepsAtOnce
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

    // Tells whether one of the lane's sums is NaN, of those that are stored at once.
    template <int kNumber>
    static HIPCONV_INLINE bool has_nan(const Sums& sums) {
        bool nan = false;
#pragma unroll
        for (int i = 0; i < count_of<kNumber>(); ++i)
#pragma unroll
            for (int j = 0; j < kStripAtoms; ++j)
#pragma unroll
                for (int e = 0; e < kElements; ++e)
                    nan = nan || sums[kNumber * kRowsAtOnce + i][j][e] != sums[kNumber * kRowsAtOnce + i][j][e];
        return nan;
    }

    // Writes them to scratch.
    template <int kNumber>
    static HIPCONV_INLINE void write(const Sums& sums, float* scratch, int lane) {
#pragma unroll
        for (int i = 0; i < count_of<kNumber>(); ++i)
#pragma unroll
            for (int j = 0; j < kStripAtoms; ++j)
#pragma unroll
                for (int e = 0; e < kElements; e += A::kRun) {
                    Words<float, A::kRun> run{};
#pragma unroll
                    for (int n = 0; n < A::kRun; ++n)
                        set_word(run, n, bit_cast<uint32_t>(float{sums[kNumber * kRowsAtOnce + i][j][e + n]}));
                    *reinterpret_cast<Words<float, A::kRun>*>(scratch + place(i, j, e, lane, kFilters + 4)) = run;
                }
    }

    // Writes them, or `least` where they are less, rounded to Out.
    template <int kNumber, typename Out>
    static HIPCONV_INLINE void write_rounded(const Sums& sums, uint16_t* scratch, float least, int lane) {
#pragma unroll
        for (int i = 0; i < count_of<kNumber>(); ++i)
#pragma unroll
            for (int j = 0; j < kStripAtoms; ++j)
#pragma unroll
                for (int e = 0; e < kElements; e += A::kRun) {
                    float v[A::kRun];
#pragma unroll
                    for (int n = 0; n < A::kRun; ++n) {
                        v[n] = sums[kNumber * kRowsAtOnce + i][j][e + n];
                        if (v[n] < least) v[n] = least;
                    }
                    Words<uint16_t, A::kRun> run{};
                    if constexpr (A::kRun == 1) {
                        run = bit_cast<uint16_t>(from_float<Out>(v[0]));
                    } else {
#pragma unroll
                        for (int n = 0; n < A::kRun; n += 2) set_word(run, n / 2, pack<Out>(make_pair(v[n], v[n + 1])));
                    }
                    *reinterpret_cast<Words<uint16_t, A::kRun>*>(scratch + place(i, j, e, lane, kFilters + 8)) = run;
                }
    }

  private:
    template <int kNumber>
    static HIPCONV_INLINE constexpr int count_of() {
        return kNumber * kRowsAtOnce < kRows ? kRowsAtOnce : 0;
    }
    static HIPCONV_INLINE int place(int i, int j, int e, int lane, int pitch) {
        return (i * kAtomPixels + A::pixel(lane, e)) * pitch + j * kAtomFilters + A::filter(lane, e);
    }
};

// T is a 16-bit type; where kHalvesShareKernels, f16 stands for both.
template <typename T, int kStripAtoms>
__global__ void HIPCONV_LAUNCH_BOUNDS(kDirectThreads, direct_blocks_a_unit(kStripAtoms)) conv2d_direct_kernel(DirectParams p) {
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
        constexpr int kLog2Pixels = Wave::kPixels == 128 ? 7 : 6;
        const int log2_along = p.log2_tile > kLog2Pixels ? p.log2_tile - kLog2Pixels : 0;
        const int wave_strip = wave >> log2_along, first_pixel = (wave & ((1 << log2_along) - 1)) << kLog2Pixels;
        const int bundle_of_blocks = static_cast<int>(divide(filter_block, p.divide_by_bundle_blocks));
        const int first_bundle = bundle_of_blocks * p.block_bundles;
        const int of_block = p.block_bundles > 1 ? static_cast<int>(divide(wave_strip, p.divide_by_strips)) : 0;
        const int strip =
            (filter_block - bundle_of_blocks * p.bundle_blocks) * p.block_strips + wave_strip - of_block * p.strips;
        const int bundle = first_bundle + of_block;
        const bool works = bundle < p.bundles && strip < p.strips;

        const DirectTables tables = tables_of(p, lds);
        write_tables(first_parameter_again(p), tables, tile, thread, threads);
        __syncthreads();
        const int first_filter = bundle * p.bundle_filters + strip * Wave::kFilters;
        int count = p.bundle_filters - strip * Wave::kFilters;
        if (count > Wave::kFilters) count = Wave::kFilters;
        if (count > p.conv.out_channels - first_filter) count = p.conv.out_channels - first_filter;
        typename Wave::Sums sums;
        const auto begin = [&] { Wave::begin(sums, first_parameter_again(p).conv, first_filter, works ? count : 0, lane); };
        if constexpr (!kCopiesPastRegisters) begin();
        const int64_t of_strip = (static_cast<int64_t>(bundle) * p.strips + strip) * p.strip_vectors;
        const Words4* filters = global_pointer<const Words4>(p.filters) + (works ? of_strip : 0);
        int pixels[Wave::kRows];
#pragma unroll 1
        for (int pass = 0; pass < p.passes; ++pass) {
            if (pass > 0) __syncthreads();  // the patch before is read
            const DirectParams& here = first_parameter_again(p);
            if (here.vectors)
                stage_vectors(first_parameter_again(p), tables, first_bundle, pass, thread, threads);
            else if (here.windows)
                stage_windows(first_parameter_again(p), tables, pass, thread, threads);
            else
                stage_elements(first_parameter_again(p), tables, first_bundle, pass, thread, threads);
            if (pass == 0) {  // while the patch is under way
                write_pixels(first_parameter_again(p), tables, tile, thread, threads);
                write_places(first_parameter_again(p), tables, thread, threads);
                if constexpr (kCopiesPastRegisters) begin();
                wait_for_kernel_before();  // which packed the filters
            }
            wait_for_copies<0>();
            __syncthreads();
            if (pass == 0) {
#pragma unroll
                for (int i = 0; i < Wave::kRows; ++i)
                    pixels[i] =
                        tables.pixels[first_pixel + i * kAtomPixels + lane % kAtomPixels].slot + of_block * p.chunks * 16;
            }
            const DirectParams& again = first_parameter_again(p);
            const int steps = (again.taps * again.chunks + Wave::A::kStepChunks - 1) / Wave::A::kStepChunks;
            if (works) {
                if constexpr (kHalvesShareKernels) {
                    if (p.conv.dtype == DType::bf16)
                        Wave::template multiply<bf16>(sums, reinterpret_cast<const char*>(lds), pixels, tables.places, filters,
                                                      steps, lane);
                    else
                        Wave::template multiply<f16>(sums, reinterpret_cast<const char*>(lds), pixels, tables.places, filters,
                                                     steps, lane);
                } else {
                    Wave::template multiply<T>(sums, reinterpret_cast<const char*>(lds), pixels, tables.places, filters, steps,
                                               lane);
                }
            }
            filters += again.entries * kAtomFilters * kStripAtoms;
        }

        __syncthreads();  // the patch is read: scratch lies there
        if (!works) return;
        float* const scratch = reinterpret_cast<float*>(reinterpret_cast<char*>(lds) + p.scratch_begin) +
                               wave * Wave::kPixelsAtOnce * (Wave::kFilters + 4);
        uint16_t* const rounded = reinterpret_cast<uint16_t*>(scratch);
        const float infinity = bit_cast<float>(0x7f800000u),
                    floor = p.conv.activation == Conv2dActivation::relu ? 0.0f : -infinity;
        const uint64_t out =
            reinterpret_cast<uint64_t>(p.conv.out.data) +
            element_bytes(p.conv.out_dtype) * offset_in(p.conv.out, tile.image, first_filter, tile.row, tile.column);
#pragma unroll 1
        for (int number = 0; number < Wave::kRows / Wave::kRowsAtOnce; ++number) {
            if (number > 0) sync_wave();  // what was there is stored
            bool nan = false;
            float least = floor;
            in_a_register(least);  // what is rounded here is not rounded before the loop, where registers would not do
            const DirectParams& again = first_parameter_again(p);
            const auto write = [&](auto constant) {
                constexpr int kNumber = decltype(constant)::value;
                nan = __ballot(Wave::template has_nan<kNumber>(sums)) != 0;
                if (!again.rounds_early || nan) {
                    Wave::template write<kNumber>(sums, scratch, lane);
                } else if (again.conv.out_dtype == DType::bf16) {
                    Wave::template write_rounded<kNumber, bf16>(sums, rounded, least, lane);
                } else {
                    Wave::template write_rounded<kNumber, f16>(sums, rounded, least, lane);
                }
                keep_apart<kNumber>();
            };
            if (number == 0)
                write(Constant<0>{});
            else if (number == 1)
                write(Constant<1>{});
            else if (number == 2)
                write(Constant<2>{});
            else
                write(Constant<3>{});
            sync_wave();
            const int first = first_pixel + number * Wave::kPixelsAtOnce;
            if (again.rounds_early && !nan) {
                store_direct_rounded<Wave::kPixelsAtOnce, Wave::kFilters>(again, tables.pixels, out, first, count, rounded,
                                                                          lane);
                continue;
            }
            if (nan) {
                mend_sums<Wave::kPixelsAtOnce, Wave::kFilters>(again, tile, first, {first_filter, count}, scratch, lane);
                sync_wave();
            }
            store_direct<Wave::kPixelsAtOnce, Wave::kFilters>(again, tile, tables.pixels, out, first, {first_filter, count},
                                                              scratch, lane);
        }
    }
}

template <typename T, int kStripAtoms>
void launch_direct_instance(const DirectParams& p, DirectLaunch of, void* stream) {
    HIPCONV_LAUNCH(of.early, (conv2d_direct_kernel<T, kStripAtoms>), dim3(of.blocks, 1, 1),
                   dim3(static_cast<unsigned>(of.threads), 1, 1), static_cast<unsigned>(launch_shared_bytes(of.shared_bytes)),
                   static_cast<hipStream_t>(stream), p);
    check_launch("conv2d");
}

}  // namespace hipconv
