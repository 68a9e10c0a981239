// This kernel is "tile" for few channels: a token takes less memory than accesses of a wave should have in one piece.
//
// A block's tokens are a flat stretch of memory, which comes to LDS as floats and goes back in whole vectors wherever tokens
// begin. In between, a thread walks a run of one channel in LDS, puts outputs where inputs were, and has the last tokens as a
// ring in registers. Memory in which tokens lie apart, or in which out is not aligned as x is, is copied element by element.
//
// Where sequences follow each other in memory, they are one stretch, and tokens that see no further than their sequence are
// told by a byte (token_taps.h); blocks in which all taps see something do without.
//
// Bytes: each input is read once (and kWidth - 1 tokens a block once more), each output is written once.
#include <hip/hip_runtime.h>

#include "../common/vector_math.h"
#include "kernels.h"
#include "launch/check.h"
#include "tile.h"
#include "token_taps.h"

namespace hipconv {

constexpr int kFewThreads = 128;
constexpr int kMostFew = 32;  // channels
// The longest run, in tokens: one more than a multiple of 16, so that threads are in LDS banks of their own.
constexpr int kFewRun = kHasPredicates ? 33 : 17;
constexpr int kFewVectors = (kFewThreads * kFewRun + (kMaxFastWidth - 1) * kMostFew + 16) / 4;  // of LDS

// The plan says how a launch divides the work. Threads that are neighbours have neighbouring channels, and then runs.
struct FewPlan {
    int run, runs;       // tokens of a thread; runs of a block
    int32_t reciprocal;  // of dim
    bool joined;         // sequences follow each other in memory
    bool x_in_vectors, out_in_vectors;
    int64_t tokens;               // of a stretch: all sequences that are joined, or one
    uint32_t blocks, all_blocks;  // of a stretch, and of all
    int64_t x_step, out_step;     // bytes from token to token
};

template <int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kFewThreads, kHasPredicates ? 9 : 6)
    causal_conv1d_fwd_tile_few(CausalConv1dFwdParams p, FewPlan plan) {
    constexpr int kPast = kWidth - 1;
    HIPCONV_SHARED(Words4, vectors, kFewVectors);
    HIPCONV_SHARED(uint8_t, taps, kFewThreads* kFewRun);
    float* const tile = reinterpret_cast<float*>(vectors);

    const uint32_t block = blockIdx.y * gridDim.x + blockIdx.x, stretch = block / plan.blocks;
    if (block >= plan.all_blocks) return;
    let_next_kernel_begin();
    const int64_t first = static_cast<int64_t>(block - stretch * plan.blocks) * plan.runs * plan.run;
    const int64_t left = plan.tokens - first;
    const int count = static_cast<int>(left < plan.runs * plan.run ? left : plan.runs * plan.run);
    const int thread = static_cast<int>(threadIdx.x), dim = p.dim;
    // Element i of the tile is channel i % dim of token first - kPast + i / dim.
    const int past = kPast * dim, elements = past + count * dim;
    const auto token_of = [&](int i) { return static_cast<int>(static_cast<uint32_t>(i) * plan.reciprocal >> 18); };
    const int64_t origin = (first - kPast) * dim, stretch_elements = plan.tokens * dim;

    wait_for_kernel_before();
    int lead = 0;  // elements that an aligned vector has before the tile
    with_dtype(p.dtype, [&](auto type) {
        using T = decltype(type);
        constexpr int kVector = 16 / static_cast<int>(sizeof(T)), kAtOnce = 4;
        const T* x = global_pointer<const T>(p.x.data) + stretch * p.x.batch_stride;
        if (plan.x_in_vectors) {
            lead = static_cast<int>(reinterpret_cast<uintptr_t>(x + origin) % 16 / sizeof(T));
            const int end = (lead + elements + kVector - 1) / kVector;
            for (int v = thread; v < end; v += kAtOnce * kFewThreads) {
                Words<T, kVector> loaded[kAtOnce];
#pragma unroll
                for (int u = 0; u < kAtOnce; ++u) {
                    const int vector = v + u * kFewThreads;
                    const int64_t at = origin + vector * kVector - lead;
                    loaded[u] = Words<T, kVector>{};
                    if (vector >= end) continue;
                    if (at >= 0 && at + kVector <= stretch_elements) {
                        loaded[u] = *reinterpret_cast<const Words<T, kVector>*>(x + at);
                    } else {
                        const int32_t before = at < 0 ? static_cast<int32_t>(-at) : 0;
                        const int64_t rest = stretch_elements - at;
                        const int32_t size = static_cast<int32_t>(rest < kVector ? rest : kVector) - before;
                        loaded[u] = load_part<T, kVector>(x + at + before, -before, size);
                    }
                }
#pragma unroll
                for (int u = 0; u < kAtOnce; ++u) {
                    const int vector = v + u * kFewThreads;
                    if (vector >= end) continue;
#pragma unroll
                    for (int j = 0; j < kVector / 2; ++j) {
                        const Pair both = pair_of<T>(loaded[u], j);
                        tile[vector * kVector + 2 * j] = low(both);
                        tile[vector * kVector + 2 * j + 1] = high(both);
                    }
                }
            }
        } else {
            if (plan.out_in_vectors) {
                const T* out = global_pointer<const T>(p.out.data) + stretch * p.out.batch_stride;
                lead = static_cast<int>(reinterpret_cast<uintptr_t>(out + origin) % 16 / sizeof(T));
            }
            const char* from = reinterpret_cast<const char*>(x) + (first - kPast) * plan.x_step;
            for (int i = thread; i < elements; i += kFewThreads) {
                const int t = token_of(i);
                if (first - kPast + t < 0) continue;
                tile[lead + i] = to_float(reinterpret_cast<const T*>(from + t * plan.x_step)[i - t * dim]);
            }
        }
    });
    const CausalConv1dFwdParams& again = first_parameter_again(p);  // takes fewer scalar registers
    if (first < kPast && again.initial_states.data) {
        __syncthreads();  // vectors that begin before the sequence have put zeros there
        with_dtype(again.dtype, [&](auto type) {
            using T = decltype(type);
            const Sequences& given = again.initial_states;
            const T* states = global_pointer<const T>(given.data) + stretch * given.batch_stride;
            for (int i = thread; i < (kPast - static_cast<int>(first)) * dim; i += kFewThreads) {
                const int t = token_of(i);
                tile[lead + i] = to_float(states[(i - t * dim) * given.dim_stride + (first + t) * given.seqlen_stride]);
            }
        });
    }
    // The first token's sequence and its place there.
    const uint32_t seqlen = static_cast<uint32_t>(again.seqlen);
    int64_t b = stretch, at_first = first;
    if (plan.joined) {
        b = plan.tokens >> 32 ? first / seqlen : static_cast<uint32_t>(first) / seqlen;
        at_first = first - b * seqlen;
    }
    const bool sees_past = at_first >= kPast || (at_first == 0 && again.initial_states.data);
    const bool is_plain = !again.seq_idx.data && sees_past && at_first + count <= seqlen;
    if (!is_plain) {
        for (int i = thread; i < count; i += kFewThreads) {
            const uint32_t at = static_cast<uint32_t>(at_first) + i, later = at / seqlen;
            taps[i] = taps_of_token(again, b + later, at - later * seqlen);
        }
    }
    const int run = token_of(thread), channel = thread - run * dim;
    const int begin = run * plan.run;
    const int tokens = run >= plan.runs || begin >= count ? 0 : count - begin < plan.run ? count - begin : plan.run;
    __syncthreads();

    float weight[kWidth], bias = 0.0f, ring[kWidth];
    int place = lead + begin * dim + channel;  // in the tile
    if (tokens > 0) {
        with_dtype(again.weight_dtype, [&](auto type) {
            using P = decltype(type);
            const P* weights = global_pointer<const P>(again.weight);
#pragma unroll
            for (int i = 0; i < kWidth; ++i)
                weight[i] = parameter<P>(weights, channel * again.weight_dim_stride + i * again.weight_width_stride);
        });
        if (again.bias)
            bias = load_parameter(global_pointer<const char>(again.bias), channel * again.bias_stride, again.bias_dtype);
#pragma unroll
        for (int i = 0; i < kPast; ++i) ring[i] = tile[place + i * dim];
    }
    place += past;
    __syncthreads();  // now outputs may take the place of inputs

    const auto walk = [&](auto all_see) {
        const auto produce = [&](int slot, int t) {
            ring[slot] = tile[place];
            const int token_taps = decltype(all_see)::value ? 0 : taps[begin + t];
            float sum = bias;
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
                if (!decltype(all_see)::value && i < kPast && !(token_taps >> (kPast - 1 - i) & 1)) continue;
                sum = low(multiply_add(twice(weight[i]), twice(ring[(slot + 1 + i) % kWidth]), twice(sum)));  // as the others
            }
            if (again.use_silu) sum = silu(sum);
            if (!decltype(all_see)::value && token_taps >> kPaddingBit) sum = 0.0f;
            tile[place] = sum;
            place += dim;
            if (!decltype(all_see)::value) keep_order();  // or the masks of all tokens take scalar registers at once
        };
        int t = 0;
        for (; t + kWidth <= tokens; t += kWidth) {
#pragma unroll
            for (int j = 0; j < kWidth; ++j) produce((kPast + j) % kWidth, t + j);
        }
#pragma unroll
        for (int j = 0; j < kPast; ++j)
            if (t + j < tokens) produce((kPast + j) % kWidth, t + j);
    };
    if (is_plain)
        walk(std::true_type{});
    else
        walk(std::false_type{});
    __syncthreads();

    const CausalConv1dFwdParams& last = first_parameter_again(p);
    with_dtype(last.dtype, [&](auto type) {
        using T = decltype(type);
        constexpr int kVector = 16 / static_cast<int>(sizeof(T));
        const Sequences& written = last.out;
        T* out = global_pointer<T>(written.data) + stretch * written.batch_stride;
        if (plan.out_in_vectors) {
            out += origin - lead;
            for (int v = (lead + past) / kVector + thread; v * kVector < lead + elements; v += kFewThreads) {
                Words<T, kVector> words{};
#pragma unroll
                for (int j = 0; j < kVector / 2; ++j)
                    set_pair<T>(words, j, make_pair(tile[v * kVector + 2 * j], tile[v * kVector + 2 * j + 1]));
                if (v * kVector >= lead + past && (v + 1) * kVector <= lead + elements)
                    *reinterpret_cast<Words<T, kVector>*>(out + v * kVector) = words;
                else
                    store_part<T, kVector>(out + lead + past, v * kVector - lead - past, elements - past, words);
            }
        } else {
            char* to = reinterpret_cast<char*>(out) + (first - kPast) * plan.out_step;
            for (int i = past + thread; i < elements; i += kFewThreads) {
                const int t = token_of(i);
                reinterpret_cast<T*>(to + t * plan.out_step)[i - t * dim] = from_float<T>(tile[lead + i]);
            }
        }
    });
}

