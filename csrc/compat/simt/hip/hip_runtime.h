// The HIP spelling on the host: g++ finds it as <hip/hip_runtime.h> when it compiles csrc/kernels, staged as .cpp, for
// simt. The kernel text runs unchanged, thread for thread; simt/block.h says how.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "simt/block.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline

// ---- host side: errors, memory, streams, launches ---------------------------------------------------------------------

enum hipError_t { hipSuccess = 0, hipErrorOutOfMemory = 2, hipErrorInvalidConfiguration = 9 };
enum hipMemcpyKind { hipMemcpyHostToDevice = 1, hipMemcpyDeviceToHost = 2 };
using hipStream_t = void*;

namespace simt {

hipError_t& last_error();
dim3& grid_size();

void launch(const char* kernel, dim3 grid, dim3 block, size_t shared_bytes, int cluster, const Body& body);

// Takes a kernel's arguments, converts them to its parameters once, as a launch does, and runs it.
template <typename... Parameters>
auto launcher(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, int cluster = 1) {
    return [=](Parameters... arguments) {
        const auto thread = [&] { kernel(arguments...); };
        launch(name, grid, block, shared_bytes, cluster, body_of(thread));
    };
}

}  // namespace simt

inline hipError_t hipGetLastError() { return std::exchange(simt::last_error(), hipSuccess); }
inline const char* hipGetErrorName(hipError_t error) {
    if (error == hipErrorOutOfMemory) return "hipErrorOutOfMemory";
    return error == hipSuccess ? "hipSuccess" : "hipErrorInvalidConfiguration";
}
inline const char* hipGetErrorString(hipError_t error) {
    if (error == hipErrorOutOfMemory) return "out of memory";
    return error == hipSuccess ? "no error" : "invalid configuration argument";
}

template <typename T>
hipError_t hipMalloc(T** address, size_t bytes) {
    *address = static_cast<T*>(std::malloc(bytes ? bytes : 1));
    if (!*address) return hipErrorOutOfMemory;
    std::memset(static_cast<void*>(*address), simt::kPoison, bytes);
    return hipSuccess;
}
inline hipError_t hipFree(void* address) {
    std::free(address);
    return hipSuccess;
}
inline hipError_t hipMemcpy(void* to, const void* from, size_t bytes, hipMemcpyKind) {
    if (bytes) std::memcpy(to, from, bytes);
    return hipSuccess;
}
enum hipFuncAttribute { hipFuncAttributeMaxDynamicSharedMemorySize = 8 };
inline hipError_t hipFuncSetAttribute(const void*, hipFuncAttribute, int) { return hipSuccess; }  // the block checks the size
inline hipError_t hipGetDevice(int* device) { return *device = 0, hipSuccess; }
enum hipDeviceAttribute {
    hipDeviceAttributeMultiprocessorCount = 16,
    hipDeviceAttributeComputeCapabilityMajor = 23,
    hipDeviceAttributeWarpSize = 87
};
inline hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute attribute, int) {
    *value = 9;  // as sm_90
    if (attribute == hipDeviceAttributeMultiprocessorCount) *value = 2;
    if (attribute == hipDeviceAttributeWarpSize) *value = hipconv::kWaveSize;
    return hipSuccess;
}
inline hipError_t hipDeviceSynchronize() { return hipSuccess; }  // a launch returns when the kernel is done

#define hipLaunchKernelGGL(kernel, grid, block, shared_bytes, stream, ...) \
    ((void)(stream), ::simt::launcher(#kernel, kernel, grid, block, shared_bytes)(__VA_ARGS__))

// ---- device side: indices, barriers, wave operations, atomics ---------------------------------------------------------

#define threadIdx (::simt::Block::thread_index())
#define blockIdx (::simt::Block::block_index())
#define blockDim (::simt::Block::block_size())
#define gridDim (::simt::grid_size())

#define HIPCONV_SIMT_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(HIPCONV_SIMT_SITE) { simt::Block::current()->barrier({"__syncthreads", file, line}); }
inline void __threadfence() {}
inline int __lane_id() { return simt::Block::lane(); }

namespace simt {

template <typename T>
T shuffle(T value, int source, Site site) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "a shuffle moves at most 8 bytes");
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    bits = Block::current()->wave_op(WaveOp::shuffle, bits, source, site);
    std::memcpy(&value, &bits, sizeof(T));
    return value;
}

}  // namespace simt

// Lanes are numbered within segments of `width`. A lane that would read outside its segment reads itself, except that xor can
// read earlier segments.
template <typename T>
T __shfl(T value, int source, int width = hipconv::kWaveSize, HIPCONV_SIMT_SITE) {
    const int begin = simt::Block::current()->segment_begin(width);
    return simt::shuffle(value, begin + (source & (width - 1)), {"__shfl", file, line});
}
template <typename T>
T __shfl_up(T value, unsigned delta, int width = hipconv::kWaveSize, HIPCONV_SIMT_SITE) {
    const int begin = simt::Block::current()->segment_begin(width), lane = __lane_id();
    const bool inside = delta <= static_cast<unsigned>(lane - begin);
    return simt::shuffle(value, inside ? lane - static_cast<int>(delta) : lane, {"__shfl_up", file, line});
}
template <typename T>
T __shfl_down(T value, unsigned delta, int width = hipconv::kWaveSize, HIPCONV_SIMT_SITE) {
    const int begin = simt::Block::current()->segment_begin(width), lane = __lane_id();
    const bool inside = delta < static_cast<unsigned>(begin + width - lane);
    return simt::shuffle(value, inside ? lane + static_cast<int>(delta) : lane, {"__shfl_down", file, line});
}
template <typename T>
T __shfl_xor(T value, int mask, int width = hipconv::kWaveSize, HIPCONV_SIMT_SITE) {
    const int begin = simt::Block::current()->segment_begin(width), lane = __lane_id();
    const int source = lane ^ (mask & (hipconv::kWaveSize - 1));
    return simt::shuffle(value, source < begin + width ? source : lane, {"__shfl_xor", file, line});
}
inline unsigned long long __ballot(int predicate, HIPCONV_SIMT_SITE) {
    return simt::Block::current()->wave_op(simt::WaveOp::ballot, predicate != 0, 0, {"__ballot", file, line});
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __popcll(unsigned long long bits) { return __builtin_popcountll(bits); }
inline int __clz(int bits) { return bits ? __builtin_clz(static_cast<unsigned>(bits)) : 32; }
inline int __ffs(int bits) { return __builtin_ffs(bits); }

// Fibers never interrupt each other, so the plain operation is atomic. The address alone decides the type, as on a GPU.
namespace simt {
template <typename T>
struct ValueOf {
    using type = T;
};
}  // namespace simt

template <typename T>
T atomicAdd(T* address, typename simt::ValueOf<T>::type value) {
    return std::exchange(*address, static_cast<T>(*address + value));
}
template <typename T>
T atomicMax(T* address, typename simt::ValueOf<T>::type value) {
    return std::exchange(*address, std::max(*address, value));
}
template <typename T>
T atomicExch(T* address, typename simt::ValueOf<T>::type value) {
    return std::exchange(*address, value);
}
template <typename T>
T atomicCAS(T* address, typename simt::ValueOf<T>::type expected, typename simt::ValueOf<T>::type value) {
    return *address == expected ? std::exchange(*address, value) : *address;
}

#include "simt/device.h"
