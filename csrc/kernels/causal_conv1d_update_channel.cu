// Causal conv1d decode, one channel a lane ("channel"): any strides, and what `vector` does not know: speculative and circular
// states, columns that move before the window, intermediate windows.
//
// A block is a strip of neighbouring channels of one row; a lane keeps its channel's window in registers. Where channels are not
// neighbours in memory (conv_state as (slots, dim, columns), x as (batch, dim, tokens)) but the strip is contiguous, it moves
// through LDS, neighbouring lanes taking neighbouring elements.
//
// A lane reads its window before it writes, and each token before its output, so x and out may be one tensor.
#include <hip/hip_runtime.h>

#include "causal_conv1d_launchers.h"
#include "causal_conv1d_parts.h"
#include "causal_conv1d_update_launchers.h"
#include "causal_conv1d_update_row.h"
#include "check.h"

namespace hipconv {

constexpr int kChannelLanes = 128;
constexpr int kStaged = 8 * kChannelLanes;  // elements that LDS holds: longer strips have fewer lanes
constexpr int kMaxWidth = 6;

struct ChannelPlan {
    bool stage_state, stage_tokens;
};

template <typename T>
HIPCONV_INLINE void stage_in(T* stage, const T* from, int size, int lane, int lanes) {
    for (int begin = lane; begin < size; begin += 4 * lanes) {
        T loaded[4];
#pragma unroll
        for (int k = 0; k < 4; ++k)
            if (begin + k * lanes < size) loaded[k] = from[begin + k * lanes];
#pragma unroll
        for (int k = 0; k < 4; ++k)
            if (begin + k * lanes < size) stage[begin + k * lanes] = loaded[k];
    }
}

template <typename T>
HIPCONV_INLINE void stage_out(T* to, const T* stage, int size, int lane, int lanes) {
    for (int at = lane; at < size; at += lanes) to[at] = stage[at];
}

template <typename T, typename S, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kChannelLanes, 6) causal_conv1d_update_channels(CausalConv1dUpdateParams p, ChannelPlan plan) {
    constexpr int kPast = kWidth - 1, kAhead = 4;
    HIPCONV_SHARED(S, states, kStaged);
    HIPCONV_SHARED(T, values, kStaged);

    const int lane = static_cast<int>(threadIdx.x), lanes = static_cast<int>(blockDim.x);
    const int64_t strip_d = static_cast<int64_t>(blockIdx.x) * lanes;
    const int strip = p.dim - strip_d < lanes ? static_cast<int>(p.dim - strip_d) : lanes;
    const bool active = lane < strip;  // the other lanes only move strips
    const int64_t d = active ? strip_d + lane : p.dim - 1;
    const bool speculative = p.num_accepted_tokens.data, circular = p.cache_seqlens.data;

    float weight[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
        weight[i] = load_parameter(p.weight, d * p.weight_dim_stride + i * p.weight_width_stride, p.weight_dtype);
    const float bias = p.bias ? load_parameter(p.bias, d * p.bias_stride, p.bias_dtype) : 0.0f;

    for (int64_t b = blockIdx.y; b < p.batch; b += gridDim.y) {
        const RowTokens tokens = tokens_of_row(p, b);
        const int count = tokens.count;
        T* out = out_at<T>(p, b, d, tokens.first);
        const int part = output_of_channel(p, d);
        const int64_t out_step = part == 0 ? p.out[0].token_stride : part == 1 ? p.out[1].token_stride : p.out[2].token_stride;

        if (p.zero_padding && p.query_start_loc.data && active) {
            // The rows share out the tokens past the last of them.
            const int64_t end = token_within(p, load_index(p.query_start_loc, p.batch));
            for (int64_t t = end + b; t < p.total_tokens; t += p.batch) *out_at<T>(p, 0, d, t) = from_float<T>(0.0f);
        }
        if (count == 0) continue;
        RowState row = state_of_row(p, b, count);
        if (!row.live) {
            if (p.zero_padding && active) zero_one_channel<T>(p, b, d, tokens);
            continue;
        }

        if (plan.stage_state || plan.stage_tokens) {
            __syncthreads();  // of the row before
            if (plan.stage_tokens) stage_in(values, token_at<T>(p.x, b, strip_d, 0), strip * count, lane, lanes);
            if (plan.stage_state) stage_in(states, state_at<S>(p, row.read_slot, strip_d, 0), strip * p.state_len, lane, lanes);
            __syncthreads();
        }

        if (active) {
            const T* x = token_at<T>(p.x, b, d, tokens.first);
            const auto token = [&](int t) { return plan.stage_tokens ? values[lane * count + t] : x[t * p.x.token_stride]; };
            const auto get = [&](int column) {
                return plan.stage_state ? states[lane * p.state_len + column] : *state_at<S>(p, row.read_slot, d, column);
            };
            const auto put = [&](int column, S value) {
                if (plan.stage_state)
                    states[lane * p.state_len + column] = value;
                else
                    *state_at<S>(p, row.write_slot, d, column) = value;
            };

            S ring[kPast + 1];  // the window, oldest first, and the token after it
#pragma unroll
            for (int i = 0; i < kPast; ++i) ring[i] = get(window_column(p, row, i));
            const int spare = p.history - kPast;  // columns before the window that move with it
            if (kPast > 0 && speculative) {
#pragma unroll
                for (int i = 0; i < kPast - 1; ++i) put(i, ring[i + 1]);
            } else if (kPast > 0 && !circular) {
                for (int i = 0; i < spare; ++i)
                    put(i, i + count < p.history ? get(i + count) : history_of<S>(token(i + count - p.history)));
            }
            const int64_t snapshots = intermediate_slot_of_row(p, b);

            for (int first = 0; first < count; first += kAhead) {
                T ahead[kAhead];
#pragma unroll
                for (int j = 0; j < kAhead; ++j)
                    if (first + j < count) ahead[j] = token(first + j);
#pragma unroll
                for (int j = 0; j < kAhead; ++j) {
                    const int t = first + j;
                    if (t >= count) break;
                    float sum = bias;
#pragma unroll
                    for (int i = 0; i < kPast; ++i) sum += weight[i] * to_float(ring[i]);
                    sum += weight[kPast] * to_float(ahead[j]);
                    const T result = from_float<T>(p.use_silu ? silu(sum) : sum);
                    if (plan.stage_tokens)
                        values[lane * count + t] = result;
                    else
                        out[t * out_step] = result;
                    if (kPast == 0) continue;

                    ring[kPast] = history_of<S>(ahead[j]);
                    if (speculative)
                        put(kPast - 1 + t, ring[kPast]);
                    else if (circular && t + p.state_len >= count)
                        put((row.first_column + t) % p.state_len, ring[kPast]);
#pragma unroll
                    for (int i = 0; i < kPast; ++i) ring[i] = ring[i + 1];
                    if (snapshots >= 0 && t < p.intermediate_tokens) {
#pragma unroll
                        for (int i = 0; i < kPast; ++i) *intermediate_at<S>(p, snapshots, t, d, i) = ring[i];
                    }
                }
            }
            if (!speculative && !circular) {
#pragma unroll
                for (int i = 0; i < kPast; ++i) put(spare + i, ring[i]);
            }
        }

        if (plan.stage_state || plan.stage_tokens) {
            __syncthreads();
            if (plan.stage_tokens) stage_out(token_at<T>(p.out[0], b, strip_d, 0), values, strip * count, lane, lanes);
            // A fork leaves the columns of the slot written alone that are not the row's.
            const int columns = speculative ? kPast - 1 + count : circular ? p.state_len : p.history;
            if (plan.stage_state && row.read_slot != row.write_slot && columns < p.state_len) {
                for (int i = 0; i < columns && active; ++i) *state_at<S>(p, row.write_slot, d, i) = states[lane * p.state_len + i];
            } else if (plan.stage_state) {
                stage_out(state_at<S>(p, row.write_slot, strip_d, 0), states, strip * p.state_len, lane, lanes);
            }
        }
    }
}

namespace {

template <typename T, typename S, int kWidth>
void launch(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    // Strips without gaps go through LDS, if enough lanes of them fit.
    unsigned lanes = power_of_two_up_to(p.dim, kChannelLanes);
    const auto fits = [&](int32_t each) { return each > 1 && each <= kStaged / 32; };
    const auto packed = [&](const Tokens& tokens) { return tokens.token_stride == 1 && tokens.dim_stride == p.seqlen; };
    ChannelPlan plan{};
    plan.stage_state = kWidth > 1 && p.column_stride == 1 && p.state_dim_stride == p.state_len && fits(p.state_len);
    plan.stage_tokens =
        !p.query_start_loc.data && packed(p.x) && packed(p.out[0]) && p.out_end[0] == p.dim && fits(p.seqlen);
    while (plan.stage_state && lanes * p.state_len > kStaged) lanes /= 2;
    while (plan.stage_tokens && lanes * p.seqlen > kStaged) lanes /= 2;

    const dim3 grid(blocks_up_to(p.dim, lanes, 1 << 30), blocks_up_to(p.batch, 1, 65535), 1);
    hipLaunchKernelGGL((causal_conv1d_update_channels<T, S, kWidth>), grid, dim3(lanes, 1, 1), 0, stream, p, plan);
    check_launch("causal_conv1d_update");
}

template <typename T, typename S, int kWidth = kMaxWidth>
void with_width(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    if constexpr (kWidth > 0) p.width == kWidth ? launch<T, S, kWidth>(p, stream) : with_width<T, S, kWidth - 1>(p, stream);
}

template <typename T>
void with_state_dtype(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    p.state_dtype == p.dtype ? with_width<T, T>(p, stream) : with_width<T, float>(p, stream);
}

}  // namespace

bool causal_conv1d_update_channel_serves(const CausalConv1dUpdateParams& p) {
    return p.width <= kMaxWidth && !p.tree_child.data && (p.state_dtype == p.dtype || p.state_dtype == DType::f32);
}

void causal_conv1d_update_channel(const CausalConv1dUpdateParams& p, void* stream) {
    const hipStream_t hip_stream = static_cast<hipStream_t>(stream);
    switch (p.dtype) {
        case DType::f32:
            return with_state_dtype<float>(p, hip_stream);
        case DType::f16:
            return with_state_dtype<f16>(p, hip_stream);
        case DType::bf16:
            return with_state_dtype<bf16>(p, hip_stream);
    }
}

}  // namespace hipconv
