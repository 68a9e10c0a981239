// A thread of the fast varlen kernels holds this of its channels: their parameters, and the addresses of their outputs.
//
// Kernels are compiled for a width. With kAnyWidth, they serve smaller ones, too (`tile` that of one tap less): the first taps
// are missing then, and so are the first columns of the window.
#pragma once

#include "../common/vector_math.h"
#include "causal_conv1d/prefill.h"

namespace hipconv {

// The places in memory of a thread's channels in a column of states.
enum class StateForm : int32_t {
    columns,   // neighbours: one vector a column
    rows,      // each channel's columns, all of the window and no others, are neighbours, and so are the channels
    elements,  // anything
};

// The blocks of a launch of `tile` are of one kind or two.
enum class VarlenPhase : int32_t {
    whole,   // starts of sequences, and runs of tokens
    begins,  // in place, first: starts of sequences, and tokens that blocks of the next launch share are saved
    runs     // in place: runs of tokens
};

// The plan says how a launch divides the work. A block is blockDim.x vectors of channels by blockDim.y rows. Most blocks take
// a run of tokens a row. Some take the starts of one or several sequences a row; these are spread evenly among the others.
struct VarlenPlan {
    int32_t run;            // tokens
    uint32_t blocks;        // of both kinds, along the tokens
    uint64_t begins_of;     // how many of 2^32 such blocks take starts of sequences
    uint32_t begins_a_row;  // sequences of such a block's row, one after another
    StateForm state_form;
    bool plain_indices;
    VarlenPhase phase;
    bool begun_by_token;  // the outputs of a sequence's start are number start / kPast, not number `sequence`
    char *halos, *begun;  // in place: kPast tokens before each block of runs but the first; kPast outputs a start of a sequence
};

// The same pointer, which the compiler keeps as it is and does not make of parts again.
template <typename P>
HIPCONV_INLINE P* kept(P* pointer) {
    const uint64_t bits = reinterpret_cast<uint64_t>(pointer);
    int low = static_cast<int>(bits), high = static_cast<int>(bits >> 32);
    in_a_register(low);
    in_a_register(high);
    P* const same = reinterpret_cast<P*>(static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | static_cast<uint32_t>(low));
    promise_global(same);
    return same;
}

// A word of two halves of words: the lower ones where their numbers are even, else the upper ones. The numbers are known to the
// compiler.
HIPCONV_INLINE uint32_t two_halves(int first_number, uint32_t first, int second_number, uint32_t second) {
    if (first_number % 2 == second_number % 2)
        return first_number % 2 == 0 ? lower_halves(first, second) : upper_halves(first, second);
    return first_number % 2 == 0 ? (first & 0xffffu) | (second & 0xffff0000u) : shifted_right(first, second, 16);
}

HIPCONV_INLINE uint32_t lowest_bits(int32_t count) { return count <= 0 ? 0 : count < 32 ? (1u << count) - 1 : 0xffffffffu; }

// The DType of an element type.
template <typename T>
inline constexpr DType kDTypeOf = DType::f32;
template <>
inline constexpr DType kDTypeOf<f16> = DType::f16;
template <>
inline constexpr DType kDTypeOf<bf16> = DType::bf16;

template <int kWidth, bool kAnyWidth>
HIPCONV_INLINE int missing_taps(const CausalConv1dVarlenParams& p) {
    return kAnyWidth ? kWidth - first_parameter_again(p).width : 0;
}

// Tells whether the width has tap i, where at most one is missing.
HIPCONV_INLINE bool has_tap(int i, int missing) { return i > 0 || missing == 0; }

// Weights and biases of a thread's channels. Those of x's type are fetched early as memory holds them, and waited for only
// where they are unpacked.
template <typename T, int kChannels, int kWidth, bool kAnyWidth>
struct TapsInMemory {
    static constexpr int kWeights = kChannels * kWidth;
    // With a tap less, the last vector is left out.
    static constexpr int kEach = !kAnyWidth && kWeights * sizeof(T) % 16 == 0 ? 16 / static_cast<int>(sizeof(T)) : kChannels;

    const CausalConv1dVarlenParams& p;
    const int64_t d;
    Words<T, kEach> fetched_weights[kWeights / kEach]{};
    Words<T, kChannels> fetched_biases{};

    HIPCONV_INLINE TapsInMemory(const CausalConv1dVarlenParams& params, int64_t first_channel) : p(params), d(first_channel) {}

