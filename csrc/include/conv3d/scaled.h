// The end of a norm between the convolutions of a video autoencoder: each element is scaled, shifted and activated, in one pass
// over memory. Scales and shifts are those of its channel in a smaller video, of which each pixel stands for several.
//
//   out[n, t, y, x, c] = act(x[n, t, y, x, c] * scale[n, q, c] + shift[n, q, c])
//   q = ((t + lead) / times, y / down, x / across)
#pragma once

#include <cstdint>

#include "device/dtype.h"

namespace hipconv {

// The channels of a pixel are dense in memory, and so are the pixels of a sample; scales and shifts are dense altogether.
struct ScaledParams {
    int32_t batch, channels, frames, height, width;
    int32_t small_frames, small_height, small_width;  // of scale and shift
    int32_t times, lead, down, across;
    DType dtype;  // of x and out
    const void* x;
    void* out;  // may be x
    int64_t x_batch_stride, out_batch_stride;
    const float *scale, *shift;
    bool use_silu;
};

// Null if the kernel serves the call, else what it does serve.
const char* conv3d_scaled_refusal(const ScaledParams& params);
void conv3d_scaled(const ScaledParams& params, void* stream);

}  // namespace hipconv
