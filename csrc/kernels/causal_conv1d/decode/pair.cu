// This kernel is the causal conv1d decode in pairs of channels ("pair"), widths 1 to 8, known at run time. It serves what
// vectors of more channels do not: rows and pools of any alignment and channel stride, few channels, slots packed channel by
// channel with any number of columns, float32 at widths above 4; one token a row, several, or speculative decoding.
//
// A block takes a strip of channels of some rows. All rows of a block share the strip's weights and biases, which come to LDS
// as floats, whatever they are in memory. A lane has two neighbouring channels of a row. If rows are more than the card works
// on at a time, a block takes turns with them: it looks all of them up first, and while a lane computes one, the tokens and
// columns of its next one are on their way. Where a slot is packed channel by channel ((slots, dim, columns)), the strip's
// columns go through LDS, so that neighbouring lanes move neighbouring pairs of elements; there a lane's part begins an odd
// number of pairs after its neighbour's, in another bank. Else a lane moves its own columns. Everything moves in pairs of
// elements where these are aligned, else one by one.
//
// A lane reads its window before it writes, and each token before its output, so x and out may be one tensor.
#include <hip/hip_runtime.h>

#include "../common/vector_math.h"
#include "causal_conv1d/decode_row.h"
#include "device/elements.h"
#include "grid.h"
#include "kernels.h"
#include "launch/check.h"
#include "launch/compute_units.h"
#include "launch/division.h"

namespace hipconv {

constexpr int kPairThreads = 256;
constexpr int kUsualPairs = 64, kMostPairs = 96;  // of a strip
// LDS has room for so many pairs of a state's elements, for more of them where it is large.
template <typename S>
constexpr int kStagePairs = kCopiesPastRegisters ? kPairThreads * 11 : 10240 / (2 * static_cast<int>(sizeof(S)));
constexpr int kMostColumns = 32;  // of a slot that goes through LDS
constexpr int kMostRowsOfBlock = kCopiesPastRegisters ? 64 : 32;
constexpr int kPairsOfAnyWidth = 8, kPairsOfUsualWidth = 4;
constexpr int kPairRows = 1 << 24, kPairStrips = 65535;  // a grid's limits, those of AMD included

struct PairPlan {
    int32_t rows, turns;                 // of a block: rows at a time, and times
    SmallDivisor pairs, columns, width;  // pairs of a strip
    int32_t gap;                         // between the parts of two lanes in LDS, in pairs
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

// This holds what the indices say of a row: where its tokens, outputs and columns are, those of the strip's first channel. One
// lane looks it up for all lanes of the row.
struct RowOfBlock {
    Address x, out, read, write;  // `read` is the window's first column, or, of columns that go through LDS, the first of all
    int32_t first_token, count, first_column;
    bool live, in_place;

