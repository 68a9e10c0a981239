// This kernel is "tile" with a channel a thread: for memory in which no aligned vector lies.
//
// Neighbouring lanes have neighbouring channels, so a wave reads and writes a stretch of a token in one piece, wherever that
// begins: nothing is shifted, and no two lanes have to put a vector together. A thread walks a run of tokens or, where rows are
// short, some whole rows, eight tokens at a time. The last tokens are a ring in registers, and the next eight, be they the next
// row's, are under way. Threads follow one another along channels, and then runs, so none is idle, whatever the dim.
//
// With ids, a block first makes a byte a token that says which taps see something (token_taps.h); if ids hide nothing, it looks
// no further.
//
// Bytes: each input is read once from memory (and kWidth - 1 tokens a run once more from cache), each output is written once.
#include <hip/hip_runtime.h>

#include "../common/vector_math.h"
#include "channel_parameters.h"
#include "final_states.h"
#include "kernels.h"
#include "launch/check.h"
#include "lines.h"
#include "tile.h"
#include "token_taps.h"
#include "vector_parts.h"

namespace hipconv {

constexpr int kSingleThreads = 128;
constexpr int kSingleTokens = 64;  // of a thread at most, each row's rounded up to eight
constexpr int kSingleRun = 32;     // tokens at most
constexpr int kManySingles = 32, kSectorBytes = 32;
constexpr int kFewestSingles = 3;  // channels
// Rows of a block's threads, side by side: all but the first thread may begin a row, and that one ends one.
constexpr int kSingleRows = (kSingleThreads - 2) / kFewestSingles + 2;

// A thread has a run of one sequence, or `sequences` whole ones.
struct SinglePlan {
    int32_t run, sequences;
    uint32_t runs_a_sequence, rows;  // runs, or groups of sequences
    int32_t tap_groups;              // of a thread
    uint64_t of_dim, of_runs;
    uint32_t of_tap_groups, of_run_groups;
    int64_t x_step, out_step;  // bytes
    int64_t x_wrap, out_wrap;  // from behind the last step of a row to the next row
};

// Threads that have whole sequences write their final states, from this width on (measured on an H100).
constexpr int kLeastWidthOfStates = 5;
// Some widths have a kernel for runs alone: they would need too many registers for them.
constexpr bool has_run_kernel(int width) { return width == 4 || width > 6; }
constexpr int single_blocks(int width, bool some) {
    if (!some) return width == 4 ? 9 : 7;
    return width <= 3 ? 8 : width == 4 ? 7 : width <= 6 ? 8 : width == 7 ? 5 : 4;
}

// kSome: a thread has some whole sequences, or a run.
template <typename T, int kWidth, bool kSome>
__global__ void HIPCONV_LAUNCH_BOUNDS(kSingleThreads, single_blocks(kWidth, kSome))
    causal_conv1d_fwd_tile_single(CausalConv1dFwdParams p, SinglePlan plan) {
    constexpr int kPast = kWidth - 1, kStep = kTapGroup, kRing = kWidth <= 2 ? kWidth : kWidth <= 4 ? 4 : 8;
    HIPCONV_SHARED(uint32_t, taps, kSingleRows* kSingleTokens / 4);
    HIPCONV_SHARED(int, differs, 1);

    const auto quotient_of = [](uint32_t i, uint64_t reciprocal) { return reciprocal != 0 ? long_quotient(i, reciprocal) : i; };
    const uint32_t block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const uint32_t first = block * kSingleThreads, own = first + threadIdx.x;
    const uint32_t first_row = quotient_of(first, plan.of_dim), row = quotient_of(own, plan.of_dim);
    if (first_row >= plan.rows) return;
    let_next_kernel_begin();
    const bool exists = row < plan.rows;
    const int d = static_cast<int>(own - row * static_cast<uint32_t>(p.dim));
    const auto first_sequence = [&](uint32_t of) { return static_cast<int>(quotient_of(of, plan.of_runs)) * plan.sequences; };
    const int b = first_sequence(row);
    const int begin = static_cast<int>(row - quotient_of(row, plan.of_runs) * plan.runs_a_sequence) * plan.run;
    const int tokens = !exists ? 0 : p.seqlen - begin < plan.run ? p.seqlen - begin : plan.run;

    wait_for_kernel_before();
    const bool has_ids = p.seq_idx.data, has_states = p.initial_states.data;
    const auto x_at = [&](int sequence) {
        return global_address<const char>(static_cast<const T*>(p.x.data) + sequence * p.x.batch_stride + d * p.x.dim_stride) +
               begin * plan.x_step;
    };
    const auto out_at = [&](int sequence) {
        return global_address<char>(static_cast<T*>(p.out.data) + sequence * p.out.batch_stride + d * p.out.dim_stride) +
               begin * plan.out_step;
    };
    const auto load = [](const char* from) { return *reinterpret_cast<const T*>(from); };

    // The next tokens to load, of `sequence`; and what is before its first one.
    const char* x = x_at(b);
    const int end = !exists ? b : p.batch - b < plan.sequences ? p.batch : b + plan.sequences;
    int sequence = b, to_load = tokens;
    T before[kPast + 1], ahead[kStep];
    const auto load_state = [&] {
        const T* from = global_pointer<const T>(p.initial_states.data) + sequence * p.initial_states.batch_stride +
                        d * p.initial_states.dim_stride;
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            before[i] = *from;
            from += p.initial_states.seqlen_stride;
        }
    };
    // The step behind the last loaded one begins, maybe in the next row.
    const auto go_on = [&] {
        to_load -= kStep;
        if (to_load > 0) return;
        to_load = 0;
        if (!kSome || ++sequence >= end) return;
        to_load = tokens;
        x += plan.x_wrap;
        if (has_states) load_state();
    };
#pragma unroll
    for (int i = 0; i < kPast; ++i) before[i] = T{};
    if (exists && begin > 0) {  // which is farther than any filter reaches
        const char* from = x - kPast * plan.x_step;
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            before[i] = load(from);
            from += plan.x_step;
        }
    } else if (exists && has_states) {
        load_state();
    }
