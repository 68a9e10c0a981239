// This declares the forward kernels on GPUs, which have a file of their own each, and has their table.
#pragma once

#include "../common/launch.h"
#include "causal_conv1d/forward.h"

namespace hipconv {

constexpr int kMaxFastWidth = 8;  // of the kernels that are compiled for a width

const char* causal_conv1d_tile_refusal(const CausalConv1dFwdParams& params);
void causal_conv1d_tile(const CausalConv1dFwdParams& params, void* workspace, void* stream);

const char* causal_conv1d_vector_refusal(const CausalConv1dFwdParams& params);
void causal_conv1d_vector(const CausalConv1dFwdParams& params, void* workspace, void* stream);

const char* causal_conv1d_shared_refusal(const CausalConv1dFwdParams& params);
void causal_conv1d_shared(const CausalConv1dFwdParams& params, void* workspace, void* stream);

const char* causal_conv1d_lines_refusal(const CausalConv1dFwdParams& params);
void causal_conv1d_lines(const CausalConv1dFwdParams& params, void* workspace, void* stream);

const char* causal_conv1d_staged_refusal(const CausalConv1dFwdParams& params);
void causal_conv1d_staged(const CausalConv1dFwdParams& params, void* workspace, void* stream);

const char* causal_conv1d_naive_form(const CausalConv1dFwdParams& params);
void causal_conv1d_naive(const CausalConv1dFwdParams& params, void* workspace, void* stream);

// There are two channel-first kernels: "shared" serves the short packed rows that are not of whole vectors. It serves short
// rows of whole vectors only where they are many and each has an odd number of vectors: they divide badly among the lanes of
// "vector".
inline bool shared_is_faster(const CausalConv1dFwdParams& p) {
    const int vector = 16 / element_bytes(p.dtype);
    const int64_t rows = static_cast<int64_t>(p.batch) * p.dim;
    const bool divides = p.seqlen % (rows >= kEnoughThreads ? 2 * vector : vector) == 0 || p.seqlen == vector;
    const bool fills_the_card = p.seqlen <= 512 || rows >= kEnoughThreads / 8;  // by tiles, of which longer rows make fewer
    return !divides && fills_the_card && !causal_conv1d_shared_refusal(p);
}
// "lines" makes short rows that "shared" does not: the others give a thread or a block a row, or a part of one.
bool lines_is_faster(const CausalConv1dFwdParams& p);
inline bool tile_is_faster(const CausalConv1dFwdParams& p) { return !lines_is_faster(p); }
inline bool vector_is_faster(const CausalConv1dFwdParams& p) { return !shared_is_faster(p) && !lines_is_faster(p); }

// name, refusal, launch, workspace, auto_takes, form
constexpr KernelRow<CausalConv1dFwdParams> kFwdKernels[] = {
    {"tile", causal_conv1d_tile_refusal, causal_conv1d_tile, nullptr, tile_is_faster},
    {"vector", causal_conv1d_vector_refusal, causal_conv1d_vector, nullptr, vector_is_faster},
    {"shared", causal_conv1d_shared_refusal, causal_conv1d_shared, nullptr, shared_is_faster},
    {"lines", causal_conv1d_lines_refusal, causal_conv1d_lines},
    {"staged", causal_conv1d_staged_refusal, causal_conv1d_staged},
    {"naive", nullptr, causal_conv1d_naive, nullptr, nullptr, causal_conv1d_naive_form},
};
static_assert(are_named(kFwdKernels, kCausalConv1dFwdNames.gpu), "names stand in causal_conv1d/forward.h too");

}  // namespace hipconv
