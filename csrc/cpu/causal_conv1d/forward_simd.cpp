// This is the causal conv1d forward for host memory, vectorised: x and out are both channel-first (tokens are neighbours in
// memory) or both channel-last. Every output is the same chain of operations on one lane of a vector, whatever the layout and
// its place in it, so layouts, chunks and batches agree bit for bit.
#include <algorithm>

#include "../simd.h"
#include "forward.h"
#include "serial.h"

namespace hipconv {
namespace {

using simd::Floats;
using simd::kLanes;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// `size` is cut into equal pieces of this length, which is whole vectors and at most `limit` (whole vectors too).
int64_t piece_of(int64_t size, int64_t limit) { return round_up(ceil_div(size, ceil_div(size, limit)), kLanes); }

// These are the parameters of one channel: element `width` is the bias.
template <int kWidth>
void load_parameters(const CausalConv1dFwdParams& p, int64_t d, float* to, int64_t step) {
    for (int i = 0; i < kWidth; ++i)
        to[i * step] = load_parameter(p.weight, d * p.weight_dim_stride + i * p.weight_width_stride, p.weight_dtype);
    to[kWidth * step] = p.bias ? load_parameter(p.bias, d * p.bias_stride, p.bias_dtype) : 0.0f;
}

// ---- channel-first: a piece of a row is converted into a buffer, from which each tap is an unaligned load -----------------

constexpr int kTokens = 512;  // in a piece; with 1024, loads from the buffer may wait for stores to out a page apart
constexpr int kHistory = 16;  // floats before them, for width - 1 earlier tokens; keeps the tokens aligned

template <typename T, int kWidth>
void convolve_tokens(const CausalConv1dFwdParams& p, int64_t b, int64_t d, int64_t begin, int count, float* tokens) {
    constexpr int kPast = kWidth - 1;
    const T* x = static_cast<const T*>(p.x.data) + b * p.x.batch_stride + d * p.x.dim_stride + begin;
    T* out = static_cast<T*>(p.out.data) + b * p.out.batch_stride + d * p.out.dim_stride + begin;
    float parameters[kWidth + 1];
    load_parameters<kWidth>(p, d, parameters, 1);
    Floats weight[kWidth];
    for (int i = 0; i < kWidth; ++i) weight[i] = simd::broadcast(parameters[i]);
    const Floats bias = simd::broadcast(parameters[kWidth]);

    for (int i = -kPast; i < 0; ++i) tokens[i] = begin + i < 0 ? 0.0f : to_float(x[i]);
    for (int t = 0; t < count; t += kLanes) simd::store(tokens + t, simd::load_some(x + t, count - t));

    int t = 0;
    if (begin == 0) {
        // Taps that would reach before the row are left out, not multiplied by zero, because 0 * inf is NaN.
        for (; t < kPast && t < count; t += kLanes) {
            Floats sum = bias;
            for (int i = 0; i < kWidth; ++i) {
                const Floats longer = sum + weight[i] * simd::load(tokens + t - kPast + i);
                sum = simd::lane_numbers() + t >= static_cast<uint32_t>(kPast - i) ? longer : sum;
            }
            simd::store_some(out + t, p.use_silu ? simd::silu(sum) : sum, count - t);
        }
    }
    for (; t < count; t += kLanes) {
        __builtin_prefetch(x + count + t);  // fetch the next piece while this one computes
        Floats sum = bias;
        for (int i = 0; i < kWidth; ++i) sum = sum + weight[i] * simd::load(tokens + t - kPast + i);
        simd::store_some(out + t, p.use_silu ? simd::silu(sum) : sum, count - t);
    }
}

template <typename T, int kWidth>
void along_tokens(const CausalConv1dFwdParams& p) {
    const int64_t piece = piece_of(p.seqlen, kTokens);
    const int64_t pieces = ceil_div(p.seqlen, piece);
    const int64_t items = static_cast<int64_t>(p.batch) * p.dim * pieces;
    const bool parallel = static_cast<double>(p.batch) * p.dim * p.seqlen >= kSerialBelow;

#pragma omp parallel if (parallel)
    {
        alignas(64) float buffer[kHistory + kTokens];
#pragma omp for schedule(static)
        for (int64_t item = 0; item < items; ++item) {
            const int64_t row = item / pieces;
            const int64_t begin = item % pieces * piece;
            const int count = static_cast<int>(std::min<int64_t>(piece, p.seqlen - begin));
            convolve_tokens<T, kWidth>(p, row / p.dim, row % p.dim, begin, count, buffer + kHistory);
        }
    }
}

// ---- channel-last: a few tokens of a block of channels, the window in registers -------------------------------------------

constexpr int kChannels = 512;  // in a block: its parameters stay in the first-level cache
constexpr int kRun = 8;         // tokens in a row for each vector of channels: prefetchers follow rows that are read at once

template <int kWidth>
struct BlockParameters {
    alignas(64) float of[kWidth + 1][kChannels];
};

// This computes runs of `tokens` outputs for kVectors * kLanes neighbouring channels. kEdges stands for `channels` of them, and
// for the start of the row.
template <typename T, int kWidth, int kVectors, bool kEdges>
HIPCONV_SIMD void convolve_run(const CausalConv1dFwdParams& p, const T* x, T* out, const float* parameters, int64_t begin,
                               int tokens, int64_t channels) {
    constexpr int kPast = kWidth - 1;
    const auto load = [&](int t, int v) {
        const T* from = x + t * p.x.seqlen_stride + v * kLanes;
        return kEdges ? simd::load_some(from, channels) : simd::load(from);
    };
    Floats window[kVectors][kWidth];
    for (int i = 0; i < kPast; ++i)
        for (int v = 0; v < kVectors; ++v) window[v][i] = kEdges && begin + i < kPast ? Floats{} : load(i - kPast, v);
    for (int t = 0; t < tokens; ++t) {
        for (int v = 0; v < kVectors; ++v) {
            window[v][kPast] = load(t, v);
            if (!kEdges && v == 0) __builtin_prefetch(x + (t + kRun) * p.x.seqlen_stride);  // fetch the next run
            Floats sum = simd::load(parameters + kWidth * kChannels + v * kLanes);
            for (int i = 0; i < kWidth; ++i)
                if (!kEdges || begin + t + i >= kPast)
                    sum = sum + simd::load(parameters + i * kChannels + v * kLanes) * window[v][i];
            for (int i = 0; i < kPast; ++i) window[v][i] = window[v][i + 1];
            if (p.use_silu) sum = simd::silu(sum);
            T* to = out + t * p.out.seqlen_stride + v * kLanes;
            kEdges ? simd::store_some(to, sum, channels) : simd::store(to, sum);
        }
    }
}

template <typename T, int kWidth>
void along_channels(const CausalConv1dFwdParams& p) {
    constexpr int kVectors = std::max<int>(1, 64 / (kLanes * sizeof(T)));  // a cache line
    const int64_t block = piece_of(p.dim, kChannels);
    const int64_t runs = ceil_div(p.seqlen, kRun);
    const int64_t items = ceil_div(p.dim, block) * p.batch * runs;
    const bool parallel = static_cast<double>(p.batch) * p.dim * p.seqlen >= kSerialBelow;

#pragma omp parallel if (parallel)
    {
        BlockParameters<kWidth> parameters;
        int64_t loaded = -1;
#pragma omp for schedule(static)
        for (int64_t item = 0; item < items; ++item) {
            const int64_t d = item / (p.batch * runs) * block;
            const int64_t b = item / runs % p.batch;
            const int64_t t = item % runs * kRun;
            const int64_t channels = std::min(block, p.dim - d);
            const int tokens = static_cast<int>(std::min<int64_t>(kRun, p.seqlen - t));
            if (loaded != d)
                for (int64_t c = 0; c < channels; ++c) load_parameters<kWidth>(p, d + c, &parameters.of[0][c], kChannels);
            loaded = d;

            const T* x = static_cast<const T*>(p.x.data) + b * p.x.batch_stride + d + t * p.x.seqlen_stride;
            T* out = static_cast<T*>(p.out.data) + b * p.out.batch_stride + d + t * p.out.seqlen_stride;
            if (t < kWidth - 1 || channels < kVectors * kLanes) {
                for (int64_t c = 0; c < channels; c += kLanes)
                    convolve_run<T, kWidth, 1, true>(p, x + c, out + c, &parameters.of[0][c], t, tokens, channels - c);
            } else {
                for (int64_t next = 0; next < channels; next += kVectors * kLanes) {
                    const int64_t c = std::min(next, channels - kVectors * kLanes);  // redo the last ones, not fewer
                    convolve_run<T, kWidth, kVectors, false>(p, x + c, out + c, &parameters.of[0][c], t, tokens, channels);
                }
            }
        }
    }
}

// ---- choice of the instance ----------------------------------------------------------------------------------------------

template <typename T, int kWidth>
void with_width(const CausalConv1dFwdParams& p, bool channels_inside) {
    if (p.width != kWidth) {
        if constexpr (kWidth > 1) with_width<T, kWidth - 1>(p, channels_inside);
    } else {
        channels_inside ? along_channels<T, kWidth>(p) : along_tokens<T, kWidth>(p);
    }
}

constexpr int kMaxWidth = 8;

enum class Along { neither, tokens, channels };

// The result depends on nothing but sizes, strides and types. The stride of an axis of size one does not matter.
Along vectors_along(const CausalConv1dFwdParams& p) {
    const bool tokens = p.seqlen == 1 || (p.x.seqlen_stride == 1 && p.out.seqlen_stride == 1);
    const bool channels = p.dim == 1 || (p.x.dim_stride == 1 && p.out.dim_stride == 1);
    if (p.width > kMaxWidth || !(tokens || channels)) return Along::neither;
    if (tokens && channels) return p.dim > p.seqlen ? Along::channels : Along::tokens;
    return tokens ? Along::tokens : Along::channels;
}

}  // namespace

const char* causal_conv1d_simd_refusal(const CausalConv1dFwdParams& p) {
    static_assert(kMaxWidth == 8, "the text below says so");
    if (rows_are_plain(p) && p.dtype != kF64 && vectors_along(p) != Along::neither) return nullptr;
    return "width <= 8 where x and out both have stride 1 along seqlen, or both along dim, plain rows";
}

const char* causal_conv1d_simd_form(const CausalConv1dFwdParams& p) {
    return vectors_along(p) == Along::channels ? "simd_along_channels" : "simd_along_tokens";
}

void causal_conv1d_simd(const CausalConv1dFwdParams& p, void* /*workspace*/, void* /*stream*/) {
    const bool channels_inside = vectors_along(p) == Along::channels;
    with_dtype(p.dtype, [&](auto type) { with_width<decltype(type), kMaxWidth>(p, channels_inside); });
}

}  // namespace hipconv
