// This kernel is the causal conv1d decode by blocks that take turns with rows ("turn"), widths 2 to 8: one token a row,
// several, or speculative decoding; slots of whole rows, or packed channel by channel ((slots, dim, columns)) in few columns.
//
// A lane has the same word of x in each of its rows, two channels of 16 bits or one of float32: the word's weights stay in
// registers. A block has a strip of words of some rows at a time, and looks all of its rows up at the start. While lanes work
// on one row, what they need of their next one is on its way to registers: its first tokens, and its window where columns are
// words of memory. A packed slot's strip is contiguous: it moves in vectors of 16 bytes, whatever lane has what is in them, and
// in words before the first one and after the last one. It goes through LDS, where each lane finds its channels' columns.
//
// A lane reads its window before it writes, and each token before its output, so x and out may be one tensor.
#pragma once

#include "launch/check.h"
#include "launch/compute_units.h"
#include "turn_plan.h"
#include "words.h"

namespace hipconv {

// This holds what the indices say of a row: where the strip's first channel has its tokens, outputs and columns.
struct RowOfTurn {
    Address x, out, read, write;  // `read` is of the window's first column, of a packed slot of the first of all
    int32_t count;                // of tokens; none of padding
    int32_t first_column, first_token;

    template <typename T, bool kPacked>
    static HIPCONV_INLINE RowOfTurn find(const CausalConv1dUpdateParams& p, const RowIndices& indices, int64_t b, int64_t d) {
        const RowTokens tokens = tokens_of_row(p, indices);
        const RowState state = state_of_row(p, indices, tokens.count);
        RowOfTurn row{};
        if (!state.live || tokens.count <= 0) return row;
        row.x = address(token_at<T>(p.x, b, d, tokens.first));
        row.out = address(token_at<T>(p.out[0], b, d, tokens.first));
        row.read = address(state_at<T>(p, state.read_slot, d, kPacked ? 0 : state.first_column));
        row.write = address(state_at<T>(p, state.write_slot, d, 0));
        row.count = tokens.count;
        row.first_column = state.first_column;
        row.first_token = static_cast<int32_t>(tokens.first);
        return row;
    }
};

// The elements of a word's channels in a column, which are so far apart.
template <typename T>
HIPCONV_INLINE uint32_t load_apart(const T* from, int apart) {
    if constexpr (sizeof(T) == 4)
        return bits_at(from);
    else
        return bits_at(from) | bits_at(from + apart) << 16;
}
template <typename T>
HIPCONV_INLINE void store_apart(T* to, int apart, uint32_t bits) {
    to[0] = from_bits<T>(bits);
    if constexpr (sizeof(T) == 2) to[apart] = from_bits<T>(bits >> 16);
}

// A packed slot's strip of words, wherever it begins: vectors of 16 bytes at multiples of 16 bytes, of which the first and the
// last one may be the strip's in part. Vector u of each strip has the same lane.
struct PackedStrip {
    char* aligned;
    int before, bytes;  // of the first vector that come before the strip; of the strip

    HIPCONV_INLINE PackedStrip(Address begin, int strip_bytes)
        : aligned(Address{begin.bits & ~uint64_t{15}}.as<char>()), before(static_cast<int>(begin.bits & 15)),
          bytes(strip_bytes) {
        promise_global(aligned);
    }
    HIPCONV_INLINE bool has(int u) const { return 16 * u < before + bytes; }
    HIPCONV_INLINE bool is_whole(int u) const { return 16 * u >= before && 16 * u + 16 <= before + bytes; }
    template <typename Use>
    HIPCONV_INLINE void for_each_word(int u, Use use) const {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            const int at = 16 * u + 4 * w;
            if (at >= before && at < before + bytes) use(w, reinterpret_cast<uint32_t*>(aligned + at));
        }
    }
    HIPCONV_INLINE void load(Words4& to, int u) const {
        if (is_whole(u))
            to = *reinterpret_cast<const Words4*>(aligned + 16 * u);
        else if (has(u))
            for_each_word(u, [&](int w, const uint32_t* from) { set_word(to, w, *from); });
    }
    HIPCONV_INLINE void store(Words4 from, int u) const {
        if (is_whole(u))
            *reinterpret_cast<Words4*>(aligned + 16 * u) = from;
        else if (has(u))
            for_each_word(u, [&](int w, uint32_t* to) { *to = word(from, w); });
    }
};