#pragma unroll
    for (int j = 0; j < kStep; ++j) {
        ahead[j] = T{};
        if (j < to_load) ahead[j] = load(x);
        x += plan.x_step;
    }

    bool looks = false;
    if (has_ids) {
        if (threadIdx.x == 0) *differs = 0;
        __syncthreads();
        const uint32_t last = first + kSingleThreads - 1, last_row = quotient_of(last, plan.of_dim);
        const uint32_t end_row = last_row < plan.rows ? last_row + 1 : plan.rows;
        const int all = static_cast<int>(end_row - first_row) * plan.tap_groups * kTapGroup;
#pragma unroll 1
        for (int i = static_cast<int>(threadIdx.x); i < all; i += kSingleThreads) {
            const int of = quotient(i / kTapGroup, plan.of_tap_groups), group = i / kTapGroup - of * plan.tap_groups;
            const int s = kSome ? quotient(group, plan.of_run_groups) : 0;
            const uint32_t of_row = first_row + of, of_sequence = quotient_of(of_row, plan.of_runs);
            const int b = static_cast<int>(of_sequence) * plan.sequences + s;
            const int in_run = (group - s * ((plan.run + kTapGroup - 1) / kTapGroup)) * kTapGroup + i % kTapGroup;
            const int t = static_cast<int>(of_row - of_sequence * plan.runs_a_sequence) * plan.run + in_run;
            if (in_run >= plan.run || t >= p.seqlen || b >= p.batch) continue;
            TokenIds ids;
            ids.load(p, b, t);
            reinterpret_cast<uint8_t*>(taps)[i] = ids.taps(p, t);
            if (ids.hide(p)) *differs = 1;
        }
    }
    ChannelParameters<kWidth, kWidth - 1> parameters;
    parameters.load(p, exists ? d : 0);
    if (has_ids) {
        __syncthreads();
        looks = *differs != 0;
    }

    float weight[kWidth], ring[kRing];  // the token before the row is in slot kPast - 1
    parameters.convert(p);
    parameters.weights(weight);
