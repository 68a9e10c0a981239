// Causal conv1d backward, channel-first ("vector"): neighbouring tokens are neighbours in memory.
//
// A thread makes the dx of kBwdTokens tokens of one channel: from their x and dout and the inputs before them it computes their
// gradients g, and it needs the kWidth - 1 gradients after them, which the next lane has. Lanes of a row stand side by side and
// walk from the end of the row to its begin, so that the last lane gets what the first one had a step before: one shuffle a
// gradient, no LDS, no barrier. Where a walk does not start at the end of its row, one more step computes the gradients that its
// first one needs.
//
// A walk goes on through several sequences of its channel, if rows are short, and leaves its dweight and dbias in the workspace.
//
// `whole`: rows that begin and end on 16-byte boundaries. `ragged`: any, with states too; vectors lie on the boundaries of x, and
// what is not aligned or not in the row is read and written element by element.
//
// Bytes: x and dout read once from memory (and up to half of x once more from cache), dx written once.
#include <hip/hip_runtime.h>

#include "causal_conv1d_bwd_parts.h"
#include "causal_conv1d_states_formula.h"
#include "check.h"
#include "registers.h"

namespace hipconv {

constexpr int kBwdVectorThreads = 128;
constexpr int kBwdVectorLanes = 32;     // the most lanes of a row: a shuffle reaches no further on any card
constexpr int kBwdVectorMaxSteps = 32;  // of a walk
constexpr int kBwdTokens = 8;           // of a thread, at a time
constexpr int kBwdHalf = kBwdTokens / 2;

// How a launch divides the work. A block is blockDim.x lanes by blockDim.y channels. A row is cut into walks of `steps` steps; a
// thread does one of them in each of `sequences` sequences.
struct BwdVectorPlan {
    int32_t steps_of_row, steps;
    uint32_t walks;                         // of a row
    int32_t sequences;
    int64_t x_batch, dout_batch, dx_batch;  // bytes from sequence to sequence
    // ragged rows: vectors lie on x's 16-byte boundaries; if not, they count from the row's start
    bool on_boundaries;
};

// What a thread does.
struct BwdVectorPlace {
    int64_t d;
    bool has_channel;  // lanes that have none do the last one's work again: shuffles are for whole waves
    int32_t first_sequence, last_sequence;
    int32_t first_step, end_step, start;  // steps count down from `start`, which is end_step where the row goes on after the walk
};

HIPCONV_INLINE BwdVectorPlace bwd_vector_place(const CausalConv1dInputs& in, const BwdVectorPlan& plan, uint32_t group,
                                               uint32_t walk, int32_t d) {
    BwdVectorPlace place;
    place.has_channel = d < in.dim;
    place.d = place.has_channel ? d : in.dim - 1;
    place.first_sequence = static_cast<int32_t>(group) * plan.sequences;
    place.last_sequence = in.batch - place.first_sequence < plan.sequences ? in.batch : place.first_sequence + plan.sequences;
    place.first_step = static_cast<int32_t>(walk) * plan.steps;
    place.end_step = plan.steps_of_row - place.first_step > plan.steps ? place.first_step + plan.steps : plan.steps_of_row;
    place.start = place.end_step < plan.steps_of_row ? place.end_step : place.end_step - 1;
    return place;
}

// ---- the arithmetic of a step; pairs hold tokens half a vector apart ----------------------------------------------------------

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

// Which taps of a thread's tokens there are. Those that reach before the row or after it are left out, not multiplied by zeros:
// 0 * inf is NaN. `sees`: whether tap i of token e, one of kBwdTokens, sees an input. `has`: whether token e is in the row.
struct AllTaps {
    HIPCONV_INLINE bool sees(int, int) const { return true; }
    HIPCONV_INLINE bool has(int) const { return true; }
};

struct TapsOfRagged {
    int32_t t, seqlen, past;  // t is the thread's first token
    bool has_state;
    HIPCONV_INLINE bool sees(int e, int i) const { return has_state || t + e + i >= past; }
    HIPCONV_INLINE bool has(int e) const { return t + e >= 0 && t + e < seqlen; }
};

struct TapsOfWhole {  // the row is made of whole threads' tokens
    int32_t t, seqlen, past;
    HIPCONV_INLINE bool sees(int e, int i) const { return t > 0 || e + i >= past; }
    HIPCONV_INLINE bool has(int e) const { return t + e / kBwdTokens * kBwdTokens < seqlen; }
};

// The halves of `both` where there is something new, else those of `old`.
HIPCONV_INLINE Pair choose(bool has_low, bool has_high, Pair both, Pair old) {
    return make_pair(has_low ? low(both) : low(old), has_high ? high(both) : high(old));
}

// The gradients of the sums: of dout, in place. `window` begins with `oldest`, what the first token's first tap sees.
template <int kWidth, int kOldest, int kWindow, typename Taps>
HIPCONV_INLINE void bwd_vector_gradients(const Taps& taps, const float (&window)[kWindow],
                                         float (&gradients)[kBwdTokens + kWidth - 1], const float (&weight)[kWidth], float bias) {
#pragma unroll
    for (int j = 0; j < kBwdHalf; ++j) {
        Pair sum = twice(bias);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
            const int from = kOldest + j + i;
            const Pair longer = multiply_add(twice(weight[i]), make_pair(window[from], window[from + kBwdHalf]), sum);
            sum = choose(taps.sees(j, i), taps.sees(j + kBwdHalf, i), longer, sum);
        }
        const Pair g = multiply(make_pair(gradients[j], gradients[j + kBwdHalf]), silu_derivative(sum));
        const Pair known = choose(taps.has(j), taps.has(j + kBwdHalf), g, twice(0.0f));
        gradients[j] = low(known);
        gradients[j + kBwdHalf] = high(known);
    }
}

