// The kernels of depthwise conv2d.
#pragma once

#include "depthwise.h"

namespace hipconv {

// Square filters of 3, 5, 7, 9 or 11 taps, strides 1 and 2, zeros around the image.
bool depthwise_walk_serves(const Conv2dParams& conv);
void depthwise_walk_3(const Conv2dParams& conv, void* stream);
void depthwise_walk_5(const Conv2dParams& conv, void* stream);
void depthwise_walk_7(const Conv2dParams& conv, void* stream);
void depthwise_walk_9(const Conv2dParams& conv, void* stream);
void depthwise_walk_11(const Conv2dParams& conv, void* stream);

// This serves calls of those of many outputs of channels_last images, by 3 taps or by 5 with a stride of 2; by 3 taps with a
// stride of 1 also padding of any mode. It returns false, and launches nothing, if it takes more than so many cycles by its
// estimate, or does not serve the call.
bool depthwise_ring(const Conv2dParams& conv, double cycles, void* stream);

// This serves many small contiguous images by 3 taps, where rows begin at no vector. It returns false, and launches nothing, if
// other kernels are as fast.
bool depthwise_planes(const Conv2dParams& conv, void* stream);

// This serves contiguous images of many outputs by 3, 5 and 7 taps. It returns false, and launches nothing, if it does not
// serve the call, or has too little to do.
bool depthwise_columns(const Conv2dParams& conv, void* stream);

// Every filter, stride and dilation, of images whose channels are the densest and vectors, with zeros around them.
bool depthwise_slide_serves(const Conv2dParams& conv);
void depthwise_slide(const Conv2dParams& conv, void* stream);

// Every filter, stride, dilation and padding, of images of fewer than 2^24 rows and columns.
bool depthwise_any_serves(const Conv2dParams& conv);
void depthwise_any(const Conv2dParams& conv, void* stream);

}  // namespace hipconv
