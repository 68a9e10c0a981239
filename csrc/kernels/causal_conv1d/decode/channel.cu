// This kernel is the causal conv1d decode with one channel a lane ("channel"). It serves any strides, and the features that
// `pair` does not: circular states, columns that move before the window, intermediate windows.
//
// A block is a strip of neighbouring channels of one row. The columns it needs of the row's slot go through LDS, whatever their
// strides: where the strip is contiguous ((slots, dim, columns)), neighbouring lanes move neighbouring elements.
//
// x and out move four tokens at a time, as one vector where they are neighbours in memory ((batch, dim, tokens)). A lane reads
// its window before it writes, and each token before its output, so x and out may be one tensor.
#include <hip/hip_runtime.h>

#include "../common/vector_math.h"
#include "causal_conv1d/decode_row.h"
#include "device/elements.h"
#include "grid.h"
#include "kernels.h"
#include "launch/check.h"

namespace hipconv {

constexpr int kChannelLanes = 128;
constexpr int kStaged = 8 * kChannelLanes;  // elements of state that LDS holds: of longer states, fewer channels
constexpr int kMaxWidth = 6, kFewTaps = 4;  // each has an instance, which serves smaller widths, too

template <typename T, typename S, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kChannelLanes, 6)
    causal_conv1d_update_channels(CausalConv1dUpdateParams params, bool x_in_fours, bool out_in_fours) {
    const CausalConv1dUpdateParams& p = first_parameter(params);
    constexpr int kPast = kWidth - 1, kAhead = 4;
    // Things that the width leaves out are read where it is needed: scalar registers would be too few for it beside all the
    // rest.
    const auto missing_now = [&] { return kWidth - first_parameter_again(params).width; };
    const auto past_now = [&] { return first_parameter_again(params).width - 1; };
    using Four = Words<T, kAhead>;
    HIPCONV_SHARED(S, states, kStaged);  // (channel, column), as in a contiguous slot

    const int lane = static_cast<int>(threadIdx.x), lanes = static_cast<int>(blockDim.x);
    const int64_t strip_d = static_cast<int64_t>(blockIdx.x) * lanes;
    const int strip = p.dim - strip_d < lanes ? static_cast<int>(p.dim - strip_d) : lanes;
    const bool active = lane < strip;  // the other lanes only move state
    const int64_t d = active ? strip_d + lane : p.dim - 1;
    const int64_t b = row_of_block(blockIdx.y, blockIdx.z);
    if (b >= p.batch) return;

    const RowIndices indices = indices_of_row(p, b);
    if (active) zero_rest<T>(p, indices, b, d);
    const RowTokens tokens = tokens_of_row(p, indices);
    const int count = tokens.count;
    if (count == 0) return;

    // The first tokens are prefetched while the row's slot is looked at.
    const T* x = token_at<T>(p.x, b, d, tokens.first);
    T ahead[kAhead];
    const auto load_ahead = [&](int first) {
        if (x_in_fours && first + kAhead <= count) {
            const Four four = *reinterpret_cast<const Four*>(x + first);
#pragma unroll
            for (int j = 0; j < kAhead; ++j) ahead[j] = from_bits<T>(element<T, kAhead>(&four, j));
        } else {
#pragma unroll
            for (int j = 0; j < kAhead; ++j)
                if (first + j < count) ahead[j] = x[(first + j) * p.x.token_stride];
        }
    };
    load_ahead(0);
    const RowState row = state_of_row(p, indices, count);
    if (!row.live) {
        if (p.zero_padding && active) zero_one_channel<T>(p, b, d, tokens);
        return;
    }

    // The columns that are read, and then those that are written: a fork leaves other columns of the slot written alone.
    const bool speculative(p.num_accepted_tokens.data), circular(p.cache_seqlens.data);
    const int columns = speculative ? past_now() - 1 + count : circular ? p.state_len : p.history;
    const bool contiguous = p.column_stride == 1 && p.state_dim_stride == p.state_len;
    S* const mine = states + lane * p.state_len;
    if (past_now() > 0 && contiguous) {
        const S* from = state_at<S>(p, row.read_slot, strip_d, 0);
        const int size = strip * p.state_len;
        for (int begin = lane; begin < size; begin += 4 * lanes) {
            S loaded[4];
#pragma unroll
            for (int k = 0; k < 4; ++k)
                if (begin + k * lanes < size) loaded[k] = from[begin + k * lanes];
#pragma unroll
            for (int k = 0; k < 4; ++k)
                if (begin + k * lanes < size) states[begin + k * lanes] = loaded[k];
        }
    } else if (past_now() > 0 && active) {
        const int first = circular ? 0 : row.first_column, end = circular ? p.state_len : first + p.history;
        for (int i = first; i < end; ++i) mine[i] = *state_at<S>(p, row.read_slot, d, i);
    }

    float weight[kWidth];
    const int missing = missing_now();
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
        if (i >= missing) weight[i] = weight_at(p, d, i - missing);
    const float bias = bias_at(p, d);
    __syncthreads();

    if (active) {
        const CausalConv1dUpdateParams& p = first_parameter_again(params);
        T* out = out_at<T>(p, b, d, tokens.first);
        const int part = output_of_channel(p, d);
        const int64_t out_step = part == 0 ? p.out[0].token_stride : part == 1 ? p.out[1].token_stride : p.out[2].token_stride;
        const int64_t snapshots = intermediate_slot_of_row(p, b);

        const int missing = missing_now(), past = past_now();
        S ring[kPast + 1];  // the window, oldest first, and the token after it
#pragma unroll
        for (int i = 0; i < kPast; ++i)
            if (i >= missing) ring[i] = mine[window_column(p, row, i - missing)];
        const int spare = p.history - past;  // columns before the window that move with it
        if (past > 0 && speculative) {
#pragma unroll
            for (int i = 0; i < kPast - 1; ++i)
                if (i >= missing) mine[i - missing] = ring[i + 1];
        } else if (past > 0 && !circular) {
            for (int i = 0; i < spare; ++i) {
                if (i + count < p.history)
                    mine[i] = mine[i + count];
                else
                    mine[i] = history_of<S>(x[(i + count - p.history) * p.x.token_stride]);
            }
        }

        for (int first = 0; first < count; first += kAhead) {
            const CausalConv1dUpdateParams& p = first_parameter_again(params);
            if (first > 0) load_ahead(first);
            T results[kAhead];
#pragma unroll
            for (int j = 0; j < kAhead; ++j) {
                const int t = first + j;
                if (t >= count) break;
                float sum = bias;
#pragma unroll
                for (int i = 0; i < kPast; ++i)
                    if (i >= missing) sum += weight[i] * to_float(ring[i]);
                sum += weight[kPast] * to_float(ahead[j]);
                results[j] = from_float<T>(p.use_silu ? silu(sum) : sum);
                if (past == 0) continue;

                ring[kPast] = history_of<S>(ahead[j]);
                if (speculative)
                    mine[past - 1 + t] = ring[kPast];
                else if (circular && t + p.state_len >= count)
                    mine[(row.first_column + t) % p.state_len] = ring[kPast];
#pragma unroll
                for (int i = 0; i < kPast; ++i) ring[i] = ring[i + 1];
                if (snapshots >= 0 && t < p.intermediate_tokens) {
#pragma unroll
                    for (int i = 0; i < kPast; ++i)
                        if (i >= missing) *intermediate_at<S>(p, snapshots, t, d, i - missing) = ring[i];
                }
            }
            if (out_in_fours && first + kAhead <= count) {
                *reinterpret_cast<Four*>(out + first) = join<T>(results);
            } else {
#pragma unroll
                for (int j = 0; j < kAhead; ++j)
                    if (first + j < count) out[(first + j) * out_step] = results[j];
            }
        }
        if (!speculative && !circular) {
#pragma unroll
            for (int i = 0; i < kPast; ++i)
                if (i >= missing) mine[spare + i - missing] = ring[i];
        }
    }

    if (past_now() == 0) return;
    __syncthreads();
    const CausalConv1dUpdateParams& last = first_parameter_again(params);
    if (contiguous && (row.read_slot == row.write_slot || columns == last.state_len)) {
        S* to = state_at<S>(last, row.write_slot, strip_d, 0);
        for (int at = lane; at < strip * last.state_len; at += lanes) to[at] = states[at];
    } else if (active) {
        for (int i = 0; i < columns; ++i) *state_at<S>(last, row.write_slot, d, i) = mine[i];
    }
}

