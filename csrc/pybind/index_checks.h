// Checks of integer tensor arguments, and what kernels get of them.
#pragma once

#include "index_array.h"
#include "tensor_checks.h"

namespace hipconv {

inline IndexType index_type(const NamedTensor& t) {
    switch (t.tensor.scalar_type()) {
        case at::kChar:
            return IndexType::i8;
        case at::kBool:
        case at::kByte:
            return IndexType::u8;
        case at::kShort:
            return IndexType::i16;
        case at::kUInt16:
            return IndexType::u16;
        case at::kInt:
            return IndexType::i32;
        case at::kUInt32:
            return IndexType::u32;
        case at::kLong:
            return IndexType::i64;
        default:
            throw pybind11::type_error(
                concat(t.name, ": got dtype ", python_text(t.tensor.scalar_type()), ", expected an integer dtype of at most 63 bits"));
    }
}

// A (rows,) or (rows, columns) tensor on the device of `other`.
inline IndexArray index_array(const NamedTensor& t, const NamedTensor& other, int64_t rows) {
    check_strided(t);
    const IndexType type = index_type(t);
    if (t.tensor.size(0) != rows)
        throw pybind11::value_error(concat(t.name, ": got shape ", shape_text(t.tensor.sizes()), ", expected ", rows,
                                           rows == 1 ? " row" : " rows", ", one a sequence"));
    check_same_device(t, other);
    check_sizes_fit(t);
    const bool table = t.tensor.dim() == 2;
    return {t.tensor.data_ptr(), t.tensor.stride(0), table ? t.tensor.stride(1) : 0,
            table ? static_cast<int32_t>(t.tensor.size(1)) : 1, type};
}

}  // namespace hipconv
