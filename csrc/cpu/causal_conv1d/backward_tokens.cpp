// The causal conv1d backward for host memory in vectors along tokens. A walk is converted into a buffer, and its
// gradients into another; each tap is an unaligned load from them.
#include "backward_simd.h"

namespace hipconv {
namespace {

constexpr int kTokens = 512;  // in a walk

HIPCONV_SIMD float sum_of(Floats v) {
    float sum = 0.0f;
    for (int lane = 0; lane < kLanes; ++lane) sum += v[lane];
    return sum;
}

struct TokenBuffers {
    Buffer<float> x, gradients, start, parameters;
    Buffer<Floats> sums;  // of each tap, and of the bias
    TokenIds ids[2];      // of a row's first walk, and of its last or any other
    int64_t whose[2] = {-1, -1};

    explicit TokenBuffers(int width)
        : x(kRows), gradients(kRows), start(kTokens), parameters(width + 1), sums(width + 1),
          ids{TokenIds(kRows), TokenIds(kRows)} {
        std::fill_n(x.begin(), kRows, 0.0f);
        std::fill_n(gradients.begin(), kRows, 0.0f);
    }

    static constexpr int64_t kRows = 2 * kMostTapsAlongTokens + kTokens + 4 * kLanes;
};

// A walk of a row. Its tokens count from its first one.
template <typename T>
struct Walk {
    const CausalConv1dBwdParams& p;
    int64_t b, d, begin;
    int count;         // tokens
    int64_t left;      // the row has so many tokens from here on
    const float* x;    // the oldest tap of the first token
    float* gradients;  // of the first token
    const float* parameters;
    Floats* sums;
    const TokenIds* ids;  // from the oldest tap of the first token on; null where all see all
    const float* start;   // what dx has from the final states, or null