// Behind them those of the next lane. `carried` are the first lane's of the step before, and become those of this step.
template <int kWidth>
HIPCONV_INLINE void bwd_vector_share(float (&gradients)[kBwdTokens + kWidth - 1], float (&carried)[kWidth - 1]) {
    const int lanes = static_cast<int>(blockDim.x), lane = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int k = 0; k < kWidth - 1; ++k) {
        gradients[kBwdTokens + k] = __shfl(lane == 0 ? carried[k] : gradients[k], (lane + 1) & (lanes - 1), lanes);
        carried[k] = gradients[k];
    }
}

template <int kWidth, int kOldest, int kWindow, typename Taps>
HIPCONV_INLINE void bwd_vector_add(const Taps& taps, const float (&window)[kWindow],
                                   const float (&gradients)[kBwdTokens + kWidth - 1], Pair (&dweight)[kWidth], Pair& dbias) {
#pragma unroll
    for (int j = 0; j < kBwdHalf; ++j) {
        const Pair g = make_pair(gradients[j], gradients[j + kBwdHalf]);
        dbias = add(dbias, g);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
            const int from = kOldest + j + i;
            const Pair longer = multiply_add(g, make_pair(window[from], window[from + kBwdHalf]), dweight[i]);
            const auto counts = [&](int e) { return taps.has(e) && taps.sees(e, i); };
            dweight[i] = choose(counts(j), counts(j + kBwdHalf), longer, dweight[i]);
        }
    }
}

// dx, two tokens at a time.
template <int kWidth, typename Taps>
HIPCONV_INLINE void bwd_vector_inputs(const Taps& taps, const float (&gradients)[kBwdTokens + kWidth - 1],
                                      const float (&weight)[kWidth], Pair (&sums)[kBwdHalf]) {
#pragma unroll
    for (int j = 0; j < kBwdHalf; ++j) {
        sums[j] = multiply(twice(weight[kWidth - 1]), make_pair(gradients[j], gradients[j + kBwdHalf]));
#pragma unroll
        for (int k = 1; k < kWidth; ++k) {
            const Pair more = make_pair(gradients[j + k], gradients[j + kBwdHalf + k]);
            const Pair longer = multiply_add(twice(weight[kWidth - 1 - k]), more, sums[j]);
            sums[j] = choose(taps.has(j + k), taps.has(j + kBwdHalf + k), longer, sums[j]);
        }
    }
}

