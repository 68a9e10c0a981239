// A lane of the kernel `words` reaches its channels of a token so: one word of memory, at any alignment.
//
// Of a word that two channels of 16 bits share, the halves are loaded one by one: a wave's two loads touch the same sectors as
// one of words. They are stored as whole words, because L2 would get twice the writes of halves. Where a row begins in the
// middle of a word, a lane stores the channel before its own two and the first of them; the row's ends are stored alone.
//
// The file is for files that include <hip/hip_runtime.h>.
#pragma once

#include <type_traits>

#include "device/elements.h"
#include "launch_plan.h"

namespace hipconv {

// The threads of a block: those of rows of a power of two of lanes, and at most, where rows have any number of lanes. AMD's
// blocks have no LDS for more.
constexpr int kWordsThreads = 128, kMostWordsThreads = kHasPredicates ? 160 : 128;
constexpr int kMaskTokens = 32;                            // a mask has a bit for each
constexpr int kMostWordsLanes = kHasPredicates ? 80 : 40;  // that a block is wide

// This says how a launch of `words` divides the work.
struct WordsPlan : VarlenPlan {
    bool shifts;         // rows of outputs may begin in the middle of a word
    bool rows_in_waves;  // a row of lanes lies in one wave
    int32_t finders;     // 2 to the power of this: lanes that find the sequences of a run
};

// Writes down how lanes of a row work together.
inline void plan_lanes(WordsPlan& plan, const CausalConv1dVarlenParams& p, unsigned lanes) {
    plan.shifts = element_bytes(p.dtype) == 2 && !outputs_in_words(p);
    plan.rows_in_waves = 32 % lanes == 0;
    plan.finders = 5;
    while (1u << plan.finders > lanes) --plan.finders;
}

// The kernel's parameter. Its members are read where they are needed: together they would fill a wave's scalar registers (AMD).
struct WordsCall {
    CausalConv1dVarlenParams params;
    WordsPlan plan;
};

// Calls f with the number of a window's columns as an integral_constant, of an instance that may lack some.
template <int kPast, int kFewest = kPast == 7 ? 4 : 1, typename F>
HIPCONV_INLINE void with_columns(int missing, F f) {
    if constexpr (kPast > kFewest) {
        if (missing > 0) return with_columns<kPast - 1, kFewest>(missing - 1, f);
    }
    f(std::integral_constant<int, kPast>{});
}

template <typename T>
struct WordLane {
    static constexpr int kChannels = 4 / static_cast<int>(sizeof(T)), kBlockChannels = kMostWordsLanes * kChannels;
    static constexpr bool kHalves = kChannels == 2;
    using Word = uint32_t;
    using Ahead = std::conditional_t<kHalves, Words2, Word>;  // on its way: halves are not put together before they are used
    bool has_second;                                          // of two channels; there is always a first one

    HIPCONV_INLINE WordLane(int64_t d, int32_t dim) : has_second(!kHalves || d + 1 < dim) {}

    HIPCONV_INLINE Word load(const char* from) const {
        if constexpr (kHalves) {
            const uint16_t* const halves = global_pointer<const uint16_t>(from);
            return halves[0] | static_cast<uint32_t>(halves[has_second ? 1 : 0]) << 16;
        } else {
            return *global_pointer<const Word>(from);
        }
    }

    // Asks for token `number` of `tokens`; past them, `to` stays as it is.
    HIPCONV_INLINE void ask(Ahead& to, const char* from, int number, int tokens) const {
        if constexpr (kHalves) {
            const uint16_t* const halves = global_pointer<const uint16_t>(from);
            if (number < tokens) set_word(to, 0, halves[0]);
            if (number < (has_second ? tokens : 0)) set_word(to, 1, halves[1]);
        } else {
            if (number < tokens) to = *global_pointer<const Word>(from);
        }
    }
    // Halves that are on their way are waited for here. The compiler would convert them, and wait, where they are asked for.
    static HIPCONV_INLINE void wait_for(Ahead& v) {
        if constexpr (kHalves) {
            for (int i = 0; i < 2; ++i) {
                int half = static_cast<int>(word(v, i));
                in_a_register(half);
                set_word(v, i, static_cast<uint32_t>(half));
            }
        }
    }
    // Its word, and its channels as floats.
    static HIPCONV_INLINE Word joined(Ahead v) {
        if constexpr (kHalves)
            return word(v, 0) | word(v, 1) << 16;
        else
            return v;
    }
    static HIPCONV_INLINE Pair pair(Ahead v) {
        if constexpr (kHalves)
            return make_pair(to_float(from_bits<T>(word(v, 0))), to_float(from_bits<T>(word(v, 1))));
        else
            return twice(bit_cast<float>(v));
    }

    HIPCONV_INLINE void store(char* to, Word v) const {
        if constexpr (kHalves) {
            if (has_second && reinterpret_cast<uintptr_t>(to) % 4 == 0) {
                *global_pointer<Word>(to) = v;
                return;
            }
            uint16_t* const halves = global_pointer<uint16_t>(to);
            halves[0] = static_cast<uint16_t>(v);
            if (has_second) halves[1] = static_cast<uint16_t>(v >> 16);
        } else {
            *global_pointer<Word>(to) = v;
        }
    }
};

// Stores of a row's tokens, in order. Of halves, all lanes of a wave must store at the same time, whether each has something to
// store or not.
//
// kShifts: rows of outputs may begin in the middle of a word.
template <typename T, bool kShifts>
struct WordStores {
    static constexpr bool kTogether = WordLane<T>::kHalves && kShifts;
    // Bits: tokens whose whole word this lane stores; whose word, with the channel before its own two; of which it stores its
    // first or its second channel alone.
    uint32_t whole, shifted = 0, firsts = 0, seconds = 0;

