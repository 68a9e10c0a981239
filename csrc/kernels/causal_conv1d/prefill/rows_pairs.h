// This file makes the starts of sequences of a span for the kernel of rows_kernel.h as rows_begin.h does, but with two
// neighbouring channels of 16 bits a lane, for calls of mostly single tokens whose states are words of two channels. What a
// start takes besides its sums is the same for two channels as for one. Longer sequences lose more: where a span has fewer
// starts than a block has rows of lanes, waves have none, and lines of x that lie two channels apart have their elements in the
// same banks. Neighbours may begin at different tokens of the span, so at its ends a lane may have the start of one channel and
// not of the other.
#pragma once

#include "rows_begin.h"

namespace hipconv {

// Tells whether lanes may have starts of two channels: not at widths 3 and 4, which lose, as registers allow of one tap at a
// time; nor in AMD's waves, which have no scalar registers for that.
template <typename T, int kWidth>
inline constexpr bool kPairs = sizeof(T) == 2 && kWidth != 4 && kHasPredicates;

// Windows in slots of the pool, of a lane's channels.
template <typename T, int kWidth>
struct WindowsOfPair {
    static constexpr int kPast = kWidth - 1, kSize = 2;
    static_assert(sizeof(T) == kSize, "two channels are a word");
    struct OnItsWay {
        uint32_t words[kPast]{};  // as memory has them
    };

    const StagedCall& call;
    char* in_first_slot;  // the first channel's; of the instance's first column, which may be missing

    HIPCONV_INLINE WindowsOfPair(const StagedCall& all, int32_t d) : call(all) {
        const CausalConv1dVarlenParams& p = params();
        in_first_slot = kept(static_cast<char*>(p.states) +
                             (d * p.state_dim_stride + (p.first_column - missing()) * p.column_stride) * kSize);
    }
    HIPCONV_INLINE const CausalConv1dVarlenParams& params() const { return first_parameter_again(call).params; }
    HIPCONV_INLINE bool columns() const { return first_parameter_again(call).plan.state_form == StateForm::columns; }
    HIPCONV_INLINE int missing() const { return missing_in_rows<kWidth>(call.params); }
    HIPCONV_INLINE char* in_slot(int32_t slot) const {
        return in_first_slot + WindowOfSlot<T, kWidth>::slot_bytes(static_cast<uint32_t>(slot), params());
    }
    // Calls f with the number of missing columns as an integral_constant.
    template <typename F>
    HIPCONV_INLINE void with_missing(F f) const {
        if (kPast == 1 || missing() == 0) return f(std::integral_constant<int, 0>{});
        f(std::integral_constant<int, (kPast > 1 ? 1 : 0)>{});
    }

    HIPCONV_INLINE void ask(int32_t slot, OnItsWay& to) const {
        if (slot == kNoSlot) return;
        const char* from = in_slot(slot);
        if (!columns()) {
            const uint32_t* const words = global_pointer<const uint32_t>(from + missing() * kSize);
#pragma unroll
            for (int i = 0; i < kPast; ++i)
                if (i < kPast - 1 || missing() == 0) to.words[i] = words[i];
            return;
        }
        const int64_t step = params().column_stride * kSize;
#pragma unroll
        for (int i = 0; i < kPast; ++i, from += step)
            if (has_tap(i, missing())) to.words[i] = *global_pointer<const uint32_t>(from);
    }

    HIPCONV_INLINE void take(const OnItsWay& from, bool has_state, uint32_t* window) const {
        if (columns()) {
#pragma unroll
            for (int i = 0; i < kPast; ++i) window[i] = has_state ? from.words[i] : 0;
            return;
        }
        with_missing([&](auto without) {
            constexpr int kMissing = decltype(without)::value, kColumns = kPast - kMissing;
#pragma unroll
            for (int i = 0; i < kPast; ++i) {
                const int first = i < kMissing ? 0 : i - kMissing, second = kColumns + first;
                const uint32_t both = two_halves(first, from.words[first / 2], second, from.words[second / 2]);
                window[i] = has_state && i >= kMissing ? both : 0;
            }
        });
    }

