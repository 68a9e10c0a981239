// The form in which the tiles of a call read x.
#pragma once

#include "../gemm/layout.h"

namespace hipconv {

// The largest distance in bytes from a tile's first element of x to its last, for tiles within an image (`by_image`) or across
// images.
inline int64_t reach(const Conv2dParams& p, const GemmLayout& l, int tile_m, bool by_image) {
    int64_t rows = p.in_height - 1, images = 0;
    if (by_image) {
        const int64_t tile_rows = (tile_m - 1) / p.out_width + 1;
        const int64_t needed = tile_rows * p.stride_h + static_cast<int64_t>(p.kernel_height - 1) * p.dilation_h;
        if (needed < rows) rows = needed;
    } else {
        images = (tile_m - 1) / l.image_pixels + 1;
        if (images > p.batch - 1) images = p.batch - 1;
    }
    return (images * p.x.batch_stride + rows * p.x.row_stride + (p.in_width - 1) * p.x.column_stride +
            (l.group_channels - 1) * p.x.channel_stride + l.elements) *
           l.element;
}

// Tells how a tile reads x, and whether it is in one image. Tiles across images waste nothing where images are small; tiles
// within an image reach less far.
struct Reading {
    XForm form;
    bool by_image;
};

// Tells whether a tile reads x in patches.
inline bool takes_patches(const Conv2dParams& p, const GemmLayout& l, const Conv2dPlan& plan) {
    if (!kCopiesPastRegisters || p.dtype == DType::f32) return false;
    if (plan.tile_m < 128 || plan.tile_n != 128 || plan.split_k != 1) return false;
    if (!l.bits || !l.taps_inside || !patches_serve(p, l, plan.tile_m, kPatchColumns)) return false;
    const int64_t last = offset_in(p.x, 0, l.group_channels, p.in_height - 1, p.in_width - 1);
    return last * l.element < kLimit32;
}

inline Reading reading_of(const Conv2dParams& p, const GemmLayout& l, const Conv2dPlan& plan) {
    if (takes_patches(p, l, plan)) return {XForm::patches, true};
    const int tile_m = plan.tile_m;
    if (!l.bits) return {XForm::anything, true};
    const XForm form = l.vectors ? XForm::vectors : XForm::elements;
    const bool small_images = l.image_pixels < 8192 && l.image_pixels * p.batch < kLimit31;
    if (small_images && reach(p, l, tile_m, false) < kLimit32) return {form, false};
    return {reach(p, l, tile_m, true) < kLimit32 ? form : XForm::anything, true};
}

}  // namespace hipconv
