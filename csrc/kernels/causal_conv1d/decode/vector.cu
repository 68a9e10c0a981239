// The decode of several tokens in vectors of channels (vector_kernel.h): what it serves, its launch, and its instances for
// vectors of four channels.
#include <hip/hip_runtime.h>

#include "vector_kernel.h"

namespace hipconv {

namespace {

// Like `columns_in_registers`, for slots of more columns.
bool columns_of_drafts(const CausalConv1dUpdateParams& p) {
    return p.state_len == kDraftColumns && p.history == p.width - 1 && !p.fork;
}

template <typename T, typename S, int kWidth, int kColumns>
void launch(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    unsigned lanes = has_one_token(p) ? kMostLanes<kColumns> : kVectorLanes;
    while (kColumns == kAnyColumns && lanes * p.state_len * sizeof(Words<S, kChannels>) > kStagedBytes) lanes /= 2;
    lanes = power_of_two_up_to(p.dim / kChannels, lanes);
    const dim3 grid(static_cast<unsigned>(p.batch), blocks_up_to(p.dim / kChannels, lanes, kMostStrips), 1);
    HIPCONV_LAUNCH(true, (causal_conv1d_update_vectors<T, S, kWidth, kColumns, kChannels>), grid, dim3(lanes, 1, 1), 0, stream,
                   vector_params(p));
    check_launch("causal_conv1d_update");
}

template <typename T, typename S>
void with_packed_columns(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    if constexpr (std::is_same_v<T, S>)
        if (p.width == 3) return launch<T, S, 3, 2>(p, stream);
    constexpr int kWidth = kCommonWidth;
    if (columns_in_registers(p) && p.state_len == kWidth - 1) return launch<T, S, kWidth, kWidth - 1>(p, stream);
    if constexpr (std::is_same_v<T, S>) {
        if (columns_in_registers(p)) return launch<T, S, kWidth, kWidth>(p, stream);
        if (columns_of_drafts(p)) return launch<T, S, kWidth, kDraftColumns>(p, stream);
    }
    launch<T, S, kWidth, kAnyColumns>(p, stream);
}

bool serves(const CausalConv1dUpdateParams& p) {
    if (p.width < 2 || p.width > (p.dtype == DType::f32 ? kCommonWidth : kMostWidth) || !channels_in_vectors(p)) return false;
    if (p.state_dtype != p.dtype && p.width != kCommonWidth) return false;
    if (!in_vectors(p, p.x) && !in_fours(p, p.x)) return false;
    if (!outputs_in_vectors(p) && (p.out_end[0] != p.dim || !in_fours(p, p.out[0]))) return false;
    if (p.history != p.width - 1) return false;
    if (p.state_dim_stride == 1) return true;
    if (p.width == 3) return p.state_dtype == p.dtype && p.state_len == 2 && columns_in_registers(p);
    if (p.width != kCommonWidth) return false;
    const int64_t fewest_bytes = int64_t{kFewestLanes} * kChannels * p.state_len * element_bytes(p.state_dtype);
    return (p.state_dtype == p.dtype && columns_in_registers(p)) || fewest_bytes <= kStagedBytes;
}

// Rows that do not come in vectors of four channels.
bool serves_pairs(const CausalConv1dUpdateParams& p) {
    const bool fours = channels_in_vectors(p) && (in_vectors(p, p.x) || in_fours(p, p.x)) && outputs_in_vectors(p);
    return p.width >= 2 && p.width <= kMostWidth && channels_in_pairs(p) && p.state_dim_stride == 1 &&
           (!fours || (p.dtype == DType::f32 && p.width > kCommonWidth));
}

}  // namespace

const char* causal_conv1d_update_vector_refusal(const CausalConv1dUpdateParams& p) {
    if (serves(p) || serves_pairs(p)) return nullptr;
    return "widths 2 to 8, or 4 of float32, with aligned channels or tokens in fours and conv_state of x's dtype, or float32 "
           "at width 4, or channels in pairs, and none of: cache_seqlens, intermediate_conv_window, retrieve_next_token; "
           "(slots, dim, state_len) without gaps at width 4, or at width 3 with state_len 2, and not in pairs";
}

// Takes all rows in pairs but, by an H200's times, many of float32 at width 8 whose channels come in fours, and many of 16-bit
// drafts at widths 2 and 3.
bool causal_conv1d_update_vector_is_choice(const CausalConv1dUpdateParams& p) {
    if (causal_conv1d_update_turn_beats_vectors(p) || causal_conv1d_update_wave_beats_vectors(p)) return false;
    if (serves(p) || !many_pairs(p)) return true;
    if (p.dtype == DType::f32) return p.width < kMostWidth || p.dim % kChannels != 0;
    return !p.num_accepted_tokens.data || p.width >= kCommonWidth;
}

void causal_conv1d_update_vector(const CausalConv1dUpdateParams& p, void* /*workspace*/, void* stream) {
    if (causal_conv1d_update_copied_serves(p)) return causal_conv1d_update_copied(p, stream);
    const hipStream_t hip_stream = static_cast<hipStream_t>(stream);
    if (!serves(p)) return launch_vectors_of_pairs(p, hip_stream);
    with_instance<kMostWidth>(p.dtype, p.width, [&](auto type, auto width) {
        using T = decltype(type);
        constexpr int kWidth = decltype(width)::value;
        const bool wide = p.state_dtype != p.dtype;
        if (p.state_dim_stride != 1)
            return wide ? with_packed_columns<T, float>(p, hip_stream) : with_packed_columns<T, T>(p, hip_stream);
        if constexpr (kWidth == kCommonWidth)
            if (wide) return launch<T, float, kWidth, kOwnVectors>(p, hip_stream);
        if constexpr (kWidth <= kCommonWidth || sizeof(T) == 2) launch<T, T, kWidth, kOwnVectors>(p, hip_stream);
    });
}

}  // namespace hipconv
