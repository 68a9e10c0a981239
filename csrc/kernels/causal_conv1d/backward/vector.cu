// Causal conv1d backward, channel-first ("vector"): neighbouring tokens are neighbours in memory.
//
// A thread makes the dx of a vector of tokens of one channel: from their x and dout and the inputs before them it computes their
// gradients g, and it needs the kWidth - 1 gradients after them, which the next lane has. Lanes of a row stand side by side and
// walk from the end of the row to its begin, so that the last lane gets what the first one had a step before: one shuffle a
// gradient, no LDS, no barrier. Where a walk does not start at the end of its row, the gradients that its first step needs are
// computed before it.
//
// A walk goes on through several sequences of its channel, if rows are short, and leaves its dweight and dbias in the workspace.
//
// `whole`: rows that begin and end on 16-byte boundaries, each one sequence or, at width 4, several packed ones. `ragged`: any,
// with states too; vectors lie on the boundaries of x, and what is not aligned or not in the row is moved element by element.
//
// Bytes: x and dout read once from memory (and up to half of x once more from cache), dx written once.
#include <hip/hip_runtime.h>

#include "causal_conv1d/states_formula.h"
#include "kernels.h"
#include "launch/check.h"
#include "launch/taper.h"
#include "parts.h"
#include "sums.h"

namespace hipconv {

constexpr int kBwdVectorThreads = 128;
constexpr int kBwdVectorLanes = 32;          // the most lanes of a row: a shuffle reaches no further on any card
constexpr int kBwdRaggedLanes = 8;           // the same of ragged rows, whose ends cost most: more steps have none
constexpr uint32_t kBwdVectorLog2Steps = 5;  // of the longest walk
constexpr int kPackedWidth = 4;              // whole rows of packed sequences have a kernel of their own at this width only

template <typename T>
constexpr int kBwdTokens = 16 / static_cast<int>(sizeof(T));  // of a thread, at a time

// How a launch divides the work. A block is blockDim.x lanes by blockDim.y channels. The items of a channel are the steps of its
// sequences, one sequence after another; a thread does a piece of them, from the last to the first.
struct BwdVectorPlan {
    Taper taper;  // rows are groups of blockDim.y channels
    uint32_t steps_of_row;
    int32_t stretch, last_stretch;          // tokens of a step, and those of a row before its last step
    int64_t back;                           // bytes of a step
    int64_t x_batch, dout_batch, dx_batch;  // bytes from sequence to sequence
    // from a step before a row to the last one of the sequence before
    int64_t x_batch_back, dout_batch_back, dx_batch_back, bits_batch_back;
    // ragged rows: vectors lie on x's 16-byte boundaries; if not, they count from the row's start
    bool on_boundaries;
};

// The walk of a thread: its channel, and the step that it begins with.
struct BwdVectorWalk {
    int64_t d;
    bool has_channel;  // lanes that have none do the last one's work again: shuffles are for whole waves
    int32_t b, step;
    bool ends_row;  // nothing comes after that step
    int next_lane;  // of the wave: the row's next one, and its first behind the last
};

HIPCONV_INLINE BwdVectorWalk bwd_vector_walk(const CausalConv1dInputs& in, const BwdVectorPlan& plan, const Piece& piece) {
    BwdVectorWalk walk;
    walk.d = static_cast<int64_t>(piece.row) * blockDim.y + threadIdx.y;
    walk.has_channel = walk.d < in.dim;
    if (!walk.has_channel) walk.d = in.dim - 1;
    const uint32_t last = piece.first + static_cast<uint32_t>(piece.count) - 1;
    const uint32_t b = last / plan.steps_of_row;
    walk.b = static_cast<int32_t>(b);
    walk.step = static_cast<int32_t>(last - b * plan.steps_of_row);
    walk.ends_row = walk.step + 1 == static_cast<int32_t>(plan.steps_of_row);
    const uint32_t lane = (threadIdx.y * blockDim.x + threadIdx.x) % kWaveSize;
    walk.next_lane = static_cast<int>((lane & ~(blockDim.x - 1)) | ((lane + 1) & (blockDim.x - 1)));
    return walk;
}

// ---- the arithmetic of a step; pairs hold tokens half a vector apart ----------------------------------------------------------
//
// With SiLU, weights and bias are kept times -log2(e), and gradients times the inverse of that: the exponent that SiLU needs is
// then the sum itself, dx is what it would be without, and dweight and dbias are put right once, at the end.

// Elements of vectors as floats, from `to` on.
template <typename T, int kEach, typename Vector, int kCount>
HIPCONV_INLINE void unpack_elements(Vector words, float (&values)[kCount], int to) {
#pragma unroll
    for (int j = 0; j < kEach / 2; ++j) {
        const Pair both = pair_of<T>(words, j);
        values[to + 2 * j] = low(both);
        values[to + 2 * j + 1] = high(both);
    }
}

// Which taps of a thread's tokens there are. Those that reach before the row or after it, or into another sequence, are left out,
// not multiplied by zeros: 0 * inf is NaN. `sees`: whether tap i of token e, one of the thread's, sees an input. `has`: whether
// token e is in the row and no padding. `feeds`: whether token e + k sees token e.
struct AllTaps {
    HIPCONV_INLINE bool sees(int, int) const { return true; }
    HIPCONV_INLINE bool has(int) const { return true; }
    HIPCONV_INLINE bool feeds(int, int) const { return true; }
};

// Of rows made of whole threads' tokens. (Lanes behind the row have zeros for x and dout.)
template <int kTokens, int kWidth>
struct TapsOfWhole {
    bool begins_row, ends_row;
    HIPCONV_INLINE bool sees(int e, int i) const { return !begins_row || e + i >= kWidth - 1; }
    HIPCONV_INLINE bool has(int) const { return true; }
    HIPCONV_INLINE bool feeds(int e, int k) const { return !ends_row || e + k < kTokens; }
};

// A byte for each token, with a bit for each of its taps: those of the first four tokens of a row without a state.
template <int kWidth>
constexpr uint32_t taps_of_first() {
    uint32_t word = 0;
    for (int e = 0; e < 4; ++e)
        for (int i = 0; i < kWidth; ++i)
            if (e + i >= kWidth - 1) word |= 1u << (e * 8 + i);
    return word;
}
template <int kWidth>
constexpr uint32_t kTapsOfFirst = taps_of_first<kWidth>();

// A byte for each of a thread's tokens and of those after them, with a bit for each tap.
template <int kTokens, int kWidth>
struct TapsOfBits {
    static constexpr int kWords = kTokens / 4 + 1;
    static constexpr uint32_t kAll = 0x01010101u * ((1u << kWidth) - 1);
    static constexpr uint32_t kAfter = (1u << 8 * (kWidth - 1)) - 1;  // of the last word
    uint32_t words[kWords];

