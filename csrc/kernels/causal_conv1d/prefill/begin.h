// This file makes the start of a sequence for the fast varlen kernels: the outputs that depend on the initial state, and all
// states that the sequence leaves.
//
// One thread does all of this for its channels, and reads the initial state before it writes any state. So a slot may be both
// read and written by a sequence, and no other thread needs to wait for it. Its first loads leave together: inputs, parameters,
// state.
#pragma once

#include <type_traits>

#include "causal_conv1d/prefill_schedule.h"
#include "device/elements.h"
#include "thread.h"

namespace hipconv {

// One vector of elements: value(0), value(1) and so on.
template <typename S, int kCount, typename Value>
HIPCONV_INLINE Words<S, kCount> vector_of(Value value) {
    if constexpr (kCount == 1) {
        return bit_cast<Words<S, 1>>(value(0));
    } else {
        S elements[kCount];
#pragma unroll
        for (int i = 0; i < kCount; ++i) elements[i] = value(i);
        return join<S>(elements);
    }
}

// Calls f with the number of a window's columns as an integral_constant, where one at most is missing.
template <int kPast, typename F>
HIPCONV_INLINE void with_columns(int missing, F f) {
    if constexpr (kPast > 1) {
        if (missing > 0) return f(std::integral_constant<int, kPast - 1>{});
    }
    f(std::integral_constant<int, kPast>{});
}

// The elements of the vectors in which channels with kColumns each are moved: of 16 bytes where these divide them.
template <typename S, int kChannels>
constexpr int elements_of_rows(int columns) {
    return columns % 2 == 0 && kChannels * sizeof(S) == 8 ? 2 * kChannels : kChannels;
}

// A slot's window from the thread's first channel on: a vector of channels for each column, after `missing` ones that the slot
// lacks.
template <typename S, int kChannels, int kPast>
HIPCONV_INLINE void load_state(const S* from, const CausalConv1dVarlenParams& p, StateForm form, int missing,
                               Words<S, kChannels> (&window)[kPast]) {
    using Vector = Words<S, kChannels>;
    if (kChannels > 1 && form == StateForm::columns) {
#pragma unroll
        for (int i = 0; i < kPast; ++i)
            if (has_tap(i, missing)) window[i] = *reinterpret_cast<const Vector*>(from + (i - missing) * p.column_stride);
    } else if (kChannels > 1 && form == StateForm::rows) {
        with_columns<kPast>(missing, [&](auto number) {
            constexpr int kColumns = decltype(number)::value, kEach = elements_of_rows<S, kChannels>(kColumns);
            using Part = Words<S, kEach>;
            Part rows[kColumns * kChannels / kEach];
#pragma unroll
            for (int i = 0; i < kColumns * kChannels / kEach; ++i) rows[i] = reinterpret_cast<const Part*>(from)[i];
#pragma unroll
            for (int i = 0; i < kColumns; ++i)
                window[kPast - kColumns + i] = vector_of<S, kChannels>(
                    [&](int channel) { return from_bits<S>(element<S, kEach>(rows, channel * kColumns + i)); });
        });
    } else {
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            const S* column = from + (i - missing) * p.column_stride;
            if (has_tap(i, missing))
                window[i] = vector_of<S, kChannels>([&](int channel) { return column[channel * p.state_dim_stride]; });
        }
    }
}

template <typename S, int kChannels, int kPast>
HIPCONV_INLINE void store_state(S* to, const CausalConv1dVarlenParams& p, StateForm form, int missing,
                                const Words<S, kChannels> (&window)[kPast]) {
    using Vector = Words<S, kChannels>;
    const auto value = [&](int channel, int i) { return from_bits<S>(element<S, kChannels>(&window[i], channel)); };
    if (kChannels > 1 && form == StateForm::columns) {
#pragma unroll
        for (int i = 0; i < kPast; ++i)
            if (has_tap(i, missing)) *reinterpret_cast<Vector*>(to + (i - missing) * p.column_stride) = window[i];
    } else if (kChannels > 1 && form == StateForm::rows) {
        with_columns<kPast>(missing, [&](auto number) {
            constexpr int kColumns = decltype(number)::value, kEach = elements_of_rows<S, kChannels>(kColumns);
#pragma unroll
            for (int v = 0; v < kColumns * kChannels / kEach; ++v)
                reinterpret_cast<Words<S, kEach>*>(to)[v] = vector_of<S, kEach>([&](int i) {
                    const int at = v * kEach + i;
                    return value(at / kColumns, kPast - kColumns + at % kColumns);
                });
        });
    } else {
#pragma unroll
        for (int i = 0; i < kPast; ++i)
#pragma unroll
            for (int channel = 0; channel < kChannels; ++channel)
                if (has_tap(i, missing)) to[channel * p.state_dim_stride + (i - missing) * p.column_stride] = value(channel, i);
    }
}

