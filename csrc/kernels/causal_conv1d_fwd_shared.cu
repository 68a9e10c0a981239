// Causal conv1d forward, channel-first rows packed one after another ("shared"): for lengths that are no multiple of 16 bytes,
// where rows begin anywhere in a 16-byte vector.
//
// The rows are one flat array, cut into 16-byte vectors whatever rows they belong to, so that every access is full and aligned. A
// block takes a span of it, brings the weights and biases of the span's rows into LDS, and each thread makes its vectors of the
// span, in each of several sequences: the outputs of the row its vector begins in and, where that row ends within the vector,
// those of the next. Taps that would reach into the row before are masked.
//
// Bytes: each input read once from memory (and up to half of it once more from cache), each output written once.
#include <hip/hip_runtime.h>

#include "causal_conv1d_launchers.h"
#include "causal_conv1d_parts.h"
#include "check.h"

namespace hipconv {

constexpr int kSharedThreads = 128;
constexpr int kSharedItems = 8;      // vectors of a thread
constexpr int kMaxSharedRows = 258;  // whose parameters LDS holds: 1024 elements of rows of four, cut anywhere

// How a launch divides the work: block (x, y) makes span x of sequences y * sequences_a_block and following.
struct SharedPlan {
    uint32_t size;   // elements of a sequence, all rows
    int32_t rounds;  // vectors of a thread in a span
    int32_t sequences, sequences_a_block;
    int64_t x_sequence, out_sequence;  // elements from sequence to sequence
    uint32_t length_reciprocal;        // 2^32 / seqlen, rounded up; 0 for rows longer than a span
};

constexpr int shared_blocks(int width) { return width <= 5 ? 7 : 6; }

template <typename T, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kSharedThreads, shared_blocks(kWidth))
    causal_conv1d_fwd_shared(CausalConv1dFwdParams p, SharedPlan plan) {
    constexpr int kTokens = 16 / static_cast<int>(sizeof(T));
    constexpr int kAhead = sizeof(T) == 2 ? 2 : 1;
    constexpr int kHalf = kTokens / 2, kPairs = kTokens / 2;
    constexpr int kParameters = kWidth + 1;
    using Vector = Words<T, kTokens>;
    using Past = TokensBefore<T, kWidth>;

    HIPCONV_SHARED(float, parameters, kMaxSharedRows * kParameters);
    HIPCONV_SHARED(int, not_finite, 1);
    const int thread = static_cast<int>(threadIdx.x);
    const int32_t length = p.seqlen;
    const uint32_t span = blockIdx.x * static_cast<uint32_t>(plan.rounds) * kSharedThreads * kTokens;  // its first element
    const uint32_t first_row = span / static_cast<uint32_t>(length);
    const uint32_t into_row = span - first_row * length;

    if (thread == 0) not_finite[0] = 0;
    __syncthreads();
    const uint32_t span_size = static_cast<uint32_t>(plan.rounds) * kSharedThreads * kTokens;
    const uint32_t rows = (into_row + span_size - 1) / length + 1;
    for (uint32_t row = thread; row < rows; row += kSharedThreads) {
        const int64_t d = (first_row + row) % static_cast<uint32_t>(p.dim);  // rows beyond the last sequence are not used
        float* to = parameters + row * kParameters;
        float probe = 0.0f;
        for (int i = 0; i < kWidth; ++i) {
            to[i] = load_parameter(p.weight, d * p.weight_dim_stride + i * p.weight_width_stride, p.weight_dtype);
            probe += to[i] * 0.0f;
        }
        to[kWidth] = p.bias ? load_parameter(p.bias, d * p.bias_stride, p.bias_dtype) : 0.0f;
        if (probe != 0.0f) not_finite[0] = 1;  // all write the same
    }
    __syncthreads();
    // Element by element, where a vector may touch many rows, or a masked tap's zero would meet an infinite weight.
    const bool by_element = length < kTokens || not_finite[0];

    const int first_sequence = static_cast<int>(blockIdx.y) * plan.sequences_a_block;
    const int left = plan.sequences - first_sequence;
    const int items = (left < plan.sequences_a_block ? left : plan.sequences_a_block) * plan.rounds;
    const uint32_t lane = static_cast<uint32_t>(thread) * kTokens, from_span = plan.size - span;
    constexpr uint32_t kRound = kSharedThreads * kTokens;

    const T* x = static_cast<const T*>(p.x.data) + first_sequence * plan.x_sequence + span;
    T* out = static_cast<T*>(p.out.data) + first_sequence * plan.out_sequence + span;
    Vector current[kAhead];
    typename Past::Part before[kAhead][Past::kParts];
    int loaded = 0, in_round = 0, to_round = 0;
    const auto fetch = [&](int u) {
        const uint32_t at = lane + in_round * kRound;
        if (loaded < items && at < from_span) {
            if (at + kTokens <= from_span)
                current[u] = *reinterpret_cast<const Vector*>(x + at);
            else
                current[u] = load_part<T, kTokens>(x + at, 0, static_cast<int32_t>(from_span - at));
#pragma unroll
            for (int k = 0; k < Past::kParts; ++k) {
                const uint32_t back = Past::kTokens - k * Past::kPartTokens;
                if (span + at >= back) before[u][k] = *reinterpret_cast<const typename Past::Part*>(x + at - back);
            }
        }
        ++loaded;
        if (++in_round == plan.rounds) {
            in_round = 0;
            x += plan.x_sequence;
        }
    };
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
        current[u] = Vector{};
#pragma unroll
        for (int k = 0; k < Past::kParts; ++k) before[u][k] = typename Past::Part{};
        fetch(u);
    }

    for (int item = 0; item < items; item += kAhead) {
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
            float window[Past::kTokens + kTokens];
            Past::unpack(before[u], current[u], window);
            fetch(u);

            // The row of the vector's first element, counted from the span's first row, and the element's token.
            const uint32_t from_row = into_row + lane + to_round * kRound;
            uint32_t row = from_row >= static_cast<uint32_t>(length);
            if (plan.length_reciprocal)
                row = static_cast<uint32_t>(static_cast<uint64_t>(from_row) * plan.length_reciprocal >> 32);
            const int32_t t = static_cast<int32_t>(from_row - row * length);
            constexpr int kOldest = Past::kTokens - (kWidth - 1);
            const float* mine = parameters + row * kParameters;
            Pair sums[kPairs];
            if (by_element) {
                float results[kTokens];
                int32_t token = t;
#pragma unroll
                for (int e = 0; e < kTokens; ++e) {
                    float sum = mine[kWidth];
#pragma unroll
                    for (int i = 0; i < kWidth; ++i)
                        if (token + i >= kWidth - 1) sum += mine[i] * window[kOldest + e + i];
                    results[e] = sum;
                    // Past the end of the last row there is none to go on with.
                    if (++token == length && (e + 1 < kTokens && row + 1 < rows)) {
                        token = 0;
                        ++row;
                        mine += kParameters;
                    }
                }
#pragma unroll
                for (int j = 0; j < kPairs; ++j) sums[j] = make_pair(results[j], results[j + kHalf]);
            } else {
                const auto convolve = [&](const float* row_parameters) {
                    Pair weight[kWidth];
#pragma unroll
                    for (int i = 0; i < kWidth; ++i) weight[i] = twice(row_parameters[i]);
                    const Pair bias = twice(row_parameters[kWidth]);
#pragma unroll
                    for (int j = 0; j < kPairs; ++j) {
                        sums[j] = bias;
#pragma unroll
                        for (int i = 0; i < kWidth; ++i) {
                            const int at = kOldest + j + i;
                            sums[j] = multiply_add(weight[i], make_pair(window[at], window[at + kHalf]), sums[j]);
                        }
                    }
                };
                // Zeros for the tokens before the vector's first row.
#pragma unroll
                for (int k = Past::kTokens - (kWidth - 1); k < Past::kTokens; ++k)
                    if (k < Past::kTokens - t) window[k] = 0.0f;
                convolve(mine);
                const int32_t ends = length - t;  // the element that begins the next row
                if (ends < kTokens && row + 1 < rows) {
                    Pair kept[kPairs];
#pragma unroll
                    for (int j = 0; j < kPairs; ++j) kept[j] = sums[j];
#pragma unroll
                    for (int k = 0; k < Past::kTokens + kTokens - 1; ++k)
                        if (k < Past::kTokens || k < Past::kTokens + ends) window[k] = 0.0f;
                    convolve(mine + kParameters);
#pragma unroll
                    for (int j = 0; j < kPairs; ++j)
                        sums[j] = make_pair(j < ends ? low(kept[j]) : low(sums[j]),
                                            j + kHalf < ends ? high(kept[j]) : high(sums[j]));
                }
            }
            if (p.use_silu) {
#pragma unroll
                for (int j = 0; j < kPairs; ++j) sums[j] = silu(sums[j]);
            }
            Vector result = vector_of_halves<T, kTokens>(sums);

            const uint32_t at = lane + to_round * kRound;
            if (item + u < items && at < from_span) {
                if (at + kTokens <= from_span)
                    *reinterpret_cast<Vector*>(out + at) = result;
                else
                    store_part<T, kTokens>(out + at, 0, static_cast<int32_t>(from_span - at), result);
            }
            if (++to_round == plan.rounds) {
                to_round = 0;
                out += plan.out_sequence;
            }
        }
    }
}