    HIPCONV_INLINE bool sees(int e, int i) const { return words[e / 4] >> (e % 4 * 8 + i) & 1; }
    HIPCONV_INLINE bool has(int e) const { return sees(e, kWidth - 1); }
    HIPCONV_INLINE bool feeds(int e, int k) const { return sees(e + k, kWidth - 1 - k); }

    // Whether they are what a row has that is one sequence without a state.
    HIPCONV_INLINE bool are_plain(bool begins_row, bool ends_row) const {
        bool plain = words[0] == (begins_row ? kTapsOfFirst<kWidth> : kAll);
#pragma unroll
        for (int k = 1; k < kWords - 1; ++k) plain = plain && words[k] == kAll;
        return plain && (words[kWords - 1] & kAfter) == (ends_row ? 0u : kAll & kAfter);
    }
};

// Four bytes of two words, from byte `first` on.
HIPCONV_INLINE uint32_t bytes_of_two(uint32_t low, uint32_t high, uint32_t first) {
    return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> (first * 8));
}

// Of tokens t, t + 1, ... of a row that is one sequence.
template <int kTokens, int kWidth>
HIPCONV_INLINE TapsOfBits<kTokens, kWidth> taps_of_row(int32_t t, int32_t seqlen, bool has_state) {
    using Taps = TapsOfBits<kTokens, kWidth>;
    const auto word_at = [&](int32_t place) {
        return place < 0 ? 0 : place == 0 && !has_state ? kTapsOfFirst<kWidth> : Taps::kAll;
    };
    Taps taps;
#pragma unroll
    for (int k = 0; k < Taps::kWords; ++k) {
        const int32_t from = t + 4 * k, place = from >> 2, left = seqlen - from;
        const uint32_t word = bytes_of_two(word_at(place), word_at(place + 1), static_cast<uint32_t>(from) & 3);
        taps.words[k] = left >= 4 ? word : left <= 0 ? 0 : word & ((1u << left * 8) - 1);
    }
    return taps;
}

