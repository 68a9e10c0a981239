// Causal conv1d decode of one token a row, width 4 ("step"): what decoding mostly is, in vectors of channels.
//
// Its time is two waits for memory, first for the row's slot and then for its state, and the bytes. So a lane asks at once for
// all that it can, the kernel is short, and its parameters are few: where rows are few, fetching more instructions and parameters
// takes longer than the rest.
//
// Where channels are neighbours in memory (conv_state as (slots, columns, dim)), a lane moves its own vectors. Where a slot is
// packed channel by channel ((slots, dim, columns)), a lane's columns are no vectors, but the strip is contiguous: it moves
// through LDS in whole vectors, of which a lane picks its elements in registers. The window and x are read before anything is
// written.
#include <hip/hip_runtime.h>

#include "causal_conv1d_update_vectors.h"
#include "check.h"

namespace hipconv {

// kColumns of a packed slot, or kOwnVectors; kBefore of them come before the window and move with it.
template <typename T, typename S, int kColumns, int kBefore>
__global__ void HIPCONV_LAUNCH_BOUNDS(kVectorLanes, sizeof(S) == 4 ? 14 : kColumns ? 20 : 24)
    causal_conv1d_update_step(VectorParams params) {
    const VectorParams& p = first_parameter(params);
    constexpr int kPast = kCommonWidth - 1;
    using Vector = Words<T, kChannels>;
    using History = Words<S, kChannels>;
    constexpr int kStage = kVectorLanes * kColumns;
    HIPCONV_SHARED(History, stage, kColumns ? kStage + kStage * static_cast<int>(sizeof(History)) / 128 : 1);

    const unsigned b = blockIdx.x;
    const int lane = static_cast<int>(threadIdx.x), lanes = static_cast<int>(blockDim.x);
    const int strip_d = static_cast<int>(blockIdx.y) * lanes * kChannels;
    const int left = p.dim - strip_d;
    const int strip = left < lanes * kChannels ? left / kChannels : lanes;  // vectors
    const bool active = lane < strip;
    if (!kColumns && !active) return;
    const int d = strip_d + (active ? lane : 0) * kChannels;  // the other lanes only move strips

    IndexWords::Value slot{b, 0};
    if (p.slot_of_row.data) slot = p.slot_of_row.load(b);
    ChannelParameters<kCommonWidth> parameters;
    const Vector token = *reinterpret_cast<const Vector*>(p.x.as<const T>() + b * p.x_row_stride + d);
    parameters.load(p, d);
    T* out = p.out.as<T>() + b * p.out_row_stride + d;
    if (__builtin_expect(p.split, 0)) out = split_out_at<T>(p, b, d, 0);

    const Slots slots = slots_of_row(p, b, slot);
    if (!slots.live) {
        if (p.zero_padding && active) *reinterpret_cast<Vector*>(out) = Vector{};
        return;
    }

    S* const from = p.state.as<S>() + slots.read * p.slot_stride;
    S* const to = p.state.as<S>() + slots.write * p.slot_stride;
    const auto store_result = [&](auto window) {  // window(i, j): column i of it, oldest first, of pair j of the channels
        const Vector result = parameters.template convolve<T>(window, token, p.use_silu);
        if (active) *reinterpret_cast<Vector*>(out) = result;
    };
    if constexpr (kColumns == kOwnVectors) {
        History columns[kPast];
#pragma unroll
        for (int i = 0; i < kPast; ++i) columns[i] = *reinterpret_cast<const History*>(from + d + i * p.column_stride);
        parameters.convert(p);
        store_result([&](int i, int j) { return pair_of<S>(columns[i], j); });
#pragma unroll
        for (int i = 0; i < kPast; ++i)
            *reinterpret_cast<History*>(to + d + i * p.column_stride) = i + 1 < kPast ? columns[i + 1] : as_history<S, T>(token);
    } else {
        static_assert(std::is_same_v<T, S>, "packed columns move as bits");
        const History* strip_from = reinterpret_cast<const History*>(from + int64_t{strip_d} * kColumns);
        History own[kColumns];  // of the strip's vectors first every lanes-th, then the lane's channels: (channel, column)
#pragma unroll
        for (int k = 0; k < kColumns; ++k)
            if (k * lanes + lane < strip * kColumns) own[k] = strip_from[k * lanes + lane];
        parameters.convert(p);
#pragma unroll
        for (int k = 0; k < kColumns; ++k)
            if (k * lanes + lane < strip * kColumns) stage[staged<History, kColumns>(k * lanes + lane)] = own[k];
        __syncthreads();
        if (active) {
#pragma unroll
            for (int k = 0; k < kColumns; ++k) own[k] = stage[staged<History, kColumns>(lane * kColumns + k)];
        }
        const auto value = [&](int c, int i) {
            return to_float(from_bits<S>(element<S, kChannels>(own, c * kColumns + kBefore + i)));
        };
        store_result([&](int i, int j) { return make_pair(value(2 * j, i), value(2 * j + 1, i)); });

        const auto moved = [&](int at) {  // element `at` after the step
            const int i = at % kColumns - kBefore;
            if (i == kPast - 1) return element<T, kChannels>(&token, at / kColumns);
            return element<S, kChannels>(own, i < kPast ? at + 1 : at);
        };
        constexpr int kInWord = 4 / static_cast<int>(sizeof(S));
#pragma unroll
        for (int k = 0; k < kColumns; ++k) {
            History vector{};
#pragma unroll
            for (int w = 0; w < kChannels / kInWord; ++w) {
                const int at = k * kChannels + w * kInWord;
                set_word(vector, w, kInWord == 2 ? moved(at) | moved(at + 1) << 16 : moved(at));
            }
            if (active) stage[staged<History, kColumns>(lane * kColumns + k)] = vector;
        }
        __syncthreads();
        History* strip_to = reinterpret_cast<History*>(to + int64_t{strip_d} * kColumns);
#pragma unroll
        for (int k = 0; k < kColumns; ++k)
            if (k * lanes + lane < strip * kColumns)
                strip_to[k * lanes + lane] = stage[staged<History, kColumns>(k * lanes + lane)];
    }
}

namespace {

template <typename T, typename S, int kColumns, int kBefore>
void launch(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    const unsigned lanes = power_of_two_up_to(p.dim / kChannels, kVectorLanes);
    const dim3 grid(static_cast<unsigned>(p.batch), blocks_up_to(p.dim / kChannels, lanes, kMostStrips), 1);
    hipLaunchKernelGGL((causal_conv1d_update_step<T, S, kColumns, kBefore>), grid, dim3(lanes, 1, 1), 0, stream,
                       vector_params(p));
    check_launch("causal_conv1d_update");
}

template <typename T>
void with_columns(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    if (p.state_dtype != p.dtype) return launch<T, float, kOwnVectors, 0>(p, stream);
    if (p.state_dim_stride == 1) return launch<T, T, kOwnVectors, 0>(p, stream);
    if (p.state_len == kCommonWidth - 1) return launch<T, T, kCommonWidth - 1, 0>(p, stream);
    p.history == p.state_len ? launch<T, T, kCommonWidth, 1>(p, stream) : launch<T, T, kCommonWidth, 0>(p, stream);
}

}  // namespace

bool causal_conv1d_update_step_serves(const CausalConv1dUpdateParams& p) {
    if (p.seqlen != 1 || p.query_start_loc.data || p.num_accepted_tokens.data || p.width != kCommonWidth) return false;
    return channels_in_vectors(p) && in_vectors(p, p.x) && outputs_in_vectors(p) &&
           (p.state_dim_stride == 1 || columns_in_registers(p));
}

void causal_conv1d_update_step(const CausalConv1dUpdateParams& p, void* stream) {
    const hipStream_t hip_stream = static_cast<hipStream_t>(stream);
    switch (p.dtype) {
        case DType::f32:
            return with_columns<float>(p, hip_stream);
        case DType::f16:
            return with_columns<f16>(p, hip_stream);
        case DType::bf16:
            return with_columns<bf16>(p, hip_stream);
    }
}

}  // namespace hipconv
