// This kernel is the causal conv1d backward, channel-first (vector.cu), of rows that begin and end on 16-byte boundaries: each
// row is one sequence or, at width 4, several packed ones.
#include <hip/hip_runtime.h>

#include "../common/launch.h"
#include "launch/check.h"
#include "vector_step.h"
#include "vector_walk.h"

namespace hipconv {

// This was measured on an H200, where many threads are worth more than registers. AMD's compiler is asked for five waves a
// SIMD.
constexpr int bwd_whole_blocks(bool packed) {
    if (!kHasPredicates) return packed ? 8 : 10;
    return packed ? 7 : 8;
}

template <typename T>
using BwdVector = Words<T, kBwdTokens<T>>;

// Returns a vector of tokens and those before it as floats, oldest first.
template <typename T, int kWidth, typename Past = TokensBefore<T, kWidth>, typename Vector = BwdVector<T>>
HIPCONV_INLINE void bwd_whole_unpack(const typename Past::Part (&before)[Past::kParts], Vector current,
                                     float (&window)[Past::kTokens + kBwdTokens<T>]) {
#pragma unroll
    for (int k = 0; k < Past::kParts; ++k) unpack_elements<T, Past::kPartTokens>(before[k], window, k * Past::kPartTokens);
    unpack_elements<T, kBwdTokens<T>>(current, window, Past::kTokens);
}

// With kPacked, it serves rows of packed sequences. (The steps stand in one function: as functions of their own, on the same
// values, they cost compilers other registers.)
template <typename T, int kWidth, bool kPacked>
__global__ void HIPCONV_LAUNCH_BOUNDS(kBwdVectorThreads, bwd_whole_blocks(kPacked))
    causal_conv1d_bwd_whole(CausalConv1dBwdParams p, BwdVectorPlan plan) {
    constexpr int kSize = static_cast<int>(sizeof(T));
    constexpr int kTokens = kBwdTokens<T>;
    constexpr int kPast = kWidth - 1;
    using Vector = Words<T, kTokens>;
    using Past = TokensBefore<T, kWidth>;
    using Part = typename Past::Part;
    using Bits = TapsOfBits<kTokens, kWidth>;
    constexpr int kOldest = Past::kTokens - kPast;

    let_next_kernel_begin();
    wait_for_kernel_before();
    const Piece piece = piece_of_block(plan.taper, blockIdx.y * gridDim.x + blockIdx.x);
    if (piece.count == 0) return;
    const BwdVectorWalk walk = bwd_vector_walk(p.in, plan, piece);
    const int32_t lane_token = static_cast<int32_t>(threadIdx.x) * kTokens;
    int32_t token = walk.step * plan.stretch;  // that the step to load next begins with
    const auto lane_of = [&](const Sequences& s, int64_t batch_bytes) {
        return static_cast<char*>(s.data) + walk.d * s.dim_stride * kSize + walk.b * batch_bytes +
               static_cast<int64_t>(token + lane_token) * kSize;
    };
    const char* x = lane_of(p.in.x, plan.x_batch);  // what to load next
    const char* dout = lane_of(p.dout, plan.dout_batch);
    char* dx = lane_of(p.dx, plan.dx_batch);
    const uint8_t* bits_of_token = kPacked ? bwd_taps_of(p, walk.b, token + lane_token) : nullptr;
    const uint32_t* bits_of_lane = reinterpret_cast<const uint32_t*>(bits_of_token);

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

    // These are the first tokens after the walk, for all lanes alike: their gradients are those of a lane after the last.
    Vector x_after{}, dout_after{};
    Part before_after[Past::kParts];
    Bits bits_after{};
    if (!walk.ends_row) {
        const int32_t ahead = plan.stretch - lane_token;
        x_after = *reinterpret_cast<const Vector*>(x + ahead * kSize);
        dout_after = *reinterpret_cast<const Vector*>(dout + ahead * kSize);
#pragma unroll
        for (int k = 0; k < Past::kParts; ++k)
            before_after[k] = *reinterpret_cast<const Part*>(x + (ahead + k * Past::kPartTokens - Past::kTokens) * kSize);
        if (kPacked) bits_after = taps_from_words<kTokens, kWidth>(bits_of_lane + ahead / 4);
    }
    int32_t to_token = token;
    int to_end = walk.has_channel ? p.in.seqlen : 0, next_lane = walk.next_lane, to_load = piece.count - 1;
    in_a_register(to_end);
    in_a_register(next_lane);
#pragma unroll
    for (int k = 0; k < Past::kParts; ++k) before_next[k] = Part{};
    fetch();

    float weight[kWidth], bias;
    bwd_vector_parameters(p.in, walk.d, weight, bias);
    float carried[kPast];
#pragma unroll
    for (int k = 0; k < kPast; ++k) carried[k] = 0.0f;
    if (!walk.ends_row) {
        float window[Past::kTokens + kTokens], gradients[kTokens];
        bwd_whole_unpack<T, kWidth>(before_after, x_after, window);
        unpack_elements<T, kTokens>(dout_after, gradients, 0);
#pragma unroll
        for (int k = 0; k < kPast; ++k) {
            float sum = bias;
#pragma unroll
            for (int i = 0; i < kWidth; ++i)
                if (!kPacked || bits_after.sees(k, i)) sum += weight[i] * window[kOldest + k + i];
            carried[k] = p.in.use_silu ? gradients[k] * low(scaled_silu_derivative(twice(sum))) : gradients[k];
            if (kPacked && !bits_after.has(k)) carried[k] = 0.0f;
        }
    }

    Pair dweight[kWidth], dbias = twice(0.0f);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) dweight[i] = twice(0.0f);

