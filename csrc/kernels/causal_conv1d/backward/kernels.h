// This declares the backward kernels on GPUs, which have a file of their own each, and has their table.
#pragma once

#include "causal_conv1d/backward.h"

namespace hipconv {

const char* causal_conv1d_bwd_tile_refusal(const CausalConv1dBwdParams& params);
int64_t causal_conv1d_bwd_tile_workspace(const CausalConv1dBwdParams& params);
bool causal_conv1d_bwd_tile_is_faster(const CausalConv1dBwdParams& params);
void causal_conv1d_bwd_tile(const CausalConv1dBwdParams& params, void* workspace, void* stream);

const char* causal_conv1d_bwd_rows_refusal(const CausalConv1dBwdParams& params);
int64_t causal_conv1d_bwd_rows_workspace(const CausalConv1dBwdParams& params);
bool causal_conv1d_bwd_rows_is_faster(const CausalConv1dBwdParams& params);
void causal_conv1d_bwd_rows(const CausalConv1dBwdParams& params, void* workspace, void* stream);

const char* causal_conv1d_bwd_runs_refusal(const CausalConv1dBwdParams& params);
int64_t causal_conv1d_bwd_runs_workspace(const CausalConv1dBwdParams& params);
bool causal_conv1d_bwd_runs_is_faster(const CausalConv1dBwdParams& params);
void causal_conv1d_bwd_runs(const CausalConv1dBwdParams& params, void* workspace, void* stream);

const char* causal_conv1d_bwd_vector_refusal(const CausalConv1dBwdParams& params);
int64_t causal_conv1d_bwd_vector_workspace(const CausalConv1dBwdParams& params);
bool causal_conv1d_bwd_vector_is_faster(const CausalConv1dBwdParams& params);
void causal_conv1d_bwd_vector(const CausalConv1dBwdParams& params, void* workspace, void* stream);

const char* causal_conv1d_bwd_staged_refusal(const CausalConv1dBwdParams& params);
int64_t causal_conv1d_bwd_staged_workspace(const CausalConv1dBwdParams& params);
void causal_conv1d_bwd_staged(const CausalConv1dBwdParams& params, void* workspace, void* stream);

int64_t causal_conv1d_bwd_naive_workspace(const CausalConv1dBwdParams& params);
void causal_conv1d_bwd_naive(const CausalConv1dBwdParams& params, void* workspace, void* stream);

// name, refusal, launch, workspace, auto_takes
constexpr KernelRow<CausalConv1dBwdParams> kBwdKernels[] = {
    {"rows", causal_conv1d_bwd_rows_refusal, causal_conv1d_bwd_rows, causal_conv1d_bwd_rows_workspace,
     causal_conv1d_bwd_rows_is_faster},
    {"runs", causal_conv1d_bwd_runs_refusal, causal_conv1d_bwd_runs, causal_conv1d_bwd_runs_workspace,
     causal_conv1d_bwd_runs_is_faster},
    {"tile", causal_conv1d_bwd_tile_refusal, causal_conv1d_bwd_tile, causal_conv1d_bwd_tile_workspace,
     causal_conv1d_bwd_tile_is_faster},
    {"vector", causal_conv1d_bwd_vector_refusal, causal_conv1d_bwd_vector, causal_conv1d_bwd_vector_workspace,
     causal_conv1d_bwd_vector_is_faster},
    {"staged", causal_conv1d_bwd_staged_refusal, causal_conv1d_bwd_staged, causal_conv1d_bwd_staged_workspace},
    {"naive", nullptr, causal_conv1d_bwd_naive, causal_conv1d_bwd_naive_workspace},
};
static_assert(are_named(kBwdKernels, kCausalConv1dBwdNames.gpu), "names stand in causal_conv1d/backward.h too");

}  // namespace hipconv