    // Stores the windows of both channels, or of one of them.
    HIPCONV_INLINE void put(int32_t slot, const uint32_t* window, bool has_first, bool has_second) const {
        char* to = in_slot(slot);
        const bool has_both = has_first && has_second;
        if (has_both && !columns()) {
            return with_missing([&](auto without) {
                constexpr int kMissing = decltype(without)::value, kColumns = kPast - kMissing;
                uint32_t* const words = global_pointer<uint32_t>(to + kMissing * kSize);
#pragma unroll
                for (int j = 0; j < kColumns; ++j) {
                    const int low = 2 * j, high = 2 * j + 1;  // halves, of which each channel has kColumns
                    words[j] = two_halves(low / kColumns, window[kMissing + low % kColumns], high / kColumns,
                                          window[kMissing + high % kColumns]);
                }
            });
        }
        const int64_t step = params().column_stride * kSize;
#pragma unroll
        for (int i = 0; i < kPast; ++i, to += step) {
            if (!has_tap(i, missing())) continue;
            if (has_both)
                *global_pointer<uint32_t>(to) = window[i];
            else if (has_first)
                *global_pointer<uint16_t>(to) = static_cast<uint16_t>(window[i]);
            else
                *global_pointer<uint16_t>(to + params().state_dim_stride * kSize) = static_cast<uint16_t>(window[i] >> 16);
        }
    }
};

// As make_row_begins, for rows of half as many lanes.
template <typename T, int kWidth>
__device__ __forceinline__ void make_begins_of_pairs(const StagedCall& call, const BeginInTile* found, int count,
                                                     int32_t span_begin, int32_t first_channel, const char* x_lines,
                                                     char* out_lines, const float* taps) {
    using Shape = RowsShape<T>;
    using Windows = WindowsOfPair<T, kWidth>;
    constexpr int kPast = kWidth - 1, kLanes = kRowsChannels / 2, kRows = kRowsThreads / kLanes, kSpan = Shape::kSpan;
    constexpr int kSize = 2;
    const auto params = [&]() -> const CausalConv1dVarlenParams& { return first_parameter_again(call).params; };
    const auto plan = [&]() -> const StagedPlan& { return first_parameter_again(call).plan; };
    const int thread = thread_from_here_on();
    const int row = thread / kLanes, lane = thread % kLanes, channel = 2 * lane;
    const int32_t d = first_channel + channel;
    const Windows windows(call, d);
    typename Windows::OnItsWay state;
    windows.ask(found[row].read_slot, state);
    const int missing = missing_in_rows<kWidth>(call.params), past = kPast - missing;
    // The channels' first tokens in LDS.
    const auto begin_of = [&](int c) {
        return span_begin -
               elements_apart<T>(static_cast<const T*>(params().x) + ((d + c) * params().x_dim_stride + span_begin));
    };
    const int32_t begins[2] = {begin_of(0), begin_of(1)};
    const bool tokens_inner = plan().out_tokens_inner;
    constexpr int kTapStep = (kWidth + 4) / 4 * 4;
    const float* const own_taps = taps + channel * kTapStep;
    // Where windows are wide, a few taps at a time are in registers.
    constexpr int kTapsAtOnce = kWidth == 8 ? 4 : kWidth;
    const auto bring_taps = [&](int first, Pair(&to)[kTapsAtOnce]) {
        int own = channel * kTapStep;
        if (kTapsAtOnce < kWidth) from_here_on(own);
#pragma unroll
        for (int i = 0; i < kTapsAtOnce; ++i) to[i] = make_pair(taps[own + first + i], taps[own + kTapStep + first + i]);
    };
    Pair weights[kTapsAtOnce];
    if (kTapsAtOnce == kWidth) bring_taps(0, weights);

    const WindowsAhead<T> ahead(call, first_channel, lane, kPrefetches && count > kRows);
    ahead.ask_first(found, row, kRows, count);
#pragma unroll 1
    for (int k = row; k < count; k += kRows) {
        const BeginInTile s = found[k];
        const bool has_state = s.read_slot != kNoSlot;
        uint32_t window[2 * kPast];  // and the first inputs
        windows.take(state, has_state, window);
        if (k + kRows < count) windows.ask(found[k + kRows].read_slot, state);
        ahead.ask_behind(found, k, kRows, count);
        const int firsts = s.length < past ? s.length : past;
        const auto first = [&](int c) { return s.begin - begins[c]; };
        bool own[2];  // or another span's
        int at[2];    // bytes, in lines of x
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            own[c] = static_cast<uint32_t>(first(c) + firsts - 1) < static_cast<uint32_t>(kSpan);   // firsts end in the span
            at[c] = (channel + c) * Shape::kLineBytes + (kHalo + (own[c] ? first(c) : 0)) * kSize;  // others may lie beyond it
        }
        if (s.length == 0 || (!own[0] && !own[1])) continue;
        const auto input = [&](int offset) -> uint32_t { return *reinterpret_cast<const uint16_t*>(x_lines + offset); };
        const auto inputs_at = [&](int t) { return input(at[0] + t * kSize) | input(at[1] + t * kSize) << 16; };
        const auto make_output = [&](int t) {
            window[kPast + t] = inputs_at(t);
            Pair sum = make_pair(own_taps[kWidth], own_taps[kTapStep + kWidth]);
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
                if (kTapsAtOnce < kWidth && i % kTapsAtOnce == 0) bring_taps(i, weights);
                // Without a state, taps before the sequence are left out, not multiplied by zero: the weight may be infinite.
                if (i == kPast || (has_tap(i, missing) && (i + t >= kPast || has_state)))
                    sum = multiply_add(weights[i % kTapsAtOnce], pair_of<T>(window[i + t], 0), sum);
            }
            if (params().use_silu) sum = silu(sum);
            uint32_t both{};
            set_pair<T>(both, 0, sum);
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                // Lines of outputs are laid out as those of x are, or they are tokens.
                const int line = (channel + c) * Shape::kLineBytes;
                const int to =
                    tokens_inner ? at[c] + t * kSize : OutPlace<T>(channel + c, false)((at[c] - line) / kSize - kHalo + t);
                if (own[c]) *reinterpret_cast<uint16_t*>(out_lines + to) = static_cast<uint16_t>(both >> 16 * c);
            }
        };
