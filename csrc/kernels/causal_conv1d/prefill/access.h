// A lane of the kernel `tile` reaches its channels of a token so: whole vectors, or one word of memory at any alignment.
//
// Of a word that two channels of 16 bits share, the halves are loaded one by one: a wave's two loads touch the same sectors as
// one of words. They are stored as whole words, because L2 would get twice the writes of halves. Where a row begins in the
// middle of a word, a lane stores the channel before its own two and the first of them; the row's ends are stored alone.
//
// The file is for files that include <hip/hip_runtime.h>.
#pragma once

#include <type_traits>

#include "device/elements.h"
#include "thread.h"

namespace hipconv {

template <typename T, int kChannels>
struct LaneAccess {
    using Vector = Words<T, kChannels>;
    static constexpr bool kHalves = kChannels == 2 && sizeof(T) == 2;
    using Ahead = std::conditional_t<kHalves, Words2, Vector>;  // on its way: halves are not put together before they are used
    bool has_second;                                            // of two channels of 16 bits; of others there are all or none

    HIPCONV_INLINE LaneAccess(int64_t d, int32_t dim) : has_second(!kHalves || d + 1 < dim) {}

    HIPCONV_INLINE Vector load(const char* from) const {
        if constexpr (kHalves) {
            const uint16_t* const halves = reinterpret_cast<const uint16_t*>(from);
            return halves[0] | static_cast<uint32_t>(halves[has_second ? 1 : 0]) << 16;
        } else {
            return *reinterpret_cast<const Vector*>(from);
        }
    }

    // Asks for token `number` of `tokens`; past them, `to` stays as it is.
    HIPCONV_INLINE void ask(Ahead& to, const char* from, int number, int tokens) const {
        if constexpr (kHalves) {
            const uint16_t* const halves = reinterpret_cast<const uint16_t*>(from);
            if (number < tokens) set_word(to, 0, halves[0]);
            if (number < (has_second ? tokens : 0)) set_word(to, 1, halves[1]);
        } else {
            if (number < tokens) to = *reinterpret_cast<const Vector*>(from);
        }
    }
    // Pair j of the channels.
    static HIPCONV_INLINE Pair pair(Ahead v, int j) {
        if constexpr (kHalves)
            return make_pair(to_float(from_bits<T>(word(v, 0))), to_float(from_bits<T>(word(v, 1))));
        else
            return pair_of<T>(v, j);
    }

    HIPCONV_INLINE void store(char* to, Vector v) const {
        if constexpr (kHalves) {
            if (has_second && reinterpret_cast<uint64_t>(to) % 4 == 0) {
                *reinterpret_cast<uint32_t*>(to) = v;
                return;
            }
            uint16_t* const halves = reinterpret_cast<uint16_t*>(to);
            halves[0] = static_cast<uint16_t>(v);
            if (has_second) halves[1] = static_cast<uint16_t>(v >> 16);
        } else {
            *reinterpret_cast<Vector*>(to) = v;
        }
    }
};

// Stores of a run's tokens, in order. Of words, all lanes of a wave must store at the same time, whether each has something to
// store or not.
template <typename T, int kChannels>
struct RunStores {
    using Access = LaneAccess<T, kChannels>;
    static constexpr bool kTogether = Access::kHalves;
    // Bits: tokens whose whole vector this lane stores; whose word, with the channel before its own two; of which it stores
    // its first or its second channel alone.
    uint32_t whole, shifted = 0, firsts = 0, seconds = 0;

