// The algorithm `depthwise`: a filter sees one channel of x. Which of its kernels runs a call.
#include <hip/hip_runtime.h>

#include "../common/depthwise_frame.h"
#include "../common/launchers.h"
#include "kernels.h"

namespace hipconv {

// The walking kernel counts threads, rows, columns, elements of the weight, and bytes of columns in 32 bits.
bool depthwise_walk_serves(const Conv2dParams& c) {
    constexpr int64_t kLimit = int64_t{1} << 31;
    const int taps = c.kernel_height;
    if (taps != c.kernel_width || taps < 3 || taps > 11 || taps % 2 == 0) return false;
    if (c.stride_h != c.stride_w || c.stride_h > 2 || c.dilation_h != 1 || c.dilation_w != 1) return false;
    if (c.padding_mode != PaddingMode::zeros) return false;
    const auto steps_fit = [](const Image& image, DType dtype) {
        return image.column_stride >= 0 && image.column_stride * element_bytes(dtype) < kLimit / 32;
    };
    const auto size_fits = [](int64_t size, int64_t padding) { return size + 2 * padding < kLimit / 4; };
    const Image& w = c.weight;
    const bool weight_fits = w.batch_stride >= 0 && w.row_stride >= 0 && w.column_stride >= 0 && w.batch_stride < kLimit &&
                             c.out_channels * w.batch_stride + taps * (w.row_stride + w.column_stride) < kLimit;
    // This many outputs belong to the most threads: two outputs of a pair of channels each.
    const double threads = (c.out_channels / 2 + 1.0) * c.batch * c.out_height * (c.out_width / 2 + 1.0);
    return weight_fits && steps_fit(c.x, c.dtype) && steps_fit(c.out, c.out_dtype) && size_fits(c.in_height, c.pad_top) &&
           size_fits(c.in_width, c.pad_left) && size_fits(c.out_height, taps) && size_fits(c.out_width, taps) &&
           threads < static_cast<double>(kLimit) / 2;
}

const char* conv2d_depthwise_refusal(const Conv2dParams& c, const Conv2dPlan&) {
    if (c.groups != c.in_channels) return "a group for each channel of x (groups == in_channels)";
    return depthwise_walk_serves(c) || depthwise_any_serves(c) ? nullptr : "images of fewer than 2^24 rows and columns";
}

namespace {

// Tells whether `fma_direct` runs a call: of channels_last images that no kernel here reads by vectors.
bool comes_by_patches(const Conv2dParams& c) {
    return depthwise_lies_across(c) && !depthwise_walk_serves(c) && !depthwise_slide_serves(c) &&
           !conv2d_fma_direct_refusal(c, {"fma_direct"});
}

void run_depthwise(const Conv2dParams& c, void* stream) {
    if (comes_by_patches(c)) return conv2d_fma_direct(c, {"fma_direct"}, nullptr, stream);
    if (!depthwise_walk_serves(c)) return depthwise_slide_serves(c) ? depthwise_slide(c, stream) : depthwise_any(c, stream);
    if (depthwise_planes(c, stream) || depthwise_columns(c, stream)) return;
    if (c.kernel_height == 3) return depthwise_walk_3(c, stream);
    if (c.kernel_height == 5) return depthwise_walk_5(c, stream);
    if (c.kernel_height == 7) return depthwise_walk_7(c, stream);
    if (c.kernel_height == 9) return depthwise_walk_9(c, stream);
    depthwise_walk_11(c, stream);
}

}  // namespace

void conv2d_depthwise(const Conv2dParams& c, const Conv2dPlan&, void* /*workspace*/, void* stream) {
    if (c.padding_mode == PaddingMode::zeros) return run_depthwise(c, stream);
    const Conv2dParams zeros = with_zeros(c);
    if (!depthwise_has_frame(c)) return run_depthwise(zeros, stream);
    if (depthwise_walk_serves(zeros) && depthwise_lies_across(c) && depthwise_ring(c, 1e30, stream)) return;
    if (!depthwise_frame_pays(c) || comes_by_patches(zeros)) return run_depthwise(c, stream);
    run_depthwise(zeros, stream);
    depthwise_frame(c, stream);
}

}  // namespace hipconv
