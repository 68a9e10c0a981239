// The algorithm `depthwise`: a filter sees one channel of x. Which of its kernels runs a call.
#include <hip/hip_runtime.h>

#include "../common/launchers.h"
#include "kernels.h"

namespace hipconv {

// What the walking kernel counts in 32 bits: work, and the distances of columns in bytes.
bool depthwise_walk_serves(const Conv2dParams& c) {
    constexpr int64_t kLimit = int64_t{1} << 31;
    const int taps = c.kernel_height;
    const bool shape = taps == c.kernel_width && (taps == 3 || taps == 5 || taps == 7) && c.stride_h == c.stride_w &&
                       c.stride_h <= 2 && c.dilation_h == 1 && c.dilation_w == 1 && c.padding_mode == PaddingMode::zeros;
    if (!shape) return false;
    const auto short_steps = [](const Image& image, DType dtype) {
        return image.column_stride >= 0 && image.column_stride * element_bytes(dtype) < kLimit / 32;
    };
    const auto few_rows = [](int64_t size, int64_t padding) { return size + 2 * padding < kLimit / 2; };
    return short_steps(c.x, c.dtype) && short_steps(c.out, c.out_dtype) && few_rows(c.in_height, c.pad_top) &&
           few_rows(c.in_width, c.pad_left) && few_rows(c.out_height * int64_t{c.stride_h}, taps) &&
           few_rows(c.out_width * int64_t{c.stride_w}, taps) &&
           (c.out_channels + 64) / 2 * int64_t{c.batch} * c.out_height < kLimit / ((c.out_width + 4) / 2 + 1);
}

const char* conv2d_depthwise_refusal(const Conv2dParams& c, const Conv2dPlan&) {
    return c.groups == c.in_channels ? nullptr : "a group for each channel of x (groups == in_channels)";
}

void conv2d_depthwise(const Conv2dParams& c, const Conv2dPlan&, void* /*workspace*/, void* stream) {
    if (!depthwise_walk_serves(c)) return depthwise_any(c, stream);
    if (c.kernel_height == 3) return depthwise_walk_3(c, stream);
    if (c.kernel_height == 5) return depthwise_walk_5(c, stream);
    depthwise_walk_7(c, stream);
}

}  // namespace hipconv
