// This says when a loop over outputs is shared out over threads.
#pragma once

#include <cstdint>

namespace hipconv {

constexpr int64_t kSerialBelow = 1 << 14;  // fewer outputs, about 5 us of work, are not worth waking a second thread for

}  // namespace hipconv
