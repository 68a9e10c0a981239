// Causal conv1d forward, channel-first rows of fewer tokens than a vector ("rows"): a thread makes whole rows.
//
// Neighbouring lanes make the rows of neighbouring channels, and each walks a few sequences with its weights in registers, one
// sequence's tokens loaded ahead. Which taps a token has is known at compile time, so nothing is masked. Lanes meet memory in
// words of 4 bytes where every row is made of whole ones, else in elements, a row apart from each other; the cache joins them.
//
// Bytes: each input read once from memory, each output written once.
#include <hip/hip_runtime.h>

#include "causal_conv1d_launchers.h"
#include "causal_conv1d_parts.h"
#include "check.h"

namespace hipconv {

constexpr int kRowsThreads = 128;
constexpr int kMaxRowSequences = 8;  // of a thread

// How a launch divides the work. A block is blockDim.x channels by blockDim.y sequences, and goes on to the sequences after them.
struct RowsPlan {
    uint32_t sequences_a_block;
    bool in_words;  // whether every row is made of whole, aligned 4-byte words
};

template <typename T, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kRowsThreads, 10) causal_conv1d_fwd_rows(CausalConv1dFwdParams p, RowsPlan plan) {
    constexpr int kPast = kWidth - 1;
    constexpr int kEach = 4 / static_cast<int>(sizeof(T));  // tokens of a word
    constexpr int kWords = 4;                               // of the longest row

    const int64_t d = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int64_t first = (static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * plan.sequences_a_block + threadIdx.y;
    if (d >= p.dim || first >= p.batch) return;
    const int64_t left = p.batch - first;
    const int64_t mine = left < plan.sequences_a_block - threadIdx.y ? left : plan.sequences_a_block - threadIdx.y;
    const int count = static_cast<int>((mine + blockDim.y - 1) / blockDim.y);
    const T* x = static_cast<const T*>(p.x.data) + first * p.x.batch_stride + d * p.x.dim_stride;
    T* out = static_cast<T*>(p.out.data) + first * p.out.batch_stride + d * p.out.dim_stride;
    const int64_t x_step = blockDim.y * p.x.batch_stride, out_step = blockDim.y * p.out.batch_stride;

    // `f` of each word of the row and whether the row has the word's second element.
    const auto of_words = [&](auto f) {
#pragma unroll
        for (int j = 0; j < kWords; ++j) {
            if (j * kEach >= p.seqlen) break;
            f(j, kEach == 2 && j * kEach + 1 < p.seqlen);
        }
    };
    uint32_t words[kWords] = {};
    const auto fetch = [&] {
        of_words([&](int j, bool both) {
            if (kEach == 1 || plan.in_words) {
                words[j] = reinterpret_cast<const uint32_t*>(x)[j];
            } else {
                words[j] = bit_cast<Words<T, 1>>(x[j * kEach]);
                if (both) words[j] |= static_cast<uint32_t>(bit_cast<Words<T, 1>>(x[j * kEach + 1])) << 16;
            }
        });
        x += x_step;
    };
    fetch();

    float weight[kWidth];
    with_dtype(p.weight_dtype, [&](auto type) {
        using P = decltype(type);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) weight[i] = parameter<P>(p.weight, d * p.weight_dim_stride + i * p.weight_width_stride);
    });
    const float bias = p.bias ? load_parameter(p.bias, d * p.bias_stride, p.bias_dtype) : 0.0f;

    for (int sequence = 0; sequence < count; ++sequence) {
        float token[kWords * kEach];
#pragma unroll
        for (int j = 0; j < kWords; ++j) {
            if constexpr (kEach == 2) {
                token[2 * j] = low(unpack<T>(words[j]));
                token[2 * j + 1] = high(unpack<T>(words[j]));
            } else {
                token[j] = bit_cast<float>(words[j]);
            }
        }
        if (sequence + 1 < count) fetch();

        uint32_t results[kWords];
        of_words([&](int j, bool) {
            const auto output = [&](int e) {
                float sum = bias;
#pragma unroll
                for (int i = 0; i < kWidth; ++i)
                    if (e + i >= kPast) sum += weight[i] * token[e + i - kPast];
                return sum;
            };
            Pair sums = make_pair(output(j * kEach), output(j * kEach + kEach - 1));
            if (p.use_silu) sums = silu(sums);
            if constexpr (kEach == 2)
                results[j] = pack<T>(sums);
            else
                results[j] = bit_cast<uint32_t>(low(sums));
        });
        of_words([&](int j, bool both) {  // all together, so that the cache may join them
            if (kEach == 1 || plan.in_words) {
                reinterpret_cast<uint32_t*>(out)[j] = results[j];
            } else {
                out[j * kEach] = bit_cast<T>(static_cast<Words<T, 1>>(results[j]));
                if (both) out[j * kEach + 1] = bit_cast<T>(static_cast<Words<T, 1>>(results[j] >> 16));
            }
        });
        out += out_step;
    }
}

namespace {

template <typename T, int kWidth>
void launch(const CausalConv1dFwdParams& p, hipStream_t stream) {
    const unsigned lanes = power_of_two_up_to(p.dim, kRowsThreads), rows = kRowsThreads / lanes;
    const auto in_words = [](const Sequences& s) {
        constexpr int kEach = 4 / static_cast<int>(sizeof(T));
        return reinterpret_cast<uintptr_t>(s.data) % 4 == 0 && s.dim_stride % kEach == 0 && s.batch_stride % kEach == 0;
    };
    RowsPlan plan{};
    plan.in_words = p.seqlen * sizeof(T) % 4 == 0 && in_words(p.x) && in_words(p.out);
    unsigned each = kMaxRowSequences;
    while (each > 1 && static_cast<int64_t>(p.dim) * p.batch / each < kEnoughThreads) each /= 2;
    plan.sequences_a_block = each * rows;
    const dim3 grid = grid_of((static_cast<int64_t>(p.dim) + lanes - 1) / lanes,
                              (static_cast<int64_t>(p.batch) + plan.sequences_a_block - 1) / plan.sequences_a_block);
    hipLaunchKernelGGL((causal_conv1d_fwd_rows<T, kWidth>), grid, dim3(lanes, rows, 1), 0, stream, p, plan);
    check_launch("causal_conv1d_fwd");
}

}  // namespace

bool causal_conv1d_rows_serves(const CausalConv1dFwdParams& p) {
    return p.width >= 2 && p.width <= kMaxFastWidth && p.x.seqlen_stride == 1 && p.out.seqlen_stride == 1 &&
           p.seqlen * element_bytes(p.dtype) <= 16;
}

void causal_conv1d_rows(const CausalConv1dFwdParams& p, void* stream) {
    with_instance<kMaxFastWidth>(p.dtype, p.width, [&](auto type, auto width) {
        launch<decltype(type), decltype(width)::value>(p, static_cast<hipStream_t>(stream));
    });
}

}  // namespace hipconv
