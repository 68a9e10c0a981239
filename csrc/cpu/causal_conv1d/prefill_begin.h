// This begins packed sequences on the CPU: it makes the outputs that depend on the initial state, and writes the states that a
// sequence leaves.
#pragma once

#include <type_traits>

#include "along_channels.h"
#include "causal_conv1d/prefill_schedule.h"

namespace hipconv {

// Neighbouring channels that one output tensor holds.
struct Part {
    int64_t begin, end;
    void* data;  // where channel `begin` has token 0
    int64_t dim_stride, token_stride;

    template <typename T>
    Plane<T> plane(int64_t token) const {
        return Plane<T>{static_cast<T*>(data), dim_stride, token_stride}.from(0, token);
    }
};

inline int parts_of(const CausalConv1dVarlenParams& p, int64_t begin, int64_t end, Part (&parts)[3]) {
    const auto at = [&](void* data, int64_t index) { return static_cast<char*>(data) + index * element_bytes(p.dtype); };
    if (p.k_dim < 0) {
        parts[0] = {begin, end, at(p.out, begin * p.out_dim_stride), p.out_dim_stride, p.out_token_stride};
        return 1;
    }
    const int64_t edges[4] = {0, p.k_dim, int64_t{2} * p.k_dim, p.dim};
    void* const outputs[3] = {p.out, p.k, p.v};
    int count = 0;
    for (int i = 0; i < 3; ++i) {
        const int64_t first = std::max(begin, edges[i]), last = std::min(end, edges[i + 1]);
        if (first < last) parts[count++] = {first, last, at(outputs[i], first - edges[i]), 1, edges[i + 1] - edges[i]};
    }
    return count;
}

template <typename T>
Plane<const T> x_plane(const CausalConv1dVarlenParams& p, int64_t channel, int64_t token) {
    return Plane<const T>{static_cast<const T*>(p.x), p.x_dim_stride, p.x_token_stride}.from(channel, token);
}

// The window in a slot: columns are its tokens.
template <typename S>
Plane<S> slot_of(const CausalConv1dVarlenParams& p, int32_t slot, int64_t channel) {
    S* begin = static_cast<S*>(p.states) + slot * p.slot_stride;
    return Plane<S>{begin, p.state_dim_stride, p.column_stride}.from(channel, p.first_column);
}

// ---- models' width 4, where channels are neighbours ------------------------------------------------------------------------

constexpr int kCommonPast = 3;

// Tells whether a slot's channels are neighbours, and so are each channel's kCommonPast columns.
inline bool in_threes(const CausalConv1dVarlenParams& p) {
    return p.width - 1 == kCommonPast && p.column_stride == 1 && p.state_dim_stride == kCommonPast;
}

// This prefetches the window that a sequence will read, or else write, a few lines at a time: slots lie anywhere, and the
// hardware's prefetchers do not see the next one coming.
struct NextState {
    const char* begin = nullptr;     // where the first channel is
    int64_t channel_step, row_step;  // bytes

    NextState(const CausalConv1dVarlenParams& p, int32_t sequence) {
        const int64_t bytes = element_bytes(p.state_dtype);
        const bool threes = in_threes(p);
        channel_step = threes ? kCommonPast * bytes : bytes;
        row_step = threes ? kLine : p.column_stride * bytes;
        if (sequence >= p.sequences || (!threes && p.state_dim_stride != 1)) return;
        const PackedSequence s = packed_sequence(p, sequence);
        const int32_t slot = s.read_slot == kNoSlot ? s.write_slot : s.read_slot;
        if (s.number < 0 || slot == kNoSlot) return;
        with_dtype(p.state_dtype,
                   [&](auto type) { begin = reinterpret_cast<const char*>(slot_of<decltype(type)>(p, slot, 0).begin); });
    }
    HIPCONV_SIMD void ask(int64_t channel, int past) const {  // prefetch the window of a line's channels
        for (int i = 0; begin && i < past; ++i) __builtin_prefetch(begin + channel * channel_step + i * row_step, 1);
    }

