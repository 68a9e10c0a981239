// A lane's neighbouring channels of a token, as they lie in channel-last memory and as pairs of floats. The parts of a lane are
// what it loads at once; they are an array, so that loads run ahead of their use.
#pragma once

#include "device/vec.h"

namespace hipconv {

// These lie in one aligned vector.
template <typename T, int kLaneChannels>
struct WholeLane {
    static constexpr int kChannels = kLaneChannels, kParts = 1;
    using Part = Words<T, kChannels>;

    static HIPCONV_INLINE void load(const char* from, bool, Part (&parts)[kParts]) {
        parts[0] = *reinterpret_cast<const Part*>(from);
    }
    static HIPCONV_INLINE Pair pair(const Part (&parts)[kParts], int j) { return pair_of<T>(parts[0], j); }
    static HIPCONV_INLINE void store(char* to, bool, const Pair (&pairs)[kChannels / 2]) {
        Part words{};
#pragma unroll
        for (int j = 0; j < kChannels / 2; ++j) set_pair<T>(words, j, pairs[j]);
        *reinterpret_cast<Part*>(to) = words;
    }
};

// This is one element of f32, or two of 16 bits, with any address. The second is missing (`both` is false) at the end of an odd
// dim and elsewhere, and its part stays as it is. Nothing outside the elements is read. Both are written as a word where that is
// aligned. (A part is a word where memory has half of one: nvcc would pack two halves into a register, and wait for both right
// after the load.)
template <typename T>
struct SplitLane {
    static constexpr int kChannels = 4 / static_cast<int>(sizeof(T)), kParts = kChannels;
    using Part = uint32_t;

    static HIPCONV_INLINE void load(const char* from, bool both, Part (&parts)[kParts]) {
        if constexpr (kChannels == 1) {
            parts[0] = *reinterpret_cast<const uint32_t*>(from);
        } else {
            const uint16_t* elements = reinterpret_cast<const uint16_t*>(from);
            parts[0] = elements[0];
            if (both) parts[1] = elements[1];
        }
    }
    static HIPCONV_INLINE Pair pair(const Part (&parts)[kParts], int) {
        if constexpr (kChannels == 1)
            return make_pair(bit_cast<float>(parts[0]), 0.0f);
        else
            return make_pair(to_float(T{static_cast<uint16_t>(parts[0])}), to_float(T{static_cast<uint16_t>(parts[1])}));
    }
    static HIPCONV_INLINE void store(char* to, bool both, const Pair (&pairs)[1]) {
        if constexpr (kChannels == 1) {
            *reinterpret_cast<float*>(to) = low(pairs[0]);
        } else {
            const uint32_t words = pack<T>(pairs[0]);
            uint16_t* const elements = reinterpret_cast<uint16_t*>(to);
            const bool aligned = both && reinterpret_cast<uintptr_t>(to) % 4 == 0;
            if (aligned) *reinterpret_cast<uint32_t*>(to) = words;
            if (!aligned) elements[0] = static_cast<uint16_t>(words);
            if (!aligned && both) elements[1] = static_cast<uint16_t>(words >> 16);
        }
    }
};

}  // namespace hipconv
