// This kernel is the causal conv1d decode of one token a row, widths 1 to 8 ("step"), in vectors of channels: this is the most
// common case of decoding.
//
// Its time is two waits for memory, first for the row's slot and then for its state, and the bytes. So a lane asks at once for
// all that it can, the kernel is short, and its parameters are few: where rows are few, fetching more instructions and
// parameters takes longer than the rest. That is why the common width with weight and bias as wide as x has instances of its
// own, which know nothing of other types.
//
// Where channels are neighbours in memory (conv_state as (slots, columns, dim)), a lane moves its own vectors. It does so too
// where a slot is packed channel by channel ((slots, dim, columns)) in four columns: two channels are a vector. Other numbers
// of columns are no vectors, but the strip is contiguous: it moves through LDS in whole vectors, of which a lane picks its
// elements in registers. The window and x are read before anything is written.
#include <hip/hip_runtime.h>

#include "launch/check.h"
#include "vectors.h"

namespace hipconv {

// Tells how lanes share a strip: they have kColumns of a packed slot, or kOwnVectors. kPairs: a lane has two channels, and a
// block some rows.
template <typename S, int kWidth, int kColumns, bool kPairs>
struct Strip {
    // The columns of a lane's channels are whole vectors.
    static constexpr bool kWhole = kColumns == 4 || (kPairs && kColumns > 0 && kColumns < 3);
    static constexpr bool kThroughLds = kColumns > 0 && !kWhole;
    static constexpr int kOwn = kWhole || kPairs ? 2 : kChannels;  // channels of a lane
    // Where rows of few bytes are many, the time to start their blocks would be longer than that of the bytes.
    static constexpr int kFewBytes = kTokenLanes == kVectorLanes || kWidth > 3 ? 1 : kWidth > 1 ? 2 : 4;
    static constexpr int kFewLanes = kWhole ? 2 * kTokenLanes : kTokenLanes;
    static constexpr int kLanes = kPairs ? kPairLanes : kFewBytes * kFewLanes;  // of a block
    static constexpr int kInPacked = kColumns == 4 ? 16 / static_cast<int>(sizeof(S)) : kPairs && kColumns % 2 ? 2 : kChannels;
    // Few bytes a row leave memory waiting for requests: where rows are many, a lane has two of them then.
    static constexpr int kMostRows = kPairs && !kThroughLds && kWidth * sizeof(S) <= 8 ? 2 : 1;
    using Packed = Words<S, kInPacked>;
    static constexpr int kVectors = kOwn * kColumns / kInPacked;

