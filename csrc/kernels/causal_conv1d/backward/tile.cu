// This kernel is the causal conv1d backward, channel-last ("tile"): neighbouring channels are neighbours in memory.
//
// A thread owns the kChannels channels of one vector and walks a run of tokens, as the forward's kernel of this name does, with
// a second ring beside the ring of inputs: the last kWidth gradients g of the sums. Token t brings in x[t] and dout[t], from
// which g[t] follows, which completes dx[t - kWidth + 1]. So a run reads a halo of kWidth - 1 inputs before it and kWidth - 1
// tokens of both after it; these tokens belong to its neighbours, who sum dweight over them.
//
// The mainloop does kBlock tokens at a time. Blocks inside a run take a path without conditions (steady, with SiLU); blocks at
// the ends of a run check which tokens to load, sum and store (inside); and where a row ends, or tokens have sequence ids,
// blocks check of each tap whether it counts (checked).
//
// A block of threads adds up its threads' dweight and dbias in LDS and leaves them in its row of the workspace.
//
// Bytes: x and dout are read once from memory (and kWidth - 1 tokens a run again from cache), dx is written once.
#include <hip/hip_runtime.h>

#include "causal_conv1d/states_formula.h"
#include "kernels.h"
#include "launch/check.h"
#include "parts.h"
#include "sums.h"
#include "taps.h"

