// The norm between the convolutions of a video autoencoder: each pixel's channels are divided by their root of the sum of
// squares, multiplied by a factor and one a channel, and activated, in one pass over memory.
//
//   out[n, p, c] = act(x[n, p, c] / max(sqrt(sum_i x[n, p, i]^2 + eps), 1e-12) * scale * weight[c] + bias[c])
#pragma once

#include <cstdint>

#include "device/dtype.h"

namespace hipconv {

// The channels of a pixel are dense in memory, and so are the pixels of a sample.
struct RmsNormParams {
    int32_t batch, channels;
    int64_t pixels;  // of a sample
    DType dtype;     // of all tensors
    const void* x;
    void* out;  // may be x
    int64_t x_batch_stride, out_batch_stride;
    const void *weight, *bias;  // (channels,); null for ones and for zeros
    float scale, eps;
    bool use_silu;
};

// Null if the kernel serves the call, else what it does serve.
const char* conv3d_rms_norm_refusal(const RmsNormParams& params);
void conv3d_rms_norm(const RmsNormParams& params, void* stream);

}  // namespace hipconv
