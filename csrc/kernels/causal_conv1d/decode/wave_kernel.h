// This kernel is the causal conv1d decode by waves on their own ("wave"), widths 2 to 8. It is for slots packed channel by
// channel ((slots, dim, columns)) with any number of columns, and for rows whose channels come in pairs rather than in fours;
// one token a row, several, or speculative decoding.
//
// A team is 32 lanes of a wave. It takes a strip of channels of some rows at a time, and nobody waits for another team:
// whatever is needed of a row, its tokens and its part of the slot, is one stretch of memory or a few, which come to the team's
// part of LDS in vectors of 16 bytes, past the registers where the card can (wave_move.h). A stretch begins there as far behind
// a multiple of 16 bytes as in memory. While lanes work on some rows, those of the team's next turn are on their way.
//
// A lane has a word of x at a time: two channels of 16 bits, or one of float32. The words of all of the team's rows follow each
// other, so that lanes have work whatever the number of channels. Outputs go to memory at once, the new window to the old one's
// place in LDS, from where it leaves as it came.
//
// A block finds out at the start what its teams share: where its rows are, and the strip's weights, as floats.
//
// A team reads its windows before it writes, and each token before its output, so x and out may be one tensor.
#pragma once

#include "../common/vector_math.h"
#include "causal_conv1d/decode_row.h"
#include "device/elements.h"
#include "launch/check.h"
#include "launch/compute_units.h"
#include "wave_move.h"
#include "wave_plan.h"
#include "words.h"

namespace hipconv {

// This holds what the indices say of a row, for the strip's first channel, and where it is in LDS.
struct RowOfWave {
    Address x, out, read, write;  // the last two: of the slots' first columns, as far behind a multiple of 16 bytes
    int32_t count;                // of tokens; none of padding
    int32_t token_at, column_at;  // bytes in LDS: of the tokens, of the slot's first column
    int32_t first_column, first_token;

    template <typename T>
    static HIPCONV_INLINE RowOfWave find(const CausalConv1dUpdateParams& p, const RowIndices& indices, int64_t b, int64_t d,
                                         int lds, int tokens_at) {
        const RowTokens tokens = tokens_of_row(p, indices);
        const RowState state = state_of_row(p, indices, tokens.count);
        RowOfWave row{};
        if (!state.live || tokens.count <= 0) return row;
        row.x = address(hipconv::token_at<T>(p.x, b, d, tokens.first));
        row.out = address(hipconv::token_at<T>(p.out[0], b, d, tokens.first));
        row.read = address(state_at<T>(p, state.read_slot, d, 0));
        row.write = address(state_at<T>(p, state.write_slot, d, 0));
        row.count = tokens.count;
        row.token_at = lds + tokens_at + static_cast<int>(row.x.bits & 15);
        row.column_at = lds + static_cast<int>(row.read.bits & 15);
        row.first_column = state.first_column;
        row.first_token = static_cast<int32_t>(tokens.first);
        return row;
    }
};

// The weights of a word's channels and behind them the biases, as floats in LDS: an odd number of vectors of 16 bytes, so that
// neighbouring lanes use different banks.
template <typename T, int kWidth>
struct Taps {
    static constexpr int kOwn = 4 / static_cast<int>(sizeof(T)), kFloats = (kWidth + 1) * kOwn;
    static constexpr int kVectors = taps_vectors(kWidth, kOwn);

