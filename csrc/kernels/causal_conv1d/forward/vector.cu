// This kernel is the causal conv1d forward, channel-first ("vector"): neighbouring tokens are neighbours in memory.
//
// A thread makes the outputs of 16-byte vectors of one channel, each from that vector of x and a halo of the kWidth - 1 tokens
// before it, which lie in the same cache line or in the one the neighbouring lane reads. There is no LDS and no barrier. It
// walks several vectors and prefetches kAhead of them, so that memory always has work while registers stay few and threads
// many.
//
// Each row is one sequence without a state. All others have the kernel of vector_any_kernel.h, and so do ragged rows of rare
// widths. Rows are whole where they begin and end on 16-byte boundaries. Ragged ones are cut on the boundaries of out; a vector
// that a row fills only in part is read whole where memory before and after the row is x's as well, and written in parts. Where
// x does not lie in its 16 bytes as out does (Rows::apart), a vector and its halo are read as the 16-byte granules around them,
// whose words then move into place; AMD's cards read vectors at any address.
//
// Bytes: each input is read once from memory (and up to half of it once more from cache), each output is written once.
#include <hip/hip_runtime.h>

#include "../common/vector_math.h"
#include "launch/check.h"
#include "vector.h"
#include "vector_parts.h"

namespace hipconv {

constexpr int kFewestLanes = 4;      // of a whole row, side by side
constexpr int kMostRaggedWidth = 4;  // of rows that are not whole

// Tells how rows lie: they are whole vectors; they are not, but x lies in its 16 bytes as out does; or it does not.
enum class Rows { whole, alike, apart };

constexpr int vector_blocks(int width, int bytes, Rows rows) {
    return rows != Rows::whole || width > 4 ? 8 : bytes == 2 ? 10 : 12;
}

template <typename T, int kWidth, Rows kRows>
__global__ void HIPCONV_LAUNCH_BOUNDS(kVectorThreads, vector_blocks(kWidth, sizeof(T), kRows))
    causal_conv1d_fwd_vector(CausalConv1dFwdParams p, VectorPlan plan) {
    constexpr int kTokens = 16 / static_cast<int>(sizeof(T));
    constexpr int kAhead = 2;  // measured on an H200
    constexpr int kHalf = kTokens / 2, kPairs = kTokens / 2;
    constexpr int kSize = static_cast<int>(sizeof(T));
    using Vector = Words<T, kTokens>;
    using Past = TokensBefore<T, kWidth>;
    using Part = typename Past::Part;
    constexpr bool kRagged = kRows != Rows::whole, kMoves = kRows == Rows::apart && !kUnalignedVectors;

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
    const char* out_of_in = out;  // the row of out that belongs to the next vector to load
    int32_t in_token = static_cast<int32_t>(first - batch * plan.stretches) * plan.stretch_tokens, to_token = in_token;
    const uint32_t lane_x = threadIdx.y * plan.x_row, lane_out = threadIdx.y * plan.out_row;
    const int32_t lane_token = static_cast<int32_t>(threadIdx.x) * kTokens;
    uint32_t x_offset = lane_x + lane_token * kSize, out_offset = lane_out + lane_token * kSize;

    // This is where a stretch begins: the last one ends with its row, and overlaps the one before if stretches do not divide
    // the row. (Ragged rows have lanes to spare instead.)
    const auto token_of_stretch = [&](int32_t token) {
        return !kRagged && token > 0 && token + plan.stretch_tokens > p.seqlen ? p.seqlen - plan.stretch_tokens : token;
    };

    // The token that this thread's vector begins with; it is negative where it begins before its row.
    const auto token_of = [&](int32_t stretch_token, const char* out_row) {
        const int32_t token = token_of_stretch(stretch_token) + lane_token;
        if (!kRagged) return token;
        const uint32_t address = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(out_row)) + lane_out;
        return token - static_cast<int32_t>((address & plan.edges.boundary) / kSize);
    };

