// This is the causal conv1d prefill (packed sequences) for host memory, vectorised along channels.
//
// As on GPUs (csrc/kernels/causal_conv1d/prefill/tile.cu), the packed tokens are cut into runs, whatever sequences they hold.
// The run with a sequence's first token computes all outputs that depend on the initial state, and then writes the states.
// Every output is the same chain of operations on one lane of a vector, so chunks and splits agree bit for bit.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "../simd.h"
#include "causal_conv1d/prefill_schedule.h"
#include "prefill.h"
#include "serial.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace hipconv {
namespace {

using simd::Floats;
using simd::kLanes;

constexpr int kMaxWidth = 8;
constexpr int kBlock = 2048;  // channels, at most: whole rows, as each visit to a page costs a walk through the page tables
constexpr int kLeastBlock = 512;
constexpr int kRun = 8;  // tokens, at least kMaxWidth - 1: rows are read at once, so that the prefetchers follow

template <int kWidth>
struct Buffers {
    alignas(64) float parameters[kWidth + 1][kBlock];         // element `width` is the bias
    alignas(64) float past[kWidth][kBlock];                   // the width - 1 inputs before a sequence
    alignas(64) char state[kWidth * kBlock * sizeof(float)];  // the same inputs in the pool's type
};

template <int kWidth>
void load_parameters(const CausalConv1dVarlenParams& p, int64_t first, int64_t channels, float (&to)[kWidth + 1][kBlock]) {
    for (int64_t c = 0; c < channels; ++c) {
        for (int i = 0; i < kWidth; ++i)
            to[i][c] = load_parameter(p.weight, (first + c) * p.weight_dim_stride + i * p.weight_width_stride, p.weight_dtype);
        to[kWidth][c] = p.bias ? load_parameter(p.bias, (first + c) * p.bias_stride, p.bias_dtype) : 0.0f;
    }
}

// This holds the width - 1 inputs before the first token, either of x's type or converted.
template <typename T>
struct Past {
    const T* elements;
    int64_t step;
    const float* floats;  // rows are kBlock apart; if null, `elements` hold the inputs