    template <typename T, typename S>
    static HIPCONV_INLINE RowOfBlock find(const CausalConv1dUpdateParams& p, const RowIndices& indices, bool through_lds,
                                          int64_t b, int64_t d) {
        const RowTokens tokens = tokens_of_row(p, indices);
        const RowState state = state_of_row(p, indices, tokens.count);
        RowOfBlock row{};
        row.first_token = static_cast<int32_t>(tokens.first);
        row.count = tokens.count;
        row.first_column = state.first_column;
        row.live = state.live && tokens.count > 0;
        row.in_place = state.read_slot == state.write_slot;
        if (!row.live) return row;
        row.x = address(token_at<T>(p.x, b, d, tokens.first));
        row.out = address(token_at<T>(p.out[0], b, d, tokens.first));
        row.read = address(state_at<S>(p, state.read_slot, d, through_lds ? 0 : state.first_column));
        row.write = address(state_at<S>(p, state.write_slot, d, 0));
        return row;
    }
};

// The number of blocks of a compute unit, by registers and LDS.
template <typename S, int kWidth>
constexpr int pair_blocks() {
    constexpr int kBytes = 4 * StripTaps<kWidth>::kFloats + 2 * static_cast<int>(sizeof(S)) * kStagePairs<S> +
                           kMostRowsOfBlock * static_cast<int>(sizeof(RowOfBlock));
    constexpr int kMost = 2 + (sizeof(S) == 2) + (kWidth == kPairsOfUsualWidth);
    return kLdsBytes / kBytes < kMost ? kLdsBytes / kBytes : kMost;
}

// kThroughLds: slots are packed channel by channel.
template <typename T, typename S, int kWidth, bool kThroughLds>
__global__ void HIPCONV_LAUNCH_BOUNDS(kPairThreads, (pair_blocks<S, kWidth>()))
    causal_conv1d_update_pairs(CausalConv1dUpdateParams params, PairPlan plan) {
    const CausalConv1dUpdateParams& p = first_parameter(params);
    constexpr int kPast = kWidth - 1, kAhead = 4;
    constexpr int kMoved = sizeof(S) == 4 ? 4 : kWidth == kPairsOfUsualWidth ? 6 : 8, kComing = kThroughLds ? kMoved : kPast;
    using Taps = StripTaps<kWidth>;
    using Token = Words<T, 2>;
    using Column = Words<S, 2>;
    HIPCONV_SHARED(float, taps, Taps::kFloats);
    HIPCONV_SHARED(Column, stage, kThroughLds ? kStagePairs<S> : 1);
    HIPCONV_SHARED(RowOfBlock, rows, kMostRowsOfBlock);

    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    const int pairs = static_cast<int>(plan.pairs.value);
    const int32_t strip_d = static_cast<int32_t>(blockIdx.y) * pairs * 2;
    const int channels = p.dim - strip_d < 2 * pairs ? p.dim - strip_d : 2 * pairs;
    const int64_t first_row = int64_t{blockIdx.x} * plan.rows * plan.turns;
    const int64_t rows_left = p.batch - first_row;
    const int rows_here = rows_left < plan.rows * plan.turns ? static_cast<int>(rows_left) : plan.rows * plan.turns;

    // ---- what the block shares: rows, weights, biases -----------------------------------------------------------------------
    let_next_kernel_begin();
    wait_for_kernel_before();
    const auto find = [&](int r, const RowIndices& indices) {
        rows[r] = r < rows_here ? RowOfBlock::find<T, S>(p, indices, kThroughLds, first_row + r, strip_d) : RowOfBlock{};
    };
    const auto indices_of = [&](int r) { return r < rows_here ? indices_of_row(p, first_row + r) : RowIndices{}; };
    const RowIndices own = indices_of(thread);  // on their way while weights are
    Taps::bring(p, plan, strip_d, channels, taps);
    if (thread < plan.rows * plan.turns) find(thread, own);
    for (int r = thread + threads; r < plan.rows * plan.turns; r += threads) find(r, indices_of(r));
    __syncthreads();

    // ---- the lane's channels, and what it needs of its first row on its way -------------------------------------------------
    const int group = divide(thread, plan.pairs), pair = thread - group * pairs;
    const bool has_channels = 2 * pair < channels, has_second = 2 * pair + 1 < channels;
    const int moved = channels / 2 * p.state_len;  // columns through LDS, by all lanes of the row
    const int pitch = p.state_len | 1;             // pairs of a lane's part in LDS
    Column* const row_stage = stage + group * pairs * pitch;
    S* const mine = reinterpret_cast<S*>(row_stage + pair * pitch);
    const auto staged = [&](int at) { return row_stage + at + divide(at, plan.columns) * plan.gap; };

    Token ahead[kAhead];
    Column coming[kComing];  // the window behind what the width leaves out, or the first columns on their way to LDS
    // Results from the lane's place are worked out anew for each row: registers would be too few for them.
    const auto pair_now = [&] {
        int shared = pair;  // the compiler at hand heeds one of the two
        from_here_on(shared);
        uint32_t own = static_cast<uint32_t>(shared);
        from_here_on(own);
        return static_cast<int>(own);
    };
    const auto missing_now = [&] { return kWidth - first_parameter_again(params).width; };
    const auto load_tokens = [&](const RowOfBlock& row, int first, Token(&tokens)[kAhead]) {
        const CausalConv1dUpdateParams& q = first_parameter_again(params);
        const T* from = row.x.template as<const T>() + 2 * pair_now() * q.x.dim_stride + first * q.x.token_stride;
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            if (first + j < row.count) tokens[j] = load_two<T>(from, has_second ? q.x.dim_stride : 0, plan.x_in_pairs);
            from += q.x.token_stride;
        }
    };
    const auto load_row = [&](const RowOfBlock& row) {
        if (!row.live) return;
        const CausalConv1dUpdateParams& q = first_parameter_again(params);
        if (has_channels) load_tokens(row, 0, ahead);
        if constexpr (kThroughLds) {  // also by lanes that have no channels of their own
            const Column* const from = row.read.template as<const Column>();
            int at = pair_now();
#pragma unroll
            for (int k = 0; k < kMoved; ++k, at += pairs)
                if (at < moved) coming[k] = from[at];
        } else if (has_channels) {
            const S* column = row.read.template as<const S>() + 2 * pair_now() * q.state_dim_stride;
            const int missing = missing_now();
#pragma unroll
            for (int i = 0; i < kPast; ++i) {
                if (i < missing) continue;
                coming[i] = load_two<S>(column, has_second ? q.state_dim_stride : 0, plan.state_in_pairs);
                column += q.column_stride;
            }
        }
    };
    load_row(rows[group]);

#pragma unroll 1
    for (int first = 0; first < rows_here; first += plan.rows) {
        const RowOfBlock& row = rows[first + group];
        const bool live = row.live && has_channels;
        // ---- the window, by way of LDS where slots are packed; and the next row on its way ----------------------------------
        Column ring[kWidth];  // oldest first
        Token tokens[kAhead];
#pragma unroll
        for (int j = 0; j < kAhead; ++j) tokens[j] = ahead[j];
        if constexpr (kThroughLds) {
            if (row.live) {
                int at = pair_now();
#pragma unroll
                for (int k = 0; k < kMoved; ++k, at += pairs)
                    if (at < moved) *staged(at) = coming[k];
                const Column* const from = row.read.template as<const Column>();
#pragma unroll 4
                for (; at < moved; at += pairs) *staged(at) = from[at];
            }
            __syncthreads();
        } else {
#pragma unroll
            for (int i = 0; i < kPast; ++i) ring[i] = coming[i];
        }
        if (first + plan.rows < rows_here) load_row(rows[first + plan.rows + group]);

        // ---- outputs, and the new window ------------------------------------------------------------------------------------
        if (live) {
            const CausalConv1dUpdateParams& q = first_parameter_again(params);
            const bool speculative(q.num_accepted_tokens.data);
            if constexpr (kThroughLds) {
                const int missing = missing_now();
                const S* column = mine + row.first_column;
#pragma unroll
                for (int i = 0; i < kPast; ++i) {
                    if (i < missing) continue;
                    const S both[2] = {column[0], column[q.state_len]};
                    ring[i] = join<S>(both);
                    ++column;
                }
            }
            S* to = mine;
            if constexpr (!kThroughLds) to = row.write.template as<S>() + 2 * pair_now() * q.state_dim_stride;
            const auto put = [&](Column value) {  // in the next column
                const CausalConv1dUpdateParams& q = first_parameter_again(params);
                if constexpr (kThroughLds) {
                    to[0] = from_bits<S>(element<S, 2>(&value, 0));
                    to[q.state_len] = from_bits<S>(element<S, 2>(&value, 1));
                    ++to;
                } else {
                    store_two<S>(to, q.state_dim_stride, plan.state_in_pairs, has_second, value);
                    to += q.column_stride;
                }
            };
            if (speculative) {
                const int missing = missing_now();
#pragma unroll
                for (int i = 0; i < kPast - 1; ++i)
                    if (i >= missing) put(ring[i + 1]);
            }
            const auto tap = [&](int i) { return *reinterpret_cast<const Pair*>(taps + i * Taps::kPitch + 2 * pair); };
            // Where the outputs are several, they are not side by side.
            int64_t out_step = q.out[0].token_stride, out_second = q.out[0].dim_stride;
            T* out = row.out.template as<T>() + 2 * pair_now() * out_second;
            if (__builtin_expect(q.out_end[0] != q.dim, 0)) {
                const int64_t b = first_row + first + group;
                const int32_t d = strip_d + 2 * pair;
                const int part = output_of_channel(q, d);
                out = global_pointer<T>(out_at<T>(q, b, d, row.first_token));
                out_step = part == 0 ? q.out[0].token_stride : part == 1 ? q.out[1].token_stride : q.out[2].token_stride;
                out_second = part == 0 ? q.out[0].dim_stride : part == 1 ? q.out[1].dim_stride : q.out[2].dim_stride;
            }
#pragma unroll 1
            for (int begin = 0; begin < row.count; begin += kAhead) {
                if (begin > 0) load_tokens(row, begin, tokens);
#pragma unroll
                for (int j = 0; j < kAhead; ++j) {
                    if (begin + j >= row.count) break;
                    const int missing = missing_now();
                    Pair sum = tap(kWidth);
#pragma unroll
                    for (int i = 0; i < kPast; ++i)
                        if (i >= missing) sum = multiply_add(tap(i), pair_of<S>(ring[i], 0), sum);
                    sum = multiply_add(tap(kPast), pair_of<T>(tokens[j], 0), sum);
                    Token result{};
                    set_pair<T>(result, 0, silu_where(q.use_silu, sum));
                    store_two<T>(out, out_second, plan.out_in_pairs, has_second, result);
                    out += out_step;
                    ring[kPast] = pair_for_state<S, T>(tokens[j]);
                    if (speculative && q.width > 1) put(ring[kPast]);
#pragma unroll
                    for (int i = 0; i < kPast; ++i) ring[i] = ring[i + 1];
                }
            }
            if (!speculative) {
                const int missing = missing_now();
#pragma unroll
                for (int i = 0; i < kPast; ++i)
                    if (i >= missing) put(ring[i]);
            }
        }
        if constexpr (!kThroughLds) continue;

        // ---- the new columns from LDS to the state --------------------------------------------------------------------------
        __syncthreads();
        if (row.live) {
            const CausalConv1dUpdateParams& q = first_parameter_again(params);
            const int written = q.num_accepted_tokens.data ? q.width - 2 + row.count : q.width - 1;
            if (row.in_place || written == q.state_len) {
                Column* const to = row.write.template as<Column>();
#pragma unroll 4
                for (int at = pair; at < moved; at += pairs) to[at] = *staged(at);
            } else if (live) {  // a fork: the other columns of the slot written are not the row's
                S* const to = row.write.template as<S>() + 2 * pair * q.state_dim_stride;
#pragma unroll 1
                for (int i = 0; i < written; ++i) {
                    to[i] = mine[i];
                    to[q.state_len + i] = mine[q.state_len + i];
                }
            }
        }
        if (first + plan.rows < rows_here) __syncthreads();
    }

