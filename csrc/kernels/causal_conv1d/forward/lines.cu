// This kernel is the causal conv1d forward by way of LDS in the tensors' own type ("lines"): it serves what the kernels that read
// memory as they compute are slow at. These are x and out of different layouts, and short rows in any layout.
//
// A block's tile comes to LDS with a line a channel (lines.h, lines_move.h), whatever the layout of x. A thread makes 16 places of
// a line: it reads them and the 8 before them in whole vectors, and puts outputs back where they were. A byte says which taps of
// a place see something; threads of which all taps do, or none, do without looking at it. So the rows of a tile need not begin
// anywhere in particular: rows of one token are 16 a thread.
//
// Bytes: each input is read once, those before a tile once more from the cache; each output is written once.
#include <hip/hip_runtime.h>

#include "../common/parts.h"
#include "kernels.h"
#include "launch/check.h"
#include "lines_move.h"
#include "token_taps.h"

namespace hipconv {

constexpr int kHalfRun = kLineRun / 2;

template <typename T>
constexpr int kLineBytes = ((kLineBefore + (kTilePlaces >> kMostLineBits)) * static_cast<int>(sizeof(T)) / 16 | 1) * 16
                           << kMostLineBits;

// The window of a thread as pairs of places half a run apart, from the one `kBack` before its first.
template <typename T, int kBack>
HIPCONV_INLINE void load_window(const char* own, Pair (&window)[kBack + kHalfRun]) {
    constexpr int kVector = kVectorOf<T>, kAll = kLineBefore + kLineRun;
    float values[kAll];
#pragma unroll
    for (int v = 0; v < kAll / kVector; ++v) {
        if ((v + 1) * kVector <= kLineBefore - kBack) continue;
        const Words4 words = reinterpret_cast<const Words4*>(own - kLineBefore * static_cast<int>(sizeof(T)))[v];
#pragma unroll
        for (int j = 0; j < kVector / 2; ++j) {
            const Pair both = pair_of<T>(words, j);
            values[v * kVector + 2 * j] = low(both);
            values[v * kVector + 2 * j + 1] = high(both);
        }
    }
#pragma unroll
    for (int i = 0; i < kBack + kHalfRun; ++i)
        window[i] = make_pair(values[kLineBefore - kBack + i], values[kLineBefore - kBack + i + kHalfRun]);
}

template <typename T>
HIPCONV_INLINE void store_run(char* own, const Pair (&sums)[kHalfRun]) {
    constexpr int kVector = kVectorOf<T>;
#pragma unroll
    for (int v = 0; v < kLineRun / kVector; ++v) {
        const auto value = [&](int i) { return i < kHalfRun ? low(sums[i % kHalfRun]) : high(sums[i % kHalfRun]); };
        Words4 words{};
#pragma unroll
        for (int j = 0; j < kVector / 2; ++j)
            set_pair<T>(words, j, make_pair(value(v * kVector + 2 * j), value(v * kVector + 2 * j + 1)));
        reinterpret_cast<Words4*>(own)[v] = words;
    }
}

// The parameters of a thread's channel; the taps that the width leaves out are zero.
template <int kWidth>
HIPCONV_INLINE void load_parameters(const CausalConv1dInputs& in, int d, float (&weight)[kWidth], float& bias) {
    const int left_out = kWidth - in.width;
    with_dtype(in.weight_dtype, [&](auto type) {
        using P = decltype(type);
        const P* const row = global_pointer<const P>(in.weight) + d * in.weight_dim_stride;
#pragma unroll
        for (int i = 0; i < kWidth; ++i) weight[i] = i < left_out ? 0.0f : parameter<P>(row, (i - left_out) * in.weight_width_stride);
    });
    bias = in.bias ? load_parameter(global_pointer<const char>(in.bias), d * in.bias_stride, in.bias_dtype) : 0.0f;
}

template <typename T, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kLineThreads, 3) causal_conv1d_fwd_lines(CausalConv1dFwdParams p, LinesPlan plan) {
    constexpr int kPast = kWidth - 1;
    HIPCONV_SHARED(Words4, lds, kLineBytes<T> / 16);
    HIPCONV_SHARED(uint32_t, found, kMostPlaces / 4);
    const uint32_t block = blockIdx.y * gridDim.x + blockIdx.x;
    if (block >= plan.all_blocks) return;
    let_next_kernel_begin();
    const LineTile tile(plan, block);
    const auto share = [&]() -> LineShare<T> { return {first_parameter_again(p), plan, tile, reinterpret_cast<char*>(lds)}; };
    const int thread = static_cast<int>(threadIdx.x), line = thread & ((1 << plan.line_bits) - 1);
    const int run = thread >> plan.line_bits, d = tile.first_channel + channel_of_line(plan, line);

    wait_for_kernel_before();
    float weight[kWidth] = {}, bias = 0.0f;
    if (d < p.dim) load_parameters<kWidth>(first_parameter_again(p), d, weight, bias);
    bring_x<T>(share());
    for (int n = thread; n < 1 << plan.place_bits; n += kLineThreads) {
        const LinePlace place = tile.place(p, plan, n);
        reinterpret_cast<uint8_t*>(found)[n] = place.is_token ? taps_of_token(first_parameter_again(p), place.b, place.t) : 0;
    }
    if (p.initial_states.data) {
        __syncthreads();  // where vectors of channels have left zeros
        bring_states<T>(share());
    }
    __syncthreads();

    char* const own = share().at(line, run * kLineRun);
    Pair window[kPast + kHalfRun], sums[kHalfRun];
    load_window<T, kPast>(own, window);
    const Words4 sights = reinterpret_cast<const Words4*>(found)[run];
    const uint32_t all_see = (1u << (p.width - 1)) - 1, each_byte = 0x01010101u * all_see;
    bool sees_all = true, sees_one = true;  // itself only
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        sees_all = sees_all && word(sights, k) == each_byte;
        sees_one = sees_one && (word(sights, k) & 0x7f7f7f7fu) == 0;
    }