// Vector v of them, rounded.
template <typename T, int kEach>
HIPCONV_INLINE Words<T, kEach> bwd_vector_result(const Pair (&sums)[kBwdHalf], int v) {
    const auto result = [&](int e) { return e < kBwdHalf ? low(sums[e]) : high(sums[e - kBwdHalf]); };
    Words<T, kEach> words{};
#pragma unroll
    for (int j = 0; j < kEach / 2; ++j)
        set_pair<T>(words, j, make_pair(result(v * kEach + 2 * j), result(v * kEach + 2 * j + 1)));
    return words;
}

template <int kWidth>
HIPCONV_INLINE void bwd_vector_parameters(const CausalConv1dInputs& in, int64_t d, float (&weight)[kWidth], float& bias) {
    with_dtype(in.weight_dtype, [&](auto type) {
        using P = decltype(type);
#pragma unroll
        for (int i = 0; i < kWidth; ++i)
            weight[i] = parameter<P>(in.weight, d * in.weight_dim_stride + i * in.weight_width_stride);
    });
    bias = in.bias ? load_parameter(in.bias, d * in.bias_stride, in.bias_dtype) : 0.0f;
}

// dweight and dbias of all lanes of a channel, into a row of the workspace.
template <int kWidth>
HIPCONV_INLINE void bwd_vector_store_sums(const Pair (&dweight)[kWidth], Pair dbias, float* partials, int64_t dim,
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
        for (int i = 0; i <= kWidth; ++i) partials[i * dim] = sums[i];
    }
}

// ---- whole rows ---------------------------------------------------------------------------------------------------------------

// Many threads are worth more than loads far ahead: 8 blocks a multiprocessor reach 91 % of a copy where 6 reach 84 % (H200).
// (f16 takes a few registers more than bf16.)
template <typename T>
constexpr int bwd_whole_blocks(int width) {
    return sizeof(T) == 4 ? 6 : width == 4 && std::is_same_v<T, f16> ? 7 : 8;
}

template <typename T, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kBwdVectorThreads, bwd_whole_blocks<T>(kWidth))
    causal_conv1d_bwd_whole(CausalConv1dBwdParams p, BwdVectorPlan plan) {
    constexpr int kSize = static_cast<int>(sizeof(T));
    constexpr int kEach = 16 / kSize;             // tokens of a vector
    constexpr int kVectors = kBwdTokens / kEach;  // of a thread, at a time
    using Vector = Words<T, kEach>;
    using Past = TokensBefore<T, kWidth>;
    using Part = typename Past::Part;
    constexpr int kOldest = Past::kTokens - (kWidth - 1);

    const uint32_t group = blockIdx.x / plan.walks;
    const uint32_t block = blockIdx.z * gridDim.y + blockIdx.y;
    const BwdVectorPlace place = bwd_vector_place(p.in, plan, group, blockIdx.x - group * plan.walks,
                                                  static_cast<int32_t>(block * blockDim.y + threadIdx.y));
    const int lane = static_cast<int>(threadIdx.x);
    const int32_t stretch = static_cast<int32_t>(blockDim.x) * kBwdTokens;  // tokens of a step
    const int32_t start_token = place.start * stretch + lane * kBwdTokens;  // what this lane starts with
    const bool starts_in_row = start_token < p.in.seqlen;
    const auto lane_of = [&](const Sequences& s, int64_t batch_bytes) {
        return static_cast<char*>(s.data) + place.d * s.dim_stride * kSize + place.first_sequence * batch_bytes +
               static_cast<int64_t>(start_token) * kSize;
    };
    const char* x = lane_of(p.in.x, plan.x_batch);  // what to load next
    const char* dout = lane_of(p.dout, plan.dout_batch);
    char* dx = lane_of(p.dx, plan.dx_batch);
    const int32_t back = stretch * kSize;                                   // bytes of a step
    const int64_t walk_back = int64_t{place.start - place.first_step} * back;  // of all but the first of a walk

    Vector x_next[kVectors], dout_next[kVectors];
    Part before_next[Past::kParts];
    const auto fetch = [&](int32_t step) {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
            x_next[v] = *reinterpret_cast<const Vector*>(x + v * 16);
            dout_next[v] = *reinterpret_cast<const Vector*>(dout + v * 16);
        }
#pragma unroll
        for (int k = 0; k < Past::kParts; ++k) {
            before_next[k] = Part{};
            if (step + lane > 0)
                before_next[k] = *reinterpret_cast<const Part*>(x + (k * Past::kPartTokens - Past::kTokens) * kSize);
        }
    };
    const auto fetch_start = [&]() {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) x_next[v] = dout_next[v] = Vector{};
