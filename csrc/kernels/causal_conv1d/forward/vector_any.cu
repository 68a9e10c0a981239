// The host's side of the channel-first forward kernel for any rows (vector_any_kernel.h): how a launch divides rows; and its
// instances for f32.
#include <hip/hip_runtime.h>

#include "vector_any_kernel.h"

namespace hipconv {

constexpr int kFewestAnyLanes = 8;  // of a row in several stretches, side by side: a cache line of 128 bytes

namespace {

int64_t all_rows_of(const CausalConv1dFwdParams& p) { return p.seq_idx.data ? p.dim : static_cast<int64_t>(p.batch) * p.dim; }

VectorAnyPlan plan_of(const CausalConv1dFwdParams& p, const Division& shape) {
    const int size = element_bytes(p.dtype), tokens = 16 / size;
    VectorAnyPlan plan{};
    plan.stretches = static_cast<uint32_t>(shape.stretches);
    const int64_t all_rows = all_rows_of(p);
    plan.rows = static_cast<uint32_t>(all_rows);
    const int64_t items = (all_rows + shape.rows - 1) / shape.rows;
    const int64_t groups = shape.stretches * (p.seq_idx.data ? p.batch : 1);
    const double threads = static_cast<double>(items) * shape.rows * shape.lanes * static_cast<double>(groups);
    // The number of vectors of a thread: fewer cost more starts, more leave small problems unevenly spread and need
    // more records, and two are loaded together.
    uint32_t log2_each = 4;
    const auto enough = [&] { return kEnoughThreads * (log2_each == 4 ? 2.0 : 1.0); };
    while (log2_each > 0 && (shape.rows << log2_each) * 2 * p.width * 4 > kRecordBytes) --log2_each;
    while (log2_each > 1 && (threads / (1 << log2_each) < enough() || items <= 1 << (log2_each - 1))) --log2_each;
    plan.taper = tapered(static_cast<uint32_t>(items), groups, log2_each);
    const int32_t sequences_on = shape.rows / p.dim;
    const auto on = [&](const Sequences& s) {
        return (sequences_on * s.batch_stride + plan.channels_on * s.dim_stride) * size;
    };
    const auto wrap = [&](const Sequences& s) { return (s.batch_stride - p.dim * s.dim_stride) * size; };
    plan.channels_on = shape.rows % p.dim;
    plan.x_on = on(p.x);
    plan.out_on = on(p.out);
    plan.x_wrap = wrap(p.x);
    plan.out_wrap = wrap(p.out);
    plan.edges = edges_of(p, shape.on_boundaries);
    plan.last_inner_x = p.seqlen - 2 * tokens;
    return plan;
}

}  // namespace

// This takes, of the ways to divide rows, the one that leaves the fewest threads idle.
Division division_of(const CausalConv1dFwdParams& p, int64_t most_rows) {
    const int tokens = 16 / element_bytes(p.dtype);
    const bool even = begins_are_aligned(p.out, p.dtype);
    const auto divide = [&](int64_t vectors, int64_t stretches) {
        const int lanes = static_cast<int>((vectors + stretches - 1) / stretches), most = kVectorThreads / lanes;
        return Division{lanes, most_rows < most ? static_cast<int>(most_rows) : most, stretches, even || p.seqlen > tokens};
    };
    // A row that begins anywhere in a vector is cut into more vectors.
    const int64_t vectors = (static_cast<int64_t>(p.seqlen) + (even || p.seqlen <= tokens ? 1 : 2) * (tokens - 1)) / tokens;
    const int64_t fewest = (vectors + kVectorThreads - 1) / kVectorThreads;
    Division best = divide(vectors, fewest);
    for (int64_t stretches = fewest; stretches < 4 * fewest + 8 && vectors / stretches >= kFewestAnyLanes; ++stretches) {
        const Division division = divide(vectors, stretches);
        const auto threads = [](const Division& v) { return (v.lanes * v.rows + 31) / 32 * 32 * v.stretches; };
        if (threads(division) * best.rows < threads(best) * division.rows) best = division;
    }
    return best;
}

RowEdges edges_of(const CausalConv1dFwdParams& p, bool on_boundaries) {
    const int size = element_bytes(p.dtype), tokens = 16 / size;
    RowEdges edges{};
    edges.boundary = on_boundaries ? 15 : 0;
    edges.full_end = on_boundaries && p.seqlen >= tokens ? static_cast<uint32_t>(p.seqlen - tokens) + 1 : 0;
    // The addresses between which elements of x lie.
    const int64_t to_last = (p.batch - 1) * p.x.batch_stride, past_last_row = (p.dim - 1) * p.x.dim_stride + p.seqlen;
    const int64_t first = to_last < 0 ? to_last : 0, last = (to_last > 0 ? to_last : 0) + past_last_row;
    edges.x_begin = reinterpret_cast<uint64_t>(p.x.data) + static_cast<uint64_t>(first * size);
    edges.x_end = reinterpret_cast<uint64_t>(p.x.data) + static_cast<uint64_t>(last * size);
    return edges;
}

bool causal_conv1d_vector_any_serves(const CausalConv1dFwdParams& p) {
    const Division shape = division_of(p, all_rows_of(p));
    const double pieces = static_cast<double>(all_rows_of(p)) * static_cast<double>(shape.stretches) * p.batch;
    return p.x.dim_stride >= 0 && p.out.dim_stride >= 0 && pieces < kOffsetLimit && p.seqlen < INT32_MAX - 4096;
}

void causal_conv1d_vector_any(const CausalConv1dFwdParams& p, hipStream_t stream) {
    const Division shape = division_of(p, all_rows_of(p));
    const VectorAnyPlan plan = plan_of(p, shape);
    const dim3 block(shape.lanes, shape.rows, 1), grid = vector_grid(plan.taper);
    const bool whole = rows_are_whole_vectors(p);
    with_dtype(p.dtype, [&](auto type) { launch_vector_any<decltype(type)>(p, plan, grid, block, whole, stream); });
}

}  // namespace hipconv
