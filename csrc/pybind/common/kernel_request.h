// Which kernel a call asks for by name: by its keyword `kernel`, else by an environment variable, else none.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "tensor_checks.h"

namespace hipconv {

struct KernelRequest {
    std::string kernel;  // "auto" for none, or one of this backend's
    const char* source;  // "kernel" or the variable, for messages
};

// The variable holds for every backend, so it may name a kernel that only another one has, and then means nothing here.
inline KernelRequest requested_kernel(const std::string& keyword, const char* variable, const std::vector<std::string>& here,
                                      const std::vector<std::string>& anywhere) {
    if (keyword != "auto") {
        check_kernel_name(keyword, here);
        return {keyword, "kernel"};
    }
    const char* value = std::getenv(variable);  // os.environ writes through to it
    if (value == nullptr || *value == '\0') return {"auto", "kernel"};
    check_kernel_name(value, anywhere, variable);
    for (const std::string& name : here)
        if (name == value) return {name, variable};
    return {"auto", "kernel"};
}

}  // namespace hipconv
