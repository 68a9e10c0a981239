// This file makes the starts of sequences for the kernel `staged`: the outputs that depend on the initial state, and all states
// that the sequence leaves. A row of lanes makes one start after another, two channels a lane; while it makes one, the next
// one's state is on its way.
//
// A start is walked token by token, with the window in registers, as decode would: most starts that share a tile are of short
// sequences, so what counts is how few instructions the first token takes. A sequence's initial state is read before any state
// of it is written.
#pragma once

#include <type_traits>

#include "causal_conv1d/prefill_formula.h"
#include "device/elements.h"
#include "staged.h"

namespace hipconv {

// The start of a sequence in a tile, as a block looks it up.
struct alignas(16) BeginInTile {
    int32_t begin, length;  // in tokens; a length of 0: there is nothing to make
    int32_t read_slot, write_slot;
};

// Looks up a sequence that begins in the tile at `begin`. Starts that make no sense lead nowhere.
HIPCONV_INLINE BeginInTile begin_in_tile(const EitherIndices& indices, int32_t sequence, int32_t begin) {
    const PackedSequence s = indices.sequence(sequence);
    const int32_t length = s.end - s.begin, past = first_parameter_again(indices.p).width - 1;
    const int32_t first = s.begin - begin, last = first + (length < past ? length : past);
    const bool works = s.number >= 0 && length > 0 && first >= -kHalo && last <= kTileTokens;
    return {s.begin, works ? length : 0, works ? s.read_slot : kNoSlot, s.write_slot};
}

// A value as the states' type holds it: a NaN of f32 stays a NaN.
HIPCONV_INLINE float for_state(float v, DType state_dtype) { return state_dtype == DType::f32 ? v : canonical_nan(v); }

// Makes `count` starts of sequences in the tile at `begin`; S is the states' type. The lines are the tile's inputs and outputs
// in LDS.
template <typename T, typename S, int kWidth>
__device__ __forceinline__ void make_begins(const StagedCall& call, const BeginInTile* found, int count, int32_t begin,
                                            int32_t first_channel, const char* x_lines, char* out_lines, const Pair* taps) {
    using Shape = StagedShape<T>;
    using Bits = typename WordsOf<sizeof(S)>::type;
    constexpr int kPast = kWidth - 1, kRows = kStagedThreads / Shape::kLanes;
    constexpr int kHalf = kWidth == kUsualStagedWidth ? 0 : kWidth / 2;  // columns that narrow windows lack
    const CausalConv1dVarlenParams& p = call.params;
    const auto params = [&]() -> const CausalConv1dVarlenParams& { return first_parameter_again(p); };
    const auto plan = [&]() -> const StagedPlan& { return first_parameter_again(call).plan; };
    int thread = static_cast<int>(threadIdx.x);
    from_here_on(thread);
    const int row = thread / Shape::kLanes;
    const ChannelPair<T> pair(thread % Shape::kLanes, plan().x_tokens_inner);
    const int32_t channels = params().dim - first_channel;
    if (pair.first >= channels) return;
    const int apart = pair.second < channels ? pair.second - pair.first : 0;  // 0: there is no second channel
    // These are asked for where they are needed: there are no registers for all that follows from them.
    const auto lane_now = [] {
        int own = static_cast<int>(threadIdx.x);
        from_here_on(own);
        return own % Shape::kLanes;
    };
    const auto channel_now = [&] { return ChannelPair<T>(lane_now(), plan().x_tokens_inner).first; };
    const auto missing_now = [&] { return missing_taps < kWidth, kWidth != kUsualStagedWidth > (p); };
    // The newest column of a slot's window, from which the others are found step by step: no registers for all multiples.
    S* const in_slot_0 = global_pointer<S>(p.states) + state_index(params(), 0, first_channel + pair.first, params().width - 2);
    const auto newest = [&](int32_t slot) { return reinterpret_cast<char*>(in_slot_0 + slot * params().slot_stride); };
    const auto twin = [&] {
        int channels_apart = apart;
        from_here_on(channels_apart);
        return channels_apart * params().state_dim_stride * static_cast<int64_t>(sizeof(S));
    };
    // Where two columns of 16 bits are a word, column i of an odd number has the word of itself and the next one.
    constexpr bool kPairs = sizeof(S) == 2 && kPast % 2 == 1 && kPast > 3;
    const auto pairs = [&] { return kPairs && plan().state_pairs; };
    uint32_t state[2 * kPast]{};
    const auto ask = [&](int32_t slot) {
        if (slot == kNoSlot) return;
        const int missing = missing_now();
        const char *first = newest(slot), *second = first + twin();
        const int64_t step = params().column_stride * static_cast<int64_t>(sizeof(S));
        if (pairs()) {
#pragma unroll
            for (int i = kPast - 2; i >= 0; i -= 2) {
                if (i < missing) break;
                first -= i < kPast - 2 ? 4 : 2, second -= i < kPast - 2 ? 4 : 2;
                state[2 * i] = *global_pointer<const uint32_t>(first);
                state[2 * i + 1] = *global_pointer<const uint32_t>(second);
            }
            return;
        }
#pragma unroll
        for (int i = kPast - 1; i >= 0; --i) {
            if (i < missing) break;
            state[2 * i] = *global_pointer<const Bits>(first);
            state[2 * i + 1] = *global_pointer<const Bits>(second);
            first -= step;
            second -= step;
        }
    };
    const auto keep = [&](int32_t slot, const Pair(&window)[kPast]) {
        constexpr bool kExact = sizeof(S) == 4 || std::is_same_v<S, T>;
        const auto value = [](float v) { return from_float<S>(kExact ? v : canonical_nan(v)); };
        const int missing = missing_now();
        char *first = newest(slot), *second = first + twin();
        const int64_t step = params().column_stride * static_cast<int64_t>(sizeof(S));
        if constexpr (kPairs) {
            if (pairs()) {
                const auto both = [&](float older, float newer) {
                    Words<S, 2> word{};
                    set_pair<S>(word, 0,
                                kExact ? make_pair(older, newer) : make_pair(canonical_nan(older), canonical_nan(newer)));
                    return word;
                };
#pragma unroll
                for (int i = kPast - 2; i >= 0; i -= 2) {
                    if (i < missing) break;
                    first -= i < kPast - 2 ? 4 : 2, second -= i < kPast - 2 ? 4 : 2;
                    *global_pointer<Words<S, 2>>(first) = both(low(window[i]), low(window[i + 1]));
                    if (apart != 0) *global_pointer<Words<S, 2>>(second) = both(high(window[i]), high(window[i + 1]));
                }
                return;
            }
        }
#pragma unroll
        for (int i = kPast - 1; i >= 0; --i) {
            if (i < missing) break;
            *global_pointer<S>(first) = value(low(window[i]));
            if (apart != 0) *global_pointer<S>(second) = value(high(window[i]));
            first -= step;
            second -= step;
        }
    };
    // The last inputs of a sequence that has more of them than the window.
    const auto load_last = [&](const BeginInTile& s, Pair(&window)[kPast]) {
        const int32_t end = s.begin + s.length;
        const int missing = missing_now();
        if (end - begin <= kTileTokens) {
            const TileLayout<T> layout{plan().x_tokens_inner};
            const uint32_t channel_step = layout.channel_step(), token_step = layout.token_step();
            const char* from =
                x_lines + pair.first * channel_step + static_cast<uint32_t>(end - 1 - begin + kHalo) * token_step;
#pragma unroll
            for (int i = kPast - 1; i >= 0; --i) {
                if (i < missing) break;
                window[i] = make_pair(to_float(*reinterpret_cast<const T*>(from)),
                                      to_float(*reinterpret_cast<const T*>(from + apart * channel_step)));
                from -= token_step;
            }
            return;
        }
        const int32_t d = first_channel + channel_now();
        const T* from =
            static_cast<const T*>(p.x) + d * params().x_dim_stride + static_cast<int64_t>(end - 1) * params().x_token_stride;
        int64_t step = params().x_token_stride, other = apart * params().x_dim_stride;
        const int32_t stretch = s.begin >> plan().log2_tokens;
        if (plan().lasts && (end - 1) >> plan().log2_tokens != stretch) {
            step = plan().saved_dim;
            other = apart;
            from = reinterpret_cast<const T*>(plan().lasts) + (int64_t{stretch} * kHalo + kHalo - 1) * step + d;
        }
        from = global_pointer<const T>(from);
#pragma unroll
        for (int i = kPast - 1; i >= 0; --i) {
            if (i < missing) break;
            window[i] = make_pair(to_float(from[0]), to_float(from[other]));
            from -= step;
        }
    };

    if (row < count) ask(found[row].read_slot);
#pragma unroll 1
    for (int k = row; k < count; k += kRows) {
        const BeginInTile s = found[k];
        Pair window[kPast];
        const auto unpack = [&](int i, uint32_t of_first, uint32_t of_second) {
            float first = to_float(from_bits<S>(of_first)), second = to_float(from_bits<S>(of_second));
            in_a_register(first), in_a_register(second);  // before the next state comes
            window[i] = make_pair(first, second);
        };
        if (pairs()) {
            window[0] = twice(0.0f);
#pragma unroll
            for (int i = kPast - 2; i > 0; i -= 2) {
                unpack(i, state[2 * i], state[2 * i + 1]);
                unpack(i + 1, state[2 * i] >> 16, state[2 * i + 1] >> 16);
            }
        } else {
#pragma unroll
            for (int i = 0; i < kPast; ++i) unpack(i, state[2 * i], state[2 * i + 1]);
        }
        if (k + kRows < count) ask(found[k + kRows].read_slot);
        if (s.length == 0) continue;

        const int missing = missing_now(), past = kPast - missing;
        const TileLayout<T> x_layout{plan().x_tokens_inner}, out_layout{plan().out_tokens_inner};
        const uint32_t x_channel = x_layout.channel_step(), x_token = x_layout.token_step();
        const uint32_t out_channel = out_layout.channel_step(), out_token = out_layout.token_step();
        const int lane = lane_now(), first = channel_now();
        const uint32_t token = static_cast<uint32_t>(s.begin - begin + kHalo);
        const char* input = x_lines + first * x_channel + token * x_token;
        char* output = out_lines + first * out_channel + token * out_token;
        // Without a state, taps before the sequence are left out, not multiplied by zero: the weight may be infinite.
        int oldest = s.read_slot == kNoSlot ? kPast : missing;
#pragma unroll 1
        for (int left = s.length < past ? s.length : past; left > 0; --left) {
            const Pair next = make_pair(to_float(*reinterpret_cast<const T*>(input)),
                                        to_float(*reinterpret_cast<const T*>(input + apart * x_channel)));
            const auto tap = [&](int i) { return taps[i * Shape::kLanes + lane]; };
            Pair sum = tap(kWidth);
            const auto add_from = [&](auto begin, auto end) {
#pragma unroll
                for (int i = begin; i < end; ++i) sum = multiply_add_where(i >= oldest, i >= oldest, tap(i), window[i], sum);
            };
            if (kHalf == 0 || oldest < kHalf) add_from(0, kHalf);
            add_from(kHalf, kPast);
            sum = multiply_add(tap(kPast), next, sum);
            if (params().use_silu) sum = silu(sum);
            *reinterpret_cast<T*>(output) = from_float<T>(low(sum));
            if (apart != 0) *reinterpret_cast<T*>(output + apart * out_channel) = from_float<T>(high(sum));
#pragma unroll
            for (int i = 0; i < kPast - 1; ++i) window[i] = window[i + 1];
            window[kPast - 1] = next;
            oldest = oldest > missing ? oldest - 1 : missing;
            input += x_token;
            output += out_token;
        }
        if (s.write_slot == kNoSlot) continue;
        if (s.length > past) {
            load_last(s, window);
        } else if (oldest > missing) {  // without an initial state, there is nothing before the sequence
#pragma unroll
            for (int i = 0; i < kPast; ++i)
                if (i < oldest) window[i] = twice(0.0f);
        }
        keep(s.write_slot, window);
    }
}

// Keeps the states at block boundaries of `count` sequences, of which the first is number `base`: those in the slots of initial
// states, or all the others.
template <typename T>
__device__ __forceinline__ void keep_boundaries(const StagedCall& call, const BeginInTile* found, int count, int32_t base,
                                                int32_t first_channel, bool in_read_slots) {
    constexpr int kChannels = StagedShape<T>::kChannels, kRows = kStagedThreads / kChannels;
    const CausalConv1dVarlenParams& p = call.params;
    const auto params = [&]() -> const CausalConv1dVarlenParams& { return first_parameter_again(p); };
    const int thread = static_cast<int>(threadIdx.x);
    const int32_t d = first_channel + thread % kChannels;
    if (d >= params().dim) return;
#pragma unroll 1
    for (int k = 0; k < count; ++k) {
        const BeginInTile start = found[k];
        if (start.length == 0) continue;
        const PackedSequence s{base + k, start.begin, start.begin + start.length, start.read_slot, start.write_slot};
        const Boundaries boundaries = boundaries_of(params(), s);
#pragma unroll 1
        for (int32_t n = 1 + thread / kChannels; n <= boundaries.count; n += kRows) {
            const StateToWrite to = boundary_state(params(), s, boundaries, n);
            if (to.slot == kNoSlot || (to.slot == s.read_slot) != in_read_slots) continue;
            const int past = params().width - 1;
            // In this order a state may move within one slot: each column is read no later than it is written.
#pragma unroll 1
            for (int i = 0; i < past; ++i) {
                const float v = window_element(p, s, d, to.position - past + i);
                store_element(p.states, state_index(params(), to.slot, d, i), params().state_dtype,
                              for_state(v, params().state_dtype));
            }
        }
    }
}

}  // namespace hipconv