    // `outputs` are the tokens to store.
    HIPCONV_INLINE RunStores(const CausalConv1dVarlenParams& p, const VarlenPlan& plan, int64_t d, const char* out,
                             uint32_t step, uint32_t outputs)
        : whole(outputs) {
        if (!kTogether || !plan.shifts) return;
        // Of a row in memory, or of this block's part of it.
        const int64_t next = d + 2, v_begin = 2 * int64_t{p.k_dim};
        const bool splits = p.k_dim >= 0, has_second = d + 1 < p.dim;
        const bool starts = threadIdx.x == 0 || (splits && (d == p.k_dim || d == v_begin));
        const bool ends = threadIdx.x + 1 == blockDim.x || next >= p.dim || (splits && (next == p.k_dim || next == v_begin));
        whole = 0;
#pragma unroll
        for (int k = 0; k < 2; ++k) {  // every other token
            const bool odd = (reinterpret_cast<uint64_t>(out) + k * step) % 4 != 0;
            const uint32_t tokens = outputs & (k == 0 ? 0x55555555u : 0xaaaaaaaau);
            whole |= !odd && has_second ? tokens : 0;
            shifted |= odd && !starts ? tokens : 0;
            firsts |= (odd ? starts : !has_second) ? tokens : 0;
            seconds |= odd && ends && has_second ? tokens : 0;
        }
    }

    // Token j of those that are left; j is a compile-time constant.
    HIPCONV_INLINE void store(char* to, typename Access::Vector v, int j) const {
        if (whole >> j & 1) *global_pointer<typename Access::Vector>(to) = v;
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
template <int kWidth, int kBlockChannels, int kChannels>
struct BlockTaps {
    static constexpr int kFloats = (kWidth + 1) * kBlockChannels;
    static constexpr int kTimes = kChannels > 2 ? kChannels / 2 : 1;  // a block has two rows at least
    uint32_t raw[kTimes][kWidth + 1];
    int first, threads, channels;

    HIPCONV_INLINE BlockTaps(const CausalConv1dVarlenParams& p, int32_t first_channel, int missing)
        : first(static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x)), threads(static_cast<int>(blockDim.x * blockDim.y)),
          channels(static_cast<int>(blockDim.x) * kChannels) {
        if (channels > p.dim - first_channel) channels = p.dim - first_channel;
        const auto ask = [&](uint32_t& to, const void* base, int64_t index, DType dtype) {
            if (dtype == DType::f32)
                to = global_pointer<const uint32_t>(base)[index];
            else
                to = global_pointer<const uint16_t>(base)[index];
        };
#pragma unroll
        for (int k = 0; k < kTimes; ++k) {
            const int channel = first + k * threads;
            if (channel >= channels) continue;
            int64_t at = (first_channel + channel) * p.weight_dim_stride;
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
                if (i < missing) continue;
                ask(raw[k][i], p.weight, at, p.weight_dtype);
                at += p.weight_width_stride;  // step by step: no registers for all multiples
            }
            raw[k][kWidth] = 0;
            if (p.bias) ask(raw[k][kWidth], p.bias, (first_channel + channel) * p.bias_stride, p.bias_dtype);
        }
    }

    HIPCONV_INLINE void put(const CausalConv1dVarlenParams& p, int missing, float* taps) const {
        const auto value = [](uint32_t bits, DType dtype) {
            if (dtype == DType::f32) return canonical_nan(bit_cast<float>(bits));
            return dtype == DType::f16 ? to_float(from_bits<f16>(bits)) : to_float(from_bits<bf16>(bits));
        };
#pragma unroll
        for (int k = 0; k < kTimes; ++k) {
            const int channel = first + k * threads;
            if (channel >= channels) continue;
#pragma unroll
            for (int i = 0; i <= kWidth; ++i) {
                if (i < missing) continue;
                taps[i * kBlockChannels + channel] = value(raw[k][i], i < kWidth ? p.weight_dtype : p.bias_dtype);
            }
        }
    }
};

// Those of a lane's channels, of which `first` is the block's number of the first.
template <int kWidth, int kBlockChannels, int kChannels>
struct LaneTaps {
    static constexpr int kPairs = (kChannels + 1) / 2;
    const float* taps;
    int first;

    // Tap i of pair j of the channels; tap kWidth is the bias.
    HIPCONV_INLINE Pair tap(int i, int j) const {
        const float* const from = taps + i * kBlockChannels + first + 2 * j;
        return kChannels == 1 ? twice(from[0]) : *reinterpret_cast<const Pair*>(from);
    }
};

}  // namespace hipconv