// The columns of a word's channels where a slot has just those of the window: kPast words side by side, in vectors as large as
// their number allows.
template <int kPast>
constexpr int kWindowVector = kPast % 4 == 0   ? 4
                              : kPast % 2 == 0 ? 2
                                               : 1;

template <typename T, int kPast, typename Column>
HIPCONV_INLINE void window_of(const T* from, Column* ring) {
    constexpr int kEach = kWindowVector<kPast>;
    using Vector = typename WordsOf<4 * kEach>::type;
    uint32_t words[kPast];
#pragma unroll
    for (int k = 0; k < kPast / kEach; ++k) {
        const Vector vector = reinterpret_cast<const Vector*>(from)[k];
#pragma unroll
        for (int w = 0; w < kEach; ++w) words[k * kEach + w] = word(vector, w);
    }
#pragma unroll
    for (int i = 0; i < kPast; ++i) {
        if constexpr (sizeof(T) == 4) {
            ring[i].bits[0] = words[i];
        } else {
            const auto half = [&](int at) { return words[at / 2] >> (at % 2 * 16) & 0xffffu; };
            ring[i].bits[0] = half(i) | half(kPast + i) << 16;
        }
    }
}
template <typename T, int kPast, typename Column>
HIPCONV_INLINE void store_window(T* to, const Column* ring) {
    constexpr int kEach = kWindowVector<kPast>;
    using Vector = typename WordsOf<4 * kEach>::type;
    const auto half = [&](int at) { return at < kPast ? ring[at].bits[0] & 0xffffu : ring[at - kPast].bits[0] >> 16; };
#pragma unroll
    for (int k = 0; k < kPast / kEach; ++k) {
        Vector vector{};
#pragma unroll
        for (int w = 0; w < kEach; ++w) {
            const int at = k * kEach + w;
            set_word(vector, w, sizeof(T) == 4 ? ring[at].bits[0] : half(2 * at) | half(2 * at + 1) << 16);
        }
        reinterpret_cast<Vector*>(to)[k] = vector;
    }
}

// Blocks of a compute unit, by registers: weights, the window and the row to come.
template <typename T, int kWidth, SlotForm kForm>
constexpr int kTurnBlocks = kWidth == 2 || kWidth == 4 || (kWidth == 3 && kForm != SlotForm::packed) ||
                                    (kWidth == 5 && (sizeof(T) == 4 || kForm != SlotForm::packed))
                                ? 4
                                : 3;
// Smaller blocks of more registers, of which as many fit: the compiler counts their waves in fours.
template <typename T, int kWidth>
constexpr bool kFewLanes = kWidth == 8 && sizeof(T) == 2;