    static HIPCONV_INLINE void bring(const CausalConv1dUpdateParams& p, int64_t first_channel, int channels, float* taps,
                                     int thread, int threads) {
        for (int channel = thread; channel < channels; channel += threads) {
            const int64_t d = first_channel + channel;
            float* const to = taps + channel / kOwn * (4 * kVectors) + channel % kOwn;
            with_dtype(p.weight_dtype, [&](auto type) {
                using P = decltype(type);
                float values[kWidth];
#pragma unroll
                for (int i = 0; i < kWidth; ++i)
                    values[i] = parameter<P>(p.weight.as<const P>(), d * p.weight_dim_stride + i * p.weight_width_stride);
#pragma unroll
                for (int i = 0; i < kWidth; ++i) to[i * kOwn] = values[i];
            });
            to[kWidth * kOwn] = bias_at(p, d);
        }
    }
};

template <int kWidth>  // on a compute unit
constexpr int kWaveBlocks = !kCopiesPastRegisters || kWidth == 3 || kWidth == 4 ? 4
                            : kWidth < 3                                        ? 5
                                                                                : 3;

// kPacked: a slot has a channel's columns side by side, else columns of whole rows.
template <typename T, int kWidth, bool kPacked>
__global__ void HIPCONV_LAUNCH_BOUNDS(kTeam* kMostTeams, kWaveBlocks<kWidth>) causal_conv1d_update_waves(WaveParams params) {
    const CausalConv1dUpdateParams& p = first_parameter(params).call;
    const WavePlan& plan = first_parameter(params).plan;
    constexpr int kPast = kWidth - 1, kBytes = static_cast<int>(sizeof(T));
    using Channels = WordOfChannels<T, kPacked>;
    using Column = typename Channels::Column;
    using Values = typename Channels::Values;
    using OwnTaps = Taps<T, kWidth>;
    constexpr int kOwn = Channels::kOwn;
    HIPCONV_SHARED(Words4, stage, kStageBytes / 16);
    HIPCONV_SHARED(RowOfWave, rows, kMostRows);

    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    const int lane = thread % kTeam, team = thread / kTeam;
    char* const lds = reinterpret_cast<char*>(stage);
    const int words = static_cast<int>(plan.words.value);
    // The strips of the same rows are neighbours, as they are in memory.
    const int32_t block_of_rows = static_cast<int32_t>(divide(blockIdx.x, plan.strips_divisor));
    const int32_t strip_d = (static_cast<int32_t>(blockIdx.x) - block_of_rows * plan.strips) * words * kOwn;
    const int channels = p.dim - strip_d < words * kOwn ? p.dim - strip_d : words * kOwn;
    const int rows_of_turn = plan.teams * plan.rows, rows_of_block = rows_of_turn * plan.turns;
    const int64_t first_row = int64_t{block_of_rows} * rows_of_block;

    // ---- what the block shares: rows, weights, biases -----------------------------------------------------------------------
    let_next_kernel_begin();
    wait_for_kernel_before();
    // In a large block, some waves wait for the rows' indices, and the others for the weights.
    const int finders = threads > kFinders ? kFinders : threads, bringer = threads > kFinders ? thread - kFinders : thread;
    if (bringer >= 0)
        OwnTaps::bring(p, strip_d, channels, reinterpret_cast<float*>(stage), bringer,
                       threads > kFinders ? threads - kFinders : threads);
    if (thread < finders) {
        for (int r = thread; r < rows_of_block; r += finders) {
            const int64_t b = first_row + r;
            const int place = (plan.two_places ? r % (2 * rows_of_turn) : r % rows_of_turn) * plan.row_bytes + plan.parts_at;
            rows[r] = RowOfWave{};
            if (b < p.batch) rows[r] = RowOfWave::find<T>(p, indices_at_once(p, b), b, strip_d, place, plan.tokens_at);
        }
    }
    __syncthreads();

    const int lane_row = divide(lane, plan.words), lane_word = lane - lane_row * words;
    // ---- tokens and states to LDS, those of the next turn while lanes work on one -------------------------------------------
    const auto rows_of_team = [&](int turn) {
        int rows_at = turn * rows_of_turn + team * first_parameter_again(params).plan.rows;
        in_a_register(rows_at);
        return rows + rows_at;
    };
    const auto bring = [&](int turn) {
        const RowOfWave* const rows_there = rows_of_team(turn);
        const CausalConv1dUpdateParams& p = first_parameter_again(params).call;
        const WavePlan& plan = first_parameter_again(params).plan;
        const int members = 1 << plan.log_movers, member = lane & (members - 1);
#pragma unroll 1
        for (int r = lane >> plan.log_movers; r < plan.rows; r += kTeam >> plan.log_movers) {
            const RowOfWave& row = rows_there[r];
            const int count = row.count < plan.room ? row.count : plan.room;
            if (count <= 0) continue;
            const int before = kPacked ? 0 : row.first_column * p.dim * kBytes;
            move_stretch<true>({row.read.bits + static_cast<uint64_t>(before)},
                               (kPacked ? channels * p.state_len : kPast * p.dim) * kBytes, lds + row.column_at + before,
                               member, members);
            if (plan.one_stretch) {
                move_stretch<true>(row.x, count * channels * kBytes, lds + row.token_at, member, members);
            } else {
#pragma unroll 1
                for (int t = 0; t < count; ++t)
                    move_stretch<true>({row.x.bits + static_cast<uint64_t>(t * p.x.token_stride * kBytes)}, channels * kBytes,
                                       lds + row.token_at + t * plan.token_bytes, member, members);
            }
        }
    };
    const int ahead = kCopiesPastRegisters && plan.two_places ? 1 : 0;
#pragma unroll 1
    for (int turn = -ahead; turn < plan.turns; ++turn) {
        if (turn + ahead < plan.turns) bring(turn + ahead);
        close_copies();
        if (turn < 0) continue;
        if (ahead > 0)
            wait_for_copies<1>();
        else
            wait_for_copies<0>();
        const RowOfWave* const own_rows = rows_of_team(turn);
        sync_wave();

        // ---- outputs, and the new windows -----------------------------------------------------------------------------------
#pragma unroll 1
        for (int r = lane_row, word = lane_word; r < plan.rows;) {
            const CausalConv1dUpdateParams& p = first_parameter_again(params).call;
            const WavePlan& plan = first_parameter_again(params).plan;
            const RowOfWave& row = own_rows[r];
            const int own_word = word, own_row = r;
            r += plan.step_rows;
            word += plan.step_words;
            if (word >= words) word -= words, ++r;
            int left = row.count;
            if (own_word * kOwn >= channels || left <= 0) continue;
            T* out = row.out.as<T>() + own_word * kOwn;
            int64_t out_step = p.out[0].token_stride;
            if (__builtin_expect(p.out_end[0] != p.dim, 0)) {
                const int64_t b = first_row + turn * rows_of_turn + team * plan.rows + own_row;
                const int d = strip_d + own_word * kOwn, part = output_of_channel(p, d);
                out = global_pointer<T>(out_at<T>(p, b, d, row.first_token));
                out_step = part == 0 ? p.out[0].token_stride : part == 1 ? p.out[1].token_stride : p.out[2].token_stride;
            }
            promise_global(out);
            const int dim_step = kPacked ? p.state_len : 1, column_step = kPacked ? 1 : p.dim;
            T* to = reinterpret_cast<T*>(lds + row.column_at) + own_word * kOwn * dim_step;
            char* token = lds + row.token_at + own_word * 4;

            Column ring[kPast + kRoom];  // the window, oldest first, and the tokens after it
            const bool drafts(p.num_accepted_tokens.data), fours = kPacked && plan.stores_fours;
            if (kPacked && plan.fours) {
                load_fours<T, kPast>(to, dim_step, row.first_column, drafts, ring);
                keep_apart<kRoom>();
            } else {
                const T* from = to + row.first_column * column_step;
#pragma unroll
                for (int i = 0; i < kPast; ++i) ring[i] = Channels::load(from + i * column_step, dim_step);
                keep_apart<kRoom + 1>();
            }
            Words4 taps[(OwnTaps::kFloats + 3) / 4];
            const Words4* const own_taps = stage + own_word * OwnTaps::kVectors;
#pragma unroll
            for (int v = 0; v < (OwnTaps::kFloats + 3) / 4; ++v) taps[v] = own_taps[v];
            const auto tap = [&](int i) {
                const auto value = [&](int k) { return bit_cast<float>(element<float, 4>(taps, i * kOwn + k)); };
                if constexpr (kOwn == 2)
                    return make_pair(value(0), value(1));
                else
                    return value(0);
            };
            // The outputs of the tokens in LDS from `index` on; it tells whether they are all, and the new window in its place.
            const auto outputs = [&](auto rest, auto index) -> bool {
                constexpr int t = decltype(index)::value;
                ring[kPast + t] = Channels::column_of(*reinterpret_cast<const uint32_t*>(token));
                Values sum = tap(kWidth);
#pragma unroll
                for (int i = 0; i < kWidth; ++i) sum = Channels::add_product(tap(i), Channels::values(ring[t + i]), sum);
                *reinterpret_cast<uint32_t*>(out) = Channels::result(p.use_silu, sum);
                if (left == t + 1) {
                    if (!fours) {
#pragma unroll
                        for (int i = 0; i < kPast; ++i) Channels::store(to + i * column_step, dim_step, ring[t + 1 + i]);
                        keep_apart<3 * t>();
                    } else if (drafts) {
                        store_fours<T, kPast + t>(to, dim_step, ring + 1);
                        keep_apart<3 * t + 1>();
                    } else {
                        store_fours<T, kPast>(to, dim_step, ring + t + 1);
                        keep_apart<3 * t + 2>();
                    }
                    return true;
                }
                out += out_step;
                token += plan.token_bytes;
                if (drafts && !fours) {  // they stay: each column that leaves the window
                    Channels::store(to, dim_step, ring[t + 1]);
                    to += column_step;
                }
                if constexpr (t + 1 < kRoom)
                    return rest(rest, std::integral_constant<int, t + 1>{});
                else
                    return false;
            };
#pragma unroll 1
            while (!outputs(outputs, std::integral_constant<int, 0>{})) {
                left -= kRoom;
                // The next tokens come to the lane's own places.
                token -= kRoom * plan.token_bytes;
                const T* x = row.x.as<const T>() + (row.count - left) * p.x.token_stride + own_word * kOwn;
                promise_global(x);
#pragma unroll 1
                for (int t = 0; t < kRoom && t < left; ++t, x += p.x.token_stride)
                    *reinterpret_cast<uint32_t*>(token + t * plan.token_bytes) = *reinterpret_cast<const uint32_t*>(x);
#pragma unroll
                for (int i = 0; i < kPast; ++i) ring[i] = ring[kRoom + i];
            }
        }
        sync_wave();

        // ---- the new columns from LDS ---------------------------------------------------------------------------------------
        {
            const CausalConv1dUpdateParams& p = first_parameter_again(params).call;
            const WavePlan& plan = first_parameter_again(params).plan;
            const int members = 1 << plan.log_movers, member = lane & (members - 1);
#pragma unroll 1
            for (int r = lane >> plan.log_movers; r < plan.rows; r += kTeam >> plan.log_movers) {
                const RowOfWave& row = own_rows[r];
                if (row.count <= 0) continue;
                const int columns = p.num_accepted_tokens.data ? kPast - 1 + row.count : kPast;
                move_stretch<false>(row.write, (kPacked ? channels * p.state_len : columns * p.dim) * kBytes,
                                    lds + row.column_at, member, members);
            }
        }
        sync_wave();
    }

    // ---- zeros for padding --------------------------------------------------------------------------------------------------
    const CausalConv1dUpdateParams& last = first_parameter_again(params).call;
    if (!last.zero_padding) return;
    // Tokens of no row, if there are any for the block's rows, are there for the first of them.
    const bool rest = last.query_start_loc.data && has_rest(last, indices_of_row(last, first_row), first_row);
#pragma unroll 1
    for (int r = team; r < rows_of_block && first_row + r < last.batch; r += threads / kTeam) {
        if (__builtin_expect(!rest && rows[r].count > 0, 1)) continue;
        const int64_t b = first_row + r;
        const RowIndices indices = indices_of_row(last, b);
#pragma unroll 1
        for (int c = lane; c < channels; c += kTeam) {
            if (rest) zero_rest<T>(last, indices, b, strip_d + c);
            if (rows[r].count <= 0) zero_one_channel<T>(last, b, strip_d + c, tokens_of_row(last, indices));
        }
    }
}

constexpr int64_t kManyBlocks = 4096;  // those of a launch that begins early start one after the other

template <typename T, int kWidth>
void launch_width(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    WaveParams params{p, {}};
    WavePlan& plan = params.plan;
    wave_plan(p, int64_t{kWaveBlocks<kWidth>} * compute_units_here(), plan);
    const int64_t row_blocks = ceil_of(p.batch, int64_t{plan.teams} * plan.rows * plan.turns);
    const dim3 grid(static_cast<unsigned>(row_blocks * plan.strips), 1, 1);
    const dim3 block(static_cast<unsigned>(plan.teams * kTeam), 1, 1);
    const bool early = grid.x <= kManyBlocks;
    const auto kernel =
        p.state_dim_stride != 1 ? causal_conv1d_update_waves<T, kWidth, true> : causal_conv1d_update_waves<T, kWidth, false>;
    HIPCONV_LAUNCH(early, kernel, grid, block, 0, stream, params);
    check_launch("causal_conv1d_update");
}

template <typename T>
void launch_widths(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    with_width<kMostWidth>(p.width, [&](auto width) {
        if constexpr (decltype(width)::value >= kLeastWidth) launch_width<T, decltype(width)::value>(p, stream);
    });
}

}  // namespace hipconv
