// The sigmoid, and SiLU in five instructions: x * rcp(1 + exp2(-log2(e) * x)), by the hardware's own exp2 and reciprocal.
// `expf` and `/` would cost a memory-bound kernel more arithmetic than its bytes leave room for.
#pragma once

#include <cmath>

#include "device/arch.h"

namespace hipconv {

HIPCONV_INLINE float approx_exp2(float v) {
#if defined(HIPCONV_NVIDIA)
    return compat::approx_exp2(v);
#elif defined(HIPCONV_AMD)
#if __has_builtin(__builtin_amdgcn_exp2f)
    return __builtin_amdgcn_exp2f(v);
#else
    return __builtin_exp2f(v);  // host pass, and clang before 18
#endif
#else
    return exp2f(v);
#endif
}

HIPCONV_INLINE float approx_rcp(float v) {
#if defined(HIPCONV_NVIDIA)
    return compat::approx_rcp(v);
#elif defined(HIPCONV_AMD) && __has_builtin(__builtin_amdgcn_rcpf)
    return __builtin_amdgcn_rcpf(v);
#else
    return 1.0f / v;
#endif
}

constexpr float kLog2e = 1.44269504088896341f;

HIPCONV_INLINE float sigmoid(float v) { return approx_rcp(1.0f + approx_exp2(-kLog2e * v)); }

HIPCONV_INLINE float silu(float v) { return v * sigmoid(v); }

}  // namespace hipconv