namespace hipconv {

constexpr int kBwdTileThreads = 128;
constexpr int kBwdTileLanes = 32;    // the most vectors of channels that a block is wide
constexpr int kBwdTileMaxRun = 128;  // tokens
constexpr int kBwdTileMinRun = 8;

// This plan says how a launch divides the work. A block is blockDim.x vectors of channels by blockDim.y rows; a row is one run
// of tokens. Where a sequence has fewer runs than the block has rows, the block takes several sequences.
struct BwdTilePlan {
    int run;                     // tokens
    uint32_t log2_runs_a_block;  // of one sequence
    uint32_t sequences_a_block, blocks_a_sequence;
    uint32_t blocks;                     // of all sequences: the rows of the workspace
    int64_t x_step, dout_step, dx_step;  // bytes from token to token
    int64_t x_further, dout_further;     // bytes from a token that is loaded to one that the cache is asked for
    bool packed;                         // load_packed serves weight and bias
    uint32_t log2_channels;              // of a block
};

enum class Path { steady, inside, checked };

template <int kWidth>
constexpr int kBwdBlock = kWidth == 2 ? 4 : kWidth;  // tokens loaded ahead; whole turns of a ring of the width
template <int kWidth>
constexpr int kBwdFurther = kBwdBlock<kWidth>;  // tokens after those, to have in the cache
constexpr int kBwdLaneBytes = 8;
constexpr int bwd_tile_blocks(bool states) { return states ? 3 : 4; }

template <typename T, int kChannels, int kWidth, bool kStates>
__global__ void HIPCONV_LAUNCH_BOUNDS(kBwdTileThreads, bwd_tile_blocks(kStates))
    causal_conv1d_bwd_tile_kernel(CausalConv1dBwdParams p, BwdTilePlan plan) {
    constexpr int kPast = kWidth - 1;
    constexpr int kPairs = (kChannels + 1) / 2, kHigh = kChannels > 1;
    constexpr int kBlock = kBwdBlock<kWidth>, kFurther = kBwdFurther<kWidth>;
    using Vector = Words<T, kChannels>;
    HIPCONV_SHARED(float, sums, kBwdTileThreads*(kWidth + 1) * kChannels);

    let_next_kernel_begin();
    wait_for_kernel_before();
    const uint32_t block = blockIdx.z * gridDim.y + blockIdx.y;
    if (block >= plan.blocks) return;
    const uint32_t sequences = block / plan.blocks_a_sequence;
    const uint32_t first_run = (block - sequences * plan.blocks_a_sequence) << plan.log2_runs_a_block;
    const uint32_t b = sequences * plan.sequences_a_block + (threadIdx.y >> plan.log2_runs_a_block);
    const uint32_t begin = (first_run + (threadIdx.y & ((1u << plan.log2_runs_a_block) - 1))) * static_cast<uint32_t>(plan.run);
    const uint32_t d = (blockIdx.x * blockDim.x + threadIdx.x) * kChannels;
    // These count the tokens of the row from here on, and those of this run. The run visits kPast more tokens than it has.
    const auto below = [](uint32_t value, int32_t size) { return value < static_cast<uint32_t>(size); };
    const bool active = below(d, p.in.dim) && below(b, p.in.batch) && (below(begin, p.in.seqlen) || begin == 0);
    const int left = active ? p.in.seqlen - static_cast<int>(begin) : 0;
    const int tokens = !active ? -kPast : left < plan.run ? left : plan.run;
    const auto stop = [&]() { return tokens + kPast; };
    const auto is_loaded = [&](int t) { return t < stop() && t < left; };

    const auto base = [&](const Sequences& s, int64_t step) {
        return static_cast<char*>(s.data) + (int64_t{b} * s.batch_stride + d) * static_cast<int64_t>(sizeof(T)) +
               int64_t{begin} * step;
    };
    const auto load = [](const char* from) { return *reinterpret_cast<const Vector*>(from); };
    const char* x = base(p.in.x, plan.x_step);
    const char* dout = base(p.dout, plan.dout_step);
    char* dx = base(p.dx, plan.dx_step) - kPast * plan.dx_step;

    // Channel c at a column of a state, of any strides.
    const auto state = [&](const Sequences& s, int column, int c) -> T& {
        return static_cast<T*>(
            s.data)[int64_t{b} * s.batch_stride + int64_t{d + c} * s.dim_stride + int64_t{column} * s.seqlen_stride];
    };
    const auto pair_of_state = [&](const Sequences& s, int column, int v) {
        return make_pair(to_float(state(s, column, 2 * v)), to_float(state(s, column, 2 * v + kHigh)));
    };
    // The final state's gradient adds this to the gradient of the input at `t` of the run.
    const auto of_final_state = [&](int t, int v) {
        const int32_t position = static_cast<int32_t>(begin) + t, column = position - p.in.seqlen + kPast;
        if (!kStates || !p.dfinal_states.data || column < 0 || !final_state_counts(p.in, b, position)) return twice(0.0f);
        return pair_of_state(p.dfinal_states, column, v);
    };
    Vector x_ahead[kBlock], dout_ahead[kBlock], before[kPast];
#pragma unroll
    for (int i = 0; i < kPast; ++i) {
        before[i] = Vector{};
        if (active && begin + i >= static_cast<uint32_t>(kPast)) {
            before[i] = load(x - (kPast - i) * plan.x_step);
        } else if (kStates && active && p.in.initial_states.data) {
#pragma unroll
            for (int j = 0; j < kPairs; ++j)
                set_pair<T>(before[i], j, pair_of_state(p.in.initial_states, static_cast<int>(begin) + i, j));
        }
    }
#pragma unroll
    for (int j = 0; j < kBlock; ++j) {
        x_ahead[j] = dout_ahead[j] = Vector{};
        if (is_loaded(j)) {
            x_ahead[j] = load(x);
            dout_ahead[j] = load(dout);
        }
        x += plan.x_step;
        dout += plan.dout_step;
    }

    Pair weight[kWidth][kPairs], bias[kPairs];
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
        bias[j] = twice(0.0f);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) weight[i][j] = twice(0.0f);
    }
    if (active) {
        float weights[kChannels * kWidth], biases[kChannels] = {};
        with_dtype(p.in.weight_dtype, [&](auto type) {
            using P = decltype(type);
            if (plan.packed) {
                load_packed(static_cast<const P*>(p.in.weight) + int64_t{d} * kWidth, weights);
                return;
            }
#pragma unroll
            for (int c = 0; c < kChannels; ++c) {
#pragma unroll
                for (int i = 0; i < kWidth; ++i)
                    weights[c * kWidth + i] =
                        parameter<P>(p.in.weight, int64_t{d + c} * p.in.weight_dim_stride + i * p.in.weight_width_stride);
            }
        });
        if (p.in.bias) {
            with_dtype(p.in.bias_dtype, [&](auto type) {
                using P = decltype(type);
                if (plan.packed) {
                    load_packed(static_cast<const P*>(p.in.bias) + d, biases);
                    return;
                }
#pragma unroll
                for (int c = 0; c < kChannels; ++c) biases[c] = parameter<P>(p.in.bias, int64_t{d + c} * p.in.bias_stride);
            });
        }
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
            bias[j] = make_pair(biases[2 * j], biases[2 * j + kHigh]);
#pragma unroll
            for (int i = 0; i < kWidth; ++i)
                weight[i][j] = make_pair(weights[2 * j * kWidth + i], weights[(2 * j + kHigh) * kWidth + i]);
        }
    }

    Pair inputs[kWidth][kPairs], gradients[kWidth][kPairs], dweight[kWidth][kPairs], dbias[kPairs];
    const auto keep = [&](int slot, Vector v) {
#pragma unroll
        for (int j = 0; j < kPairs; ++j) inputs[slot][j] = pair_of<T>(v, j);
    };