template <typename T, int kWidth, SlotForm kForm>
__global__ void HIPCONV_LAUNCH_BOUNDS(kTurnLanes, (kTurnBlocks<T, kWidth, kForm> - kFewLanes<T, kWidth>))
    causal_conv1d_update_turns(TurnParams params) {
    const CausalConv1dUpdateParams& p = first_parameter(params).call;
    const TurnPlan& plan = first_parameter(params).plan;
    constexpr int kPast = kWidth - 1, kRoom = kTurnRoom;
    constexpr bool kPacked = kForm != SlotForm::rows, kExact = kForm == SlotForm::window;
    using Channels = WordOfChannels<T, false>;
    using Column = typename Channels::Column;
    using Values = typename Channels::Values;
    constexpr int kOwn = Channels::kOwn;
    constexpr int kSets = kTurnSets<kWidth>;
    // A lane has so much of the row to come: words of the window, or vectors of a packed slot.
    constexpr int kComing = kPacked ? (kPast + (kExact ? 0 : 3) + 3) / 4 : kPast;
    using Piece = std::conditional_t<kPacked, Words4, uint32_t>;
    HIPCONV_SHARED(Words4, stage, kPacked ? kTurnStage : 1);
    HIPCONV_SHARED(RowOfTurn, rows, kTurnRows);

    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    const int lanes = static_cast<int>(plan.lanes.value);
    const int group = divide(thread, plan.lanes);
    int word = thread - group * lanes;
    in_a_register(word);  // it would be worked out again and again
    // The strips of the same rows are neighbours, as they are in memory.
    const int32_t block_of_rows = static_cast<int32_t>(divide(blockIdx.x, plan.strips_divisor));
    const int32_t strip_d = (static_cast<int32_t>(blockIdx.x) - block_of_rows * plan.strips) * lanes * kOwn;
    const int channels = p.dim - strip_d < lanes * kOwn ? p.dim - strip_d : lanes * kOwn;
    const int rows_of_turn = kSets * plan.rows, rows_of_block = rows_of_turn * plan.turns;
    const int64_t first_row = int64_t{block_of_rows} * rows_of_block;
    const bool active = word * kOwn < channels;

    // ---- the block's rows, and a lane's weights and biases ------------------------------------------------------------------
    let_next_kernel_begin();
    wait_for_kernel_before();
    for (int r = thread; r < rows_of_block; r += threads) {
        const int64_t b = first_row + r;
        rows[r] = RowOfTurn{};
        if (b < p.batch) rows[r] = RowOfTurn::find<T, kPacked>(p, indices_at_once(p, b), b, strip_d);
    }
    float taps[kWidth + 1][kOwn];  // the last ones are biases
    {
        const int64_t d = strip_d + (active ? word * kOwn : 0);
        with_dtype(p.weight_dtype, [&](auto type) {
            using P = decltype(type);
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
#pragma unroll
                for (int k = 0; k < kOwn; ++k)
                    taps[i][k] =
                        parameter<P>(p.weight.as<const P>(), (d + k) * p.weight_dim_stride + i * p.weight_width_stride);
            }
        });
#pragma unroll
        for (int k = 0; k < kOwn; ++k) taps[kWidth][k] = bias_at(p, d + k);
    }
    const auto tap = [&](int i) -> Values {
        if constexpr (kOwn == 2)
            return make_pair(taps[i][0], taps[i][1]);
        else
            return taps[i][0];
    };
    __syncthreads();

    // ---- a lane's next rows on their way ------------------------------------------------------------------------------------
    uint32_t tokens_coming[kSets][kRoom];
    Piece coming[kSets][kComing];  // the window, or vectors of a packed slot on their way to LDS
    const int bytes = kPacked ? channels * p.state_len * static_cast<int>(sizeof(T)) : 0;  // of the strip's part of a slot
    const auto load_row = [&](const RowOfTurn& row, uint32_t(&tokens_coming)[kRoom], Piece(&coming)[kComing]) {
        const int count = row.count;
        if (count <= 0) return;
        const CausalConv1dUpdateParams& q = first_parameter_again(params).call;
        if (active) {
            const T* x = row.x.as<const T>() + word * kOwn;
            promise_global(x);
#pragma unroll
            for (int t = 0; t < kRoom; ++t) {
                if (t < count) tokens_coming[t] = *reinterpret_cast<const uint32_t*>(x);
                x += q.x.token_stride;
            }
        }
        if constexpr (kPacked) {
            const PackedStrip strip(row.read, bytes);
#pragma unroll
            for (int k = 0; k < kComing; ++k) strip.load(coming[k], word + k * lanes);
        } else if (active) {
            const T* from = row.read.as<const T>() + word * kOwn;
            promise_global(from);
#pragma unroll
            for (int i = 0; i < kPast; ++i, from += q.column_stride) coming[i] = *reinterpret_cast<const uint32_t*>(from);
        }
    };
    const auto load_rows = [&](int first) {
#pragma unroll
        for (int set = 0; set < kSets; ++set) load_row(rows[first + set * plan.rows + group], tokens_coming[set], coming[set]);
    };
    load_rows(0);

    const auto stage_of = [&](int set) { return stage + (set * plan.rows + group) * plan.row_vectors; };
