// The names of a table's kernels, for those who ask for one or list them.
#pragma once

#include <string>
#include <vector>

#include "launch/kernel_table.h"

namespace hipconv {

// The kernel of this name, of the table or of `also`, or null.
template <typename... Call>
const KernelRow<Call...>* find_kernel(const KernelTable<Call...>& table, const std::string& name) {
    for (const auto& row : table)
        if (name == row.name) return &row;
    return table.also ? find_kernel(*table.also, name) : nullptr;
}

template <typename... Call>
std::vector<std::string> names_of(const KernelTable<Call...>& table) {
    std::vector<std::string> found;
    for (const auto& row : table) found.emplace_back(row.name);
    return found;
}

// The names of the table and of `also`.
template <typename... Call>
std::vector<std::string> known_names(const KernelTable<Call...>& table) {
    std::vector<std::string> found = names_of(table);
    if (table.also)
        for (const std::string& name : known_names(*table.also)) found.push_back(name);
    return found;
}

// Those of them that serve a call.
template <typename... Call>
std::vector<std::string> names_serving(const KernelTable<Call...>& table, const Call&... call) {
    std::vector<std::string> found;
    for (const std::string& name : known_names(table))
        if (!find_kernel(table, name)->refusal_of(call...)) found.push_back(name);
    return found;
}

// Those of all backends.
inline std::vector<std::string> all_names(const KernelNames& of) {
    std::vector<std::string> names;
    for (const char* name : of.gpu)
        if (name) names.emplace_back(name);
    for (const char* name : of.cpu)
        if (name) names.emplace_back(name);
    return names;
}

}  // namespace hipconv
