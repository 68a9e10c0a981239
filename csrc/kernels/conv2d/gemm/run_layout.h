// The facts of a call that the launchers ask for whose kernels use run_atom.h.
#pragma once

#include "launch/compute_units.h"
#include "layout.h"

namespace hipconv {

// Tells whether out and the residual can be written by so many neighbouring filters.
inline bool stores_filters_by(const Conv2dParams& p, int64_t filters) {
    const auto fits = [&](const Image& image, DType dtype) {
        const int64_t each = dtype == DType::f32 && filters > 4 ? 4 : filters;  // 16 bytes at most
        return begins_at_multiples(image, p.batch, p.out_height, p.out_width, each, dtype);
    };
    return p.out_channels % filters == 0 && fits(p.out, p.out_dtype) &&
           (!p.residual.data || fits(p.residual, p.residual_dtype));
}

// As many blocks as are resident at once, where each of them brings all filters to LDS: by the bytes of LDS that one takes, or
// reserves on AMD, and by the registers, which have room for `most` on a compute unit.
inline int64_t resident_blocks(int64_t lds_bytes, int64_t reserved, int64_t most) {
    constexpr int64_t kLdsOfUnit = kCopiesPastRegisters ? 224 * 1024 : 64 * 1024;
    const int64_t room = kLdsOfUnit / (kCopiesPastRegisters ? lds_bytes + 1024 : reserved);
    return (room < most ? room : most) * compute_units_here();
}

}  // namespace hipconv
