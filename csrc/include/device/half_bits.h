// f16 to float and back by hand, for compilers and passes without instructions for it. The vendor's header defines
// HIPCONV_INLINE before it includes this.
#pragma once

#include <cstdint>
#include <cstring>

namespace hipconv {
namespace by_hand {

HIPCONV_INLINE float float_of(uint32_t bits) {
    float v;
    memcpy(&v, &bits, sizeof(v));
    return v;
}
HIPCONV_INLINE uint32_t bits_of(float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof(bits));
    return bits;
}

// It shifts the exponent into place and rescales by 2^112, which is exact for denormals too; an all-ones exponent stays one.
HIPCONV_INLINE float f16_bits_to_float(uint16_t bits) {
    const uint32_t magnitude = bits & 0x7fffu;
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    if (magnitude >= 0x7c00u) return float_of(sign | 0x7f800000u | (magnitude << 13));
    return float_of(sign | bits_of(float_of(magnitude << 13) * float_of(0x77800000u)));
}

HIPCONV_INLINE uint16_t float_to_f16_bits(float v) {
    const uint32_t bits = bits_of(v);
    const uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t half;
    if (magnitude > 0x7f800000u) {
        half = 0x7e00u;
    } else if (magnitude >= 0x477ff000u) {  // 65520 and up round to infinity
        half = 0x7c00u;
    } else if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 rounds to the denormals' unit, 2^-24
        half = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
    } else {
        half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    }
    return static_cast<uint16_t>(half | ((bits >> 16) & 0x8000u));
}

// Without a branch for NaN, whose bits rounding may make those of an infinity or a zero.
HIPCONV_INLINE uint16_t float_to_bf16_bits(float v) {
    const uint32_t bits = bits_of(v);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace by_hand
}  // namespace hipconv