    Past from(int64_t channel) const { return {elements + channel, step, floats ? floats + channel : floats}; }
    template <bool kEdge>
    HIPCONV_SIMD Floats load(int i, int v, int64_t channels) const {
        if (floats) return simd::load(floats + i * kBlock + v * kLanes);
        const T* row = elements + i * step + v * kLanes;
        return kEdge ? simd::load_some(row, channels) : simd::load(row);
    }
};

// This computes `tokens` outputs for kVectors * kLanes neighbouring channels; kEdge stands for `channels` of them. past(i, v)
// are the inputs before the first token, of which the first `absent` do not exist. All vectors go through SiLU together: the
// choice of SiLU and its constants are paid for once, and the vectors' long chains of operations overlap.
template <typename T, int kWidth, int kVectors, bool kEdge, typename Inputs>
HIPCONV_SIMD void convolve_tokens(const T* x, int64_t x_step, T* out, int64_t out_step, const float* parameters,
                                  const Inputs& past, int absent, int tokens, int64_t channels, bool use_silu) {
    constexpr int kPast = kWidth - 1;
    Floats window[kVectors][kWidth];
    for (int i = 0; i < kPast; ++i)
        for (int v = 0; v < kVectors; ++v) window[v][i] = past(i, v);
    for (int t = 0; t < tokens; ++t) {
        Floats sums[kVectors];
        for (int v = 0; v < kVectors; ++v) {
            const T* from = x + t * x_step + v * kLanes;
            window[v][kPast] = kEdge ? simd::load_some(from, channels) : simd::load(from);
            sums[v] = simd::load(parameters + kWidth * kBlock + v * kLanes);
            for (int i = 0; i < kWidth; ++i)
                if (t + i >= absent) sums[v] = sums[v] + simd::load(parameters + i * kBlock + v * kLanes) * window[v][i];
            for (int i = 0; i < kPast; ++i) window[v][i] = window[v][i + 1];
        }
        if (use_silu)
            for (Floats& sum : sums) sum = simd::silu(sum);
        for (int v = 0; v < kVectors; ++v) {
            T* to = out + t * out_step + v * kLanes;
            kEdge ? simd::store_some(to, sums[v], channels) : simd::store(to, sums[v]);
        }
    }
}

// A piece is neighbouring channels that one output tensor holds.
struct Piece {
    int64_t begin, end;
    void* data;  // where channel `begin` has token 0
    int64_t token_stride;
};

int pieces_of(const CausalConv1dVarlenParams& p, int64_t begin, int64_t end, Piece (&pieces)[3]) {
    const int64_t bytes = p.dtype == DType::f32 ? 4 : 2;
    const auto at = [&](void* data, int64_t channel) { return static_cast<char*>(data) + channel * bytes; };
    if (p.k_dim < 0) {
        pieces[0] = {begin, end, at(p.out, begin), p.out_token_stride};
        return 1;
    }
    const int64_t edges[4] = {0, p.k_dim, int64_t{2} * p.k_dim, p.dim};
    void* const outputs[3] = {p.out, p.k, p.v};
    int count = 0;
    for (int i = 0; i < 3; ++i) {
        const int64_t first = std::max(begin, edges[i]), last = std::min(end, edges[i + 1]);
        if (first < last) pieces[count++] = {first, last, at(outputs[i], first - edges[i]), edges[i + 1] - edges[i]};
    }
    return count;
}

// ---- states: rows of channels here, in the pool any strides -----------------------------------------------------------------

constexpr int kCommonPast = 3;  // the window of width 4, which models have, has so many columns

// Elements move as bits, in this type, which compilers make vectors of.
template <typename S>
using Moved = std::conditional_t<sizeof(S) == 4, float, uint16_t>;

template <typename S>
S* slot_begin(const CausalConv1dVarlenParams& p, int32_t slot, int64_t first) {
    return static_cast<S*>(p.states) + slot * p.slot_stride + first * p.state_dim_stride + p.first_column * p.column_stride;
}

// This says whether a slot's channels are neighbours, and so are each channel's kCommonPast columns.
bool in_threes(const CausalConv1dVarlenParams& p) {
    return p.width - 1 == kCommonPast && p.column_stride == 1 && p.state_dim_stride == kCommonPast;
}

template <typename S>
void read_state(const CausalConv1dVarlenParams& p, int32_t slot, int64_t first, int64_t channels, S (*rows)[kBlock]) {
    const S* from = slot_begin<S>(p, slot, first);
    if (in_threes(p)) {  // the compiler knows these strides
        for (int64_t c = 0; c < channels; ++c)
            for (int i = 0; i < kCommonPast; ++i) rows[i][c] = from[c * kCommonPast + i];
        return;
    }
    for (int i = 0; i < p.width - 1; ++i, from += p.column_stride) {
        if (p.state_dim_stride == 1)
            std::memcpy(rows[i], from, channels * sizeof(S));
        else
            for (int64_t c = 0; c < channels; ++c) rows[i][c] = from[c * p.state_dim_stride];
    }
}

template <typename S>
void write_state(const CausalConv1dVarlenParams& p, int32_t slot, int64_t first, int64_t channels, const S* const* rows) {
    S* to = slot_begin<S>(p, slot, first);
    if (in_threes(p)) {
        const S *const oldest = rows[0], *const middle = rows[1], *const newest = rows[2];
        for (int64_t c = 0; c < channels; ++c) {
            to[c * kCommonPast] = oldest[c];
            to[c * kCommonPast + 1] = middle[c];
            to[c * kCommonPast + 2] = newest[c];
        }
        return;
    }
    for (int i = 0; i < p.width - 1; ++i, to += p.column_stride) {
        if (p.state_dim_stride == 1)
            std::memcpy(to, rows[i], channels * sizeof(S));
        else
            for (int64_t c = 0; c < channels; ++c) to[c * p.state_dim_stride] = rows[i][c];
    }
}

// This prefetches the window that a sequence will read, or else write, a few lines at a time: slots lie anywhere, and the
// hardware's prefetchers do not see the next one coming.
struct NextState {
    const char* begin = nullptr;     // where the first channel is
    int64_t channel_step, row_step;  // bytes

    NextState(const CausalConv1dVarlenParams& p, int32_t sequence) {
        const int64_t bytes = p.state_dtype == DType::f32 ? 4 : 2;
        const bool threes = in_threes(p);
        channel_step = threes ? kCommonPast * bytes : bytes;
        row_step = threes ? kLine : p.column_stride * bytes;
        if (sequence >= p.sequences || (!threes && p.state_dim_stride != 1)) return;
        const PackedSequence s = packed_sequence(p, sequence);
        const int32_t slot = s.read_slot == kNoSlot ? s.write_slot : s.read_slot;
        if (s.number < 0 || slot == kNoSlot) return;
        with_dtype(p.state_dtype,
                   [&](auto type) { begin = reinterpret_cast<const char*>(slot_begin<decltype(type)>(p, slot, 0)); });
    }
    HIPCONV_SIMD void ask(int64_t channel, int past) const {  // prefetch the window of a line's channels
        for (int i = 0; begin && i < past; ++i) __builtin_prefetch(begin + channel * channel_step + i * row_step, 1);
    }

