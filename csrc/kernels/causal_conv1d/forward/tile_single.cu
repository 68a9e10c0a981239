// This kernel is "tile" with a channel a thread: for memory in which no aligned vector lies.
//
// Neighbouring lanes have neighbouring channels, so a wave reads and writes a stretch of a token in one piece, wherever that
// begins: nothing is shifted, and no two lanes have to put a vector together. A thread walks a run of tokens, of which the
// last are a ring in registers, and the next ones are under way. Threads follow one another along channels, and then runs, so
// none is idle, whatever the dim.
//
// With ids, a block first makes a byte a token that says which taps see something (token_taps.h); if all do, it looks no
// further.
//
// Bytes: each input is read once from memory (and kWidth - 1 tokens a run once more from cache), each output is written once.
#include <hip/hip_runtime.h>

#include "../common/vector_math.h"
#include "kernels.h"
#include "launch/check.h"
#include "lines.h"
#include "tile.h"
#include "token_taps.h"
#include "vector_parts.h"

namespace hipconv {

constexpr int kSingleThreads = 128;
constexpr int kSingleRun = 32;                                    // tokens at most
constexpr int kFewestSingles = 32;                                // channels, lest a wave's lanes be in many runs
constexpr int kSingleRows = kSingleThreads / kFewestSingles + 1;  // runs in which a block has threads

struct SinglePlan {
    int32_t run;
    uint32_t runs_a_sequence, rows;  // runs of all sequences
    uint64_t of_dim, of_runs;
    int64_t x_step, out_step;  // bytes
};

constexpr int single_blocks(int width) { return width <= 3 ? 10 : width == 4 ? 9 : 8; }

template <typename T, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kSingleThreads, single_blocks(kWidth))
    causal_conv1d_fwd_tile_single(CausalConv1dFwdParams p, SinglePlan plan) {
    constexpr int kPast = kWidth - 1;
    constexpr int kAhead = kWidth == 1               ? 8
                           : 8 / kWidth * kWidth < 6 ? 2 * kWidth
                                                     : 8 / kWidth * kWidth;  // so that ring positions repeat
    HIPCONV_SHARED(uint8_t, taps, kSingleRows* kSingleRun);
    HIPCONV_SHARED(int, differs, 1);

    const auto quotient_of = [](uint32_t i, uint64_t reciprocal) { return reciprocal != 0 ? long_quotient(i, reciprocal) : i; };
    const uint32_t block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const uint32_t first = block * kSingleThreads, own = first + threadIdx.x;
    const uint32_t first_row = quotient_of(first, plan.of_dim), row = quotient_of(own, plan.of_dim);
    if (first_row >= plan.rows) return;
    let_next_kernel_begin();
    const bool exists = row < plan.rows;
    const int d = static_cast<int>(own - row * static_cast<uint32_t>(p.dim));
    const int b = static_cast<int>(quotient_of(row, plan.of_runs));
    const int begin = static_cast<int>(row - b * plan.runs_a_sequence) * plan.run;
    const int tokens = !exists ? 0 : p.seqlen - begin < plan.run ? p.seqlen - begin : plan.run;

    wait_for_kernel_before();
    const bool has_ids = p.seq_idx.data, has_states = p.initial_states.data;
    const int weight_channel = exists ? d : 0;
    uint32_t weight_bits[kWidth], bias_bits = 0;
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
        weight_bits[i] =
            load_parameter_bits(p.weight, weight_channel * p.weight_dim_stride + i * p.weight_width_stride, p.weight_dtype);
    if (p.bias) bias_bits = load_parameter_bits(p.bias, weight_channel * p.bias_stride, p.bias_dtype);
    const char* const first_x =
        global_address<const char>(static_cast<const T*>(p.x.data) + b * p.x.batch_stride + d) + begin * plan.x_step;
    char* const first_out =
        global_address<char>(static_cast<T*>(p.out.data) + b * p.out.batch_stride + d) + begin * plan.out_step;
    const auto load = [](const char* from) { return *reinterpret_cast<const T*>(from); };
    const char* x = first_x;
    T before[kPast + 1], ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kPast; ++i) {
        before[i] = T{};
        if (begin >= kPast - i && exists) before[i] = load(x - (kPast - i) * plan.x_step);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
        ahead[j] = T{};
        if (j < tokens) ahead[j] = load(x);
        x += plan.x_step;
    }
    if (begin < kPast && has_states && exists) {
        const T* const state = global_pointer<const T>(p.initial_states.data) + b * p.initial_states.batch_stride +
                               d * p.initial_states.dim_stride;
#pragma unroll
        for (int i = 0; i < kPast; ++i)
            if (begin < kPast - i) before[i] = state[(begin + i) * p.initial_states.seqlen_stride];
    }
    bool looks = false;
    if (has_ids) {
        if (threadIdx.x == 0) *differs = 0;
        __syncthreads();
        const uint32_t last = first + kSingleThreads - 1, last_row = quotient_of(last, plan.of_dim);
        const uint32_t end_row = last_row < plan.rows ? last_row + 1 : plan.rows;
        const int all = static_cast<int>(end_row - first_row) * kSingleRun;
        for (int i = static_cast<int>(threadIdx.x); i < all; i += kSingleThreads) {
            const uint32_t of = first_row + i / kSingleRun, sequence = quotient_of(of, plan.of_runs);
            const int in_run = i % kSingleRun, t = static_cast<int>(of - sequence * plan.runs_a_sequence) * plan.run + in_run;
            if (in_run >= plan.run || t >= p.seqlen) continue;
            const uint8_t found = taps_of_token(p, sequence, t);
            taps[i] = found;
            if (found != (1 << kPast) - 1) *differs = 1;
        }
        __syncthreads();
        looks = *differs != 0;
    }

    float weight[kWidth], ring[kWidth], probe = 0.0f;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
        weight[i] = parameter_of(weight_bits[i], p.weight_dtype);
        probe += weight[i] * 0.0f;
    }
    const float bias = parameter_of(bias_bits, p.bias_dtype);