namespace {

template <typename T, typename S, int kWidth>
void launch(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    unsigned lanes = power_of_two_up_to(p.dim, kChannelLanes);
    while (lanes * static_cast<int64_t>(p.state_len) > kStaged && p.width > 1) lanes /= 2;
    const dim3 grid = strips_of_rows(p, blocks_up_to(p.dim, lanes, 1 << 30));
    const auto in_fours = [&](const Tokens& tokens) {
        return !p.query_start_loc.data && tokens.token_stride == 1 && tokens.data.bits % (4 * sizeof(T)) == 0 &&
               tokens.row_stride % 4 == 0 && tokens.dim_stride % 4 == 0;
    };
    hipLaunchKernelGGL((causal_conv1d_update_channels<T, S, kWidth>), grid, dim3(lanes, 1, 1), 0, stream, p, in_fours(p.x),
                       p.out_end[0] == p.dim && in_fours(p.out[0]));
    check_launch("causal_conv1d_update");
}

template <typename T, typename S>
void with_width(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    p.width <= kFewTaps ? launch<T, S, kFewTaps>(p, stream) : launch<T, S, kMaxWidth>(p, stream);
}

template <typename T>
void with_state_dtype(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    p.state_dtype == p.dtype ? with_width<T, T>(p, stream) : with_width<T, float>(p, stream);
}

}  // namespace

const char* causal_conv1d_update_channel_refusal(const CausalConv1dUpdateParams& p) {
    const bool fits = p.width <= kMaxWidth && (p.width == 1 || p.state_len <= kStaged / 32);
    if (fits && !p.tree_child.data && (p.state_dtype == p.dtype || p.state_dtype == DType::f32)) return nullptr;
    return "widths 1 to 6 with conv_state of the dtype of x or float32, state_len <= 32, and no retrieve_next_token";
}

void causal_conv1d_update_channel(const CausalConv1dUpdateParams& p, void* /*workspace*/, void* stream) {
    with_dtype(p.dtype, [&](auto type) { with_state_dtype<decltype(type)>(p, static_cast<hipStream_t>(stream)); });
}

}  // namespace hipconv
