// The host target: plain C++ for csrc/cpu and the bindings, and kernels thread by thread through csrc/compat/simt.
// arch.h says what each name is for. Where cards differ, simt behaves like one of them for each wave size, so that tests see
// both.
#pragma once

#define HIPCONV_INLINE inline

#if defined(__F16C__)
#define HIPCONV_HAS_F16C 1  // x86 f16 conversions in hardware
#endif

// A native vector has so many bytes; 64 is AVX-512 with the F, BW, DQ and VL parts, 32 is AVX2 with FMA.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define HIPCONV_VECTOR_BYTES 64
#elif defined(__AVX2__) && defined(__FMA__)
#define HIPCONV_VECTOR_BYTES 32
#else
#define HIPCONV_VECTOR_BYTES 16
#endif

#include <cmath>

#if defined(HIPCONV_HAS_F16C)
#include <immintrin.h>
#endif

#include "device/half_bits.h"

namespace hipconv {

// ---- facts ------------------------------------------------------------------------------------------------------------

#if defined(HIPCONV_SIMT_WAVE)
constexpr int kWaveSize = HIPCONV_SIMT_WAVE;
constexpr int kLaneBytes = HIPCONV_SIMT_WAVE == 32 ? 8 : 16;
constexpr bool kVectorsBeginAtWords = HIPCONV_SIMT_WAVE != 32;
constexpr bool kRoundsNan = false;
constexpr bool kHasPredicates = HIPCONV_SIMT_WAVE == 32;
#else
constexpr int kWaveSize = 64;  // as on the home platform
constexpr int kLaneBytes = 16;
constexpr bool kVectorsBeginAtWords = true;
constexpr bool kHasPredicates = false;
#endif
constexpr int kLdsBytes = 64 << 10;
#if defined(HIPCONV_SIMT_MMA)
constexpr MatrixUnit kMatrixUnit = MatrixUnit::HIPCONV_SIMT_MMA;
#else
constexpr MatrixUnit kMatrixUnit = kWaveSize == 64 ? MatrixUnit::mfma : MatrixUnit::mma_sync;
#endif
constexpr bool kHasTf32 = true;
constexpr bool kCopiesPastRegisters = kMatrixUnit == MatrixUnit::mma_sync;
constexpr bool kHasWarpgroups = kMatrixUnit == MatrixUnit::mma_sync;
constexpr int kDies = kMatrixUnit == MatrixUnit::mfma ? 8 : 1;
constexpr bool kPrefetches = false;
constexpr bool kUnalignedVectors = kWaveSize == 64;

// ---- kernels ----------------------------------------------------------------------------------------------------------

#define HIPCONV_LAUNCH_BOUNDS(threads, blocks_per_compute_unit)
// simt serves LDS from a poisoned arena with canaries.
#define HIPCONV_SHARED(type, name, count) type* const name = ::simt::shared<type>(count)
#define HIPCONV_LARGE_SHARED(type, name, count) type* const name = ::simt::large_shared<type>(count)
#define HIPCONV_IN_PLACE

inline void keep_order() {}
template <int kSide>
inline void keep_apart() {}
inline void beside_access(uint32_t&) {}
inline void from_here_on(int&) {}
inline void from_here_on(uint32_t&) {}
inline void in_a_register(int&) {}
inline void in_a_register(const char*&) {}
inline void in_a_register(float&) {}
inline void enter_loop_here() {}

template <typename T>
inline T* global_pointer(uint64_t address) {
    return reinterpret_cast<T*>(address);
}
inline void promise_global(const void*) {}

template <typename P>
inline const P& first_parameter(const P& parameter) {
    return parameter;
}
template <typename P>
inline const P& first_parameter_again(const P& parameter) {
    return parameter;
}

inline void prefetch(const void*) {}
inline void prefetch_if(const void*, bool) {}

// simt/device.h defines sync_wave, copy_later, close_copies and wait_for_copies.
#define HIPCONV_LAUNCH(early, kernel, grid, block, shared_bytes, stream, ...)       \
    do {                                                                            \
        (void)(early);                                                              \
        hipLaunchKernelGGL(kernel, grid, block, shared_bytes, stream, __VA_ARGS__); \
    } while (false)

#define HIPCONV_LAUNCH_CLUSTERS(blocks, kernel, grid, block, shared_bytes, stream, ...) \
    ((void)(stream), ::simt::launcher(#kernel, kernel, grid, block, shared_bytes, blocks)(__VA_ARGS__))

inline void let_next_kernel_begin() {}
inline void wait_for_kernel_before() {}

// ---- numbers ----------------------------------------------------------------------------------------------------------

template <typename To, typename From>
inline To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}

inline float f16_bits_to_float(uint16_t bits) {
#if defined(HIPCONV_HAS_F16C)
    return _cvtsh_ss(bits);
#else
    return by_hand::f16_bits_to_float(bits);  // g++ before 13 has no _Float16 of its own
#endif
}

inline uint16_t float_to_f16_bits(float v) {
#if defined(HIPCONV_HAS_F16C)
    return static_cast<uint16_t>(_cvtss_sh(v, _MM_FROUND_TO_NEAREST_INT));
#else
    return by_hand::float_to_f16_bits(v);
#endif
}

inline uint16_t float_to_bf16_bits(float v) { return by_hand::float_to_bf16_bits(v); }

inline float at_least(float v, float least) { return v < least ? least : v; }

inline float approx_exp2(float v) { return exp2f(v); }
inline float approx_rcp(float v) { return 1.0f / v; }
inline float approx_rsqrt(float v) { return 1.0f / sqrtf(v); }

inline uint32_t shifted_right(uint32_t low, uint32_t high, uint32_t bits) { return bits ? low >> 16 | high << 16 : low; }
inline uint32_t shifted_left(uint32_t low, uint32_t high, uint32_t bits) { return bits ? low >> 16 | high << 16 : high; }
inline uint32_t lower_halves(uint32_t a, uint32_t b) { return (a & 0xffffu) | b << 16; }
inline uint32_t upper_halves(uint32_t a, uint32_t b) { return a >> 16 | (b & 0xffff0000u); }

typedef uint32_t Words4 __attribute__((vector_size(16)));
typedef uint32_t Words2 __attribute__((vector_size(8)));
typedef float Pair __attribute__((vector_size(8)));

inline uint32_t word(Words2 v, int i) { return v[i]; }
inline uint32_t word(Words4 v, int i) { return v[i]; }
inline void set_word(Words2& v, int i, uint32_t w) { v[i] = w; }
inline void set_word(Words4& v, int i, uint32_t w) { v[i] = w; }
inline Words4 load_past_first_cache(const Words4* from) { return *from; }
inline Pair make_pair(float low, float high) { return Pair{low, high}; }
inline float low(Pair v) { return v[0]; }
inline float high(Pair v) { return v[1]; }
inline Pair multiply_add(Pair a, Pair b, Pair c) { return a * b + c; }
inline Pair multiply(Pair a, Pair b) { return a * b; }
inline Pair add(Pair a, Pair b) { return a + b; }

inline uint32_t floats_to_f16x2(float low, float high) {
    return float_to_f16_bits(low) | static_cast<uint32_t>(float_to_f16_bits(high)) << 16;
}
inline uint32_t floats_to_bf16x2(float low, float high) {
    return float_to_bf16_bits(low) | static_cast<uint32_t>(float_to_bf16_bits(high)) << 16;
}

}  // namespace hipconv
