// The AMD target: HIP, compiled by clang. arch.h says what each name is for.
#pragma once

#define HIPCONV_INLINE __host__ __device__ inline __attribute__((always_inline))

#if defined(HIPCONV_AMD_DEVICE)
#if defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || defined(__gfx950__)
#define HIPCONV_HAS_MFMA 1
#elif defined(__GFX11__)
#define HIPCONV_HAS_WMMA11 1
#elif defined(__GFX12__) && !defined(__gfx1250__)
#define HIPCONV_HAS_WMMA12 1
#endif
#if defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__)
#define HIPCONV_HAS_XF32 1  // MFMA of f32 of which 11 bits count
#endif
#if defined(__gfx950__)
#define HIPCONV_HAS_MFMA_8_WIDE 1  // 16-bit forms that take 8 elements a lane
#endif
#endif

namespace hipconv {

// ---- facts ------------------------------------------------------------------------------------------------------------

#if defined(__GFX10__) || defined(__GFX11__) || defined(__GFX12__)
constexpr int kWaveSize = 32;
constexpr int kSimdsPerComputeUnit = 2;
#else
constexpr int kWaveSize = 64;
constexpr int kSimdsPerComputeUnit = 4;
#endif
constexpr int kLdsBytes = 64 << 10;
constexpr int kLaneBytes = 16;
constexpr bool kVectorsBeginAtWords = true;
constexpr bool kRoundsNan = false;
constexpr bool kHasPredicates = false;
#if defined(HIPCONV_HAS_XF32)
constexpr bool kHasTf32 = true;
#else
constexpr bool kHasTf32 = false;
#endif
#if defined(HIPCONV_HAS_MFMA)
constexpr MatrixUnit kMatrixUnit = MatrixUnit::mfma;
#elif defined(HIPCONV_HAS_WMMA11)
constexpr MatrixUnit kMatrixUnit = MatrixUnit::wmma11;
#elif defined(HIPCONV_HAS_WMMA12)
constexpr MatrixUnit kMatrixUnit = MatrixUnit::wmma12;
#else
constexpr MatrixUnit kMatrixUnit = MatrixUnit::fma;
#endif
constexpr bool kCopiesPastRegisters = false;
constexpr bool kHasWarpgroups = false;
#if defined(__gfx942__) || defined(__gfx950__)
constexpr int kDies = 8;
#else
constexpr int kDies = 1;
#endif
constexpr bool kPrefetches = false;
constexpr bool kUnalignedVectors = true;

// This converts blocks per compute unit to waves per SIMD, which the compiler takes; every SIMD can hold 8.
constexpr int waves_per_simd(int threads, int blocks_per_compute_unit, int wave, int simds) {
    const int waves = (threads + wave - 1) / wave * blocks_per_compute_unit;
    const int per_simd = (waves + simds - 1) / simds;
    return per_simd < 8 ? per_simd : 8;
}

// ---- kernels ----------------------------------------------------------------------------------------------------------

// The second argument of __launch_bounds__ means waves per SIMD in some HIP headers and blocks per multiprocessor elsewhere, so
// the compiler gets the attributes themselves.
#define HIPCONV_LAUNCH_BOUNDS(threads, blocks_per_compute_unit)                                                          \
    __attribute__((amdgpu_flat_work_group_size(1, threads),                                                              \
                   amdgpu_waves_per_eu(::hipconv::waves_per_simd(threads, blocks_per_compute_unit, ::hipconv::kWaveSize, \
                                                                 ::hipconv::kSimdsPerComputeUnit))))
#define HIPCONV_SHARED(type, name, count) __shared__ type name[count]
#define HIPCONV_LARGE_SHARED(type, name, count) __shared__ type name[count]
#define HIPCONV_IN_PLACE

HIPCONV_INLINE void keep_order() {
#if defined(HIPCONV_AMD_DEVICE) && __has_builtin(__builtin_amdgcn_sched_barrier)
    __builtin_amdgcn_sched_barrier(0);
#endif
}

template <int kSide>
HIPCONV_INLINE void keep_apart() {
#if defined(HIPCONV_AMD_DEVICE)
    asm volatile("; side %0" ::"n"(kSide));
#endif
}

HIPCONV_INLINE void beside_access(uint32_t& lane_offset) {
#if defined(HIPCONV_AMD_DEVICE)
    asm volatile("" : "+v"(lane_offset));
#else
    (void)lane_offset;
#endif
}

HIPCONV_INLINE void from_here_on(int&) {}
HIPCONV_INLINE void from_here_on(uint32_t& of_lane) {
#if defined(HIPCONV_AMD_DEVICE)
    asm volatile("" : "+v"(of_lane));
#else
    (void)of_lane;
#endif
}
HIPCONV_INLINE void in_a_register(int&) {}
HIPCONV_INLINE void in_a_register(const char*&) {}
HIPCONV_INLINE void in_a_register(float& value) {
#if defined(HIPCONV_AMD_DEVICE)
    asm volatile("" : "+v"(value));
#else
    (void)value;
#endif
}

HIPCONV_INLINE void enter_loop_here() {
#if defined(HIPCONV_AMD_DEVICE)
    asm volatile("; the loop begins");
#endif
}

template <typename T>
HIPCONV_INLINE T* global_pointer(uint64_t address) {
    return (T*)reinterpret_cast<__attribute__((address_space(1))) T*>(address);
}
HIPCONV_INLINE void promise_global(const void*) {}

template <typename P>
HIPCONV_INLINE const P& first_parameter(const P& parameter) {
#if __has_builtin(__builtin_amdgcn_kernarg_segment_ptr)
    (void)parameter;
    return *(const P*)__builtin_amdgcn_kernarg_segment_ptr();
#else
    return parameter;
#endif
}

template <typename P>
HIPCONV_INLINE const P& first_parameter_again(const P& parameter) {
#if defined(HIPCONV_AMD_DEVICE)
    (void)parameter;
    const __attribute__((address_space(4))) void* place =
        (const __attribute__((address_space(4))) void*)__builtin_amdgcn_kernarg_segment_ptr();
    asm volatile("" : "+s"(place));
    return *(const P*)place;
#else
    return parameter;
#endif
}

HIPCONV_INLINE void prefetch(const void*) {}
HIPCONV_INLINE void prefetch_if(const void*, bool) {}

HIPCONV_INLINE void sync_wave() {
#if defined(HIPCONV_AMD_DEVICE)
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
    __builtin_amdgcn_wave_barrier();
#endif
}

// There are no copies past the registers here: kCopiesPastRegisters is false.
template <typename Vector>
HIPCONV_INLINE void copy_later(Vector*, const void*, bool) {}
template <typename Vector>
HIPCONV_INLINE void copy_later(Vector*, const void*) {}
template <typename Vector>
HIPCONV_INLINE void copy_later_if(bool, Vector*, const void*) {}
HIPCONV_INLINE void close_copies() {}
template <int kGroupsLeft>
HIPCONV_INLINE void wait_for_copies() {}

#define HIPCONV_LAUNCH(early, kernel, grid, block, shared_bytes, stream, ...)       \
    do {                                                                            \
        (void)(early);                                                              \
        hipLaunchKernelGGL(kernel, grid, block, shared_bytes, stream, __VA_ARGS__); \
    } while (false)

#define HIPCONV_LAUNCH_CLUSTERS(blocks, kernel, grid, block, shared_bytes, stream, ...) \
    HIPCONV_LAUNCH(((void)(blocks), true), kernel, grid, block, shared_bytes, stream, __VA_ARGS__)

HIPCONV_INLINE void let_next_kernel_begin() {}
HIPCONV_INLINE void wait_for_kernel_before() {}

// ---- numbers ----------------------------------------------------------------------------------------------------------

// clang 19 splits the bytes of a memcpy of two bytes and shifts them as packed halves, which is wrong; so a memcpy is avoided
// where possible.
template <typename To, typename From>
HIPCONV_INLINE To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
#if __has_builtin(__builtin_bit_cast)
    return __builtin_bit_cast(To, from);
#else
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
#endif
}

