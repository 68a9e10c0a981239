// This kernel packs filters which the GEMMs cannot read in place.
#include <hip/hip_runtime.h>

#include "launch/check.h"
#include "layout.h"
#include "pack_filters.h"

namespace hipconv {

constexpr int kPackThreads = 256;

template <typename T>
__global__ void HIPCONV_LAUNCH_BOUNDS(kPackThreads, 4) conv2d_pack_filters(PackParams p) {
    let_next_kernel_begin();
    wait_for_kernel_before();
    const int64_t count = pack_chunks(p);
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += static_cast<int64_t>(gridDim.x) * blockDim.x)
        pack_chunk<T>(p, i);
}

namespace {

PackParams pack_params(const Conv2dParams& p, const GemmLayout& l, void* packed) {
    return {p.weight,
            packed,
            l.filter_stride / l.element,
            p.out_channels,
            static_cast<int32_t>(l.group_channels),
            static_cast<int32_t>(l.chunks),
            p.kernel_height,
            p.kernel_width,
            static_cast<int32_t>(l.steps * kTileChunks - l.taps * l.chunks),
            l.taps_inside};
}

}  // namespace

Conv2dPacking packing_of(const Conv2dParams& p, const GemmLayout& l) {
    return l.packs ? packing_of(pack_params(p, l, nullptr), l.bytes_of_packed(p), false) : Conv2dPacking{};
}

void pack_filters(const Conv2dParams& p, const GemmLayout& l, bool early, void* packed, void* stream) {
    const PackParams pack = pack_params(p, l, packed);
    const int64_t blocks = ceil_of(pack_chunks(pack), kPackThreads);
    const dim3 grid(static_cast<unsigned>(blocks < (1 << 22) ? blocks : 1 << 22), 1, 1), block(kPackThreads, 1, 1);
    const hipStream_t hip_stream = static_cast<hipStream_t>(stream);
    if (p.dtype == DType::f32)
        HIPCONV_LAUNCH(early, conv2d_pack_filters<float>, grid, block, 0, hip_stream, pack);
    else
        HIPCONV_LAUNCH(early, conv2d_pack_filters<f16>, grid, block, 0, hip_stream, pack);
    check_launch("conv2d");
}

}  // namespace hipconv
