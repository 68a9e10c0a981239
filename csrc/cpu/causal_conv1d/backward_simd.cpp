// The causal conv1d backward for host memory, vectorised: for any strides, any width, states and packed sequences. Rows
// are cut into walks; each walk leaves its dweight and dbias in the workspace, and these are added up in order at the end.
//
// Where tokens are neighbours in memory, and taps few, vectors lie along tokens; else they lie along channels.
#include "backward_simd.h"
#include "serial.h"

namespace hipconv {
namespace {

// The result depends on nothing but sizes, strides and types.
bool vectors_along_tokens(const CausalConv1dBwdParams& p) {
    if (p.in.width > kMostTapsAlongTokens) return false;
    const bool across = dim_is_inner(p.in.x) || dim_is_inner(p.dout) || dim_is_inner(p.dx);
    return p.in.dim < kLanes || (p.in.seqlen >= 2 * kLanes && !across);
}

// This counts the rows of partial sums.
int64_t rows_of(const CausalConv1dBwdParams& p) {
    const int64_t each = vectors_along_tokens(p) ? bwd_walk_along_tokens(p) : bwd_walk_along_channels(p);
    return p.in.batch * ceil_of(p.in.seqlen, each);
}

// Adds up the rows of the workspace, in order, in double, because there may be many.
void finish(const CausalConv1dBwdParams& p, int64_t rows) {
    constexpr int64_t kColumns = 64;
    const int64_t columns = (int64_t{p.in.width} + 1) * p.in.dim;
    const auto* partials = static_cast<const float*>(p.partials);
#pragma omp parallel for schedule(static) if (is_parallel(p))
    for (int64_t begin = 0; begin < columns; begin += kColumns) {
        const int64_t count = std::min(kColumns, columns - begin);
        double sums[kColumns] = {};
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t i = 0; i < count; ++i) sums[i] += partials[row * columns + begin + i];
        for (int64_t i = 0; i < count; ++i)
            bwd_store_sum<float>(p, (begin + i) % p.in.dim, static_cast<int>((begin + i) / p.in.dim),
                                 static_cast<float>(sums[i]));
    }
}

}  // namespace

// ---- what the table asks ---------------------------------------------------------------------------------------------------

const char* causal_conv1d_bwd_simd_refusal(const CausalConv1dBwdParams& p) {
    if (const char* refusal = buffered_refusal(p.in.width)) return refusal;
    return p.in.dtype != kF64 && p.in.seqlen > 0 ? nullptr : "x of 16 or 32 bits and a token at least";
}

int64_t causal_conv1d_bwd_simd_workspace(const CausalConv1dBwdParams& p) {
    return rows_of(p) * (p.in.width + 1) * p.in.dim * static_cast<int64_t>(sizeof(float));
}

void causal_conv1d_bwd_simd(const CausalConv1dBwdParams& params, void* workspace, void* /*stream*/) {
    CausalConv1dBwdParams p = params;
    p.partials = workspace;
    vectors_along_tokens(p) ? causal_conv1d_bwd_along_tokens(p) : causal_conv1d_bwd_along_channels(p);
    finish(p, rows_of(p));
}

}  // namespace hipconv