#pragma unroll
        for (int k = 0; k < Past::kParts; ++k) before_next[k] = Part{};
        // Before the walk, only the first lane has something to do.
        if (starts_in_row && (place.start < place.end_step || lane == 0)) fetch(place.start);
    };
    fetch_start();

    float weight[kWidth], bias;
    bwd_vector_parameters(p.in, place.d, weight, bias);
    Pair dweight[kWidth], dbias = twice(0.0f);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) dweight[i] = twice(0.0f);

    for (int32_t b = place.first_sequence; b < place.last_sequence; ++b) {
        float carried[kWidth - 1];
#pragma unroll
        for (int k = 0; k < kWidth - 1; ++k) carried[k] = 0.0f;
        const auto do_step = [&](auto starts, int32_t step, bool writes) {
            float window[Past::kTokens + kBwdTokens], gradients[kBwdTokens + kWidth - 1];
#pragma unroll
            for (int k = 0; k < Past::kParts; ++k)
                unpack_elements<T, Past::kPartTokens>(before_next[k], window, k * Past::kPartTokens);
#pragma unroll
            for (int v = 0; v < kVectors; ++v) {
                unpack_elements<T, kEach>(x_next[v], window, Past::kTokens + v * kEach);
                unpack_elements<T, kEach>(dout_next[v], gradients, v * kEach);
            }
            if (step > place.first_step) {
                x -= back;
                dout -= back;
                fetch(step - 1);
                if (step - 1 > place.first_step) {  // long rows gain 3 % of a copy from this, others lose 1 (H200)
                    prefetch(x - back);
                    prefetch(dout - back);
                }
            } else if (b + 1 < place.last_sequence) {
                x += walk_back + plan.x_batch;
                dout += walk_back + plan.dout_batch;
                fetch_start();
            }
            // With all taps: where a weight is not finite, no gradient of a row this long is.
            if (p.in.use_silu) bwd_vector_gradients<kWidth, kOldest>(AllTaps{}, window, gradients, weight, bias);
            bwd_vector_share<kWidth>(gradients, carried);
            if (step < place.end_step) {
                Pair sums[kBwdHalf];
                const auto use = [&](auto taps) {
                    bwd_vector_add<kWidth, kOldest>(taps, window, gradients, dweight, dbias);
                    bwd_vector_inputs(taps, gradients, weight, sums);
                };
                if (decltype(starts)::value || step == 0)  // perhaps at an end of the row
                    use(TapsOfWhole{step * stretch + lane * kBwdTokens, p.in.seqlen, kWidth - 1});
                else
                    use(AllTaps{});
#pragma unroll
                for (int v = 0; v < kVectors; ++v)
                    if (writes) *reinterpret_cast<Vector*>(dx + v * 16) = bwd_vector_result<T, kEach>(sums, v);
            }
            dx -= back;
        };
        do_step(std::true_type{}, place.start, starts_in_row && place.has_channel);
        for (int32_t step = place.start - 1; step >= place.first_step; --step)
            do_step(std::false_type{}, step, place.has_channel);
        dx += walk_back + back + plan.dx_batch;
    }
    float* partials = static_cast<float*>(p.partials) + static_cast<int64_t>(blockIdx.x) * (kWidth + 1) * p.in.dim + place.d;
    bwd_vector_store_sums(dweight, dbias, partials, p.in.dim, place.has_channel);
}