namespace {

bool is_dense(const CausalConv1dFwdParams& p, const Sequences& s) { return s.seqlen_stride == p.dim; }

FewPlan few_plan(const CausalConv1dFwdParams& p) {
    FewPlan plan{};
    const int size = element_bytes(p.dtype);
    const bool dense = is_dense(p, p.x) && is_dense(p, p.out);
    const auto follow = [&](const Sequences& s) { return p.batch == 1 || s.batch_stride == int64_t{p.seqlen} * p.dim; };
    plan.joined = dense && !p.initial_states.data && follow(p.x) && follow(p.out);
    plan.tokens = plan.joined ? int64_t{p.batch} * p.seqlen : p.seqlen;
    plan.runs = kFewThreads / p.dim;
    const int64_t stretches = plan.joined ? 1 : p.batch;
    const auto blocks = [&](int run) { return (plan.tokens + plan.runs * run - 1) / (plan.runs * run); };
    plan.run = kFewRun;
    while (plan.run > 5 && blocks(plan.run) * stretches * kFewThreads < kEnoughThreads) plan.run = plan.run / 2 + 1;
    const int64_t all = blocks(plan.run) * stretches;
    plan.blocks = static_cast<uint32_t>(blocks(plan.run));
    plan.all_blocks = all < int64_t{1} << 31 ? static_cast<uint32_t>(all) : 0;
    plan.reciprocal = ((1 << 18) + p.dim - 1) / p.dim;
    const auto address = [](const Sequences& s) { return reinterpret_cast<uintptr_t>(s.data); };
    const auto batch_bytes = [&](const Sequences& s) { return s.batch_stride * size; };
    plan.out_in_vectors = is_dense(p, p.out);
    plan.x_in_vectors = is_dense(p, p.x) && (!plan.out_in_vectors || ((address(p.x) - address(p.out)) % 16 == 0 &&
                                                                      (batch_bytes(p.x) - batch_bytes(p.out)) % 16 == 0));
    plan.x_step = p.x.seqlen_stride * size;
    plan.out_step = p.out.seqlen_stride * size;
    return plan;
}

}  // namespace

