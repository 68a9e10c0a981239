// This file makes the start of a sequence for the kernel `staged`: a thread makes, for one channel, the outputs that depend on
// the initial state, and all states that the sequence leaves. It reads the initial state before it writes any state.
#pragma once

#include "causal_conv1d/prefill_formula.h"
#include "device/elements.h"
#include "staged.h"

namespace hipconv {

// A channel's tokens in LDS, the kHalo ones before the tile included.
template <typename T>
struct ChannelInTile {
    char* base;  // the first of them
    uint32_t step;
    int32_t begin;  // the tile's first token

    HIPCONV_INLINE bool has(int32_t token) const { return token >= begin - kHalo && token < begin + kTileTokens; }
    HIPCONV_INLINE T& at(int32_t token) const {
        return *reinterpret_cast<T*>(base + static_cast<uint32_t>(token - begin + kHalo) * step);
    }
};

// A value as the states' type holds it: a NaN of f32 stays a NaN.
HIPCONV_INLINE float for_state(float v, DType state_dtype) { return state_dtype == DType::f32 ? v : canonical_nan(v); }

// Asks for a channel's initial state, as memory holds it.
template <int kWidth>
__device__ __forceinline__ void ask_for_state(const CausalConv1dVarlenParams& p, int32_t slot, int32_t d,
                                              uint32_t (&bits)[kWidth - 1]) {
    if (slot == kNoSlot) return;
    const CausalConv1dVarlenParams& pool = first_parameter_again(p);
    const int missing = missing_taps < kWidth, kWidth != kUsualStagedWidth > (p);
    const auto load = [&](auto bits_of_one) {
        using Bits = decltype(bits_of_one);
        const Bits* column = global_pointer<const Bits>(p.states) + state_index(pool, slot, d, 0);
#pragma unroll
        for (int i = 0; i < kWidth - 1; ++i) {
            if (i < missing) continue;
            bits[i] = *column;
            column += pool.column_stride;  // step by step: no registers for all multiples
        }
    };
    pool.state_dtype == DType::f32 ? load(uint32_t{}) : load(uint16_t{});
}

// `state_bits` is the initial state, if there is one.
template <typename T, int kWidth>
__device__ __forceinline__ void begin_channel(const StagedCall& call, const PackedSequence& s, int32_t d,
                                              const ChannelInTile<T>& x, const ChannelInTile<T>& out, const float* taps,
                                              const uint32_t (&state_bits)[kWidth - 1]) {
    constexpr int kPast = kWidth - 1, kChannels = StagedShape<T>::kChannels;
    const CausalConv1dVarlenParams& p = call.params;
    const auto missing_now = [&] {
        return missing_taps < kWidth, kWidth != kUsualStagedWidth > (p);
    };  // no registers for all that follows from it
    const int32_t length = s.end - s.begin;

    // The inputs just before a position of the sequence, of which there are at least kPast.
    const auto load_inputs = [&](int32_t position, float(&inputs)[kPast]) {
        const CausalConv1dVarlenParams& inputs_of = first_parameter_again(p);
        const int32_t token = s.begin + position - kPast;
        if (x.has(token) && x.has(token + kPast - 1)) {
#pragma unroll
            for (int i = 0; i < kPast; ++i) inputs[i] = to_float(x.at(token + i));
            return;
        }
        const T* from = static_cast<const T*>(p.x) + d * inputs_of.x_dim_stride + token * inputs_of.x_token_stride;
        int64_t step = inputs_of.x_token_stride;
        const StagedPlan& plan = first_parameter_again(call).plan;
        const int32_t stretch_tokens = static_cast<int32_t>(plan.tiles) * kTileTokens, stretch = s.begin / stretch_tokens;
        if (plan.lasts && (s.end - 1) / stretch_tokens != stretch) {
            step = plan.saved_dim;
            from = reinterpret_cast<const T*>(plan.lasts) + (int64_t{stretch} * kHalo + kHalo - kPast) * step + d;
        }
        const int missing = missing_now();
        from += missing * step;
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            if (i < missing) continue;
            inputs[i] = to_float(*global_pointer<const T>(from));
            from += step;
        }
    };

    float state[kPast]{};
    if (s.read_slot != kNoSlot) {
        with_dtype(first_parameter_again(p).state_dtype, [&](auto type) {
            const int missing = missing_now();
#pragma unroll
            for (int i = 0; i < kPast; ++i)
                if (i >= missing) state[i] = to_float(from_bits<decltype(type)>(state_bits[i]));
        });
    }

    float first[kPast];
#pragma unroll
    for (int i = 0; i < kPast; ++i) first[i] = i < length && x.has(s.begin + i) ? to_float(x.at(s.begin + i)) : 0.0f;
    const bool use_silu = first_parameter_again(p).use_silu;
    float weight[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) weight[i] = taps[i * kChannels];
#pragma unroll
    for (int t = 0; t < kPast; ++t) {
        if (t >= length) continue;
        float sum = taps[kWidth * kChannels];
        const int missing = missing_now();
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
            // Without a state, taps before the sequence are left out, not multiplied by zero: the weight may be infinite.
            const bool has_tap = i >= missing && (t + i >= kPast || s.read_slot != kNoSlot);
            const float input = t + i < kPast ? state[t + i < kPast ? t + i : 0] : first[t + i < kPast ? 0 : t + i - kPast];
            const float longer = low(multiply_add(twice(weight[i]), twice(input), twice(sum)));
            sum = has_tap ? longer : sum;
        }
        if (use_silu) sum = low(silu(twice(sum)));
        if (out.has(s.begin + t)) out.at(s.begin + t) = from_float<T>(sum);
    }

    const auto store_new = [&](int32_t slot, int32_t position, const float(&inputs)[kPast]) {
        float window[kPast];
#pragma unroll
        for (int i = 0; i < kPast; ++i) window[i] = position < kPast ? state[i] : inputs[i];
#pragma unroll
        for (int step = 0; step < kPast - 1; ++step) {
            if (position >= kPast || step >= position) continue;
#pragma unroll
            for (int i = 0; i < kPast - 1; ++i) window[i] = window[i + 1];
            window[kPast - 1] = first[step];
        }
        const CausalConv1dVarlenParams& pool = first_parameter_again(p);
        with_dtype(pool.state_dtype, [&](auto type) {
            using S = decltype(type);
            const int missing = missing_now();
            S* column = global_pointer<S>(p.states) + state_index(pool, slot, d, 0);
#pragma unroll
            for (int i = 0; i < kPast; ++i) {
                if (i < missing) continue;
                *column = from_float<S>(for_state(window[i], pool.state_dtype));
                column += pool.column_stride;
            }
        });
    };
    float last[kPast]{};
    if (s.write_slot != kNoSlot) {
        if (length >= kPast) load_inputs(length, last);
        store_new(s.write_slot, length, last);
    }
    const Boundaries boundaries = boundaries_of(first_parameter_again(p), s);
    for (int32_t n = 1; n <= boundaries.count; ++n) {
        const StateToWrite to = boundary_state(first_parameter_again(p), s, boundaries, n);
        if (to.slot == kNoSlot) continue;
        if (to.position >= kPast) load_inputs(to.position, last);
        store_new(to.slot, to.position, last);
    }
}

}  // namespace hipconv