// The same of a row with sequence ids, from memory: words, or the words around bytes that are not aligned.
template <int kTokens, int kWidth>
HIPCONV_INLINE TapsOfBits<kTokens, kWidth> taps_from_words(const uint32_t* words) {
    TapsOfBits<kTokens, kWidth> taps;
#pragma unroll
    for (int k = 0; k < taps.kWords; ++k) taps.words[k] = words[k];
    return taps;
}

template <int kTokens, int kWidth>
HIPCONV_INLINE TapsOfBits<kTokens, kWidth> taps_from_bytes(const uint8_t* bytes) {
    const uint32_t before = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(bytes) % 4);
    const uint32_t* words = reinterpret_cast<const uint32_t*>(bytes - before);
    TapsOfBits<kTokens, kWidth> taps;
    uint32_t word = words[0];
#pragma unroll
    for (int k = 0; k < taps.kWords; ++k) {
        const uint32_t next = words[k + 1];
        taps.words[k] = bytes_of_two(word, next, before);
        word = next;
    }
    return taps;
}

// Gradients of what is in no row, or padding, are none.
template <int kTokens, int kCount, typename Taps>
HIPCONV_INLINE void bwd_vector_leave_out(const Taps& taps, float (&gradients)[kCount]) {
#pragma unroll
    for (int e = 0; e < kTokens; ++e) gradients[e] = taps.has(e) ? gradients[e] : 0.0f;
}

// The halves of `both` where there is something new, else those of `old`.
HIPCONV_INLINE Pair choose(bool has_low, bool has_high, Pair both, Pair old) {
    return make_pair(has_low ? low(both) : low(old), has_high ? high(both) : high(old));
}

// a * b + c in those halves.
HIPCONV_INLINE Pair multiply_add_where(bool has_low, bool has_high, Pair a, Pair b, Pair c) {
    if constexpr (!kHasPredicates) return choose(has_low, has_high, multiply_add(a, b, c), c);
    float first = low(c), second = high(c);
    if (has_low) first = low(a) * low(b) + first;
    if (has_high) second = high(a) * high(b) + second;
    return make_pair(first, second);
}

// Adds a * b in those halves to a sum of which only both halves together count: where pairs are two registers, one is enough.
HIPCONV_INLINE void accumulate_where(bool has_low, bool has_high, Pair a, Pair b, Pair& sum) {
    if constexpr (!kHasPredicates) {
        sum = choose(has_low, has_high, multiply_add(a, b, sum), sum);
    } else {
        float total = low(sum);
        if (has_low) total = low(a) * low(b) + total;
        if (has_high) total = high(a) * high(b) + total;
        sum = make_pair(total, 0.0f);
    }
}

HIPCONV_INLINE void accumulate(Pair a, Pair& sum) {
    if constexpr (!kHasPredicates)
        sum = add(sum, a);
    else
        sum = make_pair(low(sum) + low(a) + high(a), 0.0f);
}

constexpr float kLn2 = 0.693147180559945309f;

// The derivative of SiLU, sigma * (1 + v * (1 - sigma)), times -ln(2), where `scaled` is -log2(e) * v.
HIPCONV_INLINE Pair scaled_silu_derivative(Pair scaled) {
    const Pair denominator = add(twice(1.0f), make_pair(approx_exp2(low(scaled)), approx_exp2(high(scaled))));
    const Pair sigma = make_pair(approx_rcp(low(denominator)), approx_rcp(high(denominator)));
    const Pair rest = multiply_add(sigma, twice(-kLn2 * kLn2), twice(kLn2 * kLn2));
    return multiply(sigma, multiply_add(scaled, rest, twice(-kLn2)));
}

// The gradients of the sums: of dout, in place. `window` begins with `oldest`, what the first token's first tap sees.
template <int kTokens, int kWidth, int kOldest, int kWindow, int kCount, typename Taps>
HIPCONV_INLINE void bwd_vector_gradients(const Taps& taps, const float (&window)[kWindow], float (&gradients)[kCount],
                                         const float (&weight)[kWidth], float bias) {
#pragma unroll
    for (int j = 0; j < kTokens / 2; ++j) {
        Pair sum = twice(bias);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
            const int from = kOldest + j + i;
            const Pair inputs = make_pair(window[from], window[from + kTokens / 2]);
            sum = multiply_add_where(taps.sees(j, i), taps.sees(j + kTokens / 2, i), twice(weight[i]), inputs, sum);
        }
        const Pair g = multiply(make_pair(gradients[j], gradients[j + kTokens / 2]), scaled_silu_derivative(sum));
        gradients[j] = low(g);
        gradients[j + kTokens / 2] = high(g);
    }
}