    // ---- zeros for padding --------------------------------------------------------------------------------------------------
    const CausalConv1dUpdateParams& last = first_parameter_again(params);
    if (!last.zero_padding || !has_channels) return;
    // Tokens of no row, if there are any for the block's rows, are there for the first of them.
    const bool rest = last.query_start_loc.data && has_rest(last, indices_of_row(last, first_row), first_row);
#pragma unroll 1
    for (int r = group; r < rows_here; r += plan.rows) {
        const RowOfBlock& row = rows[r];
        if (__builtin_expect(!rest && row.live, 1)) continue;
#pragma unroll 1
        for (int32_t d = strip_d + 2 * pair; d < strip_d + 2 * pair + (has_second ? 2 : 1); ++d) {
            if (rest) zero_rest<T>(last, indices_of_row(last, first_row + r), first_row + r, d);
            if (!row.live) zero_one_channel<T>(last, first_row + r, d, {row.first_token, row.count});
        }
    }
}

namespace {

// Tells whether elements come in aligned pairs, wherever a row, a column or a token begins.
template <typename... Strides>
bool in_pairs(Address data, int bytes, int64_t dim_stride, Strides... strides) {
    return dim_stride == 1 && data.bits % static_cast<unsigned>(2 * bytes) == 0 && ((strides % 2 == 0) && ...);
}

// A card has `resident` blocks at a time.
PairPlan pair_plan(const CausalConv1dUpdateParams& p, int stage_pairs, int64_t resident) {
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
    if (rows > kMostRowsOfBlock / 2) rows = kMostRowsOfBlock / 2;
    if (rows > p.batch) rows = p.batch;
    // Blocks take turns if there are more than the card has at a time, all equally many.
    const int64_t strips = (int64_t{p.dim} + 2 * pairs - 1) / (2 * pairs), blocks = (p.batch + rows - 1) / rows * strips;
    const int64_t rounds = (blocks + resident - 1) / resident, most = kMostRowsOfBlock / rows;
    const int64_t waves = (rounds + most - 1) / most;
    plan.rows = static_cast<int32_t>(rows);
    plan.turns = static_cast<int32_t>((rounds + waves - 1) / waves);
    plan.pairs = small_divisor_of(pairs);
    plan.columns = small_divisor_of(p.state_len > 0 ? p.state_len : 1);
    plan.gap = p.state_len % 2 == 0;
    plan.width = small_divisor_of(p.width);
    return plan;
}

constexpr int64_t kManyBlocks = 4096;  // those of a launch that begins early start one after the other

template <typename T, typename S, int kWidth>
void launch(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    const PairPlan plan = pair_plan(p, kStagePairs<S>, int64_t{pair_blocks<S, kWidth>()} * compute_units_here());
    const auto kernel =
        plan.through_lds ? causal_conv1d_update_pairs<T, S, kWidth, true> : causal_conv1d_update_pairs<T, S, kWidth, false>;
    const int64_t pairs = plan.pairs.value;
    const dim3 grid(blocks_up_to(p.batch, plan.rows * plan.turns, kPairRows), blocks_up_to(p.dim, 2 * pairs, kPairStrips), 1);
    const dim3 block(static_cast<unsigned>(plan.rows * pairs), 1, 1);
    const bool early = int64_t{grid.x} * grid.y <= kManyBlocks;
    HIPCONV_LAUNCH(early, kernel, grid, block, 0, stream, p, plan);
    check_launch("causal_conv1d_update");
}

template <typename T, typename S>
void with_width(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    if constexpr (std::is_same_v<T, S>)
        if (p.width <= kPairsOfUsualWidth) return launch<T, S, kPairsOfUsualWidth>(p, stream);
    launch<T, S, kPairsOfAnyWidth>(p, stream);
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
        p.state_dtype == p.dtype ? with_width<T, T>(p, hip_stream) : with_width<T, float>(p, hip_stream);
    });
}

}  // namespace hipconv
