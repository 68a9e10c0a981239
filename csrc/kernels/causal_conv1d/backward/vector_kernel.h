// This is the channel-first backward kernel (vector.cu), in two forms (vector_walk.h).
#pragma once

#include <hip/hip_runtime.h>

#include "../common/launch.h"
#include "causal_conv1d/states_formula.h"
#include "launch/check.h"
#include "vector_step.h"
#include "vector_walk.h"

namespace hipconv {

// This was measured on an H200, where many threads are worth more than registers.
constexpr int bwd_vector_blocks(int width, bool plain) {
    if (!kHasPredicates) return width <= 4 ? (plain ? 10 : 6) : (plain ? 6 : 4);
    if (plain) return width <= 3 ? 8 : width <= 4 ? 7 : width <= 5 ? 6 : width <= 7 ? 5 : 4;
    return width <= 5 ? 5 : width <= 7 ? 4 : 3;
}

// A row of a tensor of states, of element columns.
template <typename T>
struct BwdVectorState {
    T* row;
    int64_t stride;
    HIPCONV_INLINE BwdVectorState(const Sequences& s, int32_t b, uint32_t d)
        : row(global_pointer<T>(s.data) + b * s.batch_stride + d * s.dim_stride), stride(s.seqlen_stride) {}
    HIPCONV_INLINE T& operator[](int32_t column) const { return row[column * stride]; }
};

// Of the tokens from t on, those before the row's start come from the initial state.
template <typename T, int kWidth, int kOldest, int kWindow>
HIPCONV_INLINE void bwd_vector_load_state(const CausalConv1dInputs& in, int32_t b, uint32_t d, int32_t t,
                                          float (&window)[kWindow]) {
    const BwdVectorState<const T> state(in.initial_states, b, d);
#pragma unroll
    for (int m = kOldest; m < kWindow; ++m) {
        const int32_t column = t + m - kOldest;
        if (column >= 0 && column < kWidth - 1) window[m] = to_float(state[column]);
    }
}

// Adds the final state's part to the gradients of inputs from t on, some of which may be in the initial state.
template <typename T, int kWidth, int kCount>
HIPCONV_INLINE void bwd_vector_add_final(const CausalConv1dBwdParams& p, int32_t b, uint32_t d, int32_t t,
                                         float (&gradients)[kCount]) {
    const BwdVectorState<const T> state(p.dfinal_states, b, d);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
        const int32_t column = t + k - p.in.seqlen + kWidth - 1;
        if (column >= 0 && column < kWidth - 1 && final_state_counts(p.in, b, t + k)) gradients[k] += to_float(state[column]);
    }
}

