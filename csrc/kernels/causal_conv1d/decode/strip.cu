// This kernel is the causal conv1d decode by strips of rows ("strip"), widths 2 to 8. It is for slots packed channel by channel
// with any number of columns, and serves rows and pools of any alignment and stride, few channels, one token a row, several, or
// speculative decoding.
//
// A block takes a strip of channels of some rows. Whatever is needed of a row, its tokens and its part of the slot, is one
// stretch of memory or a few: they come to LDS in whole vectors of 16 bytes, past the registers where the card can, and what a
// stretch has before its first vector and after its last one, element by element. There a stretch begins as far behind a
// multiple of 16 bytes as in memory. The strip's weights come in the same way, once for all rows. So a block asks at once for
// everything but the rows' indices, which one lane a row looks up before.
//
// Then a lane has some channels of a row, the same of each of its rows, and goes through LDS element by element: its channels
// lie apart by the lanes of a row, so that lanes side by side have neighbours, in different banks. It puts the new window and
// the outputs into the places of the old window and the tokens, and these leave as they came. Rows of more tokens than LDS has
// room for go on so with their next ones.
//
// A block reads its windows before it writes, and each token before its output, so x and out may be one tensor.
#include <hip/hip_runtime.h>

#include "../common/vector_math.h"
#include "causal_conv1d/decode_row.h"
#include "grid.h"
#include "kernels.h"
#include "launch/check.h"
#include "strip_moves.h"

namespace hipconv {

constexpr int kStripThreads = 256, kUsualThreads = 128;
constexpr int kStageBytes = kCopiesPastRegisters ? 32 << 10 : 14 << 10;
constexpr int kMostRows = 32;     // of a block
constexpr int kMostColumns = 32;  // of a slot that moves whole
constexpr int kMostTokens = 4;    // of a row that are in LDS at a time
constexpr int kLeastWidth = 2, kMostWidth = 8;
constexpr int kStripRows = 1 << 24, kStrips = 65535;                // a grid's limits, those of AMD included
constexpr int kFewestTeam = 8, kMostTeam = 32;                      // threads that move a row
constexpr int kFewestLanes = 8, kUsualLanes = 32, kMostLanes = 96;  // of a row
constexpr int kEnoughBlocks = 1024;                                 // for a large card: with fewer, blocks take fewer rows
constexpr int kOwn = kCopiesPastRegisters ? 4 : 2, kOwnPairs = kOwn / 2;  // channels of a lane

struct StripPlan {
    int32_t rows, groups;              // of a block: rows in all, and those that are worked on at a time
    int32_t tokens;                    // of a row that LDS has room for
    int32_t team;                      // threads that move a row
    SmallDivisor lanes, channels;      // of a row, of a strip
    int32_t weight_bytes, bias_bytes;  // in LDS
    // In LDS a row has tokens, outputs (or zero: in the place of the tokens), columns, and new columns (or zero, likewise).
    int32_t out_place, columns_place, new_columns, row_bytes;
    PartPlan x, out, state;
};

// A kernel's one parameter: members of others would be in registers from the start (see first_parameter).
struct StripParams {
    CausalConv1dUpdateParams call;
    StripPlan plan;
};

// This holds what the indices say of a row, for the strip's first channel, and where its parts are in LDS. One lane finds it
// out for all.
struct RowOfStrip {
    Address x, out, read, write;
    int32_t token_at, out_at, from_at, to_at;  // bytes in LDS: of tokens, outputs, the window, the new columns
    int32_t count;                             // of the tokens in LDS
    int32_t left, all;                         // tokens that are not done yet, and all
    int32_t first_token;
    bool live, in_place;

