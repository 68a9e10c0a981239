// Index arrays are integers that a kernel reads from memory it did not choose: slots, starts, flags. They have any integer
// type, any strides, and one axis or two.
#pragma once

#include <cstdint>

#include "device/arch.h"

namespace hipconv {

// This is a pointer as a kernel's many parameters hold it: see `first_parameter`.
struct Address {
    uint64_t bits;

    HIPCONV_INLINE explicit operator bool() const { return bits != 0; }
    template <typename T>
    HIPCONV_INLINE T* as() const {
        return global_pointer<T>(bits);
    }
};
inline Address address(const void* pointer) { return {reinterpret_cast<uintptr_t>(pointer)}; }

// This is a (rows,) or (rows, columns) tensor; `data` is null if the caller gave none. Strides count elements. The struct is
// small, because a kernel holds several of them in scalar registers.
struct IndexArray {
    Address data;
    int32_t row_stride, column_stride;
    int32_t columns;  // 1 for one axis
    int8_t bytes;     // of one element
    bool is_signed;
};

constexpr int32_t kNoSlot = -1;  // a number of no slot, in no pool

// This loads element (row, column). The upper half of eight bytes is an access of its own: it is less code, and nothing waits
// for the first before another index is on its way. kWords: the caller knows that elements are signed and of four or eight
// bytes, and that row and column fit 32 bits, which saves instructions.
template <bool kWords = false>
HIPCONV_INLINE int64_t load_index(const IndexArray& array, int64_t row, int64_t column = 0) {
    if constexpr (kWords) {
        const int64_t at = static_cast<int64_t>(static_cast<int32_t>(row)) * array.row_stride +
                           static_cast<int64_t>(static_cast<int32_t>(column)) * array.column_stride;
        const bool wide = array.bytes == 8;
        const int32_t* words = array.data.as<const int32_t>() + (wide ? 2 * at : at);
        const int32_t low = words[0], high = wide ? words[1] : low >> 31;
        return static_cast<int64_t>(static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | static_cast<uint32_t>(low));
    }
    const int64_t at = row * array.row_stride + column * array.column_stride;
    const uint64_t place = array.data.bits + at * array.bytes;
    uint64_t bits;
    if (array.bytes >= 4) {  // servers pass this, so it comes first
        bits = *global_pointer<const uint32_t>(place);
        if (array.bytes == 8) bits |= static_cast<uint64_t>(global_pointer<const uint32_t>(place)[1]) << 32;
    } else {
        bits = array.bytes == 2 ? *global_pointer<const uint16_t>(place) : *global_pointer<const uint8_t>(place);
    }
    const int unused = 64 - 8 * array.bytes;
    return array.is_signed ? static_cast<int64_t>(bits << unused) >> unused : static_cast<int64_t>(bits);
}

}  // namespace hipconv