namespace {

// Rows that a span of the flat array can touch.
int64_t rows_of(int64_t span, int32_t length) { return span / length + 2; }

template <typename T, int kWidth>
void launch(const CausalConv1dFwdParams& p, hipStream_t stream) {
    constexpr int kTokens = 16 / static_cast<int>(sizeof(T));
    SharedPlan plan{};
    int64_t size = static_cast<int64_t>(p.dim) * p.seqlen;
    plan.sequences = p.batch;
    plan.x_sequence = p.x.batch_stride;
    plan.out_sequence = p.out.batch_stride;
    if (size % kTokens != 0 && p.batch > 1) {  // sequences begin off boundaries, but follow one another: take them as one
        size *= p.batch;
        plan.sequences = 1;
    }
    plan.size = static_cast<uint32_t>(size);
    // Several rounds where there are few sequences, as far as LDS holds the rows and the card is full.
    constexpr int64_t round = kSharedThreads * kTokens;
    plan.rounds = 1;
    while (plan.rounds * 2 * plan.sequences <= kSharedItems && rows_of(plan.rounds * 2 * round, p.seqlen) <= kMaxSharedRows &&
           size / (plan.rounds * 2 * kTokens) * plan.sequences >= kEnoughThreads)
        plan.rounds *= 2;
    plan.sequences_a_block = kSharedItems / plan.rounds;
    while (plan.sequences_a_block > 1 &&
           size / (plan.rounds * kTokens) * plan.sequences / plan.sequences_a_block < kEnoughThreads)
        plan.sequences_a_block /= 2;
    plan.length_reciprocal =
        p.seqlen > plan.rounds * round ? 0 : static_cast<uint32_t>(((int64_t{1} << 32) + p.seqlen - 1) / p.seqlen);

    const dim3 grid(blocks_up_to(size, plan.rounds * round, 1 << 24),
                    blocks_up_to(plan.sequences, plan.sequences_a_block, 65535), 1);
    hipLaunchKernelGGL((causal_conv1d_fwd_shared<T, kWidth>), grid, dim3(kSharedThreads, 1, 1), 0, stream, p, plan);
    check_launch("causal_conv1d_fwd");
}

}  // namespace

