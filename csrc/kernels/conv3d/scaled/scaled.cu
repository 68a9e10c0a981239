// The norm's end of scaled.h. A thread has 16 bytes of the channels of neighbouring pixels of a row that have one scale and
// shift, which it holds in registers.
#include <hip/hip_runtime.h>

#include "conv3d/scaled.h"
#include "device/activation.h"
#include "device/vec.h"
#include "launch/check.h"

namespace hipconv {

namespace {

constexpr int kThreads = 256;
constexpr int kMostPixels = 16;  // of a thread
constexpr int kLoads = 4;        // that a thread keeps under way

// Pixels of a thread: as many as a pixel of the scales stands for, or a divisor of that.
int pixels_of_thread(const ScaledParams& p) {
    int pixels = kMostPixels;
    while (p.small_width != 1 && p.across % pixels != 0) --pixels;
    return pixels;
}

int64_t threads_of(const ScaledParams& p, int pixels) {
    const int64_t spans = (p.width + pixels - 1) / pixels;
    return int64_t{p.batch} * p.frames * p.height * spans * (p.channels / (16 / element_bytes(p.dtype)));
}

}  // namespace

template <typename T>
__global__ void HIPCONV_LAUNCH_BOUNDS(kThreads, 2) conv3d_scaled_kernel(ScaledParams p, int pixels, int64_t count) {
    constexpr int kEach = 16 / static_cast<int>(sizeof(T)), kPairs = kEach / 2;
    const int chunks = p.channels / kEach, spans = (p.width + pixels - 1) / pixels;
#pragma unroll 1
    for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
        int64_t rest = i / chunks;
        const int first_channel = static_cast<int>(i - rest * chunks) * kEach;
        const int begin = static_cast<int>(rest % spans) * pixels, end = begin + pixels < p.width ? begin + pixels : p.width;
        rest /= spans;
        const int row = static_cast<int>(rest % p.height);
        rest /= p.height;
        const int frame = static_cast<int>(rest % p.frames);
        const int64_t sample = rest / p.frames;
        const int64_t small_row = (sample * p.small_frames + (frame + p.lead) / p.times) * p.small_height + row / p.down;
        const int64_t small = (small_row * p.small_width + begin / p.across) * p.channels + first_channel;
        float scale[kEach], shift[kEach];
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
            scale[e] = global_pointer<const float>(p.scale)[small + e];
            shift[e] = global_pointer<const float>(p.shift)[small + e];
        }
        const int64_t pixel = (int64_t{frame} * p.height + row) * p.width + begin;
        const T* x = global_pointer<const T>(p.x) + sample * p.x_batch_stride + pixel * p.channels + first_channel;
        T* out = global_pointer<T>(p.out) + sample * p.out_batch_stride + pixel * p.channels + first_channel;
#pragma unroll 1
        for (int column = begin; column < end; column += kLoads, x += kLoads * p.channels, out += kLoads * p.channels) {
            Words4 words[kLoads];
#pragma unroll
            for (int k = 0; k < kLoads; ++k)
                if (column + k < end) words[k] = *reinterpret_cast<const Words4*>(x + k * p.channels);
#pragma unroll
            for (int k = 0; k < kLoads; ++k) {
                if (column + k >= end) continue;
                Words4 result{};
#pragma unroll
                for (int e = 0; e < kPairs; ++e) {
                    const Pair value = pair_of<T>(words[k], e);
                    float a = low(value) * scale[2 * e] + shift[2 * e];
                    float b = high(value) * scale[2 * e + 1] + shift[2 * e + 1];
                    if (p.use_silu) a = silu(a), b = silu(b);
                    set_pair<T>(result, e, make_pair(a, b));
                }
                *reinterpret_cast<Words4*>(out + k * p.channels) = result;
            }
        }
    }
}

const char* conv3d_scaled_refusal(const ScaledParams& p) {
    const int each = 16 / element_bytes(p.dtype);
    if (p.channels % each != 0) return "channels in 16-byte vectors";
    for (const void* data : {p.x, static_cast<const void*>(p.out)})
        if (reinterpret_cast<uintptr_t>(data) % 16 != 0) return "memory with 16-byte alignment";
    if (p.batch > 1 && (p.x_batch_stride % each != 0 || p.out_batch_stride % each != 0))
        return "samples with 16-byte alignment";
    return nullptr;
}

void conv3d_scaled(const ScaledParams& p, void* stream) {
    const int pixels = pixels_of_thread(p);
    const int64_t count = threads_of(p, pixels), blocks = (count + kThreads - 1) / kThreads;
    if (blocks == 0) return;
    const dim3 grid(static_cast<unsigned>(blocks < (1 << 20) ? blocks : 1 << 20), 1, 1);
    with_dtype(p.dtype, [&](auto type) {
        hipLaunchKernelGGL(conv3d_scaled_kernel<decltype(type)>, grid, dim3(kThreads, 1, 1), 0,
                           static_cast<hipStream_t>(stream), p, pixels, count);
    });
    check_launch("conv3d");
}

}  // namespace hipconv