#pragma unroll 1
    for (int first = 0; first < rows_of_block; first += rows_of_turn) {
        uint32_t all_tokens[kSets][kRoom], windows[kSets][kPast];
#pragma unroll
        for (int set = 0; set < kSets; ++set) {
#pragma unroll
            for (int t = 0; t < kRoom; ++t) all_tokens[set][t] = tokens_coming[set][t];
            if constexpr (!kPacked) {
#pragma unroll
                for (int i = 0; i < kPast; ++i) windows[set][i] = coming[set][i];
            } else if (rows[first + set * plan.rows + group].count > 0) {
                Words4* const place = stage_of(set);
#pragma unroll
                for (int k = 0; k < kComing; ++k)
                    if (word + k * lanes < plan.row_vectors) place[word + k * lanes] = coming[set][k];
                const PackedStrip strip(rows[first + set * plan.rows + group].read, bytes);
#pragma unroll 1
                for (int u = word + kComing * lanes; strip.has(u); u += lanes) {
                    Words4 piece{};
                    strip.load(piece, u);
                    place[u] = piece;
                }
            }
        }
        if constexpr (kPacked) __syncthreads();
        if (first + rows_of_turn < rows_of_block) load_rows(first + rows_of_turn);

        // ---- outputs, and the new windows -----------------------------------------------------------------------------------
#pragma unroll
        for (int set = 0; set < kSets; ++set) {
            const RowOfTurn& row = rows[first + set * plan.rows + group];
            int left = row.count;
            if (!active || left <= 0) continue;
            uint32_t(&tokens)[kRoom] = all_tokens[set];
            Column ring[kPast + kRoom];  // the window, oldest first, and the tokens after it
            const CausalConv1dUpdateParams& q = first_parameter_again(params).call;
            const bool drafts(q.num_accepted_tokens.data), use_silu = q.use_silu;
            T* out = row.out.as<T>() + word * kOwn;
            int64_t out_step = q.out[0].token_stride;
            if (__builtin_expect(q.out_end[0] != q.dim, 0)) {
                const int64_t b = first_row + first + set * plan.rows + group;
                const int d = strip_d + word * kOwn, part = output_of_channel(q, d);
                out = global_pointer<T>(out_at<T>(q, b, d, row.first_token));
                out_step = part == 0 ? q.out[0].token_stride : part == 1 ? q.out[1].token_stride : q.out[2].token_stride;
            }
            promise_global(out);
            const int dim_step = kPacked ? q.state_len : 1;
            const int64_t column_step = kPacked ? 1 : q.column_stride;
            T* to;
            if constexpr (kPacked) {
                to = reinterpret_cast<T*>(reinterpret_cast<char*>(stage_of(set)) + (row.read.bits & 15)) +
                     word * kOwn * dim_step;
                if constexpr (kExact) {
                    window_of<T, kPast>(to, ring);
                } else if (plan.fours) {
                    typename WordOfChannels<T, true>::Column apart[kPast];
                    load_fours<T, kPast>(to, dim_step, row.first_column, drafts, apart);
#pragma unroll
                    for (int i = 0; i < kPast; ++i)
                        ring[i] = Channels::column_of(kOwn == 1 ? apart[i].bits[0]
                                                                : apart[i].bits[0] | apart[i].bits[kOwn - 1] << 16);
                    keep_apart<kRoom>();
                } else {
                    const T* const from = to + row.first_column;
#pragma unroll
                    for (int i = 0; i < kPast; ++i) ring[i] = Channels::column_of(load_apart<T>(from + i, dim_step));
                    keep_apart<kRoom + 1>();
                }
            } else {
                to = row.write.as<T>() + word * kOwn;
                promise_global(to);
#pragma unroll
                for (int i = 0; i < kPast; ++i) ring[i] = Channels::column_of(windows[set][i]);
            }
            const auto store = [&](T* place, Column column) {
                if constexpr (kPacked)
                    store_apart<T>(place, dim_step, column.bits[0]);
                else
                    *reinterpret_cast<uint32_t*>(place) = column.bits[0];
            };
            // The outputs of the tokens at hand from `index` on; it tells whether they are all, and the new window in its
            // place.
            const auto outputs = [&](auto rest, auto index) -> bool {
                constexpr int t = decltype(index)::value;
                ring[kPast + t] = Channels::column_of(tokens[t]);
                Values sum = tap(kWidth);
#pragma unroll
                for (int i = 0; i < kWidth; ++i) sum = Channels::add_product(tap(i), Channels::values(ring[t + i]), sum);
                *reinterpret_cast<uint32_t*>(out) = Channels::result(use_silu, sum);
                if (left == t + 1) {
                    if constexpr (kExact) {
                        store_window<T, kPast>(to, ring + t + 1);
                    } else {
#pragma unroll
                        for (int i = 0; i < kPast; ++i, to += column_step) store(to, ring[t + 1 + i]);
                    }
                    keep_apart<t>();
                    return true;
                }
                out += out_step;
                if (!kExact && drafts) {  // they stay: each column that leaves the window
                    store(to, ring[t + 1]);
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
                const T* x = row.x.as<const T>() + (row.count - left) * q.x.token_stride + word * kOwn;
                promise_global(x);
#pragma unroll
                for (int t = 0; t < kRoom; ++t) {
                    if (t < left) tokens[t] = *reinterpret_cast<const uint32_t*>(x);
                    x += q.x.token_stride;
                }
#pragma unroll
                for (int i = 0; i < kPast; ++i) ring[i] = ring[kRoom + i];
            }
        }
        if constexpr (!kPacked) continue;

        // ---- the new columns from LDS ---------------------------------------------------------------------------------------
        __syncthreads();
#pragma unroll
        for (int set = 0; set < kSets; ++set) {
            const RowOfTurn& row = rows[first + set * plan.rows + group];
            if (row.count <= 0) continue;
            const Words4* const place = stage_of(set);
            const PackedStrip strip(row.write, bytes);
#pragma unroll 2
            for (int u = word; strip.has(u); u += lanes) strip.store(place[u], u);
        }
    }

    // ---- zeros for padding --------------------------------------------------------------------------------------------------
    const CausalConv1dUpdateParams& last = first_parameter_again(params).call;
    if (!last.zero_padding || !active) return;
    // Tokens of no row, if there are any for the block's rows, are there for the first of them.
    const bool rest = last.query_start_loc.data && has_rest(last, indices_of_row(last, first_row), first_row);
#pragma unroll 1
    for (int r = group; r < rows_of_block && first_row + r < last.batch; r += plan.rows) {
        if (__builtin_expect(!rest && rows[r].count > 0, 1)) continue;
        const int64_t b = first_row + r;
        const RowIndices indices = indices_of_row(last, b);
#pragma unroll 1
        for (int c = word * kOwn; c < (word + 1) * kOwn; ++c) {
            if (rest) zero_rest<T>(last, indices, b, strip_d + c);
            if (rows[r].count <= 0) zero_one_channel<T>(last, b, strip_d + c, tokens_of_row(last, indices));
        }
    }
}

