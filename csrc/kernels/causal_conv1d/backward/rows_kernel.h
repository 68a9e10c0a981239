// This kernel is the causal conv1d backward of short rows ("rows"), in any layouts, with states and ids.
//
// A thread owns a channel and walks whole rows of it, one after another, so that no token is computed twice, no lane needs
// another's gradients, and what a row has before and behind its tokens is loaded and stored by the lanes of neighbouring
// channels side by side. Neighbouring lanes are neighbouring channels, then rows.
//
// A stage is some rows of the block's channels. Their x and dout come to LDS first: in whole vectors, wherever memory has them in
// one piece, so that neither the order of channels and tokens matters nor where rows begin; elsewhere each thread brings its own
// row, element by element. dx takes dout's place in LDS and goes back in the same way. The states of a thread's next row are
// loaded while it walks through this one.
//
// Token t completes the dx of token t - kWidth + 1: the sums of the last kWidth inputs are a ring beside that of the inputs. All
// sums of a token are made in the order in which `tile` makes them: both kernels have the same dx.
//
// A block of threads adds up its threads' dweight and dbias in LDS and leaves them in its row of the workspace.
//
// Bytes: x, dout and the states are read once, dx and the gradients of the initial states are written once.
#pragma once

#include <hip/hip_runtime.h>

#include "../common/launch.h"
#include "causal_conv1d/states_formula.h"
#include "derivative.h"
#include "device/vec.h"
#include "launch/check.h"
#include "rows_plan.h"
#include "taps.h"

namespace hipconv {

// The taps of a token, a bit each.
struct TapsOfByte {
    uint32_t byte;
    HIPCONV_INLINE bool sees(int i) const { return (byte >> i & 1) != 0; }
};

// All taps of a filter, of which the first one may be left out.
struct TapsOfFilter {
    bool has_first;
    HIPCONV_INLINE bool sees(int i) const { return i > 0 || has_first; }
};

// A thread's part of a stage.
struct BwdRowsStage {
    int first_row, count;  // rows
    int first_channel, channels;
};

// Where the stretch of row n begins in memory, and how many bytes behind a multiple of 16.
HIPCONV_INLINE char* bwd_rows_stretch(const Sequences& s, const BwdRowsTensor& how, const BwdRowsStage& stage, int n) {
    const int64_t row = int64_t{stage.first_row} + (how.rows_follow ? 0 : n);
    return global_pointer<char>(s.data) + row * how.row_memory + stage.first_channel * how.d_memory;
}
HIPCONV_INLINE int bwd_rows_early(const char* address) {
    return static_cast<int>(reinterpret_cast<uintptr_t>(address) & (kBwdRowsUnit - 1));
}

// Moves the flat tensor's part of a stage to LDS or, with kBack, from there.
template <typename T, bool kBack>
__device__ __forceinline__ void bwd_rows_move(const Sequences& s, const BwdRowsTensor& how, const BwdRowsStage& stage,
                                              int32_t seqlen, char* lds) {
    constexpr int kSize = static_cast<int>(sizeof(T)), kElements = kBwdRowsUnit / kSize, kAtOnce = kBack ? 1 : 4;
    const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
    int bytes = static_cast<int>((stage.channels - 1) * how.d_memory + (seqlen - 1) * how.t_memory) + kSize;
    if (how.rows_follow) bytes += static_cast<int>((stage.count - 1) * how.row_memory);
    const int stretches = how.rows_follow ? 1 : stage.count, units = (bytes + 2 * kBwdRowsUnit - kSize - 1) / kBwdRowsUnit;
    lds += how.begin;
    const auto is_whole = [&](int early, int offset) { return offset >= early && offset + kBwdRowsUnit <= early + bytes; };
    // First the units that are whole.
#pragma unroll 1
    for (int first = thread; first < stretches * units; first += kAtOnce * threads) {
        Words4 moved[kAtOnce];
        int at[kAtOnce];  // in LDS
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
            const int i = first + k * threads;
            at[k] = -1;
            if (i >= stretches * units) continue;
            const int n = stretches == 1 ? 0 : i / units, offset = (i - n * units) * kBwdRowsUnit;
            char* const stretch = bwd_rows_stretch(s, how, stage, n);
            const int early = bwd_rows_early(stretch);
            if (!is_whole(early, offset)) continue;
            Words4* const in_memory = reinterpret_cast<Words4*>(stretch - early + offset);
            at[k] = n * how.row_step + offset;
            if constexpr (kBack)
                *in_memory = *reinterpret_cast<const Words4*>(lds + at[k]);
            else
                moved[k] = *in_memory;
        }
        if constexpr (!kBack) {
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k)
                if (at[k] >= 0) *reinterpret_cast<Words4*>(lds + at[k]) = moved[k];
        }
    }
    // Then those at the ends of stretches, of which only a part is the stretch's.
