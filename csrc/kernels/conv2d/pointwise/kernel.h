// Convolutions of 1x1 taps with few enough filters for LDS (`pointwise`): memory is all that they should wait for. A block
// brings its filters to LDS once, in the order in which lanes read them; then each wave goes its own way through the pixels.
// It reads the channels of 16 pixels from memory straight into the registers of the matrix instruction, those of the next 16
// while it multiplies these, and stores its sums from registers.
//
// Which filter is which column of a matrix instruction is free. Columns are dealt out so that the sums of a lane, of two
// instructions, are those of consecutive filters, which it stores as vectors.
#pragma once

#include "../gemm/epilogue.h"
#include "launch/check.h"
#include "params.h"

namespace hipconv {

// RDNA 3's lanes read operands twice, and have no registers for that.
template <typename T>
constexpr bool kHasPointwise = matrix_unit_of<T>() != MatrixUnit::fma && matrix_unit_of<T>() != MatrixUnit::wmma11;

// The matrix instruction as this kernel sees it: a lane has sums of kPixels pixels, row(lane, i), each of kFilters consecutive
// filters of an atom's 16, if these are numbered by filter_of_column.
template <typename T>
struct PointwiseAtom {
    using A = WaveAtom<matrix_unit_of<T>(), T>;
    static constexpr MatrixUnit kUnit = matrix_unit_of<T>();
    static constexpr int kPixels = A::kRows, kElements = sizeof(typename A::Sums) / sizeof(float);
    static constexpr int kFilters = kElements / kPixels, kLanes = 16 / kFilters;  // lanes: that share a pixel

    static HIPCONV_INLINE int lane_of_filters(int lane) { return kUnit == MatrixUnit::mma_sync ? lane % 4 : lane / 16; }
    // The filter of a column, counted from those of two atoms.
    static HIPCONV_INLINE int filter_of_column(int atom, int column) {
        int owner = column / kFilters, of_owner = column % kFilters;
        if constexpr (kUnit == MatrixUnit::mma_sync) owner = column % 8 / 2, of_owner = column / 8 * 2 + column % 2;
        return owner * 2 * kFilters + atom * kFilters + of_owner;
    }
    // The pixel and the filter of a lane's sum.
    static HIPCONV_INLINE constexpr int pixel_of(int e) { return kUnit == MatrixUnit::mma_sync ? e / 2 % 2 : 0; }
    static HIPCONV_INLINE constexpr int filter_of(int e) { return kUnit == MatrixUnit::mma_sync ? e / 4 * 2 + e % 2 : e; }

    template <typename Like, typename Operand>
    static HIPCONV_INLINE void multiply(typename A::Sums& sums, const Operand& pixels, const Operand& filters) {
        WaveAtom<matrix_unit_of<Like>(), Like>::multiply_chunks(sums, pixels, filters);  // T, or what it stands for
    }
};

// The chunks of all channels of a lane's pixels.
template <typename A, int kSteps>
struct PointwisePixels {
    Words4 chunks[kSteps][A::kRows][A::kChunks];
};

HIPCONV_INLINE int64_t pointwise_offset(const PointwiseParams& p, const Image& image, bool is_dense, int number, int step_h,
                                        int step_w) {
    if (is_dense) return number * image.column_stride;
    const int n = static_cast<int>(divide(number, p.divide_by_image));
    const int of_image = number - n * p.conv.out_height * p.conv.out_width;
    const int row = static_cast<int>(divide(of_image, p.divide_by_row));
    return offset_in(image, n, 0, int64_t{row} * step_h, int64_t{of_image - row * p.conv.out_width} * step_w);
}

// Eight channels, of which there are `count` at least, by words.
HIPCONV_INLINE Words4 load_chunk_by_words(uint64_t address, bool wanted, int count) {
    Words4 words{};
#pragma unroll
    for (int w = 0; w < 4; ++w)
        if (wanted && 2 * w < count) set_word(words, w, global_pointer<const uint32_t>(address)[w]);
    return words;
}

template <bool kWords, typename A, int kSteps>
HIPCONV_INLINE void load_pixels(PointwisePixels<A, kSteps>& to, const PointwiseParams& p, int tile, int lane) {
    const Conv2dParams& c = p.conv;
#pragma unroll
    for (int i = 0; i < A::kRows; ++i) {
        const int number = tile * kPointwisePixels + A::row(lane, i);
        const bool exists = number < p.pixels;
        const int64_t offset = pointwise_offset(p, c.x, p.x_is_dense, exists ? number : 0, c.stride_h, c.stride_w);
        const uint64_t address = reinterpret_cast<uint64_t>(c.x.data) + offset * 2;
#pragma unroll
        for (int s = 0; s < kSteps; ++s)
#pragma unroll
            for (int k = 0; k < A::kChunks; ++k) {
                const int chunk = s * A::kStepChunks + A::chunk(lane, k);
                const bool wanted = exists && chunk < p.chunks;
                to.chunks[s][i][k] = kWords ? load_chunk_by_words(address + chunk * 16, wanted, c.in_channels - chunk * 8)
                                            : load_chunk(address + chunk * 16, wanted);
            }
    }
}

// Brings filters to LDS, vectors of a lane behind each other: by filters, steps, atoms, then rows and chunks of the lane.
template <typename T, int kSteps>
HIPCONV_INLINE void stage_filters(const PointwiseParams& p, Words4* filters, float* bias, int thread) {
    using P = PointwiseAtom<T>;
    using A = typename P::A;
    const Conv2dParams& c = p.conv;
    constexpr int kAtOnce = 4;  // vectors of a thread that are under way
    const int count = p.filter_groups * kSteps * 2 * A::kRows * A::kChunks * kWaveSize;
    for (int first = thread; first < count; first += kAtOnce * kPointwiseThreads) {
        Words4 loaded[kAtOnce];
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) {
            const int at = first + n * kPointwiseThreads, lane = at % kWaveSize;
            int rest = at / kWaveSize;
            const int k = rest % A::kChunks;
            rest /= A::kChunks;
            const int i = rest % A::kRows;
            rest /= A::kRows;
            const int atom = rest % 2, s = rest / 2 % kSteps, group = rest / 2 / kSteps;
            const int filter = group * kPointwiseFilters + P::filter_of_column(atom, A::row(lane, i));
            const int chunk = s * A::kStepChunks + A::chunk(lane, k);
            const uint64_t address =
                reinterpret_cast<uint64_t>(c.weight.data) + (filter * c.weight.batch_stride + chunk * 8) * 2;
            const bool wanted = filter < c.out_channels && chunk < p.chunks;
            loaded[n] =
                p.by_vectors ? load_chunk(address, wanted) : load_chunk_by_words(address, wanted, c.in_channels - chunk * 8);
        }
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n)
            if (first + n * kPointwiseThreads < count) filters[first + n * kPointwiseThreads] = loaded[n];
    }
    for (int k = thread; k < p.filter_groups * kPointwiseFilters; k += kPointwiseThreads)
        bias[k] =
            c.bias && k < c.out_channels ? load_parameter(global_pointer<void>(c.bias), k * c.bias_stride, c.bias_dtype) : 0.0f;
}

