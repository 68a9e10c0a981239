// This kernel packs filters which the GEMMs cannot read in place.
#include <hip/hip_runtime.h>

#include "filters.h"
#include "launch/check.h"

namespace hipconv {

constexpr int kPackThreads = 256;

// A thread packs 16 bytes of channels of a tap, with zeros behind the last channel. Lanes lie along taps, which are the
// neighbours in memory that is not channels-last.
template <typename Bits>
__global__ void HIPCONV_LAUNCH_BOUNDS(kPackThreads, 4)
    conv3d_pack_filters_kernel(Volume weight, Words4* packed, int32_t filters, int32_t channels, int32_t chunks, int32_t frames,
                               int32_t height, int32_t width) {
    constexpr int kElements = 16 / static_cast<int>(sizeof(Bits)), kInWord = 4 / static_cast<int>(sizeof(Bits));
    const int64_t taps = static_cast<int64_t>(frames) * height * width, count = taps * chunks * filters;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
        const int64_t tap = i % taps, rest = i / taps, chunk = rest % chunks, filter = rest / chunks;
        const int64_t s = tap % width, r = tap / width % height, f = tap / width / height;
        const Bits* const first = global_pointer<const Bits>(weight.data) + filter * weight.batch_stride +
                                  chunk * kElements * weight.channel_stride + f * weight.frame_stride + r * weight.row_stride +
                                  s * weight.column_stride;
        Words4 words{};
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
            if (chunk * kElements + e >= channels) continue;
            const uint32_t bits = first[e * weight.channel_stride];
            set_word(words, e / kInWord, word(words, e / kInWord) | bits << (e % kInWord * 16));
        }
        global_pointer<Words4>(packed)[(filter * taps + tap) * chunks + chunk] = words;
    }
}

void conv3d_pack_filters(const Conv3dParams& p, void* packed, void* stream) {
    const FilterLayout l(p, true);
    const int64_t blocks = ceil_of(l.taps * l.chunks * p.out_channels, kPackThreads);
    const dim3 grid(static_cast<unsigned>(blocks < (1 << 22) ? blocks : 1 << 22), 1, 1);
    const auto launch = [&](auto kernel) {
        hipLaunchKernelGGL(kernel, grid, dim3(kPackThreads, 1, 1), 0, static_cast<hipStream_t>(stream), p.weight,
                           static_cast<Words4*>(packed), p.out_channels, p.in_channels / p.groups,
                           static_cast<int32_t>(l.chunks), p.kernel_frames, p.kernel_height, p.kernel_width);
    };
    if (p.dtype == DType::f32)
        launch(conv3d_pack_filters_kernel<uint32_t>);
    else
        launch(conv3d_pack_filters_kernel<uint16_t>);
    check_launch("conv3d");
}

}  // namespace hipconv