// Behind them those of the next lane. `carried` are the first lane's of the step before, and become those of this step.
template <int kTokens, int kPast>
HIPCONV_INLINE void bwd_vector_share(float (&gradients)[kTokens + kPast], float (&carried)[kPast], int next_lane) {
#pragma unroll
    for (int k = 0; k < kPast; ++k) {
        gradients[kTokens + k] = __shfl(threadIdx.x == 0 ? carried[k] : gradients[k], next_lane);
        carried[k] = gradients[k];
    }
}

template <int kTokens, int kOldest, int kWindow, int kCount, int kWidth, typename Taps>
HIPCONV_INLINE void bwd_vector_add(const Taps& taps, const float (&window)[kWindow], const float (&gradients)[kCount],
                                   Pair (&dweight)[kWidth], Pair& dbias) {
#pragma unroll
    for (int j = 0; j < kTokens / 2; ++j) {
        const Pair g = make_pair(gradients[j], gradients[j + kTokens / 2]);
        accumulate(g, dbias);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
            const int from = kOldest + j + i;
            const Pair inputs = make_pair(window[from], window[from + kTokens / 2]);
            accumulate_where(taps.sees(j, i), taps.sees(j + kTokens / 2, i), g, inputs, dweight[i]);
        }
    }
}

// dx, two tokens at a time.
template <int kHalf, int kCount, int kWidth, typename Taps>
HIPCONV_INLINE void bwd_vector_inputs(const Taps& taps, const float (&gradients)[kCount], const float (&weight)[kWidth],
                                      Pair (&sums)[kHalf]) {
#pragma unroll
    for (int j = 0; j < kHalf; ++j) {
        sums[j] = multiply(twice(weight[kWidth - 1]), make_pair(gradients[j], gradients[j + kHalf]));
#pragma unroll
        for (int k = 1; k < kWidth; ++k) {
            const Pair tap = twice(weight[kWidth - 1 - k]), more = make_pair(gradients[j + k], gradients[j + kHalf + k]);
            sums[j] = multiply_add_where(taps.feeds(j, k), taps.feeds(j + kHalf, k), tap, more, sums[j]);
        }
    }
}

HIPCONV_INLINE float bwd_vector_scale(const CausalConv1dInputs& in) { return in.use_silu ? -kLog2e : 1.0f; }

template <int kWidth>
HIPCONV_INLINE void bwd_vector_parameters(const CausalConv1dInputs& in, int64_t d, float (&weight)[kWidth], float& bias) {
    const float scale = bwd_vector_scale(in);
    with_dtype(in.weight_dtype, [&](auto type) {
        using P = decltype(type);
#pragma unroll
        for (int i = 0; i < kWidth; ++i)
            weight[i] = scale * parameter<P>(in.weight, d * in.weight_dim_stride + i * in.weight_width_stride);
    });
    bias = in.bias ? scale * load_parameter(in.bias, d * in.bias_stride, in.bias_dtype) : 0.0f;
}

// dweight and dbias of all lanes of a channel, into a row of the workspace.
template <int kWidth>
HIPCONV_INLINE void bwd_vector_store_sums(const Pair (&dweight)[kWidth], Pair dbias, float scale, float* partials, int64_t dim,
                                          bool has_channel) {
    float sums[kWidth + 1];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums[i] = low(dweight[i]) + high(dweight[i]);
    sums[kWidth] = low(dbias) + high(dbias);
    const int lanes = static_cast<int>(blockDim.x);
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
#pragma unroll
        for (int i = 0; i <= kWidth; ++i) sums[i] += __shfl_xor(sums[i], distance, lanes);
    }
    if (threadIdx.x == 0 && has_channel) {
#pragma unroll
        for (int i = 0; i <= kWidth; ++i) partials[i * dim] = scale * sums[i];
    }
}

