// This file looks up the sequences of a span for the kernel of rows_kernel.h, and makes their starts: the outputs that depend
// on the initial state, and the states that the sequence leaves. A row of lanes, a channel each, makes one start after another;
// while it makes one, the next one's state is on its way.
#pragma once

#include "causal_conv1d/prefill_formula.h"
#include "rows.h"
#include "staged_begin.h"

namespace hipconv {

// This is the thread's number; what follows from it is not worked out before, as there are no registers for it.
__device__ __forceinline__ int thread_from_here_on() {
    uint32_t in_lane = threadIdx.x;
    from_here_on(in_lane);
    int thread = static_cast<int>(in_lane);
    from_here_on(thread);
    return thread;
}

// Tells what a token of a span is.
constexpr uint8_t kRunToken = 0;    // its window is within x
constexpr uint8_t kFirstToken = 1;  // its output depends on the initial state
constexpr uint8_t kDeadToken = 2;   // it belongs to no sequence or to a padding one

// Where the span of channels that begin so many elements behind a boundary has its first and last outputs, in positions.
struct SpanEnds {
    int32_t first, end;  // `first` is negative where the first outputs of a sequence begin in the span before
};

struct SpanOfRows {
    int32_t count;  // of sequences that are looked up together, up to the last in the span
    int32_t more, has_begins, has_runs, has_dead;
    int32_t sequence;  // the first of these
};

// Tells where a channel's outputs are in LDS, in bytes, by position.
template <typename T>
struct OutPlace {
    int first, step, skew;

    HIPCONV_INLINE OutPlace(int channel, bool tokens_inner) {
        using Shape = RowsShape<T>;
        first = channel * (tokens_inner ? Shape::kLineBytes : Shape::kSize);
        step = tokens_inner ? Shape::kSize : Shape::kTokenBytes;
        skew = tokens_inner ? 0 : 4;
    }
    HIPCONV_INLINE int operator()(int position) const {
        const uint32_t at = static_cast<uint32_t>(kHalo + position);
        return first + static_cast<int>(at) * step + static_cast<int>(at / RowsShape<T>::kTokens) * skew;
    }
};

// A thread marks what its sequence, of number `b`, is in the span, as one of those found. `kinds` are those of the tokens from
// number * kSpan on, and of kHalo tokens before it.
template <typename T>
__device__ __forceinline__ void mark_begin(const CausalConv1dVarlenParams& p, const PackedSequence& s, int32_t b, int place,
                                           int32_t begin, BeginInTile* found, uint8_t* kinds, SpanEnds* ends,
                                           SpanOfRows& span) {
    constexpr int kSpan = RowsShape<T>::kSpan, kTokens = RowsShape<T>::kTokens;
    const int32_t past = p.width - 1;
    BeginInTile entry{0, 0, kNoSlot, kNoSlot};
    if (b < p.sequences && s.begin - begin < kSpan) {
        const int32_t first = s.begin - begin, end = s.end - begin;
        const int32_t firsts_end = first + past < end ? first + past : end;
        if (first < end && s.number < 0) {
            for (int32_t t = first > -kTokens ? first : -kTokens; t < end && t < kSpan; ++t) kinds[t] = kDeadToken;
            span.has_dead = 1;
        } else if (first < end) {
            if (firsts_end > -kTokens) {
                entry = {s.begin, end - first, s.read_slot, s.write_slot};
                for (int32_t t = first > -kHalo ? first : -kHalo; t < firsts_end && t < kSpan; ++t) kinds[t] = kFirstToken;
                span.has_begins = 1;
            }
            // The span that has the last of the first outputs owns all of them.
            if (first < 0 && firsts_end > -kTokens) {
                for (int apart = 0; apart < kTokens; ++apart)
                    if (first + apart < 0 && firsts_end + apart > 0) ends[apart].first = first + apart;
            }
            if (firsts_end > kSpan - kTokens) {
                for (int apart = 0; apart < kTokens; ++apart)
                    if (first + apart < kSpan && firsts_end + apart > kSpan) ends[apart].end = first + apart;
            }
            if (end > first + past && end > -kTokens) span.has_runs = 1;
        }
        const bool is_last = b + 1 >= p.sequences || end >= kSpan;
        if (is_last || place == kRowsFound - 1) {
            span.count = place + 1;
            span.more = is_last ? 0 : 1;
        }
    }
    found[place] = entry;
}

// Taps of the instance that the call lacks; that of width 2 has no other width.
template <int kWidth>
HIPCONV_INLINE int missing_in_rows(const CausalConv1dVarlenParams& p) {
    return kWidth == 2 ? 0 : missing_taps<kWidth, true>(p);
}

// The window of a channel in slots of the pool, where the instance's first column may be missing.
template <typename T, int kWidth>
struct WindowOfSlot {
    using Bits = typename WordsOf<sizeof(T)>::type;
    static constexpr int kPast = kWidth - 1, kSize = static_cast<int>(sizeof(T));

    const CausalConv1dVarlenParams& p;
    char* in_first_slot;

