// The forward's sums in vectors along channels: rows of channels as memory has them, or tiles of floats.
#pragma once

#include <cstring>
#include <type_traits>

#include "taps.h"

namespace hipconv {

// This calls make(vectors, c) for all channels, several vectors at a time where there are so many.
template <typename Make>
HIPCONV_SIMD void for_vectors(int64_t channels, const Make& make) {
    constexpr int kVectors = 4;
    int64_t c = 0;
    for (; c + kVectors * kLanes <= channels; c += kVectors * kLanes) make(std::integral_constant<int, kVectors>{}, c);
    for (; c < channels; c += kLanes) make(std::integral_constant<int, 1>{}, c);
}

// This computes the outputs of tokens 0 to tokens - 1, which are rows of `out`; `x` has the inputs from the first one's oldest
// tap on, and so has `ids`.
template <typename R, typename O>
void convolve_rows(Rows<R> x, Rows<O> out, const Parameters& parameters, const TokenIds& ids, int tokens, int64_t channels,
                   bool use_silu) {
    const int past = parameters.width - 1;
    const auto last = std::max<int64_t>(channels - kLanes, 0);
    for (int next = 0; next < tokens; next += kBlockTokens) {
        const int t = std::max(0, std::min(next, tokens - kBlockTokens));  // the last block makes some again, not fewer
        const int end = std::min(t + kBlockTokens, tokens);
        if (end - t == kBlockTokens && ids.alike(t, end + past)) {
            for (int64_t after = 0; after < channels; after += kLanes) {
                const int64_t c = std::min(after, last);
                Floats sums[kBlockTokens];
                for (Floats& sum : sums) sum = parameters.bias(c);
                add_all_taps<1>(sums, x.from(t), parameters, c);
                if (use_silu)
                    for (Floats& sum : sums) sum = simd::silu(sum);
                for (int j = 0; j < kBlockTokens; ++j) simd::store(out.at(t + j, c), sums[j]);
            }
            continue;
        }
        for (int token = next; token < end; ++token) {
            const int32_t id = ids.of(token + past);
            if (ids.left(token + past)) continue;
            const auto make = [&](auto vectors, int64_t c) __attribute__((always_inline)) {
                constexpr int kVectors = decltype(vectors)::value;
                Floats sums[kVectors];
                for (int v = 0; v < kVectors; ++v) sums[v] = parameters.bias(c + v * kLanes);
                if (id != kNobody) add_visible_taps<1>(sums, x.from(token), parameters, ids.from(token), id, c);
                for (int v = 0; v < kVectors; ++v) {
                    const Floats value = use_silu ? simd::silu(sums[v]) : sums[v];
                    simd::store(out.at(token, c + v * kLanes), id == kNobody ? Floats{} : value);
                }
            };
            constexpr int kVectors = 4;
            int64_t c = 0;
            for (; c + kVectors * kLanes <= channels; c += kVectors * kLanes) make(std::integral_constant<int, kVectors>{}, c);
            for (; c < channels; c += kLanes) make(std::integral_constant<int, 1>{}, std::min(c, last));
        }
    }
}

// Channel 0 has token 0 here.
template <typename T>
struct Plane {
    T* begin;
    int64_t dim_stride, token_stride;

    Plane from(int64_t channel, int64_t token) const {
        return {begin + channel * dim_stride + token * token_stride, dim_stride, token_stride};
    }
    Rows<T> rows() const { return {begin, token_stride}; }
};

template <typename T>
bool dim_is_nearer(const Plane<T>& plane) {
    return std::abs(plane.dim_stride) < std::abs(plane.token_stride);
}

template <typename T>
void load_tile(float* to, int64_t step, const Plane<T>& from, int64_t channels, int tokens) {
    simd::load_tile(to, step, from.begin, from.dim_stride, from.token_stride, static_cast<int>(channels), tokens);
}

template <typename T>
void store_tile(const Plane<T>& to, const float* from, int64_t step, int64_t channels, int tokens) {
    simd::store_tile(to.begin, to.dim_stride, to.token_stride, from, step, static_cast<int>(channels), tokens);
}

// Elements that move as bits.
template <typename T>
auto moved(const Plane<T>& plane) {
    using E = std::conditional_t<sizeof(T) == 4, float, simd::Bits>;
    using Kept = std::conditional_t<std::is_const_v<T>, const E, E>;
    return Plane<Kept>{reinterpret_cast<Kept*>(plane.begin), plane.dim_stride, plane.token_stride};
}

// Moves elements, the oldest tokens first: planes may overlap if each token comes from one that is not older.
template <typename S>
void move(const Plane<S>& to, const Plane<const S>& from, int64_t channels, int tokens, float* tile) {
    if (to.dim_stride == 1 && from.dim_stride == 1) {
        for (int t = 0; t < tokens; ++t) std::memmove(to.rows().at(t, 0), from.rows().at(t, 0), channels * sizeof(S));
        return;
    }
    const int64_t step = round_up(channels, kLanes);
    load_tile(tile, step, moved(from), channels, tokens);
    store_tile(moved(to), tile, step, channels, tokens);
}

// This cuts work. Memory should be read and written in long stretches, whichever axis they lie along: prefetchers follow
// these.
struct Cut {
    int64_t channels;
    int tokens;
};

inline Cut cut_of(int width, int64_t dim, bool across) {
    const bool wide = width > 8;
    const int tokens = static_cast<int>(round_up(std::max(across ? 16 : 128, wide ? 2 * (width - 1) : 0), kBlockTokens));
    return {piece_of(dim, wide ? 32 : across ? 2048 : 128), tokens};
}

struct Tiles {
    Buffer<float> x, out;

    Tiles(const Cut& cut, int width) : x(cut.channels * (width - 1 + cut.tokens)), out(cut.channels * cut.tokens) {}
};

// This computes the outputs of `tokens` tokens from x's token 0 on, of which x has `before` more before them. What comes before
// these, history(to, step, count), if there is any, writes to a tile.
template <typename T, typename History>
void convolve_block(const Plane<const T>& x, const Plane<T>& out, const Parameters& parameters, const TokenIds& ids, int before,
                    int tokens, int64_t channels, bool use_silu, const Tiles& tiles, bool has_history, const History& history) {
    const int width = parameters.width, past = width - 1;
    const int64_t step = round_up(channels, kLanes);
    const auto convolve = [&](auto from, auto to) { convolve_rows(from, to, parameters, ids, tokens, channels, use_silu); };
    const bool out_in_place = out.dim_stride == 1 && channels >= kLanes;
    const bool pays = width <= 8 || sizeof(T) == 4;  // each input is converted once a tap and block of tokens, or once for all
    if (out_in_place && x.dim_stride == 1 && pays && !has_history) return convolve(x.from(0, -past).rows(), out.rows());
    const int missing = past - before;
    load_tile(tiles.x.begin() + missing * step, step, x.from(0, -before), channels, before + tokens);
    if (has_history) history(tiles.x.begin(), step, missing);
    const Rows<const float> rows{tiles.x.begin(), step};
    if (out_in_place) return convolve(rows, out.rows());
    simd::ask_tile(out.begin, out.dim_stride, out.token_stride, static_cast<int>(channels), tokens);
    const Rows<float> made{tiles.out.begin(), step};
    convolve(rows, made);
    for (int t = 0, end; t < tokens; t = end + 1) {  // between tokens that are left to somebody else
        for (end = t; end < tokens && !ids.left(end + past);) ++end;
        store_tile(out.from(0, t), made.at(t, 0), step, channels, end - t);
    }
}

}  // namespace hipconv
