// The axes of an image: exchanged, and cut into grids of outputs that share no dilated taps.
#pragma once

#include "conv2d/params.h"

namespace hipconv {

// The same convolution with rows and columns exchanged.
inline Conv2dParams turned(Conv2dParams c) {
    const auto exchange = [](auto& a, auto& b) {
        const auto kept = a;
        a = b, b = kept;
    };
    exchange(c.in_height, c.in_width), exchange(c.out_height, c.out_width), exchange(c.kernel_height, c.kernel_width);
    exchange(c.stride_h, c.stride_w), exchange(c.pad_top, c.pad_left), exchange(c.dilation_h, c.dilation_w);
    for (Image* image : {&c.x, &c.weight, &c.out, &c.residual}) exchange(image->row_stride, image->column_stride);
    return c;
}

// Outputs that lie `apart` see places of x that are a dilation apart: they are a convolution without dilation, whose outputs
// are `step` of these places from one to the next.
struct GridAxis {
    int32_t apart, step;

    GridAxis(int32_t stride, int32_t dilation) {
        int32_t common = stride;
        for (int32_t rest = dilation; rest != 0;) {
            const int32_t next = common % rest;
            common = rest, rest = next;
        }
        apart = dilation / common, step = stride / common;
    }
};

// One row of taps sees rows of x that the stride lies apart: as if it were the dilation.
inline int32_t dilation_of_rows(const Conv2dParams& c) { return c.kernel_height == 1 ? c.stride_h : c.dilation_h; }

}  // namespace hipconv
