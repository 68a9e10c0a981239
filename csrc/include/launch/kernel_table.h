// The kernels of an op are a table with a row each. A call gets the kernel that its keyword `kernel` names, else the one that
// the op's environment variable names, else the first row of the table that "auto" takes for it. This header knows neither
// torch nor HIP. What looks names up is in kernel_names.h, which no file of kernels reads: its strings take half a second to
// compile.
//
// A new kernel is a file of its own, its row in the table, and its name in the op's KernelNames.
//
// Tables are `constexpr`, and never `inline`: the loader makes an inline variable one for all modules of a process, and each
// backend's module has a table of its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hipconv {

// The values of type `Call` describe a call: they are the params of an op, and whatever else its launches need. Only launches
// touch the memory of tensors; all else depends on sizes, strides, types and the alignment of addresses.
template <typename... Call>
struct KernelRow {
    const char* name;
    // This returns null if the kernel serves the call, else text that says which calls it serves. Without a function it serves
    // all.
    const char* (*refusal)(const Call&...);
    // This launches a call that the kernel serves.
    void (*launch)(const Call&..., void* workspace, void* stream);
    // This returns the bytes of the workspace. Without a function the kernel needs none.
    int64_t (*workspace)(const Call&...) = nullptr;
    // Tells whether the kernel is the fastest for a call that it serves. Without a function it always is.
    bool (*auto_takes)(const Call&...) = nullptr;
    // This says which of its forms the kernel takes for the call. Without a function it has one.
    const char* (*form)(const Call&...) = nullptr;

    const char* refusal_of(const Call&... call) const { return refusal ? refusal(call...) : nullptr; }
    int64_t workspace_of(const Call&... call) const { return workspace ? workspace(call...) : 0; }
    const char* form_of(const Call&... call) const { return form ? form(call...) : name; }
    bool is_choice_of(const Call&... call) const { return !refusal_of(call...) && (!auto_takes || auto_takes(call...)); }
};

// `also` has more kernels that a call may ask for by name. "auto" does not mean them.
template <typename... Call>
struct KernelTable {
    const KernelRow<Call...>* rows;  // the fastest first
    size_t count;
    const KernelTable* also = nullptr;

    const KernelRow<Call...>* begin() const { return rows; }
    const KernelRow<Call...>* end() const { return rows + count; }
    bool has(const KernelRow<Call...>* row) const { return begin() <= row && row < end(); }

    // The kernel that "auto" means, or null if none serves the call.
    const KernelRow<Call...>* choice(const Call&... call) const {
        for (const auto& row : *this)
            if (row.is_choice_of(call...)) return &row;
        return nullptr;
    }
};

// The names of an op's kernels on GPUs and on the CPU, the fastest first. One environment variable holds for all
// backends, so it may name a kernel that only another backend has, and then it means nothing here.
struct KernelNames {
    const char* variable;
    const char* gpu[8];  // nulls follow the names
    const char* cpu[4];
};

// Tells whether all rows have a name of the list.
template <size_t kRows, size_t kNames, typename... Call>
constexpr bool are_named(const KernelRow<Call...> (&rows)[kRows], const char* const (&names)[kNames]) {
    const auto same = [](const char* a, const char* b) {
        while (*a != '\0' && *a == *b) ++a, ++b;
        return *a == *b;
    };
    for (const auto& row : rows) {
        bool named = false;
        for (const char* name : names) named = named || (name != nullptr && same(name, row.name));
        if (!named) return false;
    }
    return true;
}

}  // namespace hipconv
