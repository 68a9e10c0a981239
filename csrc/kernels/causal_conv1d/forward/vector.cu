// This kernel is the causal conv1d forward, channel-first ("vector"): neighbouring tokens are neighbours in memory.
//
// A thread makes the outputs of 16-byte vectors of one channel, each from that vector of x and a halo of the kWidth - 1 tokens
// before it, which lie in the same cache line or in the one the neighbouring lane reads. There is no LDS and no barrier. It
// walks several vectors and prefetches kAhead of them, so that memory always has work while registers stay few and threads
// many.
//
// Rows need not begin or end on a 16-byte boundary (kRagged): vectors lie on the boundaries of out. Those that a row fills only
// in part are read whole where memory before and after the row is x's as well, and written element by element. If x is not
// aligned as out is, all of x is read element by element. A row of less than a vector is one vector, wherever it begins.
//
// Bytes: each input is read once from memory (and up to half of it once more from cache), each output is written once.
#include <hip/hip_runtime.h>

#include "../common/launch.h"
#include "../common/parts.h"
#include "kernels.h"
#include "launch/check.h"
#include "launch/taper.h"

namespace hipconv {

constexpr int kVectorThreads = 128;
constexpr unsigned kFewestEarly = 1024;  // blocks of a launch that begins early: an H200 lost 0.3 us with 256, gained with 2048
constexpr int kMinLanes = 8;             // of a row, side by side: a cache line of 128 bytes

// This plan says how a launch divides the work. A block is blockDim.x vectors of tokens by blockDim.y channels. The items of a
// channel are the stretches of blockDim.x vectors of each of its sequences, one sequence after another; a thread makes its
// vector of some of them.
struct VectorPlan {
    Taper taper;                 // rows are groups of blockDim.y channels
    uint32_t stretches;          // of a sequence
    int32_t stretch_tokens;      // of one stretch
    int32_t sequence_tokens;     // of all stretches of a sequence: its length rounded up
    int64_t x_batch, out_batch;  // bytes from sequence to sequence
    uint32_t x_row, out_row;     // bytes from channel to channel
    bool on_boundaries;       // ragged rows: vectors lie on out's 16-byte boundaries; if not, they count from the row's start
    uint64_t x_begin, x_end;  // ragged rows: the addresses between which x may be read in whole vectors, if any
};

constexpr int vector_blocks(int width, int bytes, bool ragged) { return ragged ? 8 : width > 4 ? 8 : bytes == 2 ? 10 : 12; }

template <typename T, int kWidth, bool kRagged>
__global__ void HIPCONV_LAUNCH_BOUNDS(kVectorThreads, vector_blocks(kWidth, sizeof(T), kRagged))
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
    // This is the token that this thread's vector begins with; it is negative where it begins before its row.
    const auto token_of = [&](int32_t stretch_token, const char* out_row) {
        const int32_t token = token_of_stretch(stretch_token) + lane_token;
        if (!kRagged || !plan.on_boundaries) return token;
        return token - static_cast<int32_t>(reinterpret_cast<uintptr_t>(out_row + lane_out) % 16 / sizeof(T));
    };

