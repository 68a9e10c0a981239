// Layers of few filters (`few_filters`), such as the last one of an image decoder: memory is all that they should wait for. All
// taps of all filters are columns of a product of matrices whose rows are pixels of x, so that each element of x is read once,
// but for a halo, and multiplied once: 3x3 taps of 3 filters are 27 columns.
//
// A block has a rectangle of outputs. Its waves multiply the patch of x that these see, 16 pixels at a time, which they read
// from memory straight into the registers of the matrix instruction, and write the sums to LDS. Sum [column][pixel] belongs to
// the output that sees the pixel by this tap: an output is the sum of those that its taps find there.
#pragma once

#include "../common/padding.h"
#include "params.h"

namespace hipconv {

// Where a tile begins, in outputs.
struct FewRectangle {
    int image, row, column;

    HIPCONV_INLINE FewRectangle(const FewFiltersParams& p, int number) {
        const int line = static_cast<int>(divide(number, p.divide_by_across));
        image = static_cast<int>(divide(line, p.divide_by_down));
        row = (line - image * p.down) * p.tile_rows;
        column = (number - line * p.across) * p.tile_columns;
    }
};

// The pixel of 16 that is a row of the matrix instruction: where a lane has two rows, they are neighbours.
template <typename A>
HIPCONV_INLINE int pixel_of_row(int row) {
    return A::kRows == 2 ? row % 8 * 2 + row / 8 : row;
}

// A lane's pixels of 16 of the patch, from number `first` on: where their channels begin, if they lie in x.
template <typename A>
struct PatchSources {
    uint64_t from[A::kRows];
    bool exists[A::kRows];

