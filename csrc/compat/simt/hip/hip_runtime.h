// The HIP spelling on the host: found as <hip/hip_runtime.h> when g++ compiles csrc/kernels, staged as .cpp, for the simt backend.
// The kernel text runs unchanged, thread for thread; simt/block.h says how.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "simt/block.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline

// ---- host side: errors, streams, launches -----------------------------------------------------------------------------

enum hipError_t { hipSuccess = 0, hipErrorInvalidConfiguration = 9 };
using hipStream_t = void*;

namespace simt {

inline hipError_t& last_error() {
    static thread_local hipError_t error = hipSuccess;
    return error;
}

inline dim3& grid_size() {
    static thread_local dim3 size;
    return size;
}

// The limits of the cards: 1024 threads a block, and per dimension fewer than 2^32 work-items (AMD) and, in y and z, 65,535
// blocks (NVIDIA).
inline bool launchable(dim3 grid, dim3 block) {
    const auto fits = [](uint64_t blocks, uint64_t threads) { return blocks > 0 && threads > 0 && blocks * threads < (1ull << 32); };
    return fits(grid.x, block.x) && fits(grid.y, block.y) && fits(grid.z, block.z) && grid.y <= 65535 && grid.z <= 65535 &&
           static_cast<uint64_t>(block.x) * block.y * block.z <= static_cast<uint64_t>(kMaxThreads);
}

inline void launch(const char* kernel, dim3 grid, dim3 block, const std::function<void()>& body) {
    if (!launchable(grid, block)) {
        last_error() = hipErrorInvalidConfiguration;
        return;
    }
    Order order = Order::from_environment();
    Block runner(kernel, block, order);
    grid_size() = grid;
    const uint64_t count = static_cast<uint64_t>(grid.x) * grid.y * grid.z;
    for (uint64_t turn = 0; turn < count; ++turn) {
        const uint64_t index = order.block(turn, count);
        runner.run(dim3(index % grid.x, index / grid.x % grid.y, index / (static_cast<uint64_t>(grid.x) * grid.y)), body);
    }
}

}  // namespace simt

inline hipError_t hipGetLastError() { return std::exchange(simt::last_error(), hipSuccess); }
inline const char* hipGetErrorName(hipError_t error) {
    return error == hipSuccess ? "hipSuccess" : "hipErrorInvalidConfiguration";
}
inline const char* hipGetErrorString(hipError_t error) {
    return error == hipSuccess ? "no error" : "invalid configuration argument";
}

#define hipLaunchKernelGGL(kernel, grid, block, shared_bytes, stream, ...) \
    ((void)(stream), ::simt::launch(#kernel, grid, block, [=] { (kernel)(__VA_ARGS__); }))

// ---- device side: indices, barriers, wave operations, atomics ---------------------------------------------------------

#define threadIdx (::simt::Block::current()->thread_index())
#define blockIdx (::simt::Block::current()->block_index())
#define blockDim (::simt::Block::current()->block_size())
#define gridDim (::simt::grid_size())

#define HIPCONV_SIMT_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(HIPCONV_SIMT_SITE) { simt::Block::current()->barrier({"__syncthreads", file, line}); }
inline void __threadfence() {}
inline int __lane_id() { return simt::Block::current()->lane(); }

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

// Lanes are numbered within segments of `width`; a lane that would read outside its segment reads itself.
inline int segment_begin(int width) { return __lane_id() / width * width; }
inline int inside_or_self(int source, int width) {
    const int begin = segment_begin(width);
    return source >= begin && source < begin + width ? source : __lane_id();
}

}  // namespace simt

template <typename T>
T __shfl(T value, int source, int width = hipconv::kWaveSize, HIPCONV_SIMT_SITE) {
    const int lane = simt::segment_begin(width) + (source & (width - 1));
    return simt::shuffle(value, lane, {"__shfl", file, line});
}
template <typename T>
T __shfl_up(T value, unsigned delta, int width = hipconv::kWaveSize, HIPCONV_SIMT_SITE) {
    const int source = simt::inside_or_self(__lane_id() - static_cast<int>(delta), width);
    return simt::shuffle(value, source, {"__shfl_up", file, line});
}
template <typename T>
T __shfl_down(T value, unsigned delta, int width = hipconv::kWaveSize, HIPCONV_SIMT_SITE) {
    const int source = simt::inside_or_self(__lane_id() + static_cast<int>(delta), width);
    return simt::shuffle(value, source, {"__shfl_down", file, line});
}
template <typename T>
T __shfl_xor(T value, int mask, int width = hipconv::kWaveSize, HIPCONV_SIMT_SITE) {
    const int source = simt::inside_or_self(__lane_id() ^ mask, width);
    return simt::shuffle(value, source, {"__shfl_xor", file, line});
}
inline unsigned long long __ballot(int predicate, HIPCONV_SIMT_SITE) {
    return simt::Block::current()->wave_op(simt::WaveOp::ballot, predicate != 0, 0, {"__ballot", file, line});
}

// Fibers never interrupt each other, so the plain operation is atomic.
template <typename T>
T atomicAdd(T* address, T value) {
    return std::exchange(*address, static_cast<T>(*address + value));
}
template <typename T>
T atomicMax(T* address, T value) {
    return std::exchange(*address, std::max(*address, value));
}
template <typename T>
T atomicExch(T* address, T value) {
    return std::exchange(*address, value);
}
template <typename T>
T atomicCAS(T* address, T expected, T value) {
    return *address == expected ? std::exchange(*address, value) : *address;
}
