// This kernel is the causal conv1d backward, channel-first (vector.cu), of any rows, with states too: vectors lie on the
// boundaries of x, and elements of vectors that are not aligned or not in the row are moved one by one.
#include <hip/hip_runtime.h>

#include "../common/launch.h"
#include "causal_conv1d/states_formula.h"
#include "launch/check.h"
#include "vector_step.h"
#include "vector_walk.h"

namespace hipconv {

template <typename T, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kBwdVectorThreads, 4)
    causal_conv1d_bwd_ragged(CausalConv1dBwdParams p, BwdVectorPlan plan) {
    constexpr int kTokens = kBwdTokens<T>;
    constexpr int kPast = kWidth - 1;
    using Vector = Words<T, kTokens>;
    using Past = TokensBefore<T, kWidth>;
    using Part = typename Past::Part;
    constexpr int kOldest = Past::kTokens - kPast;

    let_next_kernel_begin();
    wait_for_kernel_before();
    const Piece piece = piece_of_block(plan.taper, blockIdx.y * gridDim.x + blockIdx.x);
    if (piece.count == 0) return;
    const BwdVectorWalk walk = bwd_vector_walk(p.in, plan, piece);
    const int64_t d = walk.d;
    const int32_t seqlen = p.in.seqlen;
    const auto row_of = [&](const Sequences& s, int32_t b) {
        return global_pointer<T>(s.data) + d * s.dim_stride + b * s.batch_stride;
    };
    const auto in_vectors = [](const T* from) { return reinterpret_cast<uintptr_t>(from) % 16 == 0; };

    float weight[kWidth], bias;
    bwd_vector_parameters(p.in, d, weight, bias);
    Pair dweight[kWidth], dbias = twice(0.0f);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) dweight[i] = twice(0.0f);
    float carried[kPast];
