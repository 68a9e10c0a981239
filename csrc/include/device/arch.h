// What the target is, said once. The only file that reads a compiler's architecture macros; everything else uses the names
// defined here. Needs no -D flag: any of hipcc, clang++ -x hip, nvcc or g++ may compile a kernel with `-Icsrc/include` alone.
#pragma once

#include <cstdint>

#if defined(__HIP__)
#define HIPCONV_AMD 1  // HIP compiled by clang: host and device pass
#if defined(__AMDGCN__)
#define HIPCONV_AMD_DEVICE 1  // the device pass
#endif
#elif defined(__NVCC__)
#define HIPCONV_NVIDIA 1  // the same text through csrc/compat/cuda
#if defined(__CUDA_ARCH__)
#define HIPCONV_NVIDIA_DEVICE 1
#endif
#else
#define HIPCONV_HOST 1  // plain C++: csrc/cpu, the bindings, and kernels through csrc/compat/simt
#endif

#if defined(HIPCONV_HOST)
#define HIPCONV_INLINE inline
#else
#define HIPCONV_INLINE __host__ __device__ inline __attribute__((always_inline))
#endif

#if defined(HIPCONV_HOST) && defined(__F16C__)
#define HIPCONV_HAS_F16C 1  // x86 f16 conversions in hardware
#endif

// Bytes of a native vector of the host; 64 is AVX-512 with the F, BW, DQ and VL parts, 32 is AVX2 with FMA.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define HIPCONV_VECTOR_BYTES 64
#elif defined(__AVX2__) && defined(__FMA__)
#define HIPCONV_VECTOR_BYTES 32
#else
#define HIPCONV_VECTOR_BYTES 16
#endif

#include <cstdint>

