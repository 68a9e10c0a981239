// The element types of tensors and their conversions to float and back. f16 and bf16 are 16 bits of storage here:
// arithmetic is f32 everywhere, so a kernel needs two conversions and no operators. Both stores round to nearest, ties to even.
#pragma once

#include "device/arch.h"

namespace hipconv {

enum class DType : int32_t { f32, f16, bf16 };

HIPCONV_INLINE int element_bytes(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

struct f16 {
    uint16_t bits;
};
struct bf16 {
    uint16_t bits;
};

// ---- to float ---------------------------------------------------------------------------------------------------------

HIPCONV_INLINE float to_float(float v) { return v; }

HIPCONV_INLINE float to_float(bf16 v) { return bit_cast<float>(static_cast<uint32_t>(v.bits) << 16); }

HIPCONV_INLINE float to_float(f16 v) { return f16_bits_to_float(v.bits); }

// A NaN whose payload is in the low bits only would round up into an infinity or wrap into -0 in `from_float` below. 16-bit
// types cannot hold such a NaN; f32 weights and biases can, and come through here once.
HIPCONV_INLINE float canonical_nan(float v) { return v == v ? v : bit_cast<float>(0x7fc00000u); }

// Calls run(T{}) or, where kHalvesShareKernels and f16 stands for both 16-bit types, run() with the one that a call has.
template <typename T, typename Run>
HIPCONV_INLINE auto with_halves(DType dtype, Run run) {
    if constexpr (kHalvesShareKernels && sizeof(T) == 2) {
        if (dtype == DType::bf16) return run(bf16{});
    }
    return run(T{});
}

// Loads a weight or bias element, whose type is known only at run time; all lanes take the same branch.
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

// The same in two steps, so that nothing waits for the load before the value is needed: the element's bits, and what they are.
HIPCONV_INLINE uint32_t load_parameter_bits(const void* base, int64_t index, DType dtype) {
    if (dtype == DType::f32) return global_pointer<const uint32_t>(base)[index];
    return global_pointer<const uint16_t>(base)[index];
}
// The bits of the bias of channel k, zero if there is none: `p` has `bias`, `bias_stride` and `bias_dtype`.
template <typename Params>
HIPCONV_INLINE uint32_t load_bias_bits(const Params& p, int64_t k) {
    return p.bias ? load_parameter_bits(p.bias, k * p.bias_stride, p.bias_dtype) : 0;
}
HIPCONV_INLINE float parameter_of(uint32_t bits, DType dtype) {
    const uint16_t half = static_cast<uint16_t>(bits);
    if (dtype == DType::f16) return to_float(f16{half});
    return dtype == DType::bf16 ? to_float(bf16{half}) : canonical_nan(bit_cast<float>(bits));
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
    return bf16{float_to_bf16_bits(v)};
}

template <>
HIPCONV_INLINE f16 from_float<f16>(float v) {
    return f16{float_to_f16_bits(v)};
}

// This calls f with a value of the type that dtype names; in a kernel, all lanes take the same branch.
#if defined(HIPCONV_NVIDIA)
#pragma nv_exec_check_disable  // on the host, f is a host function
#endif
template <typename F>
HIPCONV_INLINE void with_dtype(DType dtype, F f) {
    switch (dtype) {
        case DType::f16:
            return f(f16{});
        case DType::bf16:
            return f(bf16{});
        default:
            return f(float{});
    }
}

}  // namespace hipconv
