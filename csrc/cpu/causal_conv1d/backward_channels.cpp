// The causal conv1d backward for host memory in vectors along channels, for any strides, any width, states and packed
// sequences. What does not lie along channels in memory goes through tiles of floats.
#include "backward_simd.h"

namespace hipconv {
namespace {

// Gradients go ahead of dx by so many tokens, as dx at t takes those of t to t + width - 1.
int lag_of(int width) { return static_cast<int>(round_up(width - 1, kBlockTokens)); }

int64_t walk_of(int width) { return round_up(std::max(256, 4 * (width - 1)), kBlockTokens); }

// Tells how the work is cut, and whether it goes through tiles of floats.
struct Cut {
    bool in_place;  // else in tiles
    int64_t channels;
    int tokens;
};

Cut cut_of(const CausalConv1dBwdParams& p) {
    const bool wide = p.in.width > 8;
    const bool dense = p.in.x.dim_stride == 1 && p.dout.dim_stride == 1 && p.dx.dim_stride == 1 && p.in.dim >= kLanes;
    const bool in_place = dense && !(wide && element_bytes(p.in.dtype) == 2);
    // Memory should be read and written in long stretches, whichever axis they lie along: prefetchers follow these.
    const bool across = dim_is_inner(p.in.x) && dim_is_inner(p.dout) && dim_is_inner(p.dx);
    const int tokens = static_cast<int>(round_up(std::max(across ? 16 : 64, wide ? 2 * p.in.width : 0), kBlockTokens));
    return {in_place, piece_of(p.in.dim, wide ? 32 : across ? 1024 : 64), tokens};
}

// A walk's tokens count from its first one. Rows are neighbouring channels.
struct Walk {
    const CausalConv1dBwdParams& p;
    int64_t b, d, channels, begin;
    int count;     // tokens
    int64_t left;  // the row has so many tokens from here on
    Parameters parameters;
    const TokenIds& ids;       // from the first token's oldest tap on
    float *sums, *gradients;   // (width + 1) rows; and rows from token `first` - lag of the run on
    float *dfinal, *dinitial;  // width - 1 rows each
    int64_t step;              // of the rows of floats

