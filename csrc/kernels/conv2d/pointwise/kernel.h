// Convolutions of 1x1 taps with few enough filters for LDS (`pointwise`): memory is all that they should wait for. A block
// brings its filters to LDS once, in the order in which lanes read them; then each wave goes its own way through the pixels.
// It reads the channels of 16 pixels from memory straight into the registers of the matrix instruction, those of the next 16
// while it multiplies these, and stores its sums from registers.
#pragma once

#include "params.h"

namespace hipconv {

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
HIPCONV_INLINE void load_pixels(PixelChunks<A, kSteps>& to, const PointwiseParams& p, int tile, int lane) {
    const Conv2dParams& c = p.conv;
#pragma unroll
    for (int i = 0; i < A::kRows; ++i) {
        const int number = tile * kRunPixels + A::row(lane, i);
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
    using P = RunAtom<T>;
    using A = typename P::A;
    const Conv2dParams& c = p.conv;
    constexpr int kAtOnce = 4;  // vectors of a thread that are under way
    const int count = p.filter_groups * kSteps * 2 * A::kRows * A::kChunks * kWaveSize;
    for (int first = thread; first < count; first += kAtOnce * kRunThreads) {
        Words4 loaded[kAtOnce];
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) {
            const int at = first + n * kRunThreads, lane = at % kWaveSize;
            int rest = at / kWaveSize;
            const int k = rest % A::kChunks;
            rest /= A::kChunks;
            const int i = rest % A::kRows;
            rest /= A::kRows;
            const int atom = rest % 2, s = rest / 2 % kSteps, group = rest / 2 / kSteps;
            const int filter = group * kRunFilters + P::template filter_of_column<2>(atom, A::row(lane, i));
            const int chunk = s * A::kStepChunks + A::chunk(lane, k);
            const uint64_t address =
                reinterpret_cast<uint64_t>(c.weight.data) + (filter * c.weight.batch_stride + chunk * 8) * 2;
            const bool wanted = filter < c.out_channels && chunk < p.chunks;
            loaded[n] =
                p.by_vectors ? load_chunk(address, wanted) : load_chunk_by_words(address, wanted, c.in_channels - chunk * 8);
        }
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n)
            if (first + n * kRunThreads < count) filters[first + n * kRunThreads] = loaded[n];
    }
    stage_bias(c, bias, p.filter_groups * kRunFilters, thread);
}

// T is a 16-bit type; where kHalvesShareKernels, f16 stands for both. Channels are kPieces times 32, or fewer.
template <typename T, int kPieces, bool kWords>
__global__ void HIPCONV_LAUNCH_BOUNDS(kRunThreads, pointwise_blocks(kPieces))
    conv2d_pointwise(HIPCONV_IN_PLACE const PointwiseParams parameter) {
    constexpr bool kIsLegal = kHasRunAtom<T>;
    HIPCONV_LARGE_SHARED(Words4, lds, kIsLegal && !kCopiesPastRegisters ? kPointwiseLds / 16 : 1);
    let_next_kernel_begin();
    if constexpr (kIsLegal) {
        using P = RunAtom<T>;
        using A = typename P::A;
        constexpr int kSteps = kPieces * 4 / A::kStepChunks, kWaves = kRunThreads / kWaveSize;
        constexpr int kGroupVectors = kSteps * 2 * A::kRows * A::kChunks * kWaveSize;  // of 32 filters
        constexpr bool kLoadsAhead = kPieces <= 4;                                     // else registers would not do
        const PointwiseParams& p = first_parameter_again(parameter);
        const int thread = threadIdx.x, wave = thread / kWaveSize, lane = thread % kWaveSize;
        float* const bias = reinterpret_cast<float*>(lds + p.filter_groups * kGroupVectors);
        const int lane_filter = P::lane_of_filters(lane) * 2 * P::kFilters, step = static_cast<int>(gridDim.x) * kWaves;
        int tile = static_cast<int>(blockIdx.x) + wave * static_cast<int>(gridDim.x);
        wait_for_kernel_before();
        PixelChunks<A, kSteps> x;
        if (kLoadsAhead && tile < p.tiles) load_pixels<kWords>(x, p, tile, lane);
        stage_filters<T, kSteps>(p, lds, bias, thread);
        __syncthreads();
#pragma unroll 1
        for (; tile < p.tiles; tile += step) {
            PixelChunks<A, kSteps> next;
            if constexpr (!kLoadsAhead)
                load_pixels<kWords>(x, p, tile, lane);
            else if (tile + step < p.tiles)
                load_pixels<kWords>(next, p, tile + step, lane);
            int64_t out[A::kRows], residual[A::kRows];
#pragma unroll
            for (int i = 0; i < A::kRows; ++i) {
                const int number = tile * kRunPixels + A::row(lane, i);
                const bool exists = number < p.pixels;
                out[i] = exists ? pointwise_offset(p, p.conv.out, p.out_is_dense, number, 1, 1) : -1;
                residual[i] = exists && p.conv.residual.data ? pointwise_offset(p, p.conv.residual, false, number, 1, 1) : 0;
            }
            const Words4* filters = lds + lane;
#pragma unroll 1
            for (int first = 0; first < p.conv.out_channels; first += kRunFilters) {
                typename A::Sums sums[2];
                const float* const own_bias = bias + first + lane_filter;
#pragma unroll
                for (int atom = 0; atom < 2; ++atom)
#pragma unroll
                    for (int e = 0; e < P::kElements; ++e) sums[atom][e] = own_bias[atom * P::kFilters + P::filter_of(e)];
                with_halves<T>(p.conv.dtype, [&](auto like) {
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
                });
                filters += kGroupVectors;
                for_each_eight<P>(sums, [&](float(&v)[8], int i, int eight) {
                    const int filter = first + lane_filter + eight;
                    if (out[i] < 0 || filter >= p.conv.out_channels) return;
                    store_finished_eight(p.conv, v, out[i] + filter, residual[i] + filter, filter, p.vector_stores);
                });
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
    HIPCONV_LAUNCH(true, (conv2d_pointwise<T, kPieces, kWords>), dim3(blocks, 1, 1), dim3(kRunThreads, 1, 1), shared,
                   static_cast<hipStream_t>(stream), p);
    check_launch("conv2d");
}

}  // namespace hipconv
