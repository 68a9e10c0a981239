// This says when a loop over outputs is shared out over threads, and when a window is kept in buffers.
#pragma once

#include <cstdint>

namespace hipconv {

constexpr int64_t kSerialBelow = 1 << 14;  // fewer outputs, about 5 us of work, are not worth waking a second thread for

// The fast kernels keep a window and its parameters in each thread's buffers. A window of more tokens than this, perhaps of an
// expanded weight, could take more memory than there is, and what fails in a parallel region ends the process: other kernels
// serve it, which keep nothing.
constexpr int kMostBufferedTaps = 1 << 16;

inline const char* buffered_refusal(int width) { return width > kMostBufferedTaps ? "widths up to 65536" : nullptr; }

}  // namespace hipconv