namespace hipconv {

// Lanes of a wave, and SIMD units that share the waves of a block's compute unit. Device-pass constants: a host pass sees a
// value too, because it parses kernel bodies, and must not base a decision on it.
#if defined(HIPCONV_AMD)
#if defined(__GFX10__) || defined(__GFX11__) || defined(__GFX12__)
constexpr int kWaveSize = 32;
constexpr int kSimdsPerComputeUnit = 2;
#else
constexpr int kWaveSize = 64;
constexpr int kSimdsPerComputeUnit = 4;
#endif
#elif defined(HIPCONV_SIMT_WAVE)
constexpr int kWaveSize = HIPCONV_SIMT_WAVE;
#elif defined(HIPCONV_HOST)
constexpr int kWaveSize = 64;  // simt with no flag: the home platform's
#else
constexpr int kWaveSize = 32;
#endif

// LDS of a compute unit in bytes, at least: what its blocks share.
#if defined(HIPCONV_NVIDIA)
constexpr int kLdsBytes = 208 << 10;  // and some for the first cache
#else
constexpr int kLdsBytes = 64 << 10;
#endif

// Bytes that a lane moves at a time in kernels that keep many values of each element in registers. On NVIDIA 8: half the
// registers a thread, twice the threads, measured faster; AMD has the registers, and takes 16.
#if defined(HIPCONV_NVIDIA)
constexpr int kLaneBytes = 8;
#elif defined(HIPCONV_SIMT_WAVE)
constexpr int kLaneBytes = HIPCONV_SIMT_WAVE == 32 ? 8 : 16;  // so that tests see both
#else
constexpr int kLaneBytes = 16;
#endif

// Whether lanes may leave out an instruction at no cost, by a predicate, and pairs of values are no better than single ones.
// Where that is not so, conditions cost a selection each, and one instruction computes with both of a pair (on some cards).
#if defined(HIPCONV_NVIDIA)
constexpr bool kHasPredicates = true;
#elif defined(HIPCONV_SIMT_WAVE)
constexpr bool kHasPredicates = HIPCONV_SIMT_WAVE == 32;  // so that tests see both
#else
constexpr bool kHasPredicates = false;
#endif

// The instructions that multiply matrices (mma.h). One macro at most is defined, in the device pass; none means plain FMAs.
#if defined(HIPCONV_AMD_DEVICE)
#if defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || defined(__gfx950__)
#define HIPCONV_HAS_MFMA 1
#elif defined(__GFX11__)
#define HIPCONV_HAS_WMMA11 1
#elif defined(__GFX12__) && !defined(__gfx1250__)
#define HIPCONV_HAS_WMMA12 1
#endif
#if defined(__gfx950__)
#define HIPCONV_HAS_MFMA_8_WIDE 1  // 16-bit forms that take 8 elements a lane
#endif
#elif defined(HIPCONV_NVIDIA_DEVICE)
#if __CUDA_ARCH__ >= 800
#define HIPCONV_HAS_MMA_SYNC 1
#endif
#if __CUDA_ARCH__ >= 900
#define HIPCONV_HAS_EARLY_LAUNCHES 1  // early_launch.h
#endif
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HIPCONV_HAS_WARPGROUPS 1  // sm_90: four waves multiply tiles in LDS (warpgroup_mma.h), a copy engine brings them there
#endif
#endif

enum class MatrixUnit { fma, mfma, wmma11, wmma12, mma_sync };
#if defined(HIPCONV_HAS_MFMA)
constexpr MatrixUnit kMatrixUnit = MatrixUnit::mfma;
#elif defined(HIPCONV_HAS_WMMA11)
constexpr MatrixUnit kMatrixUnit = MatrixUnit::wmma11;
#elif defined(HIPCONV_HAS_WMMA12)
constexpr MatrixUnit kMatrixUnit = MatrixUnit::wmma12;
#elif defined(HIPCONV_HAS_MMA_SYNC)
constexpr MatrixUnit kMatrixUnit = MatrixUnit::mma_sync;
#elif defined(HIPCONV_SIMT_MMA)
constexpr MatrixUnit kMatrixUnit = MatrixUnit::HIPCONV_SIMT_MMA;
#elif defined(HIPCONV_HOST)
constexpr MatrixUnit kMatrixUnit = kWaveSize == 64 ? MatrixUnit::mfma : MatrixUnit::mma_sync;
#else
constexpr MatrixUnit kMatrixUnit = MatrixUnit::fma;
#endif

// Whether memory is copied to LDS past the registers, by copies under way while the thread goes on; LDS beyond 48 KB is then the
// launch's to ask for. The same in the host and the device pass.
#if defined(HIPCONV_NVIDIA)
constexpr bool kCopiesPastRegisters = true;
#elif defined(HIPCONV_AMD)
constexpr bool kCopiesPastRegisters = false;
#else
constexpr bool kCopiesPastRegisters = kMatrixUnit == MatrixUnit::mma_sync;
#endif

// Whether kernels of warpgroups do anything here. In the host's pass of a compiler for GPUs it means nothing.
#if defined(HIPCONV_HAS_WARPGROUPS)
constexpr bool kHasWarpgroups = true;
#elif defined(HIPCONV_HOST)
constexpr bool kHasWarpgroups = kMatrixUnit == MatrixUnit::mma_sync;
#else
constexpr bool kHasWarpgroups = false;
#endif

// Dies of a card, which take the blocks of a launch in turns and have an L2 cache each.
#if defined(__gfx942__) || defined(__gfx950__)
constexpr int kDies = 8;
#elif defined(HIPCONV_HOST)
constexpr int kDies = kMatrixUnit == MatrixUnit::mfma ? 8 : 1;  // so that tests see both
#else
constexpr int kDies = 1;
#endif

// Whether a kernel of matrix instructions serves both types of 16 bits, with a branch to the products of each; it halves the time
// to compile. AMD's compiler would take what both sides load to the front of the branch, and run out of registers.
constexpr bool kHalvesShareKernels = kCopiesPastRegisters;

// Nothing may be moved across this by the compiler: what stands behind it waits for loads, what stands in front is to hide them.
HIPCONV_INLINE void keep_order() {
#if defined(HIPCONV_AMD_DEVICE) && __has_builtin(__builtin_amdgcn_sched_barrier)
    __builtin_amdgcn_sched_barrier(0);
#endif
}

// At the ends of the sides of a branch, with a number each. Where they do the same with different registers, compilers would make
// one side of them, which finds its registers by an index: they would be in scratch memory.
template <int kSide>
HIPCONV_INLINE void keep_apart() {
#if defined(HIPCONV_AMD_DEVICE)
    asm volatile("; side %0" ::"n"(kSide));
#elif defined(HIPCONV_NVIDIA_DEVICE)
    asm volatile("// side %0" ::"n"(kSide));
#endif
}

// Before an access at an address that all lanes share plus this offset. AMD has an access that takes exactly these two, and its
// compiler uses it only where it sees the 32 bits widened beside the access, not in front of a loop: so hide them from it here.
HIPCONV_INLINE void beside_access(uint32_t& lane_offset) {
#if defined(__AMDGCN__)
    asm volatile("" : "+v"(lane_offset));
#else
    (void)lane_offset;
#endif
}

// Asks for the memory at an address to be brought to the second cache if it is wanted, where that is possible. Nothing waits for it,
// and there is no branch.
#if defined(HIPCONV_NVIDIA)
constexpr bool kBringsCloser = true;
#else
constexpr bool kBringsCloser = false;
#endif
HIPCONV_INLINE void bring_closer(const void* from, bool wanted) {
#if defined(HIPCONV_NVIDIA_DEVICE)
    asm volatile("{ .reg .pred wanted; setp.ne.s32 wanted, %1, 0; @wanted prefetch.global.L2 [%0]; }" ::"l"(from), "r"(int{wanted}));
#else
    (void)from, (void)wanted;
#endif
}

// Blocks per compute unit -> waves per SIMD, which is what AMD's compiler takes; 8 is what every SIMD can hold.
constexpr int waves_per_simd(int threads, int blocks_per_compute_unit, int wave, int simds) {
    const int waves = (threads + wave - 1) / wave * blocks_per_compute_unit;
    const int per_simd = (waves + simds - 1) / simds;
    return per_simd < 8 ? per_simd : 8;
}

// A pointer to device memory, from its address. AMD's compiler has to be told that it does not point to LDS.
template <typename T>
HIPCONV_INLINE T* global_pointer(uint64_t address) {
#if defined(HIPCONV_AMD)
    return (T*)reinterpret_cast<__attribute__((address_space(1))) T*>(address);
#else
    return reinterpret_cast<T*>(address);
#endif
}

// The first parameter of a kernel, for one with more than scalar registers can hold: where the launch put it, on AMD, from where
// each member is read when it is needed. (Of a plain parameter, AMD's compiler reads all members at the start of the kernel.) It
// must hold no pointers: their address space would not be known.
template <typename P>
HIPCONV_INLINE const P& first_parameter(const P& parameter) {
#if defined(HIPCONV_AMD) && __has_builtin(__builtin_amdgcn_kernarg_segment_ptr)
    (void)parameter;
    return *(const P*)__builtin_amdgcn_kernarg_segment_ptr();
#else
    return parameter;
#endif
}

}  // namespace hipconv