    HIPCONV_INLINE void fetch() {
        const CausalConv1dVarlenParams& again = first_parameter_again(p);
        if (again.weight_dtype == kDTypeOf<T>) {
            const T* from = static_cast<const T*>(p.weight) + d * again.weight_dim_stride;
#pragma unroll
            for (int v = 0; v < kWeights / kEach; ++v)
                if (!kAnyWidth || v < kWidth - 1 || again.width == kWidth)
                    fetched_weights[v] = *reinterpret_cast<const Words<T, kEach>*>(from + v * kEach);
        }
        if (p.bias && again.bias_dtype == kDTypeOf<T>)
            fetched_biases =
                *reinterpret_cast<const Words<T, kChannels>*>(static_cast<const T*>(p.bias) + d * again.bias_stride);
    }

    // Those of pair j of the channels as floats: those fetched, or from memory.
    HIPCONV_INLINE void unpack(int j, Pair (&weight)[kWidth], Pair& bias) const {
        const CausalConv1dVarlenParams& again = first_parameter_again(p);
        if constexpr (kAnyWidth) {
            if (again.width == kWidth)
                unpack_weights<kWidth>(j, weight);
            else
                unpack_weights<kWidth - 1>(j, weight);
        } else {
            unpack_weights<kWidth>(j, weight);
        }
        bias = twice(0.0f);
        if (p.bias && again.bias_dtype == kDTypeOf<T>) {
            bias = exact(pair_of<T>(fetched_biases, j));
        } else if (p.bias) {
            with_dtype(again.bias_dtype, [&](auto type) {
                using P = decltype(type);
                bias = make_pair(parameter<P>(p.bias, d + 2 * j), parameter<P>(p.bias, d + 2 * j + 1));
            });
        }
    }

  private:
    static HIPCONV_INLINE Pair exact(Pair v) {
        return sizeof(T) == 4 ? make_pair(canonical_nan(low(v)), canonical_nan(high(v))) : v;
    }

    // This unpacks the last kTaps taps, which memory has.
    template <int kTaps>
    HIPCONV_INLINE void unpack_weights(int j, Pair (&weight)[kWidth]) const {
        const CausalConv1dVarlenParams& again = first_parameter_again(p);
        float weights[2 * kTaps] = {};
        if (again.weight_dtype == kDTypeOf<T>) {
#pragma unroll
            for (int i = 0; i < 2 * kTaps; ++i) {
                const int at = 2 * j * kTaps + i;
                const Pair both = exact(pair_of<T>(fetched_weights[at / kEach], at % kEach / 2));
                weights[i] = at % kEach % 2 ? high(both) : low(both);
            }
        } else {
            with_dtype(again.weight_dtype, [&](auto type) {
                load_packed(static_cast<const decltype(type)*>(p.weight) + (d + 2 * j) * kTaps, weights);
            });
        }
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
            constexpr int kMissing = kWidth - kTaps;
            weight[i] = i < kMissing ? twice(0.0f)
                                     : make_pair(weights[i < kMissing ? 0 : i - kMissing],
                                                 weights[i < kMissing ? 0 : kTaps + i - kMissing]);
        }
    }
};

// The addresses of the channels' outputs: token t is at `first + t * step`.
struct OutputColumn {
    char* first;
    uint32_t step;  // bytes
};

// q, k or v is chosen by the vector's first channel: their boundaries lie between vectors.
template <typename T>
HIPCONV_INLINE OutputColumn output_column(const CausalConv1dVarlenParams& p, int64_t d) {
    const CausalConv1dVarlenParams& again = first_parameter_again(p);
    constexpr int64_t kSize = sizeof(T);
    const auto column = [](void* out, int64_t channel, int64_t dim_stride, int64_t token_stride) {
        return OutputColumn{static_cast<char*>(out) + channel * dim_stride * kSize,
                            static_cast<uint32_t>(token_stride * kSize)};
    };
    if (again.k_dim < 0) return column(p.out, d, again.out_dim_stride, again.out_token_stride);
    const int64_t v_begin = int64_t{2} * again.k_dim;
    if (d < again.k_dim) return column(p.out, d, 1, again.k_dim);
    if (d < v_begin) return column(p.k, d - again.k_dim, 1, again.k_dim);
    return column(p.v, d - v_begin, 1, again.dim - v_begin);
}

}  // namespace hipconv
