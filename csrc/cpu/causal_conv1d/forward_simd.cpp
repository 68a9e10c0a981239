// This is the causal conv1d forward for host memory, vectorised: for any strides, any width, states and packed sequences.
//
// Where tokens are neighbours in memory, and taps few, vectors lie along tokens; else they lie along channels. What does not lie
// so goes through tiles of floats.
#include "causal_conv1d/forward_formula.h"
#include "forward.h"
#include "serial.h"
#include "taps.h"

namespace hipconv {
namespace {

bool is_parallel(const CausalConv1dFwdParams& p) { return static_cast<double>(p.batch) * p.dim * p.seqlen >= kSerialBelow; }

// ---- along tokens: a piece of a row is converted into a buffer, from which each tap is an unaligned load --------------------

constexpr int kTokens = 512;  // in a piece; with 1024, loads from the buffer may wait for stores to out a page apart

// A piece of a row in floats, from its oldest tap on, and the outputs' place.
template <typename O>
struct Piece {
    const float* x;
    O* out;
    const float* parameters;  // the taps, and the bias behind them
    const TokenIds* ids;      // null where all tokens see all taps
    int width, count;
    bool use_silu;
};

// This computes kVectors vectors of outputs from token t of the piece on. Taps that a token does not see (kMasked) are left out,
// not multiplied by zero, because 0 * inf is NaN. Zero taps are as many as there are.
template <int kTaps, int kVectors, bool kMasked, typename O>
HIPCONV_SIMD void convolve_vectors(const Piece<O>& piece, int t) {
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
void convolve_piece(const Piece<O>& piece, const T* next) {
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

struct TokenBuffers {
    Buffer<float> x, out, parameters;
    TokenIds ids;

    TokenBuffers(int width, int tokens) : x(width - 1 + tokens), out(tokens), parameters(width + 1), ids(width - 1 + tokens) {}
};

template <typename T>
void convolve_row(const CausalConv1dFwdParams& p, int64_t b, int64_t d, int64_t begin, int count, const TokenIds* ids,
                  const TokenBuffers& buffers, const T* next) {
    const int past = p.width - 1;
    const int64_t x_step = p.x.seqlen_stride, out_step = p.out.seqlen_stride;
    const int64_t aligned = round_up(past, kLanes) - past;  // then the tokens are
    float* oldest = buffers.x.begin() + aligned;
    const T* x = &at<const T>(p.x, b, d, begin);
    T* out = &at<T>(p.out, b, d, begin);
    for (int64_t t = begin - past; t < begin; ++t) {
        const bool exists = t >= 0 || p.initial_states.data;
        oldest[t - begin + past] = exists ? input_at<T, float>(p, b, d, t) : 0.0f;
    }
    for (int t = 0; t < count; t += kLanes)
        simd::store(oldest + past + t, simd::load_strided(x + t * x_step, x_step, count - t));
    const auto convolve = [&](auto* to) {
        const Piece<std::remove_pointer_t<decltype(to)>> piece{oldest, to,        buffers.parameters.begin(), ids, p.width,
                                                               count,  p.use_silu};
        p.width == 4 ? convolve_piece<4>(piece, next) : convolve_piece<0>(piece, next);
    };
    if (out_step == 1) return convolve(out);
    float* outputs = buffers.out.begin();
    convolve(outputs);
    for (int t = 0; t < count; t += kLanes)
        simd::store_strided(out + t * out_step, out_step, simd::load(outputs + t), count - t);
}

template <typename T>
void along_tokens(const CausalConv1dFwdParams& p) {
    const int past = p.width - 1;
    const int64_t length = piece_of(p.seqlen, kTokens), pieces = ceil_div(p.seqlen, length);
    const int64_t items = p.batch * p.dim * pieces;
    const bool has_ids = p.seq_idx.data;  // then channels follow one another, and use a piece's ids in turn
#pragma omp parallel if (is_parallel(p))
    {
        TokenBuffers buffers(p.width, kTokens + 2 * kLanes);
        int64_t loaded = -1, loaded_ids = -1;
#pragma omp for schedule(static)
        for (int64_t item = 0; item < items; ++item) {
            const int64_t b = item / (p.dim * pieces);
            const int64_t d = has_ids ? item % p.dim : item / pieces % p.dim;
            const int64_t begin = (has_ids ? item / p.dim % pieces : item % pieces) * length;
            const int count = static_cast<int>(std::min(length, p.seqlen - begin));
            if (loaded != d) {
                float* to = buffers.parameters.begin();
                for (int i = 0; i < p.width; ++i) to[i] = weight_at<float>(p, d, i);
                to[p.width] = p.bias ? load_parameter(p.bias, d * p.bias_stride, p.bias_dtype) : 0.0f;
            }
            loaded = d;
            const bool varies = has_ids || (begin < past && !p.initial_states.data);
            const int64_t whose = has_ids ? b * pieces + begin / length : begin;
            if (varies && loaded_ids != whose) {
                buffers.ids.load(p, b, begin - past, past + count);
                loaded_ids = whose;
            }
            const T* next = has_ids ? &at<const T>(p.x, b, d + 1, begin) : &at<const T>(p.x, b, d, begin + count);
            convolve_row(p, b, d, begin, count, varies ? &buffers.ids : nullptr, buffers, next);
        }
    }
}

// ---- along channels: some tokens of a block of channels ---------------------------------------------------------------------

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
            const auto make = [&](auto vectors, int64_t c) __attribute__((always_inline)) {
                constexpr int kVectors = decltype(vectors)::value;
                Floats sums[kVectors];
                for (int v = 0; v < kVectors; ++v) sums[v] = parameters.bias(c + v * kLanes);
                add_visible_taps<1>(sums, x.from(token), parameters, ids.from(token), id, c);
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

// How the work is cut, and what of it goes through tiles of floats.
struct Cut {
    bool x_in_place, out_in_place;  // else in tiles
    int64_t channels;
    int tokens;
};

Cut cut_of(const CausalConv1dFwdParams& p) {
    const bool wide = p.width > 8;
    const int past = p.width - 1;
    const bool out_in_place = p.out.dim_stride == 1 && p.dim >= kLanes;
    const bool x_in_place = out_in_place && p.x.dim_stride == 1 && !(wide && element_bytes(p.dtype) == 2);
    // Memory should be read and written in long stretches, whichever axis they lie along: prefetchers follow these.
    const bool across = dim_is_inner(p.x) && dim_is_inner(p.out);
    const int64_t channels = piece_of(p.dim, wide ? 32 : across ? 1024 : 128);
    const int tokens = static_cast<int>(round_up(std::max(across ? 16 : 128, wide ? 2 * past : 0), kBlockTokens));
    return {x_in_place, out_in_place, channels, tokens};
}

template <typename T>
void along_channels(const CausalConv1dFwdParams& p) {
    const Cut cut = cut_of(p);
    const int past = p.width - 1;
    const int64_t runs = ceil_div(p.seqlen, cut.tokens), block = cut.channels;
    const int64_t items = ceil_div(p.dim, block) * p.batch * runs;
#pragma omp parallel if (is_parallel(p))
    {
        const Buffer<float> parameter_rows(round_up(block, kLanes) * (p.width + 1));
        const Buffer<float> x_tile(block * (past + cut.tokens)), out_tile(block * cut.tokens);
        TokenIds ids(past + cut.tokens);
        Parameters parameters{};
        int64_t loaded = -1;
#pragma omp for schedule(static)
        for (int64_t item = 0; item < items; ++item) {
            const int64_t d = item / (p.batch * runs) * block, b = item / runs % p.batch;
            const int64_t begin = item % runs * cut.tokens;
            const int64_t channels = std::min(block, p.dim - d);
            const int tokens = static_cast<int>(std::min<int64_t>(cut.tokens, p.seqlen - begin));
            if (loaded != d) parameters = load_parameters(parameter_rows.begin(), block, p, d, channels);
            loaded = d;
            ids.load(p, b, begin - past, past + tokens);
            const bool continues = begin < past && p.initial_states.data;
            const T* x = &at<const T>(p.x, b, d, begin);
            T* out = &at<T>(p.out, b, d, begin);
            const auto convolve = [&](auto from, auto to) {
                convolve_rows(from, to, parameters, ids, tokens, channels, p.use_silu);
            };
            if (cut.x_in_place && !continues && channels >= kLanes) {
                const int64_t step = p.x.seqlen_stride;
                convolve(Rows<const T>{x - past * step, step}, Rows<T>{out, p.out.seqlen_stride});
                continue;
            }
            const auto count = static_cast<int>(channels);
            const int first = static_cast<int>(std::min<int64_t>(begin, past));  // tokens before the run
            simd::load_tile(x_tile.begin() + (past - first) * block, block, x - first * p.x.seqlen_stride, p.x.dim_stride,
                            p.x.seqlen_stride, count, first + tokens);
            if (continues)
                simd::load_tile(x_tile.begin(), block, &at<const T>(p.initial_states, b, d, begin), p.initial_states.dim_stride,
                                p.initial_states.seqlen_stride, count, past - first);
            const Rows<const float> rows{x_tile.begin(), block};
            if (cut.out_in_place && channels >= kLanes) {
                convolve(rows, Rows<T>{out, p.out.seqlen_stride});
            } else {
                simd::ask_tile(out, p.out.dim_stride, p.out.seqlen_stride, count, tokens);
                convolve(rows, Rows<float>{out_tile.begin(), block});
                simd::store_tile(out, p.out.dim_stride, p.out.seqlen_stride, out_tile.begin(), block, count, tokens);
            }
        }
    }
}

// ---- choice of the axis -----------------------------------------------------------------------------------------------------

// The result depends on nothing but sizes, strides and types. Shuffles to transpose rows cost less than loads that no vector
// aligns, from some taps on.
bool vectors_along_tokens(const CausalConv1dFwdParams& p) {
    constexpr int kMostTaps = 16;
    if (p.width > kMostTaps) return false;
    return p.dim < kLanes || (p.seqlen >= 2 * kLanes && !dim_is_inner(p.x) && !dim_is_inner(p.out));
}

}  // namespace

const char* causal_conv1d_simd_refusal(const CausalConv1dFwdParams& p) {
    return p.dtype != kF64 ? nullptr : "x of 16 or 32 bits";
}

const char* causal_conv1d_simd_form(const CausalConv1dFwdParams& p) {
    return vectors_along_tokens(p) ? "simd_along_tokens" : "simd_along_channels";
}

void causal_conv1d_simd(const CausalConv1dFwdParams& p, void* /*workspace*/, void* /*stream*/) {
    const bool tokens = vectors_along_tokens(p);
    with_dtype(p.dtype, [&](auto type) {
        using T = decltype(type);
        tokens ? along_tokens<T>(p) : along_channels<T>(p);
    });
}

}  // namespace hipconv