    static constexpr int64_t kLine = 64;
};

// This computes `tokens` outputs of kVectors * kLanes neighbouring channels from channel c of the parameters on; past(i, v)
// are the inputs before the first token. All vectors go through SiLU together: the choice of SiLU and its constants are paid
// for once, and the vectors' long chains of operations overlap.
template <int kVectors, typename T, typename Inputs>
HIPCONV_SIMD void convolve_tokens(const T* x, int64_t x_step, T* out, int64_t out_step, const Parameters& parameters, int64_t c,
                                  const Inputs& past, int tokens, bool use_silu) {
    Floats window[kVectors][kCommonPast + 1];
    for (int i = 0; i < kCommonPast; ++i)
        for (int v = 0; v < kVectors; ++v) window[v][i] = past(i, v);
    for (int t = 0; t < tokens; ++t) {
        Floats sums[kVectors];
        for (int v = 0; v < kVectors; ++v) {
            window[v][kCommonPast] = simd::load(x + t * x_step + v * kLanes);
            sums[v] = parameters.bias(c + v * kLanes);
            for (int i = 0; i <= kCommonPast; ++i) sums[v] = sums[v] + parameters.tap(i, c + v * kLanes) * window[v][i];
            for (int i = 0; i < kCommonPast; ++i) window[v][i] = window[v][i + 1];
        }
        if (use_silu)
            for (Floats& sum : sums) sum = simd::silu(sum);
        for (int v = 0; v < kVectors; ++v) simd::store(out + t * out_step + v * kLanes, sums[v]);
    }
}

// This handles the common case in one pass: the state has x's type, and the sequence leaves the final state alone. `kLength`
// is the sequence's length, or kCommonPast for as many tokens or more, of which the first ones depend on the state. The pass
// leaves less than a line's channels at the end, and returns where these begin.
template <typename T, int kLength, bool kThrees>
int64_t begin_lines(const CausalConv1dVarlenParams& p, const PackedSequence& s, const Part& part, const Parameters& parameters,
                    const NextState& next) {
    using E = std::conditional_t<sizeof(T) == 4, float, uint16_t>;
    using Row = simd::Row<E>;
    constexpr int kLine = NextState::kLine / sizeof(T);
    constexpr int kVectors = std::min(2, kLine / kLanes);  // AVX2's registers have room for so many
    const int64_t step = p.x_token_stride, column = p.column_stride;
    const T* x = static_cast<const T*>(p.x) + s.begin * step;
    const E* newest = reinterpret_cast<const E*>(static_cast<const T*>(p.x) + (s.end - 1) * step);
    T* out = part.plane<T>(s.begin).begin - part.begin;
    const E* from = slot_of<E>(p, s.read_slot, 0).begin;
    E* to = slot_of<E>(p, s.write_slot, 0).begin;
    int64_t line = part.begin;
    for (; line + kLine <= part.end; line += kLine) {
        next.ask(line, kCommonPast);
        for (int64_t c = line; c < line + kLine; c += kVectors * kLanes) {
            Row rows[kVectors][kCommonPast + kLength];  // the initial window, then the last inputs
            for (int v = 0; v < kVectors; ++v) {
                const int64_t d = c + v * kLanes;
                if constexpr (kThrees)
                    simd::unzip3(from + d * kCommonPast, rows[v][0], rows[v][1], rows[v][2]);
                else
                    for (int i = 0; i < kCommonPast; ++i) rows[v][i] = simd::read<Row>(from + i * column + d);
                for (int i = 0; i < kLength; ++i)
                    rows[v][kCommonPast + i] = simd::read<Row>(newest - (kLength - 1 - i) * step + d);
            }
            const auto past = [&](int i, int v) { return simd::load(reinterpret_cast<const T*>(&rows[v][i])); };
            convolve_tokens<kVectors>(x + c, step, out + c, part.token_stride, parameters, c - part.begin, past, kLength,
                                      p.use_silu);
            for (int v = 0; v < kVectors; ++v) {
                const int64_t d = c + v * kLanes;
                if constexpr (kThrees)
                    simd::zip3(to + d * kCommonPast, rows[v][kLength], rows[v][kLength + 1], rows[v][kLength + 2]);
                else
                    for (int i = 0; i < kCommonPast; ++i) simd::write(to + i * column + d, rows[v][kLength + i]);
            }
        }
    }
    return line;
}

template <typename T>
int64_t begin_lines(const CausalConv1dVarlenParams& p, const PackedSequence& s, const Part& part, const Parameters& parameters,
                    const NextState& next) {
    const bool threes = in_threes(p);
    switch (s.end - s.begin) {
        case 1:
            return threes ? begin_lines<T, 1, true>(p, s, part, parameters, next)
                          : begin_lines<T, 1, false>(p, s, part, parameters, next);
        case 2:
            return threes ? begin_lines<T, 2, true>(p, s, part, parameters, next)
                          : begin_lines<T, 2, false>(p, s, part, parameters, next);
        default:
            return threes ? begin_lines<T, 3, true>(p, s, part, parameters, next)
                          : begin_lines<T, 3, false>(p, s, part, parameters, next);
    }
}

// ---- any width and strides -------------------------------------------------------------------------------------------------

// A thread's tiles.
struct BeginBuffers {
    Buffer<float> x, out;
    TokenIds one_sequence;

