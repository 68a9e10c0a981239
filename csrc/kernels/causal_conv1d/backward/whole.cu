// The channel-first backward (vector.cu) of rows that begin and end on 16-byte boundaries and are one sequence each, without
// states, at the widths that models have. This kernel does less for a step than the one that serves any rows.
//
// A thread makes the dx of a vector of tokens of one channel: from their x and dout and the inputs before them it computes
// their gradients g, and it needs the kWidth - 1 gradients after them, which the next lane has. Lanes of a row stand side by
// side and walk from the end of the row to its start, so that the last lane gets the gradients that the first lane had a step
// before: this takes one shuffle a gradient, no LDS and no barrier. Where a walk does not start at the end of its row, the
// gradients that its first step needs are computed in a prologue.
#include <hip/hip_runtime.h>

#include "../common/launch.h"
#include "launch/check.h"
#include "vector_walk.h"
#include "whole_step.h"
#include "whole_walk.h"

namespace hipconv {

// (The steps stand in one function: as functions of their own, on the same values, they cost compilers other registers.)
template <typename T, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kBwdVectorThreads, kBwdWholeBlocks)
    causal_conv1d_bwd_whole(CausalConv1dBwdParams p, BwdWholePlan plan) {
    constexpr int kSize = static_cast<int>(sizeof(T));
    constexpr int kTokens = kBwdWholeTokens<T>;
    constexpr int kPast = kWidth - 1;
    using Vector = Words<T, kTokens>;
    using Past = TokensBefore<T, kWidth>;
    using Part = typename Past::Part;
    constexpr int kOldest = Past::kTokens - kPast;

    let_next_kernel_begin();
    wait_for_kernel_before();
    const Piece piece = piece_of_block(plan.taper, blockIdx.y * gridDim.x + blockIdx.x);
    if (piece.count == 0) return;
    const BwdWholeWalk walk = bwd_whole_walk(p.in, plan, piece);
    const int32_t lane_token = static_cast<int32_t>(threadIdx.x) * kTokens;
    int32_t token = walk.step * plan.stretch;  // that the step to load next begins with
    const auto lane_of = [&](const Sequences& s, int64_t batch_bytes) {
        return static_cast<char*>(s.data) + walk.d * s.dim_stride * kSize + walk.b * batch_bytes +
               static_cast<int64_t>(token + lane_token) * kSize;
    };
    const char* x = lane_of(p.in.x, plan.x_batch);  // what to load next
    const char* dout = lane_of(p.dout, plan.dout_batch);
    char* dx = lane_of(p.dx, plan.dx_batch);

    Vector x_next{}, dout_next{};
    Part before_next[Past::kParts];
    const auto load = [&]() {
        x_next = *reinterpret_cast<const Vector*>(x);
        dout_next = *reinterpret_cast<const Vector*>(dout);
#pragma unroll
        for (int k = 0; k < Past::kParts; ++k) {
            if (!kHasPredicates) before_next[k] = Part{};  // else no tap sees what was in it
            if (token + lane_token > 0)
                before_next[k] = *reinterpret_cast<const Part*>(x + (k * Past::kPartTokens - Past::kTokens) * kSize);
        }
    };
    const auto fetch = [&]() {
        if (token <= p.in.seqlen - plan.stretch) {
            load();
        } else {  // with lanes behind the row
            x_next = dout_next = Vector{};
#pragma unroll
            for (int k = 0; k < Past::kParts; ++k) before_next[k] = Part{};
            if (lane_token < p.in.seqlen - token) load();
        }
        x -= plan.back;
        dout -= plan.back;
        token -= plan.stretch;
        if (token < 0) {
            token = plan.last_stretch;
            x += plan.x_batch_back;
            dout += plan.dout_batch_back;
        }
    };

    // The first tokens after the walk, for all lanes alike: their gradients are those of a lane after the last.
    Vector x_after{}, dout_after{};
    Part before_after[Past::kParts];
    if (!walk.ends_row) {
        const int32_t ahead = plan.stretch - lane_token;
        x_after = *reinterpret_cast<const Vector*>(x + ahead * kSize);
        dout_after = *reinterpret_cast<const Vector*>(dout + ahead * kSize);
#pragma unroll
        for (int k = 0; k < Past::kParts; ++k)
            before_after[k] = *reinterpret_cast<const Part*>(x + (ahead + k * Past::kPartTokens - Past::kTokens) * kSize);
    }
    int32_t to_token = token;
    int to_end = walk.has_channel ? p.in.seqlen : 0, next_lane = walk.next_lane, to_load = piece.count - 1;
    in_a_register(to_end);
    in_a_register(next_lane);
#pragma unroll
    for (int k = 0; k < Past::kParts; ++k) before_next[k] = Part{};
    fetch();

    float weight[kWidth], bias;
    bwd_vector_parameters<T>(p.in, walk.d, weight, bias);
    float carried[kPast];
#pragma unroll
    for (int k = 0; k < kPast; ++k) carried[k] = 0.0f;
    if (!walk.ends_row) {
        float window[Past::kTokens + kTokens], gradients[kTokens];
        Past::unpack(before_after, x_after, window);
        bwd_whole_unpack<T, kTokens>(dout_after, gradients, 0);
#pragma unroll
        for (int k = 0; k < kPast; ++k) {
            float sum = bias;
#pragma unroll
            for (int i = 0; i < kWidth; ++i) sum += weight[i] * window[kOldest + k + i];
            carried[k] = p.in.use_silu ? gradients[k] * low(bwd_silu_derivative<T>(twice(sum))) : gradients[k];
        }
    }

    Pair dweight[kWidth], dbias = twice(0.0f);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) dweight[i] = twice(0.0f);

    int left = piece.count;
    do {
        enter_loop_here();
        // Load: this step's words become floats, the next step's are fetched.
        float window[Past::kTokens + kTokens], gradients[kTokens + kPast];
        Past::unpack(before_next, x_next, window);
        bwd_whole_unpack<T, kTokens>(dout_next, gradients, 0);
        // No tap sees the other half of the oldest input's word, and NVIDIA's compiler moves this half elsewhere right behind
        // the load, for which it waits there: 10 % of a copy. So let the other one be used, where nothing ever is.
        if constexpr (kHasPredicates && std::is_same_v<T, f16> && kOldest % 2 == 1) {
            if (plan.steps_of_row == 0) dbias = twice(window[kOldest - 1]);
        }
        if (kHasPredicates && std::is_same_v<T, bf16>) {  // else the compiler keeps the words, and unpacks them for each use
#pragma unroll
            for (int k = 0; k < kPast + kTokens; ++k) in_a_register(window[kOldest + k]);
#pragma unroll
            for (int k = 0; k < kTokens; ++k) in_a_register(gradients[k]);
        }
        if (to_load > 0) {
            fetch();
            if (--to_load > 0 && lane_token < p.in.seqlen - token) {
                prefetch(x);
                prefetch(dout);
            }
        }
        // Compute: the gradients of the sums, those of the next lane, and their part in the gradients of the parameters and of
        // x.
        const BwdWholeTaps<kTokens, kWidth> ends{to_token + lane_token == 0, to_token + lane_token + kTokens >= p.in.seqlen};
        Pair sums[kTokens / 2];
        const auto derive = [&](auto taps) {
            if (p.in.use_silu) bwd_whole_gradients<T, kTokens, kWidth, kOldest>(taps, window, gradients, weight, bias);
        };
        if (kHasPredicates)
            derive(ends);
        else
            derive(BwdAllWholeTaps{});  // where a weight is not finite, no gradient of a row this long is
        bwd_whole_share<kTokens>(gradients, carried, next_lane);
        bwd_whole_add_to_bias<kTokens>(gradients, dbias);
        const auto use = [&](auto taps) {
            bwd_whole_add<kTokens, kOldest>(taps, window, gradients, dweight);
            bwd_whole_inputs(taps, gradients, weight, sums);
        };
        if (kHasPredicates || to_token == 0 || to_token >= p.in.seqlen - plan.stretch)
            use(ends);
        else
            use(BwdAllWholeTaps{});
        // Store, and go on to the step before.
        if (lane_token < to_end - to_token) *reinterpret_cast<Vector*>(dx) = vector_of_halves<T, kTokens>(sums);
        dx -= plan.back;
        to_token -= plan.stretch;
        if (to_token < 0) {
            to_token = plan.last_stretch;
            dx += plan.dx_batch_back;
        }
    } while (--left > 0);
    // Its place is worked out again, and parameters are read again: no register holds them meanwhile.
    const CausalConv1dBwdParams& again = first_parameter_again(p);
    const Piece same = piece_of_block(plan.taper, blockIdx.y * gridDim.x + blockIdx.x);
    const uint32_t d = same.row * blockDim.y + threadIdx.y;
    bwd_vector_store_sums(dweight, dbias, again, same.number, d, d < static_cast<uint32_t>(again.in.dim),
                          bwd_scale<T>(again.in));
}

void launch_bwd_whole(const CausalConv1dBwdParams& p, const BwdWholePlan& plan, dim3 grid, dim3 block, hipStream_t stream) {
    with_instance<kMaxBwdWholeWidth>(p.in.dtype, p.in.width, [&](auto type, auto width) {
        using T = decltype(type);
        HIPCONV_LAUNCH(false, (causal_conv1d_bwd_whole<T, decltype(width)::value>), grid, block, 0, stream, p, plan);
        check_launch("causal_conv1d_bwd");
    });
}

}  // namespace hipconv