    Vector current[kAhead];
    Part before[kAhead][Past::kParts];
    int loaded = 0;
    const auto fetch = [&](int u) {
        if (loaded == count) return;
        ++loaded;
        if constexpr (kRagged) {
            const int32_t t = token_of(in_token, out_of_in);
            if (t < p.seqlen) {
                const T* row = reinterpret_cast<const T*>(x + lane_x);
                const uint64_t at = reinterpret_cast<uint64_t>(row + t);
                if (at - Past::kTokens * kSize >= plan.x_begin && at + 16 <= plan.x_end) {
                    current[u] = *global_pointer<const Vector>(at);
#pragma unroll
                    for (int k = 0; k < Past::kParts; ++k)
                        before[u][k] = *global_pointer<const Part>(at - (Past::kTokens - k * Past::kPartTokens) * kSize);
                } else {
                    current[u] = load_part<T, kTokens>(row, t, p.seqlen);
#pragma unroll
                    for (int k = 0; k < Past::kParts; ++k)
                        before[u][k] =
                            load_part<T, Past::kPartTokens>(row, t - Past::kTokens + k * Past::kPartTokens, p.seqlen);
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
    const bool repairs = probe != 0.0f && (kRagged || lane_token < kWidth - 1);
    const float bias = p.bias ? load_parameter(p.bias, d * p.bias_stride, p.bias_dtype) : 0.0f;

    for (int item = 0; item < count; item += kAhead) {
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
            float window[Past::kTokens + kTokens];
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
                    if (plan.on_boundaries && t >= 0 && t + kTokens <= p.seqlen)
                        *reinterpret_cast<Vector*>(row + t) = result;
                    else
                        store_part<T, kTokens>(row, t, p.seqlen, result);
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

// Tells whether every row of x and out begins and ends on a 16-byte boundary.
bool rows_are_aligned(const CausalConv1dFwdParams& p) {
    const int tokens = 16 / element_bytes(p.dtype);
    const auto aligned = [&](const Sequences& s) {
        return reinterpret_cast<uintptr_t>(s.data) % 16 == 0 && s.dim_stride % tokens == 0 && s.batch_stride % tokens == 0;
    };
    return p.seqlen % tokens == 0 && aligned(p.x) && aligned(p.out);
}

// Tells whether every row of x lies in its 16 bytes as the same row of out does.
bool aligned_alike(const CausalConv1dFwdParams& p) {
    const int tokens = 16 / element_bytes(p.dtype);
    return reinterpret_cast<uintptr_t>(p.x.data) % 16 == reinterpret_cast<uintptr_t>(p.out.data) % 16 &&
           (p.x.dim_stride - p.out.dim_stride) % tokens == 0 && (p.x.batch_stride - p.out.batch_stride) % tokens == 0;
}

// This says how a block's threads lie over rows: `lanes` vectors of one row, `rows` rows, and as many stretches as cover a row.
struct VectorShape {
    int lanes, rows;
    int64_t stretches;
    bool on_boundaries;
};

VectorShape shape_of(const CausalConv1dFwdParams& p) {
    const int tokens = 16 / element_bytes(p.dtype);
    const auto shape = [&](int64_t vectors, int64_t stretches) {
        const int lanes = static_cast<int>((vectors + stretches - 1) / stretches);
        return VectorShape{lanes, kVectorThreads / lanes, stretches, p.seqlen > tokens};
    };
    if (rows_are_aligned(p)) {
        const int64_t vectors = p.seqlen / tokens;
        return shape(vectors, (vectors + kVectorThreads - 1) / kVectorThreads);
    }
    // A ragged row is cut anywhere into vectors. It is divided in the way that leaves the fewest threads idle.
    if (p.seqlen <= tokens) return shape(1, 1);
    const int64_t vectors = (static_cast<int64_t>(p.seqlen) + 2 * (tokens - 1)) / tokens;
    const int64_t fewest = (vectors + kVectorThreads - 1) / kVectorThreads;
    VectorShape best = shape(vectors, fewest);
    for (int64_t stretches = fewest; stretches < 4 * fewest + 8 && vectors / stretches >= kMinLanes; ++stretches) {
        const VectorShape s = shape(vectors, stretches);
        const auto threads = [](const VectorShape& v) { return (v.lanes * v.rows + 31) / 32 * 32 * v.stretches; };
        if (threads(s) * best.rows < threads(best) * s.rows) best = s;
    }
    return best;
}

template <typename T, int kWidth, bool kRagged>
void launch(const CausalConv1dFwdParams& p, hipStream_t stream) {
    const VectorShape shape = shape_of(p);
    const dim3 block(shape.lanes, shape.rows, 1);
    VectorPlan plan{};
    plan.stretches = static_cast<uint32_t>(shape.stretches);
    const int64_t items = shape.stretches * p.batch;
    const int64_t channel_groups = (static_cast<int64_t>(p.dim) + shape.rows - 1) / shape.rows;
    const double threads = static_cast<double>(items) * shape.lanes * p.dim;
    // This is the number of vectors of a thread: fewer cost more starts, more leave small problems unevenly spread, and two are
    // loaded together.
    uint32_t log2_each = sizeof(T) == 2 && !kRagged ? 4 : 3;
    const auto enough = [&] { return kEnoughThreads * (sizeof(T) == 4 ? 2.0 : log2_each == 4 ? 4.0 : 1.0); };
    while (log2_each > 1 && (threads / (1 << log2_each) < enough() || items <= 1 << (log2_each - 1))) --log2_each;
    plan.taper = tapered(static_cast<uint32_t>(items), channel_groups, log2_each);
    plan.stretch_tokens = static_cast<int32_t>(shape.lanes) * (16 / static_cast<int>(sizeof(T)));
    plan.sequence_tokens = static_cast<int32_t>(shape.stretches) * plan.stretch_tokens;
    plan.x_batch = p.x.batch_stride * static_cast<int64_t>(sizeof(T));
    plan.out_batch = p.out.batch_stride * static_cast<int64_t>(sizeof(T));
    plan.x_row = static_cast<uint32_t>(p.x.dim_stride * sizeof(T));
    plan.out_row = static_cast<uint32_t>(p.out.dim_stride * sizeof(T));
    plan.on_boundaries = shape.on_boundaries;
    if (kRagged && shape.on_boundaries && aligned_alike(p)) {
        const auto bytes = [](int64_t elements) { return static_cast<uint64_t>(elements) * sizeof(T); };
        plan.x_begin = reinterpret_cast<uint64_t>(p.x.data);
        plan.x_end = plan.x_begin + bytes((p.batch - 1) * p.x.batch_stride + (p.dim - 1) * p.x.dim_stride + p.seqlen);
    }

    const unsigned blocks = plan.taper.blocks;
    const dim3 grid = blocks <= kGridLimit ? dim3(blocks, 1, 1) : grid_of(kGridLimit, (blocks + kGridLimit - 1) / kGridLimit);
    const bool early = blocks >= kFewestEarly;
    HIPCONV_LAUNCH(early, (causal_conv1d_fwd_vector<T, kWidth, kRagged>), grid, block, 0, stream, p, plan);
    check_launch("causal_conv1d_fwd");
}

}  // namespace

const char* causal_conv1d_vector_refusal(const CausalConv1dFwdParams& p) {
    const char* served = "channel-first x and out (stride 1 along seqlen), widths 2 to 8, plain rows";
    if (!rows_are_plain(p) || p.width < 2 || p.width > kMaxFastWidth || p.x.seqlen_stride != 1 || p.out.seqlen_stride != 1)
        return served;
    const VectorShape shape = shape_of(p);
    const auto near = [&](const Sequences& s) {  // whether 32 bits reach from a block's first row to its last
        return s.dim_stride >= 0 && (s.dim_stride * (shape.rows - 1)) * element_bytes(p.dtype) < kOffsetLimit;
    };
    // Items are counted in 32 bits, tokens in 31, those included that only complete a stretch.
    const double items = static_cast<double>(shape.stretches) * p.batch * ((p.dim + shape.rows - 1) / shape.rows);
    return near(p.x) && near(p.out) && items < kOffsetLimit && p.seqlen < INT32_MAX - 4096 ? nullptr : served;
}

void causal_conv1d_vector(const CausalConv1dFwdParams& p, void* /*workspace*/, void* stream) {
    with_instance<kMaxFastWidth>(p.dtype, p.width, [&](auto type, auto width) {
        using T = decltype(type);
        constexpr int kWidth = decltype(width)::value;
        const hipStream_t s = static_cast<hipStream_t>(stream);
        rows_are_aligned(p) ? launch<T, kWidth, false>(p, s) : launch<T, kWidth, true>(p, s);
    });
}

}  // namespace hipconv