HIPCONV_INLINE float* bwd_vector_partials(const CausalConv1dBwdParams& p, const Piece& piece, int width, int64_t d) {
    return static_cast<float*>(p.partials) + static_cast<int64_t>(piece.number) * (width + 1) * p.in.dim + d;
}

// ---- whole rows ---------------------------------------------------------------------------------------------------------------

// Measured on an H200, where many threads are worth more than registers. AMD's compiler is asked for five waves a SIMD.
constexpr int bwd_whole_blocks(bool packed) {
    if (!kHasPredicates) return packed ? 8 : 10;
    return packed ? 7 : 8;
}

// kPacked: rows of packed sequences.
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
    const auto unpack = [&](const Part (&before)[Past::kParts], Vector current, float (&window)[Past::kTokens + kTokens]) {
#pragma unroll
        for (int k = 0; k < Past::kParts; ++k) unpack_elements<T, Past::kPartTokens>(before[k], window, k * Past::kPartTokens);
        unpack_elements<T, kTokens>(current, window, Past::kTokens);
    };

    // The first tokens after the walk, for all lanes alike: their gradients are those of a lane after the last.
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
        unpack(before_after, x_after, window);
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
        const bool in_row = lane_token < p.in.seqlen - to_token;
        Bits bits{};
        if (kPacked && in_row) bits = taps_from_words<kTokens, kWidth>(bits_of_lane);
        float window[Past::kTokens + kTokens], gradients[kTokens + kPast];
        unpack(before_next, x_next, window);
        unpack_elements<T, kTokens>(dout_next, gradients, 0);
        // No tap sees the other half of the oldest input's word, and NVIDIA's compiler moves this half elsewhere right behind the
        // load, for which it waits there: 10 % of a copy. So let the other one be used, where nothing ever is.
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

