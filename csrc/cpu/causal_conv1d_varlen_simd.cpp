// Causal conv1d over packed sequences for host memory, vectorised along channels.
//
// As on GPUs (csrc/kernels/causal_conv1d_varlen_tile.cu), the packed tokens are cut into runs, whatever sequences they hold; the run with
// a sequence's first token makes all outputs that depend on the initial state, and then writes the states. Every output is the same
// chain of operations on one lane of a vector: chunks and splits agree bit for bit.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "causal_conv1d_cpu.h"
#include "causal_conv1d_varlen_cpu.h"
#include "causal_conv1d_varlen_schedule.h"
#include "simd.h"

namespace hipconv {
namespace {

using simd::Floats;
using simd::kLanes;

constexpr int kMaxWidth = 8;
constexpr int kBlock = 512;  // channels: their parameters and initial state stay in the first-level cache
constexpr int kRun = 8;      // tokens, at least kMaxWidth - 1: rows read at once, for the prefetchers to follow

template <int kWidth>
struct BlockBuffers {
    alignas(64) float parameters[kWidth + 1][kBlock];  // element `width` is the bias
    alignas(64) float past[kWidth][kBlock];            // the width - 1 inputs before a sequence
    alignas(64) char state[kWidth * kBlock * sizeof(float)];  // the same, of the pool's type
};

template <int kWidth>
void load_parameters(const CausalConv1dVarlenParams& p, int64_t first, int64_t channels, float (&to)[kWidth + 1][kBlock]) {
    for (int64_t c = 0; c < channels; ++c) {
        for (int i = 0; i < kWidth; ++i)
            to[i][c] = load_parameter(p.weight, (first + c) * p.weight_dim_stride + i * p.weight_width_stride, p.weight_dtype);
        to[kWidth][c] = p.bias ? load_parameter(p.bias, (first + c) * p.bias_stride, p.bias_dtype) : 0.0f;
    }
}

// The width - 1 inputs before the first token: of x's type, or converted.
template <typename T>
struct Past {
    const T* elements;
    int64_t step;
    const float* floats;  // kBlock apart; null: `elements` hold them