    HIPCONV_INLINE WindowOfSlot(const StagedCall& call, int32_t d) : p(call.params) {
        const CausalConv1dVarlenParams& again = first_parameter_again(p);
        in_first_slot = kept(
            static_cast<char*>(again.states) +
            (d * again.state_dim_stride + (again.first_column - missing_in_rows<kWidth>(p)) * again.column_stride) * kSize);
    }

    // Calls f(i, address) for the columns.
    template <typename F>
    HIPCONV_INLINE void for_columns(int32_t slot, F f) const {
        const CausalConv1dVarlenParams& again = first_parameter_again(p);
        const int missing = missing_in_rows<kWidth>(p);
        char* column = in_first_slot + slot_bytes(static_cast<uint32_t>(slot), again);
        if (kPast == 1 || again.column_stride == 1) {
#pragma unroll
            for (int i = 0; i < kPast; ++i)
                if (has_tap(i, missing)) f(i, column + i * kSize);
        } else {
            const int64_t step = again.column_stride * int64_t{kSize};
#pragma unroll
            for (int i = 0; i < kPast; ++i) {
                if (has_tap(i, missing)) f(i, column);
                column += step;
            }
        }
    }
    // Slots lie less than 2 GiB apart (rows_serve).
    static HIPCONV_INLINE uint64_t slot_bytes(uint32_t slot, const CausalConv1dVarlenParams& p) {
        return uint64_t{slot} * (static_cast<uint32_t>(p.slot_stride) * static_cast<uint32_t>(kSize));
    }
    HIPCONV_INLINE void ask(int32_t slot, Bits (&state)[kPast]) const {
        if (slot == kNoSlot) return;
        for_columns(slot, [&](int i, const char* from) { state[i] = *global_pointer<const Bits>(from); });
    }
};

// Asks for the windows of a block's channels in a slot in L2, a sector a lane, where they lie together.
template <typename T>
struct WindowsAhead {
    const CausalConv1dVarlenParams& p;
    int in_slot;  // bytes, of this lane's sector; negative for none

    HIPCONV_INLINE WindowsAhead(const StagedCall& call, int32_t first_channel, int channel, bool wanted)
        : p(call.params), in_slot(-1) {
        if (!wanted) return;
        const CausalConv1dVarlenParams& again = first_parameter_again(p);
        constexpr int kSize = static_cast<int>(sizeof(T)), kSector = 32;
        const bool packed = again.column_stride == 1;
        const int column = packed ? 0 : channel % kHalo, offset = (packed ? channel : channel / kHalo) * kSector;
        in_slot =
            static_cast<int>(first_channel * again.state_dim_stride + (again.first_column + column) * again.column_stride) *
                kSize +
            offset;
        if (column >= again.width - 1 || offset >= kRowsChannels * again.state_dim_stride * kSize) in_slot = -1;
    }
    HIPCONV_INLINE void ask(int32_t slot) const {
        const CausalConv1dVarlenParams& again = first_parameter_again(p);
        prefetch_if(static_cast<const char*>(again.states) + in_slot +
                        WindowOfSlot<T, 2>::slot_bytes(static_cast<uint32_t>(slot), again),
                    in_slot >= 0 && slot != kNoSlot);
    }
    // A row of lanes makes each `rows`-th start: these ask for the states of its first ones, and then a few behind each.
    HIPCONV_INLINE void ask_first(const BeginInTile* found, int row, int rows, int count) const {
        if (!kPrefetches || count <= rows) return;
#pragma unroll
        for (int k = 1; k < kAhead; ++k)
            if (row + k * rows < count) ask(found[row + k * rows].read_slot);
    }
    HIPCONV_INLINE void ask_behind(const BeginInTile* found, int start, int rows, int count) const {
        if (kPrefetches && start + kAhead * rows < count) ask(found[start + kAhead * rows].read_slot);
    }

  private:
    static constexpr int kAhead = 3;
};

// Makes `count` starts of sequences of the span that begins with token `begin`, or a row's share of them, which has one. The
// lines are the span's inputs and outputs in LDS.
template <typename T, int kWidth>
__device__ __forceinline__ void make_row_begins(const StagedCall& call, const BeginInTile* found, int count, int32_t begin,
                                                int32_t first_channel, const char* x_lines, char* out_lines,
                                                const float* taps) {
    using Shape = RowsShape<T>;
    using Bits = typename WordsOf<sizeof(T)>::type;
    constexpr int kPast = kWidth - 1, kRows = kRowsThreads / kRowsChannels, kSpan = Shape::kSpan;
    const CausalConv1dVarlenParams& p = call.params;
    const auto params = [&]() -> const CausalConv1dVarlenParams& { return first_parameter_again(p); };
    const auto plan = [&]() -> const StagedPlan& { return first_parameter_again(call).plan; };
    const int thread = thread_from_here_on();
    const int row = thread / kRowsChannels, channel = thread % kRowsChannels;
    const int32_t d = first_channel + channel;
    const WindowOfSlot<T, kWidth> windows(call, d);
    Bits state[kPast]{};
    windows.ask(found[row].read_slot, state);
    const int missing = missing_in_rows<kWidth>(p), past = kPast - missing;
    const int apart = elements_apart<T>(static_cast<const T*>(params().x) + (d * params().x_dim_stride + begin));
    begin -= apart;  // of this channel
    const T* const x_line = reinterpret_cast<const T*>(x_lines + channel * Shape::kLineBytes) + kHalo;
    const OutPlace<T> place(channel, plan().out_tokens_inner);

    float weights[kWidth];
    const float* const own_taps = taps + channel * ((kWidth + 4) / 4 * 4);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) weights[i] = own_taps[i];

