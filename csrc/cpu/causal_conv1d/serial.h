// When is a loop over outputs shared out over threads?
#pragma once

#include <cstdint>

namespace hipconv {

constexpr int64_t kSerialBelow = 1 << 14;  // outputs that are not worth waking a second thread for: about 5 us of work

}  // namespace hipconv
