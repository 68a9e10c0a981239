// Memory of which a binding knows the bytes alone: workspaces, and filters in an order that a kernel reads.
#pragma once

#include <ATen/core/Tensor.h>

#include <ATen/ops/empty_ops.h>  // must be after it; <ATen/ops/empty.h> would take seconds to compile

#include <cstdint>
#include <string>

#include "tensor_checks.h"

namespace hipconv {

inline at::Tensor bytes_beside(const at::Tensor& tensor, int64_t bytes) {
    return at::_ops::empty_memory_format::call(c10::fromIntArrayRefSlow({bytes}), at::kByte, {}, tensor.device(), {}, {});
}

// A kernel's workspace, where it needs one.
class Workspace {
  public:
    Workspace(const at::Tensor& beside, int64_t bytes) {
        if (bytes != 0) tensor_ = bytes_beside(beside, bytes);
    }
    void* data() const { return tensor_.defined() ? tensor_.data_ptr() : nullptr; }

  private:
    at::Tensor tensor_;
};

// Refuses what cannot be the filters that `pack` made for a call of `algorithm`, of so many bytes.
inline void check_packed(const at::Tensor& packed, const at::Tensor& x, int64_t bytes, const std::string& algorithm) {
    check_same_device({"packed", packed}, {"x", x});
    if (bytes == 0 || packed.scalar_type() != at::kByte || !packed.is_contiguous() || packed.numel() != bytes)
        throw pybind11::value_error(concat("packed: got ", packed.numel(), " elements of dtype ",
                                           python_text(packed.scalar_type()), ", expected the ", bytes, " bytes that '",
                                           algorithm, "' packs"));
}

}  // namespace hipconv
