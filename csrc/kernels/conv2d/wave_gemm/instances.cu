// The instances of `wave_gemm`.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

namespace {

template <typename T, WaveGemmRead kRead>
void launch_instance(const WaveGemmParams& p, unsigned blocks, unsigned threads, void* stream) {
    HIPCONV_LAUNCH(true, (conv2d_wave_gemm<T, kRead>), dim3(blocks, 1, 1), dim3(threads, 1, 1), 0,
                   static_cast<hipStream_t>(stream), p);
    check_launch("conv2d");
}

template <WaveGemmRead kRead>
void launch_16bit(const WaveGemmParams& p, unsigned blocks, unsigned threads, void* stream) {
    if constexpr (!kHalvesShareKernels) {
        if (p.conv.dtype == DType::bf16) return launch_instance<bf16, kRead>(p, blocks, threads, stream);
    }
    launch_instance<f16, kRead>(p, blocks, threads, stream);
}

}  // namespace

void launch_wave_gemm(const WaveGemmParams& p, unsigned blocks, unsigned threads, void* stream) {
    if (p.read == WaveGemmRead::vectors) return launch_16bit<WaveGemmRead::vectors>(p, blocks, threads, stream);
    if (p.read == WaveGemmRead::words) return launch_16bit<WaveGemmRead::words>(p, blocks, threads, stream);
    if (p.read == WaveGemmRead::planes) return launch_16bit<WaveGemmRead::planes>(p, blocks, threads, stream);
    launch_16bit<WaveGemmRead::elements>(p, blocks, threads, stream);
}

}  // namespace hipconv