// Finishes and stores eight sums of a pixel.
HIPCONV_INLINE void store_pointwise(const Conv2dParams& c, float (&v)[8], int64_t out, int64_t residual) {
    if (c.residual.data) {
        float more[8];
        load_eight(more, c.residual.data, residual, c.residual_dtype);
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] += more[i];
    }
    activate_eight(v, c.activation);
    store_eight(v, c.out.data, out, c.out_dtype);
}

// The same, one by one, of `count` filters.
HIPCONV_INLINE void store_pointwise_elements(const Conv2dParams& c, const float (&v)[8], int64_t out, int64_t residual,
                                             int count) {
    const bool pairs = c.out_dtype != DType::f32 && !c.residual.data && c.activation == Conv2dActivation::none;
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        if (i >= count) continue;
        if (pairs) {
            const Pair pair = make_pair(canonical_nan(v[i]), canonical_nan(v[i + 1]));
            *global_pointer<uint32_t>(reinterpret_cast<uint64_t>(c.out.data) + (out + i) * 2) =
                c.out_dtype == DType::bf16 ? pack<bf16>(pair) : pack<f16>(pair);
            continue;
        }
#pragma unroll
        for (int e = i; e < i + 2; ++e) {
            float sum = v[e];
            if (c.residual.data) sum += load_parameter(global_pointer<void>(c.residual.data), residual + e, c.residual_dtype);
            store_rounded(global_pointer<void>(c.out.data), out + e, c.out_dtype, activate(sum, c.activation));
        }
    }
}

