// A lane of the channel-last backward owns four bytes of a token, two channels of 16 bits or one of f32. Here is how it moves
// them between memory and registers, wherever they lie.
#pragma once

#include <type_traits>

#include "device/vec.h"

namespace hipconv {

// These are a lane's channels of a token as they were loaded. With kWhole they are one word of memory, at a multiple of four
// bytes. Without, they are two elements, each with a load and a store of its own, at any address: the halves stay in two
// registers until they are used, because to join them would be to wait for them. (Two words and a shift would be as many loads,
// and would read what lies around the tensor.)
template <typename T, bool kWhole>
struct BwdLane {
    static_assert(kWhole || sizeof(T) == 2, "an f32 is a word wherever it lies");
    static constexpr int kChannels = 4 / static_cast<int>(sizeof(T));
    using Value = std::conditional_t<kChannels == 2, Pair, float>;  // the channels as f32

    uint32_t first, second;  // the word and nothing, or the elements

    static HIPCONV_INLINE void load(const char* from, BwdLane& to) {
        if constexpr (kWhole) {
            to.first = *reinterpret_cast<const uint32_t*>(from);
        } else {
            to.first = reinterpret_cast<const uint16_t*>(from)[0];
            to.second = reinterpret_cast<const uint16_t*>(from)[1];
        }
    }

    static HIPCONV_INLINE BwdLane of(T a, T b) {
        if constexpr (kChannels == 1)
            return {bit_cast<uint32_t>(a), 0};
        else if constexpr (kWhole)
            return {a.bits | static_cast<uint32_t>(b.bits) << 16, 0};
        else
            return {a.bits, b.bits};
    }

    HIPCONV_INLINE Value value() const {
        if constexpr (kChannels == 1)
            return bit_cast<float>(first);
        else if constexpr (kWhole)
            return unpack<T>(first);
        else
            return make_pair(to_float(T{static_cast<uint16_t>(first)}), to_float(T{static_cast<uint16_t>(second)}));
    }

    static HIPCONV_INLINE void store(char* to, Value v) {
        if constexpr (kChannels == 1) {
            *reinterpret_cast<float*>(to) = v;
        } else {
            const uint32_t word = pack<T>(v);
            if constexpr (kWhole) {
                *reinterpret_cast<uint32_t*>(to) = word;
            } else {
                reinterpret_cast<uint16_t*>(to)[0] = static_cast<uint16_t>(word);
                reinterpret_cast<uint16_t*>(to)[1] = static_cast<uint16_t>(word >> 16);
            }
        }
    }
};

// Channel c of a lane's channels.
HIPCONV_INLINE float channel_of(float v, int) { return v; }
HIPCONV_INLINE float channel_of(Pair v, int c) { return c == 0 ? low(v) : high(v); }
template <typename Value>
HIPCONV_INLINE Value value_of(float a, float b) {
    if constexpr (sizeof(Value) == sizeof(float))
        return a;
    else
        return make_pair(a, b);
}

}  // namespace hipconv
