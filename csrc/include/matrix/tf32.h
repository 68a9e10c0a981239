// This says how f32 is multiplied on matrix cores whose products take 11 bits of each factor (TF32): rounded to these, or split
// into two such parts.
#pragma once

#include "device/vec.h"

namespace hipconv {

// These stand for f32 as the type of a kernel's operands, and say how they are multiplied. Elements in memory are float.
struct tf32 {  // rounded to 11 bits, to nearest, ties away from zero: what cuDNN does
    float value;
};
struct split_f32 {  // in two parts of 11 bits; the sums keep the precision of f32
    float value;
};

template <typename T>
inline constexpr bool kIsTf32 = false;
template <>
inline constexpr bool kIsTf32<tf32> = true;
// Channels in a row of 128 bytes of an operand's tile.
template <typename T>
inline constexpr int kRowChannels = 128 / static_cast<int>(sizeof(T));

template <typename T>
inline constexpr bool kIsSplit = false;
template <>
inline constexpr bool kIsSplit<split_f32> = true;

HIPCONV_INLINE uint32_t rounded_to_tf32(uint32_t bits) {
#if defined(HIPCONV_HAS_MMA_SYNC)
    uint32_t rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "r"(bits));
    return rounded;
#else
    const float v = bit_cast<float>(bits);
    return v == v ? (bits + 0x1000u) & 0xffffe000u : 0x7fc00000u;
#endif
}

HIPCONV_INLINE Words4 rounded_to_tf32(Words4 four) {
    Words4 rounded{};
#pragma unroll
    for (int i = 0; i < 4; ++i) set_word(rounded, i, rounded_to_tf32(word(four, i)));
    return rounded;
}

// Tells whether a tile is rounded when it is stored to LDS. What comes there past the registers is rounded when it is read.
template <typename T>
inline constexpr bool kRoundsOnStore = kIsTf32<T> && !kCopiesPastRegisters;

// f32 as a sum: `large` is the number rounded to TF32, `small` what is left, rounded too. Infinities and NaN are small, because
// small parts are only multiplied by large ones: an infinity times a small part that is zero would be NaN. (So is, then, an
// infinity times an infinity.)
struct SplitWords {
    Words4 large, small;
};

HIPCONV_INLINE SplitWords split_to_tf32(Words4 four) {
    SplitWords s{};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t large = rounded_to_tf32(word(four, i));
        const float left = bit_cast<float>(word(four, i)) - bit_cast<float>(large);
        const bool is_finite = (large & 0x7f800000u) != 0x7f800000u;
        set_word(s.large, i, is_finite ? large : 0u);
        set_word(s.small, i, is_finite ? rounded_to_tf32(bit_cast<uint32_t>(left)) : word(four, i));
    }
    return s;
}

}  // namespace hipconv