    int32_t id(int t) const { return ids.of(t + parameters.width - 1); }
};

// Tokens `first` to first + tokens - 1 of a walk: x from the oldest tap on, dx from token first - lag on.
template <typename R>
struct Run {
    Rows<const R> x, dout;
    Rows<R> dx;
    int first, tokens;
};

// To dweight, kTaps of the taps add what eight tokens have to add.
template <int kTaps, typename R>
HIPCONV_SIMD void add_products(float* sums, int64_t step, const Floats (&g)[kBlockTokens], Rows<R> x, int64_t c) {
    Floats sum[kTaps];
    for (int i = 0; i < kTaps; ++i) sum[i] = simd::load(sums + i * step);
#pragma GCC unroll 16
    for (int r = 0; r < kBlockTokens + kTaps - 1; ++r) {
        const Floats v = x.load(r, c);
#pragma GCC unroll 4
        for (int i = 0; i < kTaps; ++i)
            if (r - i >= 0 && r - i < kBlockTokens) sum[i] = sum[i] + g[r - i] * v;
    }
    for (int i = 0; i < kTaps; ++i) simd::store(sums + i * step, sum[i]);
}

// Makes the gradients of eight tokens from t on which see all their taps, and adds to the sums of the parameters.
template <typename R>
HIPCONV_SIMD void add_gradients(const Walk& walk, const Run<R>& run, int t, int64_t c, float* gradients) {
    const int width = walk.parameters.width;
    const Rows<const R> x = run.x.from(t - run.first), dout = run.dout.from(t - run.first);
    Floats g[kBlockTokens];
    if (walk.p.in.use_silu) {
        for (Floats& sum : g) sum = walk.parameters.bias(c);
        add_all_taps<1>(g, x, walk.parameters, c);
        for (int j = 0; j < kBlockTokens; ++j) g[j] = dout.load(j, c) * simd::silu_derivative(g[j]);
    } else {
        for (int j = 0; j < kBlockTokens; ++j) g[j] = dout.load(j, c);
    }
    for (int j = 0; j < kBlockTokens; ++j) simd::store(gradients + j * walk.step + c, g[j]);
    if (t >= walk.count) return;  // the next walk has them
    float* sums = walk.sums + c;
    Floats sum = simd::load(sums + width * walk.step);
    for (const Floats& v : g) sum = sum + v;
    simd::store(sums + width * walk.step, sum);
    int i = 0;
    for (; i + 4 <= width; i += 4) add_products<4>(sums + i * walk.step, walk.step, g, x.from(i), c);
    switch (width - i) {
        case 1:
            return add_products<1>(sums + i * walk.step, walk.step, g, x.from(i), c);
        case 2:
            return add_products<2>(sums + i * walk.step, walk.step, g, x.from(i), c);
        case 3:
            return add_products<3>(sums + i * walk.step, walk.step, g, x.from(i), c);
    }
}

// The same for one token and kVectors vectors; the token sees the taps with its own id. What it does not see is left out, not
// multiplied by zero, because 0 * inf is NaN.
template <int kVectors, typename R>
void add_gradient(const Walk& walk, const Run<R>& run, int t, int64_t c, float* gradient) {
    const int width = walk.parameters.width;
    const int32_t id = walk.id(t), *ids = walk.ids.from(t);
    const Rows<const R> x = run.x.from(t - run.first);
    Floats g[kVectors] = {};
    const auto add = [&](int row, auto term) __attribute__((always_inline)) {
        float* sum = walk.sums + row * walk.step + c;
        for (int v = 0; v < kVectors; ++v) simd::store(sum + v * kLanes, term(simd::load(sum + v * kLanes), v));
    };
    if (id != kNobody) {
        for (int v = 0; v < kVectors; ++v) g[v] = run.dout.load(t - run.first, c + v * kLanes);
        if (walk.p.in.use_silu) {
            Floats sums[kVectors];
            for (int v = 0; v < kVectors; ++v) sums[v] = walk.parameters.bias(c + v * kLanes);
            add_visible_taps<1>(sums, x, walk.parameters, ids, id, c);
            for (int v = 0; v < kVectors; ++v) g[v] = g[v] * simd::silu_derivative(sums[v]);
        }
        for (int i = 0; i < width && t < walk.count; ++i)
            if (ids[i] == id) add(i, [&](Floats sum, int v) { return sum + g[v] * x.load(i, c + v * kLanes); });
        if (t < walk.count) add(width, [&](Floats sum, int v) { return sum + g[v]; });
    }
    for (int v = 0; v < kVectors; ++v) simd::store(gradient + c + v * kLanes, g[v]);
}

// Makes dx of token t, or the gradient of an initial state's input.
template <int kVectors, typename R>
void store_input_gradient(const Walk& walk, const Run<R>& run, int t, int64_t c, const float* gradient) {
    const int past = walk.parameters.width - 1;
    const int64_t column = t - walk.left + past;
    const int32_t id = walk.id(t);
    Floats sums[kVectors] = {};
    if (walk.p.dfinal_states.data && column >= 0 && final_state_counts(walk.p.in, walk.b, walk.begin + t))
        for (int v = 0; v < kVectors; ++v) sums[v] = simd::load(walk.dfinal + column * walk.step + c + v * kLanes);
    for (int k = std::max(0, -t); k <= past && id != kNobody; ++k) {
        if (walk.id(t + k) != id) continue;
        for (int v = 0; v < kVectors; ++v) {
            const int64_t at = c + v * kLanes;
            sums[v] = sums[v] + walk.parameters.tap(past - k, at) * simd::load(gradient + k * walk.step + at);
        }
    }
    for (int v = 0; v < kVectors; ++v) {
        const int64_t at = c + v * kLanes;
        if (t >= 0)
            simd::store(run.dx.at(t - run.first + lag_of(past + 1), at), sums[v]);
        else
            simd::store(walk.dinitial + (t + past) * walk.step + at, sums[v]);
    }
}

// This goes through a run, in whole vectors of channels.
template <typename R>
void go(const Walk& walk, const Run<R>& run) {
    const int width = walk.parameters.width, past = width - 1, lag = lag_of(width);
    const bool has_dfinal = walk.p.dfinal_states.data, has_dinitial = walk.begin == 0 && walk.p.dinitial_states.data;
    for (int t = run.first; t < run.first + run.tokens; t += kBlockTokens) {
        float* gradients = walk.gradients + (t - run.first + lag) * walk.step;
        const bool see_all = walk.ids.alike(t, t + kBlockTokens + past);
        if (see_all)
            for (int64_t c = 0; c < walk.channels; c += kLanes) add_gradients(walk, run, t, c, gradients);
        for (int j = 0; j < kBlockTokens && !see_all; ++j)
            for_vectors(walk.channels, [&](auto vectors, int64_t c) {
                add_gradient<decltype(vectors)::value>(walk, run, t + j, c, gradients + j * walk.step);
            });
        const int to = t - lag;  // dx of the tokens from here on
        const float* seen_by = gradients - lag * walk.step;
        const bool all_see = to >= 0 && to + kBlockTokens <= walk.count &&
                             (!has_dfinal || to + kBlockTokens <= walk.left - past) &&
                             walk.ids.alike(to + past, to + past + kBlockTokens + past);
        for (int64_t c = 0; c < walk.channels && all_see; c += kLanes) {
            Floats sums[kBlockTokens] = {};
            add_all_taps<-1>(sums, Rows<const float>{seen_by, walk.step}, walk.parameters, c);
            for (int j = 0; j < kBlockTokens; ++j) simd::store(run.dx.at(to + j - run.first + lag, c), sums[j]);
        }
        for (int j = 0; j < kBlockTokens && !all_see; ++j)
            if (to + j < walk.count && to + j >= (has_dinitial ? -past : 0))
                for_vectors(walk.channels, [&](auto vectors, int64_t c) {
                    store_input_gradient<decltype(vectors)::value>(walk, run, to + j, c, seen_by + j * walk.step);
                });
    }
    std::copy_n(walk.gradients + run.tokens * walk.step, lag * walk.step, walk.gradients);
}

struct ChannelBuffers {
    Buffer<float> parameters, sums, gradients, x, dout, dx, dfinal, dinitial;
    TokenIds ids;

