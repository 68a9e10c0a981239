// This kernel is the causal conv1d decode in pairs of channels ("pair"), widths 1 to 8, known at run time. It serves what
// vectors of more channels do not: rows and pools of any alignment and channel stride, few channels, slots packed channel by
// channel with any number of columns, float32 at widths above 4; one token a row, several, or speculative decoding.
//
// A block takes a strip of channels of some rows. All rows of a block share the strip's weights and biases, which come to LDS
// as floats, whatever they are in memory. A lane has two neighbouring channels of one row. Where a slot is packed channel by
// channel ((slots, dim, columns)), the strip's columns go through LDS, so that neighbouring lanes move neighbouring pairs of
// elements; there a lane's part begins an odd number of pairs after its neighbour's, in another bank. Else a lane moves its own
// columns. Everything moves in pairs of elements where these are aligned, else one by one.
//
// A lane reads its window before it writes, and each token before its output, so x and out may be one tensor.
#include <hip/hip_runtime.h>

#include "../common/vector_math.h"
#include "causal_conv1d/decode_row.h"
#include "device/elements.h"
#include "grid.h"
#include "kernels.h"
#include "launch/check.h"
#include "launch/division.h"

namespace hipconv {

constexpr int kPairThreads = 256;
constexpr int kUsualPairs = 64, kMostPairs = 96;  // of a strip
// LDS has room for so many pairs of a state's elements, for more of them where it is large.
template <typename S>
constexpr int kStagePairs = kCopiesPastRegisters ? kPairThreads * 11 : 10240 / (2 * static_cast<int>(sizeof(S)));
constexpr int kMostColumns = 32;  // of a slot that goes through LDS
constexpr int kMostRowsOfBlock = 32;
constexpr int kPairsOfAnyWidth = 8, kPairsOfUsualWidth = 4;
constexpr int kPairRows = 1 << 24, kPairStrips = 65535;  // a grid's limits, those of AMD included

struct PairPlan {
    int32_t rows;                        // of a block
    SmallDivisor pairs, columns, width;  // pairs of a strip
    bool x_in_pairs, out_in_pairs, state_in_pairs;
    bool through_lds;  // slots are packed channel by channel
};

// Two elements `step` apart.
template <typename E>
HIPCONV_INLINE Words<E, 2> load_two(const E* from, int64_t step, bool in_pairs) {
    if (in_pairs) return *reinterpret_cast<const Words<E, 2>*>(from);
    const E both[2] = {from[0], from[step]};
    return join<E>(both);
}
template <typename E>
HIPCONV_INLINE void store_two(E* to, int64_t step, bool in_pairs, bool has_second, Words<E, 2> value) {
    if (in_pairs) {
        *reinterpret_cast<Words<E, 2>*>(to) = value;
        return;
    }
    to[0] = from_bits<E>(element<E, 2>(&value, 0));
    if (has_second) to[step] = from_bits<E>(element<E, 2>(&value, 1));
}

template <typename S, typename T>
HIPCONV_INLINE Words<S, 2> pair_for_state(Words<T, 2> x) {
    if constexpr (std::is_same_v<S, T>) {
        return x;
    } else {
        Words<S, 2> wide{};
        set_pair<S>(wide, 0, pair_of<T>(x, 0));
        return wide;
    }
}

// The strip's weights, tap by tap, and its biases.
template <int kWidth>
struct StripTaps {
    static constexpr int kPitch = 2 * kMostPairs + 4;  // so that neighbouring taps lie in different banks
    static constexpr int kFloats = (kWidth + 1) * kPitch;