// Promises the compiler at most `threads` threads a block and asks for registers such that `blocks_per_compute_unit` blocks fit
// on a compute unit (AMD) or multiprocessor (NVIDIA). The second argument of __launch_bounds__ means waves per SIMD in some HIP
// headers and blocks per multiprocessor elsewhere, so AMD gets the attributes themselves.
#if defined(HIPCONV_AMD)
#define HIPCONV_LAUNCH_BOUNDS(threads, blocks_per_compute_unit)                 \
    __attribute__((amdgpu_flat_work_group_size(1, threads),                     \
                   amdgpu_waves_per_eu(::hipconv::waves_per_simd(               \
                       threads, blocks_per_compute_unit, ::hipconv::kWaveSize,  \
                       ::hipconv::kSimdsPerComputeUnit))))
#elif defined(HIPCONV_NVIDIA)
#define HIPCONV_LAUNCH_BOUNDS(threads, blocks_per_compute_unit) __launch_bounds__(threads, blocks_per_compute_unit)
#else
#define HIPCONV_LAUNCH_BOUNDS(threads, blocks_per_compute_unit)
#endif

// LDS, declared at the top level of a kernel body: `HIPCONV_SHARED(float, tile, 256);` makes `tile` point to 256 floats that the
// threads of a block share. simt serves it from a poisoned arena with canaries.
#if defined(HIPCONV_HOST)
#define HIPCONV_SHARED(type, name, count) type* const name = ::simt::shared<type>(count)
#else
#define HIPCONV_SHARED(type, name, count) __shared__ type name[count]
#endif

// LDS of which a block may need more than a declaration can give: one array a kernel, of 16-byte elements, for a launch that asks
// for launch_shared_bytes(). On NVIDIA its address is a multiple of 1024.
#if defined(HIPCONV_HOST)
#define HIPCONV_LARGE_SHARED(type, name, count) type* const name = ::simt::large_shared<type>(count)
#elif defined(HIPCONV_NVIDIA)
#define HIPCONV_LARGE_SHARED(type, name, count) extern __shared__ __align__(1024) type name[]
#else
#define HIPCONV_LARGE_SHARED(type, name, count) __shared__ type name[count]
#endif

// Of a kernel's parameter: it stays where the launch put it, so that what reads it there finds it.
#if defined(HIPCONV_NVIDIA)
#define HIPCONV_IN_PLACE __grid_constant__
#else
#define HIPCONV_IN_PLACE
#endif

namespace hipconv {

constexpr int launch_shared_bytes(int bytes) { return kCopiesPastRegisters ? bytes : 0; }

}  // namespace hipconv
