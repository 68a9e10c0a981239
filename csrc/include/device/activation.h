// The sigmoid, and SiLU in five instructions: x * rcp(1 + exp2(-log2(e) * x)), by the hardware's own exp2 and
// reciprocal. `expf` and `/` would cost a memory-bound kernel more arithmetic than its bytes leave room for.
#pragma once

#include "device/arch.h"

namespace hipconv {

constexpr float kLog2e = 1.44269504088896341f;

HIPCONV_INLINE float sigmoid(float v) { return approx_rcp(1.0f + approx_exp2(-kLog2e * v)); }

HIPCONV_INLINE float silu(float v) { return v * sigmoid(v); }

}  // namespace hipconv
