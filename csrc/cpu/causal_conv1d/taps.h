// The arithmetic that the CPU's kernels share: sums over the taps of a width known at run time, for vectors of
// channels.
//
// Every output is bias, then tap after tap from the oldest on, each with a fused multiply-add on one lane of a vector, whatever
// kernel makes it, with whatever neighbours. So layouts, chunks, splits and forms agree bit for bit.
#pragma once

#include <algorithm>
#include <memory>
#include <type_traits>

#include "../tile.h"
#include "causal_conv1d/states_formula.h"
#include "launch/division.h"

namespace hipconv {

using simd::Floats;
using simd::kLanes;

// `size` is cut into equal pieces of this length, which is whole vectors and at most `limit` (whole vectors too).
inline int64_t piece_of(int64_t size, int64_t limit) { return round_up(ceil_of(size, ceil_of(size, limit)), kLanes); }

// A thread's buffer, from a cache line on; a vector that begins within it may be loaded.
template <typename E>
class Buffer {
  public:
    explicit Buffer(int64_t size) : memory_(new char[size * sizeof(E) + 2 * kLine]) {
        begin_ = reinterpret_cast<E*>(round_up(reinterpret_cast<uintptr_t>(memory_.get()), kLine));
    }
    E* begin() const { return begin_; }

  private:
    static constexpr int64_t kLine = 64;
    std::unique_ptr<char[]> memory_;
    E* begin_;
};

// ---- parameters ------------------------------------------------------------------------------------------------------------

// Parameters of a block of channels: rows of floats, one for each tap, and the bias behind them.
struct Parameters {
    const float* begin;
    int64_t step;
    int width;

    HIPCONV_SIMD Floats tap(int i, int64_t c) const { return simd::load(begin + i * step + c); }
    HIPCONV_SIMD Floats bias(int64_t c) const { return tap(width, c); }
};

// Loads parameters of any kind of tensors: (width + 1) rows of `step` floats, for channels from d on.
inline void load_tap_rows(float* to, int64_t step, const void* from, int64_t dim_stride, int64_t width_stride, DType dtype,
                          int64_t d, int64_t channels, int width) {
    with_dtype(dtype, [&](auto type) {
        const auto* begin = static_cast<const decltype(type)*>(from) + d * dim_stride;
        simd::load_tile(to, step, begin, dim_stride, width_stride, static_cast<int>(channels), width);
    });
    for (int64_t i = 0; dtype == DType::f32 && i < width * step; ++i) to[i] = canonical_nan(to[i]);
}

template <typename P>
Parameters load_parameters(float* to, int64_t step, const P& p, int64_t d, int64_t channels) {
    const auto pointer = [](const auto& data) -> const void* {
        if constexpr (std::is_pointer_v<std::decay_t<decltype(data)>>)
            return data;
        else
            return data.template as<const void>();
    };
    load_tap_rows(to, step, pointer(p.weight), p.weight_dim_stride, p.weight_width_stride, p.weight_dtype, d, channels,
                  p.width);
    if (p.bias)
        load_tap_rows(to + p.width * step, step, pointer(p.bias), p.bias_stride, 1, p.bias_dtype, d, channels, 1);
    else
        std::fill_n(to + p.width * step, step, 0.0f);
    return {to, step, p.width};
}

// ---- sums over taps --------------------------------------------------------------------------------------------------------

constexpr int kBlockTokens = 8;  // whose sums are made at once: so many chains of operations hide their latency

// Rows of neighbouring channels, one for each token.
template <typename R>
struct Rows {
    R* begin;
    int64_t step;