#pragma unroll
    for (int i = 0; i < kRing; ++i) ring[i] = 0.0f;
    const float bias = parameters.bias();
    const bool use_silu = p.use_silu;
    const auto activated = [&](float sum) { return use_silu ? silu(sum) : sum; };

    const auto walk = [&](auto with_taps) {
        constexpr bool kLooks = decltype(with_taps)::value;
        const uint32_t* found = taps + (row - first_row) * static_cast<uint32_t>(plan.tap_groups * (kTapGroup / 4));
        char* out = out_at(b);
        int left = tokens;
        // Makes the next tokens, kStep of them if it is `whole`, and loads as many.
        const auto step = [&](auto is_whole) {
            constexpr bool kWhole = decltype(is_whole)::value;
            uint32_t token_taps[kTapGroup / 4];
#pragma unroll
            for (int w = 0; w < kTapGroup / 4; ++w) token_taps[w] = kLooks ? found[w] : 0;
#pragma unroll
            for (int j = 0; j < kStep; ++j) {
                const int slot = (kPast + j) % kRing;
                const auto sees = [&](int bit) { return (token_taps[j / 4] >> (j % 4 * 8 + bit) & 1) != 0; };
                ring[slot] = to_float(ahead[j]);
                if (kWhole || j < to_load) ahead[j] = load(x);
                x += plan.x_step;
                float sum = bias;
#pragma unroll
                for (int i = 0; i < kWidth; ++i) {
                    if (kLooks && i < kPast && !sees(kPast - 1 - i)) continue;
                    const float input = ring[(slot + kRing - kPast + i) % kRing];
                    sum = low(multiply_add(twice(weight[i]), twice(input), twice(sum)));  // as the others
                }
                sum = activated(sum);
                if (kLooks && sees(kPaddingBit)) sum = 0.0f;
                if (kWhole || j < left) *reinterpret_cast<T*>(out) = from_float<T>(sum);
                out += plan.out_step;
                if (kLooks) keep_order();  // or the masks of all tokens take scalar registers at once
            }
            found += kTapGroup / 4;
            left -= kStep;
        };
        do {  // a row
#pragma unroll
            for (int i = 0; i < kPast; ++i) ring[i] = to_float(before[i]);
            left = tokens;
#pragma unroll 1
            while (left > 0) {
                go_on();
                if (left >= kStep && to_load >= kStep)
                    step(std::true_type{});
                else
                    step(std::false_type{});
            }
            out += plan.out_wrap;
        } while (kSome && to_load > 0);
    };
    if (looks)
        walk(std::true_type{});
    else
        walk(std::false_type{});
    float probe = 0.0f;  // becomes NaN if a weight is not finite
#pragma unroll
    for (int i = 0; i < kWidth; ++i) probe += weight[i] * 0.0f;
    if (begin == 0 && !looks && !has_states && !(probe == 0.0f)) {
        // Zeros stood in for the tokens before the row, and some weight is infinite or NaN: skip those taps instead.
#pragma unroll 1
        for (int own_b = b; own_b < end; ++own_b) {
#pragma unroll 1
            for (int t = 0; t < kPast && t < tokens; ++t) {
                float sum = bias;
#pragma unroll
                for (int k = 0; k < kWidth; ++k)
                    if (t + k >= kPast) sum += weight[k] * to_float(load(x_at(own_b) + (t + k - kPast) * plan.x_step));
                *reinterpret_cast<T*>(out_at(own_b) + t * plan.out_step) = from_float<T>(activated(sum));
            }
        }
    }
    if (kSome && kWidth >= kLeastWidthOfStates && p.final_states.data && exists) {
#pragma unroll 1
        for (int own_b = b; own_b < end; ++own_b) {
            const char* const row_end = x_at(own_b) + tokens * plan.x_step;
            write_final_state<T, kPast>(p, own_b, d, [&](int back) { return load(row_end - back * plan.x_step); });
        }
    }
}

