// The begin of a sequence, for the varlen kernel `tile`: the outputs that depend on the initial state, and all states that the sequence
// leaves.
//
// One thread does all of this for its channels, and reads everything before it writes anything. So a slot may be both read and written
// by a sequence, and no other thread needs to wait for it. All its loads leave together: inputs, parameters, state.
#pragma once

#include "causal_conv1d_varlen_schedule.h"
#include "causal_conv1d_varlen_thread.h"

namespace hipconv {

// A slot's window as floats, and back. S is the states' type.
template <typename S, int kChannels, int kPast>
HIPCONV_INLINE void load_state(const S* from, int64_t dim_stride, int64_t column_stride, StateForm form,
                               Pair (&state)[kPast][(kChannels + 1) / 2]) {
    constexpr int kPairs = (kChannels + 1) / 2, kHigh = kChannels > 1;
    if constexpr (kChannels > 1) {
        if (form == StateForm::columns) {
            float values[kPast][kChannels];
#pragma unroll
            for (int i = 0; i < kPast; ++i) load_packed(from + i * column_stride, values[i]);
#pragma unroll
            for (int i = 0; i < kPast; ++i)
#pragma unroll
                for (int j = 0; j < kPairs; ++j) state[i][j] = make_pair(values[i][2 * j], values[i][2 * j + 1]);
            return;
        }
        if (form == StateForm::rows) {
            float values[kChannels * kPast];
            load_packed(from, values);
#pragma unroll
            for (int i = 0; i < kPast; ++i)
#pragma unroll
                for (int j = 0; j < kPairs; ++j) state[i][j] = make_pair(values[2 * j * kPast + i], values[(2 * j + 1) * kPast + i]);
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < kPast; ++i)
#pragma unroll
        for (int j = 0; j < kPairs; ++j)
            state[i][j] = make_pair(to_float(from[2 * j * dim_stride + i * column_stride]),
                                    to_float(from[(2 * j + kHigh) * dim_stride + i * column_stride]));
}

template <typename S, int kChannels, int kPast>
HIPCONV_INLINE void store_state(S* to, int64_t dim_stride, int64_t column_stride, StateForm form,
                                const Pair (&state)[kPast][(kChannels + 1) / 2]) {
    const auto value = [&](int channel, int i) { return channel % 2 ? high(state[i][channel / 2]) : low(state[i][channel / 2]); };
    if constexpr (kChannels > 1) {
        if (form == StateForm::columns) {
#pragma unroll
            for (int i = 0; i < kPast; ++i)
                store_packed<S, kChannels>(to + i * column_stride, [&](int channel) { return value(channel, i); });
            return;
        }
        if (form == StateForm::rows) {
            store_packed<S, kChannels * kPast>(to, [&](int at) { return value(at / kPast, at % kPast); });
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < kPast; ++i)
#pragma unroll
        for (int channel = 0; channel < kChannels; ++channel)
            to[channel * dim_stride + i * column_stride] = from_float<S>(value(channel, i));
}

template <typename T, int kChannels, int kWidth, bool kSilu>
HIPCONV_INLINE void begin_sequence(const CausalConv1dVarlenParams& p, StateForm form, const PackedSequence& s, int64_t d) {
    constexpr int kPast = kWidth - 1, kPairs = (kChannels + 1) / 2;
    using Vector = Words<T, kChannels>;
    const int32_t length = s.end - s.begin;
    if (s.number < 0 || length <= 0) return;  // an empty sequence keeps its state

    const int64_t x_step = p.x_token_stride * static_cast<int64_t>(sizeof(T));
    const char* x = static_cast<const char*>(p.x) + s.begin * x_step + d * p.x_dim_stride * static_cast<int64_t>(sizeof(T));
    // The inputs just before `position`, counted from the sequence's first token, if all of them are the sequence's own.
    const auto load_inputs = [&](int32_t position, Vector(&inputs)[kPast]) {
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            inputs[i] = Vector{};
            if (position >= kPast) inputs[i] = *reinterpret_cast<const Vector*>(x + (position - kPast + i) * x_step);
        }
    };
    Vector first[kPast], last[kPast];
#pragma unroll
    for (int i = 0; i < kPast; ++i) {
        first[i] = Vector{};
        if (i < length) first[i] = *reinterpret_cast<const Vector*>(x + i * x_step);
    }
    load_inputs(length, last);
    Pair weight[kWidth][kPairs], bias[kPairs];
    load_parameters<kChannels, kWidth>(p, d, weight, bias);

    with_dtype(p.state_dtype, [&](auto type) {
        using S = decltype(type);
        S* const states = static_cast<S*>(p.states) + d * p.state_dim_stride + p.first_column * p.column_stride;
        Pair state[kPast][kPairs];
#pragma unroll
        for (int i = 0; i < kPast; ++i)
#pragma unroll
            for (int j = 0; j < kPairs; ++j) state[i][j] = twice(0.0f);
        if (s.read_slot != kNoSlot)
            load_state<S, kChannels, kPast>(states + s.read_slot * p.slot_stride, p.state_dim_stride, p.column_stride, form, state);

        const OutputColumn out = output_column<T>(p, d);
#pragma unroll
        for (int t = 0; t < kPast; ++t) {
            if (t >= length) continue;
            Vector result;
#pragma unroll
            for (int j = 0; j < kPairs; ++j) {
                Pair sum = bias[j];
#pragma unroll
                for (int i = 0; i < kWidth; ++i) {
                    const bool before = t + i < kPast;
                    const Pair input = before ? state[before ? t + i : 0][j] : pair_of<T>(first[before ? 0 : t + i - kPast], j);
                    const Pair longer = multiply_add(weight[i][j], input, sum);
                    // Without a state, taps before the sequence are left out, not multiplied by zero: the weight may be infinite.
                    sum = !before || s.read_slot != kNoSlot ? longer : sum;
                }
                set_pair<T>(result, j, kSilu ? silu(sum) : sum);
            }
            *reinterpret_cast<Vector*>(out.first + (s.begin + t) * out.step) = result;
        }

        // A new state: the inputs before a position; close to the begin, the initial state with the first inputs shifted in.
        const auto store_new = [&](int32_t slot, int32_t position, const Vector(&inputs)[kPast]) {
            constexpr bool kNarrows = sizeof(S) < sizeof(T);
            Pair window[kPast][kPairs];
#pragma unroll
            for (int i = 0; i < kPast; ++i)
#pragma unroll
                for (int j = 0; j < kPairs; ++j) window[i][j] = position < kPast ? state[i][j] : pair_of<T>(inputs[i], j);
#pragma unroll
            for (int step = 0; step < kPast - 1; ++step) {
                if (position >= kPast || step >= position) continue;
#pragma unroll
                for (int j = 0; j < kPairs; ++j) {
#pragma unroll
                    for (int i = 0; i < kPast - 1; ++i) window[i][j] = window[i + 1][j];
                    window[kPast - 1][j] = pair_of<T>(first[step], j);
                }
            }
            if (kNarrows) {
#pragma unroll
                for (int i = 0; i < kPast; ++i)
#pragma unroll
                    for (int j = 0; j < kPairs; ++j)
                        window[i][j] = make_pair(canonical_nan(low(window[i][j])), canonical_nan(high(window[i][j])));
            }
            store_state<S, kChannels, kPast>(states + slot * p.slot_stride, p.state_dim_stride, p.column_stride, form, window);
        };
        if (s.write_slot != kNoSlot) store_new(s.write_slot, length, last);
        for (int32_t n = 1; n <= s.boundaries; ++n) {
            const StateToWrite to = state_to_write(p, s, n);
            if (to.slot == kNoSlot) continue;
            load_inputs(to.position, last);
            store_new(to.slot, to.position, last);
        }
    });
}

}  // namespace hipconv