constexpr int64_t kManyBlocks = 4096;  // those of a launch that begins early start one after the other

template <typename T, int kWidth, SlotForm kForm>
void launch_turns_of_form(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    const int64_t resident = int64_t{kTurnBlocks<T, kWidth, kForm>} * compute_units_here();
    const TurnParams params{p, turn_plan(p, kTurnSets<kWidth>, kTurnLanes - 32 * kFewLanes<T, kWidth>, resident)};
    const TurnPlan& plan = params.plan;
    const int64_t rows_of_block = int64_t{kTurnSets<kWidth>} * plan.rows * plan.turns;
    const dim3 grid(static_cast<unsigned>(ceil_of(p.batch, rows_of_block) * plan.strips), 1, 1);
    const dim3 block(static_cast<unsigned>(plan.rows) * plan.lanes.value, 1, 1);
    HIPCONV_LAUNCH(grid.x <= kManyBlocks, (causal_conv1d_update_turns<T, kWidth, kForm>), grid, block, 0, stream, params);
    check_launch("causal_conv1d_update");
}

template <typename T>
void launch_turn_widths(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    with_width<kMostTurnWidth>(p.width, [&](auto width) {
        constexpr int kWidth = decltype(width)::value;
        if constexpr (kWidth >= kLeastTurnWidth) {
            switch (turn_form(p)) {
                case SlotForm::rows:
                    return launch_turns_of_form<T, kWidth, SlotForm::rows>(p, stream);
                case SlotForm::window:
                    return launch_turns_of_form<T, kWidth, SlotForm::window>(p, stream);
                case SlotForm::packed:
                    return launch_turns_of_form<T, kWidth, SlotForm::packed>(p, stream);
            }
        }
    });
}

}  // namespace hipconv