#pragma unroll
    for (int i = 0; i < kPast; ++i) keep(i + 1, before[i]);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
        dbias[j] = twice(0.0f);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) gradients[i][j] = dweight[i][j] = twice(0.0f);
    }

    // These masks have a bit for each tap that counts, of a token and of the kPast tokens before it: each token shifts the
    // earlier bits up by kWidth.
    using Taps = std::conditional_t<kWidth <= 5, uint32_t, uint64_t>;
    Taps taps = 0;
    constexpr uint32_t kAllTaps = (1u << kWidth) - 1;
    const auto taps_of = [&](int t) -> uint32_t {
        const int32_t position = static_cast<int32_t>(begin) + t;
        if (position >= p.in.seqlen) return 0;
        if (kStates && p.taps) return *bwd_taps_of(p, b, position);
        const bool sees_all = position >= kPast || (kStates && p.in.initial_states.data);
        return sees_all ? kAllTaps : kAllTaps << (kPast - position) & kAllTaps;
    };

    // This does token t, the j-th of its block. Where taps are checked, those in own_taps count.
    const auto step = [&](auto path, int t, int j, uint32_t own_taps) {
        constexpr bool kSteady = decltype(path)::value == Path::steady, kChecked = decltype(path)::value == Path::checked;
        const int slot = j % kWidth;
        keep(slot, x_ahead[j]);
        const Vector dout_now = dout_ahead[j];
        if (kSteady || is_loaded(t + kBlock)) {
            x_ahead[j] = load(x);
            dout_ahead[j] = load(dout);
        }
        if (kSteady) {
            prefetch(x + plan.x_further);
            prefetch(dout + plan.dout_further);
        }
        x += plan.x_step;
        dout += plan.dout_step;
        if (kChecked) taps = taps << kWidth | own_taps;
        const auto counts = [&](int i) { return !kChecked || (own_taps >> i & 1); };

#pragma unroll
        for (int v = 0; v < kPairs; ++v) {
            Pair g = pair_of<T>(dout_now, v);
            if (kSteady || p.in.use_silu) {
                Pair sum = bias[v];
#pragma unroll
                for (int i = 0; i < kWidth; ++i)
                    if (counts(i)) sum = multiply_add(weight[i][v], inputs[(slot + 1 + i) % kWidth][v], sum);
                g = multiply(g, silu_derivative(sum));
            }
            if (!counts(kPast)) g = twice(0.0f);  // after the row, or padding
            gradients[slot][v] = g;
            if (kSteady || t < tokens) {
                dbias[v] = add(dbias[v], g);
#pragma unroll
                for (int i = 0; i < kWidth; ++i)
                    if (counts(i)) dweight[i][v] = multiply_add(g, inputs[(slot + 1 + i) % kWidth][v], dweight[i][v]);
            }
        }

        Vector result{};
#pragma unroll
        for (int v = 0; v < kPairs; ++v) {
            Pair sum = twice(0.0f);
#pragma unroll
            for (int k = 0; k < kWidth; ++k)
                if (!kChecked || (taps >> (kPast - k) * (kWidth + 1) & 1))
                    sum = multiply_add(weight[kPast - k][v], gradients[(slot + 1 + k) % kWidth][v], sum);
            if (kStates && kChecked) sum = add(sum, of_final_state(t - kPast, v));
            set_pair<T>(result, v, sum);
        }
        if (kSteady || (t >= kPast && t < stop())) {
            *reinterpret_cast<Vector*>(dx) = result;
        } else if (kStates && kChecked && begin == 0 && t < kPast && p.dinitial_states.data) {
#pragma unroll
            for (int c = 0; c < kChannels; ++c)
                state(p.dinitial_states, t, c) =
                    from_float<T>(c % 2 ? high(pair_of<T>(result, c / 2)) : low(pair_of<T>(result, c / 2)));
        }
        dx += plan.dx_step;
    };
    const bool asks_first = begin < static_cast<uint32_t>(kPast);
    const bool has_ids = kStates && p.taps;
    bool had_all = false;  // whether all taps of the block before count
    for (int t = 0; t < stop(); t += kBlock) {
        bool asks = (asks_first && t == 0) || t + kBlock > left;
        uint32_t own_taps[kBlock];
        if (asks || has_ids) {
            bool has_all = true;
#pragma unroll
            for (int j = 0; j < kBlock; ++j) {
                own_taps[j] = taps_of(t + j);
                has_all = has_all && own_taps[j] == kAllTaps;
            }
            if (has_ids) asks = asks || !has_all || !had_all;
            had_all = has_all;
        }
        if (asks) {
#pragma unroll
            for (int j = 0; j < kBlock; ++j)
                if (t + j < stop()) step(std::integral_constant<Path, Path::checked>{}, t + j, j, own_taps[j]);
            continue;
        }
        if (p.in.use_silu && t > 0 && t + 2 * kBlock <= tokens && t + 2 * kBlock + kFurther <= left) {
#pragma unroll
            for (int j = 0; j < kBlock; ++j) step(std::integral_constant<Path, Path::steady>{}, t + j, j, 0);
        } else {
#pragma unroll
            for (int j = 0; j < kBlock; ++j) step(std::integral_constant<Path, Path::inside>{}, t + j, j, 0);
        }
        taps = static_cast<Taps>(-1);  // all taps of these tokens count
    }

    // ---- dweight and dbias of the block -------------------------------------------------------------------------------------
    const int threads = static_cast<int>(blockDim.x * blockDim.y);
    const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
