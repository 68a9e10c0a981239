// This kernel is the causal conv1d forward, channel-first ("vector"): neighbouring tokens are neighbours in memory.
//
// A thread makes the outputs of 16-byte vectors of one channel, each from that vector of x and a halo of the kWidth - 1 tokens
// before it, which lie in the same cache line or in the one the neighbouring lane reads. There is no LDS and no barrier. It
// walks several vectors and prefetches kAhead of them, so that memory always has work while registers stay few and threads
// many.
//
// This kernel is for whole rows: they begin and end on 16-byte boundaries, and each is one sequence without a state. All others
// have the kernel of vector_any.cu.
//
// Bytes: each input is read once from memory (and up to half of it once more from cache), each output is written once.
#include <hip/hip_runtime.h>

#include "../common/parts.h"
#include "launch/check.h"
#include "vector.h"

namespace hipconv {

constexpr int kFewestLanes = 4;  // of a row, side by side

constexpr int vector_blocks(int width, int bytes) { return width > 4 ? 8 : bytes == 2 ? 10 : 12; }

template <typename T, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kVectorThreads, vector_blocks(kWidth, sizeof(T)))
    causal_conv1d_fwd_vector(CausalConv1dFwdParams p, VectorPlan plan) {
    constexpr int kTokens = 16 / static_cast<int>(sizeof(T));
    constexpr int kAhead = 2;  // measured on an H200
    constexpr int kHalf = kTokens / 2, kPairs = kTokens / 2;
    constexpr int kSize = static_cast<int>(sizeof(T));
    using Vector = Words<T, kTokens>;
    using Past = TokensBefore<T, kWidth>;
    using Part = typename Past::Part;

    const Piece piece = piece_of_block(plan.taper, blockIdx.y * gridDim.x + blockIdx.x);
    const int64_t block_dim = static_cast<int64_t>(piece.row) * blockDim.y;
    const int64_t d = block_dim + threadIdx.y;
    if (d >= p.dim || piece.count == 0) return;
    let_next_kernel_begin();
    const uint32_t first = piece.first;
    const int count = piece.count;

    // These say where the next vector to load and the next to write lie: the sequence's row of the block's first channel, and a
    // token in it. Both are the same for all lanes (scalar registers on AMD). A lane adds 32 bits.
    const uint32_t batch = plan.stretches == 1 ? first : first / plan.stretches;
    const char* x = static_cast<const char*>(p.x.data) + block_dim * p.x.dim_stride * kSize + batch * plan.x_batch;
    char* out = static_cast<char*>(p.out.data) + block_dim * p.out.dim_stride * kSize + batch * plan.out_batch;
    int32_t in_token = static_cast<int32_t>(first - batch * plan.stretches) * plan.stretch_tokens, to_token = in_token;
    const uint32_t lane_x = threadIdx.y * plan.x_row, lane_out = threadIdx.y * plan.out_row;
    const int32_t lane_token = static_cast<int32_t>(threadIdx.x) * kTokens;
    uint32_t x_offset = lane_x + lane_token * kSize, out_offset = lane_out + lane_token * kSize;

    // This is where a stretch begins: the last one ends with its row, and overlaps the one before if stretches do not divide
    // the row.
    const auto token_of_stretch = [&](int32_t token) {
        return token > 0 && token + plan.stretch_tokens > p.seqlen ? p.seqlen - plan.stretch_tokens : token;
    };

    Vector current[kAhead];
    Part before[kAhead][Past::kParts];
    int loaded = 0;
    const auto fetch = [&](int u) {
        if (loaded == count) return;
        ++loaded;
        const char* stretch = x + static_cast<int64_t>(token_of_stretch(in_token)) * kSize;
        beside_access(x_offset);
        current[u] = *reinterpret_cast<const Vector*>(stretch + x_offset);
#pragma unroll
        for (int k = 0; k < Past::kParts; ++k) {
            constexpr int kPart = Past::kPartTokens;
            const int back = Past::kTokens - k * kPart;
            before[u][k] = Part{};
            if (lane_token >= back - in_token) {
                beside_access(x_offset);
                before[u][k] = *reinterpret_cast<const Part*>(stretch - back * kSize + x_offset);
            }
        }
        in_token += plan.stretch_tokens;
        if (in_token >= plan.sequence_tokens) {
            in_token = 0;
            x += plan.x_batch;
        }
    };
    wait_for_kernel_before();
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
        current[u] = Vector{};
        for (int k = 0; k < Past::kParts; ++k) before[u][k] = Part{};
        fetch(u);
    }

    Pair weight[kWidth];
    float probe = 0.0f;  // becomes NaN if a weight is not finite
    with_dtype(p.weight_dtype, [&](auto type) {
        using P = decltype(type);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
            const float w = parameter<P>(p.weight, d * p.weight_dim_stride + i * p.weight_width_stride);
            weight[i] = twice(w);
            probe += w * 0.0f;
        }
    });
    const bool repairs = probe != 0.0f && lane_token < kWidth - 1;
    const float bias = p.bias ? load_parameter(p.bias, d * p.bias_stride, p.bias_dtype) : 0.0f;

    for (int item = 0; item < count; item += kAhead) {
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
            float window[Past::kTokens + kTokens];
            Past::unpack(before[u], current[u], window);
            fetch(u);
            constexpr int kOldest = Past::kTokens - (kWidth - 1);
            Pair sums[kPairs];
#pragma unroll
            for (int j = 0; j < kPairs; ++j) {
                sums[j] = twice(bias);
#pragma unroll
                for (int i = 0; i < kWidth; ++i) {
                    const int at = kOldest + j + i;
                    sums[j] = multiply_add(weight[i], make_pair(window[at], window[at + kHalf]), sums[j]);
                }
            }
            if (repairs && to_token == 0) {
                // Zeros stood in for the tokens before the row, and some weight is infinite or NaN: skip those taps
                // instead. (The oldest token of the window belongs to no tap of some widths and is zero here. Naming it
                // keeps nvcc from storing the other half of its word in a shared register, for which it would wait
                // right after the load.)
                const auto sum_of = [&](int e) {
                    float sum = bias + window[0];
#pragma unroll
                    for (int i = 0; i < kWidth; ++i)
                        if (lane_token + e + i >= kWidth - 1) sum += low(weight[i]) * window[kOldest + e + i];
                    return sum;
                };
#pragma unroll
                for (int j = 0; j < kPairs; ++j) sums[j] = make_pair(sum_of(j), sum_of(j + kHalf));
            }
            if (p.use_silu) {
#pragma unroll
                for (int j = 0; j < kPairs; ++j) sums[j] = silu(sums[j]);
            }
            const Vector result = vector_of_halves<T, kTokens>(sums);

            if (item + u < count) {
                char* stretch = out + static_cast<int64_t>(token_of_stretch(to_token)) * kSize;
                beside_access(out_offset);
                *reinterpret_cast<Vector*>(stretch + out_offset) = result;
            }
            to_token += plan.stretch_tokens;
            if (to_token >= plan.sequence_tokens) {
                to_token = 0;
                out += plan.out_batch;
            }
        }
    }
}