bool causal_conv1d_shared_serves(const CausalConv1dFwdParams& p) {
    if (p.width < 2 || p.width > kMaxFastWidth ) return false;
    const int tokens = 16 / element_bytes(p.dtype);
    const int64_t size = static_cast<int64_t>(p.dim) * p.seqlen;
    const auto packed = [&](const Sequences& s) {
        const bool rows_follow = s.seqlen_stride == 1 && (s.dim_stride == p.seqlen || p.dim == 1);
        return rows_follow && reinterpret_cast<uintptr_t>(s.data) % 16 == 0 &&
               (p.batch == 1 || (size % tokens == 0 ? s.batch_stride % tokens == 0 : s.batch_stride == size));
    };
    const int64_t elements = size * (size % tokens == 0 ? 1 : p.batch);  // counted in 32 bits, to the end of the last span
    return packed(p.x) && packed(p.out) && rows_of(kSharedThreads * tokens, p.seqlen) <= kMaxSharedRows &&
           elements < (int64_t{1} << 32) - (1 << 20) && p.batch <= 65535 && p.seqlen < INT32_MAX - 8192;
}

void causal_conv1d_shared(const CausalConv1dFwdParams& p, void* stream) {
    with_instance<kMaxFastWidth>(p.dtype, p.width, [&](auto type, auto width) {
        launch<decltype(type), decltype(width)::value>(p, static_cast<hipStream_t>(stream));
    });
}

}  // namespace hipconv
