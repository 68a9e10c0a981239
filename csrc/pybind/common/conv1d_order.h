// The fast conv1d kernels take tensors of one order: neighbours in memory are tokens of all, or channels of all. A copy of a
// tensor in the others' order costs less than the kernel that takes any.
#pragma once

#include <ATen/core/Tensor.h>

#include <ATen/ops/copy_ops.h>  // must be after it; <ATen/ops/copy.h> would take seconds to compile
#include <ATen/ops/empty_like_ops.h>

#include "causal_conv1d/forward.h"

namespace hipconv {

inline at::Tensor new_like(const at::Tensor& x) { return at::_ops::empty_like::call(x, {}, {}, {}, {}, {}); }

inline at::Tensor copy_like(const at::Tensor& x, const at::Tensor& like) {
    at::Tensor copy = new_like(like);
    at::_ops::copy_::call(copy, x, false);
    return copy;
}

// This says whether neighbours in memory are channels of one and tokens of the other.
inline bool are_crossed(const Sequences& a, const Sequences& b) {
    const auto channels_inside = [](const Sequences& s) { return s.dim_stride == 1 && s.seqlen_stride != 1; };
    const auto tokens_inside = [](const Sequences& s) { return s.seqlen_stride == 1 && s.dim_stride != 1; };
    return (channels_inside(a) && tokens_inside(b)) || (tokens_inside(a) && channels_inside(b));
}

}  // namespace hipconv