// ---- any rows -----------------------------------------------------------------------------------------------------------------

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
        // The token that this lane's vectors begin with; negative where they begin before the row.
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

            const auto of_final = [&](int32_t token) {  // what the final state's gradient adds to that of an input
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

namespace {

// Whether every row of x, dout and dx begins and ends on a 16-byte boundary, without states.
bool bwd_rows_are_whole(const CausalConv1dBwdParams& p) {
    const int tokens = 16 / element_bytes(p.in.dtype);
    const auto aligned = [&](const Sequences& s) {
        return reinterpret_cast<uintptr_t>(s.data) % 16 == 0 && s.dim_stride % tokens == 0 && s.batch_stride % tokens == 0;
    };
    if (bwd_has_states(p) || (p.in.seq_idx.data && p.in.width != kPackedWidth)) return false;
    return p.in.seqlen % tokens == 0 && aligned(p.in.x) && aligned(p.dout) && aligned(p.dx);
}

struct BwdVectorShape {
    unsigned lanes, rows;
    int64_t steps_of_row, items, channel_groups;
    bool on_boundaries;
};

BwdVectorShape bwd_vector_shape(const CausalConv1dBwdParams& p) {
    const int each = 16 / element_bytes(p.in.dtype);
    BwdVectorShape s{};
    s.on_boundaries = p.in.seqlen > each && !bwd_rows_are_whole(p) && !bwd_has_states(p);
    const int64_t tokens = static_cast<int64_t>(p.in.seqlen) + (s.on_boundaries ? each - 1 : 0);
    const int64_t vectors = (tokens + each - 1) / each;
    s.lanes = power_of_two_up_to(vectors, bwd_rows_are_whole(p) ? kBwdVectorLanes : kBwdRaggedLanes);
    s.rows = kBwdVectorThreads / s.lanes;
    s.steps_of_row = (vectors + s.lanes - 1) / s.lanes;
    s.items = s.steps_of_row * p.in.batch;
    s.channel_groups = (static_cast<int64_t>(p.in.dim) + s.rows - 1) / s.rows;
    return s;
}

Taper bwd_vector_taper(const BwdVectorShape& s) {
    // Long walks need fewer partial sums, but cards need enough threads.
    uint32_t log2_steps = kBwdVectorLog2Steps;
    const double threads = static_cast<double>(s.items) * s.channel_groups * kBwdVectorThreads;
    while (log2_steps > 0 && (threads / (1u << log2_steps) < kEnoughThreads || s.items <= 1 << (log2_steps - 1))) --log2_steps;
    return tapered(static_cast<uint32_t>(s.items), s.channel_groups, log2_steps);
}

template <typename T, int kWidth>
void launch(const CausalConv1dBwdParams& p, hipStream_t stream) {
    const BwdVectorShape shape = bwd_vector_shape(p);
    BwdVectorPlan plan{};
    plan.taper = bwd_vector_taper(shape);
    plan.steps_of_row = static_cast<uint32_t>(shape.steps_of_row);
    const auto bytes = [](int64_t elements) { return elements * static_cast<int64_t>(sizeof(T)); };
    plan.stretch = static_cast<int32_t>(shape.lanes) * kBwdTokens<T>;
    plan.last_stretch = (static_cast<int32_t>(shape.steps_of_row) - 1) * plan.stretch;
    plan.back = bytes(plan.stretch);
    const int64_t row = shape.steps_of_row * plan.back;
    plan.x_batch = bytes(p.in.x.batch_stride);
    plan.dout_batch = bytes(p.dout.batch_stride);
    plan.dx_batch = bytes(p.dx.batch_stride);
    plan.x_batch_back = row - plan.x_batch;
    plan.dout_batch_back = row - plan.dout_batch;
    plan.dx_batch_back = row - plan.dx_batch;
    plan.bits_batch_back = shape.steps_of_row * plan.stretch - bwd_taps_pitch(p.in.seqlen);
    plan.on_boundaries = shape.on_boundaries;
    const dim3 block(shape.lanes, shape.rows, 1);
    const unsigned blocks = plan.taper.blocks;
    const dim3 grid = blocks <= kGridLimit ? dim3(blocks, 1, 1) : grid_of(kGridLimit, (blocks + kGridLimit - 1) / kGridLimit);
    const bool early = p.taps != nullptr;
    if (!bwd_rows_are_whole(p))
        HIPCONV_LAUNCH(early, (causal_conv1d_bwd_ragged<T, kWidth>), grid, block, 0, stream, p, plan);
    else if (p.taps)
        HIPCONV_LAUNCH(early, (causal_conv1d_bwd_whole<T, kPackedWidth, true>), grid, block, 0, stream, p, plan);
    else
        HIPCONV_LAUNCH(early, (causal_conv1d_bwd_whole<T, kWidth, false>), grid, block, 0, stream, p, plan);
    check_launch("causal_conv1d_bwd");
}

BwdPartials partials_of(const CausalConv1dBwdParams& p) {
    const BwdVectorShape shape = bwd_vector_shape(p);
    const Taper taper = bwd_vector_taper(shape);
    BwdPartials partials{};
    for (int zone = 0; zone < kTaperZones; ++zone) {
        partials.first_channel[zone] = static_cast<int64_t>(taper.first_row[zone]) * shape.rows;
        partials.rows[zone] = pieces_of_row(taper, zone);
    }
    return partials;
}

}  // namespace

const char* causal_conv1d_bwd_vector_refusal(const CausalConv1dBwdParams& p) {
    const char* served = "channel-first x, dout and dx (stride 1 along seqlen) of at least one token, widths 2 to 4";
    if (p.in.width < 2 || p.in.width > kMaxFastBwdWidth || p.in.seqlen < 1 || p.in.seqlen > INT32_MAX - 4096) return served;
    if (p.in.x.seqlen_stride != 1 || p.dout.seqlen_stride != 1 || p.dx.seqlen_stride != 1) return served;
    const BwdVectorShape shape = bwd_vector_shape(p);
    return static_cast<double>(shape.items) * shape.channel_groups < kOffsetLimit ? nullptr : served;  // counted in 32 bits
}

int64_t causal_conv1d_bwd_vector_workspace(const CausalConv1dBwdParams& p) {
    return bwd_sums_workspace(p, partials_of(p), /*looks_at_taps=*/true);
}

void causal_conv1d_bwd_vector(const CausalConv1dBwdParams& params, void* workspace, void* stream) {
    const hipStream_t s = static_cast<hipStream_t>(stream);
    const BwdPartials partials = partials_of(params);
    const CausalConv1dBwdParams p = bwd_sums_begin(params, partials, /*looks_at_taps=*/true, workspace, s);
    with_instance<kMaxFastBwdWidth>(p.in.dtype, p.in.width, [&](auto type, auto width) {
        launch<decltype(type), decltype(width)::value>(p, s);
    });
    bwd_sums_add_up(p, partials, s);
}

}  // namespace hipconv