    Past from(int64_t channel) const { return {elements + channel, step, floats ? floats + channel : floats}; }
};

// `tokens` outputs for kVectors * kLanes neighbouring channels; kEdge: for `channels` of them. Of the inputs before the first token
// the first `absent` do not exist.
template <typename T, int kWidth, int kVectors, bool kEdge>
HIPCONV_SIMD void convolve_tokens(const T* x, int64_t x_step, T* out, int64_t out_step, const float* parameters, Past<T> past,
                                  int absent, int tokens, int64_t channels, bool use_silu) {
    constexpr int kPast = kWidth - 1;
    const auto load = [&](const T* from, int v) {
        return kEdge ? simd::load_some(from, channels) : simd::load(from + v * kLanes);
    };
    Floats window[kVectors][kWidth];
    for (int i = 0; i < kPast; ++i)
        for (int v = 0; v < kVectors; ++v)
            window[v][i] =
                past.floats ? simd::load(past.floats + i * kBlock + v * kLanes) : load(past.elements + i * past.step, v);
    for (int t = 0; t < tokens; ++t) {
        for (int v = 0; v < kVectors; ++v) {
            window[v][kPast] = load(x + t * x_step, v);
            Floats sum = simd::load(parameters + kWidth * kBlock + v * kLanes);
            for (int i = 0; i < kWidth; ++i)
                if (t + i >= absent) sum = sum + simd::load(parameters + i * kBlock + v * kLanes) * window[v][i];
            for (int i = 0; i < kPast; ++i) window[v][i] = window[v][i + 1];
            if (use_silu) sum = simd::silu(sum);
            T* to = out + t * out_step + v * kLanes;
            kEdge ? simd::store_some(to, sum, channels) : simd::store(to, sum);
        }
    }
}

// Neighbouring channels that one output tensor holds.
struct Piece {
    int64_t begin, end;
    void* data;  // of channel `begin`, token 0
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

template <typename F>
void with_element_type(DType dtype, F f) {
    switch (dtype) {
        case DType::f32:
            return f(float{});
        case DType::f16:
            return f(f16{});
        case DType::bf16:
            return f(bf16{});
    }
}

// ---- states: rows of channels here, in the pool any strides -----------------------------------------------------------------

constexpr int kCommonPast = 3;  // columns of the window of width 4, which models have

// What an element is moved as: its bits, of a type that compilers make vectors of.
template <typename S>
using Moved = std::conditional_t<sizeof(S) == 4, float, uint16_t>;

template <typename S>
S* slot_begin(const CausalConv1dVarlenParams& p, int32_t slot, int64_t first) {
    return static_cast<S*>(p.states) + slot * p.slot_stride + first * p.state_dim_stride + p.first_column * p.column_stride;
}

// Whether a slot's channels are neighbours, and each one's kCommonPast columns are.
bool in_threes(const CausalConv1dVarlenParams& p) {
    return p.width - 1 == kCommonPast && p.column_stride == 1 && p.state_dim_stride == kCommonPast;
}

template <typename S>
void read_state(const CausalConv1dVarlenParams& p, int32_t slot, int64_t first, int64_t channels, S (*rows)[kBlock]) {
    const S* from = slot_begin<S>(p, slot, first);
    if (in_threes(p)) {  // strides that the compiler knows
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

// The window that a sequence will read, to be asked for a few lines at a time: slots lie anywhere, and the hardware's prefetchers do
// not see the next one coming.
struct NextState {
    const char* begin = nullptr;  // of the block's first channel
    int64_t channel_step, row_step;  // bytes

    NextState(const CausalConv1dVarlenParams& p, int32_t sequence, int64_t first) {
        const int64_t bytes = p.state_dtype == DType::f32 ? 4 : 2;
        const bool threes = in_threes(p);
        channel_step = threes ? kCommonPast * bytes : bytes;
        row_step = threes ? kLine : p.column_stride * bytes;
        if (sequence >= p.sequences || (!threes && p.state_dim_stride != 1)) return;
        const PackedSequence s = packed_sequence(p, sequence);
        if (s.number < 0 || s.read_slot == kNoSlot) return;
        with_element_type(p.state_dtype, [&](auto type) {
            begin = reinterpret_cast<const char*>(slot_begin<decltype(type)>(p, s.read_slot, first));
        });
    }
    HIPCONV_SIMD void ask(int64_t channel, int past) const {  // for the window of a line's channels
        for (int i = 0; begin && i < past; ++i) __builtin_prefetch(begin + channel * channel_step + i * row_step, 1);
    }

    static constexpr int64_t kLine = 64;
};

// An input as a state keeps it.
template <typename S, typename T>
S history_of(T x) {
    if constexpr (std::is_same_v<S, T>) {
        return x;
    } else {
        const float v = to_float(x);
        return from_float<S>(sizeof(T) > sizeof(S) ? canonical_nan(v) : v);
    }
}

// All states that a sequence leaves: windows over its initial state, in `initial`, and its inputs.
template <typename T, typename S>
void write_states(const CausalConv1dVarlenParams& p, const PackedSequence& s, int64_t first, int64_t channels,
                  const Moved<S> (*initial)[kBlock]) {
    const int past = p.width - 1;
    static constexpr Moved<S> kZeros[kBlock]{};
    S converted[kMaxWidth - 1][std::is_same_v<S, T> ? 1 : kBlock];
    const Moved<S>* rows[kMaxWidth - 1];
    const Boundaries boundaries = boundaries_of(p, s);
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

template <typename T, int kWidth>
void convolve_run(const CausalConv1dVarlenParams& p, int32_t run_begin, int64_t first, int64_t channels, BlockBuffers<kWidth>& buffers) {
    constexpr int kPast = kWidth - 1;
    constexpr int kVectors = std::max<int>(1, 64 / (kLanes * sizeof(T)));  // a cache line
    const auto start_of = [&](int32_t b) { return load_index(p.query_start_loc, b); };
    const int32_t run_end = std::min<int64_t>(int64_t{run_begin} + kRun, p.tokens);
    const bool same_type = p.state_dtype == p.dtype;
    Piece pieces[3];
    const int count = pieces_of(p, first, first + channels, pieces);

    int32_t last = last_begun(start_of, p.sequences, run_begin);
    for (int32_t t = run_begin; t < run_end;) {
        while (last < p.sequences && start_of(last + 1) <= t) ++last;
        const PackedSequence s = sequence_or_none(p, last);
        int32_t end = std::min(s.end, run_end);
        if (s.number < 0) {
            for (int i = 0; i < count; ++i) dead_tokens<T>(p, pieces[i], t, end);
            t = end;
            continue;
        }
        const bool begins = t == s.begin;
        if (!begins && t - s.begin < kPast) {  // these belong to the run before
            t = std::min(s.end, s.begin + kPast);
            continue;
        }
        if (begins) {
            if (s.begin + kPast > end) end = std::min(s.end, s.begin + kPast);
            if (s.read_slot != kNoSlot)
                with_element_type(p.state_dtype, [&](auto type) {
                    using S = decltype(type);
                    const auto rows = reinterpret_cast<Moved<S>(*)[kBlock]>(buffers.state);
                    read_state(p, s.read_slot, first, channels, rows);
                    for (int i = 0; i < kPast && !std::is_same_v<S, T>; ++i) {
                        const S* row = reinterpret_cast<const S*>(rows[i]);
                        for (int64_t c = 0; c < channels; c += kLanes) simd::store(buffers.past[i] + c, simd::load(row + c));
                    }
                });
        }
        const NextState next(p, begins ? last + 1 : p.sequences, first);
        const int absent = begins && s.read_slot == kNoSlot ? kPast : 0;
        for (int i = 0; i < count; ++i) {
            const Piece& piece = pieces[i];
            const T* x = static_cast<const T*>(p.x) + t * p.x_token_stride + piece.begin;
            T* out = static_cast<T*>(piece.data) + t * piece.token_stride;
            const float* parameters = &buffers.parameters[0][piece.begin - first];
            Past<T> past{x - kPast * p.x_token_stride, p.x_token_stride, nullptr};
            if (begins && same_type)
                past = {reinterpret_cast<const T*>(buffers.state) + (piece.begin - first), kBlock, nullptr};
            else if (begins)
                past.floats = &buffers.past[0][piece.begin - first];
            const int64_t size = piece.end - piece.begin;
            int64_t c = 0;
            for (; c + kVectors * kLanes <= size; c += kVectors * kLanes) {
                next.ask(piece.begin - first + c, kPast);
                convolve_tokens<T, kWidth, kVectors, false>(x + c, p.x_token_stride, out + c, piece.token_stride, parameters + c,
                                                            past.from(c), absent, end - t, size, p.use_silu);
            }
            for (; c < size; c += kLanes)
                convolve_tokens<T, kWidth, 1, true>(x + c, p.x_token_stride, out + c, piece.token_stride, parameters + c,
                                                    past.from(c), absent, end - t, size - c, p.use_silu);
        }
        if (begins)
            with_element_type(p.state_dtype, [&](auto type) {
                using S = decltype(type);
                write_states<T, S>(p, s, first, channels, reinterpret_cast<const Moved<S>(*)[kBlock]>(buffers.state));
            });
        t = end;
    }
}

template <typename T, int kWidth>
void convolve(const CausalConv1dVarlenParams& p) {
    const int64_t runs = (int64_t{p.tokens} + kRun - 1) / kRun;
    const int64_t items = (int64_t{p.dim} + kBlock - 1) / kBlock * runs;
    const bool parallel = static_cast<double>(p.dim) * p.tokens >= kSerialBelow;

#pragma omp parallel if (parallel)
    {
        BlockBuffers<kWidth> buffers;
        int64_t loaded = -1;
#pragma omp for schedule(static)
        for (int64_t item = 0; item < items; ++item) {
            const int64_t first = item / runs * kBlock;
            const int64_t channels = std::min<int64_t>(kBlock, p.dim - first);
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

bool causal_conv1d_varlen_simd_serves(const CausalConv1dVarlenParams& p) {
    return p.width >= 2 && p.width <= kMaxWidth && (p.dim == 1 || (p.x_dim_stride == 1 && (p.k_dim >= 0 || p.out_dim_stride == 1)));
}

void causal_conv1d_varlen_simd(const CausalConv1dVarlenParams& p) {
    with_element_type(p.dtype, [&](auto type) { with_width<decltype(type), kMaxWidth>(p); });
}

}  // namespace hipconv
