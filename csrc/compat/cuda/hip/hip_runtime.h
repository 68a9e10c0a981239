// The HIP spelling on NVIDIA: found as <hip/hip_runtime.h> when nvcc compiles csrc/kernels. Aliases for what the kernels use,
// and nothing else. Never staged on ROCm, so this is the one place where CUDA names may appear.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

using hipError_t = cudaError_t;
using hipStream_t = cudaStream_t;
constexpr hipError_t hipSuccess = cudaSuccess;
inline hipError_t hipGetLastError() { return cudaGetLastError(); }
inline const char* hipGetErrorName(hipError_t error) { return cudaGetErrorName(error); }
inline const char* hipGetErrorString(hipError_t error) { return cudaGetErrorString(error); }

#define hipLaunchKernelGGL(kernel, grid, block, shared_bytes, stream, ...) \
    kernel<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__)

// What dtype.h and activation.h need from the card.
namespace hipconv {
namespace compat {

__host__ __device__ inline float f16_bits_to_float(uint16_t bits) { return __half2float(__half(__half_raw{bits})); }
__host__ __device__ inline uint16_t float_to_f16_bits(float v) { return static_cast<__half_raw>(__float2half_rn(v)).x; }
__host__ __device__ inline uint16_t float_to_bf16_bits(float v) {
    return static_cast<__nv_bfloat16_raw>(__float2bfloat16_rn(v)).x;
}

__host__ __device__ inline float approx_exp2(float v) {
#if defined(__CUDA_ARCH__)
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
#else
    return ::exp2f(v);
#endif
}

__host__ __device__ inline float approx_rcp(float v) {
#if defined(__CUDA_ARCH__)
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
#else
    return 1.0f / v;
#endif
}

}  // namespace compat
}  // namespace hipconv
