// A call gets the kernel of its op's table that its keyword `kernel` names, else the one that the op's environment variable
// names, else the table's choice.
#pragma once

#include <cstdlib>
#include <string>

#include "launch/kernel_names.h"
#include "tensor_checks.h"

namespace hipconv {

template <typename... Call>
struct KernelRequest {
    const KernelRow<Call...>* kernel;  // null means "auto"
    const char* source;                // messages say "kernel" or the variable
};

// This raises ValueError for a name that the backend does not have or, from the variable, that no backend has.
template <typename... Call>
KernelRequest<Call...> requested_kernel(const std::string& keyword, const KernelNames& names,
                                        const KernelTable<Call...>& table) {
    if (keyword != "auto") {
        const KernelRow<Call...>* kernel = find_kernel(table, keyword);
        if (!kernel) check_kernel_name(keyword, known_names(table));
        return {kernel, "kernel"};
    }
    const char* value = std::getenv(names.variable);  // os.environ writes through to it
    if (value == nullptr || *value == '\0') return {nullptr, "kernel"};
    if (const KernelRow<Call...>* kernel = find_kernel(table, value)) return {kernel, names.variable};
    check_kernel_name(value, all_names(names), names.variable);
    return {nullptr, "kernel"};
}

// This returns the kernel that runs the call, or null if none was asked for and the table has none that serves it. It raises
// ValueError if a kernel was asked for that does not serve the call.
template <typename... Call>
const KernelRow<Call...>* kernel_of(const KernelTable<Call...>& table, const KernelRequest<Call...>& wanted,
                                    const Call&... call) {
    if (!wanted.kernel) return table.choice(call...);
    if (const char* served = wanted.kernel->refusal_of(call...)) {
        std::string others;
        for (const std::string& name : names_serving(table, call...)) others += (others.empty() ? "'" : ", '") + name + "'";
        throw pybind11::value_error(
            concat(wanted.source, ": got '", wanted.kernel->name, "', which serves ", served, "; this call can have ", others));
    }
    return wanted.kernel;
}

}  // namespace hipconv
