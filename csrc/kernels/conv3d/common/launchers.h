// This declares the algorithms behind conv3d.h: the functions that the table in algorithms.cu names.
#pragma once

#include "conv3d/conv3d.h"

namespace hipconv {

struct FilterLayout;

// A group for each channel of x: no product of matrices.
const char* conv3d_depthwise_refusal(const Conv3dParams& params, const Conv3dCard& card);
const char* conv3d_depthwise_form(const Conv3dParams& params, const Conv3dCard& card);
void conv3d_depthwise(const Conv3dParams& params, const Conv3dCard& card, void* workspace, void* stream);

// The taps of a frame side by side among few filters, on matrix cores; x is read once, for all taps.
const char* conv3d_few_filters_refusal(const Conv3dParams& params, const Conv3dCard& card);
int64_t conv3d_few_filters_workspace(const Conv3dParams& params, const Conv3dCard& card);
void conv3d_few_filters(const Conv3dParams& params, const Conv3dCard& card, void* workspace, void* stream);

// The same by warpgroups (sm_90), which multiply the patches of frames that TMA brings. The workspace is that of few_filters.
const char* conv3d_few_warpgroups_refusal(const Conv3dParams& params, const Conv3dCard& card);
void conv3d_few_warpgroups(const Conv3dParams& params, const Conv3dCard& card, void* workspace, void* stream);

// Launches a call that warpgroups serve, by filters that lie as `layout` says. It writes the next call's cache if it can.
void conv3d_launch_few_warpgroups(const Conv3dParams& params, const FilterLayout& layout, const void* filters,
                                  const Conv3dCard& card, void* stream);

// Tiles of a frame's pixels by filters on matrix cores, tap after tap of one frame after another.
const char* conv3d_implicit_gemm_refusal(const Conv3dParams& params, const Conv3dCard& card);
const char* conv3d_implicit_gemm_form(const Conv3dParams& params, const Conv3dCard& card);
int64_t conv3d_implicit_gemm_workspace(const Conv3dParams& params, const Conv3dCard& card);
void conv3d_implicit_gemm(const Conv3dParams& params, const Conv3dCard& card, void* workspace, void* stream);

// The same product by warpgroups (sm_90); TMA brings patches of frames, which serve all taps of a row and column.
const char* conv3d_warpgroup_gemm_refusal(const Conv3dParams& params, const Conv3dCard& card);
const char* conv3d_warpgroup_gemm_form(const Conv3dParams& params, const Conv3dCard& card);
int64_t conv3d_warpgroup_gemm_workspace(const Conv3dParams& params, const Conv3dCard& card);
void conv3d_warpgroup_gemm(const Conv3dParams& params, const Conv3dCard& card, void* workspace, void* stream);

// The same on bands of rows of x and the cache, which are repacked to channels-last memory one after another.
const char* conv3d_relaid_warpgroup_gemm_refusal(const Conv3dParams& params, const Conv3dCard& card);
const char* conv3d_relaid_warpgroup_gemm_form(const Conv3dParams& params, const Conv3dCard& card);
int64_t conv3d_relaid_warpgroup_gemm_workspace(const Conv3dParams& params, const Conv3dCard& card);
void conv3d_relaid_warpgroup_gemm(const Conv3dParams& params, const Conv3dCard& card, void* workspace, void* stream);

// Any call, by the formula.
void conv3d_naive(const Conv3dParams& params, const Conv3dCard& card, void* workspace, void* stream);

// Writes the cache of the next call, if there is one, by a kernel of its own.
void conv3d_save(const Conv3dParams& params, void* stream);

}  // namespace hipconv