    static HIPCONV_INLINE void bring(const CausalConv1dUpdateParams& p, const PairPlan& plan, int64_t first_channel,
                                     int channels, float* taps) {
        const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
        float* const own = taps + (kWidth - p.width) * kPitch;
        with_dtype(p.weight_dtype, [&](auto type) {
            using P = decltype(type);
            const P* const from = p.weight.as<const P>() + first_channel * p.weight_dim_stride;
#pragma unroll 4
            for (int at = thread; at < channels * p.width; at += threads) {
                const int channel = divide(at, plan.width), i = at - channel * p.width;
                own[i * kPitch + channel] = parameter<P>(from, channel * p.weight_dim_stride + i * p.weight_width_stride);
            }
        });
        for (int channel = thread; channel < channels; channel += threads)
            taps[kWidth * kPitch + channel] = bias_at(p, first_channel + channel);
    }
};

// This holds what the indices say of a row. One lane looks it up for all lanes of the row.
struct RowOfBlock {
    int32_t first_token, count, read_slot, write_slot, first_column;
    bool live;

    static HIPCONV_INLINE RowOfBlock find(const CausalConv1dUpdateParams& p, int64_t b) {
        const RowIndices indices = indices_of_row(p, b);
        const RowTokens tokens = tokens_of_row(p, indices);
        const RowState state = state_of_row(p, indices, tokens.count);
        return {static_cast<int32_t>(tokens.first),     tokens.count,       static_cast<int32_t>(state.read_slot),
                static_cast<int32_t>(state.write_slot), state.first_column, state.live && tokens.count > 0};
    }
};

// The number of blocks of a compute unit, by registers and LDS.
template <typename S, int kWidth>
constexpr int pair_blocks() {
    constexpr int kBytes = 4 * StripTaps<kWidth>::kFloats + 2 * static_cast<int>(sizeof(S)) * kStagePairs<S> +
                           kMostRowsOfBlock * static_cast<int>(sizeof(RowOfBlock));
    constexpr int kMost = sizeof(S) == 2 || kWidth == kPairsOfUsualWidth ? 4 : 3;
    return kLdsBytes / kBytes < kMost ? kLdsBytes / kBytes : kMost;
}

template <typename T, typename S, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kPairThreads, (pair_blocks<S, kWidth>()))
    causal_conv1d_update_pairs(CausalConv1dUpdateParams params, PairPlan plan) {
    const CausalConv1dUpdateParams& p = first_parameter(params);
    constexpr int kPast = kWidth - 1, kAhead = 4, kMoved = sizeof(S) == 4 ? 4 : 8;
    using Taps = StripTaps<kWidth>;
    using Token = Words<T, 2>;
    using Column = Words<S, 2>;
    HIPCONV_SHARED(float, taps, Taps::kFloats);
    HIPCONV_SHARED(Column, stage, kStagePairs<S>);
    HIPCONV_SHARED(RowOfBlock, rows, kMostRowsOfBlock);

    const int thread = static_cast<int>(threadIdx.x), pairs = static_cast<int>(plan.pairs.value);
    const int32_t strip_d = static_cast<int32_t>(blockIdx.y) * pairs * 2;
    const int channels = p.dim - strip_d < 2 * pairs ? p.dim - strip_d : 2 * pairs;

    // ---- what the block shares: rows, weights, biases -----------------------------------------------------------------------
    let_next_kernel_begin();
    wait_for_kernel_before();
    if (thread < plan.rows) {
        const int64_t b = int64_t{blockIdx.x} * plan.rows + thread;
        rows[thread] = b < p.batch ? RowOfBlock::find(p, b) : RowOfBlock{};
    }
    Taps::bring(p, plan, strip_d, channels, taps);
    __syncthreads();

    // ---- the lane's row and channels, and its first tokens on their way -----------------------------------------------------
    const int row_of_block = divide(thread, plan.pairs), pair = thread - row_of_block * pairs;
    const int64_t b = int64_t{blockIdx.x} * plan.rows + row_of_block;
    const int32_t d = strip_d + 2 * pair;
    const bool works = b < p.batch && 2 * pair < channels, has_second = 2 * pair + 1 < channels;
    const RowOfBlock& row = rows[row_of_block];
    const bool live = works && row.live;

    const auto load_token = [&](int t) {
        const CausalConv1dUpdateParams& q = first_parameter_again(params);
        return load_two<T>(token_at<T>(q.x, b, d, row.first_token + t), has_second ? q.x.dim_stride : 0, plan.x_in_pairs);
    };
    Token ahead[kAhead];
    const auto load_ahead = [&](int first) {
#pragma unroll
        for (int j = 0; j < kAhead; ++j)
            if (first + j < row.count) ahead[j] = load_token(first + j);
    };
    if (live) load_ahead(0);

    // ---- the window, or the strip's columns to LDS --------------------------------------------------------------------------
    // The window, oldest first, behind what the width leaves out; or the strip's columns on their way to LDS.
    const int missing = kWidth - first_parameter_again(params).width;
    const int pitch = p.state_len | 1;  // pairs of a lane's part in LDS
    Column* const row_stage = stage + row_of_block * pairs * pitch;
    S* const mine = reinterpret_cast<S*>(row_stage + pair * pitch);
    const auto staged = [&](int at) { return row_stage + at + divide(at, plan.columns) * (pitch - p.state_len); };
    Column ring[kWidth];
    if (row.live && plan.through_lds) {  // also by lanes that have no channels of their own
        const Column* const from = reinterpret_cast<const Column*>(state_at<S>(p, row.read_slot, strip_d, 0));
        const int moved = channels / 2 * p.state_len;  // by all lanes of the row
#pragma unroll 1
        for (int first = pair; first < moved; first += kMoved * pairs) {
            Column some[kMoved];
#pragma unroll
            for (int k = 0; k < kMoved; ++k)
                if (first + k * pairs < moved) some[k] = from[first + k * pairs];
#pragma unroll
            for (int k = 0; k < kMoved; ++k)
                if (first + k * pairs < moved) *staged(first + k * pairs) = some[k];
        }
    } else if (live) {
        const S* column = state_at<S>(p, row.read_slot, d, row.first_column);
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            if (i < missing) continue;
            ring[i] = load_two<S>(column, has_second ? p.state_dim_stride : 0, plan.state_in_pairs);
            column += p.column_stride;
        }
    }
    if (plan.through_lds) __syncthreads();

    // ---- outputs, and the new window ----------------------------------------------------------------------------------------
    if (live) {
        const CausalConv1dUpdateParams& p = first_parameter_again(params);
        const int missing = kWidth - p.width;
        const bool speculative(p.num_accepted_tokens.data);
        const auto put = [&](int column, Column value) {
            const CausalConv1dUpdateParams& q = first_parameter_again(params);
            if (plan.through_lds) {
                mine[column] = from_bits<S>(element<S, 2>(&value, 0));
                mine[q.state_len + column] = from_bits<S>(element<S, 2>(&value, 1));
            } else {
                store_two<S>(state_at<S>(q, row.write_slot, d, column), q.state_dim_stride, plan.state_in_pairs, has_second,
                             value);
            }
        };
        if (plan.through_lds) {
            const S* column = mine + row.first_column;
#pragma unroll
            for (int i = 0; i < kPast; ++i) {
                if (i < missing) continue;
                const S both[2] = {column[0], column[p.state_len]};
                ring[i] = join<S>(both);
                ++column;
            }
        }
        if (speculative) {
#pragma unroll
            for (int i = 0; i < kPast - 1; ++i)
                if (i >= missing) put(i - missing, ring[i + 1]);
        }
        const auto tap = [&](int i) { return *reinterpret_cast<const Pair*>(taps + i * Taps::kPitch + 2 * pair); };
#pragma unroll 1
        for (int first = 0; first < row.count; first += kAhead) {
            if (first > 0) load_ahead(first);
#pragma unroll
            for (int j = 0; j < kAhead; ++j) {
                const int t = first + j;
                if (t >= row.count) break;
                Pair sum = tap(kWidth);
#pragma unroll
                for (int i = 0; i < kPast; ++i)
                    if (i >= missing) sum = multiply_add(tap(i), pair_of<S>(ring[i], 0), sum);
                sum = multiply_add(tap(kPast), pair_of<T>(ahead[j], 0), sum);
                Token result{};
                set_pair<T>(result, 0, silu_where(p.use_silu, sum));
                const CausalConv1dUpdateParams& q = first_parameter_again(params);
                const int part = output_of_channel(q, d);
                const int64_t step = part == 0 ? q.out[0].dim_stride : part == 1 ? q.out[1].dim_stride : q.out[2].dim_stride;
                store_two<T>(out_at<T>(q, b, d, row.first_token + t), step, plan.out_in_pairs, has_second, result);
                ring[kPast] = pair_for_state<S, T>(ahead[j]);
                if (speculative && p.width > 1) put(p.width - 2 + t, ring[kPast]);
#pragma unroll
                for (int i = 0; i < kPast; ++i) ring[i] = ring[i + 1];
            }
        }
        if (!speculative) {
#pragma unroll
            for (int i = 0; i < kPast; ++i)
                if (i >= missing) put(i - missing, ring[i]);
        }
    }

    // ---- zeros for padding --------------------------------------------------------------------------------------------------
    const CausalConv1dUpdateParams& last = first_parameter_again(params);
    if (works && last.zero_padding) {
#pragma unroll 1
        for (int32_t c = d; c < d + (has_second ? 2 : 1); ++c) {
            if (last.query_start_loc.data) zero_rest<T>(last, indices_of_row(last, b), b, c);
            if (!live) zero_one_channel<T>(last, b, c, {row.first_token, row.count});
        }
    }

    // ---- the new columns from LDS to the state ------------------------------------------------------------------------------
    if (!plan.through_lds) return;
    __syncthreads();
    if (!row.live) return;
    const int written = last.num_accepted_tokens.data ? last.width - 2 + row.count : last.width - 1;
    if (row.read_slot == row.write_slot || written == last.state_len) {
        Column* const to = reinterpret_cast<Column*>(state_at<S>(last, row.write_slot, strip_d, 0));
        const int moved = channels / 2 * last.state_len;
#pragma unroll 4
        for (int at = pair; at < moved; at += pairs) to[at] = *staged(at);
    } else if (works) {  // a fork: the other columns of the slot written are not the row's
        S* const to = state_at<S>(last, row.write_slot, d, 0);
#pragma unroll 1
        for (int i = 0; i < written; ++i) {
            to[i] = mine[i];
            to[last.state_len + i] = mine[last.state_len + i];
        }
    }
}

