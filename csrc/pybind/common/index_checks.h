// These check integer tensor arguments, and make the arrays that kernels get.
#pragma once

#include "device/index_array.h"
#include "tensor_checks.h"

namespace hipconv {

// Takes a (rows,) or (rows, columns) tensor on the device of `other`. Kernels read a number past 2^63 as negative, so it
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
    for (const int64_t stride : t.tensor.strides())
        if (stride > std::numeric_limits<int32_t>::max() || stride < std::numeric_limits<int32_t>::min())
            throw pybind11::value_error(
                concat(t.name, ": got strides ", shape_text(t.tensor.strides()), ", expected each to be at most 2147483647"));
    const bool table = t.tensor.dim() == 2;
    IndexArray array{};
    array.data = t.tensor.data_ptr();
    array.row_stride = static_cast<int32_t>(t.tensor.stride(0));
    array.column_stride = table ? static_cast<int32_t>(t.tensor.stride(1)) : 0;
    array.columns = table ? static_cast<int32_t>(t.tensor.size(1)) : 1;
    array.bytes = static_cast<int8_t>(t.tensor.element_size());
    array.is_signed = at::isSignedType(type);
    return array;
}

}  // namespace hipconv