    ChannelBuffers(const Cut& cut, int width)
        : parameters((width + 1) * cut.channels), sums((width + 1) * cut.channels),
          gradients((lag_of(width) + cut.tokens) * cut.channels), x((width - 1 + cut.tokens) * cut.channels),
          dout(cut.tokens * cut.channels), dx(cut.tokens * cut.channels), dfinal(width * cut.channels),
          dinitial(width * cut.channels), ids(width + walk_of(width) + lag_of(width)) {}
};

// Through tiles, where rows that do not exist keep what they have: nobody looks at them.
template <typename T>
void go_through_tiles(const Walk& walk, const Run<T>& run, const ChannelBuffers& buffers) {
    const CausalConv1dBwdParams& p = walk.p;
    const int past = walk.parameters.width - 1, lag = lag_of(past + 1), count = static_cast<int>(walk.channels);
    const auto within = [&](int64_t t) { return static_cast<int>(std::min<int64_t>(t, walk.left)); };
    const auto load = [&](const Buffer<float>& to, int row, const Sequences& from, int64_t t, int tokens) {
        simd::load_tile(to.begin() + row * walk.step, walk.step, &at<const T>(from, walk.b, walk.d, t), from.dim_stride,
                        from.seqlen_stride, count, tokens);
    };
    const int64_t oldest = walk.begin + run.first - past;
    const int before = static_cast<int>(std::max<int64_t>(-oldest, 0)), end = within(run.first + run.tokens);
    if (before > 0 && p.in.initial_states.data) load(buffers.x, 0, p.in.initial_states, past - before, std::min(before, past));
    load(buffers.x, before, p.in.x, oldest + before, end - run.first + past - before);
    load(buffers.dout, 0, p.dout, walk.begin + run.first, end - run.first);

    go(walk, Run<float>{{buffers.x.begin(), walk.step},
                        {buffers.dout.begin(), walk.step},
                        {buffers.dx.begin(), walk.step},
                        run.first,
                        run.tokens});
    const int first = std::max(run.first - lag, 0), last = std::min(run.first - lag + run.tokens, walk.count);
    if (last > first)
        simd::store_tile(&at<T>(p.dx, walk.b, walk.d, walk.begin + first), p.dx.dim_stride, p.dx.seqlen_stride,
                         buffers.dx.begin() + (first - run.first + lag) * walk.step, walk.step, count, last - first);
}

template <typename T>
void along_channels(const CausalConv1dBwdParams& p) {
    const Cut cut = cut_of(p);
    const int width = p.in.width, past = width - 1, lag = lag_of(width);
    const int64_t length = walk_of(width), walks = ceil_of(p.in.seqlen, length);
    // Channels that fill no vector make a block of their own.
    const int64_t even = cut.in_place ? p.in.dim / kLanes * kLanes : p.in.dim, even_blocks = ceil_of(even, cut.channels);
    const int64_t items = (even_blocks + (even < p.in.dim)) * p.in.batch * walks;
#pragma omp parallel if (is_parallel(p))
    {
        ChannelBuffers buffers(cut, width);
        Parameters parameters{};
        int64_t loaded = -1;
#pragma omp for schedule(static)
        for (int64_t item = 0; item < items; ++item) {
            const int64_t block = item / (p.in.batch * walks), b = item / walks % p.in.batch;
            const int64_t d = block < even_blocks ? block * cut.channels : even;
            const int64_t channels = std::min(cut.channels, (block < even_blocks ? even : p.in.dim) - d);
            const int64_t step = round_up(channels, kLanes), begin = item % walks * length;
            const int count = static_cast<int>(std::min(length, p.in.seqlen - begin));
            if (loaded != d) parameters = load_parameters(buffers.parameters.begin(), step, p.in, d, channels);
            loaded = d;
            buffers.ids.load(p.in, b, begin - past, past + static_cast<int>(round_up(count, kBlockTokens)) + lag);
            std::fill_n(buffers.sums.begin(), (width + 1) * step, 0.0f);
            const Walk walk{p,
                            b,
                            d,
                            channels,
                            begin,
                            count,
                            p.in.seqlen - begin,
                            parameters,
                            buffers.ids,
                            buffers.sums.begin(),
                            buffers.gradients.begin(),
                            buffers.dfinal.begin(),
                            buffers.dinitial.begin(),
                            step};
            const bool has_dinitial = begin == 0 && p.dinitial_states.data;
            if (p.dfinal_states.data)
                simd::load_tile(walk.dfinal, step, &at<const T>(p.dfinal_states, b, d, 0), p.dfinal_states.dim_stride,
                                p.dfinal_states.seqlen_stride, static_cast<int>(channels), past);
            const bool in_place = cut.in_place && channels % kLanes == 0 && !(begin == 0 && p.in.initial_states.data);
            const int stop = static_cast<int>(round_up(count, kBlockTokens)) + lag;
            for (int t = 0; t < stop; t += cut.tokens) {
                const int tokens = std::min(cut.tokens, stop - t);
                const auto rows = [&](const Sequences& of, int64_t from) {
                    return Rows<T>{&at<T>(of, b, d, begin + from), of.seqlen_stride};
                };
                const auto inputs = [&](const Sequences& of, int64_t from) {
                    return Rows<const T>{&at<const T>(of, b, d, begin + from), of.seqlen_stride};
                };
                const Run<T> run{inputs(p.in.x, t - past), inputs(p.dout, t), rows(p.dx, t - lag), t, tokens};
                in_place ? go(walk, run) : go_through_tiles(walk, run, buffers);
            }
            if (has_dinitial)
                simd::store_tile(&at<T>(p.dinitial_states, b, d, 0), p.dinitial_states.dim_stride,
                                 p.dinitial_states.seqlen_stride, walk.dinitial, step, static_cast<int>(channels), past);
            float* to = partials_of(p, b * walks + item % walks, d);
            for (int i = 0; i <= width; ++i) std::copy_n(walk.sums + i * step, channels, to + i * int64_t{p.in.dim});
        }
    }
}

}  // namespace

int64_t bwd_walk_along_channels(const CausalConv1dBwdParams& p) { return walk_of(p.in.width); }

void causal_conv1d_bwd_along_channels(const CausalConv1dBwdParams& p) {
    with_dtype(p.in.dtype, [&](auto type) { along_channels<decltype(type)>(p); });
}

}  // namespace hipconv
