// Integers that a kernel reads from memory it did not choose: slots, starts, flags. Any integer type, any strides, one axis or two.
#pragma once

#include <cstdint>

#include "arch.h"

namespace hipconv {

enum class IndexType : int32_t { i8, u8, i16, u16, i32, u32, i64 };

// A (rows,) or (rows, columns) tensor; `data` is null if the caller gave none. Strides count elements.
struct IndexArray {
    const void* data;
    int64_t row_stride, column_stride;
    int32_t columns;  // 1 for one axis
    IndexType type;
};

HIPCONV_INLINE int64_t load_index(const IndexArray& array, int64_t row, int64_t column = 0) {
    const int64_t at = row * array.row_stride + column * array.column_stride;
    switch (array.type) {
        case IndexType::i8:
            return static_cast<const int8_t*>(array.data)[at];
        case IndexType::u8:
            return static_cast<const uint8_t*>(array.data)[at];
        case IndexType::i16:
            return static_cast<const int16_t*>(array.data)[at];
        case IndexType::u16:
            return static_cast<const uint16_t*>(array.data)[at];
        case IndexType::i32:
            return static_cast<const int32_t*>(array.data)[at];
        case IndexType::u32:
            return static_cast<const uint32_t*>(array.data)[at];
        default:
            return static_cast<const int64_t*>(array.data)[at];
    }
}

}  // namespace hipconv
