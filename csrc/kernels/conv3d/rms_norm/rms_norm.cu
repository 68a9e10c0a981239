// The norm of rms_norm.h. Neighbouring lanes, a power of two of them, have a pixel, whose channels stay in their registers from
// the sum of squares to the result: each element is read once and written once.
#include <hip/hip_runtime.h>

#include "conv3d/rms_norm.h"
#include "device/activation.h"
#include "device/vec.h"
#include "launch/check.h"

namespace hipconv {

namespace {

constexpr int kThreads = 256, kMostLanes = 32;
constexpr int kChunks = 4;  // chunks of 16 bytes of a pixel that a lane has, at most

int log2_lanes_of(int32_t chunks) {
    int log2 = 0;
    while (kChunks << log2 < chunks) ++log2;
    return log2;
}

}  // namespace

template <typename T>
__global__ void HIPCONV_LAUNCH_BOUNDS(kThreads, 2) conv3d_rms_norm_kernel(RmsNormParams p, int log2_lanes) {
    constexpr int kEach = 16 / static_cast<int>(sizeof(T)), kPairs = kEach / 2;
    const int lanes = 1 << log2_lanes, lane = threadIdx.x & (lanes - 1), chunks = p.channels / kEach;
    const int64_t pixels_of_block = kThreads >> log2_lanes, count = p.batch * p.pixels;
    Words4 weight[kChunks];
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
        const int chunk = lane + (i << log2_lanes);
        weight[i] = Words4{};
        if (p.weight && chunk < chunks) weight[i] = global_pointer<const Words4>(p.weight)[chunk];
    }
#pragma unroll 1
    for (int64_t first = blockIdx.x * pixels_of_block; first < count; first += gridDim.x * pixels_of_block) {
        const int64_t number = first + (threadIdx.x >> log2_lanes);
        const int64_t sample = p.batch == 1 ? 0 : number / p.pixels, pixel = number - sample * p.pixels;
        const bool is_there = number < count;
        const T* const x = global_pointer<const T>(p.x) + sample * p.x_batch_stride + pixel * p.channels;
        Words4 words[kChunks];
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
            const int chunk = lane + (i << log2_lanes);
            words[i] = Words4{};
            if (is_there && chunk < chunks) words[i] = reinterpret_cast<const Words4*>(x)[chunk];
        }
#pragma unroll
        for (int i = 0; i < kChunks; ++i)
#pragma unroll
            for (int e = 0; e < kPairs; ++e) {
                const Pair both = pair_of<T>(words[i], e);
                sum += low(both) * low(both);
                sum += high(both) * high(both);
            }
#pragma unroll 1
        for (int apart = 1; apart < lanes; apart *= 2) sum += __shfl_xor(sum, apart, kMostLanes);
        sum += p.eps;
        const float factor = p.scale * approx_rsqrt(sum < 1e-24f ? 1e-24f : sum);
        T* const out = global_pointer<T>(p.out) + sample * p.out_batch_stride + pixel * p.channels;
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
            const int chunk = lane + (i << log2_lanes);
            if (!is_there || chunk >= chunks) continue;
            Words4 bias{}, result{};
            if (p.bias) bias = global_pointer<const Words4>(p.bias)[chunk];
#pragma unroll
            for (int e = 0; e < kPairs; ++e) {
                const Pair value = pair_of<T>(words[i], e), by = pair_of<T>(weight[i], e), more = pair_of<T>(bias, e);
                float a = low(value) * factor, b = high(value) * factor;
                if (p.weight) a *= low(by), b *= high(by);
                a += low(more), b += high(more);
                if (p.use_silu) a = silu(a), b = silu(b);
                set_pair<T>(result, e, make_pair(a, b));
            }
            reinterpret_cast<Words4*>(out)[chunk] = result;
        }
    }
}

const char* conv3d_rms_norm_refusal(const RmsNormParams& p) {
    const int each = 16 / element_bytes(p.dtype);
    if (p.channels % each != 0 || p.channels > each * kChunks * kMostLanes)
        return "channels in 16-byte vectors, up to 128 of them";
    for (const void* data : {p.x, static_cast<const void*>(p.out), p.weight, p.bias})
        if (reinterpret_cast<uintptr_t>(data) % 16 != 0) return "memory with 16-byte alignment";
    if (p.batch > 1 && (p.x_batch_stride % each != 0 || p.out_batch_stride % each != 0))
        return "samples with 16-byte alignment";
    return nullptr;
}

void conv3d_rms_norm(const RmsNormParams& p, void* stream) {
    const int log2_lanes = log2_lanes_of(p.channels / (16 / element_bytes(p.dtype)));
    const int64_t each = kThreads >> log2_lanes, blocks = (p.batch * p.pixels + each - 1) / each;
    if (blocks == 0) return;
    const dim3 grid(static_cast<unsigned>(blocks < (1 << 20) ? blocks : 1 << 20), 1, 1);
    with_dtype(p.dtype, [&](auto type) {
        hipLaunchKernelGGL(conv3d_rms_norm_kernel<decltype(type)>, grid, dim3(kThreads, 1, 1), 0,
                           static_cast<hipStream_t>(stream), p, log2_lanes);
    });
    check_launch("conv3d");
}

}  // namespace hipconv
