// Integers that a kernel reads from memory it did not choose: slots, starts, flags. Any integer type, any strides, one axis or two.
#pragma once

#include <cstdint>

#include "arch.h"
#include "registers.h"

namespace hipconv {

// A (rows,) or (rows, columns) tensor; `data` is null if the caller gave none. Strides count elements. Small, because a kernel holds
// several of them in scalar registers.
struct IndexArray {
    const void* data;
    int32_t row_stride, column_stride;
    int32_t columns;  // 1 for one axis
    int8_t bytes;     // of an element
    bool is_signed;
};

HIPCONV_INLINE int64_t load_index(const IndexArray& array, int64_t row, int64_t column = 0) {
    const int64_t at = row * array.row_stride + column * array.column_stride;
    if (array.bytes == 4) {  // what servers pass, first
        const uint32_t word = ((GlobalPointer<const uint32_t>)array.data)[at];
        return array.is_signed ? static_cast<int32_t>(word) : static_cast<int64_t>(word);
    }
    if (array.bytes == 8) return ((GlobalPointer<const int64_t>)array.data)[at];
    const uint64_t bits =
        array.bytes == 2 ? ((GlobalPointer<const uint16_t>)array.data)[at] : ((GlobalPointer<const uint8_t>)array.data)[at];
    const int unused = 64 - 8 * array.bytes;
    return array.is_signed ? static_cast<int64_t>(bits << unused) >> unused : static_cast<int64_t>(bits);
}

}  // namespace hipconv
