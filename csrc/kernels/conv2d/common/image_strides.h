// The strides of an image as 32-bit numbers, which make a third of the instructions of 64 bits.
#pragma once

#include "conv2d/params.h"

namespace hipconv {

struct ImageStrides {
    int32_t batch, channel, row, column;

    // The elements from the first one to another.
    HIPCONV_INLINE int64_t at(int n, int k, int y, int x) const {
        return int64_t{n} * batch + int64_t{k} * channel + int64_t{y} * row + int64_t{x} * column;
    }
};

// Sets the strides of an image of so many elements along each axis, 0 where there is but one; tells whether they have room.
inline bool set_strides(ImageStrides& to, const Image& image, int64_t batch, int64_t channels, int64_t rows, int64_t columns) {
    constexpr int64_t kMost = int64_t{1} << 29;  // bytes have room, too
    bool fits = true;
    const auto of = [&](int64_t stride, int64_t count) {
        if (count <= 1) return 0;
        fits = fits && stride < kMost && stride > -kMost;
        return static_cast<int32_t>(stride);
    };
    to = {of(image.batch_stride, batch), of(image.channel_stride, channels), of(image.row_stride, rows),
          of(image.column_stride, columns)};
    return fits;
}

}  // namespace hipconv