    HIPCONV_INLINE PatchSources(const FewFiltersParams& p, const FewRectangle& tile, int first, int lane) {
        const Conv2dParams& c = p.conv;
#pragma unroll
        for (int i = 0; i < A::kRows; ++i) {
            const int number = first + pixel_of_row<A>(A::row(lane, i));
            const int of_patch = static_cast<int>(divide(number, p.divide_by_patch_columns));
            int row = tile.row - c.pad_top + of_patch;
            int column = tile.column - c.pad_left - p.patch_begin + number - of_patch * p.patch_columns;
            const auto is_inside = [&] {
                return static_cast<uint32_t>(row) < static_cast<uint32_t>(c.in_height) &&
                       static_cast<uint32_t>(column) < static_cast<uint32_t>(c.in_width);
            };
            bool inside = is_inside();
            if (!inside && c.padding_mode != PaddingMode::zeros) {  // pixels that no output sees may lie far outside
                row = static_cast<int>(padded_index(row, c.in_height, c.padding_mode));
                column = static_cast<int>(padded_index(column, c.in_width, c.padding_mode));
                inside = is_inside();
            }
            exists[i] = inside && number < p.patch_pixels;
            from[i] = reinterpret_cast<uint64_t>(c.x.data) + (exists[i] ? 2 * offset_in(c.x, tile.image, 0, row, column) : 0);
        }
    }
};

// Loads eight channels of contiguous pixels one by one; in pairs, both pixels of a lane by one read.
template <bool kPairs, typename A>
HIPCONV_INLINE void load_elements(Words4 (&to)[A::kRows][A::kChunks], int k, const Conv2dParams& c,
                                  const PatchSources<A>& sources, int first_channel) {
    constexpr int kReads = kPairs ? 1 : A::kRows;
    uint32_t bits[kReads][8];
#pragma unroll
    for (int e = 0; e < 8; ++e) {
        const int channel = first_channel + e;
        const int64_t offset = channel < c.in_channels ? channel * c.x.channel_stride * 2 : 0;
#pragma unroll
        for (int i = 0; i < kReads; ++i) {
            uint32_t loaded;
            if constexpr (kPairs)
                loaded = *global_pointer<const uint32_t>(sources.from[i] + offset);
            else
                loaded = *global_pointer<const uint16_t>(sources.from[i] + offset);
            bits[i][e] = channel < c.in_channels && sources.exists[i] ? loaded : 0;
        }
    }
#pragma unroll
    for (int w = 0; w < 4; ++w)
#pragma unroll
        for (int i = 0; i < A::kRows; ++i) {
            const int read = kPairs ? 0 : i;
            const uint32_t a = bits[read][2 * w], b = bits[read][2 * w + 1];
            set_word(to[i][k], w, kPairs && i == 1 ? upper_halves(a, b) : lower_halves(a, b));
        }
}

// Loads a step's chunks of a lane's pixels; what lies outside x is zeros.
template <typename A>
HIPCONV_INLINE void load_step(Words4 (&to)[A::kRows][A::kChunks], const FewFiltersParams& p, const PatchSources<A>& sources,
                              int step, int lane) {
    const Conv2dParams& c = p.conv;
#pragma unroll
    for (int k = 0; k < A::kChunks; ++k) {
        const int channel = (step * A::kStepChunks + A::chunk(lane, k)) * 8;
        if (p.reads == FewReads::vectors) {
#pragma unroll
            for (int i = 0; i < A::kRows; ++i)
                to[i][k] = load_chunk(sources.from[i] + channel * 2, sources.exists[i] && channel < c.in_channels);
        } else if (A::kRows == 2 && p.reads == FewReads::pairs) {
            load_elements<true>(to, k, c, sources, channel);
        } else {
            load_elements<false>(to, k, c, sources, channel);
        }
    }
}

// Brings filters to LDS, vectors of a lane behind each other: by passes, groups of 32 columns, steps, atoms, then rows and
// chunks of the lane. A column is a tap of a filter, the taps of a filter behind each other.
template <typename T, int kGroups, int kSteps>
HIPCONV_INLINE void stage_columns(const FewFiltersParams& p, Words4* filters, int thread) {
    using P = RunAtom<T>;
    using A = typename P::A;
    const Conv2dParams& c = p.conv;
    const int count = p.passes * kGroups * kSteps * 2 * A::kRows * A::kChunks * kWaveSize;
#pragma unroll 1
    for (int at = thread; at < count; at += kRunThreads) {
        const int lane = at % kWaveSize;
        int rest = at / kWaveSize;
        const int k = rest % A::kChunks;
        rest /= A::kChunks;
        const int i = rest % A::kRows;
        rest /= A::kRows;
        const int atom = rest % 2, s = rest / 2 % kSteps;
        rest /= 2 * kSteps;
        const int group = rest % kGroups, pass = rest / kGroups;
        const int column = group * kRunFilters + P::template filter_of_column<2>(atom, A::row(lane, i));
        const int filter = static_cast<int>(divide(column, p.divide_by_taps)), tap = column - filter * p.taps;
        const int row = static_cast<int>(divide(tap, p.divide_by_width));
        const int channel = ((pass * kSteps + s) * A::kStepChunks + A::chunk(lane, k)) * 8;
        const bool exists = column < p.columns;
        const int64_t from = exists ? offset_in(c.weight, filter, 0, row, tap - row * c.kernel_width) : 0;
        uint32_t bits[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const bool counts = exists && channel + e < c.in_channels;
            const int64_t offset = counts ? from + (channel + e) * c.weight.channel_stride : 0;
            const uint32_t loaded = *global_pointer<const uint16_t>(reinterpret_cast<uint64_t>(c.weight.data) + 2 * offset);
            bits[e] = counts ? loaded : 0;
        }
        Words4 words{};
#pragma unroll
        for (int w = 0; w < 4; ++w) set_word(words, w, bits[2 * w] | bits[2 * w + 1] << 16);
        filters[at] = words;
    }
}

// Stores the outputs of a tile, a thread each. kTaps: along a row and a column, or 0 where that is known only at run time.
template <int kTaps>
HIPCONV_INLINE void store_tile(const FewFiltersParams& p, const FewRectangle& tile, const float* sums, int thread) {
    const Conv2dParams& c = p.conv;
    for (int number = thread; number < p.tile_rows * p.tile_columns; number += kRunThreads) {
        const int of_tile = static_cast<int>(divide(number, p.divide_by_tile_columns));
        const int of_row = number - of_tile * p.tile_columns, row = tile.row + of_tile, column = tile.column + of_row;
        if (row >= c.out_height || column >= c.out_width) continue;
        const float* at = sums + of_tile * p.patch_columns + of_row + p.patch_begin;
#pragma unroll 1
        for (int filter = 0; filter < c.out_channels; ++filter, at += p.taps * p.pitch) {
            float sum = 0.0f;
            if constexpr (kTaps > 0) {
#pragma unroll
                for (int tap = 0; tap < kTaps * kTaps; ++tap)
                    sum += at[tap * p.pitch + tap / kTaps * p.patch_columns + tap % kTaps];
            } else {
                const float* of_tap = at;
#pragma unroll 1
                for (int r = 0; r < c.kernel_height; ++r)
#pragma unroll 1
                    for (int s = 0; s < c.kernel_width; ++s, of_tap += p.pitch)
                        sum += of_tap[r * c.dilation_h * p.patch_columns + s * c.dilation_w];
            }
            conv2d_store(c, tile.image, filter, row, column, sum);
        }
    }
}

// T is a 16-bit type; where kHalvesShareKernels, f16 stands for both. There are kGroups times 32 columns, or fewer; a pass has
// kPieces times 32 channels, or fewer.
template <typename T, int kGroups, int kPieces>
__global__ void HIPCONV_LAUNCH_BOUNDS(kRunThreads, kFewFiltersBlocks)
    conv2d_few_filters(HIPCONV_IN_PLACE const FewFiltersParams parameter) {
    constexpr bool kIsLegal = kHasRunAtom<T>;
    HIPCONV_LARGE_SHARED(Words4, lds, kIsLegal && !kCopiesPastRegisters ? kFewFiltersLds / 16 : 1);
    let_next_kernel_begin();
    if constexpr (kIsLegal) {
        using P = RunAtom<T>;
        using A = typename P::A;
        constexpr int kSteps = kPieces * 4 / A::kStepChunks, kWaves = kRunThreads / kWaveSize;
        constexpr int kGroupVectors = kSteps * 2 * A::kRows * A::kChunks * kWaveSize;  // of 32 columns and a pass
        const FewFiltersParams& p = first_parameter_again(parameter);
        const int thread = threadIdx.x, wave = thread / kWaveSize, lane = thread % kWaveSize;
        float* const sums_in_lds = reinterpret_cast<float*>(lds + p.passes * kGroups * kGroupVectors);
        const int of_lane = P::lane_of_filters(lane) * P::kFilters;
        wait_for_kernel_before();
        // The chunks of the next pixels, of this tile or the next one, are loaded as soon as those before are multiplied.
        PixelChunks<A, kSteps> x;
        if (static_cast<int>(blockIdx.x) < p.tiles) {
            const PatchSources<A> sources(p, FewRectangle(p, blockIdx.x), wave * kRunPixels, lane);
#pragma unroll
            for (int s = 0; s < kSteps; ++s) load_step<A>(x.chunks[s], p, sources, s, lane);
        }
        stage_columns<T, kGroups, kSteps>(p, lds, thread);
        __syncthreads();
#pragma unroll 1
        for (int number = blockIdx.x; number < p.tiles; number += gridDim.x) {
            const FewRectangle tile(p, number);
#pragma unroll 1
            for (int first = wave * kRunPixels; first < p.patch_pixels; first += kWaves * kRunPixels) {
                typename A::Sums sums[kGroups][2] = {};
#pragma unroll 1
                for (int pass = 0; pass < p.passes; ++pass) {
                    const FewFiltersParams& here = first_parameter_again(parameter);
                    const bool more_passes = pass + 1 < here.passes;
                    const bool more_pixels = more_passes || first + kWaves * kRunPixels < here.patch_pixels;
                    const int next_number = more_pixels ? number : number + static_cast<int>(gridDim.x);
                    const int next_first = more_passes ? first : more_pixels ? first + kWaves * kRunPixels : wave * kRunPixels;
                    const PatchSources<A> next(here, FewRectangle(here, next_number < here.tiles ? next_number : number),
                                               next_first, lane);
                    const int next_step = more_passes ? (pass + 1) * kSteps : 0;
                    const Words4* filters = lds + pass * kGroups * kGroupVectors + lane;
                    with_halves<T>(here.conv.dtype, [&](auto like) {
#pragma unroll
                        for (int s = 0; s < kSteps; ++s) {
#pragma unroll
                            for (int group = 0; group < kGroups; ++group)
#pragma unroll
                                for (int atom = 0; atom < 2; ++atom) {
                                    Words4 f[A::kRows][A::kChunks];
#pragma unroll
                                    for (int i = 0; i < A::kRows; ++i)
#pragma unroll
                                        for (int k = 0; k < A::kChunks; ++k)
                                            f[i][k] = filters[group * kGroupVectors +
                                                              (((s * 2 + atom) * A::kRows + i) * A::kChunks + k) * kWaveSize];
                                    P::template multiply<decltype(like)>(sums[group][atom], x.chunks[s], f);
                                }
                            load_step<A>(x.chunks[s], here, next, next_step + s, lane);
                        }
                    });
                }
#pragma unroll
                for (int group = 0; group < kGroups; ++group)
#pragma unroll
                    for (int atom = 0; atom < 2; ++atom)
#pragma unroll
                        for (int e = 0; e < P::kElements; ++e) {
                            const int column = group * kRunFilters + 2 * of_lane + atom * P::kFilters + P::filter_of(e);
                            const int pixel = first + pixel_of_row<A>(A::row(lane, P::pixel_of(e)));
                            if (column < p.columns && pixel < p.pitch)
                                sums_in_lds[column * p.pitch + pixel] = sums[group][atom][e];
                        }
            }
            __syncthreads();
            const FewFiltersParams& again = first_parameter_again(parameter);
            const Conv2dParams& c = again.conv;
            if (c.kernel_height == 3 && c.kernel_width == 3 && c.dilation_h == 1 && c.dilation_w == 1)
                store_tile<3>(again, tile, sums_in_lds, thread);
            else
                store_tile<0>(again, tile, sums_in_lds, thread);
            __syncthreads();  // the sums are read
        }
    }
}

template <typename T, int kGroups, int kPieces>
void launch_few_filters_instance(const FewFiltersParams& p, unsigned blocks, int lds_bytes, void* stream) {
    const int shared = launch_shared_bytes(lds_bytes);
    (void)hipFuncSetAttribute(reinterpret_cast<const void*>(conv2d_few_filters<T, kGroups, kPieces>),
                              hipFuncAttributeMaxDynamicSharedMemorySize, shared);
    HIPCONV_LAUNCH(true, (conv2d_few_filters<T, kGroups, kPieces>), dim3(blocks, 1, 1), dim3(kRunThreads, 1, 1), shared,
                   static_cast<hipStream_t>(stream), p);
    check_launch("conv2d");
}

}  // namespace hipconv
