// Depthwise layers by padding that is not zeros: kernels of zeros make all outputs, then depthwise_frame those of the frame.
#pragma once

#include "conv2d/params.h"

namespace hipconv {

// The outputs that see nothing beyond the image.
struct DepthwiseInner {
    int32_t first_row, rows, first_column, columns;
};
DepthwiseInner depthwise_inner(const Conv2dParams& conv);

// Tells whether a call's padding is another than zeros.
inline bool depthwise_has_frame(const Conv2dParams& c) { return c.padding_mode != PaddingMode::zeros; }

// Tells whether it is faster to make the frame after the rest than to make all outputs by a kernel of any padding: it is where
// most outputs see nothing beyond the image, and 31 bits count the frame's.
inline bool depthwise_frame_pays(const Conv2dParams& c) {
    const DepthwiseInner inner = depthwise_inner(c);
    const double outputs = double(c.out_height) * c.out_width, of_frame = outputs - double(inner.rows) * inner.columns;
    return 2 * of_frame <= outputs && (c.out_channels + 1.0) * c.batch * of_frame < 4e9;
}

// The same call with zeros around the image.
inline Conv2dParams with_zeros(Conv2dParams c) {
    c.padding_mode = PaddingMode::zeros;
    return c;
}

// Makes the outputs of the frame of a call, all others of which are made. Nothing to do where the padding is zeros.
void depthwise_frame(const Conv2dParams& conv, void* stream);

}  // namespace hipconv