    HIPCONV_SIMD R* at(int64_t t, int64_t c) const { return begin + t * step + c; }
    HIPCONV_SIMD Floats load(int64_t t, int64_t c) const { return simd::load(at(t, c)); }
    Rows from(int64_t token) const { return {begin + token * step, step}; }
};

// Sum j takes kTaps taps, weighted by rows first, first + sign … of the parameters, of the rows from `begin` + j on. Each row
// is loaded once.
template <int kTaps, int kSign, typename R>
HIPCONV_SIMD void add_taps(Floats (&sums)[kBlockTokens], Rows<R> rows, const Parameters& parameters, int first, int64_t c) {
    Floats weight[kTaps];
    for (int i = 0; i < kTaps; ++i) weight[i] = parameters.tap(first + kSign * i, c);
#pragma GCC unroll 16
    for (int r = 0; r < kBlockTokens + kTaps - 1; ++r) {
        const Floats v = rows.load(r, c);
#pragma GCC unroll 4
        for (int i = kTaps - 1; i >= 0; --i)
            if (r - i >= 0 && r - i < kBlockTokens) sums[r - i] = sums[r - i] + weight[i] * v;
    }
}

// Sum j takes all taps of the rows from `begin` + j on, with the oldest tap first (kSign 1), or the newest (-1).
template <int kSign, typename R>
HIPCONV_SIMD void add_all_taps(Floats (&sums)[kBlockTokens], Rows<R> rows, const Parameters& parameters, int64_t c) {
    const int width = parameters.width, first = kSign > 0 ? 0 : width - 1;
    int i = 0;
    for (; i + 4 <= width; i += 4) add_taps<4, kSign>(sums, rows.from(i), parameters, first + kSign * i, c);
    switch (width - i) {
        case 1:
            return add_taps<1, kSign>(sums, rows.from(i), parameters, first + kSign * i, c);
        case 2:
            return add_taps<2, kSign>(sums, rows.from(i), parameters, first + kSign * i, c);
        case 3:
            return add_taps<3, kSign>(sums, rows.from(i), parameters, first + kSign * i, c);
    }
}

// The same for one token and kVectors vectors, where the token sees only the rows whose id is its own. What it does not
// see is left out, not multiplied by zero, because 0 * inf is NaN.
template <int kSign, int kVectors, typename R>
HIPCONV_SIMD void add_visible_taps(Floats (&sums)[kVectors], Rows<R> rows, const Parameters& parameters, const int32_t* ids,
                                   int32_t id, int64_t c) {
    for (int i = 0; i < parameters.width; ++i) {
        if (ids[i] != id) continue;
        for (int v = 0; v < kVectors; ++v)
            sums[v] = sums[v] +
                      parameters.tap(kSign > 0 ? i : parameters.width - 1 - i, c + v * kLanes) * rows.load(i, c + v * kLanes);
    }
}

HIPCONV_SIMD simd::Integers ids_at(const int32_t* ids) { return simd::read<simd::Integers>(ids); }

// The same for kVectors vectors along tokens: the oldest taps lie from `x` on, and so do ids if they are told
// (kMasked); a token's own id is `own` behind its oldest tap's. Zero taps are as many as there are.
template <int kTaps, int kSign, bool kMasked, int kVectors>
HIPCONV_SIMD void add_taps_along(Floats (&sums)[kVectors], const float* x, const float* taps, int any_width, const int32_t* ids,
                                 int own) {
    const int width = kTaps > 0 ? kTaps : any_width;
    for (int i = 0; i < width; ++i) {
        const Floats weight = simd::broadcast(taps[kSign > 0 ? i : width - 1 - i]);
        for (int v = 0; v < kVectors; ++v) {
            const Floats longer = sums[v] + weight * simd::load(x + i + v * kLanes);
            if constexpr (kMasked)
                sums[v] = ids_at(ids + i + v * kLanes) == ids_at(ids + own + v * kLanes) ? longer : sums[v];
            else
                sums[v] = longer;
        }
    }
}

// ---- sequence ids ----------------------------------------------------------------------------------------------------------

constexpr int32_t kNobody = -1;  // the id of tokens that do not exist, and of padding

// Ids of some tokens in a row: a token sees those with its own id.
class TokenIds {
  public:
    explicit TokenIds(int64_t tokens) : id_(tokens), alike_(tokens), left_(tokens) {}

    // Then `of(t)` is the id of token first + t of row b.
    void load(const CausalConv1dInputs& in, int64_t b, int64_t first, int tokens) {
        for (int t = 0; t < tokens; ++t) {
            const int64_t token = first + t;
            const bool exists = token < in.seqlen && (token >= 0 || in.initial_states.data);
            const int32_t id = !exists ? kNobody : in.seq_idx.data ? sequence_of(in, b, token) : 0;
            set(t, std::max(id, kNobody), false);
        }
    }
    // Tokens may be left to somebody else: others see them, but their own outputs are not made here.
    void set(int t, int32_t id, bool left) {
        id_.begin()[t] = id;
        left_.begin()[t] = left;
        alike_.begin()[t] = t > 0 && id_.begin()[t - 1] == id ? alike_.begin()[t - 1] + 1 : 1;
        any_left_ = (t > 0 && any_left_) || left;
    }
    const int32_t* from(int t) const { return id_.begin() + t; }
    int32_t of(int t) const { return id_.begin()[t]; }
    bool left(int t) const { return left_.begin()[t]; }
    bool any_left() const { return any_left_; }
    // Tells whether the tokens from t to end - 1 are of one sequence.
    bool alike(int t, int end) const { return alike_.begin()[end - 1] >= end - t && of(t) != kNobody; }

  private:
    Buffer<int32_t> id_, alike_;
    Buffer<bool> left_;
    bool any_left_ = false;
};

}  // namespace hipconv
