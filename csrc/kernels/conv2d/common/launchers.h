// The kernels behind conv2d.h, each by the functions that the table of algorithms in conv2d/naive/naive.cu has.
#pragma once

#include "conv2d/conv2d.h"

namespace hipconv {

// Matrix cores: output pixels by filters in tiles, the sum over channels and taps split among blocks where tiles are few.
std::vector<Conv2dTile> conv2d_implicit_gemm_tiles(const std::string& arch, DType dtype);
const char* conv2d_implicit_gemm_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
int64_t conv2d_implicit_gemm_workspace(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_implicit_gemm(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

// The same product by warpgroups (sm_90), operands brought to LDS by other waves and the copy engine.
std::vector<Conv2dTile> conv2d_warpgroup_gemm_tiles(const std::string& arch, DType dtype);
const char* conv2d_warpgroup_gemm_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
int64_t conv2d_warpgroup_gemm_workspace(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_warpgroup_gemm(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

// Either of them on x that was brought to memory where it can be read by 16 bytes. Their tiles are the GEMM's own.
const char* conv2d_relaid_warpgroup_gemm_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
int64_t conv2d_relaid_warpgroup_gemm_workspace(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_relaid_warpgroup_gemm(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

const char* conv2d_relaid_implicit_gemm_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
int64_t conv2d_relaid_implicit_gemm_workspace(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_relaid_implicit_gemm(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

}  // namespace hipconv