// ---- any rows -----------------------------------------------------------------------------------------------------------------

template <typename T, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kBwdVectorThreads, 4)
    causal_conv1d_bwd_ragged(CausalConv1dBwdParams p, BwdVectorPlan plan) {
    constexpr int kSize = static_cast<int>(sizeof(T));
    constexpr int kEach = 16 / kSize;             // tokens of a vector
    constexpr int kVectors = kBwdTokens / kEach;  // of a thread, at a time
    constexpr int kPast = kWidth - 1;
    using Vector = Words<T, kEach>;
    using Past = TokensBefore<T, kWidth>;
    using Part = typename Past::Part;
    constexpr int kOldest = Past::kTokens - kPast;

    const uint32_t group = blockIdx.x / plan.walks;
    const uint32_t block = blockIdx.z * gridDim.y + blockIdx.y;
    const BwdVectorPlace place = bwd_vector_place(p.in, plan, group, blockIdx.x - group * plan.walks,
                                                  static_cast<int32_t>(block * blockDim.y + threadIdx.y));
    const int64_t d = place.d;
    const int32_t seqlen = p.in.seqlen;
    const auto row_of = [&](const Sequences& s, int32_t b) {
        return global<T>(s.data) + d * s.dim_stride + b * s.batch_stride;
    };
    const auto in_vectors = [](const T* from) { return reinterpret_cast<uintptr_t>(from) % 16 == 0; };

    float weight[kWidth], bias;
    bwd_vector_parameters(p.in, d, weight, bias);
    Pair dweight[kWidth], dbias = twice(0.0f);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) dweight[i] = twice(0.0f);

    for (int32_t b = place.first_sequence; b < place.last_sequence; ++b) {
        const CausalConv1dBwdParams& rows = first_argument_again(p);
        const T* x = row_of(rows.in.x, b);
        const T* dout = row_of(rows.dout, b);
        T* dx = row_of(rows.dx, b);
        float carried[kPast];
#pragma unroll
        for (int k = 0; k < kPast; ++k) carried[k] = 0.0f;
        for (int32_t step = place.start; step >= place.first_step; --step) {
            // The token that this lane's vectors begin with; negative where they begin before the row.
            int32_t t = (step * static_cast<int32_t>(blockDim.x) + static_cast<int32_t>(threadIdx.x)) * kBwdTokens;
            if (plan.on_boundaries) t -= static_cast<int32_t>(reinterpret_cast<uintptr_t>(x) % 16 / sizeof(T));
            const bool has_tokens = t < seqlen && (step < place.end_step || threadIdx.x == 0);
            const bool whole = t >= 0 && t + kBwdTokens <= seqlen;

            float window[Past::kTokens + kBwdTokens], gradients[kBwdTokens + kPast];
            const auto load = [&](const T* row, int32_t from, bool aligned) {
                if (!has_tokens) return Vector{};
                return aligned ? *reinterpret_cast<const Vector*>(row + from) : load_part<T, kEach>(row, from, seqlen);
            };
#pragma unroll
            for (int v = 0; v < kVectors; ++v) {
                const int32_t from = t + v * kEach;
                unpack_elements<T, kEach>(load(x, from, whole && in_vectors(x + t)), window, Past::kTokens + v * kEach);
                unpack_elements<T, kEach>(load(dout, from, whole && in_vectors(dout + t)), gradients, v * kEach);
            }
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
            const CausalConv1dBwdParams& states = first_argument_again(p);
            // With states, vectors count from the row's start.
            if (states.in.initial_states.data && t == 0) {
#pragma unroll
                for (int e = 0; e < kPast; ++e) window[kOldest + e] = to_float(at<const T>(states.in.initial_states, b, d, e));
            }
            const auto with_taps = [&](auto f) {
                if (t >= kPast && t + kBwdTokens + kPast <= seqlen)
                    f(AllTaps{});
                else
                    f(TapsOfRagged{t, seqlen, kPast, states.in.initial_states.data != nullptr});
            };
            if (states.in.use_silu)
                with_taps([&](auto taps) { bwd_vector_gradients<kWidth, kOldest>(taps, window, gradients, weight, bias); });
            bwd_vector_share<kWidth>(gradients, carried);
            if (step == place.end_step) continue;
            Pair sums[kBwdHalf];
            with_taps([&](auto taps) {
                bwd_vector_add<kWidth, kOldest>(taps, window, gradients, dweight, dbias);
                bwd_vector_inputs(taps, gradients, weight, sums);
            });

            const auto of_final = [&](int32_t token) {  // what the final state's gradient adds to that of an input
                const int32_t column = token - seqlen + kPast;
                return column >= 0 && column < kPast ? to_float(at<const T>(states.dfinal_states, b, d, column)) : 0.0f;
            };
            if (states.dfinal_states.data && t + kBwdTokens > seqlen - kPast && t < seqlen) {
#pragma unroll
                for (int j = 0; j < kBwdHalf; ++j) sums[j] = add(sums[j], make_pair(of_final(t + j), of_final(t + j + kBwdHalf)));
            }
            if (states.dinitial_states.data && t == 0 && place.has_channel) {
#pragma unroll
                for (int column = 0; column < kPast; ++column) {
                    float sum = states.dfinal_states.data ? of_final(column - kPast) : 0.0f;
#pragma unroll
                    for (int to = 0; to <= column; ++to)
                        if (to < seqlen) sum += weight[column - to] * gradients[to];
                    at<T>(states.dinitial_states, b, d, column) = from_float<T>(sum);
                }
            }
            if (t < seqlen && place.has_channel) {
#pragma unroll
                for (int v = 0; v < kVectors; ++v) {
                    const Vector words = bwd_vector_result<T, kEach>(sums, v);
                    if (whole && in_vectors(dx + t))
                        *reinterpret_cast<Vector*>(dx + t + v * kEach) = words;
                    else
                        store_part<T, kEach>(dx, t + v * kEach, seqlen, words);
                }
            }
        }
    }
    float* partials = static_cast<float*>(p.partials) + static_cast<int64_t>(blockIdx.x) * (kWidth + 1) * p.in.dim + d;
    bwd_vector_store_sums(dweight, dbias, partials, p.in.dim, place.has_channel);
}

