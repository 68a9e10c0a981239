// Index arrays are integers that a kernel reads from memory it did not choose: slots, starts, flags. They have any integer
// type, any strides, and one axis or two.
#pragma once

#include <cstdint>

#include "device/arch.h"

namespace hipconv {

// A (rows,) or (rows, columns) tensor; `data` is null if the caller gave none. Strides count elements. The struct is
// small, because a kernel holds several of them in scalar registers.
struct IndexArray {
    const void* data;
    int32_t row_stride, column_stride;
    int32_t columns;  // 1 for one axis
    int8_t bytes;     // of one element
    bool is_signed;
};

HIPCONV_INLINE int64_t load_index(const IndexArray& array, int64_t row, int64_t column = 0) {
    const int64_t at = row * array.row_stride + column * array.column_stride;
    const uint64_t place = reinterpret_cast<uint64_t>(array.data) + at * array.bytes;
    uint64_t bits;
    // Servers pass these sizes, so they come first; a separate access reads the upper half of eight bytes: less code.
    if (array.bytes >= 4) {
        bits = *global_pointer<const uint32_t>(place);
        if (array.bytes == 8) bits |= static_cast<uint64_t>(global_pointer<const uint32_t>(place)[1]) << 32;
    } else {
        bits = array.bytes == 2 ? *global_pointer<const uint16_t>(place) : *global_pointer<const uint8_t>(place);
    }
    const int unused = 64 - 8 * array.bytes;
    return array.is_signed ? static_cast<int64_t>(bits << unused) >> unused : static_cast<int64_t>(bits);
}

}  // namespace hipconv
