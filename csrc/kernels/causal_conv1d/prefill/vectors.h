// This file chooses the width of a varlen call's vectors, and its tile.
#pragma once

#include <stdexcept>

#include "thread.h"

namespace hipconv {

// The number of channels of a thread that makes the start of a sequence.
HIPCONV_INLINE constexpr int channels_of_begin(int channels, int size, int state_size) {
    return state_size > size && channels > 2 ? channels / 2 : channels;
}

inline bool aligned(const void* data, int64_t bytes) { return reinterpret_cast<uintptr_t>(data) % bytes == 0; }

// The bytes of a thread's vectors: wide windows of many channels have no registers.
constexpr int vector_bytes(int width) { return width <= 4 ? kLaneBytes : 8; }

// The width of the instance that serves a width. Models have width 4, which has one of its own where lanes have vectors.
constexpr int instance_width(int width, bool words) { return width > 4 ? 8 : width == 4 || words ? 4 : 3; }

// The number of channels of one vector, if every vector of x and of the outputs is aligned; else those of a word.
inline int channels_a_vector(const CausalConv1dVarlenParams& p) {
    const int bytes = vector_bytes(p.width);
    const int wanted = bytes / element_bytes(p.dtype);
    const auto vectors = [&](const void* data, int64_t dim_stride, int64_t token_stride) {
        return dim_stride == 1 && aligned(data, bytes) && token_stride % wanted == 0;
    };
    bool all = p.dim % wanted == 0 && vectors(p.x, p.x_dim_stride, p.x_token_stride);
    if (p.k_dim < 0)
        all = all && vectors(p.out, p.out_dim_stride, p.out_token_stride);
    else
        all = all && p.k_dim % wanted == 0 && aligned(p.out, bytes) && aligned(p.k, bytes) && aligned(p.v, bytes);
    return all ? wanted : 4 / element_bytes(p.dtype);
}

// Whether each row of 16-bit outputs begins and ends with a whole word.
inline bool outputs_in_words(const CausalConv1dVarlenParams& p) {
    const auto words = [](const void* data, int64_t token_stride) { return aligned(data, 4) && token_stride % 2 == 0; };
    if (p.dim % 2 != 0) return false;
    if (p.k_dim < 0) return words(p.out, p.out_token_stride);
    return words(p.out, p.k_dim) && words(p.k, p.k_dim) && words(p.v, p.dim - 2 * int64_t{p.k_dim});
}

// A forced size of the tile, or 0 for none. A size that a block cannot have stands for the nearest one that it can have.
inline int power_of_two(const char* name, int value) {
    if (value < 0 || (value & (value - 1)) != 0)
        throw std::invalid_argument(std::string(name) + ": got " + std::to_string(value) + ", expected a power of two, or 0");
    return value;
}

// The form in which a thread of so many channels sees the states.
inline StateForm state_form(const CausalConv1dVarlenParams& p, int channels) {
    const int bytes = element_bytes(p.state_dtype), vector = channels * bytes, past = p.width - 1;
    const bool packed = p.dim % channels == 0 && aligned(p.states, vector) && p.slot_stride % channels == 0;
    if (channels == 1 || p.first_column != 0 || !packed) return StateForm::elements;
    if (p.state_dim_stride == 1 && p.column_stride % channels == 0) return StateForm::columns;
    if (p.column_stride == 1 && p.state_dim_stride == past) return StateForm::rows;
    return StateForm::elements;
}

}  // namespace hipconv
