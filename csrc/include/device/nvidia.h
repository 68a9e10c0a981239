// The NVIDIA target: nvcc compiles the same text through csrc/compat/cuda. arch.h says what each name is for. No name
// of CUDA's libraries may stand here, as hipify would rewrite it: code that needs one is in csrc/compat/cuda.
#pragma once

#define HIPCONV_INLINE __host__ __device__ inline __attribute__((always_inline))

#if defined(HIPCONV_NVIDIA_DEVICE)
#if __CUDA_ARCH__ >= 800
#define HIPCONV_HAS_MMA_SYNC 1
#define HIPCONV_HAS_BF16 1  // conversions to it, and to pairs of f16
#endif
#if __CUDA_ARCH__ >= 900
#define HIPCONV_HAS_EARLY_LAUNCHES 1
#endif
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HIPCONV_HAS_WARPGROUPS 1  // sm_90: four waves multiply tiles in LDS (matrix/warpgroup_mma.h), TMA brings them there
#endif
#endif

#include "device/half_bits.h"

namespace hipconv {

// ---- facts ------------------------------------------------------------------------------------------------------------

constexpr int kWaveSize = 32;
constexpr int kSimdsPerComputeUnit = 4;
constexpr int kLdsBytes = 208 << 10;  // the rest is left to the first cache
constexpr int kLaneBytes = 8;         // half the registers a thread and twice the threads measured faster than 16
constexpr bool kVectorsBeginAtWords = false;
constexpr bool kRoundsNan = true;
constexpr bool kHasPredicates = true;
constexpr bool kHasTf32 = true;
#if defined(HIPCONV_HAS_MMA_SYNC)
constexpr MatrixUnit kMatrixUnit = MatrixUnit::mma_sync;
#else
constexpr MatrixUnit kMatrixUnit = MatrixUnit::fma;
#endif
constexpr bool kCopiesPastRegisters = true;
#if defined(HIPCONV_HAS_WARPGROUPS)
constexpr bool kHasWarpgroups = true;
#else
constexpr bool kHasWarpgroups = false;
#endif
constexpr int kDies = 1;
constexpr bool kPrefetches = true;
constexpr bool kUnalignedVectors = false;

// ---- kernels ----------------------------------------------------------------------------------------------------------

#define HIPCONV_LAUNCH_BOUNDS(threads, blocks_per_compute_unit) __launch_bounds__(threads, blocks_per_compute_unit)
#define HIPCONV_SHARED(type, name, count) __shared__ type name[count]
#define HIPCONV_LARGE_SHARED(type, name, count) extern __shared__ __align__(1024) type name[]
#define HIPCONV_IN_PLACE __grid_constant__

HIPCONV_INLINE void keep_order() {}

template <int kSide>
HIPCONV_INLINE void keep_apart() {
#if defined(HIPCONV_NVIDIA_DEVICE)
    asm volatile("// side %0" ::"n"(kSide));
#endif
}

HIPCONV_INLINE void beside_access(uint32_t&) {}

HIPCONV_INLINE void from_here_on(int& value) {
#if defined(HIPCONV_NVIDIA_DEVICE)
    asm volatile("" : "+r"(value));
#else
    (void)value;
#endif
}
HIPCONV_INLINE void from_here_on(uint32_t&) {}
HIPCONV_INLINE void in_a_register(int& value) { from_here_on(value); }
HIPCONV_INLINE void in_a_register(const char*& address) {
#if defined(HIPCONV_NVIDIA_DEVICE)
    asm volatile("" : "+l"(address));
#else
    (void)address;
#endif
}
HIPCONV_INLINE void in_a_register(float& value) {
#if defined(HIPCONV_NVIDIA_DEVICE)
    asm volatile("" : "+f"(value));
#else
    (void)value;
#endif
}

HIPCONV_INLINE void enter_loop_here() {}

template <typename T>
HIPCONV_INLINE T* global_pointer(uint64_t address) {
    return reinterpret_cast<T*>(address);
}
HIPCONV_INLINE void promise_global(const void* pointer) {
#if defined(HIPCONV_NVIDIA_DEVICE)
    __builtin_assume(__isGlobal(pointer));
#else
    (void)pointer;
#endif
}

template <typename P>
HIPCONV_INLINE const P& first_parameter(const P& parameter) {
    return parameter;
}
template <typename P>
HIPCONV_INLINE const P& first_parameter_again(const P& parameter) {
    return parameter;
}

HIPCONV_INLINE void prefetch(const void* address) {
#if defined(HIPCONV_NVIDIA_DEVICE)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
#else
    (void)address;
#endif
}
HIPCONV_INLINE void prefetch_if(const void* address, bool wanted) {
#if defined(HIPCONV_NVIDIA_DEVICE)
    asm volatile("{ .reg .pred wanted; setp.ne.s32 wanted, %1, 0; @wanted prefetch.global.L2 [%0]; }" ::"l"(address),
                 "r"(int{wanted}));
#else
    (void)address, (void)wanted;
#endif
}

HIPCONV_INLINE void sync_wave() {
#if defined(HIPCONV_NVIDIA_DEVICE)
    __syncwarp();
#endif
}

HIPCONV_INLINE void copy_later(uint4* to, const void* from, bool zeros) {
#if defined(HIPCONV_HAS_MMA_SYNC)
    const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(zeros ? 0 : 16) : "memory");
#else
    (void)to, (void)from, (void)zeros;
#endif
}
HIPCONV_INLINE void copy_later_if(bool wanted, uint4* to, const void* from) {
#if defined(HIPCONV_HAS_MMA_SYNC)
    const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile(
        "{ .reg .pred wanted; setp.ne.s32 wanted, %2, 0; @wanted cp.async.cg.shared.global [%0], [%1], 16; }" ::"r"(address),
        "l"(from), "r"(int{wanted})
        : "memory");
#else
    (void)wanted, (void)to, (void)from;
#endif
}
HIPCONV_INLINE void copy_later(uint32_t* to, const void* from) {
#if defined(HIPCONV_HAS_MMA_SYNC)
    const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from) : "memory");
