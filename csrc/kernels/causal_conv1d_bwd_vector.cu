// Causal conv1d backward, channel-first ("vector"): neighbouring tokens are neighbours in memory.
//
// A thread makes the dx of kTokens tokens of one channel: from their x and dout and the inputs before them it computes their gradients
// g, and it needs the kWidth - 1 gradients after them, which the next lane has. Lanes of a row stand side by side and walk from the end
// of the row to its begin, so that the last lane gets what the first one had a step before: one shuffle a gradient, no LDS, no barrier.
// Where a walk does not start at the end of its row, its first step only computes the gradients that the second one needs.
//
// A walk goes on through several sequences of its channel, if rows are short, and leaves its dweight and dbias in the workspace.
//
// Rows need not begin or end on a 16-byte boundary: vectors lie on the boundaries of x, and what is not aligned or not in the row is
// read and written element by element (kRagged).
//
// Bytes: x and dout read once from memory (and up to half of x once more from cache), dx written once.
#include <hip/hip_runtime.h>

#include "causal_conv1d_bwd_parts.h"
#include "causal_conv1d_states_formula.h"
#include "check.h"

namespace hipconv {

constexpr int kBwdVectorThreads = 128;
constexpr int kBwdVectorLanes = 32;   // the most lanes of a row: a shuffle reaches no further on any card
constexpr int kBwdVectorMaxSteps = 16;  // of a walk
constexpr int kBwdTokens = 8;         // of a thread, at a time

// How a launch divides the work. A block is blockDim.x lanes by blockDim.y channels. A row is cut into walks of `steps` steps; a thread
// does one of them in each of `sequences` sequences.
struct BwdVectorPlan {
    int32_t steps_of_row, steps;
    uint32_t walks;                         // of a row
    int32_t sequences;
    int64_t x_batch, dout_batch, dx_batch;  // bytes from sequence to sequence
    bool on_boundaries;                     // ragged rows: vectors lie on x's 16-byte boundaries; if not, they count from the row's start
    bool has_states;                        // any of the three
};

constexpr int bwd_vector_blocks(int width, int bytes, bool ragged) {
    return width > 4 || ragged ? 4 : bytes == 2 ? 6 : 5;
}

template <typename T, int kWidth, bool kRagged>
__global__ void HIPCONV_LAUNCH_BOUNDS(kBwdVectorThreads, bwd_vector_blocks(kWidth, sizeof(T), kRagged))
    causal_conv1d_bwd_vector_kernel(CausalConv1dBwdParams p, BwdVectorPlan plan) {
    constexpr int kSize = static_cast<int>(sizeof(T));
    constexpr int kEach = 16 / kSize;             // tokens of a vector
    constexpr int kVectors = kBwdTokens / kEach;  // of a thread, at a time
    constexpr int kHalf = kBwdTokens / 2;
    constexpr int kPast = kWidth - 1;
    using Vector = Words<T, kEach>;
    using Past = TokensBefore<T, kWidth>;
    using Part = typename Past::Part;
    constexpr int kOldest = Past::kTokens - kPast;

    const int32_t block_dim = static_cast<int32_t>((blockIdx.z * gridDim.y + blockIdx.y) * blockDim.y);
    const bool has_channel = block_dim + static_cast<int32_t>(threadIdx.y) < p.in.dim;
    // Lanes that have no channel do the last one's work again: shuffles are for whole waves.
    const int64_t d = has_channel ? block_dim + static_cast<int32_t>(threadIdx.y) : p.in.dim - 1;
    const int lanes = static_cast<int>(blockDim.x), lane = static_cast<int>(threadIdx.x);
    const int next_lane = (lane + 1) & (lanes - 1);
    const int32_t stretch = lanes * kBwdTokens;  // tokens of a step
    const int32_t lane_token = lane * kBwdTokens;

    const uint32_t group = blockIdx.x / plan.walks;
    const int32_t first_sequence = static_cast<int32_t>(group) * plan.sequences;
    const int32_t last_sequence = p.in.batch - first_sequence < plan.sequences ? p.in.batch : first_sequence + plan.sequences;
    // Steps count down to the first of the walk; one more precedes them where the row goes on after the walk.
    const int32_t first_step = static_cast<int32_t>(blockIdx.x - group * plan.walks) * plan.steps;
    const int32_t end_step = plan.steps_of_row - first_step > plan.steps ? first_step + plan.steps : plan.steps_of_row;
    const int32_t start = end_step < plan.steps_of_row ? end_step : end_step - 1;

    // Rows as bytes; where a lane's tokens of a step begin (negative where they begin before the row).
    const auto row_of = [&](const Sequences& s, int64_t batch) {
        return static_cast<char*>(s.data) + d * s.dim_stride * kSize + first_sequence * batch;
    };
    const char* x_row = row_of(p.in.x, plan.x_batch);
    const auto token_of = [&](int32_t step, const char* row) {
        const int32_t token = step * stretch + lane_token;
        if (!kRagged || !plan.on_boundaries) return token;
        return token - static_cast<int32_t>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
    };

    // ---- loads, a step ahead ---------------------------------------------------------------------------------------------------
    Vector x_next[kVectors], dout_next[kVectors];
    Part before_next[Past::kParts];
    const char* x_in = x_row;
    const char* dout_in = row_of(p.dout, plan.dout_batch);
    // The first step of a walk: lanes may be past the row's end, and before the walk only the first lane has something to do.
    const auto fetch_first = [&]() {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) x_next[v] = dout_next[v] = Vector{};
#pragma unroll
        for (int k = 0; k < Past::kParts; ++k) before_next[k] = Part{};
    };
    const auto fetch_ragged = [&](int32_t step) {
        fetch_first();
        const int32_t t = token_of(step, x_in);
        const T* x = reinterpret_cast<const T*>(x_in);
        const T* dout = reinterpret_cast<const T*>(dout_in);
        if (t >= p.in.seqlen || (step == end_step && lane > 0)) return;
        const bool whole = t >= 0 && t + kBwdTokens <= p.in.seqlen;
        const bool x_aligned = reinterpret_cast<uintptr_t>(x + t) % 16 == 0, dout_aligned = reinterpret_cast<uintptr_t>(dout + t) % 16 == 0;
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
            const int32_t from = t + v * kEach;
            x_next[v] = whole && x_aligned ? *reinterpret_cast<const Vector*>(x + from) : load_part<T, kEach>(x, from, p.in.seqlen);
            dout_next[v] =
                whole && dout_aligned ? *reinterpret_cast<const Vector*>(dout + from) : load_part<T, kEach>(dout, from, p.in.seqlen);
        }
#pragma unroll
        for (int k = 0; k < Past::kParts; ++k) {
            const int32_t from = t - Past::kTokens + k * Past::kPartTokens;
            before_next[k] = from >= 0 && x_aligned ? *reinterpret_cast<const Part*>(x + from)
                                                    : load_part<T, Past::kPartTokens>(x, from, p.in.seqlen);
        }
    };
    const char* x_at = nullptr;  // of aligned rows: this lane's tokens of the step
    const char* dout_at = nullptr;
    const auto fetch_whole = [&](bool is_first_of_row) {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
            x_next[v] = *reinterpret_cast<const Vector*>(x_at + v * 16);
            dout_next[v] = *reinterpret_cast<const Vector*>(dout_at + v * 16);
        }