    const WindowsAhead<T> ahead(call, first_channel, channel, kPrefetches && count > kRows);
    ahead.ask_first(found, row, kRows, count);
#pragma unroll 1
    for (int k = row; k < count; k += kRows) {
        const BeginInTile s = found[k];
        const bool has_state = s.read_slot != kNoSlot;
        float window[2 * kPast];  // and the first inputs
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            window[i] = has_state ? to_float(from_bits<T>(state[i])) : 0.0f;
            in_a_register(window[i]);
        }
        if (k + kRows < count) windows.ask(found[k + kRows].read_slot, state);
        ahead.ask_behind(found, k, kRows, count);
        const int first = s.begin - begin, firsts_end = first + (s.length < past ? s.length : past);
        if (s.length == 0 || firsts_end <= 0 || firsts_end > kSpan) continue;  // another span's
        const T* const inputs = x_line + first;
        const auto make_output = [&](int t) {
            window[kPast + t] = to_float(inputs[t]);
            float sum = own_taps[kWidth];
#pragma unroll
            for (int i = 0; i < kPast; ++i) {
                // Without a state, taps before the sequence are left out, not multiplied by zero: the weight may be infinite.
                if (has_tap(i, missing) && (i + t >= kPast || has_state)) sum = weights[i] * window[i + t] + sum;
            }
            sum = weights[kPast] * window[kPast + t] + sum;
            if (params().use_silu) sum = low(silu(twice(sum)));
            *reinterpret_cast<T*>(out_lines + place(first + t)) = from_float<T>(sum);
        };
        if (s.length > past) {
            // The last inputs become a state: those that are not here are on their way meanwhile.
            constexpr bool kLastEarly = kWidth <= 4;  // wider windows have no registers to wait in
            const int end = first + s.length, oldest = end - kPast;
            const bool is_here = end <= kSpan;
            Bits last[kPast]{};
            const auto load_last = [&] {
                if (is_here || s.write_slot == kNoSlot) return;
                const Bits* from = static_cast<const Bits*>(params().x) + (d * params().x_dim_stride + begin + oldest);
                const int64_t stretch = (begin + apart) >> plan().log2_tokens;
                if (plan().lasts && begin + apart + end > ((stretch + 1) << plan().log2_tokens)) {
                    constexpr int kSaved = Shape::kLastCells * Shape::kTokens;  // up to the vector in which the sequence ends
                    from = reinterpret_cast<const Bits*>(plan().lasts) + (stretch * plan().saved_dim + d) * kSaved +
                           (kSaved - kPast - ((0 - end) & (Shape::kTokens - 1)));
                }
#pragma unroll
                for (int i = 0; i < kPast; ++i)
                    if (has_tap(i, missing)) last[i] = global_pointer<const Bits>(from)[i];
            };
            if (kLastEarly) load_last();
#pragma unroll
            for (int t = 0; t < kPast; ++t)
                if (t < kPast - 1 || missing == 0) make_output(t);
            if (s.write_slot == kNoSlot) continue;
            if (!kLastEarly) load_last();
#pragma unroll
            for (int i = 0; i < kPast; ++i) {
                T input = from_bits<T>(last[i]);
                if (is_here && has_tap(i, missing)) input = x_line[oldest + i];
                window[i] = to_float(input);
            }
        } else {
#pragma unroll
            for (int t = 0; t < kPast; ++t) {
                window[kPast + t] = 0.0f;
                if (t < s.length) make_output(t);
            }
            if (s.write_slot == kNoSlot) continue;
            // The window moves on by the sequence's tokens.
            const auto move_on = [&](auto by) {
                constexpr int kBy = decltype(by)::value;
                if constexpr (kBy <= kPast) {
                    const bool moves = (s.length & kBy) != 0;
#pragma unroll
                    for (int i = 0; i < 2 * kPast - kBy; ++i) {
                        float on = window[i + kBy];
                        in_a_register(on);  // no address is chosen
                        window[i] = moves ? on : window[i];
                    }
                }
            };
            move_on(std::integral_constant<int, 4>{});
            move_on(std::integral_constant<int, 2>{});
            move_on(std::integral_constant<int, 1>{});
        }
        windows.for_columns(s.write_slot, [&](int i, char* to) { *global_pointer<T>(to) = from_float<T>(window[i]); });
    }
}

}  // namespace hipconv