#pragma unroll 1
    for (int i = thread; i < 2 * stretches; i += threads) {
        char* const stretch = bwd_rows_stretch(s, how, stage, i / 2);
        const int early = bwd_rows_early(stretch), end = early + bytes;
        const int offset = i % 2 ? (end - 1) / kBwdRowsUnit * kBwdRowsUnit : 0;
        if (is_whole(early, offset) || (i % 2 && offset == 0)) continue;
        T *const in_memory = reinterpret_cast<T*>(stretch - early + offset), *const in_lds = reinterpret_cast<T*>(
                                                                                 lds + i / 2 * how.row_step + offset);
        T elements[kElements];
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
            const int at = offset + e * kSize;
            if (at >= early && at < end) elements[e] = kBack ? in_lds[e] : *global_pointer<const T>(in_memory + e);
        }
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
            const int at = offset + e * kSize;
            if (at < early || at >= end) continue;
            if constexpr (kBack)
                *global_pointer<T>(in_memory + e) = elements[e];
            else
                in_lds[e] = elements[e];
        }
    }
}

// Where row n of channel c of the block begins in LDS.
HIPCONV_INLINE int bwd_rows_place(const Sequences& s, const BwdRowsTensor& how, const BwdRowsStage& stage, int n, int c) {
    const int early = how.is_flat ? bwd_rows_early(bwd_rows_stretch(s, how, stage, n)) : 0;
    return how.begin + early + n * how.row_step + c * how.d_step;
}

// Brings a thread's own row of a tensor to LDS.
template <typename T>
__device__ __forceinline__ void bwd_rows_bring_own(const Sequences& s, const BwdRowsTensor& how, int64_t row, int64_t d,
                                                   int32_t seqlen, char* to) {
    constexpr int kAtOnce = 8;
    const char* from = global_pointer<char>(s.data) + row * how.row_memory + d * how.d_memory;
#pragma unroll 1
    for (int t = 0; t < seqlen; t += kAtOnce) {
        T tokens[kAtOnce];
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k)
            if (t + k < seqlen) tokens[k] = *global_pointer<const T>(from + k * how.t_memory);
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k)
            if (t + k < seqlen) *reinterpret_cast<T*>(to + k * how.t_step) = tokens[k];
        from += kAtOnce * how.t_memory;
        to += kAtOnce * how.t_step;
    }
}

// kWidth is even; the filter may be one tap narrower. Its taps are the last ones then.
template <typename T, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kBwdRowsThreads, bwd_rows_blocks(kWidth)) causal_conv1d_bwd_rows(BwdRowsCall call) {
    constexpr int kPast = kWidth - 1;
    HIPCONV_LARGE_SHARED(Words4, shared, kCopiesPastRegisters ? 1 : kBwdRowsLds / 16);
    char* const lds = reinterpret_cast<char*>(shared);
    const CausalConv1dBwdParams& p = call.p;
    const BwdRowsPlan& plan = call.plan;
    const auto again = [&]() -> const BwdRowsCall& { return first_parameter_again(call); };

    let_next_kernel_begin();
    wait_for_kernel_before();
    const uint32_t piece = blockIdx.z * gridDim.y + blockIdx.y;
    if (piece >= plan.pieces) return;
    const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
    const int own_row = thread / plan.channels, c = thread - own_row * plan.channels;
    BwdRowsStage part{};
    part.first_channel = static_cast<int>(blockIdx.x) * plan.channels;
    const int channels_left = p.in.dim - part.first_channel;
    part.channels = channels_left < plan.channels ? channels_left : plan.channels;
    const bool has_channel = c < part.channels;
    const int d = part.first_channel + (has_channel ? c : 0);
    const int left_out = kWidth - p.in.width, past = p.in.width - 1, seqlen = p.in.seqlen;
    const bool has_ids = p.in.seq_idx.data, has_initial = p.in.initial_states.data, has_final = p.dfinal_states.data;

    float weight[kWidth], bias = p.in.bias ? load_parameter(p.in.bias, d * p.in.bias_stride, p.in.bias_dtype) : 0.0f;
    with_dtype(p.in.weight_dtype, [&](auto type) {
        using P = decltype(type);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
            weight[i] = 0.0f;
            if (i >= left_out)
                weight[i] = parameter<P>(p.in.weight, d * p.in.weight_dim_stride + (i - left_out) * p.in.weight_width_stride);
        }
    });
    float dweight[kWidth], dbias = 0.0f;