#pragma unroll
        for (int k = 0; k < Past::kParts; ++k) {
            before_next[k] = Part{};
            if (!is_first_of_row)
                before_next[k] = *reinterpret_cast<const Part*>(x_at + (k * Past::kPartTokens - Past::kTokens) * kSize);
        }
    };
    const auto fetch_start = [&]() {
        if constexpr (kRagged) {
            fetch_ragged(start);
        } else {
            const int64_t bytes = (static_cast<int64_t>(start) * stretch + lane_token) * kSize;
            x_at = x_in + bytes;
            dout_at = dout_in + bytes;
            fetch_first();
            if (start * stretch + lane_token < p.in.seqlen && (start < end_step || lane == 0))
                fetch_whole(start == 0 && lane == 0);
        }
    };
    const auto fetch_next = [&](int32_t step) {
        if constexpr (kRagged) {
            fetch_ragged(step);
        } else {
            x_at -= stretch * kSize;
            dout_at -= stretch * kSize;
            fetch_whole(step == 0 && lane == 0);
        }
    };
    fetch_start();

    float weight[kWidth];
    with_dtype(p.in.weight_dtype, [&](auto type) {
        using P = decltype(type);
#pragma unroll
        for (int i = 0; i < kWidth; ++i)
            weight[i] = parameter<P>(p.in.weight, d * p.in.weight_dim_stride + i * p.in.weight_width_stride);
    });
    const float bias = p.in.bias ? load_parameter(p.in.bias, d * p.in.bias_stride, p.in.bias_dtype) : 0.0f;

    Pair dweight[kWidth], dbias = twice(0.0f);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) dweight[i] = twice(0.0f);

    // ---- the walk, in each sequence --------------------------------------------------------------------------------------------
    char* dx_row = row_of(p.dx, plan.dx_batch);
    for (int32_t b = first_sequence; b < last_sequence; ++b) {
        float carried[kPast];  // the first gradients of the step before; only the first lane's are used
#pragma unroll
        for (int k = 0; k < kPast; ++k) carried[k] = 0.0f;
        char* dx_at = dx_row + (static_cast<int64_t>(start) * stretch + lane_token) * kSize;
        for (int32_t step = start; step >= first_step; --step, dx_at -= stretch * kSize) {
            float window[Past::kTokens + kBwdTokens];
            Pair g[kHalf];  // tokens half a vector apart, as everything in pairs here
            {
                float oldest[Past::kTokens + kEach];
                Past::unpack(before_next, x_next[0], oldest);
#pragma unroll
                for (int e = 0; e < Past::kTokens + kEach; ++e) window[e] = oldest[e];
                float douts[kBwdTokens];
#pragma unroll
                for (int v = 0; v < kVectors; ++v) {
#pragma unroll
                    for (int j = 0; j < kEach / 2; ++j) {
                        const Pair inputs = pair_of<T>(x_next[v], j), gradients = pair_of<T>(dout_next[v], j);
                        window[Past::kTokens + v * kEach + 2 * j] = low(inputs);
                        window[Past::kTokens + v * kEach + 2 * j + 1] = high(inputs);
                        douts[v * kEach + 2 * j] = low(gradients);
                        douts[v * kEach + 2 * j + 1] = high(gradients);
                    }
                }
#pragma unroll
                for (int j = 0; j < kHalf; ++j) g[j] = make_pair(douts[j], douts[j + kHalf]);
            }
            const int32_t t = token_of(step, x_in);
            if (step > first_step) {
                fetch_next(step - 1);
            } else if (b + 1 < last_sequence) {
                x_in += plan.x_batch;
                dout_in += plan.dout_batch;
                fetch_start();
            }

            if (plan.has_states && p.in.initial_states.data && t == 0) {
#pragma unroll
                for (int e = 0; e < kPast; ++e) window[kOldest + e] = to_float(at<const T>(p.in.initial_states, b, d, e));
            }
            if (p.in.use_silu) {
#pragma unroll
                for (int j = 0; j < kHalf; ++j) {
                    Pair sum = twice(bias);
#pragma unroll
                    for (int i = 0; i < kWidth; ++i) {
                        const int from = kOldest + j + i;
                        sum = multiply_add(twice(weight[i]), make_pair(window[from], window[from + kHalf]), sum);
                    }
                    g[j] = multiply(g[j], silu_derivative(sum));
                }
            }
            // All gradients that dx needs: own ones, and the next lane's first.
            float gradients[kBwdTokens + kPast];
#pragma unroll
            for (int j = 0; j < kHalf; ++j) {
                gradients[j] = low(g[j]);
                gradients[j + kHalf] = high(g[j]);
            }
#pragma unroll
            for (int k = 0; k < kPast; ++k) {
                gradients[kBwdTokens + k] = __shfl(lane == 0 ? carried[k] : gradients[k], next_lane, lanes);
                carried[k] = gradients[k];
            }
            if (step == end_step) continue;

#pragma unroll
            for (int j = 0; j < kHalf; ++j) {
                dbias = add(dbias, g[j]);
#pragma unroll
                for (int i = 0; i < kWidth; ++i) {
                    const int from = kOldest + j + i;
                    dweight[i] = multiply_add(g[j], make_pair(window[from], window[from + kHalf]), dweight[i]);
                }
            }
            Pair sums[kHalf];
#pragma unroll
            for (int j = 0; j < kHalf; ++j) {
                sums[j] = multiply(twice(weight[kPast]), g[j]);
#pragma unroll
                for (int k = 1; k < kWidth; ++k)
                    sums[j] = multiply_add(twice(weight[kPast - k]), make_pair(gradients[j + k], gradients[j + kHalf + k]), sums[j]);
            }
            if (plan.has_states) {
                const auto of_final = [&](int32_t token) {  // what the final state's gradient adds to that of an input
                    const int32_t column = token - p.in.seqlen + kPast;
                    const bool has = p.dfinal_states.data && column >= 0 && column < kPast;
                    return has ? to_float(at<const T>(p.dfinal_states, b, d, column)) : 0.0f;
                };
                if (t + kBwdTokens > p.in.seqlen - kPast && t < p.in.seqlen) {
#pragma unroll
                    for (int j = 0; j < kHalf; ++j) sums[j] = add(sums[j], make_pair(of_final(t + j), of_final(t + j + kHalf)));
                }
                if (p.dinitial_states.data && t == 0 && has_channel) {
#pragma unroll
                    for (int column = 0; column < kPast; ++column) {
                        float sum = of_final(column - kPast);
#pragma unroll
                        for (int to = 0; to <= column; ++to) sum += weight[column - to] * gradients[to];
                        at<T>(p.dinitial_states, b, d, column) = from_float<T>(sum);
                    }
                }
            }
            if (t < p.in.seqlen && has_channel) {
                const auto result = [&](int e) { return e < kHalf ? low(sums[e]) : high(sums[e - kHalf]); };
                T* row = reinterpret_cast<T*>(dx_row);
                const bool whole = t >= 0 && t + kBwdTokens <= p.in.seqlen && reinterpret_cast<uintptr_t>(row + t) % 16 == 0;
#pragma unroll
                for (int v = 0; v < kVectors; ++v) {
                    Vector words{};
#pragma unroll
                    for (int j = 0; j < kEach / 2; ++j)
                        set_pair<T>(words, j, make_pair(result(v * kEach + 2 * j), result(v * kEach + 2 * j + 1)));
                    if constexpr (!kRagged)
                        *reinterpret_cast<Vector*>(dx_at + v * 16) = words;
                    else if (whole)
                        *reinterpret_cast<Vector*>(row + t + v * kEach) = words;
                    else
                        store_part<T, kEach>(row, t + v * kEach, p.in.seqlen, words);
                }
            }
        }
        dx_row += plan.dx_batch;
    }

    // ---- dweight and dbias of the channel --------------------------------------------------------------------------------------
    float sums[kWidth + 1];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums[i] = low(dweight[i]) + high(dweight[i]);
    sums[kWidth] = low(dbias) + high(dbias);
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
#pragma unroll
        for (int i = 0; i <= kWidth; ++i) sums[i] += __shfl_xor(sums[i], distance, lanes);
    }
    if (lane == 0 && has_channel) {
        float* partials = static_cast<float*>(p.partials) + static_cast<int64_t>(blockIdx.x) * (kWidth + 1) * p.in.dim + d;
#pragma unroll
        for (int i = 0; i <= kWidth; ++i) partials[static_cast<int64_t>(i) * p.in.dim] = sums[i];
    }
}