HIPCONV_INLINE float f16_bits_to_float(uint16_t bits) { return static_cast<float>(bit_cast<_Float16>(bits)); }
HIPCONV_INLINE uint16_t float_to_f16_bits(float v) { return bit_cast<uint16_t>(static_cast<_Float16>(v)); }
HIPCONV_INLINE uint16_t float_to_bf16_bits(float v) {
    const uint32_t bits = bit_cast<uint32_t>(v);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

HIPCONV_INLINE float at_least(float v, float least) { return v < least ? least : v; }

HIPCONV_INLINE float approx_exp2(float v) {
#if __has_builtin(__builtin_amdgcn_exp2f)
    return __builtin_amdgcn_exp2f(v);
#else
    return __builtin_exp2f(v);  // for the host pass, and clang before 18
#endif
}

HIPCONV_INLINE float approx_rcp(float v) {
#if __has_builtin(__builtin_amdgcn_rcpf)
    return __builtin_amdgcn_rcpf(v);
#else
    return 1.0f / v;
#endif
}

HIPCONV_INLINE float approx_rsqrt(float v) {
#if __has_builtin(__builtin_amdgcn_rsqf)
    return __builtin_amdgcn_rsqf(v);
#else
    return 1.0f / __builtin_sqrtf(v);
#endif
}

HIPCONV_INLINE uint32_t shifted_right(uint32_t low, uint32_t high, uint32_t bits) {
#if __has_builtin(__builtin_amdgcn_alignbit)
    return __builtin_amdgcn_alignbit(high, low, bits);
#else
    return bits ? low >> 16 | high << 16 : low;
#endif
}
HIPCONV_INLINE uint32_t shifted_left(uint32_t low, uint32_t high, uint32_t bits) {
#if __has_builtin(__builtin_amdgcn_perm)
    return __builtin_amdgcn_perm(high, low, bits ? 0x05040302u : 0x07060504u);
#else
    return bits ? low >> 16 | high << 16 : high;
#endif
}
HIPCONV_INLINE uint32_t lower_halves(uint32_t a, uint32_t b) {
#if __has_builtin(__builtin_amdgcn_perm)
    return __builtin_amdgcn_perm(b, a, 0x05040100u);
#else
    return (a & 0xffffu) | b << 16;
#endif
}
HIPCONV_INLINE uint32_t upper_halves(uint32_t a, uint32_t b) {
#if __has_builtin(__builtin_amdgcn_perm)
    return __builtin_amdgcn_perm(b, a, 0x07060302u);
#else
    return a >> 16 | (b & 0xffff0000u);
#endif
}

using Words4 = uint32_t __attribute__((ext_vector_type(4)));
using Words2 = uint32_t __attribute__((ext_vector_type(2)));
using Pair = float __attribute__((ext_vector_type(2)));

HIPCONV_INLINE uint32_t word(Words2 v, int i) { return v[i]; }
HIPCONV_INLINE uint32_t word(Words4 v, int i) { return v[i]; }
HIPCONV_INLINE void set_word(Words2& v, int i, uint32_t w) { v[i] = w; }
HIPCONV_INLINE void set_word(Words4& v, int i, uint32_t w) { v[i] = w; }
HIPCONV_INLINE Words4 load_past_first_cache(const Words4* from) { return *from; }
HIPCONV_INLINE Pair make_pair(float low, float high) { return Pair{low, high}; }
HIPCONV_INLINE float low(Pair v) { return v[0]; }
HIPCONV_INLINE float high(Pair v) { return v[1]; }
HIPCONV_INLINE Pair multiply_add(Pair a, Pair b, Pair c) { return a * b + c; }  // v_pk_fma_f32
HIPCONV_INLINE Pair multiply(Pair a, Pair b) { return a * b; }
HIPCONV_INLINE Pair add(Pair a, Pair b) { return a + b; }

// This rounds a pair and packs it into a word, low half first.
HIPCONV_INLINE uint32_t floats_to_f16x2(float low, float high) {
    return float_to_f16_bits(low) | static_cast<uint32_t>(float_to_f16_bits(high)) << 16;
}
HIPCONV_INLINE uint32_t floats_to_bf16x2(float low, float high) {
    const uint32_t a = bit_cast<uint32_t>(low), b = bit_cast<uint32_t>(high);
    const uint32_t rounded_a = a + 0x7fffu + ((a >> 16) & 1u), rounded_b = b + 0x7fffu + ((b >> 16) & 1u);
#if __has_builtin(__builtin_amdgcn_perm)
    return __builtin_amdgcn_perm(rounded_b, rounded_a, 0x07060302u);  // takes the rounded halves of both registers
#else
    return (rounded_b & 0xffff0000u) | rounded_a >> 16;
#endif
}

}  // namespace hipconv