// T is a 16-bit type; where kHalvesShareKernels, f16 stands for both. Channels are kPieces times 32, or fewer.
template <typename T, int kPieces, bool kWords>
__global__ void HIPCONV_LAUNCH_BOUNDS(kPointwiseThreads, pointwise_blocks(kPieces))
    conv2d_pointwise(HIPCONV_IN_PLACE const PointwiseParams parameter) {
    constexpr bool kIsLegal = kHasPointwise<T>;
    HIPCONV_LARGE_SHARED(Words4, lds, kIsLegal && !kCopiesPastRegisters ? kPointwiseLds / 16 : 1);
    let_next_kernel_begin();
    if constexpr (kIsLegal) {
        using P = PointwiseAtom<T>;
        using A = typename P::A;
        constexpr int kSteps = kPieces * 4 / A::kStepChunks, kWaves = kPointwiseThreads / kWaveSize;
        constexpr int kGroupVectors = kSteps * 2 * A::kRows * A::kChunks * kWaveSize;  // of 32 filters
        constexpr bool kLoadsAhead = kPieces <= 4;                                     // else registers would not do
        const PointwiseParams& p = first_parameter_again(parameter);
        const int thread = threadIdx.x, wave = thread / kWaveSize, lane = thread % kWaveSize;
        float* const bias = reinterpret_cast<float*>(lds + p.filter_groups * kGroupVectors);
        const int lane_filter = P::lane_of_filters(lane) * 2 * P::kFilters, step = static_cast<int>(gridDim.x) * kWaves;
        int tile = static_cast<int>(blockIdx.x) + wave * static_cast<int>(gridDim.x);
        wait_for_kernel_before();
        PointwisePixels<A, kSteps> x;
        if (kLoadsAhead && tile < p.tiles) load_pixels<kWords>(x, p, tile, lane);
        stage_filters<T, kSteps>(p, lds, bias, thread);
        __syncthreads();
#pragma unroll 1
        for (; tile < p.tiles; tile += step) {
            PointwisePixels<A, kSteps> next;
            if constexpr (!kLoadsAhead)
                load_pixels<kWords>(x, p, tile, lane);
            else if (tile + step < p.tiles)
                load_pixels<kWords>(next, p, tile + step, lane);
            int64_t out[A::kRows], residual[A::kRows];
            bool exists[A::kRows];
#pragma unroll
            for (int i = 0; i < A::kRows; ++i) {
                const int number = tile * kPointwisePixels + A::row(lane, i);
                exists[i] = number < p.pixels;
                out[i] = pointwise_offset(p, p.conv.out, p.out_is_dense, exists[i] ? number : 0, 1, 1);
                residual[i] =
                    p.conv.residual.data ? pointwise_offset(p, p.conv.residual, false, exists[i] ? number : 0, 1, 1) : 0;
            }
            const Words4* filters = lds + lane;
#pragma unroll 1
            for (int first = 0; first < p.conv.out_channels; first += kPointwiseFilters) {
                typename A::Sums sums[2];
                const float* const own_bias = bias + first + lane_filter;
#pragma unroll
                for (int atom = 0; atom < 2; ++atom)
#pragma unroll
                    for (int e = 0; e < P::kElements; ++e) sums[atom][e] = own_bias[atom * P::kFilters + P::filter_of(e)];
                const auto multiply = [&](auto like) {
#pragma unroll
                    for (int s = 0; s < kSteps; ++s)
#pragma unroll
                        for (int atom = 0; atom < 2; ++atom) {
                            Words4 f[A::kRows][A::kChunks];
#pragma unroll
                            for (int i = 0; i < A::kRows; ++i)
#pragma unroll
                                for (int k = 0; k < A::kChunks; ++k)
                                    f[i][k] = filters[(((s * 2 + atom) * A::kRows + i) * A::kChunks + k) * kWaveSize];
                            P::template multiply<decltype(like)>(sums[atom], x.chunks[s], f);
                        }
                };
                if constexpr (kHalvesShareKernels) {
                    if (p.conv.dtype == DType::bf16)
                        multiply(bf16{});
                    else
                        multiply(f16{});
                } else {
                    multiply(T{});
                }
                filters += kGroupVectors;
#pragma unroll
                for (int i = 0; i < P::kPixels; ++i)
#pragma unroll
                    for (int eight = 0; eight < 2 * P::kFilters; eight += 8) {
                        float v[8];
#pragma unroll
                        for (int atom = 0; atom < 2; ++atom)
#pragma unroll
                            for (int e = 0; e < P::kElements; ++e) {
                                const int of_lane = atom * P::kFilters + P::filter_of(e) - eight;
                                if (P::pixel_of(e) == i && of_lane >= 0 && of_lane < 8) v[of_lane] = sums[atom][e];
                            }
                        const int filter = first + lane_filter + eight;
                        if (!exists[i] || filter >= p.conv.out_channels) continue;
                        if (p.vector_stores)
                            store_pointwise(p.conv, v, out[i] + filter, residual[i] + filter);
                        else
                            store_pointwise_elements(p.conv, v, out[i] + filter, residual[i] + filter,
                                                     p.conv.out_channels - filter);
                    }
            }
            if constexpr (kLoadsAhead) x = next;
        }
    }
}

template <typename T, int kPieces, bool kWords>
void launch_pointwise_instance(const PointwiseParams& p, unsigned blocks, int lds_bytes, void* stream) {
    const int shared = launch_shared_bytes(lds_bytes);
    (void)hipFuncSetAttribute(reinterpret_cast<const void*>(conv2d_pointwise<T, kPieces, kWords>),
                              hipFuncAttributeMaxDynamicSharedMemorySize, shared);
    HIPCONV_LAUNCH(true, (conv2d_pointwise<T, kPieces, kWords>), dim3(blocks, 1, 1), dim3(kPointwiseThreads, 1, 1), shared,
                   static_cast<hipStream_t>(stream), p);
    check_launch("conv2d");
}

}  // namespace hipconv