    BeginBuffers(const Cut& cut, int width) : x(cut.channels * 2 * width), out(cut.channels * width), one_sequence(2 * width) {
        for (int t = 0; t < 2 * width; ++t) one_sequence.set(t, 0, false);
    }
};

// Writes one state that a sequence leaves: a window over its initial state and its inputs.
template <typename T, typename S>
void write_state(const CausalConv1dVarlenParams& p, const PackedSequence& s, const StateToWrite& state, const Part& part,
                 float* tile) {
    const int past = p.width - 1, count = std::min(past, state.position),
              older = past - count;  // inputs, and the state's columns
    const int64_t channels = part.end - part.begin, step = round_up(channels, kLanes);
    const Plane<S> to = slot_of<S>(p, state.slot, part.begin);
    const Plane<const T> from = x_plane<T>(p, part.begin, int64_t{s.begin} + state.position - count);
    if (s.read_slot != kNoSlot) {
        const Plane<S> initial = slot_of<S>(p, s.read_slot, part.begin).from(0, count);
        move(to, Plane<const S>{initial.begin, initial.dim_stride, initial.token_stride}, channels, older, tile);
    } else {
        std::fill_n(tile, older * step, 0.0f);
        store_tile(to, tile, step, channels, older);
    }
    if constexpr (std::is_same_v<S, T>) {
        move(to.from(0, older), from, channels, count, tile);
    } else {
        load_tile(tile, step, from, channels, count);
        for (int64_t i = 0; sizeof(T) > sizeof(S) && i < count * step; ++i) tile[i] = canonical_nan(tile[i]);
        store_tile(to.from(0, older), tile, step, channels, count);
    }
}

template <typename T, typename S>
void begin_channels(const CausalConv1dVarlenParams& p, const PackedSequence& s, const Boundaries& boundaries, const Part& part,
                    const Parameters& parameters, const BeginBuffers& buffers) {
    const int past = p.width - 1, tokens = std::min(past, s.end - s.begin);
    const int64_t channels = part.end - part.begin, step = round_up(channels, kLanes);
    float* x = buffers.x.begin();
    if (s.read_slot != kNoSlot) {
        load_tile(x, step, slot_of<S>(p, s.read_slot, part.begin), channels, past);
        load_tile(x + past * step, step, x_plane<T>(p, part.begin, s.begin), channels, tokens);
        const Plane<T> out = part.plane<T>(s.begin);
        const auto convolve = [&](auto to) {
            convolve_rows(Rows<const float>{x, step}, to, parameters, buffers.one_sequence, tokens, channels, p.use_silu);
        };
        if (out.dim_stride == 1 && channels >= kLanes) {
            convolve(out.rows());
        } else {
            convolve(Rows<float>{buffers.out.begin(), step});
            store_tile(out, buffers.out.begin(), step, channels, tokens);
        }
    }
    for (int pass = 0; pass < 2; ++pass) {  // the slot that is read is overwritten last
        for (int32_t n = 0; n <= boundaries.count; ++n) {
            const StateToWrite to = state_to_write(p, s, boundaries, n);
            if (to.slot != kNoSlot && (to.slot == s.read_slot) == (pass == 1)) write_state<T, S>(p, s, to, part, x);
        }
    }
}

// ---- a sequence ------------------------------------------------------------------------------------------------------------

template <typename T>
void begin_sequence(const CausalConv1dVarlenParams& p, const PackedSequence& s, Part part, Parameters parameters,
                    const BeginBuffers& buffers) {
    const Boundaries boundaries = boundaries_of(p, s);
    const bool plain = boundaries.count == 0 && s.read_slot != kNoSlot && s.write_slot != kNoSlot && p.width == kCommonPast + 1;
    const bool dense = p.x_dim_stride == 1 && part.dim_stride == 1 && (in_threes(p) || p.state_dim_stride == 1);
    if (plain && dense && p.state_dtype == p.dtype) {
        const int64_t left = begin_lines<T>(p, s, part, parameters, NextState(p, s.number + 1)), made = left - part.begin;
        parameters.begin += made;
        part.data = part.plane<T>(0).from(made, 0).begin;
        part.begin = left;
    }
    if (part.begin == part.end) return;
    with_dtype(p.state_dtype,
               [&](auto type) { begin_channels<T, decltype(type)>(p, s, boundaries, part, parameters, buffers); });
}

}  // namespace hipconv
