// This declares the algorithms behind conv2d.h: the functions that the table in algorithms.cu names. `packing` and `pack` are
// of those that read filters in an order of their own: see conv2d_packing.
#pragma once

#include "conv2d/conv2d.h"

namespace hipconv {

// The implicit GEMM on matrix cores: tiles of output pixels by filters, with split-K where tiles are few.
std::vector<Conv2dTile> conv2d_implicit_gemm_tiles(const std::string& arch, DType dtype);
const char* conv2d_implicit_gemm_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
int64_t conv2d_implicit_gemm_workspace(const Conv2dParams& params, const Conv2dPlan& plan);
Conv2dPacking conv2d_implicit_gemm_packing(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_implicit_gemm_pack(const Conv2dParams& params, const Conv2dPlan& plan, void* packed, void* stream);
void conv2d_implicit_gemm(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

// The same for float32, whose products are made of those of TF32 parts (sm_80 and later). Workspace and packing
// are the other's.
std::vector<Conv2dTile> conv2d_split_implicit_gemm_tiles(const std::string& arch, DType dtype);
const char* conv2d_split_implicit_gemm_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_split_implicit_gemm(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

// The same product by warpgroups (sm_90); producer waves bring the operands to LDS, by TMA where x is channels_last.
std::vector<Conv2dTile> conv2d_warpgroup_gemm_tiles(const std::string& arch, DType dtype);
const char* conv2d_warpgroup_gemm_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
int64_t conv2d_warpgroup_gemm_workspace(const Conv2dParams& params, const Conv2dPlan& plan);
Conv2dPacking conv2d_warpgroup_gemm_packing(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_warpgroup_gemm_pack(const Conv2dParams& params, const Conv2dPlan& plan, void* packed, void* stream);
void conv2d_warpgroup_gemm(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);
bool conv2d_runs_warpgroups();  // whether the current device does

// Few channels or few filters, of all groups: the patch of x that a block's pixels see lies in LDS once for all taps.
std::vector<Conv2dTile> conv2d_direct_tiles(const std::string& arch, DType dtype);
const char* conv2d_direct_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
int64_t conv2d_direct_workspace(const Conv2dParams& params, const Conv2dPlan& plan);
Conv2dPacking conv2d_direct_packing(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_direct_pack(const Conv2dParams& params, const Conv2dPlan& plan, void* packed, void* stream);
void conv2d_direct(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

// Small products: waves read both operands from memory into registers, and share long sums. No workspace.
std::vector<Conv2dTile> conv2d_wave_gemm_tiles(const std::string& arch, DType dtype);
const char* conv2d_wave_gemm_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_wave_gemm(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

// Few products in a sum, of taps and channels: waves gather their factors. No workspace.
std::vector<Conv2dTile> conv2d_few_products_tiles(const std::string& arch, DType dtype);
const char* conv2d_few_products_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_few_products(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

// Few filters: all their taps are columns of one product, whose sums an output adds up along diagonals. No workspace.
std::vector<Conv2dTile> conv2d_few_filters_tiles(const std::string& arch, DType dtype);
const char* conv2d_few_filters_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_few_filters(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

// 1x1 taps of few enough channels and filters for LDS: waves that wait for memory alone. No workspace.
std::vector<Conv2dTile> conv2d_pointwise_tiles(const std::string& arch, DType dtype);
const char* conv2d_pointwise_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_pointwise(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

// float32 by plain products in tiles as narrow as the filters are few, operands read element by element. No workspace.
std::vector<Conv2dTile> conv2d_fma_gemm_tiles(const std::string& arch, DType dtype);
const char* conv2d_fma_gemm_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_fma_gemm(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

// Plain products on a patch of x in LDS: few channels of a group. No workspace.
const char* conv2d_fma_direct_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_fma_direct(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

// 1x1 filters on very few pixels: threads that share a sum read both operands from memory at once. No workspace.
std::vector<Conv2dTile> conv2d_skinny_gemm_tiles(const std::string& arch, DType dtype);
const char* conv2d_skinny_gemm_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_skinny_gemm(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

// Either GEMM on repacked x, which can be read by 16 bytes. The tiles are the GEMM's own.
const char* conv2d_relaid_warpgroup_gemm_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
int64_t conv2d_relaid_warpgroup_gemm_workspace(const Conv2dParams& params, const Conv2dPlan& plan);
Conv2dPacking conv2d_relaid_warpgroup_gemm_packing(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_relaid_warpgroup_gemm_pack(const Conv2dParams& params, const Conv2dPlan& plan, void* packed, void* stream);
void conv2d_relaid_warpgroup_gemm(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

const char* conv2d_relaid_implicit_gemm_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
int64_t conv2d_relaid_implicit_gemm_workspace(const Conv2dParams& params, const Conv2dPlan& plan);
Conv2dPacking conv2d_relaid_implicit_gemm_packing(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_relaid_implicit_gemm_pack(const Conv2dParams& params, const Conv2dPlan& plan, void* packed, void* stream);
void conv2d_relaid_implicit_gemm(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

// One channel a group: no matrix product, each input read once for all its taps. It has no tiles and no workspace.
const char* conv2d_depthwise_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_depthwise(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

// The same by plain products on a tile of x in LDS: any filter, stride, dilation, padding, layout and type. No workspace.
const char* conv2d_depthwise_tile_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_depthwise_tile(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

// The same of 16-bit types on matrix cores: rows of x times bands, which have a filter's taps on diagonals. No workspace.
std::vector<Conv2dTile> conv2d_depthwise_banded_tiles(const std::string& arch, DType dtype);
const char* conv2d_depthwise_banded_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_depthwise_banded(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

// The same from memory to memory by waves of their own, down whose strips of columns sums roll in registers: filters of up to
// 11 rows and 16 columns. No workspace.
std::vector<Conv2dTile> conv2d_depthwise_rolling_tiles(const std::string& arch, DType dtype);
const char* conv2d_depthwise_rolling_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_depthwise_rolling(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

// The same of channels_last images, by way of LDS: filters of up to 7 rows and 9 columns.
std::vector<Conv2dTile> conv2d_depthwise_strips_tiles(const std::string& arch, DType dtype);
const char* conv2d_depthwise_strips_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_depthwise_strips(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

// The same of channels_last images and any stride and dilation along rows: filters are diagonals of matrices. No workspace.
std::vector<Conv2dTile> conv2d_depthwise_diagonal_tiles(const std::string& arch, DType dtype);
const char* conv2d_depthwise_diagonal_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_depthwise_diagonal(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

// Any call, by the formula.
void conv2d_naive(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

// 3x3 taps of stride 1 by Winograd's minimal filtering: tiles of 2x2 or 4x4 outputs ("winograd_f2", "winograd_f4") are
// transformed to planes, which either GEMM multiplies, and back. The tiles are the GEMM's. Packed filters are
// transformed.
std::vector<Conv2dTile> conv2d_winograd_tiles(const std::string& arch, DType dtype);
const char* conv2d_winograd_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
int64_t conv2d_winograd_workspace(const Conv2dParams& params, const Conv2dPlan& plan);
Conv2dPacking conv2d_winograd_packing(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_winograd_pack(const Conv2dParams& params, const Conv2dPlan& plan, void* packed, void* stream);
void conv2d_winograd(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

// float32 repacked into two parts of TF32 each, then the warpgroup GEMM, which adds up three products for one.
std::vector<Conv2dTile> conv2d_split_warpgroup_gemm_tiles(const std::string& arch, DType dtype);
const char* conv2d_split_warpgroup_gemm_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
int64_t conv2d_split_warpgroup_gemm_workspace(const Conv2dParams& params, const Conv2dPlan& plan);
Conv2dPacking conv2d_split_warpgroup_gemm_packing(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_split_warpgroup_gemm_pack(const Conv2dParams& params, const Conv2dPlan& plan, void* packed, void* stream);
void conv2d_split_warpgroup_gemm(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

}  // namespace hipconv
