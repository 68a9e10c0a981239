// This is the causal conv1d backward for host memory, vectorised: x, dout and dx are all channel-first (tokens are neighbours
// in memory) or all channel-last. Rows are cut into walks; each walk leaves its dweight and dbias in the workspace, and these
// are added up in order at the end.
#include <algorithm>
#include <type_traits>

#include "../simd.h"
#include "backward.h"
#include "causal_conv1d/states_formula.h"
#include "serial.h"

namespace hipconv {
namespace {

using simd::Floats;
using simd::kLanes;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// `size` is cut into equal pieces of this length, which is whole vectors and at most `limit` (whole vectors too).
int64_t piece_of(int64_t size, int64_t limit) { return ceil_div(ceil_div(size, ceil_div(size, limit)), kLanes) * kLanes; }

// These are the parameters of one channel: element `width` is the bias.
template <int kWidth>
void load_parameters(const CausalConv1dInputs& in, int64_t d, float* to, int64_t step) {
    for (int i = 0; i < kWidth; ++i) to[i * step] = weight_at<float>(in, d, i);
    to[kWidth * step] = in.bias ? load_parameter(in.bias, d * in.bias_stride, in.bias_dtype) : 0.0f;
}

HIPCONV_SIMD float sum_of(Floats v) {
    float sum = 0.0f;
    for (int lane = 0; lane < kLanes; ++lane) sum += v[lane];
    return sum;
}

float* partials_of(const CausalConv1dBwdParams& p, int64_t row, int64_t d) {
    return static_cast<float*>(p.partials) + row * (p.in.width + 1) * p.in.dim + d;
}

bool is_parallel(const CausalConv1dBwdParams& p) {
    return static_cast<double>(p.in.batch) * p.in.dim * p.in.seqlen >= kSerialBelow;
}

// ---- channel-first: a walk is converted into a buffer and its gradients into another; each tap is an unaligned load ---------

constexpr int kTokens = 512;  // in a walk
constexpr int kMargin = 16;   // floats before and after them, for width - 1 tokens; keeps the tokens aligned

struct TokenBuffers {
    alignas(64) float x[kMargin + kTokens + 2 * kMargin];
    alignas(64) float g[kTokens + 2 * kMargin];
};

template <typename T, int kWidth>
void walk_tokens(const CausalConv1dBwdParams& p, int64_t b, int64_t d, int64_t begin, int count, TokenBuffers& buffers,
                 float* partials) {
    constexpr int kPast = kWidth - 1;
    const T* x = &at<const T>(p.in.x, b, d, 0) + begin;
    const T* dout = &at<const T>(p.dout, b, d, 0) + begin;
    T* dx = &at<T>(p.dx, b, d, 0) + begin;
    const int64_t left = p.in.seqlen - begin;  // the row has so many tokens from here on
    const int stop = count + kPast;
    float parameters[kWidth + 1];
    load_parameters<kWidth>(p.in, d, parameters, 1);
    Floats weight[kWidth];
    for (int i = 0; i < kWidth; ++i) weight[i] = simd::broadcast(parameters[i]);
    const Floats bias = simd::broadcast(parameters[kWidth]);

    float* tokens = buffers.x + kMargin;
    for (int i = -kPast; i < 0; ++i) tokens[i] = begin + i < 0 ? 0.0f : to_float(x[i]);
    for (int t = 0; t < stop; t += kLanes) simd::store(tokens + t, simd::load_some(x + t, std::max<int64_t>(left - t, 0)));

    // Where an end of the row or the walk cuts vectors, the rest is left out, not multiplied by zero, because 0 * inf is NaN.
    const int before = static_cast<int>(std::min<int64_t>(begin, kMargin));
    const auto size = static_cast<uint32_t>(before + std::min<int64_t>(left, kTokens + kMargin));
    const auto in_row = [&](int t) { return simd::lane_numbers() + static_cast<uint32_t>(before + t) < size; };
    Floats dweight[kWidth], dbias{};
    for (int i = 0; i < kWidth; ++i) dweight[i] = Floats{};
    const auto add_gradients = [&](auto cut, int t) __attribute__((always_inline)) {  // its sums stay in registers
        constexpr bool kCut = decltype(cut)::value;
        Floats window[kWidth];
        for (int i = 0; i < kWidth; ++i) window[i] = simd::load(tokens + t - kPast + i);
        Floats g = simd::load_some(dout + t, std::max<int64_t>(left - t, 0));
        if (p.in.use_silu) {
            Floats sum = bias;
            for (int i = 0; i < kWidth; ++i) {
                const Floats longer = sum + weight[i] * window[i];
                sum = !kCut ? longer : in_row(t - kPast + i) ? longer : sum;
            }
            g = g * simd::silu_derivative(sum);
        }
        if (kCut) g = in_row(t) ? g : Floats{};
        simd::store(buffers.g + t, g);
        const auto own = simd::lane_numbers() < static_cast<uint32_t>(std::max(count - t, 0));  // the next walk has the rest
        dbias = !kCut ? dbias + g : own ? dbias + g : dbias;
        for (int i = 0; i < kWidth; ++i) {
            const Floats longer = dweight[i] + g * window[i];
            dweight[i] = !kCut ? longer : own & in_row(t - kPast + i) ? longer : dweight[i];
        }
    };
    for (int t = 0; t < stop; t += kLanes) {
        __builtin_prefetch(x + count + t);  // fetch the next walk while this one computes
        __builtin_prefetch(dout + count + t);
        if (begin + t < kPast || t + kLanes > count)
            add_gradients(std::true_type{}, t);
        else
            add_gradients(std::false_type{}, t);
    }
    int t = 0;
    for (; t + kLanes + kPast <= left && t < count; t += kLanes) {
        Floats sum = weight[kPast] * simd::load(buffers.g + t);
        for (int k = 1; k < kWidth; ++k) sum = sum + weight[kPast - k] * simd::load(buffers.g + t + k);
        simd::store_some(dx + t, sum, count - t);
    }
    for (; t < count; t += kLanes) {
        Floats sum = weight[kPast] * simd::load(buffers.g + t);
        for (int k = 1; k < kWidth; ++k) sum = in_row(t + k) ? sum + weight[kPast - k] * simd::load(buffers.g + t + k) : sum;
        simd::store_some(dx + t, sum, count - t);
    }
    for (int i = 0; i < kWidth; ++i) partials[i * int64_t{p.in.dim}] = sum_of(dweight[i]);
    partials[kWidth * int64_t{p.in.dim}] = sum_of(dbias);
}

template <typename T, int kWidth>
void along_tokens(const CausalConv1dBwdParams& p) {
    const int64_t piece = piece_of(p.in.seqlen, kTokens);
    const int64_t pieces = ceil_div(p.in.seqlen, piece);
    const int64_t items = static_cast<int64_t>(p.in.batch) * p.in.dim * pieces;
#pragma omp parallel if (is_parallel(p))
    {
        TokenBuffers buffers{};
#pragma omp for schedule(static)
        for (int64_t item = 0; item < items; ++item) {
            const int64_t row = item / pieces, b = row / p.in.dim, d = row % p.in.dim;
            const int64_t begin = item % pieces * piece;
            const int count = static_cast<int>(std::min<int64_t>(piece, p.in.seqlen - begin));
            walk_tokens<T, kWidth>(p, b, d, begin, count, buffers, partials_of(p, b * pieces + item % pieces, d));
        }
    }
}

// ---- channel-last: a walk of a block of channels, a few tokens at a time ----------------------------------------------------

constexpr int kChannels = 256;  // in a block: the values that a walk carries for them stay in the first-level cache
constexpr int kRun = 8;         // tokens in a row for each vector of channels: prefetchers follow rows that are read at once
constexpr int kWalk = 256;      // tokens

// For each channel of a block, this holds the parameters; the last inputs and gradients, oldest first; dweight and dbias.
template <int kWidth>
struct ChannelBuffers {
    alignas(64) float parameters[kWidth + 1][kChannels];
    alignas(64) float inputs[kWidth][kChannels];
    alignas(64) float gradients[kWidth][kChannels];
    alignas(64) float sums[kWidth + 1][kChannels];
};

// This handles tokens t to t + tokens - 1 of a walk that begins at `begin` and has `count` tokens, for kVectors vectors of
// channels from channel c of the block on. kEdges stands for `channels` of them, and for the ends of a walk. There, taps that
// reach before the row (the first `absent` of token 0) or after it (to token `left`) are left out, not multiplied by zero,
// because 0 * inf is NaN.
template <typename T, int kWidth, int kVectors, bool kEdges>
HIPCONV_SIMD void walk_run(const CausalConv1dBwdParams& p, const T* x, const T* dout, T* dx, ChannelBuffers<kWidth>& buffers,
                           int c, int absent, int64_t left, int count, int t, int tokens, int64_t channels) {
    constexpr int kPast = kWidth - 1;
    Floats input[kVectors][kWidth], gradient[kVectors][kWidth], sums[kVectors][kWidth + 1];
    for (int v = 0; v < kVectors; ++v) {
        for (int i = 0; i < kPast; ++i) {
            input[v][i] = simd::load(&buffers.inputs[i][c + v * kLanes]);
            gradient[v][i] = simd::load(&buffers.gradients[i][c + v * kLanes]);
        }
        for (int i = 0; i <= kWidth; ++i) sums[v][i] = simd::load(&buffers.sums[i][c + v * kLanes]);
    }
    for (int end = t + tokens; t < end; ++t) {
        for (int v = 0; v < kVectors; ++v) {
            const auto load = [&](const T* row, int64_t step) {
                const T* from = row + t * step + v * kLanes;
                return !kEdges ? simd::load(from) : t < left ? simd::load_some(from, channels) : Floats{};
            };
            input[v][kPast] = load(x, p.in.x.seqlen_stride);
            Floats g = load(dout, p.dout.seqlen_stride);
            if (!kEdges && v == 0) {  // prefetch the next run
                __builtin_prefetch(x + (t + kRun) * p.in.x.seqlen_stride);
                __builtin_prefetch(dout + (t + kRun) * p.dout.seqlen_stride);
            }
            const auto weight = [&](int i) { return simd::load(&buffers.parameters[i][c + v * kLanes]); };
            if (p.in.use_silu) {
                Floats sum = weight(kWidth);
                for (int i = 0; i < kWidth; ++i)
                    if (!kEdges || t + i >= absent) sum = sum + weight(i) * input[v][i];
                g = g * simd::silu_derivative(sum);
            }
            if (kEdges && t >= left) g = Floats{};
            gradient[v][kPast] = g;
            if (!kEdges || t < count) {
                for (int i = 0; i < kWidth; ++i)
                    if (!kEdges || t + i >= absent) sums[v][i] = sums[v][i] + g * input[v][i];
                sums[v][kWidth] = sums[v][kWidth] + g;
            }
            if (!kEdges || t >= kPast) {
                Floats sum = weight(kPast) * gradient[v][0];
                for (int k = 1; k < kWidth; ++k)
                    if (!kEdges || t - kPast + k < left) sum = sum + weight(kPast - k) * gradient[v][k];
                T* to = dx + (t - kPast) * p.dx.seqlen_stride + v * kLanes;
                kEdges ? simd::store_some(to, sum, channels) : simd::store(to, sum);
            }
            for (int i = 0; i < kPast; ++i) {
                input[v][i] = input[v][i + 1];
                gradient[v][i] = gradient[v][i + 1];
            }
        }
    }
    for (int v = 0; v < kVectors; ++v) {
        for (int i = 0; i < kPast; ++i) {
            simd::store(&buffers.inputs[i][c + v * kLanes], input[v][i]);
            simd::store(&buffers.gradients[i][c + v * kLanes], gradient[v][i]);
        }
        for (int i = 0; i <= kWidth; ++i) simd::store(&buffers.sums[i][c + v * kLanes], sums[v][i]);
    }
}

template <typename T, int kWidth>
void walk_channels(const CausalConv1dBwdParams& p, int64_t b, int64_t d, int64_t channels, int64_t begin, int count,
                   ChannelBuffers<kWidth>& buffers, float* partials) {
    constexpr int kPast = kWidth - 1;
    constexpr int kVectors = std::max<int>(2, 64 / (kLanes * sizeof(T)));  // a cache line, and two chains of operations
    const T* x = &at<const T>(p.in.x, b, d, begin);
    const T* dout = &at<const T>(p.dout, b, d, begin);
    T* dx = &at<T>(p.dx, b, d, begin);
    for (int64_t c = 0; c < channels; c += kLanes) {
        for (int i = 0; i < kPast; ++i) {
            const T* from = x + c + (i - kPast) * p.in.x.seqlen_stride;
            simd::store(&buffers.inputs[i][c], begin + i < kPast ? Floats{} : simd::load_some(from, channels - c));
            simd::store(&buffers.gradients[i][c], Floats{});
        }
        for (int i = 0; i <= kWidth; ++i) simd::store(&buffers.sums[i][c], Floats{});
    }
    const int64_t left = p.in.seqlen - begin;
    const int absent = begin < kPast ? kPast - static_cast<int>(begin) : 0;
    for (int t = 0; t < count + kPast; t += kRun) {
        const int tokens = std::min(kRun, count + kPast - t);
        int64_t c = 0;
        if (t >= kPast && t + tokens <= count)
            for (; c + kVectors * kLanes <= channels; c += kVectors * kLanes)
                walk_run<T, kWidth, kVectors, false>(p, x + c, dout + c, dx + c, buffers, c, absent, left, count, t, tokens, 0);
        for (; c < channels; c += kLanes)
            walk_run<T, kWidth, 1, true>(p, x + c, dout + c, dx + c, buffers, c, absent, left, count, t, tokens, channels - c);
    }
    for (int i = 0; i <= kWidth; ++i) std::copy_n(buffers.sums[i], channels, partials + i * int64_t{p.in.dim});
}

template <typename T, int kWidth>
void along_channels(const CausalConv1dBwdParams& p) {
    const int64_t block = piece_of(p.in.dim, kChannels), blocks = ceil_div(p.in.dim, block);
    const int64_t walks = ceil_div(p.in.seqlen, kWalk);
    const int64_t items = blocks * p.in.batch * walks;
#pragma omp parallel if (is_parallel(p))
    {
        ChannelBuffers<kWidth> buffers{};
        int64_t loaded = -1;
#pragma omp for schedule(static)
        for (int64_t item = 0; item < items; ++item) {
            const int64_t d = item / (p.in.batch * walks) * block;
            const int64_t b = item / walks % p.in.batch;
            const int64_t begin = item % walks * kWalk;
            const int64_t channels = std::min(block, p.in.dim - d);
            if (loaded != d)
                for (int64_t c = 0; c < channels; ++c)
                    load_parameters<kWidth>(p.in, d + c, &buffers.parameters[0][c], kChannels);
            loaded = d;
            const int count = static_cast<int>(std::min<int64_t>(kWalk, p.in.seqlen - begin));
            walk_channels<T, kWidth>(p, b, d, channels, begin, count, buffers, partials_of(p, b * walks + item % walks, d));
        }
    }
}

// ---- choice of the instance -------------------------------------------------------------------------------------------------

template <typename T, int kWidth>
void with_width(const CausalConv1dBwdParams& p, bool channels_inside) {
    if (p.in.width != kWidth) {
        if constexpr (kWidth > 1) with_width<T, kWidth - 1>(p, channels_inside);
    } else {
        channels_inside ? along_channels<T, kWidth>(p) : along_tokens<T, kWidth>(p);
    }
}

// This adds up the rows of the workspace, in order, in double, because there may be many.
void finish(const CausalConv1dBwdParams& p, int64_t rows) {
    const int64_t columns = (int64_t{p.in.width} + 1) * p.in.dim;
    const auto* partials = static_cast<const float*>(p.partials);
    for (int i = 0; i <= p.in.width; ++i) {
#pragma omp parallel for schedule(static) if (is_parallel(p))
        for (int64_t d = 0; d < p.in.dim; ++d) {
            double sum = 0.0;
            for (int64_t row = 0; row < rows; ++row) sum += partials[row * columns + i * int64_t{p.in.dim} + d];
            bwd_store_sum<float>(p, d, i, static_cast<float>(sum));
        }
    }
}

// ---- what the table asks ----------------------------------------------------------------------------------------------------

constexpr int kMaxWidth = 8;

enum class Along { neither, tokens, channels };

// The result depends on nothing but sizes, strides and types. The stride of an axis of size one does not matter.
Along vectors_along(const CausalConv1dBwdParams& p) {
    const auto along = [&](auto stride) { return stride(p.in.x) == 1 && stride(p.dout) == 1 && stride(p.dx) == 1; };
    const bool tokens = p.in.seqlen == 1 || along([](const Sequences& s) { return s.seqlen_stride; });
    const bool channels = p.in.dim == 1 || along([](const Sequences& s) { return s.dim_stride; });
    const bool plain = p.in.seqlen > 0 && !p.in.seq_idx.data && !p.in.initial_states.data && !p.dfinal_states.data;
    if (!plain || p.in.dtype == kF64 || p.in.width > kMaxWidth || !(tokens || channels)) return Along::neither;
    if (tokens && channels) return p.in.dim > p.in.seqlen ? Along::channels : Along::tokens;
    return tokens ? Along::tokens : Along::channels;
}

// This counts the rows of partial sums.
int64_t rows_of(const CausalConv1dBwdParams& p, bool channels_inside) {
    const int64_t each = channels_inside ? kWalk : piece_of(p.in.seqlen, kTokens);
    return p.in.batch * ceil_div(p.in.seqlen, each);
}

}  // namespace

const char* causal_conv1d_bwd_simd_refusal(const CausalConv1dBwdParams& p) {
    static_assert(kMaxWidth == 8, "the text below says so");
    if (vectors_along(p) != Along::neither) return nullptr;
    return "width <= 8 where x, dout and dx all have stride 1 along seqlen, or all along dim, without seq_idx and states, of "
           "16 or 32 "
           "bits";
}

int64_t causal_conv1d_bwd_simd_workspace(const CausalConv1dBwdParams& p) {
    const int64_t rows = rows_of(p, vectors_along(p) == Along::channels);
    return rows * (p.in.width + 1) * p.in.dim * static_cast<int64_t>(sizeof(float));
}

void causal_conv1d_bwd_simd(const CausalConv1dBwdParams& params, void* workspace, void* /*stream*/) {
    CausalConv1dBwdParams p = params;
    p.partials = workspace;
    const bool channels_inside = vectors_along(p) == Along::channels;
    with_dtype(p.in.dtype, [&](auto type) { with_width<decltype(type), kMaxWidth>(p, channels_inside); });
    finish(p, rows_of(p, channels_inside));
}

}  // namespace hipconv
