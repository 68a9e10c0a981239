// Names that Python gives for a convolution's enumerations.
#pragma once

#include <string>

#include "conv2d/conv2d.h"
#include "tensor_checks.h"

namespace hipconv {

template <typename Enum, size_t kCount>
Enum named(const char* argument, const std::string& name, const char* const (&names)[kCount]) {
    std::string list;
    for (size_t i = 0; i < kCount; ++i) {
        if (name == names[i]) return static_cast<Enum>(i);
        list += (i ? ", '" : "'") + std::string(names[i]) + "'";
    }
    throw pybind11::value_error(concat(argument, ": got '", name, "', expected one of ", list));
}

inline PaddingMode padding_mode_of(const char* argument, const std::string& name) {
    static constexpr const char* kModes[] = {"zeros", "reflect", "replicate", "circular"};
    return named<PaddingMode>(argument, name, kModes);
}

inline Conv2dActivation activation_of(const std::string& name) {
    static constexpr const char* kActivations[] = {"none", "relu",    "relu6", "gelu",       "gelu_tanh",
                                                   "silu", "sigmoid", "tanh",  "leaky_relu", "hardswish"};
    return named<Conv2dActivation>("activation", name, kActivations);
}

inline Float32Precision float32_precision_of(const std::string& name) {
    static constexpr const char* kPrecisions[] = {"ieee", "tf32"};
    return named<Float32Precision>("float32_precision", name, kPrecisions);
}

}  // namespace hipconv