    // `lds` is where the row's place begins.
    template <typename T>
    HIPCONV_INLINE void find(const CausalConv1dUpdateParams& p, const StripPlan& plan, int64_t b, int64_t d, int lds) {
        const bool packed = plan.state.moves == Moves::packed;
        const RowIndices indices = indices_of_row(p, b);
        const RowTokens tokens = tokens_of_row(p, indices);
        const RowState state = state_of_row(p, indices, tokens.count);
        first_token = static_cast<int32_t>(tokens.first);
        all = tokens.count;
        live = state.live && all > 0;
        left = live ? all : 0;
        in_place = state.read_slot == state.write_slot;
        x = address(hipconv::token_at<T>(p.x, b, d, tokens.first));
        out = address(hipconv::token_at<T>(p.out[0], b, d, tokens.first));
        read = address(state_at<T>(p, state.read_slot, d, packed ? 0 : state.first_column));
        write = address(state_at<T>(p, state.write_slot, d, 0));
        const int columns = lds + plan.columns_place, in_lds = packed ? state.first_column * static_cast<int>(sizeof(T)) : 0;
        from_at = columns + plan.state.shift_bytes(read) + in_lds;
        to_at = columns + plan.new_columns + plan.state.shift_bytes(plan.new_columns ? write : read);
        place_tokens(plan, lds);
    }
    HIPCONV_INLINE void place_tokens(const StripPlan& plan, int lds) {
        token_at = lds + plan.x.shift_bytes(x);
        out_at = lds + plan.out_place + plan.out.shift_bytes(plan.out_place ? out : x);
        count = left < plan.tokens ? left : plan.tokens;
    }
    // The next tokens' turn has come; the window before them is in the new columns.
    template <typename T>
    HIPCONV_INLINE void go_on(const CausalConv1dUpdateParams& p, const StripPlan& plan, int lds) {
        x.bits += static_cast<uint64_t>(plan.tokens * p.x.token_stride * static_cast<int64_t>(sizeof(T)));
        out.bits += static_cast<uint64_t>(plan.tokens * p.out[0].token_stride * static_cast<int64_t>(sizeof(T)));
        left -= count;
        from_at = to_at;
        if (p.num_accepted_tokens.data) from_at += (all - left - 1) * plan.state.column_step * static_cast<int>(sizeof(T));
        place_tokens(plan, lds);
    }
};

// A block's part of a call.
struct StripPlace {
    int32_t strip_d, channels, rows;
    int64_t first_row;
    const char *weights, *biases;  // in LDS, as in memory
    char* parts;                   // of row after row
};

template <typename P>
constexpr int kSideOf = sizeof(P) == 4           ? 4
                        : std::is_same_v<P, f16> ? 5
                                                 : 6;  // of a branch

// Elements as bits: 16-bit ones take no more instructions so.
template <typename E>
HIPCONV_INLINE uint32_t bits_at(const E* at) {
    return bit_cast<typename WordsOf<sizeof(E)>::type>(*at);
}
template <typename E>
HIPCONV_INLINE float float_of_bits(uint32_t bits) {
    return std::is_same_v<E, bf16> ? bit_cast<float>(bits << 16) : to_float(from_bits<E>(bits));
}
template <typename E>
HIPCONV_INLINE Pair pair_of_bits(const uint32_t* both) {
    return make_pair(float_of_bits<E>(both[0]), float_of_bits<E>(both[1]));
}

// The lanes' work on the rows in LDS, from token `first` of each on: outputs, and the new windows.
template <typename T, int kWidth>
HIPCONV_INLINE void work_on_rows(const StripParams& params, const StripPlace& place, const RowOfStrip* rows, int first) {
    const CausalConv1dUpdateParams& p = first_parameter_again(params).call;
    const StripPlan& plan = first_parameter_again(params).plan;
    constexpr int kPast = kWidth - 1;
    const int thread = static_cast<int>(threadIdx.x), lanes = static_cast<int>(plan.lanes.value);
    const int group = divide(thread, plan.lanes), lane = thread - group * lanes;
    if (group >= plan.groups) return;
    bool has[kOwn];
#pragma unroll
    for (int k = 0; k < kOwn; ++k) has[k] = lane + k * lanes < place.channels;

    // The strip's parameters, of all lanes: LDS has room for those of channels that there are not.
    Pair bias[kOwnPairs], weight[kWidth][kOwnPairs];
    with_dtype(p.weight_dtype, [&](auto type) {
        using P = decltype(type);
        keep_apart<kSideOf<P>>();
#pragma unroll
        for (int j = 0; j < kOwnPairs; ++j) {
            const P* const one = reinterpret_cast<const P*>(place.weights) + (lane + 2 * j * lanes) * kWidth;
            const P* const other = one + lanes * kWidth;
#pragma unroll
            for (int i = 0; i < kWidth; ++i) weight[i][j] = make_pair(parameter<P>(one, i), parameter<P>(other, i));
        }
    });
#pragma unroll
    for (int j = 0; j < kOwnPairs; ++j) bias[j] = twice(0.0f);
    if (p.bias) {
        with_dtype(p.bias_dtype, [&](auto type) {
            using P = decltype(type);
            keep_apart<kSideOf<P>>();
            const P* const own = reinterpret_cast<const P*>(place.biases) + lane;
#pragma unroll
            for (int j = 0; j < kOwnPairs; ++j)
                bias[j] = make_pair(parameter<P>(own, 2 * j * lanes), parameter<P>(own, (2 * j + 1) * lanes));
        });
    }

    const bool speculative(p.num_accepted_tokens.data), packed = plan.state.moves == Moves::packed;
    const int apart = lanes * plan.state.dim_step, column_step = plan.state.column_step;
    const int token_apart = lanes * plan.x.dim_step, out_apart = lanes * plan.out.dim_step;
    const int lane_token = lane * plan.x.dim_step * static_cast<int>(sizeof(T));
    const int lane_out = lane * plan.out.dim_step * static_cast<int>(sizeof(T));
    const int lane_column = lane * plan.state.dim_step * static_cast<int>(sizeof(T));
#pragma unroll 1
    for (int r = group; r < place.rows; r += plan.groups) {
        const RowOfStrip& row = rows[r];
        const int count = row.count;
        if (count <= 0) continue;
        const T* token = reinterpret_cast<const T*>(place.parts + (row.token_at + lane_token));
        T* out = reinterpret_cast<T*>(place.parts + (row.out_at + lane_out));
        const T* from = reinterpret_cast<const T*>(place.parts + (row.from_at + lane_column));
        T* to = reinterpret_cast<T*>(place.parts + (row.to_at + lane_column));

        uint32_t window[kWidth][kOwn];  // and a place for the token after it
        if (packed) {
#pragma unroll
            for (int k = 0; k < kOwn; ++k) {
#pragma unroll
                for (int i = 0; i < kPast; ++i) window[i][k] = bits_at(from + k * apart + i);
            }
            keep_apart<0>();
        } else {
#pragma unroll
            for (int i = 0; i < kPast; ++i) {
#pragma unroll
                for (int k = 0; k < kOwn; ++k) window[i][k] = bits_at(from + k * lanes);
                from += column_step;
            }
            keep_apart<1>();
        }
        const auto put = [&](T* column, const uint32_t(&values)[kOwn]) {
#pragma unroll
            for (int k = 0; k < kOwn; ++k)
                if (has[k]) column[k * apart] = from_bits<T>(values[k]);
        };
        if (speculative && first == 0) {
#pragma unroll
            for (int i = 0; i + 1 < kPast; ++i) put(to + i * column_step, window[i + 1]);
        }
#pragma unroll 1
        for (int t = 0; t < count; ++t) {
            uint32_t tokens[kOwn];
#pragma unroll
            for (int k = 0; k < kOwn; ++k) {
                tokens[k] = bits_at(token + k * token_apart);
                window[kPast][k] = tokens[k];
            }
            T results[kOwn];
#pragma unroll
            for (int j = 0; j < kOwnPairs; ++j) {
                Pair sum = bias[j];
#pragma unroll
                for (int i = 0; i < kPast; ++i) sum = multiply_add(weight[i][j], pair_of_bits<T>(window[i] + 2 * j), sum);
                sum = silu_where(p.use_silu, multiply_add(weight[kPast][j], pair_of_bits<T>(tokens + 2 * j), sum));
                results[2 * j] = from_float<T>(low(sum));
                results[2 * j + 1] = from_float<T>(high(sum));
            }
#pragma unroll
            for (int k = 0; k < kOwn; ++k)
                if (has[k]) out[k * out_apart] = results[k];
            token += plan.x.column_step;
            out += plan.out.column_step;
            if (speculative) put(to + (kPast - 1 + first + t) * column_step, window[kPast]);
#pragma unroll
            for (int i = 0; i < kPast; ++i) {
#pragma unroll
                for (int k = 0; k < kOwn; ++k) window[i][k] = window[i + 1][k];
            }
        }
        if (speculative) continue;
        if (packed) {
#pragma unroll
            for (int k = 0; k < kOwn; ++k) {
#pragma unroll
                for (int i = 0; i < kPast; ++i)
                    if (has[k]) to[k * apart + i] = from_bits<T>(window[i][k]);
            }
            keep_apart<2>();
        } else {
#pragma unroll
            for (int i = 0; i < kPast; ++i) {
                put(to, window[i]);
                to += column_step;
            }
            keep_apart<3>();
        }
    }
}

// Widths from kLeastWidth on; all threads of a block come here with one.
template <typename T, int kWidth>
HIPCONV_INLINE void work_at_width(const StripParams& params, const StripPlace& place, const RowOfStrip* rows, int first) {
    if constexpr (kWidth > kLeastWidth) {
        if (first_parameter_again(params).call.width < kWidth) return work_at_width<T, kWidth - 1>(params, place, rows, first);
    }
    work_on_rows<T, kWidth>(params, place, rows, first);
}

template <typename T>
__global__ void HIPCONV_LAUNCH_BOUNDS(kStripThreads, 2) causal_conv1d_update_strips(StripParams params) {
    const CausalConv1dUpdateParams& p = first_parameter(params).call;
    const StripPlan& plan = first_parameter(params).plan;
    HIPCONV_SHARED(Words4, stage, kStageBytes / 16);
    HIPCONV_SHARED(RowOfStrip, rows, kMostRows);
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    const int strip = static_cast<int>(plan.channels.value);
    char* const parameters_stage = reinterpret_cast<char*>(stage);
    StripPlace place;
    place.strip_d = static_cast<int32_t>(blockIdx.y) * strip;
    place.channels = p.dim - place.strip_d < strip ? p.dim - place.strip_d : strip;
    place.first_row = int64_t{blockIdx.x} * plan.rows;
    place.rows = p.batch - place.first_row < plan.rows ? static_cast<int>(p.batch - place.first_row) : plan.rows;
    place.parts = parameters_stage + plan.weight_bytes + plan.bias_bytes;
    const Team team{thread & (plan.team - 1), plan.team};  // each moves every teams-th row
    const int first_of_team = thread / plan.team, teams = threads / plan.team;

    // ---- rows, and the strip's parameters on their way ----------------------------------------------------------------------
    let_next_kernel_begin();
    wait_for_kernel_before();
    const bool by_starts(p.query_start_loc.data);
    if (thread < place.rows) rows[thread].find<T>(p, plan, place.first_row + thread, place.strip_d, thread * plan.row_bytes);
    const auto bring = [&](Address parameters, DType dtype, int64_t dim_stride, int64_t step, int each, char* lds) {
        const bool packed = dim_stride == each && (each == 1 || step == 1);
        const auto of_bits = [&](auto element) -> const char* {
            using E = decltype(element);
            const E* const from = parameters.as<const E>() + place.strip_d * dim_stride;
            if (packed) {
                const Stretch<E> stretch(from, place.channels * each);
                stretch.to_lds(lds, from, {thread, threads});
                return lds + stretch.shift * static_cast<int>(sizeof(E));
            }
#pragma unroll 1
            for (int c = thread; c < place.channels; c += threads)
#pragma unroll 1
                for (int i = 0; i < each; ++i) reinterpret_cast<E*>(lds)[c * each + i] = from[c * dim_stride + i * step];
            return lds;
        };
        return dtype == DType::f32 ? of_bits(uint32_t{}) : of_bits(uint16_t{});
    };
    place.weights = bring(p.weight, p.weight_dtype, p.weight_dim_stride, p.weight_width_stride, p.width, parameters_stage);
    place.biases = parameters_stage;
    if (p.bias) place.biases = bring(p.bias, p.bias_dtype, p.bias_stride, 1, 1, parameters_stage + plan.weight_bytes);
    __syncthreads();
    int most = by_starts ? 0 : p.seqlen;
    for (int r = 0; by_starts && r < place.rows; ++r) most = rows[r].left > most ? rows[r].left : most;

#pragma unroll 1
    for (int first = 0;;) {
        // ---- tokens and states to LDS ---------------------------------------------------------------------------------------
#pragma unroll 1
        for (int r = first_of_team; r < place.rows; r += teams) {
            const CausalConv1dUpdateParams& p = first_parameter_again(params).call;
            const StripPlan& plan = first_parameter_again(params).plan;
            const RowOfStrip& row = rows[r];
            if (row.count <= 0) continue;
            char* const lds = place.parts + r * plan.row_bytes;
            const T* const x = row.x.as<const T>();
            const T* const state = row.read.as<const T>();
            promise_global(x);
            promise_global(state);
            part_to_lds<T>(plan.x, {plan.channels, place.channels, row.count, p.x.dim_stride, p.x.token_stride}, lds, x, team);
            if (first == 0)
                part_to_lds<T>(plan.state, {plan.channels, place.channels, p.width - 1, p.state_dim_stride, p.column_stride},
                               lds + plan.columns_place, state, team);
        }
        close_copies();
        wait_for_copies<0>();
        __syncthreads();
        work_at_width<T, kMostWidth>(params, place, rows, first);
        __syncthreads();

        // ---- outputs and new columns from LDS -------------------------------------------------------------------------------
#pragma unroll 1
        for (int r = first_of_team; r < place.rows; r += teams) {
            const CausalConv1dUpdateParams& p = first_parameter_again(params).call;
            const StripPlan& plan = first_parameter_again(params).plan;
            const RowOfStrip& row = rows[r];
            const int count = row.count;
            if (count <= 0) continue;
            char* const lds = place.parts + r * plan.row_bytes;
            if (__builtin_expect(p.out_end[0] != p.dim, 0)) {
                const T* const from = reinterpret_cast<const T*>(place.parts + row.out_at);
#pragma unroll 1
                for (int c = team.member; c < place.channels; c += team.members)
#pragma unroll 1
                    for (int t = 0; t < count; ++t)
                        *out_at<T>(p, place.first_row + r, place.strip_d + c, row.first_token + first + t) =
                            from[c * plan.out.dim_step + t * plan.out.column_step];
            } else {
                T* const out = row.out.as<T>();
                promise_global(out);
                part_to_memory<T>(plan.out, {plan.channels, place.channels, count, p.out[0].dim_stride, p.out[0].token_stride},
                                  out, lds + plan.out_place, plan.out.shift_bytes(row.out) / static_cast<int>(sizeof(T)), true,
                                  team);
            }
            if (row.left > count) continue;
            T* const to = row.write.as<T>();
            promise_global(to);
            const int written = p.num_accepted_tokens.data ? p.width - 2 + row.all : p.width - 1;
            part_to_memory<T>(plan.state, {plan.channels, place.channels, written, p.state_dim_stride, p.column_stride}, to,
                              lds + plan.columns_place + plan.new_columns,
                              plan.state.shift_bytes(plan.new_columns ? row.write : row.read) / static_cast<int>(sizeof(T)),
                              row.in_place || written == p.state_len, team);
        }
        first += plan.tokens;
        if (__builtin_expect(first >= most, 1)) break;
        __syncthreads();
        if (thread < place.rows)
            rows[thread].go_on<T>(first_parameter_again(params).call, first_parameter_again(params).plan,
                                  thread * plan.row_bytes);
        __syncthreads();
    }

    // ---- zeros for padding --------------------------------------------------------------------------------------------------
    const CausalConv1dUpdateParams& last = first_parameter_again(params).call;
    if (__builtin_expect(!last.zero_padding, 1)) return;
    // Tokens of no row, if there are any for the block's rows, are there for the first of them.
    const bool rest = by_starts && has_rest(last, indices_of_row(last, place.first_row), place.first_row);
#pragma unroll 1
    for (int r = first_of_team; r < place.rows; r += teams) {
        const int64_t b = place.first_row + r;
        if (__builtin_expect(!rest && rows[r].live, 1)) continue;
#pragma unroll 1
        for (int c = team.member; c < place.channels; c += team.members) {
            if (rest) zero_rest<T>(last, indices_of_row(last, b), b, place.strip_d + c);
            if (!rows[r].live) zero_one_channel<T>(last, b, place.strip_d + c, {rows[r].first_token, rows[r].all});
        }
    }
}

namespace {

// This fills in how a strip of `lanes` lanes a row lies in LDS, and returns the bytes of a row there.
int64_t plan_parts(const CausalConv1dUpdateParams& p, int64_t lanes, StripPlan& plan) {
    const int room = static_cast<int>(lanes) * kOwn;
    const int channels = room < p.dim ? room : p.dim;
    const int bytes = element_bytes(p.dtype);
    const bool all = channels == p.dim, by_starts(p.query_start_loc.data), speculative(p.num_accepted_tokens.data);
    plan.lanes = small_divisor_of(lanes);
    plan.channels = small_divisor_of(channels);
    plan.weight_bytes = static_cast<int32_t>(round_up(int64_t{room} * p.width * element_bytes(p.weight_dtype), 16) + 16);
    plan.bias_bytes = static_cast<int32_t>(p.bias ? round_up(int64_t{room} * element_bytes(p.bias_dtype), 16) + 16 : 0);
    const auto of_tokens = [&](const Tokens& tokens) {
        const int held = !by_starts && p.seqlen <= plan.tokens ? p.seqlen : -1;  // packed only if all are there at a time
        return part_plan(
            {tokens.data.bits, bytes, tokens.row_stride, tokens.dim_stride, tokens.token_stride, held, plan.tokens}, channels,
            room, all);
    };
    plan.x = of_tokens(p.x);
    plan.out = plan.x;
    plan.out_place = plan.new_columns = 0;
    const bool alike = p.x.data.bits % 16 == p.out[0].data.bits % 16 && p.x.row_stride == p.out[0].row_stride &&
                       p.x.dim_stride == p.out[0].dim_stride && p.x.token_stride == p.out[0].token_stride;
    if (!alike && p.out_end[0] == p.dim) {
        plan.out = of_tokens(p.out[0]);
        plan.out_place = plan.x.bytes;
    }
    const PartInMemory columns{p.state.bits,
                               bytes,
                               p.slot_stride,
                               p.state_dim_stride,
                               p.column_stride,
                               p.state_len <= kMostColumns ? p.state_len : -1,
                               speculative ? p.state_len : p.width - 1};
    plan.state = part_plan(columns, channels, room, all);
    // Where the new columns may not begin as far behind a multiple of 16 bytes as the old ones, they have their own place.
    if (plan.state.moves == Moves::whole && (p.fork || speculative)) plan.new_columns = plan.state.bytes;
    plan.columns_place = plan.x.bytes + (plan.out_place ? plan.out.bytes : 0);
    plan.row_bytes = plan.columns_place + plan.state.bytes + plan.new_columns;
    return plan.row_bytes;
}

bool make_plan(const CausalConv1dUpdateParams& p, StripPlan& plan) {
    plan = {};
    const int64_t average = p.query_start_loc.data ? (p.total_tokens + p.batch - 1) / p.batch : p.seqlen;
    plan.tokens = static_cast<int32_t>(average < 1 ? 1 : average < kMostTokens ? average : kMostTokens);
    int64_t lanes = (int64_t{p.dim} + kOwn - 1) / kOwn;
    if (lanes > kMostLanes) lanes = kUsualLanes;
    int64_t row = plan_parts(p, lanes, plan);
    while (row > kStageBytes - plan.weight_bytes - plan.bias_bytes) {
        if (lanes <= kFewestLanes) return false;
        lanes = (lanes + 1) / 2;
        row = plan_parts(p, lanes, plan);
    }
    const int64_t strips = (int64_t{p.dim} + plan.channels.value - 1) / plan.channels.value;
    const int64_t enough = int64_t{p.batch} * strips / kEnoughBlocks;  // rows of a block that leave blocks for the whole card
    int64_t rows = (kStageBytes - plan.weight_bytes - plan.bias_bytes) / row;
    if (rows > kMostRows) rows = kMostRows;
    if (rows > p.batch) rows = p.batch;
    if (rows > enough) rows = enough < 1 ? 1 : enough;
    int64_t groups = 1, best = 0;  // which fill whole waves best
    for (int64_t g = 1; g * lanes <= kStripThreads && g <= rows; ++g) {
        const int64_t used = g * lanes, filled = 1024 * used / round_up(used, kMostTeam);
        if (filled > best + 40 || (used <= kUsualThreads && filled >= best)) best = filled, groups = g;
    }
    plan.rows = static_cast<int32_t>(rows > groups ? rows / groups * groups : rows);
    plan.groups = static_cast<int32_t>(groups);
    const int64_t threads = round_up(groups * lanes, kMostTeam);
    plan.team = kMostTeam;
    while (plan.team > kFewestTeam && threads / plan.team < plan.rows) plan.team /= 2;
    return true;
}

constexpr int64_t kManyBlocks = 4096;  // those of a launch that begins early start one after the other

template <typename T>
void launch(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    StripParams params{p, {}};
    StripPlan& plan = params.plan;
    make_plan(p, plan);
    const dim3 grid(blocks_up_to(p.batch, plan.rows, kStripRows), blocks_up_to(p.dim, plan.channels.value, kStrips), 1);
    const dim3 block(static_cast<unsigned>(round_up(int64_t{plan.groups} * plan.lanes.value, kMostTeam)), 1, 1);
    const bool early = int64_t{grid.x} * grid.y <= kManyBlocks;
    HIPCONV_LAUNCH(early, (causal_conv1d_update_strips<T>), grid, block, 0, stream, params);
    check_launch("causal_conv1d_update");
}

bool serves(const CausalConv1dUpdateParams& p) {
    if (p.width < kLeastWidth || p.width > kMostWidth || p.state_dtype != p.dtype || p.batch > kStripRows ||
        p.dim > kStrips * kFewestLanes)
        return false;
    if (p.tree_child.data || p.cache_seqlens.data || p.intermediate) return false;
    if (p.history != p.width - 1) return false;
    StripPlan plan;
    return make_plan(p, plan);
}

}  // namespace

const char* causal_conv1d_update_strip_refusal(const CausalConv1dUpdateParams& p) {
    if (serves(p)) return nullptr;
    return "widths 2 to 8 with conv_state of the dtype of x, no columns that move before the window, and none of: "
           "cache_seqlens, intermediate_conv_window, retrieve_next_token";
}

// On an H200, where slots are packed: rows of many channels where either all blocks fit on the card at once, or there are
// several times as many; and of few channels, very many rows of one 16-bit token.
bool causal_conv1d_update_strip_is_choice(const CausalConv1dUpdateParams& p) {
    constexpr int kOnCard = 792, kManyStrips = 5000;
    const bool packed = p.state_dim_stride == p.state_len && p.column_stride == 1 && p.state_len <= kMostColumns;
    if (!kCopiesPastRegisters || p.x.dim_stride != 1 || !packed) return false;
    if (p.dim <= kMostLanes * kOwn)
        return p.seqlen == 1 && !p.query_start_loc.data && p.dtype != DType::f32 && p.batch >= 6 * kManyStrips;
    const int64_t strips = (int64_t{p.dim} + kUsualLanes * kOwn - 1) / (kUsualLanes * kOwn) * p.batch;
    return p.dim % kOwn == 0 && (strips <= kOnCard || strips >= kManyStrips);
}

void causal_conv1d_update_strip(const CausalConv1dUpdateParams& p, void* /*workspace*/, void* stream) {
    const hipStream_t hip_stream = static_cast<hipStream_t>(stream);
    with_dtype(p.dtype, [&](auto type) { launch<decltype(type)>(p, hip_stream); });
}

}  // namespace hipconv