namespace {

// Whether every row of x, dout and dx begins and ends on a 16-byte boundary.
bool bwd_rows_are_aligned(const CausalConv1dBwdParams& p) {
    const int tokens = 16 / element_bytes(p.in.dtype);
    const auto aligned = [&](const Sequences& s) {
        return reinterpret_cast<uintptr_t>(s.data) % 16 == 0 && s.dim_stride % tokens == 0 && s.batch_stride % tokens == 0;
    };
    return p.in.seqlen % kBwdTokens == 0 && aligned(p.in.x) && aligned(p.dout) && aligned(p.dx);
}

struct BwdVectorShape {
    unsigned lanes, rows;
    int64_t steps_of_row, steps, walks, sequences, sequence_groups;
    bool on_boundaries;
};

BwdVectorShape bwd_vector_shape(const CausalConv1dBwdParams& p) {
    const int each = 16 / element_bytes(p.in.dtype);
    const bool aligned = bwd_rows_are_aligned(p);
    BwdVectorShape s{};
    s.on_boundaries = p.in.seqlen > kBwdTokens && !p.in.initial_states.data && !p.dinitial_states.data;
    const int64_t tokens = static_cast<int64_t>(p.in.seqlen) + (aligned ? 0 : each - 1);
    const int64_t vectors = (tokens + kBwdTokens - 1) / kBwdTokens;
    s.lanes = power_of_two_up_to(vectors, kBwdVectorLanes);
    s.rows = kBwdVectorThreads / s.lanes;
    s.steps_of_row = (vectors + s.lanes - 1) / s.lanes;
    // Long walks need fewer partial sums, but cards need enough threads.
    int64_t most = kBwdVectorMaxSteps;
    while (most > 1 && static_cast<double>(s.steps_of_row) * p.in.batch * p.in.dim * s.lanes / most < kEnoughThreads) most /= 2;
    s.walks = (s.steps_of_row + most - 1) / most;
    s.steps = (s.steps_of_row + s.walks - 1) / s.walks;
    s.walks = (s.steps_of_row + s.steps - 1) / s.steps;
    s.sequences = s.walks == 1 ? most / s.steps : 1;
    if (s.sequences > p.in.batch) s.sequences = p.in.batch;
    s.sequence_groups = (p.in.batch + s.sequences - 1) / s.sequences;
    return s;
}

template <typename T, int kWidth, bool kRagged>
void launch(const CausalConv1dBwdParams& p, hipStream_t stream) {
    const BwdVectorShape shape = bwd_vector_shape(p);
    BwdVectorPlan plan{};
    plan.steps_of_row = static_cast<int32_t>(shape.steps_of_row);
    plan.steps = static_cast<int32_t>(shape.steps);
    plan.walks = static_cast<uint32_t>(shape.walks);
    plan.sequences = static_cast<int32_t>(shape.sequences);
    plan.x_batch = p.in.x.batch_stride * static_cast<int64_t>(sizeof(T));
    plan.dout_batch = p.dout.batch_stride * static_cast<int64_t>(sizeof(T));
    plan.dx_batch = p.dx.batch_stride * static_cast<int64_t>(sizeof(T));
    plan.on_boundaries = shape.on_boundaries;
    plan.has_states = p.in.initial_states.data || p.dinitial_states.data || p.dfinal_states.data;
    const dim3 block(shape.lanes, shape.rows, 1);
    const dim3 grid = grid_of(shape.walks * shape.sequence_groups, (static_cast<int64_t>(p.in.dim) + shape.rows - 1) / shape.rows);
    hipLaunchKernelGGL((causal_conv1d_bwd_vector_kernel<T, kWidth, kRagged>), grid, block, 0, stream, p, plan);
    check_launch("causal_conv1d_bwd");
}

}  // namespace

bool causal_conv1d_bwd_vector_serves(const CausalConv1dBwdParams& p) {
    if (p.in.width < 2 || p.in.width > kMaxFastWidth || p.in.seqlen < 1 || p.in.seqlen > INT32_MAX - 4096) return false;
    if (p.in.x.seqlen_stride != 1 || p.dout.seqlen_stride != 1 || p.dx.seqlen_stride != 1 || p.in.seq_idx.data) return false;
    const BwdVectorShape shape = bwd_vector_shape(p);
    return shape.walks * shape.sequence_groups <= kGridLimit;
}

int64_t causal_conv1d_bwd_vector_partials(const CausalConv1dBwdParams& p) {
    const BwdVectorShape shape = bwd_vector_shape(p);
    return shape.walks * shape.sequence_groups;
}

void causal_conv1d_bwd_vector(const CausalConv1dBwdParams& p, void* stream) {
    with_bwd_instance(p, [&](auto type, auto width) {
        using T = decltype(type);
        constexpr int kWidth = decltype(width)::value;
        const hipStream_t s = static_cast<hipStream_t>(stream);
        bwd_rows_are_aligned(p) ? launch<T, kWidth, false>(p, s) : launch<T, kWidth, true>(p, s);
    });
}

}  // namespace hipconv