#else
    (void)to, (void)from;
#endif
}
template <int kBytes>
HIPCONV_INLINE void copy_few_later(void* to, const void* from, bool zeros) {
#if defined(HIPCONV_HAS_MMA_SYNC)
    const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(kBytes), "r"(zeros ? 0 : kBytes)
                 : "memory");
#else
    (void)to, (void)from, (void)zeros;
#endif
}
HIPCONV_INLINE void copy_later(uint32_t* to, const void* from, bool zeros) { copy_few_later<4>(to, from, zeros); }
HIPCONV_INLINE void copy_later(uint2* to, const void* from, bool zeros) { copy_few_later<8>(to, from, zeros); }
HIPCONV_INLINE void copy_later(uint2* to, const void* from) {
#if defined(HIPCONV_HAS_MMA_SYNC)
    const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(address), "l"(from) : "memory");
#else
    (void)to, (void)from;
#endif
}
HIPCONV_INLINE void close_copies() {
#if defined(HIPCONV_HAS_MMA_SYNC)
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kGroupsLeft>
HIPCONV_INLINE void wait_for_copies() {
#if defined(HIPCONV_HAS_MMA_SYNC)
    asm volatile("cp.async.wait_group %0;" ::"n"(kGroupsLeft) : "memory");
#endif
}

#define HIPCONV_LAUNCH(early, kernel, grid, block, shared_bytes, stream, ...) \
    ::hipconv::compat::launch(early, 1, kernel, grid, block, shared_bytes, stream, __VA_ARGS__)
#define HIPCONV_LAUNCH_CLUSTERS(blocks, kernel, grid, block, shared_bytes, stream, ...) \
    ::hipconv::compat::launch(true, blocks, kernel, grid, block, shared_bytes, stream, __VA_ARGS__)

HIPCONV_INLINE void let_next_kernel_begin() {
#if defined(HIPCONV_HAS_EARLY_LAUNCHES)
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
HIPCONV_INLINE void wait_for_kernel_before() {
#if defined(HIPCONV_HAS_EARLY_LAUNCHES)
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- numbers ----------------------------------------------------------------------------------------------------------

template <typename To, typename From>
HIPCONV_INLINE To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}

// These are the instructions of <cuda_fp16.h> and <cuda_bf16.h>, which take longer to read than many a kernel takes to compile.
HIPCONV_INLINE float f16_bits_to_float(uint16_t bits) {
#if defined(HIPCONV_NVIDIA_DEVICE)
    float v;
    asm("{  cvt.f32.f16 %0, %1;}\n" : "=f"(v) : "h"(bits));
    return v;
#else
    return by_hand::f16_bits_to_float(bits);
#endif
}
HIPCONV_INLINE uint16_t float_to_f16_bits(float v) {
#if defined(HIPCONV_NVIDIA_DEVICE)
    uint16_t bits;
    asm("{  cvt.rn.f16.f32 %0, %1;}\n" : "=h"(bits) : "f"(v));
    return bits;
#else
    return by_hand::float_to_f16_bits(v);
#endif
}
// The card's NaN of bf16 is the upper half of 0x7fffffff: a sum cannot round its bits.
HIPCONV_INLINE uint16_t float_to_bf16_bits(float v) {
#if defined(HIPCONV_HAS_BF16)
    uint16_t bits;
    asm("{  cvt.rn.bf16.f32 %0, %1;}\n" : "=h"(bits) : "f"(v));
    return bits;
#else
    return v != v ? 0x7fff : by_hand::float_to_bf16_bits(v);
#endif
}

HIPCONV_INLINE float at_least(float v, float least) {
#if defined(HIPCONV_HAS_BF16)
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(v), "f"(least));
    return r;
#else
    return v < least ? least : v;
#endif
}

HIPCONV_INLINE float approx_exp2(float v) {
#if defined(HIPCONV_NVIDIA_DEVICE)
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
#else
    return ::exp2f(v);
#endif
}

HIPCONV_INLINE float approx_rcp(float v) {
#if defined(HIPCONV_NVIDIA_DEVICE)
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
#else
    return 1.0f / v;
#endif
}

HIPCONV_INLINE float approx_rsqrt(float v) {
#if defined(HIPCONV_NVIDIA_DEVICE)
    float r;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
#else
    return v;  // the host computes none
#endif
}

HIPCONV_INLINE uint32_t shifted_right(uint32_t low, uint32_t high, uint32_t bits) {
#if defined(HIPCONV_NVIDIA_DEVICE)
    uint32_t shifted;
    asm("shf.r.wrap.b32 %0, %1, %2, %3;" : "=r"(shifted) : "r"(low), "r"(high), "r"(bits));
    return shifted;
#else
    return bits ? low >> 16 | high << 16 : low;
#endif
}
HIPCONV_INLINE uint32_t shifted_left(uint32_t low, uint32_t high, uint32_t bits) {
#if defined(HIPCONV_NVIDIA_DEVICE)
    uint32_t shifted;
    asm("shf.l.wrap.b32 %0, %1, %2, %3;" : "=r"(shifted) : "r"(low), "r"(high), "r"(bits));
    return shifted;
#else
    return bits ? low >> 16 | high << 16 : high;
#endif
}
HIPCONV_INLINE uint32_t lower_halves(uint32_t a, uint32_t b) {
#if defined(HIPCONV_NVIDIA_DEVICE)
    return __byte_perm(a, b, 0x5410);
#else
    return (a & 0xffffu) | b << 16;
#endif
}
HIPCONV_INLINE uint32_t upper_halves(uint32_t a, uint32_t b) {
#if defined(HIPCONV_NVIDIA_DEVICE)
    return __byte_perm(a, b, 0x7632);
#else
    return a >> 16 | (b & 0xffff0000u);
#endif
}

using Words4 = uint4;
using Words2 = uint2;
using Pair = float2;

HIPCONV_INLINE uint32_t word(Words2 v, int i) { return i == 0 ? v.x : v.y; }
HIPCONV_INLINE uint32_t word(Words4 v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
HIPCONV_INLINE void set_word(Words2& v, int i, uint32_t w) { (i == 0 ? v.x : v.y) = w; }
HIPCONV_INLINE void set_word(Words4& v, int i, uint32_t w) { (i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w) = w; }
HIPCONV_INLINE Words4 load_past_first_cache(const Words4* from) {
#if defined(HIPCONV_NVIDIA_DEVICE)
    return __ldcg(from);
#else
    return *from;
#endif
}
HIPCONV_INLINE Pair make_pair(float low, float high) { return make_float2(low, high); }
HIPCONV_INLINE float low(Pair v) { return v.x; }
HIPCONV_INLINE float high(Pair v) { return v.y; }
HIPCONV_INLINE Pair multiply_add(Pair a, Pair b, Pair c) { return make_float2(fmaf(a.x, b.x, c.x), fmaf(a.y, b.y, c.y)); }
HIPCONV_INLINE Pair multiply(Pair a, Pair b) { return make_float2(a.x * b.x, a.y * b.y); }
HIPCONV_INLINE Pair add(Pair a, Pair b) { return make_float2(a.x + b.x, a.y + b.y); }

HIPCONV_INLINE uint32_t floats_to_f16x2(float low, float high) {
#if defined(HIPCONV_HAS_BF16)
    uint32_t both;
    asm("{ cvt.rn.f16x2.f32 %0, %2, %1; }\n" : "=r"(both) : "f"(low), "f"(high));
    return both;
#else
    return float_to_f16_bits(low) | static_cast<uint32_t>(float_to_f16_bits(high)) << 16;
#endif
}
HIPCONV_INLINE uint32_t floats_to_bf16x2(float low, float high) {
#if defined(HIPCONV_HAS_BF16)
    uint32_t both;
    asm("{ cvt.rn.bf16x2.f32 %0, %2, %1;}\n" : "=r"(both) : "f"(low), "f"(high));
    return both;
#else
    return float_to_bf16_bits(low) | static_cast<uint32_t>(float_to_bf16_bits(high)) << 16;
#endif
}

}  // namespace hipconv
