// The HIP spelling on NVIDIA: nvcc finds it as <hip/hip_runtime.h> when it compiles csrc/kernels. It holds aliases for
// what the kernels and op_tests/simt/probes.cu use, and nothing else. It is never staged on ROCm, so this is the one place
// where CUDA names may appear.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

using hipError_t = cudaError_t;
using hipStream_t = cudaStream_t;
constexpr hipError_t hipSuccess = cudaSuccess;
constexpr cudaMemcpyKind hipMemcpyHostToDevice = cudaMemcpyHostToDevice;
constexpr cudaMemcpyKind hipMemcpyDeviceToHost = cudaMemcpyDeviceToHost;
inline hipError_t hipGetLastError() { return cudaGetLastError(); }
inline const char* hipGetErrorName(hipError_t error) { return cudaGetErrorName(error); }
inline const char* hipGetErrorString(hipError_t error) { return cudaGetErrorString(error); }

template <typename T>
hipError_t hipMalloc(T** address, size_t bytes) {
    return cudaMalloc(address, bytes);
}
inline hipError_t hipFree(void* address) { return cudaFree(address); }
inline hipError_t hipMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    return cudaMemcpy(to, from, bytes, kind);
}
constexpr cudaFuncAttribute hipFuncAttributeMaxDynamicSharedMemorySize = cudaFuncAttributeMaxDynamicSharedMemorySize;
inline hipError_t hipFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
    return cudaFuncSetAttribute(kernel, attribute, value);
}
inline hipError_t hipGetDevice(int* device) { return cudaGetDevice(device); }
constexpr cudaDeviceAttr hipDeviceAttributeMultiprocessorCount = cudaDevAttrMultiProcessorCount;
constexpr cudaDeviceAttr hipDeviceAttributeWarpSize = cudaDevAttrWarpSize;
constexpr cudaDeviceAttr hipDeviceAttributeComputeCapabilityMajor = cudaDevAttrComputeCapabilityMajor;
inline hipError_t hipDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    return cudaDeviceGetAttribute(value, attribute, device);
}
inline hipError_t hipDeviceSynchronize() { return cudaDeviceSynchronize(); }

#define hipLaunchKernelGGL(kernel, grid, block, shared_bytes, stream, ...) \
    kernel<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__)

// HIP's wave operations take no mask: all lanes of the wave take part.
template <typename T>
__device__ inline T __shfl(T value, int source, int width = 32) {
    return __shfl_sync(0xffffffffu, value, source, width);
}
template <typename T>
__device__ inline T __shfl_up(T value, unsigned delta, int width = 32) {
    return __shfl_up_sync(0xffffffffu, value, delta, width);
}
template <typename T>
__device__ inline T __shfl_down(T value, unsigned delta, int width = 32) {
    return __shfl_down_sync(0xffffffffu, value, delta, width);
}
template <typename T>
__device__ inline T __shfl_xor(T value, int mask, int width = 32) {
    return __shfl_xor_sync(0xffffffffu, value, mask, width);
}
// A macro, because cuda_runtime.h declares a __ballot without a definition, and its result has 32 bits.
#define __ballot(predicate) static_cast<unsigned long long>(__ballot_sync(0xffffffffu, predicate))

namespace hipconv {
namespace compat {

// HIPCONV_LAUNCH (device/nvidia.h) launches kernels through this.
template <typename... Params>
void launch(bool early, int cluster, void (*kernel)(Params...), dim3 grid, dim3 block, int shared_bytes, hipStream_t stream,
            const Params&... params) {
#if CUDART_VERSION >= 12000
    cudaLaunchAttribute attributes[2]{};
    unsigned count = 0;
#if defined(HIPCONV_EARLY_LAUNCHES) && CUDART_VERSION >= 12030  // graphs take them since; targets.py lists the cards
    if (early) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
#endif
    if (cluster > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count++].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    }
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    (void)early;
    (void)cudaLaunchKernelEx(&config, kernel, params...);  // the caller asks for the last error
#else
    (void)early, (void)cluster;
    kernel<<<grid, block, shared_bytes, stream>>>(params...);
#endif
}

}  // namespace compat
}  // namespace hipconv
