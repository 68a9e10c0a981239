// What the fast causal conv1d kernels share: a few channels' parameters in registers, and the arithmetic of one output vector.
#pragma once

#include "activation.h"
#include "causal_conv1d.h"
#include "vec.h"

namespace hipconv {

// SiLU of two values; all but the exponentials and reciprocals is packed where the card can.
HIPCONV_INLINE Pair silu(Pair v) {
    const Pair scaled = multiply(v, twice(-1.44269504088896341f));
    const Pair denominator = add(twice(1.0f), make_pair(approx_exp2(low(scaled)), approx_exp2(high(scaled))));
    return multiply(v, make_pair(approx_rcp(low(denominator)), approx_rcp(high(denominator))));
}

template <typename P>
HIPCONV_INLINE float parameter(const void* base, int64_t index) {
    const float v = to_float(static_cast<const P*>(base)[index]);
    return sizeof(P) == 4 ? canonical_nan(v) : v;
}

// Calls f with a value of the type that dtype names; all lanes take the same branch.
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

HIPCONV_INLINE int element_bytes(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

}  // namespace hipconv