    // Registers of a lane: its parameters as floats, its part of the state and its token, and those of addresses.
    static constexpr int kRegisters =
        kOwn * (kWidth + 1) + kOwn * kWidth * static_cast<int>(sizeof(S)) / 4 + (kColumns ? 32 : 24);
};
template <typename S, int kWidth, int kColumns, bool kSameWidth, bool kPairs>  // on a compute unit
constexpr int kStepBlocks =
    kWidth == kCommonWidth && kSameWidth
        ? (sizeof(S) == 4 ? 14 : 24) * kVectorLanes / Strip<S, kWidth, kColumns, kPairs>::kLanes
        : 65536 / ((Strip<S, kWidth, kColumns, kPairs>::kRegisters + 7) / 8 * 8) / Strip<S, kWidth, kColumns, kPairs>::kLanes;

// A row's part of LDS, in vectors.
template <typename Packed, int kVectors>
HIPCONV_INLINE int row_stage(int lanes) {
    return staged<Packed, kVectors>(lanes * kVectors - 1) + 1;
}

// The work of a lane that has kRows rows. kBefore of the columns of a packed slot come before the window and move with it.
// kSameWidth: weight and bias are as wide as x.
template <typename T, typename S, int kWidth, int kColumns, int kBefore, bool kSameWidth, bool kPairs, int kRows>
__device__ __forceinline__ void step_of_rows(const VectorParams& p,
                                             typename Strip<S, kWidth, kColumns, kPairs>::Packed* all_stage) {
    using Shape = Strip<S, kWidth, kColumns, kPairs>;
    constexpr int kPast = kWidth - 1, kOwn = Shape::kOwn, kVectors = Shape::kVectors;
    using Vector = Words<T, kOwn>;
    using History = Words<S, kOwn>;
    using Packed = typename Shape::Packed;
    const int lane = static_cast<int>(threadIdx.x), lanes = static_cast<int>(blockDim.x);
    // Lanes of rows that there are not do as those of the last one, and store nothing.
    unsigned rows[kRows];
    bool has_row[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
        const unsigned row = kPairs ? (k * gridDim.x + blockIdx.x) * blockDim.y + threadIdx.y : blockIdx.x;
        has_row[k] = !kPairs || row < static_cast<unsigned>(p.batch);
        rows[k] = has_row[k] ? row : static_cast<unsigned>(p.batch) - 1;
    }
    Packed* const stage = kPairs && Shape::kThroughLds
                              ? all_stage + static_cast<int>(threadIdx.y) * row_stage<Packed, kVectors>(lanes)
                              : all_stage;
    const int strip_d = static_cast<int>(blockIdx.y) * lanes * kOwn;
    const int left = p.dim - strip_d;
    const int strip = left < lanes * kOwn ? left / kOwn : lanes;  // lanes that have channels
    const bool active = lane < strip && has_row[0];
    if (!Shape::kThroughLds && !active) return;
    const int d = strip_d + (active ? lane : 0) * kOwn;  // the other lanes only move strips

    let_next_kernel_begin();
    wait_for_kernel_before();
    IndexWords::Value slot[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
        slot[k] = {rows[k], 0};
        if (p.slot_of_row.data && (k == 0 || has_row[k])) slot[k] = p.slot_of_row.load(rows[k]);
    }
    ChannelParameters<T, kWidth, kOwn, kSameWidth> parameters;
    Vector token[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k)
        if (k == 0 || has_row[k]) token[k] = *reinterpret_cast<const Vector*>(p.x.as<const T>() + rows[k] * p.x_row_stride + d);
    parameters.load(p, d);
    // Addresses are computed only where they are used: they would occupy registers until then.
    const auto store_out = [&](int k, Vector result) {
        const unsigned b = rows[k];
        T* out = p.out.as<T>() + b * p.out_row_stride + d;
        if (__builtin_expect(p.split, 0)) {
            // Lanes choose among the row's addresses: what these are made of would be fetched by each lane.
            T* const q = token_at<T>(p.outs[0], b, 0, 0) + d;
            T* const k = token_at<T>(p.outs[1], b, 0, 0) + (d - p.out_end[0]);
            T* const v = token_at<T>(p.outs[2], b, 0, 0) + (d - p.out_end[1]);
            out = d < p.out_end[0] ? q : d < p.out_end[1] ? k : v;
        }
        if (active && has_row[k]) *reinterpret_cast<Vector*>(out) = result;
    };

    // Other rows of the lane or the block may be live where one is padding.
    constexpr bool kRowsApart = kRows == 1 && !(kPairs && Shape::kThroughLds);
    Slots slots[kRows];
    bool live[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
        slots[k] = slots_of_row(p, rows[k], slot[k]);
        live[k] = kRowsApart || (slots[k].live && has_row[k]);
        if (!slots[k].live && (k == 0 || has_row[k])) {
            if (p.zero_padding) store_out(k, Vector{});
            if (kRowsApart) return;
        }
    }

    const auto state_of = [&](uint32_t slot) { return p.state.as<S>() + slot * p.slot_stride; };
    const auto store_result = [&](int k,
                                  auto window) {  // window(i, j): column i of it, oldest first, of pair j of the channels
        if (!live[k]) return;
        store_out(k, parameters.template convolve<true>(window, token[k], p.use_silu));
    };
    if constexpr (kColumns == kOwnVectors) {
        History columns[kRows][kPast ? kPast : 1];
#pragma unroll
        for (int k = 0; k < kRows; ++k) {
            if (!live[k]) continue;
            const S* from = state_of(slots[k].read) + d;
#pragma unroll
            for (int i = 0; i < kPast; ++i) columns[k][i] = *reinterpret_cast<const History*>(from + i * p.column_stride);
        }
        parameters.convert(p, d);
#pragma unroll
        for (int k = 0; k < kRows; ++k) {
            store_result(k, [&](int i, int j) { return pair_of<S>(columns[k][i], j); });
            if (!live[k]) continue;
            History last;
            if constexpr (std::is_same_v<S, T>)
                last = token[k];
            else
                last = as_history<S, T>(token[k]);
            S* to = state_of(slots[k].write) + d;
#pragma unroll
            for (int i = 0; i < kPast; ++i)
                *reinterpret_cast<History*>(to + i * p.column_stride) = i + 1 < kPast ? columns[k][i + 1] : last;
        }
    } else {
        static_assert(std::is_same_v<T, S>, "packed columns move as bits");
        // A lane moves these of the strip's vectors: its own, or through LDS every lanes-th.
        const auto place = [&](int k) { return Shape::kWhole ? lane * kVectors + k : k * lanes + lane; };
        Packed all[kRows][kVectors];  // in the end the lane's channels: (channel, column)
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
            const Packed* strip_from = reinterpret_cast<const Packed*>(state_of(slots[row].read) + int64_t{strip_d} * kColumns);
            Packed(&own)[kVectors] = all[row];
#pragma unroll
            for (int k = 0; k < kVectors && live[row]; ++k)  // past the strip's last vector, that one again
                own[k] = strip_from[place(k) < strip * kVectors ? place(k) : strip * kVectors - 1];
        }
        if constexpr (Shape::kThroughLds) {  // which has room for all lanes
            Packed(&own)[kVectors] = all[0];
#pragma unroll
            for (int k = 0; k < kVectors; ++k) stage[staged<Packed, kVectors>(place(k))] = own[k];
            __syncthreads();
#pragma unroll
            for (int k = 0; k < kVectors; ++k) own[k] = stage[staged<Packed, kVectors>(lane * kVectors + k)];
        }
        parameters.convert(p, d);
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
            const Packed(&own)[kVectors] = all[row];
            const auto value = [&](int c, int i) {
                return to_float(from_bits<S>(element<S, Shape::kInPacked>(own, c * kColumns + kBefore + i)));
            };
            store_result(row, [&](int i, int j) { return make_pair(value(2 * j, i), value(2 * j + 1, i)); });

            const auto moved = [&](int at) {  // element `at` after the step
                const int i = at % kColumns - kBefore;
                if (i == kPast - 1) return element<T, kOwn>(&token[row], at / kColumns);
                return element<S, Shape::kInPacked>(own, i < kPast ? at + 1 : at);
            };
            constexpr int kInWord = 4 / static_cast<int>(sizeof(S));
            Packed* strip_to = reinterpret_cast<Packed*>(state_of(slots[row].write) + int64_t{strip_d} * kColumns);
#pragma unroll
            for (int k = 0; k < kVectors; ++k) {
                Packed vector{};
#pragma unroll
                for (int w = 0; w < Shape::kInPacked / kInWord; ++w) {
                    const int at = k * Shape::kInPacked + w * kInWord;
                    set_word(vector, w, kInWord == 2 ? moved(at) | moved(at + 1) << 16 : moved(at));
                }
                if constexpr (!Shape::kWhole)
                    stage[staged<Packed, kVectors>(lane * kVectors + k)] = vector;
                else if (live[row])
                    strip_to[place(k)] = vector;
            }
            if constexpr (Shape::kThroughLds) {
                __syncthreads();
#pragma unroll
                for (int k = 0; k < kVectors; ++k) {
                    const Packed vector = stage[staged<Packed, kVectors>(place(k))];
                    if (live[row] && place(k) < strip * kVectors) strip_to[place(k)] = vector;
                }
            }
        }
    }
}