    Vector current[kAhead], next[kAhead];
    Part before[kAhead][Past::kParts];
    uint32_t shift[kAhead];  // bytes that words have to move by
    int loaded = 0;
    const auto fetch = [&](int u) {
        if (loaded == count) return;
        ++loaded;
        if constexpr (kRagged) {
            const int32_t t = token_of(in_token, out_of_in);
            if (t < p.seqlen) {
                const T* row = reinterpret_cast<const T*>(x + lane_x);
                shift[u] = kMoves ? static_cast<uint32_t>(reinterpret_cast<uintptr_t>(row + t)) % 16 : 0;
                const char* const at = global_address<const char>(reinterpret_cast<const char*>(row + t) - shift[u]);
                const uint64_t begin = reinterpret_cast<uint64_t>(at);
                if (begin - Past::kTokens * kSize < plan.edges.x_begin ||
                    begin + (shift[u] != 0 ? 32 : 16) > plan.edges.x_end) {
                    shift[u] = 0;
                    current[u] = load_part<T, kTokens>(row, t, p.seqlen);
#pragma unroll
                    for (int k = 0; k < Past::kParts; ++k)
                        before[u][k] =
                            load_part<T, Past::kPartTokens>(row, t - Past::kTokens + k * Past::kPartTokens, p.seqlen);
                } else if constexpr (kRows == Rows::apart && kUnalignedVectors) {
                    current[u] = load_unaligned<Vector>(at);
                    uint32_t back = Past::kTokens * kSize;
                    beside_access(back);  // lest two loads become others, whose registers would have to be moved at once
#pragma unroll
                    for (int k = 0; k < Past::kParts; ++k)
                        before[u][k] = load_unaligned<Part>(at - back + k * Past::kPartTokens * kSize);
                } else {
                    current[u] = *reinterpret_cast<const Vector*>(at);
                    if (kMoves && shift[u] != 0) next[u] = *reinterpret_cast<const Vector*>(at + 16);
#pragma unroll
                    for (int k = 0; k < Past::kParts; ++k)
                        before[u][k] = *reinterpret_cast<const Part*>(at - (Past::kTokens - k * Past::kPartTokens) * kSize);
                }
            }
        } else {
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
        }
        in_token += plan.stretch_tokens;
        if (in_token >= plan.sequence_tokens) {
            in_token = 0;
            x += plan.x_batch;
            out_of_in += plan.out_batch;
        }
    };
    wait_for_kernel_before();
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
        current[u] = next[u] = Vector{};
        shift[u] = 0;
        for (int k = 0; k < Past::kParts; ++k) before[u][k] = Part{};
        fetch(u);
    }

    const uint32_t bias_bits = load_bias_bits(p, d);
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
    const bool repairs = probe != 0.0f && (kRagged || lane_token < kWidth - 1);
    const float bias = parameter_of(bias_bits, p.bias_dtype);

    for (int item = 0; item < count; item += kAhead) {
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
            float window[Past::kTokens + kTokens];
            if constexpr (kMoves)
                unpack_moved<T, kWidth>(before[u], current[u], next[u], shift[u], window);
            else
                Past::unpack(before[u], current[u], window);
            fetch(u);
            const int32_t t = token_of(to_token, out);
            if (kRagged && t < kWidth - 1) {  // tokens read of the row before
#pragma unroll
                for (int k = 0; k < Past::kTokens + kTokens - 1; ++k)
                    if (k < Past::kTokens - t) window[k] = 0.0f;
            }
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
            if (repairs && (kRagged ? t < kWidth - 1 : to_token == 0)) {
                // Zeros stood in for the tokens before the row, and some weight is infinite or NaN: skip those taps
                // instead. (The oldest token of the window belongs to no tap of some widths and is zero here. Naming it
                // keeps nvcc from storing the other half of its word in a shared register, for which it would wait
                // right after the load.)
                const auto sum_of = [&](int e) {
                    float sum = bias + window[0];
#pragma unroll
                    for (int i = 0; i < kWidth; ++i)
                        if (t + e + i >= kWidth - 1) sum += low(weight[i]) * window[kOldest + e + i];
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

            if (item + u < count && (!kRagged || t < p.seqlen)) {
                if constexpr (kRagged) {
                    T* row = reinterpret_cast<T*>(out + lane_out);
                    if (static_cast<uint32_t>(t) < plan.edges.full_end)
                        *reinterpret_cast<Vector*>(row + t) = result;
                    else
                        store_part_in_words<T, kTokens>(row, t, p.seqlen, result);
                } else {
                    char* stretch = out + static_cast<int64_t>(token_of_stretch(to_token)) * kSize;
                    beside_access(out_offset);
                    *reinterpret_cast<Vector*>(stretch + out_offset) = result;
                }
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

// Tells how a launch lies over the rows: `lanes` vectors of one row, `rows` rows, and as many stretches as cover a row.
struct Shape {
    Rows form;
    int lanes, rows;
    int64_t stretches;
    bool on_boundaries;
};

Shape whole_shape_of(const CausalConv1dFwdParams& p) {
    // A thread that makes only one or two vectors has too little under way, where there are threads enough.
    const int64_t vectors = p.seqlen / (16 / element_bytes(p.dtype));
    int64_t stretches = (vectors + kVectorThreads - 1) / kVectorThreads;
    const auto splits = [&] { return stretches * p.batch < 4 && vectors / stretches >= 2 * kFewestLanes; };
    while (splits() && static_cast<double>(vectors) * p.dim / (2 * stretches) >= 2 * kEnoughThreads) stretches *= 2;
    const int lanes = static_cast<int>((vectors + stretches - 1) / stretches), rows = kVectorThreads / lanes;
    return {Rows::whole, lanes, p.dim < rows ? p.dim : rows, stretches, true};
}

Shape shape_of(const CausalConv1dFwdParams& p) {
    if (rows_are_whole_vectors(p)) return whole_shape_of(p);
    const Division by = division_of(p, p.dim);
    const bool alike = by.on_boundaries && rows_lie_alike(p);
    return {alike ? Rows::alike : Rows::apart, by.lanes, by.rows, by.stretches, by.on_boundaries};
}

VectorPlan plan_of(const CausalConv1dFwdParams& p, const Shape& shape) {
    const int size = element_bytes(p.dtype), tokens = 16 / size;
    VectorPlan plan{};
    plan.stretches = static_cast<uint32_t>(shape.stretches);
    const int64_t items = shape.stretches * p.batch;
    const int64_t channel_groups = (static_cast<int64_t>(p.dim) + shape.rows - 1) / shape.rows;
    const double threads = static_cast<double>(items) * shape.lanes * p.dim;
    // The number of vectors of a thread: fewer cost more starts, more leave small problems unevenly spread, and two are
    // loaded together.
    uint32_t log2_each = size == 2 && shape.form != Rows::alike ? 4 : 3;
    const auto enough = [&] { return kEnoughThreads * (size == 4 ? 2.0 : log2_each == 4 ? 4.0 : 1.0); };
    while (log2_each > 1 && (threads / (1 << log2_each) < enough() || items <= 1 << (log2_each - 1))) --log2_each;
    plan.taper = tapered(static_cast<uint32_t>(items), channel_groups, log2_each);
    plan.stretch_tokens = static_cast<int32_t>(shape.lanes) * tokens;
    plan.sequence_tokens = static_cast<int32_t>(shape.stretches) * plan.stretch_tokens;
    plan.x_batch = p.x.batch_stride * size;
    plan.out_batch = p.out.batch_stride * size;
    plan.x_row = static_cast<uint32_t>(p.x.dim_stride * size);
    plan.out_row = static_cast<uint32_t>(p.out.dim_stride * size);
    plan.edges = edges_of(p, shape.on_boundaries);
    return plan;
}

// Tells whether this file's own kernel serves the call.
bool is_own(const CausalConv1dFwdParams& p) {
    if (p.width < 2 || !rows_are_plain(p) || (p.width > kMostRaggedWidth && !rows_are_whole_vectors(p))) return false;
    const Shape shape = shape_of(p);
    const auto near = [&](const Sequences& s) {  // whether 32 bits reach from a block's first row to its last
        return s.dim_stride >= 0 && (s.dim_stride * (shape.rows - 1)) * element_bytes(p.dtype) < kOffsetLimit;
    };
    // Items are counted in 32 bits, tokens in 31, those included that only complete a stretch.
    const double items = static_cast<double>(shape.stretches) * p.batch * ((p.dim + shape.rows - 1) / shape.rows);
    return near(p.x) && near(p.out) && items < kOffsetLimit && p.seqlen < INT32_MAX - 4096;
}

}  // namespace

const char* causal_conv1d_vector_refusal(const CausalConv1dFwdParams& p) {
    const bool is_channel_first = p.width <= kMaxFastWidth && p.x.seqlen_stride == 1 && p.out.seqlen_stride == 1;
    if (is_channel_first && (is_own(p) || causal_conv1d_vector_any_serves(p))) return nullptr;
    return "channel-first x and out (stride 1 along seqlen), widths 1 to 8";
}

void causal_conv1d_vector(const CausalConv1dFwdParams& p, void* /*workspace*/, void* stream) {
    const hipStream_t hip_stream = static_cast<hipStream_t>(stream);
    if (!is_own(p)) return causal_conv1d_vector_any(p, hip_stream);
    const Shape shape = shape_of(p);
    const VectorPlan plan = plan_of(p, shape);
    const dim3 block(shape.lanes, shape.rows, 1), grid = vector_grid(plan.taper);
    const bool early = begins_early(plan.taper);
    with_instance<kMaxFastWidth>(p.dtype, p.width, [&](auto type, auto width) {
        using T = decltype(type);
        constexpr int kWidth = decltype(width)::value;
        if (shape.form == Rows::whole)
            HIPCONV_LAUNCH(early, (causal_conv1d_fwd_vector<T, kWidth, Rows::whole>), grid, block, 0, hip_stream, p, plan);
        if constexpr (kWidth <= kMostRaggedWidth) {
            if (shape.form == Rows::alike)
                HIPCONV_LAUNCH(early, (causal_conv1d_fwd_vector<T, kWidth, Rows::alike>), grid, block, 0, hip_stream, p, plan);
            if (shape.form == Rows::apart)
                HIPCONV_LAUNCH(early, (causal_conv1d_fwd_vector<T, kWidth, Rows::apart>), grid, block, 0, hip_stream, p, plan);
        }
    });
    check_launch("causal_conv1d_fwd");
}

}  // namespace hipconv