// It is faster where tokens lie close together; and where lanes of the other kernels would be wider than a token, nothing else
// serves.
bool causal_conv1d_tile_few_is_faster(const CausalConv1dFwdParams& p) {
    const int size = element_bytes(p.dtype), bytes = lane_bytes(p.width);
    if (p.dim < bytes / size) return true;
    return is_dense(p, p.x) && is_dense(p, p.out) && p.dim <= kMostFew && p.dim * size < (tile_is_whole(p, bytes) ? 32 : 64);
}

bool causal_conv1d_tile_few_fits(const CausalConv1dFwdParams& p) { return few_plan(p).all_blocks > 0; }

void causal_conv1d_tile_few(const CausalConv1dFwdParams& p, hipStream_t stream) {
    const FewPlan plan = few_plan(p);
    const dim3 grid = plan.all_blocks <= kGridLimit ? dim3(plan.all_blocks, 1, 1)
                                                    : grid_of(kGridLimit, (plan.all_blocks + kGridLimit - 1) / kGridLimit);
    with_width<kMaxFastWidth>(p.width, [&](auto width) {
        HIPCONV_LAUNCH(true, (causal_conv1d_fwd_tile_few<decltype(width)::value>), grid, dim3(kFewThreads, 1, 1), 0, stream, p,
                       plan);
    });
    check_launch("causal_conv1d_fwd");
}

}  // namespace hipconv