namespace {

// Tells whether vector.cu's own kernel serves the call.
bool rows_are_whole(const CausalConv1dFwdParams& p) {
    const bool divides = p.seqlen % (16 / element_bytes(p.dtype)) == 0;
    return p.width > 1 && rows_are_plain(p) && divides && begins_are_aligned(p.x, p.dtype) &&
           begins_are_aligned(p.out, p.dtype);
}

// This says how a block's threads lie over rows: `lanes` vectors of one row, `rows` rows, and as many stretches as cover a row.
struct WholeShape {
    int lanes, rows;
    int64_t stretches;
};

WholeShape whole_shape_of(const CausalConv1dFwdParams& p) {
    // A thread that makes only one or two vectors has too little under way, where there are threads enough.
    const int64_t vectors = p.seqlen / (16 / element_bytes(p.dtype));
    int64_t stretches = (vectors + kVectorThreads - 1) / kVectorThreads;
    const auto splits = [&] { return stretches * p.batch < 4 && vectors / stretches >= 2 * kFewestLanes; };
    while (splits() && static_cast<double>(vectors) * p.dim / (2 * stretches) >= 2 * kEnoughThreads) stretches *= 2;
    const int lanes = static_cast<int>((vectors + stretches - 1) / stretches), rows = kVectorThreads / lanes;
    return {lanes, p.dim < rows ? p.dim : rows, stretches};
}

VectorPlan whole_plan_of(const CausalConv1dFwdParams& p, const WholeShape& shape) {
    const int size = element_bytes(p.dtype), tokens = 16 / size;
    VectorPlan plan{};
    plan.stretches = static_cast<uint32_t>(shape.stretches);
    const int64_t items = shape.stretches * p.batch;
    const int64_t channel_groups = (static_cast<int64_t>(p.dim) + shape.rows - 1) / shape.rows;
    const double threads = static_cast<double>(items) * shape.lanes * p.dim;
    // This is the number of vectors of a thread: fewer cost more starts, more leave small problems unevenly spread, and two are
    // loaded together.
    uint32_t log2_each = size == 2 ? 4 : 3;
    const auto enough = [&] { return kEnoughThreads * (size == 4 ? 2.0 : log2_each == 4 ? 4.0 : 1.0); };
    while (log2_each > 1 && (threads / (1 << log2_each) < enough() || items <= 1 << (log2_each - 1))) --log2_each;
    plan.taper = tapered(static_cast<uint32_t>(items), channel_groups, log2_each);
    plan.stretch_tokens = static_cast<int32_t>(shape.lanes) * tokens;
    plan.sequence_tokens = static_cast<int32_t>(shape.stretches) * plan.stretch_tokens;
    plan.x_batch = p.x.batch_stride * size;
    plan.out_batch = p.out.batch_stride * size;
    plan.x_row = static_cast<uint32_t>(p.x.dim_stride * size);
    plan.out_row = static_cast<uint32_t>(p.out.dim_stride * size);
    return plan;
}

}  // namespace