namespace {

// Tells whether elements come in aligned pairs, wherever a row, a column or a token begins.
template <typename... Strides>
bool in_pairs(Address data, int bytes, int64_t dim_stride, Strides... strides) {
    return dim_stride == 1 && data.bits % static_cast<unsigned>(2 * bytes) == 0 && ((strides % 2 == 0) && ...);
}

PairPlan pair_plan(const CausalConv1dUpdateParams& p, int stage_pairs) {
    const int bytes = element_bytes(p.dtype), state_bytes = element_bytes(p.state_dtype);
    PairPlan plan{};
    const bool even = p.dim % 2 == 0;
    plan.x_in_pairs = even && in_pairs(p.x.data, bytes, p.x.dim_stride, p.x.row_stride, p.x.token_stride);
    plan.out_in_pairs = true;
    for (int part = 0, begin = 0; begin < p.dim; begin = p.out_end[part++]) {
        const Tokens& out = p.out[part];
        plan.out_in_pairs = plan.out_in_pairs && p.out_end[part] % 2 == 0 &&
                            in_pairs(out.data, bytes, out.dim_stride, out.row_stride, out.token_stride);
    }
    plan.state_in_pairs = even && in_pairs(p.state, state_bytes, p.state_dim_stride, p.slot_stride, p.column_stride);
    plan.through_lds = even && p.width > 1 && p.state_dim_stride != 1 && p.state_len <= kMostColumns && p.column_stride == 1 &&
                       p.state_dim_stride == p.state_len && in_pairs(p.state, state_bytes, 1, p.slot_stride);

    const int64_t all = (int64_t{p.dim} + 1) / 2, fits = plan.through_lds ? stage_pairs / (p.state_len | 1) : kPairThreads;
    int64_t pairs = all <= kMostPairs ? all : kUsualPairs;
    while (pairs > fits) pairs = (pairs + 1) / 2;
    int64_t rows = (fits < kPairThreads ? fits : kPairThreads) / pairs;
    if (rows > kMostRowsOfBlock) rows = kMostRowsOfBlock;
    plan.rows = static_cast<int32_t>(rows < p.batch ? rows : p.batch);
    plan.pairs = small_divisor_of(pairs);
    plan.columns = small_divisor_of(p.state_len > 0 ? p.state_len : 1);
    plan.width = small_divisor_of(p.width);
    return plan;
}

constexpr int64_t kManyBlocks = 4096;  // those of a launch that begins early start one after the other

template <typename T, typename S>
void launch(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    const PairPlan plan = pair_plan(p, kStagePairs<S>);
    const int64_t pairs = plan.pairs.value;
    const dim3 grid(blocks_up_to(p.batch, plan.rows, kPairRows), blocks_up_to(p.dim, 2 * pairs, kPairStrips), 1);
    const dim3 block(static_cast<unsigned>(plan.rows * pairs), 1, 1);
    const bool early = int64_t{grid.x} * grid.y <= kManyBlocks;
    if (p.width <= kPairsOfUsualWidth)
        HIPCONV_LAUNCH(early, (causal_conv1d_update_pairs<T, S, kPairsOfUsualWidth>), grid, block, 0, stream, p, plan);
    else
        HIPCONV_LAUNCH(early, (causal_conv1d_update_pairs<T, S, kPairsOfAnyWidth>), grid, block, 0, stream, p, plan);
    check_launch("causal_conv1d_update");
}

bool serves(const CausalConv1dUpdateParams& p) {
    if (p.width > kPairsOfAnyWidth || p.batch > kPairRows || (int64_t{p.dim} + 1) / 2 > int64_t{kPairStrips} * 32) return false;
    if (p.state_dtype != p.dtype && p.state_dtype != DType::f32) return false;
    if (p.tree_child.data || p.cache_seqlens.data || p.intermediate) return false;
    if (p.width > 1 && p.history != p.width - 1) return false;
    for (int part = 0, begin = 0; begin < p.dim; begin = p.out_end[part++])
        if (p.out_end[part] != p.dim && p.out_end[part] % 2 != 0) return false;  // a pair is of one output
    return true;
}

}  // namespace

const char* causal_conv1d_update_pair_refusal(const CausalConv1dUpdateParams& p) {
    if (serves(p)) return nullptr;
    return "widths 1 to 8 with outputs of even numbers of channels but for the last, conv_state of the dtype of x or float32, "
           "no columns that move before the window, and none of: cache_seqlens, intermediate_conv_window, retrieve_next_token";
}

bool causal_conv1d_update_pair_is_choice(const CausalConv1dUpdateParams& p) { return p.x.dim_stride == 1; }

void causal_conv1d_update_pair(const CausalConv1dUpdateParams& p, void* /*workspace*/, void* stream) {
    const hipStream_t hip_stream = static_cast<hipStream_t>(stream);
    with_dtype(p.dtype, [&](auto type) {
        using T = decltype(type);
        p.state_dtype == p.dtype ? launch<T, T>(p, hip_stream) : launch<T, float>(p, hip_stream);
    });
}

}  // namespace hipconv
