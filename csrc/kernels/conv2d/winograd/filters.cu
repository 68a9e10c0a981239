// Winograd's filter transform: U = G g Gt of each filter and channel, in f16, each filter times a power of two.
#include <hip/hip_runtime.h>

#include "launch/check.h"
#include "params.h"
#include "transforms.h"

namespace hipconv {

constexpr int kFilterThreads = 128;

// The taps of a channel, or zeros.
template <typename T>
HIPCONV_INLINE void load_taps(const WinogradFiltersParams& p, const T* filter, int channel, bool is_there, float (&g)[3][3]) {
    const T* const from = filter + (is_there ? channel * p.weight.channel_stride : 0);
    uint32_t mask = is_there ? 0xffffu : 0;
    from_here_on(mask);
#pragma unroll
    for (int row = 0; row < 3; ++row)
#pragma unroll
        for (int column = 0; column < 3; ++column) {
            const uint32_t bits = from[row * p.weight.row_stride + column * p.weight.column_stride].bits & mask;
            g[row][column] = to_float(T{static_cast<uint16_t>(bits)});
        }
}

// A block transforms a filter. Filters behind the last one are zeros.
template <typename T, int kOutputs>
__global__ void HIPCONV_LAUNCH_BOUNDS(kFilterThreads, 4) conv2d_winograd_filters(WinogradFiltersParams p) {
    constexpr int kInputs = Winograd<kOutputs>::kInputs;
    HIPCONV_SHARED(float, sums, kFilterThreads);
    let_next_kernel_begin();
    wait_for_kernel_before();
    const int thread = threadIdx.x;
    for (int filter = blockIdx.x; filter < p.padded_filters; filter += gridDim.x) {
        const bool is_there = filter < p.filters;
        const T* const taps = global_pointer<const T>(p.weight.data) + (is_there ? filter * p.weight.batch_stride : 0);
        float sum = 0.0f;
#pragma unroll 1
        for (int channel = thread; channel < p.channels; channel += kFilterThreads) {
            float g[3][3];
            load_taps(p, taps, channel, is_there, g);
#pragma unroll
            for (int tap = 0; tap < 9; ++tap) sum += g[tap / 3][tap % 3] < 0 ? -g[tap / 3][tap % 3] : g[tap / 3][tap % 3];
        }
        sums[thread] = sum;
        __syncthreads();
#pragma unroll 1
        for (int distance = kFilterThreads / 2; distance > 0; distance /= 2) {
            if (thread < distance) sums[thread] += sums[thread + distance];
            __syncthreads();
        }
        const int exponent = exponent_to(bit_cast<uint32_t>(sums[0]) & 0x7fffffffu, kFilterExponent);
        __syncthreads();  // the next filter writes the sums
        const float scale = power_of_two(exponent);
        if (thread == 0) global_pointer<int32_t>(p.exponents)[filter] = exponent;
#pragma unroll 1
        for (int pair = thread; pair < p.padded_channels / 2; pair += kFilterThreads) {
            float first[3][3], second[3][3];
            load_taps(p, taps, pair * 2, is_there && pair * 2 < p.channels, first);
            load_taps(p, taps, pair * 2 + 1, is_there && pair * 2 + 1 < p.channels, second);
            Pair rows[3][kInputs];  // G g, by columns
#pragma unroll
            for (int column = 0; column < 3; ++column) {
                Pair g[3];
#pragma unroll
                for (int row = 0; row < 3; ++row) g[row] = times(scale, make_pair(first[row][column], second[row][column]));
                Winograd<kOutputs>::of_taps(g, rows[column]);
            }
            uint32_t plane = static_cast<uint32_t>(p.padded_filters) * static_cast<uint32_t>(p.padded_channels / 2);
            from_here_on(plane);  // not the address of each plane in scalar registers, of which there are too few
            uint32_t* to_plane = global_pointer<uint32_t>(p.planes) + int64_t{filter} * (p.padded_channels / 2) + pair;
#pragma unroll
            for (int i = 0; i < kInputs; ++i) {
                const Pair g[3] = {rows[0][i], rows[1][i], rows[2][i]};
                Pair to[kInputs];
                Winograd<kOutputs>::of_taps(g, to);
#pragma unroll
                for (int j = 0; j < kInputs; ++j, to_plane += plane) *to_plane = pack<f16>(to[j]);
            }
        }
    }
}

void launch_winograd_filters(const WinogradFiltersParams& p, int outputs, void* stream) {
    const dim3 grid(static_cast<unsigned>(p.padded_filters < (1 << 20) ? p.padded_filters : 1 << 20), 1, 1);
    const bool is_bf16 = p.dtype == DType::bf16;
    const auto kernel = outputs == 2 ? is_bf16 ? conv2d_winograd_filters<bf16, 2> : conv2d_winograd_filters<f16, 2>
                        : is_bf16 ? conv2d_winograd_filters<bf16, 4>
                                     : conv2d_winograd_filters<f16, 4>;
    HIPCONV_LAUNCH(false, kernel, grid, dim3(kFilterThreads, 1, 1), 0, static_cast<hipStream_t>(stream), p);
    check_launch("conv2d");
}

}  // namespace hipconv
