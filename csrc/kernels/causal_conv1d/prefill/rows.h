// Calls of the kernel `staged` whose x lies along tokens go another way: by rows of lanes (rows_kernel.h). This is what the
// host and the kernels know of it together.
//
// Rows of x may begin anywhere, and a block reads whole vectors of 16 bytes, where memory has them. So the span that a block
// has of a channel begins with the vector in which the span's first token lies: up to a vector earlier than `number * kSpan`.
// Positions count from there. Channels that are eight apart begin alike.
#pragma once

#include <type_traits>

#include "staged.h"

namespace hipconv {

constexpr int kRowsThreads = 256;
constexpr int kRowLanes = 32;  // side by side along the tokens of a channel, each with a vector of 16 bytes
constexpr int kRowsOfBlock = kRowsThreads / kRowLanes;
constexpr int kRowsChannels = kLdsBytes >= 128 << 10 ? 32 : 16;  // of a block at a time
constexpr int kRowsFound = kLdsBytes >= 128 << 10 ? 256 : 64;    // sequences that a block looks up together

template <typename T>
struct RowsShape {
    static constexpr int kSize = static_cast<int>(sizeof(T)), kTokens = 16 / kSize;  // of a lane
    static constexpr int kSpan = kRowLanes * kTokens;                                // of a block
    static constexpr int kHaloCells = kHalo / kTokens;
    static constexpr int kLastCells = kHaloCells + 1;  // that hold the last inputs of a sequence, wherever they end
    // In LDS, a line of tokens is an odd number of cells of 16 bytes.
    static constexpr int kCells = (kHaloCells + kRowLanes) | 1, kLineBytes = kCells * 16;
    // Where the outputs are channels of a token, lines of tokens shift by a word from lane to lane, whose banks differ then.
    static constexpr int kTokenBytes = kRowsChannels * kSize + 4;
    static constexpr int kTokenLines = (kHalo + kSpan) * kTokenBytes + (kHaloCells + kRowLanes) * 4;
    static constexpr int kXCells = kRowsChannels * kCells;
    static constexpr int kOutCells = kXCells > (kTokenLines + 15) / 16 ? kXCells : (kTokenLines + 15) / 16;
    static_assert(kRowsOfBlock % kTokens == 0, "all channels of a row of lanes begin alike");
};

// The elements from the boundary of 16 bytes before an address to it.
template <typename T>
HIPCONV_INLINE int elements_apart(const void* address) {
    return static_cast<int>(static_cast<uint32_t>(reinterpret_cast<uint64_t>(address)) % 16 / sizeof(T));
}

// Launches the instance for the width; each element type has a file of its own.
template <typename T>
void launch_rows(const StagedCall& call, void* stream);
extern template void launch_rows<float>(const StagedCall& call, void* stream);
extern template void launch_rows<f16>(const StagedCall& call, void* stream);
extern template void launch_rows<bf16>(const StagedCall& call, void* stream);

}  // namespace hipconv