#pragma unroll
    for (int i = 0; i <= kWidth; ++i) {
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
            const Pair both = i < kWidth ? dweight[i < kWidth ? i : 0][c / 2] : dbias[c / 2];
            sums[(i * kChannels + c) * threads + thread] = c % 2 ? high(both) : low(both);
        }
    }
    __syncthreads();
    const int channels = 1 << plan.log2_channels;
    const int64_t first_channel = static_cast<int64_t>(blockIdx.x) * channels;
    float* partials = static_cast<float*>(p.partials) + static_cast<int64_t>(block) * (kWidth + 1) * p.in.dim + first_channel;
    for (int e = thread; e < (kWidth + 1) * channels; e += threads) {
        const int i = e >> plan.log2_channels, c = e & (channels - 1);
        if (first_channel + c >= p.in.dim) continue;
        const float* column = sums + (i * kChannels + c % kChannels) * threads + c / kChannels;
        float sum = 0.0f;
        for (unsigned row = 0; row < blockDim.y; ++row) sum += column[row * blockDim.x];
        partials[static_cast<int64_t>(i) * p.in.dim + c] = sum;
    }
}

namespace {

// The number of channels of one vector: as many as a lane's bytes hold, if every vector is aligned; else one.
int bwd_channels_a_vector(const CausalConv1dBwdParams& p) {
    constexpr int bytes = kBwdLaneBytes;
    const int wanted = bytes / element_bytes(p.in.dtype);
    const auto aligned = [&](const Sequences& s) {
        return reinterpret_cast<uintptr_t>(s.data) % bytes == 0 && s.seqlen_stride % wanted == 0 &&
               s.batch_stride % wanted == 0;
    };
    return p.in.dim % wanted == 0 && aligned(p.in.x) && aligned(p.dout) && aligned(p.dx) ? wanted : 1;
}

bool bwd_tile_has_states(const CausalConv1dBwdParams& p) { return p.in.seq_idx.data || bwd_has_states(p); }

struct BwdTileShape {
    int64_t vectors;  // of channels
    unsigned lanes, rows;
    int run;  // tokens
    unsigned runs_a_block, sequences_a_block;
    int64_t groups;  // blocks along the channels
    int64_t blocks_a_sequence, blocks;
};

BwdTileShape bwd_tile_shape(const CausalConv1dBwdParams& p, int channels) {
    BwdTileShape s{};
    s.vectors = p.in.dim / channels;
    s.lanes = power_of_two_up_to(s.vectors, kBwdTileLanes);
    s.rows = kBwdTileThreads / s.lanes;
    const int64_t seqlen = p.in.seqlen > 0 ? p.in.seqlen : 1;
    const auto runs_of = [&](int run) { return (seqlen + run - 1) / run; };
    s.run = kBwdTileMaxRun;
    while (s.run > kBwdTileMinRun && s.vectors * p.in.batch * runs_of(s.run) < kEnoughThreads) s.run /= 2;
    s.runs_a_block = power_of_two_up_to(runs_of(s.run), s.rows);
    const int64_t wanted = (runs_of(s.run) + s.runs_a_block - 1) / s.runs_a_block * s.runs_a_block;
    s.run = static_cast<int>((seqlen + wanted - 1) / wanted);
    s.sequences_a_block = s.rows / s.runs_a_block;
    s.groups = (s.vectors + s.lanes - 1) / s.lanes;
    s.blocks_a_sequence = (runs_of(s.run) + s.runs_a_block - 1) / s.runs_a_block;
    s.blocks = s.blocks_a_sequence * ((static_cast<int64_t>(p.in.batch) + s.sequences_a_block - 1) / s.sequences_a_block);
    return s;
}

template <typename T, int kChannels, int kWidth, bool kStates>
void launch(const CausalConv1dBwdParams& p, hipStream_t stream) {
    const BwdTileShape shape = bwd_tile_shape(p, kChannels);
    BwdTilePlan plan{};
    plan.run = shape.run;
    while (1u << plan.log2_runs_a_block < shape.runs_a_block) ++plan.log2_runs_a_block;
    plan.sequences_a_block = shape.sequences_a_block;
    plan.blocks_a_sequence = static_cast<uint32_t>(shape.blocks_a_sequence);
    plan.blocks = static_cast<uint32_t>(shape.blocks);
    plan.x_step = p.in.x.seqlen_stride * static_cast<int64_t>(sizeof(T));
    plan.dout_step = p.dout.seqlen_stride * static_cast<int64_t>(sizeof(T));
    plan.x_further = kBwdFurther<kWidth> * plan.x_step;
    plan.dout_further = kBwdFurther<kWidth> * plan.dout_step;
    plan.dx_step = p.dx.seqlen_stride * static_cast<int64_t>(sizeof(T));
    while (1u << plan.log2_channels < shape.lanes * kChannels) ++plan.log2_channels;
    const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
    plan.packed = kChannels > 1 && p.in.weight_width_stride == 1 && p.in.weight_dim_stride == kWidth && aligned(p.in.weight) &&
                  (!p.in.bias || (p.in.bias_stride == 1 && aligned(p.in.bias)));
    const dim3 grid = grid_of(shape.groups, shape.blocks), block(shape.lanes, shape.rows, 1);
    const bool early = p.taps != nullptr;
    HIPCONV_LAUNCH(early, (causal_conv1d_bwd_tile_kernel<T, kChannels, kWidth, kStates>), grid, block, 0, stream, p, plan);
    check_launch("causal_conv1d_bwd");
}

BwdPartials partials_of(const CausalConv1dBwdParams& p) {
    return equal_partials(bwd_tile_shape(p, bwd_channels_a_vector(p)).blocks);
}

}  // namespace

