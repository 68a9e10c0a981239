// The forward's sums in vectors along tokens. A piece of a row is converted into a buffer, from which each tap is an
// unaligned load.
#pragma once

#include <type_traits>

#include "taps.h"

namespace hipconv {

constexpr int kPieceTokens = 512;         // with 1024, loads from the buffer may wait for stores to out a page apart
constexpr int kMostTapsAlongTokens = 16;  // with more, shuffles to transpose rows cost less than loads that no vector aligns

// A piece of a row in floats, from its oldest tap on, and the outputs' place.
template <typename O>
struct RowPiece {
    const float* x;
    O* out;
    const float* parameters;  // the taps, and the bias behind them
    const TokenIds* ids;      // null where all tokens see all taps
    int width, count;
    bool use_silu;
};

// This computes kVectors vectors of outputs from token t of the piece on. Taps that a token does not see (kMasked) are left
// out, not multiplied by zero, because 0 * inf is NaN. Zero taps are as many as there are.
template <int kTaps, int kVectors, bool kMasked, typename O>
HIPCONV_SIMD void convolve_vectors(const RowPiece<O>& piece, int t) {
    const int width = kTaps > 0 ? kTaps : piece.width;
    const int32_t* ids = kMasked ? piece.ids->from(t) : nullptr;
    Floats sums[kVectors];
    for (Floats& sum : sums) sum = simd::broadcast(piece.parameters[width]);
    add_taps_along<kTaps, 1, kMasked>(sums, piece.x + t, piece.parameters, width, ids, width - 1);
    if (piece.use_silu)
        for (Floats& sum : sums) sum = simd::silu(sum);
    for (int v = 0; v < kVectors; ++v) {
        if constexpr (kMasked) sums[v] = ids_at(ids + width - 1 + v * kLanes) != kNobody ? sums[v] : Floats{};
        O* to = piece.out + t + v * kLanes;
        kVectors > 1 ? simd::store(to, sums[v]) : simd::store_some(to, sums[v], piece.count - t);
    }
}

// This computes the piece, and asks for the one that begins at `next`.
template <int kTaps, typename O, typename T>
void convolve_piece(const RowPiece<O>& piece, const T* next) {
    constexpr int kVectors = 4;
    const auto vary = [&](int t, int end) { return piece.ids && !piece.ids->alike(t, end + piece.width - 1); };
    int t = 0;
    for (; t + kVectors * kLanes <= piece.count; t += kVectors * kLanes) {
        for (int v = 0; v < kVectors; ++v) __builtin_prefetch(next + t + v * kLanes);
        vary(t, t + kVectors * kLanes) ? convolve_vectors<kTaps, kVectors, true>(piece, t)
                                       : convolve_vectors<kTaps, kVectors, false>(piece, t);
    }
    for (; t < piece.count; t += kLanes)
        vary(t, std::min(t + kLanes, piece.count)) ? convolve_vectors<kTaps, 1, true>(piece, t)
                                                   : convolve_vectors<kTaps, 1, false>(piece, t);
}

// Loads `count` elements. Where some of a row's exist, they are loaded in a loop of their own: from a choice between
// loads and zeros, g++ 12 makes vectors that load what does not exist.
template <typename T>
void load_elements(float* to, const T* from, int64_t step, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = to_float(from[i * step]);
}

// Loads the width - 1 inputs before token `begin` of a row: tokens, before them the initial state, or else zeros.
template <typename T>
void load_history(float* to, const CausalConv1dInputs& in, int64_t b, int64_t d, int64_t begin) {
    const int64_t past = in.width - 1, before = std::min(begin, past);
    const Sequences& state = in.initial_states;
    if (state.data)
        load_elements(to, &at<const T>(state, b, d, begin), state.seqlen_stride, past - before);
    else
        std::fill_n(to, past - before, 0.0f);
    load_elements(to + past - before, &at<const T>(in.x, b, d, begin - before), in.x.seqlen_stride, before);
}

struct PieceBuffers {
    Buffer<float> x, out, parameters;
    TokenIds ids;

    explicit PieceBuffers(int width)
        : x(kMostTapsAlongTokens + kTokens), out(kTokens), parameters(width + 1), ids(kMostTapsAlongTokens + kTokens) {}

    // The first token's oldest tap goes here; then tokens are aligned.
    float* oldest(int width) const { return x.begin() + round_up(width - 1, kLanes) - (width - 1); }

    template <typename P>
    void load_parameters(const P& p, int64_t d) const {
        float* to = parameters.begin();
        for (int i = 0; i < p.width; ++i)
            to[i] = load_parameter(p.weight, d * p.weight_dim_stride + i * p.weight_width_stride, p.weight_dtype);
        to[p.width] = p.bias ? load_parameter(p.bias, d * p.bias_stride, p.bias_dtype) : 0.0f;
    }

  private:
    static constexpr int kTokens = kPieceTokens + 4 * kLanes;  // whole vectors may be read
};

// This computes `count` outputs of a row whose inputs before the first are in the buffer, but for those left to somebody else.
template <typename T>
void convolve_piece(const T* x, int64_t x_step, T* out, int64_t out_step, int width, int count, const TokenIds* ids,
                    bool use_silu, const PieceBuffers& buffers, const T* next) {
    float *oldest = buffers.oldest(width), *outputs = buffers.out.begin();
    for (int t = 0; t < count; t += kLanes)
        simd::store(oldest + width - 1 + t, simd::load_strided(x + t * x_step, x_step, count - t));
    const auto convolve = [&](auto* to) {
        using O = std::remove_pointer_t<decltype(to)>;
        const RowPiece<O> piece{oldest, to, buffers.parameters.begin(), ids, width, count, use_silu};
        width == 4 ? convolve_piece<4>(piece, next) : convolve_piece<0>(piece, next);
    };
    const bool some = ids && ids->any_left();
    if (out_step == 1 && !some) return convolve(out);
    convolve(outputs);
    for (int t = 0; t < count; t += kLanes) {
        const Floats made = simd::load(outputs + t);
        if (!some || ids->alike(t, std::min(t + kLanes, count) + width - 1)) {
            simd::store_strided(out + t * out_step, out_step, made, count - t);
            continue;
        }
        for (int lane = 0; lane < kLanes && t + lane < count; ++lane)
            if (!ids->left(t + lane + width - 1)) out[(t + lane) * out_step] = from_float<T>(made[lane]);
    }
}

}  // namespace hipconv
