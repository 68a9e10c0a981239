// This says where the residual of a call lies beside the result.
#pragma once

#include "conv2d/params.h"

namespace hipconv {

// Tells whether the residual lies as the result does, if there is one: the same elements so many bytes away, in which vectors
// are as aligned.
inline bool residual_lies_as_out(const Conv2dParams& c) {
    if (!c.residual.data) return true;
    const Image &a = c.residual, &b = c.out;
    return c.residual_dtype == c.out_dtype && (c.batch == 1 || a.batch_stride == b.batch_stride) &&
           (c.out_channels == 1 || a.channel_stride == b.channel_stride) &&
           (c.out_height == 1 || a.row_stride == b.row_stride) && (c.out_width == 1 || a.column_stride == b.column_stride) &&
           (reinterpret_cast<uint64_t>(a.data) - reinterpret_cast<uint64_t>(b.data)) % 16 == 0;
}

// The bytes from each output to what is added to it, of such a call.
inline int64_t bytes_to_residual(const Conv2dParams& c) {
    return static_cast<int64_t>(reinterpret_cast<uint64_t>(c.residual.data) - reinterpret_cast<uint64_t>(c.out.data));
}

}  // namespace hipconv