#pragma unroll
        for (int t = 0; t < kPast; ++t) {
            window[kPast + t] = 0;
            if (t < firsts) make_output(t);
        }
        if (s.write_slot == kNoSlot) continue;
        if (s.length > past) {
            // The last inputs become a state.
            const auto is_here = [&](int c) { return first(c) + s.length <= kSpan; };
            if (is_here(0) && is_here(1)) {
#pragma unroll
                for (int c = 0; c < 2; ++c) at[c] += (own[c] ? s.length - kPast : 0) * kSize;
#pragma unroll
                for (int i = 0; i < kPast; ++i) window[i] = inputs_at(i);
            } else {
#pragma unroll
                for (int i = 0; i < kPast; ++i) window[i] = 0;
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    if (!own[c]) continue;
                    if (is_here(c)) {
#pragma unroll
                        for (int i = 0; i < kPast; ++i) window[i] |= input(at[c] + (s.length - kPast + i) * kSize) << 16 * c;
                        continue;
                    }
                    const int end = first(c) + s.length;
                    const uint16_t* from = static_cast<const uint16_t*>(params().x) +
                                           ((d + c) * params().x_dim_stride + begins[c] + (end - kPast));
                    const int64_t stretch = span_begin >> plan().log2_tokens;
                    if (plan().lasts && span_begin + end > ((stretch + 1) << plan().log2_tokens)) {
                        constexpr int kSaved =
                            Shape::kLastCells * Shape::kTokens;  // up to the vector in which the sequence ends
                        from = reinterpret_cast<const uint16_t*>(plan().lasts) + (stretch * plan().saved_dim + d + c) * kSaved +
                               (kSaved - kPast - ((0 - end) & (Shape::kTokens - 1)));
                    }
#pragma unroll
                    for (int i = 0; i < kPast; ++i)
                        if (has_tap(i, missing))
                            window[i] |= static_cast<uint32_t>(global_pointer<const uint16_t>(from)[i]) << 16 * c;
                }
            }
        } else {
            // The window moves on by the sequence's tokens.
            const auto move_on = [&](auto by) {
                constexpr int kBy = decltype(by)::value;
                if constexpr (kBy <= kPast) {
                    const bool moves = (s.length & kBy) != 0;
#pragma unroll
                    for (int i = 0; i < kPast + kBy - 1 && i < 2 * kPast - kBy; ++i) {
                        int on = static_cast<int>(window[i + kBy]);
                        in_a_register(on);  // no address is chosen
                        window[i] = moves ? static_cast<uint32_t>(on) : window[i];
                    }
                }
            };
            move_on(std::integral_constant<int, 4>{});
            move_on(std::integral_constant<int, 2>{});
            move_on(std::integral_constant<int, 1>{});
        }
        windows.put(s.write_slot, window, own[0], own[1]);
    }
}

}  // namespace hipconv