template <typename T, typename S, int kWidth, int kColumns, int kBefore, bool kSameWidth, bool kPairs>
__global__ void HIPCONV_LAUNCH_BOUNDS((Strip<S, kWidth, kColumns, kPairs>::kLanes),
                                      (kStepBlocks<S, kWidth, kColumns, kSameWidth, kPairs>))
    causal_conv1d_update_step(VectorParams params) {
    using Shape = Strip<S, kWidth, kColumns, kPairs>;
    constexpr int kStage = Shape::kLanes * Shape::kVectors;
    using Packed = typename Shape::Packed;
    HIPCONV_SHARED(Packed, all_stage, Shape::kThroughLds ? kStage + kStage * static_cast<int>(sizeof(Packed)) / 128 : 1);
    step_of_rows<T, S, kWidth, kColumns, kBefore, kSameWidth, kPairs, 1>(first_parameter(params), all_stage);
}

// Rows in pairs of channels, two of them a lane.
template <typename T, int kWidth, int kColumns>
__global__ void HIPCONV_LAUNCH_BOUNDS(kPairLanes, (kStepBlocks<T, kWidth, kColumns, false, true>))
    causal_conv1d_update_two_steps(VectorParams params) {
    step_of_rows<T, T, kWidth, kColumns, 0, false, true, 2>(first_parameter(params), nullptr);
}

