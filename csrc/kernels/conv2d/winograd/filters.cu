// Winograd's filter transform: U = G g Gt of each filter and channel, in f16, each filter times a power of two.
#include <hip/hip_runtime.h>

#include "launch/check.h"
#include "params.h"
#include "transforms.h"

namespace hipconv {

constexpr int kFilterThreads = 128;

template <typename T>
HIPCONV_INLINE float tap_of(const WinogradFiltersParams& p, const T* filter, int channel, int row, int column) {
    if (channel >= p.channels) return 0.0f;
    return to_float(filter[channel * p.weight.channel_stride + row * p.weight.row_stride + column * p.weight.column_stride]);
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
        for (int channel = thread; is_there && channel < p.channels; channel += kFilterThreads)
#pragma unroll
            for (int tap = 0; tap < 9; ++tap) {
                const float v = tap_of(p, taps, channel, tap / 3, tap % 3);
                sum += v < 0 ? -v : v;
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
        for (int pair = thread; pair < p.padded_channels / 2; pair += kFilterThreads) {
            Pair rows[3][kInputs];  // G g
#pragma unroll
            for (int column = 0; column < 3; ++column) {
                Pair g[3], to[kInputs];
#pragma unroll
                for (int row = 0; row < 3; ++row) {
                    g[row] = twice(0.0f);
                    if (is_there)
                        g[row] = times(scale, make_pair(tap_of(p, taps, pair * 2, row, column),
                                                        tap_of(p, taps, pair * 2 + 1, row, column)));
                }
                Winograd<kOutputs>::of_taps(g, to);
#pragma unroll
                for (int i = 0; i < kInputs; ++i) rows[column][i] = to[i];
            }
            uint32_t* const planes = global_pointer<uint32_t>(p.planes);
            const int64_t plane = static_cast<int64_t>(p.padded_filters) * (p.padded_channels / 2);
            const int64_t at = static_cast<int64_t>(filter) * (p.padded_channels / 2) + pair;
#pragma unroll
            for (int i = 0; i < kInputs; ++i) {
                const Pair g[3] = {rows[0][i], rows[1][i], rows[2][i]};
                Pair to[kInputs];
                Winograd<kOutputs>::of_taps(g, to);
#pragma unroll
                for (int j = 0; j < kInputs; ++j) planes[(i * kInputs + j) * plane + at] = pack<f16>(to[j]);
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