#pragma unroll
    for (int i = 0; i < kPast; ++i) ring[i] = to_float(before[i]);
    const bool use_silu = p.use_silu;
    const auto activated = [&](float sum) { return use_silu ? silu(sum) : sum; };

    const auto walk = [&](auto with_taps) {
        constexpr bool kLooks = decltype(with_taps)::value;
        const uint8_t* found = taps + (row - first_row) * kSingleRun;
        char* out = first_out;
        const auto produce = [&](int slot, int t) {
            const int token_taps = kLooks ? found[t] : 0;
            float sum = bias;
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
                if (kLooks && i < kPast && !(token_taps >> (kPast - 1 - i) & 1)) continue;
                sum = low(multiply_add(twice(weight[i]), twice(ring[(slot + 1 + i) % kWidth]), twice(sum)));  // as the others
            }
            sum = activated(sum);
            if (kLooks && token_taps >> kPaddingBit) sum = 0.0f;
            *reinterpret_cast<T*>(out) = from_float<T>(sum);
            out += plan.out_step;
            if (kLooks) keep_order();  // or the masks of all tokens take scalar registers at once
        };
        int t = 0;
        for (; t + 2 * kAhead <= tokens; t += kAhead) {
#pragma unroll
            for (int j = 0; j < kAhead; ++j) {
                ring[(kPast + j) % kWidth] = to_float(ahead[j]);
                ahead[j] = load(x);
                x += plan.x_step;
                produce((kPast + j) % kWidth, t + j);
            }
        }
        for (; t < tokens; t += kAhead) {
#pragma unroll
            for (int j = 0; j < kAhead; ++j) {
                ring[(kPast + j) % kWidth] = to_float(ahead[j]);
                if (t + kAhead + j < tokens) ahead[j] = load(x);
                x += plan.x_step;
                if (t + j < tokens) produce((kPast + j) % kWidth, t + j);
            }
        }
    };
    if (looks)
        walk(std::true_type{});
    else
        walk(std::false_type{});
    if (begin < kPast && !looks && !has_states && !(probe == 0.0f)) {
        // Zeros stood in for the tokens before the row, and some weight is infinite or NaN: skip those taps instead.
#pragma unroll 1
        for (int t = 0; begin + t < kPast && t < tokens; ++t) {
            float sum = bias;
#pragma unroll
            for (int i = 0; i < kWidth; ++i)
                if (begin + t + i >= kPast) sum += weight[i] * to_float(load(first_x + (t + i - kPast) * plan.x_step));
            *reinterpret_cast<T*>(first_out + t * plan.out_step) = from_float<T>(activated(sum));
        }
    }
}

namespace {

SinglePlan single_plan(const CausalConv1dFwdParams& p) {
    SinglePlan plan{};
    const auto runs = [&](int run) { return (static_cast<int64_t>(p.seqlen) + run - 1) / run * p.batch; };
    int run = kSingleRun;
    while (run > 8 && runs(run) * p.dim < 2 * kEnoughThreads) run /= 2;
    const int64_t a_sequence = (static_cast<int64_t>(p.seqlen) + run - 1) / run;
    plan.run = static_cast<int32_t>((p.seqlen + a_sequence - 1) / a_sequence);
    plan.runs_a_sequence = static_cast<uint32_t>((p.seqlen + plan.run - 1) / plan.run);
    const int64_t rows = plan.runs_a_sequence * int64_t{p.batch};
    plan.rows = rows * p.dim < (int64_t{1} << 32) - kSingleThreads ? static_cast<uint32_t>(rows) : 0;
    plan.of_dim = long_reciprocal_of(p.dim);
    plan.of_runs = long_reciprocal_of(plan.runs_a_sequence);
    const int size = element_bytes(p.dtype);
    plan.x_step = p.x.seqlen_stride * size;
    plan.out_step = p.out.seqlen_stride * size;
    return plan;
}

}  // namespace

bool causal_conv1d_tile_single_fits(const CausalConv1dFwdParams& p) {
    return p.dim >= kFewestSingles && single_plan(p).rows > 0;
}

void causal_conv1d_tile_single(const CausalConv1dFwdParams& p, hipStream_t stream) {
    const SinglePlan plan = single_plan(p);
    const int64_t blocks = (int64_t{plan.rows} * p.dim + kSingleThreads - 1) / kSingleThreads;
    const dim3 grid = blocks <= kGridLimit ? dim3(static_cast<unsigned>(blocks), 1, 1)
                                           : grid_of(kGridLimit, (blocks + kGridLimit - 1) / kGridLimit);
    with_dtype(p.dtype, [&](auto type) {
        with_width<kMaxFastWidth>(p.width, [&](auto width) {
            HIPCONV_LAUNCH(true, (causal_conv1d_fwd_tile_single<decltype(type), decltype(width)::value>), grid,
                           dim3(kSingleThreads, 1, 1), 0, stream, p, plan);
        });
    });
    check_launch("causal_conv1d_fwd");
}

}  // namespace hipconv