namespace {

constexpr int64_t kManyBlocks = 2048;  // of few lanes

template <typename T, typename S, int kWidth, int kColumns, int kBefore, bool kSameWidth>
void launch(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    using Shape = Strip<S, kWidth, kColumns, false>;
    const int64_t channels = p.dim / Shape::kOwn;
    const bool many = Shape::kFewBytes > 1 && p.batch * channels > kManyBlocks * Shape::kFewLanes;
    const unsigned lanes = power_of_two_up_to(channels, many ? Shape::kLanes : Shape::kFewLanes);
    const dim3 grid(static_cast<unsigned>(p.batch), blocks_up_to(channels, lanes, kMostStrips), 1);
    HIPCONV_LAUNCH(true, (causal_conv1d_update_step<T, S, kWidth, kColumns, kBefore, kSameWidth, false>), grid,
                   dim3(lanes, 1, 1), 0, stream, vector_params(p));
    check_launch("causal_conv1d_update");
}

// Rows of an even number of channels: blocks of some rows.
template <typename T, int kWidth, int kColumns>
void launch_pairs(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    PairGrid grid = pair_grid(p);
    if constexpr (Strip<T, kWidth, kColumns, true>::kMostRows == 2) {
        if (many_pairs(p)) {
            grid.blocks.x = static_cast<unsigned>(ceil_of(p.batch, int64_t{grid.block.y} * 2));
            HIPCONV_LAUNCH(true, (causal_conv1d_update_two_steps<T, kWidth, kColumns>), grid.blocks, grid.block, 0, stream,
                           vector_params(p));
            return check_launch("causal_conv1d_update");
        }
    }
    HIPCONV_LAUNCH(true, (causal_conv1d_update_step<T, T, kWidth, kColumns, 0, false, true>), grid.blocks, grid.block, 0,
                   stream, vector_params(p));
    check_launch("causal_conv1d_update");
}

bool parameters_as_wide_as_x(const CausalConv1dUpdateParams& p) {
    const int bytes = element_bytes(p.dtype);
    return element_bytes(p.weight_dtype) == bytes && (!p.bias || element_bytes(p.bias_dtype) == bytes);
}

// The common width with parameters of both sizes; those of another size than x's are served beside 16-bit x, and not where a
// slot has a column after the window.
template <typename T, bool kSameWidth>
void with_columns(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    constexpr int kWidth = kCommonWidth;
    if (p.state_dtype != p.dtype) return launch<T, float, kWidth, kOwnVectors, 0, kSameWidth>(p, stream);
    if (p.state_dim_stride == 1) return launch<T, T, kWidth, kOwnVectors, 0, kSameWidth>(p, stream);
    if (p.state_len == kWidth - 1) return launch<T, T, kWidth, kWidth - 1, 0, kSameWidth>(p, stream);
    if constexpr (kSameWidth)
        if (p.history != p.state_len) return launch<T, T, kWidth, kWidth, 0, true>(p, stream);
    launch<T, T, kWidth, kWidth, 1, kSameWidth>(p, stream);
}

// Other widths, for 16-bit x and state, and parameters of any type.
template <typename T, int kWidth = kMostWidth>
void with_width(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    if constexpr (kWidth > 1)
        if (p.width != kWidth) return with_width<T, kWidth - 1>(p, stream);
    if constexpr (kWidth == kCommonWidth)
        return with_columns<T, false>(p, stream);
    else if constexpr (kWidth > 2)
        if (p.state_dim_stride != 1) return launch<T, T, kWidth, kWidth - 1, 0, false>(p, stream);
    if constexpr (kWidth != kCommonWidth) launch<T, T, kWidth, kOwnVectors, 0, false>(p, stream);
}

// The same in pairs.
template <typename T, int kWidth = kMostWidth>
void pairs_with_width(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    if constexpr (kWidth > 2)
        if (p.width != kWidth) return pairs_with_width<T, kWidth - 1>(p, stream);
    p.state_dim_stride == 1 ? launch_pairs<T, kWidth, kOwnVectors>(p, stream) : launch_pairs<T, kWidth, kWidth - 1>(p, stream);
}

// Rows that do not come in vectors of four channels, and those of float32 at widths that `vector` does not take.
bool serves_pairs(const CausalConv1dUpdateParams& p) {
    if (p.seqlen != 1 || p.query_start_loc.data || p.num_accepted_tokens.data || !channels_in_pairs(p)) return false;
    const bool in_fours = channels_in_vectors(p) && in_vectors(p, p.x) && outputs_in_vectors(p);
    return p.width >= 2 && p.width <= kMostWidth && (!in_fours || (p.dtype == DType::f32 && p.width > kCommonWidth));
}

bool serves(const CausalConv1dUpdateParams& p) {
    if (p.seqlen != 1 || p.query_start_loc.data || p.num_accepted_tokens.data || p.width > kMostWidth) return false;
    if (!channels_in_vectors(p) || !in_vectors(p, p.x) || !outputs_in_vectors(p)) return false;
    const bool common = p.width == kCommonWidth, as_wide = parameters_as_wide_as_x(p);
    if (p.dtype == DType::f32 ? !common || !as_wide : !common && p.width > 1 && p.state_dtype != p.dtype) return false;
    if (p.width == 1 || p.state_dim_stride == 1) return true;
    if (p.state_dtype != p.dtype || !columns_in_registers(p)) return false;
    const bool whole = is_aligned(p.state, 16) && p.slot_stride * element_bytes(p.state_dtype) % 16 == 0;
    if (p.state_len == 4 && !whole) return false;
    return p.state_len < p.width || (common && (as_wide || p.history == p.state_len));
}

}  // namespace