    // `outputs` are the tokens to store; `to` is the first one's place.
    HIPCONV_INLINE WordStores(const CausalConv1dVarlenParams& p, const WordsPlan& plan, int64_t d, const char* to,
                              uint32_t step, uint32_t outputs)
        : whole(outputs) {
        if (!kTogether || !plan.shifts) return;
        // The ends are those of a row in memory, or of this wave's part of it.
        const uint32_t in_wave = (threadIdx.y * blockDim.x + threadIdx.x) % kWaveSize;
        const int64_t next = d + 2, v_begin = 2 * int64_t{p.k_dim};
        const bool splits = p.k_dim >= 0, has_second = d + 1 < p.dim;
        const bool starts = threadIdx.x == 0 || in_wave == 0 || (splits && (d == p.k_dim || d == v_begin));
        const bool ends = threadIdx.x + 1 == blockDim.x || in_wave + 1 == kWaveSize || next >= p.dim ||
                          (splits && (next == p.k_dim || next == v_begin));
        whole = 0;
#pragma unroll
        for (int k = 0; k < 2; ++k) {  // every other token
            const bool odd = (reinterpret_cast<uintptr_t>(to) + k * step) % 4 != 0;
            const uint32_t tokens = outputs & (k == 0 ? 0x55555555u : 0xaaaaaaaau);
            whole |= !odd && has_second ? tokens : 0;
            shifted |= odd && !starts ? tokens : 0;
            firsts |= (odd ? starts : !has_second) ? tokens : 0;
            seconds |= odd && ends && has_second ? tokens : 0;
        }
    }

    // Token j of those that are left; j is a compile-time constant.
    HIPCONV_INLINE void store(char* to, uint32_t v, int j) const {
        if (whole >> j & 1) *global_pointer<uint32_t>(to) = v;
        if constexpr (kTogether) {
            const uint32_t both = shifted_left(__shfl_up(v, 1), v, 16);
            if (shifted >> j & 1) *global_pointer<uint32_t>(to - 2) = both;
            if (firsts >> j & 1) *global_pointer<uint16_t>(to) = static_cast<uint16_t>(v);
            if (seconds >> j & 1) *global_pointer<uint16_t>(to + 2) = static_cast<uint16_t>(v >> 16);
        }
    }
    HIPCONV_INLINE void next(int count) {
        whole >>= count;
        if (!kTogether) return;
        shifted >>= count;
        firsts >>= count;
        seconds >>= count;
    }
};

// Weights and biases of a block's channels as floats, which come to LDS once a block, whatever they are in memory: tap by tap,
// and behind the last one the biases. They are asked for early, as memory holds them, and put into LDS later.
template <typename T, int kWidth>
struct BlockTaps {
    static constexpr int kBlockChannels = WordLane<T>::kBlockChannels;
    static constexpr int kFloats = (kWidth + 1) * kBlockChannels;
    uint32_t raw[kWidth + 1];
    int channel;  // of the block; -1: none

    HIPCONV_INLINE BlockTaps(const CausalConv1dVarlenParams& p, int32_t first_channel, int missing)
        : channel(static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x)) {
        const int channels = static_cast<int>(blockDim.x) * WordLane<T>::kChannels;
        if (channel >= (channels < p.dim - first_channel ? channels : p.dim - first_channel)) channel = -1;
        if (channel < 0) return;
        const auto ask = [&](uint32_t& to, const void* base, int64_t index, DType dtype) {
            if (dtype == DType::f32)
                to = global_pointer<const uint32_t>(base)[index];
            else
                to = global_pointer<const uint16_t>(base)[index];
        };
        int64_t at = (first_channel + channel) * p.weight_dim_stride;
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
            if (i < missing) continue;
            ask(raw[i], p.weight, at, p.weight_dtype);
            at += p.weight_width_stride;  // step by step: no registers for all multiples
        }
        raw[kWidth] = 0;
        if (p.bias) ask(raw[kWidth], p.bias, (first_channel + channel) * p.bias_stride, p.bias_dtype);
    }

    HIPCONV_INLINE void put(const CausalConv1dVarlenParams& p, int missing, float* taps) const {
        if (channel < 0) return;
        const auto value = [](uint32_t bits, DType dtype) {
            if (dtype == DType::f32) return canonical_nan(bit_cast<float>(bits));
            return dtype == DType::f16 ? to_float(from_bits<f16>(bits)) : to_float(from_bits<bf16>(bits));
        };
#pragma unroll
        for (int i = 0; i <= kWidth; ++i) {
            if (i < missing) continue;
            taps[i * kBlockChannels + channel] = value(raw[i], i < kWidth ? p.weight_dtype : p.bias_dtype);
        }
    }
};

// Tap i of a lane's channels; tap kWidth is the bias.
template <typename T>
HIPCONV_INLINE Pair tap_of_lane(const float* taps, int i) {
    const float* const from = taps + i * WordLane<T>::kBlockChannels + static_cast<int>(threadIdx.x) * WordLane<T>::kChannels;
    return WordLane<T>::kChannels == 1 ? twice(from[0]) : *reinterpret_cast<const Pair*>(from);
}

}  // namespace hipconv