#pragma unroll
    for (float& each : dweight) each = 0.0f;

    // The states of the thread's next row, a column for each tap but the last.
    T initial[kPast], final[kPast];
    const auto load_states = [&](int64_t b) {
        const CausalConv1dBwdParams& params = again().p;
        const auto load = [&](const Sequences& s, T(&columns)[kPast]) {
            const T* from = global_pointer<const T>(s.data) + b * s.batch_stride + d * s.dim_stride;
#pragma unroll
            for (int i = 0; i < kPast; ++i) {
                if (i < left_out) continue;
                columns[i] = *from;
                from += s.seqlen_stride;
            }
        };
        if (has_initial) load(params.in.initial_states, initial);
        if (has_final) load(params.dfinal_states, final);
    };

    // Walks through row n of the stage, after whose last token it loads the states of the row `next`, if there is one.
    const auto walk = [&](int n, int64_t next) {
        const int64_t b = int64_t{part.first_row} + n;
        int x_at = bwd_rows_place(p.in.x, plan.x, part, n, c), dout_at = bwd_rows_place(p.dout, plan.dout, part, n, c);
        const int bytes_at = plan.taps_begin + n * seqlen;
        int dx_at = 0;
        char* dx_in_memory = nullptr;
        if (plan.dx.is_flat)
            dx_at = bwd_rows_place(p.dx, plan.dx, part, n, c);
        else
            dx_in_memory = global_pointer<char>(p.dx.data) + b * plan.dx.row_memory + d * plan.dx.d_memory;
        // Stores the gradient of the input at t, the next one from that at -kPast on.
        const auto store = [&](int t, float value) {
            const T element = from_float<T>(value);
            if (t >= 0) {
                if (plan.dx.is_flat) {
                    *reinterpret_cast<T*>(lds + dx_at) = element;
                    dx_at += plan.dx.t_step;
                } else {
                    *global_pointer<T>(dx_in_memory) = element;
                    dx_in_memory += plan.dx.t_memory;
                }
            } else if (t >= -past) {
                const Sequences& s = again().p.dinitial_states;
                if (s.data) at<T>(s, b, d, t + past) = element;
            }
        };

        float window[kWidth], sums[kWidth], of_final[kPast];
        window[0] = 0.0f;
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            window[i + 1] = has_initial && i >= left_out ? to_float(initial[i]) : 0.0f;
            of_final[i] = has_final && i >= left_out ? to_float(final[i]) : 0.0f;
        }
#pragma unroll
        for (float& each : sums) each = 0.0f;
        if (next >= 0) load_states(next);

        const uint32_t all = (1u << p.in.width) - 1;
        uint32_t own = 0;  // the bits of the last token's taps
        // Does token t, which takes a slot of the rings.
        const auto step = [&](int t, int slot) {
            if (has_ids)
                own = reinterpret_cast<const uint8_t*>(lds)[bytes_at + t];
            else
                own = t >= past || has_initial ? all : all << (past - t) & all;
            own <<= left_out;
            window[slot] = to_float(*reinterpret_cast<const T*>(lds + x_at));
            float g = to_float(*reinterpret_cast<const T*>(lds + dout_at));
            x_at += plan.x.t_step;
            dout_at += plan.dout.t_step;
            sums[slot] = 0.0f;
            const auto add = [&](auto taps) {
                float sum = bias;
#pragma unroll
                for (int i = 0; i < kWidth; ++i)
                    if (taps.sees(i)) sum = weight[i] * window[(slot + 1 + i) % kWidth] + sum;
                if (p.in.use_silu) g *= low(silu_derivative(twice(sum)));
                if (taps.sees(kPast)) dbias += g;
#pragma unroll
                for (int i = 0; i < kWidth; ++i) {
                    const int at = (slot + 1 + i) % kWidth;
                    if (!taps.sees(i)) continue;
                    dweight[i] = g * window[at] + dweight[i];
                    sums[at] = weight[i] * g + sums[at];
                }
            };
            if (!kHasPredicates && own == all << left_out)
                add(TapsOfFilter{left_out == 0});
            else
                add(TapsOfByte{own});
            store(t - kPast, sums[(slot + 1) % kWidth]);
        };
        int t = 0;
#pragma unroll 1
        for (; t + kWidth <= seqlen; t += kWidth) {
#pragma unroll
            for (int j = 0; j < kWidth; ++j) step(t + j, j);
        }