    static constexpr int64_t kLine = 64;
};

// This converts an input to the type that a state keeps.
template <typename S, typename T>
S history_of(T x) {
    if constexpr (std::is_same_v<S, T>) {
        return x;
    } else {
        const float v = to_float(x);
        return from_float<S>(sizeof(T) > sizeof(S) ? canonical_nan(v) : v);
    }
}

// This writes all states that a sequence leaves: windows over its initial state, in `initial`, and its inputs.
template <typename T, typename S>
void write_states(const CausalConv1dVarlenParams& p, const PackedSequence& s, const Boundaries& boundaries, int64_t first,
                  int64_t channels, const Moved<S> (*initial)[kBlock]) {
    const int past = p.width - 1;
    static constexpr Moved<S> kZeros[kBlock]{};
    S converted[kMaxWidth - 1][std::is_same_v<S, T> ? 1 : kBlock];
    const Moved<S>* rows[kMaxWidth - 1];
    for (int32_t n = 0; n <= boundaries.count; ++n) {
        const StateToWrite to = state_to_write(p, s, boundaries, n);
        if (to.slot == kNoSlot) continue;
        for (int i = 0; i < past; ++i) {
            const int32_t position = to.position - past + i;
            if (position < 0) {
                rows[i] = s.read_slot == kNoSlot ? kZeros : initial[past + position];
                continue;
            }
            const T* x = static_cast<const T*>(p.x) + (int64_t{s.begin} + position) * p.x_token_stride + first;
            if constexpr (std::is_same_v<S, T>) {
                rows[i] = reinterpret_cast<const Moved<S>*>(x);
            } else {
                for (int64_t c = 0; c < channels; ++c) converted[i][c] = history_of<S>(x[c]);
                rows[i] = reinterpret_cast<const Moved<S>*>(converted[i]);
            }
        }
        write_state(p, to.slot, first, channels, rows);
    }
}

template <typename T>
void dead_tokens(const CausalConv1dVarlenParams& p, const Piece& piece, int32_t begin, int32_t end) {
    if (p.dead_tokens == DeadTokens::leave) return;
    const size_t bytes = (piece.end - piece.begin) * sizeof(T);
    for (int64_t t = begin; t < end; ++t) {
        T* to = static_cast<T*>(piece.data) + t * piece.token_stride;
        if (p.dead_tokens == DeadTokens::zero)
            std::memset(to, 0, bytes);
        else
            std::memcpy(to, static_cast<const T*>(p.x) + t * p.x_token_stride + piece.begin, bytes);
    }
}

// This computes outputs from token `begin` to `end`, for channels from `first` on, where `parameters` and `past` begin too.
template <typename T, int kWidth>
void convolve_channels(const CausalConv1dVarlenParams& p, int32_t begin, int32_t end, int64_t first, int64_t channels,
                       const float* parameters, Past<T> past, int absent, const NextState& next) {
    constexpr int kVectors = std::max<int>(1, NextState::kLine / (kLanes * sizeof(T)));
    const int64_t step = p.x_token_stride;
    const T* x = static_cast<const T*>(p.x) + begin * step;
    Piece pieces[3];
    const int count = pieces_of(p, first, first + channels, pieces);
    for (int i = 0; i < count; ++i) {
        const Piece& piece = pieces[i];
        T* out = static_cast<T*>(piece.data) + begin * piece.token_stride - piece.begin;
        int64_t c = piece.begin;
        for (; c + kVectors * kLanes <= piece.end; c += kVectors * kLanes) {
            next.ask(c, kWidth - 1);
            const auto from = [&](int i, int v) { return past.from(c - first).template load<false>(i, v, kLanes); };
            convolve_tokens<T, kWidth, kVectors, false>(x + c, step, out + c, piece.token_stride, parameters + (c - first),
                                                        from, absent, end - begin, kLanes, p.use_silu);
        }
        for (; c < piece.end; c += kLanes) {
            const auto from = [&](int i, int v) { return past.from(c - first).template load<true>(i, v, piece.end - c); };
            convolve_tokens<T, kWidth, 1, true>(x + c, step, out + c, piece.token_stride, parameters + (c - first), from,
                                                absent, end - begin, piece.end - c, p.use_silu);
        }
    }
}

// ---- a sequence's start: tokens that depend on its initial state, and then the states that it leaves ----------------------

template <typename T, typename S, int kWidth>
void begin_channels(const CausalConv1dVarlenParams& p, const PackedSequence& s, int32_t end, const Boundaries& boundaries,
                    int64_t first, int64_t channels, const float* parameters, Buffers<kWidth>& buffers, const NextState& next) {
    const auto initial = reinterpret_cast<Moved<S>(*)[kBlock]>(buffers.state);
    if (s.read_slot != kNoSlot) read_state(p, s.read_slot, first, channels, initial);
    Past<T> past{reinterpret_cast<const T*>(initial), kBlock, nullptr};
    if constexpr (!std::is_same_v<S, T>) {
        for (int i = 0; i < kWidth - 1; ++i)
            for (int64_t c = 0; c < channels; c += kLanes)
                simd::store(buffers.past[i] + c, simd::load(reinterpret_cast<const S*>(initial[i]) + c));
        past.floats = buffers.past[0];
    }
    const int absent = s.read_slot == kNoSlot ? kWidth - 1 : 0;
    convolve_channels<T, kWidth>(p, s.begin, end, first, channels, parameters, past, absent, next);
    write_states<T, S>(p, s, boundaries, first, channels, initial);
}

// This handles the common case in one pass: the state has x's type, and the sequence leaves the final state alone. `kLength` is
// the sequence's length, or kCommonPast for as many tokens or more. The pass leaves less than a line's channels at the end, and
// returns where these begin.
template <typename T, int kLength, bool kThrees>
int64_t begin_lines(const CausalConv1dVarlenParams& p, const PackedSequence& s, int32_t end, const Piece& piece,
                    const float* parameters, const NextState& next) {
    using E = Moved<T>;
    using Row = simd::Row<E>;
    constexpr int kLine = NextState::kLine / sizeof(T);
    constexpr int kVectors = std::min(2, kLine / kLanes);  // AVX2's registers have room for so many
    const int64_t step = p.x_token_stride, column = p.column_stride;
    const T* x = static_cast<const T*>(p.x) + s.begin * step;
    const E* newest = reinterpret_cast<const E*>(static_cast<const T*>(p.x) + (s.end - 1) * step);
    T* out = static_cast<T*>(piece.data) + s.begin * piece.token_stride - piece.begin;
    const E* from = slot_begin<E>(p, s.read_slot, 0);
    E* to = slot_begin<E>(p, s.write_slot, 0);
    const int tokens = kLength < kCommonPast ? kLength : end - s.begin;
    int64_t line = piece.begin;
    for (; line + kLine <= piece.end; line += kLine) {
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
            convolve_tokens<T, kCommonPast + 1, kVectors, false>(
                x + c, step, out + c, piece.token_stride, parameters + (c - piece.begin), past, 0, tokens, kLanes, p.use_silu);
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
int64_t begin_lines(const CausalConv1dVarlenParams& p, const PackedSequence& s, int32_t end, const Piece& piece,
                    const float* parameters, const NextState& next) {
    const bool threes = in_threes(p);
    switch (s.end - s.begin) {
        case 1:
            return threes ? begin_lines<T, 1, true>(p, s, end, piece, parameters, next)
                          : begin_lines<T, 1, false>(p, s, end, piece, parameters, next);
        case 2:
            return threes ? begin_lines<T, 2, true>(p, s, end, piece, parameters, next)
                          : begin_lines<T, 2, false>(p, s, end, piece, parameters, next);
        default:
            return threes ? begin_lines<T, 3, true>(p, s, end, piece, parameters, next)
                          : begin_lines<T, 3, false>(p, s, end, piece, parameters, next);
    }
}

template <typename T, typename S, int kWidth>
void begin_sequence(const CausalConv1dVarlenParams& p, const PackedSequence& s, int32_t end, int64_t first, int64_t channels,
                    Buffers<kWidth>& buffers) {
    const Boundaries boundaries = boundaries_of(p, s);
    const NextState next(p, s.number + 1);
    const bool plain = boundaries.count == 0 && s.read_slot != kNoSlot && s.write_slot != kNoSlot;
    Piece pieces[3];
    const int count = pieces_of(p, first, first + channels, pieces);
    for (int i = 0; i < count; ++i) {
        int64_t c = pieces[i].begin;
        const int64_t last = pieces[i].end;
        if constexpr (std::is_same_v<S, T> && kWidth == kCommonPast + 1)
            if (plain && (in_threes(p) || p.state_dim_stride == 1))
                c = begin_lines<T>(p, s, end, pieces[i], &buffers.parameters[0][c - first], next);
        if (c < last)
            begin_channels<T, S, kWidth>(p, s, end, boundaries, c, last - c, &buffers.parameters[0][c - first], buffers, next);
    }
}

template <typename T, int kWidth>
void convolve_run(const CausalConv1dVarlenParams& p, int32_t run_begin, int64_t first, int64_t channels,
                  Buffers<kWidth>& buffers) {
    constexpr int kPast = kWidth - 1;
    const auto start_of = [&](int32_t b) { return load_index(p.query_start_loc, b); };
    const int32_t run_end = std::min<int64_t>(int64_t{run_begin} + kRun, p.tokens);

    int32_t last = last_begun(start_of, p.sequences, run_begin);
    for (int32_t t = run_begin; t < run_end;) {
        while (last < p.sequences && start_of(last + 1) <= t) ++last;
        const PackedSequence s = sequence_or_none(p, last);
        int32_t end = std::min(s.end, run_end);
        if (s.number < 0) {
            Piece pieces[3];
            const int count = pieces_of(p, first, first + channels, pieces);
            for (int i = 0; i < count; ++i) dead_tokens<T>(p, pieces[i], t, end);
        } else if (t == s.begin) {
            end = std::max(end, std::min(s.end, s.begin + kPast));
            with_dtype(p.state_dtype,
                       [&](auto type) { begin_sequence<T, decltype(type), kWidth>(p, s, end, first, channels, buffers); });
        } else if (t - s.begin < kPast) {  // these tokens belong to the run before
            end = std::min(s.end, s.begin + kPast);
        } else {
            const T* past = static_cast<const T*>(p.x) + (t - kPast) * p.x_token_stride + first;
            convolve_channels<T, kWidth>(p, t, end, first, channels, &buffers.parameters[0][0],
                                         {past, p.x_token_stride, nullptr}, 0, NextState(p, p.sequences));
        }
        t = end;
    }
}

int threads() {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

// This is the number of channels of an item: fewer than kBlock if there would otherwise not be items for all threads.
int64_t block_for(int64_t dim, int64_t runs) {
    int64_t block = kBlock;
    while (block > kLeastBlock && (dim + block - 1) / block * runs < 4 * threads()) block /= 2;
    return block;
}

template <typename T, int kWidth>
void convolve(const CausalConv1dVarlenParams& p) {
    const int64_t runs = (int64_t{p.tokens} + kRun - 1) / kRun;
    const int64_t block = block_for(p.dim, runs);
    const int64_t items = (int64_t{p.dim} + block - 1) / block * runs;
    const bool parallel = static_cast<double>(p.dim) * p.tokens >= kSerialBelow;

#pragma omp parallel if (parallel)
    {
        Buffers<kWidth> buffers;
        int64_t loaded = -1;
#pragma omp for schedule(static)
        for (int64_t item = 0; item < items; ++item) {
            const int64_t first = item / runs * block;
            const int64_t channels = std::min<int64_t>(block, p.dim - first);
            if (loaded != first) load_parameters<kWidth>(p, first, channels, buffers.parameters);
            loaded = first;
            convolve_run<T, kWidth>(p, static_cast<int32_t>(item % runs * kRun), first, channels, buffers);
        }
    }
}

template <typename T, int kWidth>
void with_width(const CausalConv1dVarlenParams& p) {
    if constexpr (kWidth > 1) p.width == kWidth ? convolve<T, kWidth>(p) : with_width<T, kWidth - 1>(p);
}

}  // namespace

const char* causal_conv1d_varlen_simd_refusal(const CausalConv1dVarlenParams& p, const VarlenTile& /*tile*/) {
    static_assert(kMaxWidth == 8, "the text below says so");
    const bool neighbours = p.dim == 1 || (p.x_dim_stride == 1 && (p.k_dim >= 0 || p.out_dim_stride == 1));
    return p.width >= 2 && p.width <= kMaxWidth && neighbours ? nullptr
                                                              : "widths 2 to 8 where x and out have stride 1 along dim";
}

void causal_conv1d_varlen_simd(const CausalConv1dVarlenParams& p, const VarlenTile& /*tile*/, void* /*workspace*/,
                               void* /*stream*/) {
    with_dtype(p.dtype, [&](auto type) { with_width<decltype(type), kMaxWidth>(p); });
}

}  // namespace hipconv
