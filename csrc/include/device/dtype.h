// Element types of tensors and their way to float and back. f16 and bf16 are 16 bits of storage here: arithmetic is f32
// everywhere, so a kernel needs two conversions and no operators. Both stores round to nearest, ties to even.
#pragma once

#include <cstdint>
#include <cstring>

#include "device/arch.h"

#if defined(HIPCONV_HAS_F16C)
#include <immintrin.h>
#endif

namespace hipconv {

enum class DType : int32_t { f32, f16, bf16 };

HIPCONV_INLINE int element_bytes(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

struct f16 {
    uint16_t bits;
};
struct bf16 {
    uint16_t bits;
};

template <typename To, typename From>
HIPCONV_INLINE To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
#if defined(HIPCONV_AMD) && __has_builtin(__builtin_bit_cast)
    return __builtin_bit_cast(To, from);
#endif
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}

// ---- to float ---------------------------------------------------------------------------------------------------------

HIPCONV_INLINE float to_float(float v) { return v; }

HIPCONV_INLINE float to_float(bf16 v) { return bit_cast<float>(static_cast<uint32_t>(v.bits) << 16); }

HIPCONV_INLINE float to_float(f16 v) {
#if defined(HIPCONV_AMD)
    return static_cast<float>(bit_cast<_Float16>(v.bits));
#elif defined(HIPCONV_NVIDIA)
    return compat::f16_bits_to_float(v.bits);
#elif defined(HIPCONV_HAS_F16C)
    return _cvtsh_ss(v.bits);
#else
    // g++ before 13 has no _Float16 of its own, so by hand: shift the exponent into place and rescale by 2^112, which is exact
    // for denormals too; an all-ones exponent stays one.
    const uint32_t magnitude = v.bits & 0x7fffu;
    const uint32_t sign = static_cast<uint32_t>(v.bits & 0x8000u) << 16;
    if (magnitude >= 0x7c00u) return bit_cast<float>(sign | 0x7f800000u | (magnitude << 13));
    return bit_cast<float>(sign | bit_cast<uint32_t>(bit_cast<float>(magnitude << 13) * bit_cast<float>(0x77800000u)));
#endif
}

// A NaN whose payload sits in the low bits only would round up into an infinity or wrap into -0 in `from_float` below. 16-bit
// types cannot hold such a NaN; f32 weights and biases can, and come through here once.
HIPCONV_INLINE float canonical_nan(float v) { return v == v ? v : bit_cast<float>(0x7fc00000u); }

// A weight or bias element, of a type known only at run time; all lanes take the same branch.
HIPCONV_INLINE float load_parameter(const void* base, int64_t index, DType dtype) {
    switch (dtype) {
        case DType::f16:
            return to_float(static_cast<const f16*>(base)[index]);
        case DType::bf16:
            return to_float(static_cast<const bf16*>(base)[index]);
        default:
            return canonical_nan(static_cast<const float*>(base)[index]);
    }
}

// ---- from float -------------------------------------------------------------------------------------------------------

template <typename T>
HIPCONV_INLINE T from_float(float v);

template <>
HIPCONV_INLINE float from_float<float>(float v) {
    return v;
}

template <>
HIPCONV_INLINE bf16 from_float<bf16>(float v) {
#if defined(HIPCONV_NVIDIA)
    return bf16{compat::float_to_bf16_bits(v)};  // NVIDIA's own NaN is 0x7fffffff, which the sum below would wrap
#else
    const uint32_t bits = bit_cast<uint32_t>(v);
    return bf16{static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
#endif
}

template <>
HIPCONV_INLINE f16 from_float<f16>(float v) {
#if defined(HIPCONV_AMD)
    return f16{bit_cast<uint16_t>(static_cast<_Float16>(v))};
#elif defined(HIPCONV_NVIDIA)
    return f16{compat::float_to_f16_bits(v)};
#elif defined(HIPCONV_HAS_F16C)
    return f16{static_cast<uint16_t>(_cvtss_sh(v, _MM_FROUND_TO_NEAREST_INT))};
#else
    const uint32_t bits = bit_cast<uint32_t>(v);
    const uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t half;
    if (magnitude > 0x7f800000u) {
        half = 0x7e00u;
    } else if (magnitude >= 0x477ff000u) {  // 65520 and up round to infinity
        half = 0x7c00u;
    } else if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 rounds to the denormals' unit, 2^-24
        half = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    } else {
        half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    }
    return f16{static_cast<uint16_t>(half | ((bits >> 16) & 0x8000u))};
#endif
}

// Calls f, on the host, with a value of the type that dtype names.
template <typename F>
void with_element_type(DType dtype, F f) {
    switch (dtype) {
        case DType::f32:
            return f(float{});
        case DType::f16:
            return f(f16{});
        case DType::bf16:
            return f(bf16{});
    }
}

}  // namespace hipconv
