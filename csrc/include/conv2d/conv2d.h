// conv2d's contract between bindings and kernels. It knows neither torch nor HIP.
//
//   out[n, k, p, q] = act(bias[k] + sum_{c, r, s} weight[k, c, r, s] * x[n, g C/G + c, y, z] + residual[n, k, p, q])
//   y = p stride_h - pad_top + r dilation_h,   z = q stride_w - pad_left + s dilation_w
//
// where g is the group of filter k, and the padding mode says what x is outside the image.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "conv2d/params.h"

namespace hipconv {

// This says how a call is run: the algorithm, and the tile of one that has tiles.
struct Conv2dPlan {
    std::string algorithm;           // "warpgroup_gemm", "relaid_implicit_gemm", "naive" …
    int32_t tile_m = 0, tile_n = 0;  // output pixels and filters of a block; zero where an algorithm has no tiles
    int32_t split_k = 1;             // blocks that share an output tile, each with its part of the sum
    // Bytes of workspace that an algorithm should do with which can work on a part of the call after another; 0 for 256 MB.
    int64_t workspace_limit = 0;
};

// This says how a call reads filters that it cannot read as they are.
struct Conv2dPacking {
    int64_t bytes = 0;          // of the packed filters, aligned to 256; 0: it reads the filters as they are
    std::vector<int64_t> form;  // packings of one weight that have the same form are the same bytes
};

// These serve GPUs and simt; torch's own convolution serves CPUs. No size of `out` is zero. Only the launch touches memory; the
// other functions depend on sizes, strides, types and the alignment of addresses. The stride of an axis of one element is the
// one that a dense tensor in the layout of the other axes has.
std::vector<std::string> conv2d_algorithms();  // the fastest first
// The tiles that an algorithm may have on an architecture ("gfx942", "sm_90", "wave64") for x of a dtype; nullopt for an
// algorithm without tiles.
std::optional<std::vector<Conv2dTile>> conv2d_tiles(const std::string& algorithm, const std::string& arch, DType dtype);
bool conv2d_has_tf32(const std::string& arch);  // whether its matrix cores multiply TF32
// Null if the plan serves the call, else what its algorithm does serve. A plan without a tile asks whether the algorithm serves
// it with some tile. It knows no architecture: the plan's tile must be one of its conv2d_tiles.
const char* conv2d_refusal(const Conv2dParams& params, const Conv2dPlan& plan);
int64_t conv2d_workspace(const Conv2dParams& params, const Conv2dPlan& plan);  // bytes, uninitialised, aligned to 256
// conv2d_pack_filters writes what conv2d_packing describes, from the weight of such a call; calls with the same weight and a
// packing of the same form take it as their `packed_filters`.
Conv2dPacking conv2d_packing(const Conv2dParams& params, const Conv2dPlan& plan);
void conv2d_pack_filters(const Conv2dParams& params, const Conv2dPlan& plan, void* packed, void* stream);
// Every tensor lies on the current device, and the plan, with its tile, serves the call. `workspace` is null where it needs
// none.
void conv2d(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream);

}  // namespace hipconv