    int past() const { return p.in.width - 1; }
    int32_t id(int t) const { return ids->of(t + past()); }
};

// The products of kVectors vectors of gradients with the inputs that kTaps of the taps saw come to the sums of these taps.
template <int kTaps, bool kMasked, int kVectors, typename T>
HIPCONV_SIMD void add_products(const Walk<T>& walk, const Floats (&g)[kVectors], int t, int first) {
    Floats sums[kTaps];
    for (int i = 0; i < kTaps; ++i) sums[i] = walk.sums[first + i];
    for (int v = 0; v < kVectors; ++v) {
        for (int i = 0; i < kTaps; ++i) {
            const Floats longer = sums[i] + g[v] * simd::load(walk.x + t + first + i + v * kLanes);
            if constexpr (kMasked) {
                const auto id = ids_at(walk.ids->from(t + walk.past() + v * kLanes));
                const auto seen = ids_at(walk.ids->from(t + first + i + v * kLanes));
                sums[i] = seen == id && id != kNobody ? longer : sums[i];
            } else {
                sums[i] = longer;
            }
        }
    }
    for (int i = 0; i < kTaps; ++i) walk.sums[first + i] = sums[i];
}

// Makes kVectors vectors of gradients from token t on, and (kSums) adds to the sums of the parameters.
template <int kVectors, bool kMasked, bool kSums, typename T>
HIPCONV_SIMD void add_gradients(const Walk<T>& walk, int t) {
    const int width = walk.p.in.width;
    const int64_t step = walk.p.dout.seqlen_stride;
    const T* dout = &at<const T>(walk.p.dout, walk.b, walk.d, walk.begin);
    const int32_t* ids = kMasked ? walk.ids->from(t) : nullptr;
    Floats g[kVectors];
    for (int v = 0; v < kVectors; ++v) {
        const int64_t token = t + v * kLanes;
        g[v] = simd::load_strided(dout + token * step, step, kVectors > 1 ? kLanes : std::max<int64_t>(walk.left - token, 0));
    }
    if (walk.p.in.use_silu) {
        Floats sums[kVectors];
        for (Floats& sum : sums) sum = simd::broadcast(walk.parameters[width]);
        add_taps_along<0, 1, kMasked>(sums, walk.x + t, walk.parameters, width, ids, width - 1);
        for (int v = 0; v < kVectors; ++v) g[v] = g[v] * simd::silu_derivative(sums[v]);
    }
    for (int v = 0; v < kVectors; ++v) {
        if constexpr (kMasked) g[v] = ids_at(ids + width - 1 + v * kLanes) != kNobody ? g[v] : Floats{};
        simd::store(walk.gradients + t + v * kLanes, g[v]);
    }
    if constexpr (kSums) {
        for (const Floats& v : g) walk.sums[width] = walk.sums[width] + v;
        int i = 0;
        for (; i + 4 <= width; i += 4) add_products<4, kMasked>(walk, g, t, i);
        for (; i < width; ++i) add_products<1, kMasked>(walk, g, t, i);
    }
}

// Makes kVectors vectors of dx from token t on.
template <int kVectors, bool kMasked, typename T>
HIPCONV_SIMD void store_input_gradients(const Walk<T>& walk, int t) {
    const int width = walk.p.in.width;
    const int64_t step = walk.p.dx.seqlen_stride;
    T* dx = &at<T>(walk.p.dx, walk.b, walk.d, walk.begin);
    const int32_t* ids = kMasked ? walk.ids->from(t + width - 1) : nullptr;
    Floats sums[kVectors];
    for (int v = 0; v < kVectors; ++v) sums[v] = kMasked && walk.start ? simd::load(walk.start + t + v * kLanes) : Floats{};
    add_taps_along<0, -1, kMasked>(sums, walk.gradients + t, walk.parameters, width, ids, 0);
    for (int v = 0; v < kVectors; ++v) {
        if constexpr (kMasked) sums[v] = ids_at(ids + v * kLanes) != kNobody ? sums[v] : Floats{};
        simd::store_strided(dx + (t + v * kLanes) * step, step, sums[v], kVectors > 1 ? kLanes : walk.count - t);
    }
}

template <typename T>
void go(const Walk<T>& walk) {
    constexpr int kVectors = 4;
    const auto vary = [&](int from, int end) { return walk.ids && !walk.ids->alike(from, end); };
    const int past = walk.past(), count = walk.count;
    const int64_t x_step = walk.p.in.x.seqlen_stride, dout_step = walk.p.dout.seqlen_stride;
    const T* x = &at<const T>(walk.p.in.x, walk.b, walk.d, walk.begin);
    const T* dout = &at<const T>(walk.p.dout, walk.b, walk.d, walk.begin);
    int t = 0;
    for (; t + kVectors * kLanes <= count; t += kVectors * kLanes) {
        for (int v = 0; v < kVectors; ++v) {  // fetch the next walk while this one computes
            __builtin_prefetch(x + (count + t + v * kLanes) * x_step);
            __builtin_prefetch(dout + (count + t + v * kLanes) * dout_step);
        }
        vary(t, t + kVectors * kLanes + past) ? add_gradients<kVectors, true, true>(walk, t)
                                              : add_gradients<kVectors, false, true>(walk, t);
    }
    for (; t < count; t += kLanes)
        vary(t, t + kLanes + past) ? add_gradients<1, true, true>(walk, t) : add_gradients<1, false, true>(walk, t);
    for (; t < count + past; t += kLanes)  // the next walk has these; dx needs them
        walk.ids ? add_gradients<1, true, false>(walk, t) : add_gradients<1, false, false>(walk, t);

    for (t = 0; t + kVectors * kLanes <= count; t += kVectors * kLanes)
        vary(t + past, t + kVectors * kLanes + 2 * past) ? store_input_gradients<kVectors, true>(walk, t)
                                                         : store_input_gradients<kVectors, false>(walk, t);
    for (; t < count; t += kLanes)
        walk.ids ? store_input_gradients<1, true>(walk, t) : store_input_gradients<1, false>(walk, t);
}

// The gradient of the inputs before the row.
template <typename T>
void store_initial_gradients(const Walk<T>& walk) {
    const CausalConv1dBwdParams& p = walk.p;
    const int past = walk.past();
    for (int t = -past; t < 0; ++t) {
        const int64_t column = t - walk.left + past;
        float sum = 0.0f;
        if (p.dfinal_states.data && column >= 0 && final_state_counts(p.in, walk.b, t))
            sum = to_float(at<const T>(p.dfinal_states, walk.b, walk.d, column));
        for (int k = -t; k <= past && t + k < walk.left; ++k)
            if (walk.id(t + k) == walk.id(t) && walk.id(t) != kNobody) sum += walk.parameters[past - k] * walk.gradients[t + k];
        at<T>(p.dinitial_states, walk.b, walk.d, t + past) = from_float<T>(sum);
    }
}

template <typename T>
void along_tokens(const CausalConv1dBwdParams& p) {
    const CausalConv1dInputs& in = p.in;
    const int width = in.width, past = width - 1;
    const int64_t length = bwd_walk_along_tokens(p), walks = ceil_of(in.seqlen, length);
    const int64_t rows = int64_t{in.batch} * in.dim, items = rows * walks;
    const bool has_ids = in.seq_idx.data;                   // then channels follow one another, and use a walk's ids in turn
    const int64_t aligned = round_up(past, kLanes) - past;  // then the tokens are
#pragma omp parallel if (is_parallel(p))
    {
        TokenBuffers buffers(width);
        int64_t loaded = -1;
#pragma omp for schedule(static)
        for (int64_t item = 0; item < items; ++item) {
            const int64_t b = item / (in.dim * walks);
            const int64_t d = has_ids ? item % in.dim : item / walks % in.dim;
            const int64_t number = has_ids ? item / in.dim % walks : item % walks, begin = number * length;
            const int count = static_cast<int>(std::min(length, in.seqlen - begin));
            if (loaded != d) {
                float* to = buffers.parameters.begin();
                for (int i = 0; i < width; ++i) to[i] = weight_at<float>(in, d, i);
                to[width] = in.bias ? load_parameter(in.bias, d * in.bias_stride, in.bias_dtype) : 0.0f;
            }
            loaded = d;

            const int64_t left = in.seqlen - begin;
            float* oldest = buffers.x.begin() + aligned;
            load_history<T>(oldest, in, b, d, begin);
            const int64_t step = in.x.seqlen_stride;
            const T* x = &at<const T>(in.x, b, d, begin);
            for (int t = 0; t < count + past; t += kLanes)
                simd::store(oldest + past + t, simd::load_strided(x + t * step, step, std::max<int64_t>(left - t, 0)));

            const bool ends = left < length + past + kLanes, first = begin == 0;
            const bool varies = has_ids || first || ends;
            TokenIds& ids = buffers.ids[first ? 0 : 1];
            int64_t& whose = buffers.whose[first ? 0 : 1];
            if (varies && whose != (has_ids ? b * walks + number : number)) {
                ids.load(in, b, begin - past, static_cast<int>(TokenBuffers::kRows));
                whose = has_ids ? b * walks + number : number;
            }
            float* start = nullptr;
            if (p.dfinal_states.data && left < count + past + kLanes) {
                start = buffers.start.begin();
                std::fill_n(start, kTokens, 0.0f);
                for (int64_t t = std::max<int64_t>(left - past, 0); t < count; ++t)
                    if (final_state_counts(in, b, begin + t))
                        start[t] = to_float(at<const T>(p.dfinal_states, b, d, t - left + past));
            }
            std::fill_n(buffers.sums.begin(), width + 1, Floats{});
            const Walk<T> walk{p,
                               b,
                               d,
                               begin,
                               count,
                               left,
                               oldest,
                               buffers.gradients.begin(),
                               buffers.parameters.begin(),
                               buffers.sums.begin(),
                               varies ? &ids : nullptr,
                               start};
            go(walk);
            if (first && p.dinitial_states.data) store_initial_gradients(walk);
            float* to = partials_of(p, b * walks + number, d);
            for (int i = 0; i <= width; ++i) to[i * int64_t{in.dim}] = sum_of(walk.sums[i]);
        }
    }
}

}  // namespace

int64_t bwd_walk_along_tokens(const CausalConv1dBwdParams& p) { return piece_of(p.in.seqlen, kTokens); }

void causal_conv1d_bwd_along_tokens(const CausalConv1dBwdParams& p) {
    with_dtype(p.in.dtype, [&](auto type) { along_tokens<decltype(type)>(p); });
}

}  // namespace hipconv
