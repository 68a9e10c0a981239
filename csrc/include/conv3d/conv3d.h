// conv3d's contract between bindings and kernels. It knows neither torch nor HIP.
//
//   out[n, k, t, p, q] = act(bias[k] + sum_{c, i, r, s} weight[k, c, i, r, s] * v[n, g C/G + c, f, y, z]
//                            + residual[n, k, t, p, q])
//   f = t stride_t - front + i dilation_t
//   y = p stride_h - pad_top + r dilation_h
//   z = q stride_w - pad_left + s dilation_w
//
// where g is the group of filter k, v is the frames of the cache followed by those of x, and the padding modes say what v is
// outside. The last frames of v go to another cache, for the next call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "conv2d/conv2d.h"
#include "device/dtype.h"

namespace hipconv {

// A (batch, channels, frames, height, width) tensor, or a filter's (out_channels, in_channels / groups, frames, height, width).
// Strides count elements, and may be zero or negative for an input.
struct Volume {
    void* data;
    int64_t batch_stride, channel_stride, frame_stride, row_stride, column_stride;
};

struct Conv3dParams {
    int32_t batch, in_channels, in_frames, in_height, in_width;  // in_frames: of x
    int32_t cached;                                              // frames of the cache, which stand before those of x
    int32_t out_channels, out_frames, out_height, out_width;
    int32_t kernel_frames, kernel_height, kernel_width;
    int32_t stride_t, stride_h, stride_w, front, pad_top, pad_left, dilation_t, dilation_h, dilation_w, groups;
    PaddingMode time_mode, padding_mode;  // of frames; of rows and columns
    Conv2dActivation activation;

    DType dtype;                         // of x, weight and the caches
    Float32Precision float32_precision;  // of the products of f32, as in Conv2dParams; `tf32` where conv3d_has_tf32 says so
    Volume x, weight, cache;

    DType out_dtype;
    Volume out;

    const void* bias;  // (out_channels,), or null for none
    int64_t bias_stride;
    DType bias_dtype;

    Volume residual;  // of out's shape; data null for none
    DType residual_dtype;

    // Tells whether `weight.data` points at filters as conv3d_pack_filters has written them; its strides then mean nothing.
    // Without, a call packs filters itself that it cannot read as they are.
    bool is_packed;

    // The cache of the next call, whose frames are the last ones of v; data null for none. What stands before the first frame
    // follows `saved_mode`.
    Volume saved;
    int32_t saved_frames;
    PaddingMode saved_mode;
};

// The card that a call runs on, or would.
struct Conv3dCard {
    std::string arch;  // "gfx942", "sm_90", "wave64"
    int32_t compute_units;
};

// These serve GPUs and simt; torch's own convolution serves CPUs. Only the launch touches memory; the other functions depend on
// sizes, strides, types and the alignment of addresses.
std::vector<std::string> conv3d_algorithms();   // the fastest first
bool conv3d_has_tf32(const std::string& arch);  // whether its matrix cores multiply TF32
// Null if the algorithm serves the call, else what it does serve.
const char* conv3d_refusal(const std::string& algorithm, const Conv3dParams& params, const Conv3dCard& card);
const char* conv3d_form(const std::string& algorithm, const Conv3dParams& params, const Conv3dCard& card);
int64_t conv3d_workspace(const std::string& algorithm, const Conv3dParams& params, const Conv3dCard& card);
// The bytes of packed filters, aligned to 256; 0 where the algorithm reads them as they are. All algorithms read filters that
// one of them has packed.
int64_t conv3d_packed_bytes(const std::string& algorithm, const Conv3dParams& params, const Conv3dCard& card);
void conv3d_pack_filters(const Conv3dParams& params, void* packed, void* stream);
// Every tensor lies on the current device, and the algorithm serves the call. `workspace` is null where it needs none. `out`
// may have no elements; then the cache alone is written, by the last algorithm.
void conv3d(const std::string& algorithm, const Conv3dParams& params, const Conv3dCard& card, void* workspace, void* stream);

}  // namespace hipconv