// S is the states' type. The first kWidth - 1 outputs go to the places of outputs_of(), which is asked late.
// `taps` are the channels' parameters: taps.fetch() comes early, taps.unpack(j, weight, bias) is when pair j of the channels
// needs them.
template <typename T, typename S, int kChannels, int kWidth, bool kAnyWidth, typename Taps, typename OutputsOf>
HIPCONV_INLINE void begin_sequence(const CausalConv1dVarlenParams& p, StateForm form, const PackedSequence& s, int32_t d,
                                   Taps taps, OutputsOf outputs_of) {
    constexpr int kPast = kWidth - 1, kPairs = (kChannels + 1) / 2;
    using Vector = Words<T, kChannels>;
    using StateVector = Words<S, kChannels>;
    const int32_t length = s.end - s.begin;
    const int missing = missing_taps<kWidth, kAnyWidth>(p);

    const CausalConv1dVarlenParams& inputs_of = first_parameter_again(p);
    const int64_t x_step = inputs_of.x_token_stride * static_cast<int64_t>(sizeof(T));
    const char* x =
        static_cast<const char*>(p.x) + s.begin * x_step + d * inputs_of.x_dim_stride * static_cast<int64_t>(sizeof(T));
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
    constexpr bool kLastEarly = kChannels * sizeof(T) <= 8;  // wider vectors have no registers to wait in
    if (kLastEarly) load_inputs(length, last);
    taps.fetch();

    const auto slot_begin = [&](int32_t slot) {
        const CausalConv1dVarlenParams& pool = first_parameter_again(p);
        return static_cast<S*>(p.states) + slot * pool.slot_stride + d * pool.state_dim_stride +
               pool.first_column * pool.column_stride;
    };
    StateVector state[kPast]{};
    if (s.read_slot != kNoSlot)
        load_state<S, kChannels, kPast>(slot_begin(s.read_slot), first_parameter_again(p), form, missing, state);

    const bool use_silu = first_parameter_again(p).use_silu;
    Vector results[kPast];
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
        Pair weight[kWidth], bias, window[kPast + kPast];
        taps.unpack(j, weight, bias);
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            window[i] = pair_of<S>(state[i], j);
            window[kPast + i] = pair_of<T>(first[i], j);
        }
#pragma unroll
        for (int t = 0; t < kPast; ++t) {
            Pair sum = bias;
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
                const Pair longer = multiply_add(weight[i], window[t + i], sum);
                // Without a state, taps before the sequence are left out, not multiplied by zero: the weight may be infinite.
                const bool sees = has_tap(i, missing) && (t + i >= kPast || s.read_slot != kNoSlot);
                sum = sees ? longer : sum;
            }
            set_pair<T>(results[t], j, use_silu ? silu(sum) : sum);
        }
    }
    const int past = kPast - missing_taps<kWidth, kAnyWidth>(p), made = length < past ? length : past;
    const OutputColumn outputs = outputs_of();
    char* output = outputs.first;
#pragma unroll
    for (int t = 0; t < kPast; ++t) {
        if (t < made) *reinterpret_cast<Vector*>(output) = results[t];
        output += outputs.step;
    }

    // A new state has the inputs before a position; close to the start, it is the initial state with the first inputs shifted
    // in.
    const auto converted = [](Vector from) {
        if constexpr (sizeof(S) == sizeof(T)) {
            return from;
        } else {
            StateVector to{};
#pragma unroll
            for (int j = 0; j < kPairs; ++j) {
                Pair v = pair_of<T>(from, j);
                if (sizeof(S) < sizeof(T)) v = make_pair(canonical_nan(low(v)), canonical_nan(high(v)));
                set_pair<S>(to, j, v);
            }
            return to;
        }
    };
    const auto store_new = [&](int32_t slot, int32_t position, const Vector(&inputs)[kPast]) {
        StateVector window[kPast];
#pragma unroll
        for (int i = 0; i < kPast; ++i) window[i] = position < kPast ? state[i] : converted(inputs[i]);
        if (position < kPast) {
#pragma unroll
            for (int step = 0; step < kPast - 1; ++step) {
                if (step >= position) continue;
#pragma unroll
                for (int i = 0; i < kPast - 1; ++i) window[i] = window[i + 1];
                window[kPast - 1] = converted(first[step]);
            }
        }
        store_state<S, kChannels, kPast>(slot_begin(slot), first_parameter_again(p), form, missing, window);
    };
    if (!kLastEarly) load_inputs(length, last);
    StateToWrite to{s.write_slot, length};
#pragma unroll 1
    for (int32_t n = 1;; ++n) {  // one body for all states, since the code of it is long
        if (to.slot != kNoSlot) store_new(to.slot, to.position, last);
        const Boundaries boundaries = boundaries_of(first_parameter_again(p), s);  // there are no registers for it before
        if (n > boundaries.count) break;
        to = boundary_state(first_parameter_again(p), s, boundaries, n);
        if (to.slot != kNoSlot) load_inputs(to.position, last);
    }
}

}  // namespace hipconv