const char* causal_conv1d_bwd_tile_refusal(const CausalConv1dBwdParams& p) {
    const char* served =
        "channel-last x, dout and dx (stride 1 along dim), widths 2 to 4; with seq_idx or states, of aligned vectors";
    if (p.in.width < 2 || p.in.width > kMaxFastBwdWidth || p.in.seqlen > INT32_MAX - 4096) return served;
    if (p.in.x.dim_stride != 1 || p.dout.dim_stride != 1 || p.dx.dim_stride != 1) return served;
    if (bwd_tile_has_states(p) && bwd_channels_a_vector(p) == 1) return served;
    const BwdTileShape shape = bwd_tile_shape(p, bwd_channels_a_vector(p));
    return shape.groups <= kGridLimit && shape.blocks < int64_t{1} << 31 ? nullptr : served;
}

int64_t causal_conv1d_bwd_tile_workspace(const CausalConv1dBwdParams& p) {
    return bwd_sums_workspace(p, partials_of(p), /*looks_at_taps=*/true);
}

void causal_conv1d_bwd_tile(const CausalConv1dBwdParams& params, void* workspace, void* stream) {
    const hipStream_t s = static_cast<hipStream_t>(stream);
    const BwdPartials partials = partials_of(params);
    const CausalConv1dBwdParams p = bwd_sums_begin(params, partials, /*looks_at_taps=*/true, workspace, s);
    with_instance<kMaxFastBwdWidth>(p.in.dtype, p.in.width, [&](auto type, auto width) {
        using T = decltype(type);
        constexpr int kWidth = decltype(width)::value;
        constexpr int kWide = kBwdLaneBytes / static_cast<int>(sizeof(T));
        if (bwd_tile_has_states(p)) {
            launch<T, kWide, kWidth, true>(p, s);
        } else if (bwd_channels_a_vector(p) == 1) {
            launch<T, 1, kWidth, false>(p, s);
        } else {
            launch<T, kWide, kWidth, false>(p, s);
        }
    });
    bwd_sums_add_up(p, partials, s);
}

}  // namespace hipconv