    int left = piece.count;
    do {
        enter_loop_here();
        // Load: this step's words become floats, the next step's are fetched.
        const bool in_row = lane_token < p.in.seqlen - to_token;
        Bits bits{};
        if (kPacked && in_row) bits = taps_from_words<kTokens, kWidth>(bits_of_lane);
        float window[Past::kTokens + kTokens], gradients[kTokens + kPast];
        bwd_whole_unpack<T, kWidth>(before_next, x_next, window);
        unpack_elements<T, kTokens>(dout_next, gradients, 0);
        // No tap sees the other half of the oldest input's word, and NVIDIA's compiler moves this half elsewhere right behind
        // the load, for which it waits there: 10 % of a copy. So let the other one be used, where nothing ever is.
        if constexpr (kHasPredicates && std::is_same_v<T, f16> && kOldest % 2 == 1) {
            if (plan.steps_of_row == 0) dbias = twice(window[kOldest - 1]);
        }
        if (std::is_same_v<T, bf16>) {  // else NVIDIA's compiler keeps the words, and unpacks them for each use
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
        const TapsOfWhole<kTokens, kWidth> ends{to_token + lane_token == 0, to_token + lane_token + kTokens >= p.in.seqlen};
        Pair sums[kTokens / 2];
        const bool is_cut = kPacked && __ballot(in_row && !bits.are_plain(ends.begins_row, ends.ends_row));
        const auto derive = [&](auto taps) {
            if (p.in.use_silu) bwd_vector_gradients<kTokens, kWidth, kOldest>(taps, window, gradients, weight, bias);
        };
        if (is_cut) {
            derive(bits);
            bwd_vector_leave_out<kTokens>(bits, gradients);
        } else if (kHasPredicates) {
            derive(ends);
        } else {
            derive(AllTaps{});  // where a weight is not finite, no gradient of a row this long is
        }
        bwd_vector_share<kTokens>(gradients, carried, next_lane);
        const auto use = [&](auto taps) {
            bwd_vector_add<kTokens, kOldest>(taps, window, gradients, dweight, dbias);
            bwd_vector_inputs(taps, gradients, weight, sums);
        };
        if (is_cut)
            use(bits);
        else if (kHasPredicates || to_token == 0 || to_token >= p.in.seqlen - plan.stretch)
            use(ends);
        else
            use(AllTaps{});
        // Store, and go on to the step before.
        if (lane_token < to_end - to_token) *reinterpret_cast<Vector*>(dx) = vector_of_halves<T, kTokens>(sums);
        dx -= plan.back;
        if (kPacked) bits_of_lane -= plan.stretch / 4;
        to_token -= plan.stretch;
        if (to_token < 0) {
            to_token = plan.last_stretch;
            dx += plan.dx_batch_back;
            if (kPacked) bits_of_lane += plan.bits_batch_back / 4;
        }
    } while (--left > 0);
    bwd_vector_store_sums(dweight, dbias, bwd_vector_scale(p.in), bwd_vector_partials(p, piece, kWidth, walk.d), p.in.dim,
                          walk.has_channel);
}

void launch_bwd_whole(const CausalConv1dBwdParams& p, const BwdVectorPlan& plan, dim3 grid, dim3 block, hipStream_t stream) {
    with_instance<kMaxFastBwdWidth>(p.in.dtype, p.in.width, [&](auto type, auto width) {
        using T = decltype(type);
        const bool early = p.taps != nullptr;
        if (p.taps)
            HIPCONV_LAUNCH(early, (causal_conv1d_bwd_whole<T, kPackedWidth, true>), grid, block, 0, stream, p, plan);
        else
            HIPCONV_LAUNCH(early, (causal_conv1d_bwd_whole<T, decltype(width)::value, false>), grid, block, 0, stream, p, plan);
        check_launch("causal_conv1d_bwd");
    });
}

}  // namespace hipconv