const char* causal_conv1d_update_step_refusal(const CausalConv1dUpdateParams& p) {
    if (serves(p) || serves_pairs(p)) return nullptr;
    return "one token a row with aligned channels in fours: of 16 bits at widths 1 to 8 with conv_state of x's dtype, or of "
           "any dtype at width 4; or aligned in pairs, of conv_state's dtype; and none of: query_start_loc, "
           "num_accepted_tokens, cache_seqlens, intermediate_conv_window, retrieve_next_token; of (slots, dim, state_len) "
           "without gaps, state_len = width - 1, or 4 at width 4; a state_len of 4 at a multiple of 16 bytes";
}

// Takes all rows in pairs but, by an H200's times, many of float32 at width 8 whose channels come in fours.
bool causal_conv1d_update_step_is_choice(const CausalConv1dUpdateParams& p) {
    if (causal_conv1d_update_turn_beats_vectors(p) || causal_conv1d_update_wave_beats_vectors(p)) return false;
    return serves(p) || !many_pairs(p) || p.dtype != DType::f32 || p.width < kMostWidth || p.dim % kChannels != 0;
}

void causal_conv1d_update_step(const CausalConv1dUpdateParams& p, void* /*workspace*/, void* stream) {
    const hipStream_t hip_stream = static_cast<hipStream_t>(stream);
    const bool common = p.width == kCommonWidth && parameters_as_wide_as_x(p);
    with_dtype(p.dtype, [&](auto type) {
        using T = decltype(type);
        if (!serves(p)) return pairs_with_width<T>(p, hip_stream);
        if (common) return with_columns<T, true>(p, hip_stream);
        if constexpr (sizeof(T) == 2) with_width<T>(p, hip_stream);
    });
}

}  // namespace hipconv
