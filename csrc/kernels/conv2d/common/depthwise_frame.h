// Depthwise layers by padding that is not zeros: kernels of zeros make all outputs, then depthwise_frame those of the frame.
#pragma once

#include "conv2d/params.h"

namespace hipconv {

// The outputs that see nothing beyond the image.
struct DepthwiseInner {
    int32_t first_row, rows, first_column, columns;
};
DepthwiseInner depthwise_inner(const Conv2dParams& conv);

// Tells whether some outputs of a call see padding that is not zeros.
inline bool depthwise_has_frame(const Conv2dParams& c) {
    if (c.padding_mode == PaddingMode::zeros) return false;
    const DepthwiseInner inner = depthwise_inner(c);
    return inner.rows < c.out_height || inner.columns < c.out_width;
}

// Tells whether a call needs a kernel that knows more than the plain one: a residual, or padding that is not zeros.
inline bool depthwise_has_more(const Conv2dParams& c) { return c.residual.data || depthwise_has_frame(c); }

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

// Makes the outputs of the frame of a call, all others of which are made. It does nothing where there is no frame.
void depthwise_frame(const Conv2dParams& conv, void* stream);

}  // namespace hipconv