const char* causal_conv1d_vector_refusal(const CausalConv1dFwdParams& p) {
    const char* served = "channel-first x and out (stride 1 along seqlen), widths 1 to 8";
    if (p.width > kMaxFastWidth || p.x.seqlen_stride != 1 || p.out.seqlen_stride != 1) return served;
    if (!rows_are_whole(p)) return causal_conv1d_vector_any_serves(p) ? nullptr : served;
    const WholeShape shape = whole_shape_of(p);
    const auto near = [&](const Sequences& s) {  // whether 32 bits reach from a block's first row to its last
        return s.dim_stride >= 0 && (s.dim_stride * (shape.rows - 1)) * element_bytes(p.dtype) < kOffsetLimit;
    };
    // Items are counted in 32 bits, tokens in 31, those included that only complete a stretch.
    const double items = static_cast<double>(shape.stretches) * p.batch * ((p.dim + shape.rows - 1) / shape.rows);
    return near(p.x) && near(p.out) && items < kOffsetLimit && p.seqlen < INT32_MAX - 4096 ? nullptr : served;
}

void causal_conv1d_vector(const CausalConv1dFwdParams& p, void* /*workspace*/, void* stream) {
    const hipStream_t hip_stream = static_cast<hipStream_t>(stream);
    if (!rows_are_whole(p)) return causal_conv1d_vector_any(p, hip_stream);
    const WholeShape shape = whole_shape_of(p);
    const VectorPlan plan = whole_plan_of(p, shape);
    const dim3 block(shape.lanes, shape.rows, 1), grid = vector_grid(plan.taper);
    const bool early = begins_early(plan.taper);
    with_instance<kMaxFastWidth>(p.dtype, p.width, [&](auto type, auto width) {
        using T = decltype(type);
        constexpr int kWidth = decltype(width)::value;
        HIPCONV_LAUNCH(early, (causal_conv1d_fwd_vector<T, kWidth>), grid, block, 0, hip_stream, p, plan);
    });
    check_launch("causal_conv1d_fwd");
}

}  // namespace hipconv