#pragma unroll
    for (int k = 0; k < kPast; ++k) carried[k] = 0.0f;

    int32_t b = walk.b, step = walk.step;
    if (!walk.ends_row) ++step;  // for the gradients of its first tokens only
    for (int left = walk.ends_row ? piece.count : piece.count + 1; left > 0; --left) {
        const bool is_before_walk = left > piece.count;
        const CausalConv1dBwdParams& rows = first_parameter_again(p);
        const T* x = row_of(rows.in.x, b);
        const T* dout = row_of(rows.dout, b);
        T* dx = row_of(rows.dx, b);
        // This is the token that this lane's vectors begin with; it is negative where they begin before the row.
        int32_t t = (step * static_cast<int32_t>(blockDim.x) + static_cast<int32_t>(threadIdx.x)) * kTokens;
        if (plan.on_boundaries) t -= static_cast<int32_t>(reinterpret_cast<uintptr_t>(x) % 16 / sizeof(T));
        const bool has_tokens = t < seqlen && (!is_before_walk || threadIdx.x == 0);
        const bool whole = t >= 0 && t + kTokens <= seqlen;

        float window[Past::kTokens + kTokens], gradients[kTokens + kPast];
        const auto load = [&](const T* row) {
            if (!has_tokens) return Vector{};
            if (whole && in_vectors(row + t)) return *reinterpret_cast<const Vector*>(row + t);
            return load_part<T, kTokens>(row, t, seqlen);
        };
        unpack_elements<T, kTokens>(load(x), window, Past::kTokens);
        unpack_elements<T, kTokens>(load(dout), gradients, 0);
#pragma unroll
        for (int k = 0; k < Past::kParts; ++k) {
            const int32_t from = t - Past::kTokens + k * Past::kPartTokens;
            Part part{};
            if (has_tokens) {
                part = from >= 0 && in_vectors(x + t) ? *reinterpret_cast<const Part*>(x + from)
                                                      : load_part<T, Past::kPartTokens>(x, from, seqlen);
            }
            unpack_elements<T, Past::kPartTokens>(part, window, k * Past::kPartTokens);
        }
        if (t >= plan.stretch) {
            prefetch(x + t - plan.stretch);
            prefetch(dout + t - plan.stretch);
        }
        const CausalConv1dBwdParams& states = first_parameter_again(p);
        // With states, vectors count from the row's start.
        if (states.in.initial_states.data && t == 0) {
#pragma unroll
            for (int e = 0; e < kPast; ++e) window[kOldest + e] = to_float(at<const T>(states.in.initial_states, b, d, e));
        }
        TapsOfBits<kTokens, kWidth> bits{};
        bool has_all = t >= kPast && t + kTokens + kPast <= seqlen;
        if (states.taps) {
            if (has_tokens) bits = taps_from_bytes<kTokens, kWidth>(global_pointer<const uint8_t>(bwd_taps_of(states, b, t)));
            has_all = bits.are_plain(false, false);
        }
        const bool all_have_all = __ballot(!has_all) == 0;  // both ways at once would take the time of both
        if (!all_have_all && !states.taps)
            bits = taps_of_row<kTokens, kWidth>(t, seqlen, states.in.initial_states.data != nullptr);
        const auto with_taps = [&](auto f) { all_have_all ? f(AllTaps{}) : f(bits); };
        with_taps([&](auto taps) {
            if (states.in.use_silu) bwd_vector_gradients<kTokens, kWidth, kOldest>(taps, window, gradients, weight, bias);
            bwd_vector_leave_out<kTokens>(taps, gradients);
        });
        bwd_vector_share<kTokens>(gradients, carried, walk.next_lane);
        if (!is_before_walk) {
            Pair sums[kTokens / 2];
            with_taps([&](auto taps) {
                bwd_vector_add<kTokens, kOldest>(taps, window, gradients, dweight, dbias);
                bwd_vector_inputs(taps, gradients, weight, sums);
            });

            const auto of_final = [&](int32_t token) {  // the final state's part of an input's gradient
                const int32_t column = token - seqlen + kPast;
                if (column < 0 || column >= kPast || !final_state_counts(states.in, b, token)) return 0.0f;
                return to_float(at<const T>(states.dfinal_states, b, d, column));
            };
            if (states.dfinal_states.data && t + kTokens > seqlen - kPast && t < seqlen) {
#pragma unroll
                for (int j = 0; j < kTokens / 2; ++j)
                    sums[j] = add(sums[j], make_pair(of_final(t + j), of_final(t + j + kTokens / 2)));
            }
            if (states.dinitial_states.data && t == 0 && walk.has_channel) {
#pragma unroll
                for (int column = 0; column < kPast; ++column) {
                    float sum = states.dfinal_states.data ? of_final(column - kPast) : 0.0f;
#pragma unroll
                    for (int to = 0; to <= column; ++to)
                        if (bits.sees(to, column - to)) sum += weight[column - to] * gradients[to];
                    at<T>(states.dinitial_states, b, d, column) = from_float<T>(sum);
                }
            }
            if (t < seqlen && walk.has_channel) {
                const Vector words = vector_of_halves<T, kTokens>(sums);
                if (whole && in_vectors(dx + t))
                    *reinterpret_cast<Vector*>(dx + t) = words;
                else
                    store_part<T, kTokens>(dx, t, seqlen, words);
            }
        }
        if (--step < 0) {
            step = static_cast<int32_t>(plan.steps_of_row) - 1;
            --b;
        }
    }
    bwd_vector_store_sums(dweight, dbias, bwd_vector_scale(p.in), bwd_vector_partials(p, piece, kWidth, d), p.in.dim,
                          walk.has_channel);
}

void launch_bwd_ragged(const CausalConv1dBwdParams& p, const BwdVectorPlan& plan, dim3 grid, dim3 block, hipStream_t stream) {
    with_instance<kMaxFastBwdWidth>(p.in.dtype, p.in.width, [&](auto type, auto width) {
        const bool early = p.taps != nullptr;
        HIPCONV_LAUNCH(early, (causal_conv1d_bwd_ragged<decltype(type), decltype(width)::value>), grid, block, 0, stream, p,
                       plan);
        check_launch("causal_conv1d_bwd");
    });
}

}  // namespace hipconv