namespace {

bool bwd_has_states(const CausalConv1dBwdParams& p) {
    return p.in.initial_states.data || p.dinitial_states.data || p.dfinal_states.data;
}

// Whether every row of x, dout and dx begins and ends on a 16-byte boundary, and no state is to be looked after.
bool bwd_rows_are_whole(const CausalConv1dBwdParams& p) {
    const int tokens = 16 / element_bytes(p.in.dtype);
    const auto aligned = [&](const Sequences& s) {
        return reinterpret_cast<uintptr_t>(s.data) % 16 == 0 && s.dim_stride % tokens == 0 && s.batch_stride % tokens == 0;
    };
    return !bwd_has_states(p) && p.in.seqlen % kBwdTokens == 0 && aligned(p.in.x) && aligned(p.dout) && aligned(p.dx);
}

struct BwdVectorShape {
    unsigned lanes, rows;
    int64_t steps_of_row, steps, walks, sequences, sequence_groups;
    bool on_boundaries;
};

BwdVectorShape bwd_vector_shape(const CausalConv1dBwdParams& p) {
    const int each = 16 / element_bytes(p.in.dtype);
    BwdVectorShape s{};
    s.on_boundaries = p.in.seqlen > kBwdTokens && !bwd_rows_are_whole(p) && !bwd_has_states(p);
    const int64_t tokens = static_cast<int64_t>(p.in.seqlen) + (s.on_boundaries ? each - 1 : 0);
    const int64_t vectors = (tokens + kBwdTokens - 1) / kBwdTokens;
    s.lanes = power_of_two_up_to(vectors, kBwdVectorLanes);
    s.rows = kBwdVectorThreads / s.lanes;
    s.steps_of_row = (vectors + s.lanes - 1) / s.lanes;
    // Long walks need fewer partial sums, but cards need enough threads.
    int64_t most = kBwdVectorMaxSteps;
    while (most > 1 && static_cast<double>(s.steps_of_row) * p.in.batch * p.in.dim * s.lanes / most < kEnoughThreads) most /= 2;
    s.walks = (s.steps_of_row + most - 1) / most;
    s.steps = (s.steps_of_row + s.walks - 1) / s.walks;
    s.walks = (s.steps_of_row + s.steps - 1) / s.steps;
    s.sequences = s.walks == 1 ? most / s.steps : 1;
    if (s.sequences > p.in.batch) s.sequences = p.in.batch;
    s.sequence_groups = (p.in.batch + s.sequences - 1) / s.sequences;
    return s;
}

template <typename T, int kWidth>
void launch(const CausalConv1dBwdParams& p, hipStream_t stream) {
    const BwdVectorShape shape = bwd_vector_shape(p);
    BwdVectorPlan plan{};
    plan.steps_of_row = static_cast<int32_t>(shape.steps_of_row);
    plan.steps = static_cast<int32_t>(shape.steps);
    plan.walks = static_cast<uint32_t>(shape.walks);
    plan.sequences = static_cast<int32_t>(shape.sequences);
    plan.x_batch = p.in.x.batch_stride * static_cast<int64_t>(sizeof(T));
    plan.dout_batch = p.dout.batch_stride * static_cast<int64_t>(sizeof(T));
    plan.dx_batch = p.dx.batch_stride * static_cast<int64_t>(sizeof(T));
    plan.on_boundaries = shape.on_boundaries;
    const dim3 block(shape.lanes, shape.rows, 1);
    const int64_t channel_groups = (static_cast<int64_t>(p.in.dim) + shape.rows - 1) / shape.rows;
    const dim3 grid = grid_of(shape.walks * shape.sequence_groups, channel_groups);
    if (bwd_rows_are_whole(p))
        hipLaunchKernelGGL((causal_conv1d_bwd_whole<T, kWidth>), grid, block, 0, stream, p, plan);
    else
        hipLaunchKernelGGL((causal_conv1d_bwd_ragged<T, kWidth>), grid, block, 0, stream, p, plan);
    check_launch("causal_conv1d_bwd");
}

}  // namespace

bool causal_conv1d_bwd_vector_serves(const CausalConv1dBwdParams& p) {
    if (p.in.width < 2 || p.in.width > kMaxFastBwdWidth || p.in.seqlen < 1 || p.in.seqlen > INT32_MAX - 4096) return false;
    if (p.in.x.seqlen_stride != 1 || p.dout.seqlen_stride != 1 || p.dx.seqlen_stride != 1 || p.in.seq_idx.data) return false;
    const BwdVectorShape shape = bwd_vector_shape(p);
    return shape.walks * shape.sequence_groups <= kGridLimit;
}

int64_t causal_conv1d_bwd_vector_partials(const CausalConv1dBwdParams& p) {
    const BwdVectorShape shape = bwd_vector_shape(p);
    return shape.walks * shape.sequence_groups;
}

void causal_conv1d_bwd_vector(const CausalConv1dBwdParams& p, void* stream) {
    with_instance<kMaxFastBwdWidth>(p.in.dtype, p.in.width, [&](auto type, auto width) {
        using T = decltype(type);
        launch<T, decltype(width)::value>(p, static_cast<hipStream_t>(stream));
    });
}

}  // namespace hipconv