namespace {

SinglePlan single_plan(const CausalConv1dFwdParams& p) {
    SinglePlan plan{};
    const auto parts = [](int64_t n, int64_t each) { return (n + each - 1) / each; };
    const int64_t enough = 2 * kEnoughThreads;
    int run = kSingleRun;
    while (run > 8 && parts(p.seqlen, run) * p.batch * p.dim < enough) run /= 2;
    const int64_t a_sequence = parts(p.seqlen, run);
    const int64_t least = a_sequence > 1 ? kMaxFastWidth : 1;
    plan.run = static_cast<int32_t>(parts(p.seqlen, a_sequence) > least ? parts(p.seqlen, a_sequence) : least);
    if (a_sequence > 1) plan.run = static_cast<int32_t>(parts(plan.run, kTapGroup)) * kTapGroup;  // whole steps
    plan.runs_a_sequence = static_cast<uint32_t>(parts(p.seqlen, plan.run));
    const int groups = static_cast<int>(parts(plan.run, kTapGroup));
    plan.sequences = 1;
    if (plan.runs_a_sequence == 1 && (groups == 1 || p.width <= 6 || p.initial_states.data)) {
        while ((2 * plan.sequences) * groups * kTapGroup <= kSingleTokens &&
               parts(p.batch, 2 * plan.sequences) * p.dim >= enough)
            plan.sequences *= 2;
    }
    plan.tap_groups = groups * plan.sequences;
    const int64_t rows = plan.runs_a_sequence * parts(p.batch, plan.sequences);
    plan.rows = rows * p.dim < (int64_t{1} << 32) - kSingleThreads ? static_cast<uint32_t>(rows) : 0;
    plan.of_dim = long_reciprocal_of(p.dim);
    plan.of_runs = long_reciprocal_of(plan.runs_a_sequence);
    plan.of_tap_groups = reciprocal_of(plan.tap_groups);
    plan.of_run_groups = reciprocal_of(groups);
    const int size = element_bytes(p.dtype);
    plan.x_step = p.x.seqlen_stride * size;
    plan.out_step = p.out.seqlen_stride * size;
    plan.x_wrap = p.x.batch_stride * size - groups * kTapGroup * plan.x_step;
    plan.out_wrap = p.out.batch_stride * size - groups * kTapGroup * plan.out_step;
    return plan;
}

}  // namespace

bool causal_conv1d_tile_single_fits(const CausalConv1dFwdParams& p) {
    // A wave's lanes are in many runs where channels are few. That is as good where a token has sectors of memory to itself.
    const auto apart = [&](const Sequences& s) {
        const int64_t step = s.seqlen_stride < 0 ? -s.seqlen_stride : s.seqlen_stride;
        return p.seqlen > 1 && step >= 2 * p.dim && step * element_bytes(p.dtype) >= kSectorBytes;
    };
    const bool fills_waves = p.dim >= kManySingles || (p.dim >= kFewestSingles && apart(p.x) && apart(p.out));
    return fills_waves && single_plan(p).rows > 0;
}

bool causal_conv1d_tile_single(const CausalConv1dFwdParams& all, hipStream_t stream) {
    const SinglePlan plan = single_plan(all);
    const bool whole_sequences = plan.runs_a_sequence == 1 && (plan.sequences > 1 || !has_run_kernel(all.width));
    const bool writes_states = threads_write_final_states(all) && whole_sequences && all.width >= kLeastWidthOfStates;
    CausalConv1dFwdParams p = all;
    if (!writes_states) p.final_states = {};
    const int64_t blocks = (int64_t{plan.rows} * p.dim + kSingleThreads - 1) / kSingleThreads;
    const dim3 grid = blocks <= kGridLimit ? dim3(static_cast<unsigned>(blocks), 1, 1)
                                           : grid_of(kGridLimit, (blocks + kGridLimit - 1) / kGridLimit);
    const dim3 block(kSingleThreads, 1, 1);
    with_dtype(p.dtype, [&](auto type) {
        with_width<kMaxFastWidth>(p.width, [&](auto width) {
            using T = decltype(type);
            constexpr int kWidth = decltype(width)::value;
            constexpr bool kHasBoth = has_run_kernel(kWidth);
            if (!kHasBoth || plan.sequences > 1)
                HIPCONV_LAUNCH(true, (causal_conv1d_fwd_tile_single<T, kWidth, true>), grid, block, 0, stream, p, plan);
            else
                HIPCONV_LAUNCH(true, (causal_conv1d_fwd_tile_single<T, kWidth, !kHasBoth>), grid, block, 0, stream, p, plan);
        });
    });
    check_launch("causal_conv1d_fwd");
    return writes_states;
}

}  // namespace hipconv
