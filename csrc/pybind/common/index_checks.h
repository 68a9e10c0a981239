// These check integer tensor arguments, and make the arrays that kernels get.
#pragma once

#include "device/index_array.h"
#include "tensor_checks.h"

namespace hipconv {

// A stride as kernels have it. That of an axis with one element can be anything, and means nothing.
inline int64_t index_stride(const at::Tensor& t, int64_t axis) {
    const int64_t stride = t.stride(axis);
    return t.size(axis) == 1 && static_cast<int32_t>(stride) != stride ? 0 : stride;
}

inline bool index_strides_fit(const at::Tensor& t) {
    for (int64_t axis = 0; axis < t.dim(); ++axis)
        if (static_cast<int32_t>(index_stride(t, axis)) != index_stride(t, axis)) return false;
    return true;
}

inline void check_index_strides(const NamedTensor& t) {
    if (!index_strides_fit(t.tensor))
        throw pybind11::value_error(
            concat(t.name, ": got strides ", shape_text(t.tensor.strides()), ", expected each to be at most 2147483647"));
}

// This makes the array of a (rows,) or (rows, columns) tensor whose sizes and strides fit.
inline IndexArray index_array(const at::Tensor& t) {
    const bool table = t.dim() == 2;
    return {address(t.data_ptr()),
            static_cast<int32_t>(index_stride(t, 0)),
            table ? static_cast<int32_t>(index_stride(t, 1)) : 0,
            table ? static_cast<int32_t>(t.size(1)) : 1,
            static_cast<int8_t>(t.element_size()),
            at::isSignedType(t.scalar_type())};
}

// This takes a (rows,) or (rows, columns) tensor on the device of `other`. Kernels read a number past 2^63 as negative, so it
// leads nowhere.
inline IndexArray index_array(const NamedTensor& t, const NamedTensor& other, int64_t rows, bool may_be_bool = false) {
    check_strided(t);
    const at::ScalarType type = t.tensor.scalar_type();
    if (!at::isIntegralType(type, may_be_bool))
        throw pybind11::type_error(concat(t.name, ": got dtype ", python_text(type), ", expected integers, such as torch.int32",
                                          may_be_bool ? ", or torch.bool" : ""));
    if (t.tensor.size(0) != rows)
        throw pybind11::value_error(concat(t.name, ": got shape ", shape_text(t.tensor.sizes()), ", expected ", rows,
                                           rows == 1 ? " row" : " rows", ", one a sequence"));
    check_same_device(t, other);
    check_sizes_fit(t);
    check_index_strides(t);
    return index_array(t.tensor);
}

}  // namespace hipconv