template <typename T, int kWidth, bool kPlain>
__global__ void HIPCONV_LAUNCH_BOUNDS(kBwdVectorThreads, bwd_vector_blocks(kWidth, kPlain))
    causal_conv1d_bwd_vector(CausalConv1dBwdParams p, BwdVectorPlan plan) {
    using Layout = BwdVectorLayout<T, kWidth>;
    constexpr int kSize = Layout::kSize, kTokens = Layout::kTokens, kPast = Layout::kPast, kOldest = Layout::kOldest;
    constexpr int kBefore = Layout::kBefore, kOwn = Layout::kOwn, kWindow = Layout::kWindow;
    constexpr int kSpill = kPast > 0 ? kPast : 1, kMore = kPlain ? 0 : 1;
    constexpr int kSums = kBwdVectorSums<kTokens, kWidth>;
    using Sum = BwdVectorSum;
    using Bits = TapsOfBits<kTokens, kWidth>;
    constexpr bool kLooksAtTaps = bwd_looks_at_taps(kPlain);

    let_next_kernel_begin();
    wait_for_kernel_before();
    const Piece piece = piece_of_block(plan.taper, blockIdx.y * gridDim.x + blockIdx.x);
    if (piece.count == 0) return;
    const int32_t lanes = static_cast<int32_t>(blockDim.x), lane = static_cast<int32_t>(threadIdx.x);
    uint32_t d = piece.row * blockDim.y + threadIdx.y;
    const bool has_channel =
        d < static_cast<uint32_t>(p.in.dim);  // lanes that have none do the last one's work again: shuffles are for whole waves
    if (!has_channel) d = static_cast<uint32_t>(p.in.dim) - 1;
    const int32_t seqlen = p.in.seqlen;
    const bool has_ids = !kPlain && p.taps, has_state = !kPlain && p.in.initial_states.data;

    // What comes next of a lane's tokens: where it lies, and what was loaded of it.
    const uint32_t end = (piece.first + static_cast<uint32_t>(piece.count)) * static_cast<uint32_t>(lanes);
    BwdVectorPlace place = bwd_vector_place<T, kTokens>(p, plan, d, end);
    int32_t t_next = place.t;
    const auto address = [&](const Sequences& s, int64_t batch_bytes) {
        return global_pointer<char>(s.data) + (int64_t{d} * s.dim_stride + t_next) * kSize + place.b * batch_bytes;
    };
    const char* x = address(p.in.x, plan.x_batch);
    const char* dout = address(p.dout, plan.dout_batch);
    char* dx = address(p.dx, plan.dx_batch);  // of what is stored next
    const uint8_t* taps = has_ids ? bwd_taps_of(p, place.b, t_next) : nullptr;
    uint32_t x_words[kBefore + kOwn + kMore]{}, dout_words[kOwn + kMore]{}, taps_words[kTokens / 4 + 1]{};
    uint32_t taps_shift = 0;
    bool x_early = false, dout_early = false;
    const auto load = [&]() {
        if (t_next >= seqlen) {
            if constexpr (!kLooksAtTaps) {
#pragma unroll
                for (uint32_t& word : x_words) word = 0;
#pragma unroll
                for (uint32_t& word : dout_words) word = 0;
            }
            return;
        }
        x_early = load_tokens<T, kBefore, kOwn, kPlain, kOldest / Layout::kEach>(x, t_next, seqlen, x_words);
        dout_early = load_tokens<T, 0, kOwn, kPlain, 0>(dout, t_next, seqlen, dout_words);
        if (has_ids) taps_shift = load_taps(taps, taps_words);
    };
    const auto go_back = [&](int32_t tokens) {
        x -= tokens * kSize;
        dout -= tokens * kSize;
        if (has_ids) taps -= tokens;
        if (const int32_t later = bwd_vector_go_back<T, kTokens>(plan, tokens, t_next); later > 0) {
            x += int64_t{later} * kSize - plan.x_batch;
            dout += int64_t{later} * kSize - plan.dout_batch;
            if (has_ids) taps += later - plan.taps_batch;
        }
    };
    const auto unpack = [&](float(&window)[kWindow], float(&gradients)[kTokens]) {
        if constexpr (!kPlain) {
            if (x_early) shift_tokens(x_words);
            if (dout_early) shift_tokens(dout_words);
        }
        unpack_tokens<T>(x_words, window);
        unpack_tokens<T>(dout_words, gradients);
    };
    const auto taps_of = [&](int32_t t) {
        if (has_ids && t < seqlen) return taps_of_words<kTokens, kWidth>(taps_words, taps_shift);
        return taps_of_row<kTokens, kWidth>(t, seqlen, has_state);
    };

    // Where a row goes on after this walk, the gradients of its next tokens have a part in the last lane's dx. All lanes make
    // it alike.
    float weight[kWidth], bias;
    bwd_vector_parameters(p.in, d, weight, bias);
    float carried[kSpill];
#pragma unroll
    for (float& each : carried) each = 0.0f;
    if (kPast > 0 && t_next > 0 && t_next < seqlen) {
        load();
        float window[kWindow], gradients[kTokens];
        unpack(window, gradients);
        if (has_state && t_next < kPast) bwd_vector_load_state<T, kWidth, kOldest>(p.in, place.b, d, t_next, window);
        bwd_vector_spill<kTokens, kWidth, kOldest>(taps_of(t_next), p.in.use_silu, window, gradients, weight, bias, carried);
    }

    const int32_t back = lanes * kTokens;
    int32_t t = t_next, b = place.b;  // of what is stored next
    const auto go_back_to_store = [&](int32_t tokens) {
        dx -= tokens * kSize;
        if (const int32_t later = bwd_vector_go_back<T, kTokens>(plan, tokens, t); later > 0) {
            dx += int64_t{later} * kSize - plan.dx_batch;
            --b;
        }
    };
    go_back((lanes - lane) * kTokens);
    go_back_to_store((lanes - lane) * kTokens);
    load();
    go_back(back);

    const uint32_t wave_lane = (threadIdx.y * blockDim.x + threadIdx.x) % kWaveSize;
    int next_lane = static_cast<int>((wave_lane & ~(blockDim.x - 1)) | ((wave_lane + 1) & (blockDim.x - 1)));
    int to_end = has_channel ? seqlen : 0, left = piece.count;
    in_a_register(next_lane);
    in_a_register(to_end);
    Pair dweight[kWidth], dbias = twice(0.0f);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) dweight[i] = twice(0.0f);

    do {
        enter_loop_here();
        // Load: this step's words become floats, the next step's are fetched.
        Bits bits{};
        if (has_ids) bits = taps_of(t);
        float window[kWindow], gradients[kTokens];
        unpack(window, gradients);
        // No tap sees the other half of the oldest input's word, and NVIDIA's compiler moves this half elsewhere right behind
        // the load, for which it waits there: 10 % of a copy. So let the other one be used, where nothing ever is.
        if constexpr (kHasPredicates && std::is_same_v<T, f16> && kOldest % 2 == 1) {
            if (plan.vectors == 0) dbias = twice(window[kOldest - 1]);
        }
        if (std::is_same_v<T, bf16>) {  // else NVIDIA's compiler keeps the words, and unpacks them for each use
#pragma unroll
            for (int k = kOldest; k < kWindow; ++k) in_a_register(window[k]);
        }
        if (--left > 0) {
            load();
            go_back(back);
            if (left > 1 && t_next < seqlen) {
                prefetch(x);
                prefetch(dout);
            }
        }
        if (has_state && t < kPast) bwd_vector_load_state<T, kWidth, kOldest>(p.in, b, d, t, window);

        // Compute: the gradients of the sums, and their part in the gradients of the parameters and of x.
        const bool begins_row = (t == 0 && !has_state) || (!kLooksAtTaps && t >= seqlen);
        bool is_plain = true;
        if constexpr (kLooksAtTaps)
            is_plain =
                has_ids ? bits.are_plain(begins_row) : (begins_row || t >= (has_state ? 0 : kPast)) && t + kTokens <= seqlen;
        Sum sums[kSums];
#pragma unroll
        for (Sum& each : sums) each = bwd_vector_zero(Sum{});
        const auto step = [&](auto taps, auto one_by_one) {
            bwd_vector_step<kTokens, kWidth, kOldest, decltype(one_by_one)::value>(taps, p.in.use_silu, window, gradients,
                                                                                   weight, bias, dweight, dbias, sums);
        };
        if (kLooksAtTaps && __ballot(!is_plain)) {
            if (!has_ids) bits = taps_of(t);
            step(bits, std::integral_constant<bool, kHasPredicates>{});
        } else if (kHasPredicates) {
            step(TapsOfWhole<kWidth>{begins_row}, std::true_type{});
        } else if (!__ballot(begins_row)) {
            step(AllTaps{}, std::false_type{});
        } else {
            step(TapsOfWhole<kWidth>{begins_row}, std::false_type{});
        }

        // Share: the next lane's gradients have a part in the dx of this one's last tokens; after the last lane comes the first
        // one of the step before.
        float own[kTokens], before[kSpill];
#pragma unroll
        for (int k = 0; k < kTokens; ++k) own[k] = total<kTokens / 2>(sums, kPast + k);
#pragma unroll
        for (int m = 0; m < kPast; ++m) {
            before[m] = total<kTokens / 2>(sums, m);
            const float of_next = __shfl(lane == 0 ? carried[m] : before[m], next_lane);
            carried[m] = before[m];
            if (t + kTokens < seqlen) own[kTokens - kPast + m] += of_next;
        }

        if constexpr (!kPlain) {
            const CausalConv1dBwdParams& states = first_parameter_again(p);
            if (states.dfinal_states.data && t + kTokens > seqlen - kPast && t < seqlen) {
                bwd_vector_add_final<T, kWidth>(states, b, d, t, own);
                if (t <= 0) bwd_vector_add_final<T, kWidth>(states, b, d, t - kPast, before);
            }
            if (states.dinitial_states.data && t <= 0 && has_channel) {
                const BwdVectorState<T> state(states.dinitial_states, b, d);
#pragma unroll
                for (int column = 0; column < kPast + kTokens; ++column) {
                    if (t + column < 0 || t + column >= kPast) continue;
                    state[t + column] = from_float<T>(column < kPast ? before[column % kSpill] : own[column - kPast]);
                }
            }
        }
        store_tokens<T>(dx, t, to_end, plan.may_store_vectors, own);
        go_back_to_store(back);
    } while (left > 0);

    float* const partials = static_cast<float*>(p.partials) + static_cast<int64_t>(piece.number) * (kWidth + 1) * p.in.dim + d;
    bwd_vector_store_sums(dweight, dbias, partials, p.in.dim, has_channel);
}

// Launches the instance for the type and the width, from 1 to kWidth.
template <bool kPlain, int kWidth = kMaxBwdVectorWidth>
void launch_bwd_vector(const CausalConv1dBwdParams& p, const BwdVectorPlan& plan, dim3 grid, dim3 block, hipStream_t stream) {
    if constexpr (kWidth > 1) {
        if (p.in.width < kWidth) return launch_bwd_vector<kPlain, kWidth - 1>(p, plan, grid, block, stream);
    }
    with_dtype(p.in.dtype, [&](auto type) {
        const bool early = p.taps != nullptr;
        HIPCONV_LAUNCH(early, (causal_conv1d_bwd_vector<decltype(type), kWidth, kPlain>), grid, block, 0, stream, p, plan);
        check_launch("causal_conv1d_bwd");
    });
}

}  // namespace hipconv