#pragma unroll
    for (int t = 0; t < kHalfRun; ++t) sums[t] = twice(bias);
    if (__ballot(!sees_all) == 0) {
        const int left_out = kWidth - p.width;
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            if (i < left_out) continue;
#pragma unroll
            for (int t = 0; t < kHalfRun; ++t) sums[t] = multiply_add(twice(weight[i]), window[t + i], sums[t]);
        }
    } else if (__ballot(!sees_one) != 0) {
#pragma unroll
        for (int t = 0; t < kHalfRun; ++t) {
            const uint32_t first = word(sights, t / 4) >> t % 4 * 8, second = word(sights, t / 4 + 2) >> t % 4 * 8;
#pragma unroll
            for (int i = 0; i < kPast; ++i) {
                const int bit = kPast - 1 - i;
                sums[t] = multiply_add_where(first >> bit & 1, second >> bit & 1, twice(weight[i]), window[t + i], sums[t]);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < kHalfRun; ++t) sums[t] = multiply_add(twice(weight[kPast]), window[t + kPast], sums[t]);
    if (p.use_silu) {
#pragma unroll
        for (int t = 0; t < kHalfRun; ++t) sums[t] = silu(sums[t]);
    }
    if (p.seq_idx.data) {
#pragma unroll
        for (int t = 0; t < kHalfRun; ++t) {
            const bool first = word(sights, t / 4) >> (t % 4 * 8 + kPaddingBit) & 1;
            const bool second = word(sights, t / 4 + 2) >> (t % 4 * 8 + kPaddingBit) & 1;
            sums[t] = make_pair(first ? 0.0f : low(sums[t]), second ? 0.0f : high(sums[t]));
        }
    }
    __syncthreads();  // now outputs may take the place of inputs
    store_run<T>(own, sums);
    __syncthreads();
    take_out<T>(share(), first_parameter_again(p).out);
}

namespace {

// How a tensor is moved, and whether tokens are what lies side by side.
struct Layout {
    bool along_tokens, dense, in_words, aligned;
};

Layout layout_of(const Sequences& s, int size) {
    const auto magnitude = [](int64_t stride) { return stride < 0 ? -stride : stride; };
    Layout found{};
    found.along_tokens = magnitude(s.seqlen_stride) < magnitude(s.dim_stride);
    const int64_t inner = found.along_tokens ? s.seqlen_stride : s.dim_stride;
    const int64_t outer = found.along_tokens ? s.dim_stride : s.seqlen_stride;
    const auto begin_at = [&](int bytes) {
        return reinterpret_cast<uintptr_t>(s.data) % static_cast<unsigned>(bytes) == 0 && outer * size % bytes == 0 &&
               s.batch_stride * size % bytes == 0;
    };
    found.dense = inner == 1;
    found.in_words = begin_at(4);
    found.aligned = begin_at(16);
    return found;
}

// Of 64, 32 and 16 lines, those that leave the fewest idle; wider tiles have longer lines of memory.
int line_bits_for(int32_t dim) {
    int best = kMostLineBits;
    double least = 0;
    for (int bits = kMostLineBits; bits >= 4; --bits) {
        const int64_t lines = int64_t{1} << bits, covered = (dim + lines - 1) / lines * lines;
        const double cost = static_cast<double>(covered) * (bits == 6 ? 1.0 : bits == 5 ? 1.1 : 1.3);
        if (bits == kMostLineBits || cost < least) {
            best = bits;
            least = cost;
        }
    }
    while (best > kLeastLineBits && 1 << (best - 1) >= dim) --best;
    return best;
}

}  // namespace

LinesPlan lines_plan(const CausalConv1dFwdParams& p) {
    const int size = element_bytes(p.dtype), vector = 16 / size;
    LinesPlan plan{};
    const Layout x = layout_of(p.x, size), out = layout_of(p.out, size);
    plan.line_bits = line_bits_for(p.dim);
    plan.place_bits = 12 - plan.line_bits;
    static_assert(kTilePlaces == 1 << 12, "lines and places of a tile");
    const int lines = 1 << plan.line_bits, places = 1 << plan.place_bits;
    const bool has_vectors = lines >= vector && p.dim >= vector;
    plan.vector_bits = lines < vector ? 0 : vector == 8 ? 3 : 2;

    // Rows shorter than two or three vectors would leave too many places empty.
    const int64_t short_row = 3 * vector;
    const bool long_rows = p.seqlen >= short_row || p.seqlen % vector == 0;
    const auto moves = [&](const Layout& s, bool words_do) {
        if (!s.along_tokens)
            return s.dense && has_vectors && (s.aligned || s.in_words || words_do) ? LineMoves::channel_vectors
                                                                                    : LineMoves::channels;
        if (s.dense && long_rows) return LineMoves::token_vectors;
        return p.seqlen < places / 4 ? LineMoves::rows : LineMoves::tokens;
    };
    plan.x = {moves(x, true), x.aligned};
    plan.out = {moves(out, false), out.aligned};
    const auto either = [&](LineMoves m) { return plan.x.moves == m || plan.out.moves == m; };
    const int64_t past = p.initial_states.data ? p.width - 1 : 0;
    const auto whole = [&](int64_t n) { return either(LineMoves::token_vectors) ? (n + vector - 1) / vector * vector : n; };
    plan.head = static_cast<int32_t>(whole(past));
    const int64_t pitch = plan.head + whole(p.seqlen);
    plan.pitch = static_cast<int32_t>(pitch);
    plan.made = static_cast<int32_t>(either(LineMoves::rows) ? places / pitch * pitch : places);
    plan.of_pitch = pitch < places ? reciprocal_of(pitch) : 0;
    plan.of_seqlen = reciprocal_of(p.seqlen);
    plan.of_past = past > 0 ? reciprocal_of(past) : 0;
    plan.bytes = ((kLineBefore + places) * size / 16 | 1) * 16;
    plan.channels_first = !x.along_tokens;
    plan.states_by_channel = p.initial_states.data && !layout_of(p.initial_states, size).along_tokens;
    plan.channel_blocks = static_cast<uint32_t>((int64_t{p.dim} + lines - 1) / lines);
    const int64_t stream = pitch * p.batch;
    if (p.seqlen >= 1 << 30 || plan.made <= 0 || static_cast<double>(pitch) * p.batch > 2e9) return plan;
    plan.tiles = static_cast<uint32_t>((stream + plan.made - 1) / plan.made);
    const int64_t all = static_cast<int64_t>(plan.tiles) * plan.channel_blocks;
    plan.all_blocks = all < int64_t{1} << 31 ? static_cast<uint32_t>(all) : 0;
    return plan;
}

namespace {

template <typename T, int kWidth>
void launch(const CausalConv1dFwdParams& p, const LinesPlan& plan, hipStream_t stream) {
    const dim3 grid = plan.all_blocks <= kGridLimit / 2 ? dim3(plan.all_blocks, 1, 1)
                                                        : grid_of(kGridLimit / 2, (plan.all_blocks + kGridLimit / 2 - 1) / (kGridLimit / 2));
    HIPCONV_LAUNCH(true, (causal_conv1d_fwd_lines<T, kWidth>), grid, dim3(kLineThreads, 1, 1), 0, stream, p, plan);
    check_launch("causal_conv1d_fwd");
}

}  // namespace

const char* causal_conv1d_lines_refusal(const CausalConv1dFwdParams& p) {
    const bool fits = p.width <= kMaxFastWidth && lines_plan(p).all_blocks > 0;
    return fits ? nullptr : "widths 1 to 8, fewer than 2 * 10^9 tokens";
}

void causal_conv1d_lines(const CausalConv1dFwdParams& p, void* /*workspace*/, void* stream) {
    const LinesPlan plan = lines_plan(p);
    const hipStream_t s = static_cast<hipStream_t>(stream);
    with_dtype(p.dtype, [&](auto type) {
        using T = decltype(type);
        if (p.width <= 4)
            launch<T, 4>(p, plan, s);
        else
            launch<T, 8>(p, plan, s);
    });
}

}  // namespace hipconv
