// This kernel is the causal conv1d forward of channel-first rows packed one after another ("shared"). It is for short rows, and
// for lengths that are no multiple of 16 bytes, where rows begin anywhere in a 16-byte vector.
//
// A tile is some neighbouring rows of one or several sequences: in memory a flat stretch of each sequence. A block loads the
// tile into LDS in whole 16-byte vectors, and stores the results in the same way. In between, a thread makes a run of a row,
// the whole row if it is short, in the words of the flat stretch, so that two tokens are read and written together wherever the
// row begins. A row of an odd number of 16-bit tokens begins or ends within a word; that token is made by itself. Neighbouring
// lanes are neighbouring rows: each lane keeps its channel's weights in registers over all sequences of the block, and mostly
// two lanes at most meet in a bank of LDS. The next tile is prefetched while one is made.
//
// Bytes: each input is read once from memory, each output is written once.
#include <hip/hip_runtime.h>

#include "../common/launch.h"
#include "../common/vector_math.h"
#include "kernels.h"
#include "launch/check.h"

namespace hipconv {

constexpr int kSharedThreads = 128;
constexpr int kFewVectors = 4, kManyVectors = 8;  // of a thread in a tile: many where a vector's worth of rows is longer
constexpr int kMostWidthOfMany = 4;               // the widths of models; 16-bit types alone
constexpr int kEnoughBlocks = kEnoughThreads / kSharedThreads;
HIPCONV_INLINE constexpr int tile_bytes(int tile_vectors) { return kSharedThreads * tile_vectors * 16; }
HIPCONV_INLINE constexpr int shared_blocks(int tile_vectors) {  // of a compute unit: what fits, and leaves enough registers
    const int fit = kLdsBytes / (2 * tile_bytes(tile_vectors)), most = tile_vectors == kFewVectors ? 8 : 5;
    return fit < most ? fit : most;
}

// The plan says how a launch divides the work. A block makes tiles of group blockIdx.x of the rows, in turn along the batch.
struct SharedPlan {
    int32_t rows;        // in all, of a sequence
    int32_t sequences;   // in all
    int32_t log2_group;  // rows of a tile, or more than there are
    int32_t tile_sequences;
    int32_t block_sequences;
    uint32_t vector_reciprocal;  // 2^20 / vectors of a sequence in a tile, rounded up
    int32_t log2_runs;           // of a row
    int32_t run_words;
    int64_t x_sequence, out_sequence;  // bytes from sequence to sequence
    int64_t x_tile, out_tile;          // and from tile to tile
};

template <typename T, int kWidth, int kTileVectors>
__global__ void HIPCONV_LAUNCH_BOUNDS(kSharedThreads, (shared_blocks(kTileVectors)))
    causal_conv1d_fwd_shared(CausalConv1dFwdParams p, SharedPlan plan) {
    constexpr int kTileBytes = tile_bytes(kTileVectors);
    constexpr int kSize = static_cast<int>(sizeof(T)), kTokens = 16 / kSize;
    constexpr int kEach = 4 / kSize;  // tokens of a word
    constexpr int kPast = kWidth - 1;
    constexpr int kBefore = (kPast + kEach - 1) / kEach;  // words
    constexpr int kStep = 2;                              // words that a thread makes together

    HIPCONV_SHARED(Words4, tile, 2 * kTileBytes / 16);  // of x, then of out
    const int thread = static_cast<int>(threadIdx.x);
    int sequence = static_cast<int>(blockIdx.z * gridDim.y + blockIdx.y) * plan.block_sequences;
    if (sequence >= plan.sequences) return;
    const int left = plan.sequences - sequence;
    const int last_sequence = sequence + (left < plan.block_sequences ? left : plan.block_sequences);

    // The last group of a sequence begins earlier, if that is where a vector begins; else it has fewer rows.
    const int group = 1 << plan.log2_group;
    int first_row = static_cast<int>(blockIdx.x) << plan.log2_group;
    if (plan.sequences > 1 && first_row + group > plan.rows) first_row = plan.rows > group ? plan.rows - group : 0;
    const int rows = plan.rows - first_row < group ? plan.rows - first_row : group;
    const int size = rows * p.seqlen;                           // elements of a sequence in the tile
    const int vectors = size / kTokens, tail = size % kTokens;  // a tail only at the end of all sequences

    // ---- memory to and from the tile ----------------------------------------------------------------------------------------
    // Vector v of the tile, as bytes from the tile's first sequence on.
    const auto sequence_of = [&](int v) { return static_cast<uint32_t>(v) * plan.vector_reciprocal >> 20; };
    uint32_t x_offset[kTileVectors], out_offset[kTileVectors];
#pragma unroll
    for (int k = 0; k < kTileVectors; ++k) {
        const int v = thread + k * kSharedThreads;
        const uint32_t of_tile = plan.tile_sequences > 1 ? sequence_of(v) : 0, in_sequence = (v - of_tile * vectors) * 16;
        x_offset[k] = of_tile * static_cast<uint32_t>(plan.x_sequence) + in_sequence;
        out_offset[k] = of_tile * static_cast<uint32_t>(plan.out_sequence) + in_sequence;
    }
    const int64_t before = static_cast<int64_t>(first_row) * p.seqlen * kSize;
    const char* x = static_cast<const char*>(p.x.data) + before + sequence * plan.x_sequence;
    char* out = static_cast<char*>(p.out.data) + before + sequence * plan.out_sequence;
    Words4 ahead[kTileVectors];
    const auto fetch = [&](int count) {  // of sequences
#pragma unroll
        for (int k = 0; k < kTileVectors; ++k) {
            if (thread + k * kSharedThreads < count * vectors) ahead[k] = *reinterpret_cast<const Words4*>(x + x_offset[k]);
        }
    };
    const auto sequences_from = [&](int first) {
        return last_sequence - first < plan.tile_sequences ? last_sequence - first : plan.tile_sequences;
    };
    fetch(sequences_from(sequence));

    // ---- the thread's row and parameters ------------------------------------------------------------------------------------
    // This thread's row, and its run of the words that are the row's alone. (An odd row has half a word more.)
    const int group_row = thread & (group - 1), slot = thread >> plan.log2_group;
    const bool has_row = group_row < rows;
    const int row = has_row ? group_row : 0;
    const int run = slot & ((1 << plan.log2_runs) - 1), last_run = (1 << plan.log2_runs) - 1;
    const int begin = row * p.seqlen, words = p.seqlen / kEach;
    const int run_begin = run * plan.run_words < words ? run * plan.run_words : words;
    const int run_words = words - run_begin < plan.run_words ? words - run_begin : plan.run_words;
    const bool odd_begin = begin % kEach != 0;
    const bool makes_odd_token = p.seqlen % kEach != 0 && run == (odd_begin ? 0 : last_run);
    const int odd_token = odd_begin ? 0 : p.seqlen - 1;

    int d = first_row + row;
    if (d >= p.dim) d %= p.dim;
    // Parameters and x are fetched together, and parameters only then converted: each conversion would wait.
    uint32_t weight_bits[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
        weight_bits[i] = load_parameter_bits(p.weight, d * p.weight_dim_stride + i * p.weight_width_stride, p.weight_dtype);
    const uint32_t bias_bits = load_bias_bits(p, d);
    float weight[kWidth];
    float probe = 0.0f;  // becomes NaN if a weight is not finite
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
        weight[i] = parameter_of(weight_bits[i], p.weight_dtype);
        probe += weight[i] * 0.0f;
    }
    const float bias = parameter_of(bias_bits, p.bias_dtype);
    const bool repairs = probe != 0.0f && run == 0;

    // ---- a run of outputs ---------------------------------------------------------------------------------------------------
    const auto activated = [&](float sum) { return p.use_silu ? low(silu(twice(sum))) : sum; };
    float window[kBefore * kEach + kStep * kEach];  // the tokens before, and those of a step
    const auto unpack_word = [&](int k, uint32_t both) {
        if constexpr (kEach == 2) {
            window[2 * k] = low(unpack<T>(both));
            window[2 * k + 1] = high(unpack<T>(both));
        } else {
            window[k] = bit_cast<float>(both);
        }
    };
    // Makes the outputs of the next `count` words, a constant.
    const auto step = [&](uint32_t* from, auto count) {
        constexpr int kWords = decltype(count)::value, kPairs = kWords * kEach / 2 + kWords * kEach % 2;
#pragma unroll
        for (int j = 0; j < kWords; ++j) unpack_word(kBefore + j, from[j]);
        const auto sum_of = [&](int e) {
            float sum = bias;
#pragma unroll
            for (int i = 0; i < kWidth; ++i) sum += weight[i] * window[kBefore * kEach - kPast + e + i];
            return sum;
        };
        Pair sums[kPairs];
#pragma unroll
        for (int j = 0; j < kPairs; ++j)
            sums[j] = make_pair(sum_of(2 * j), 2 * j + 1 < kWords * kEach ? sum_of(2 * j + 1) : 0.0f);
        if (p.use_silu) {
#pragma unroll
            for (int j = 0; j < kPairs; ++j) sums[j] = silu(sums[j]);
        }
        uint32_t* to = from + kTileBytes / 4;
#pragma unroll
        for (int j = 0; j < kWords; ++j) {
            if constexpr (kEach == 2)
                to[j] = pack<T>(sums[j]);
            else
                to[j] = bit_cast<uint32_t>(j % 2 ? high(sums[j / 2]) : low(sums[j / 2]));
        }
#pragma unroll
        for (int k = 0; k < kBefore * kEach; ++k) window[k] = window[k + kWords * kEach];
    };
    const auto make_run = [&](uint32_t* run_in, T* row_in) {
        T* const row_out = row_in + kTileBytes / kSize;
#pragma unroll
        for (int k = 0; k < kBefore; ++k) {
            uint32_t both = 0;
            if (run > 0 || (k == kBefore - 1 && odd_begin)) both = run_in[k - kBefore];
            if (k == kBefore - 1 && run == 0) both &= 0xffff0000u;  // the other half is the row's before
            unpack_word(k, both);
        }
        int left = run_words;
        for (; left >= kStep; left -= kStep, run_in += kStep) step(run_in, std::integral_constant<int, kStep>{});
        if (left > 0) step(run_in, std::integral_constant<int, 1>{});
        if (makes_odd_token) {
            float sum = bias;
#pragma unroll
            for (int i = 0; i < kPast; ++i) sum += weight[i] * (odd_begin ? 0.0f : window[kBefore * kEach - kPast + i]);
            sum += weight[kPast] * to_float(row_in[odd_token]);
            row_out[odd_token] = from_float<T>(activated(sum));
        }
        if (repairs) {
            // Zeros stood in for the tokens before the row, and some weight is infinite or NaN: skip those taps instead.
            for (int t = 0; t < kPast && t < p.seqlen; ++t) {
                float sum = bias;
#pragma unroll
                for (int i = 0; i < kWidth; ++i)
                    if (t + i >= kPast) sum += weight[i] * to_float(row_in[t + i - kPast]);
                row_out[t] = from_float<T>(activated(sum));
            }
        }
    };

    // ---- tiles, one after another -------------------------------------------------------------------------------------------
    // The first sequence of a tile that this thread makes a run of, and the step to its next ones.
    const int first_sequence = slot >> plan.log2_runs, sequences_on = kSharedThreads >> (plan.log2_group + plan.log2_runs);
    T* const tile_in = reinterpret_cast<T*>(tile);
    T* const first_in = tile_in + first_sequence * size + begin;
    const int words_in = (begin + kEach - 1) / kEach - begin / kEach + run_begin;

    T* const first_out = reinterpret_cast<T*>(out);
    const int tail_token = size - tail + thread;
    if (thread < tail) tile_in[tail_token] = reinterpret_cast<const T*>(x)[tail_token];

    while (sequence < last_sequence) {
        const int count = sequences_from(sequence);
#pragma unroll
        for (int k = 0; k < kTileVectors; ++k) {
            const int v = thread + k * kSharedThreads;
            if (v < count * vectors) tile[v] = ahead[k];
        }
        __syncthreads();
        sequence += count;
        x += plan.x_tile;
        if (sequence < last_sequence) fetch(sequences_from(sequence));
        if (has_row) {
            T* row_in = first_in;
            for (int s = first_sequence; s < count; s += sequences_on, row_in += sequences_on * size) {
                uint32_t* row_words = reinterpret_cast<uint32_t*>(row_in - (odd_begin ? 1 : 0));
                make_run(row_words + words_in, row_in);
            }
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < kTileVectors; ++k) {
            const int v = thread + k * kSharedThreads;
            if (v < count * vectors) *reinterpret_cast<Words4*>(out + out_offset[k]) = tile[kTileBytes / 16 + v];
        }
        out += plan.out_tile;
    }
    if (thread < tail) first_out[tail_token] = tile_in[kTileBytes / kSize + tail_token];
}

namespace {

template <typename T, int kWidth, int kTileVectors>
void launch(const CausalConv1dFwdParams& p, hipStream_t stream) {
    constexpr int kTokens = 16 / static_cast<int>(sizeof(T));
    constexpr int kTileTokens = tile_bytes(kTileVectors) / static_cast<int>(sizeof(T));
    SharedPlan plan{};
    plan.rows = p.dim;
    plan.sequences = p.batch;
    plan.x_sequence = p.x.batch_stride * static_cast<int64_t>(sizeof(T));
    plan.out_sequence = p.out.batch_stride * static_cast<int64_t>(sizeof(T));
    if (static_cast<int64_t>(p.dim) * p.seqlen % kTokens != 0) {  // sequences begin off boundaries, but follow one another
        plan.rows *= p.batch;
        plan.sequences = 1;
    }
    int group = kSharedThreads;
    while (group > kTokens && (group / 2 >= plan.rows || group * p.seqlen > kTileTokens)) group /= 2;
    const int64_t groups = (static_cast<int64_t>(plan.rows) + group - 1) / group;
    while (1 << plan.log2_group < group) ++plan.log2_group;
    const int size = (group < plan.rows ? group : plan.rows) * p.seqlen;

    // A tile takes as many sequences as it can hold while it leaves a tile for each block of a large card, or two if they still
    // give its threads a vector each. (32 bits reach a tile's last sequence.)
    const auto tiles = [&] { return (plan.sequences + plan.tile_sequences - 1) / plan.tile_sequences; };
    const int64_t most = plan.x_sequence > plan.out_sequence ? plan.x_sequence : plan.out_sequence;
    const bool near = plan.x_sequence >= 0 && kTileTokens / size * most < kOffsetLimit;
    plan.tile_sequences = !near ? 1 : kTileTokens / size < plan.sequences ? kTileTokens / size : plan.sequences;
    const auto leave_tiles_for = [&](int64_t blocks) {
        while (plan.tile_sequences > 1 && groups * tiles() < blocks) --plan.tile_sequences;
    };
    leave_tiles_for(kEnoughBlocks);
    const int32_t most_sequences = plan.tile_sequences;
    leave_tiles_for(2 * kEnoughBlocks);
    if (plan.tile_sequences * size < kSharedThreads * kTokens) plan.tile_sequences = most_sequences;
    plan.tile_sequences = (plan.sequences + tiles() - 1) / tiles();
    plan.x_tile = plan.tile_sequences * plan.x_sequence;
    plan.out_tile = plan.tile_sequences * plan.out_sequence;
    const int vectors = (size + kTokens - 1) / kTokens;
    plan.vector_reciprocal = static_cast<uint32_t>(((1 << 20) + vectors - 1) / vectors);

    // Runs are no shorter than the taps that reach before a row.
    constexpr int kEach = 4 / static_cast<int>(sizeof(T));
    const int words = p.seqlen / kEach;
    const auto run_words = [&] { return (words + (1 << plan.log2_runs) - 1) >> plan.log2_runs; };
    while (1 << plan.log2_runs < kSharedThreads / group) ++plan.log2_runs;
    while (plan.log2_runs > 0 && run_words() * kEach < kMaxFastWidth) --plan.log2_runs;
    plan.run_words = run_words();

    // The number of tiles of a block: fewer cost more starts, more leave small problems unevenly spread. (Measured on
    // an H200.)
    int each = 8;
    const int64_t bytes = static_cast<int64_t>(plan.tile_sequences) * size * static_cast<int64_t>(sizeof(T));  // of a tile
    const auto blocks = [&] { return groups * tiles() / each; };
    while (each > 1 && (blocks() < kEnoughBlocks || (blocks() < 4 * kEnoughBlocks && each * bytes > (19 << 10)))) each /= 2;
    plan.block_sequences = each * plan.tile_sequences;
    const dim3 grid = grid_of(groups, (plan.sequences + plan.block_sequences - 1) / plan.block_sequences);
    hipLaunchKernelGGL((causal_conv1d_fwd_shared<T, kWidth, kTileVectors>), grid, dim3(kSharedThreads, 1, 1), 0, stream, p,
                       plan);
    check_launch("causal_conv1d_fwd");
}

}  // namespace

const char* causal_conv1d_shared_refusal(const CausalConv1dFwdParams& p) {
    const char* served =
        "channel-first x and out whose rows, of at most 512 tokens (1024 in 16 bits with widths 2 to 4), follow one "
        "another in memory, widths 2 to 8, plain rows";
    if (!rows_are_plain(p) || p.width < 2 || p.width > kMaxFastWidth) return served;
    const int tokens = 16 / element_bytes(p.dtype);
    const int64_t size = static_cast<int64_t>(p.dim) * p.seqlen;
    const auto packed = [&](const Sequences& s) {
        const bool rows_follow = s.seqlen_stride == 1 && (s.dim_stride == p.seqlen || p.dim == 1);
        return rows_follow && reinterpret_cast<uintptr_t>(s.data) % 16 == 0 &&
               (p.batch == 1 || (size % tokens == 0 ? s.batch_stride % tokens == 0 : s.batch_stride == size));
    };
    const int64_t rows = static_cast<int64_t>(p.dim) * (size % tokens == 0 ? 1 : p.batch);  // of which a group has 4 at least
    const bool takes_many = tokens == 8 && p.width <= kMostWidthOfMany;
    const bool fits = p.seqlen <= tile_bytes(takes_many ? kManyVectors : kFewVectors) / 16;
    return packed(p.x) && packed(p.out) && fits && rows <= 4 * kGridLimit && p.batch < kOffsetLimit / 2 ? nullptr : served;
}

void causal_conv1d_shared(const CausalConv1dFwdParams& p, void* /*workspace*/, void* stream) {
    with_instance<kMaxFastWidth>(p.dtype, p.width, [&](auto type, auto width) {
        using T = decltype(type);
        constexpr int kWidth = decltype(width)::value;
        const hipStream_t hip_stream = static_cast<hipStream_t>(stream);
        if constexpr (sizeof(T) == 2 && kWidth <= kMostWidthOfMany) {
            if (p.seqlen > tile_bytes(kFewVectors) / 16) return launch<T, kWidth, kManyVectors>(p, hip_stream);
        }
        launch<T, kWidth, kFewVectors>(p, hip_stream);
    });
}

}  // namespace hipconv