#pragma unroll 1
        for (; t < seqlen; ++t) {  // of fewer tokens, each takes slot 0, and the rings move on behind it
            step(t, 0);
#pragma unroll
            for (int i = 1; i < kWidth; ++i) {
                window[i] = window[(i + 1) % kWidth];
                sums[i] = sums[(i + 1) % kWidth];
            }
        }
        // The inputs of the final state, in which the last token sees those that count, its own among them.
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            float value = sums[i + 1];
            if (has_final && i >= left_out && (own >> (i + 1) & 1)) value += of_final[i];
            store(seqlen - kPast + i, value);
        }
    };

    const int rows_a_stage = plan.rows * plan.turns;
    const int first_stage = static_cast<int>(piece) * plan.stages;
    int last_stage = first_stage + plan.stages;
    if (last_stage > plan.all_stages) last_stage = plan.all_stages;
    const int64_t end_of_piece = int64_t{last_stage} * rows_a_stage, batch = p.in.batch;
    const int64_t end = end_of_piece < batch ? end_of_piece : batch;
    const auto has_row = [&](int64_t b) { return has_channel && b < end; };
    if (has_row(int64_t{first_stage} * rows_a_stage + own_row)) load_states(int64_t{first_stage} * rows_a_stage + own_row);
#pragma unroll 1
    for (int stage = first_stage; stage < last_stage; ++stage) {
        part.first_row = stage * rows_a_stage;
        const int64_t left = end - part.first_row;
        part.count = left < rows_a_stage ? static_cast<int>(left) : rows_a_stage;
        if (stage != first_stage) __syncthreads();
        const auto bring = [&](const Sequences& s, const BwdRowsTensor& how) {
            if (how.is_flat) return bwd_rows_move<T, false>(s, how, part, seqlen, lds);
#pragma unroll 1
            for (int n = own_row; has_channel && n < part.count; n += plan.rows)
                bwd_rows_bring_own<T>(s, how, int64_t{part.first_row} + n, d, seqlen, lds + bwd_rows_place(s, how, part, n, c));
        };
        bring(p.in.x, plan.x);
        bring(p.dout, plan.dout);
        if (has_ids) {
#pragma unroll 1
            for (int i = thread; i < part.count * seqlen; i += threads) {
                const int n = i / seqlen;
                reinterpret_cast<uint8_t*>(lds + plan.taps_begin)[i] =
                    static_cast<uint8_t>(bwd_taps_of_token<kWidth>(p.in, int64_t{part.first_row} + n, i - n * seqlen));
            }
        }
        __syncthreads();
#pragma unroll 1
        for (int n = own_row; has_channel && n < part.count; n += plan.rows) {
            const int64_t next = int64_t{part.first_row} + n + plan.rows;
            walk(n, has_row(next) ? next : -1);
        }
        if (plan.dx.is_flat) {
            __syncthreads();
            bwd_rows_move<T, true>(p.dx, plan.dx, part, seqlen, lds);
        }
    }

    // ---- dweight and dbias of the block -------------------------------------------------------------------------------------
    __syncthreads();
    float* const of_threads = reinterpret_cast<float*>(lds);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) of_threads[i * threads + thread] = dweight[i];
    of_threads[kWidth * threads + thread] = dbias;
    __syncthreads();
    float* const partials = global_pointer<float>(again().p.partials);
    for (int e = thread; e < (past + 2) * part.channels; e += threads) {
        const int i = e / part.channels, of_block = e - i * part.channels;
        float sum = 0.0f;
        for (int row = 0; row < plan.rows; ++row) sum += of_threads[(i + left_out) * threads + row * plan.channels + of_block];
        const int64_t channel = int64_t{part.first_channel} + of_block;
        if (partials)
            partials[(int64_t{piece} * (past + 2) + i) * p.in.dim + channel] = sum;
        else
            bwd_store_sum<float>(again().p, channel, i, sum);
    }
}

template <typename T, int kWidth = kBwdRowsMaxWidth>
void launch_bwd_rows_of(const BwdRowsCall& call, hipStream_t stream) {
    if constexpr (kWidth > 2) {
        if (call.p.in.width <= kWidth - 2) return launch_bwd_rows_of<T, kWidth - 2>(call, stream);
    }
    const BwdRowsPlan& plan = call.plan;
    const dim3 grid = grid_of(plan.groups, plan.pieces), block(static_cast<unsigned>(plan.channels * plan.rows), 1, 1);
    HIPCONV_LAUNCH(true, (causal_conv1d_bwd_rows<T, kWidth>), grid, block, launch_shared_bytes(plan.lds_bytes), stream, call);
    check_launch("causal_conv1d_bwd");
}

}  // namespace hipconv
