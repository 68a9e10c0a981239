// A lane of the channel-last backward owns a vector of a token's channels. Here is what it computes with, and how vectors that
// lie at any address come to it.
#pragma once

#include "../common/vector_math.h"
#include "derivative.h"
#include "device/vec.h"
#include "taps.h"

namespace hipconv {

// Four channels as f32.
struct Quad {
    Pair first, second;
};

HIPCONV_INLINE Quad multiply_add(Quad a, Quad b, Quad c) {
    return {multiply_add(a.first, b.first, c.first), multiply_add(a.second, b.second, c.second)};
}
HIPCONV_INLINE Quad multiply(Quad a, Quad b) { return {multiply(a.first, b.first), multiply(a.second, b.second)}; }
HIPCONV_INLINE Quad add(Quad a, Quad b) { return {add(a.first, b.first), add(a.second, b.second)}; }
HIPCONV_INLINE Quad silu_derivative(Quad v) { return {silu_derivative(v.first), silu_derivative(v.second)}; }

// Two or four channels as f32, in one value.
template <int kChannels>
struct ChannelsOf;
template <>
struct ChannelsOf<2> {
    using Value = Pair;
    static HIPCONV_INLINE Value all(float v) { return twice(v); }
    static HIPCONV_INLINE float get(Value v, int c) { return c == 0 ? low(v) : high(v); }
    template <typename F>
    static HIPCONV_INLINE Value make(F f) {
        return make_pair(f(0), f(1));
    }
    template <typename T>
    static HIPCONV_INLINE Value unpack(Words<T, 2> words) {
        return pair_of<T>(words, 0);
    }
    template <typename T>
    static HIPCONV_INLINE Words<T, 2> pack(Value v) {
        Words<T, 2> words{};
        set_pair<T>(words, 0, v);
        return words;
    }
};
template <>
struct ChannelsOf<4> {
    using Value = Quad;
    static HIPCONV_INLINE Value all(float v) { return {twice(v), twice(v)}; }
    static HIPCONV_INLINE float get(Value v, int c) {
        const Pair both = c < 2 ? v.first : v.second;
        return c % 2 == 0 ? low(both) : high(both);
    }
    template <typename F>
    static HIPCONV_INLINE Value make(F f) {
        return {make_pair(f(0), f(1)), make_pair(f(2), f(3))};
    }
    template <typename T>
    static HIPCONV_INLINE Value unpack(Words<T, 4> words) {
        return {pair_of<T>(words, 0), pair_of<T>(words, 1)};
    }
    template <typename T>
    static HIPCONV_INLINE Words<T, 4> pack(Value v) {
        Words<T, 4> words{};
        set_pair<T>(words, 0, v.first);
        set_pair<T>(words, 1, v.second);
        return words;
    }
};

// Two elements of 16 bits that are loaded by themselves.
struct BwdHalves {
    uint32_t first, second;
};

// AMD's lanes load and store vectors at any address of an element.
template <typename Vector>
struct __attribute__((packed)) AnywhereInMemory {
    Vector vector;
};
template <typename Vector>
HIPCONV_INLINE Vector load_anywhere(const char* from) {
    return reinterpret_cast<const AnywhereInMemory<Vector>*>(from)->vector;
}
template <typename Vector>
HIPCONV_INLINE void store_anywhere(char* to, Vector v) {
    reinterpret_cast<AnywhereInMemory<Vector>*>(to)->vector = v;
}

// ---- eight bytes that begin in the middle of eight, where vectors must be aligned
// ----------------------------------------------

constexpr uint32_t kBwdGranule = 8;  // bytes

HIPCONV_INLINE uint32_t place_in_granule(const char* address) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address)) & (kBwdGranule - 1);
}

HIPCONV_INLINE const char* granule_of(const char* address) {
    return reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(address) & ~uintptr_t{kBwdGranule - 1});
}

// The eight bytes from byte `place` on of two granules that lie one behind the other in LDS.
template <typename T>
HIPCONV_INLINE Words2 from_granules(const char* granules, uint32_t place) {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(granules + (place & 4));
    Words2 v{};
    if constexpr (sizeof(T) == 4) {
        set_word(v, 0, words[0]);
        set_word(v, 1, words[1]);
    } else {
        const uint32_t middle = words[1];
        set_word(v, 0, shifted_right(words[0], middle, (place & 2) * 8));
        set_word(v, 1, shifted_right(middle, words[2], (place & 2) * 8));
    }
    return v;
}

// Stores the first `count` elements of eight bytes: the widest way that the address allows, if these are all.
template <typename T>
HIPCONV_INLINE void store_at_place(char* to, Words2 v, int count) {
    constexpr int kCount = 8 / static_cast<int>(sizeof(T));
    const uint32_t place = place_in_granule(to);
    if (place == 0 && count == kCount) {
        *reinterpret_cast<Words2*>(to) = v;
    } else if (place % 4 == 0 && (sizeof(T) == 4 || count == kCount)) {
        reinterpret_cast<uint32_t*>(to)[0] = word(v, 0);
        if (count > kCount / 2) reinterpret_cast<uint32_t*>(to)[1] = word(v, 1);
    } else if constexpr (sizeof(T) == 2) {
        store_part<T, 4>(reinterpret_cast<T*>(to), 0, count, v);
    }
}

}  // namespace hipconv
