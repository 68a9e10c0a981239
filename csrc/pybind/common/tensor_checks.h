// These check tensor arguments: each failure names the argument, says what it was and what was expected, and raises TypeError
// (the kind of thing is wrong) or ValueError (the thing has a wrong value) before anything is written.
#pragma once

#include <c10/core/GradMode.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>

#include <limits>
#include <optional>
#include <string>

#include "device/dtype.h"
#include "overlap.h"

namespace hipconv {

// A meta tensor, which has no memory, counts as one whose storage begins on a boundary of 4096 bytes; it is not null, which
// means to kernels that a call has no such tensor.
inline void* memory_of(const at::Tensor& t) {
    if (!t.is_meta()) return t.data_ptr();
    return reinterpret_cast<void*>(4096 + t.storage_offset() * static_cast<int64_t>(t.element_size()));
}

// Makes text from strings and integers. It does without <iostream>, whose numeric facets can come from a second copy of
// the C++ library, the one inside torch's wheels; printing a number would then crash the process.
inline std::string text_of(const std::string& part) { return part; }
inline std::string text_of(int64_t part) { return std::to_string(part); }

template <typename... Parts>
std::string concat(const Parts&... parts) {
    return (std::string() + ... + text_of(parts));
}

// This prints a shape as Python does: "(2, 64, 128)".
inline std::string shape_text(at::IntArrayRef sizes) {
    std::string text = "(";
    for (size_t k = 0; k < sizes.size(); ++k) text += (k ? ", " : "") + std::to_string(sizes[k]);
    return text + (sizes.size() == 1 ? ",)" : ")");
}

// These print types and layouts as Python does: "torch.float16", "torch.sparse_coo".
template <typename T>
std::string python_text(const T& value) {
    return pybind11::str(pybind11::cast(value)).template cast<std::string>();
}

struct NamedTensor {
    const char* name;
    const at::Tensor& tensor;
};

inline DType float_dtype(const NamedTensor& t) {
    switch (t.tensor.scalar_type()) {
        case at::kFloat:
            return DType::f32;
        case at::kHalf:
            return DType::f16;
        case at::kBFloat16:
            return DType::bf16;
        default:
            throw pybind11::type_error(concat(t.name, ": got dtype ", python_text(t.tensor.scalar_type()),
                                              ", expected torch.float32, torch.float16 or torch.bfloat16"));
    }
}

// Checks that a tensor is dense, and has its memory: a storage may have been emptied behind a tensor's back, as FSDP does.
inline void check_strided(const NamedTensor& t) {
    if (t.tensor.layout() != at::kStrided)
        throw pybind11::type_error(concat(t.name, ": got a tensor of layout ", python_text(t.tensor.layout()),
                                          ", expected a dense one (torch.strided)"));
    if (!t.tensor.is_meta() && t.tensor.has_storage() && t.tensor.storage().nbytes() == 0 && t.tensor.numel() > 0)
        throw pybind11::value_error(concat(t.name, ": got a tensor of shape ", shape_text(t.tensor.sizes()),
                                           " whose memory was given back, expected one that has it"));
}

inline void check_rank(const NamedTensor& t, int64_t rank, const char* axes) {
    if (t.tensor.dim() != rank)
        throw pybind11::value_error(concat(t.name, ": got shape ", shape_text(t.tensor.sizes()), ", expected ", rank,
                                           rank == 1 ? " dimension " : " dimensions ", axes));
}

inline void check_shape(const NamedTensor& t, at::IntArrayRef expected, const char* axes) {
    if (t.tensor.sizes() != expected)
        throw pybind11::value_error(
            concat(t.name, ": got shape ", shape_text(t.tensor.sizes()), ", expected ", axes, " = ", shape_text(expected)));
}

inline void check_same_device(const NamedTensor& t, const NamedTensor& other) {
    if (t.tensor.device() != other.tensor.device())
        throw pybind11::value_error(concat(t.name, ": got a tensor on ", t.tensor.device().str(), ", expected it on ",
                                           other.tensor.device().str(), ", where ", other.name, " is"));
}

inline void check_same_dtype(const NamedTensor& t, const NamedTensor& other) {
    if (t.tensor.scalar_type() != other.tensor.scalar_type())
        throw pybind11::type_error(concat(t.name, ": got dtype ", python_text(t.tensor.scalar_type()), ", expected that of ",
                                          other.name, ", ", python_text(other.tensor.scalar_type())));
}

// Kernels hold sizes in 32 bits (and strides in 64).
inline void check_sizes_fit(const NamedTensor& t) {
    for (const int64_t size : t.tensor.sizes())
        if (size > std::numeric_limits<int32_t>::max())
            throw pybind11::value_error(
                concat(t.name, ": got shape ", shape_text(t.tensor.sizes()), ", expected each size to be at most 2147483647"));
}

inline StridedBytes strided_bytes(const NamedTensor& t) {
    const int64_t bytes = static_cast<int64_t>(t.tensor.element_size());
    if (t.tensor.numel() == 0) return {0, bytes, 1, {0}, {0}};  // also of a layout that has no memory to ask for
    StridedBytes view{reinterpret_cast<int64_t>(t.tensor.data_ptr()), bytes, 0, {}, {}};
    for (int64_t k = 0; k < t.tensor.dim(); ++k) {
        if (t.tensor.size(k) == 1) continue;
        if (view.rank == kMaxRank)
            throw pybind11::value_error(concat(t.name, ": got shape ", shape_text(t.tensor.sizes()), ", expected at most ",
                                               kMaxRank, " dimensions of a size other than 1"));
        view.sizes[view.rank] = t.tensor.size(k);
        view.strides[view.rank++] = t.tensor.stride(k) * bytes;
    }
    return view;
}

inline void check_apart(const char* out, const StridedBytes& out_view, const char* input, const StridedBytes& input_view) {
    if (overlaps(out_view, input_view))
        throw pybind11::value_error(concat(out, ": shares memory with ", input,
                                           ", expected memory of its own (interleaved views of one buffer are fine)"));
}

// An output may share a buffer with an input, but no byte.
inline void check_no_overlap(const NamedTensor& out, const NamedTensor& input) {
    if (out.tensor.device() == input.tensor.device())
        check_apart(out.name, strided_bytes(out), input.name, strided_bytes(input));
}

inline void check_no_internal_overlap(const NamedTensor& out) {
    if (overlaps_itself(strided_bytes(out)))
        throw pybind11::value_error(concat(out.name, ": got strides ", shape_text(out.tensor.strides()), " for shape ",
                                           shape_text(out.tensor.sizes()),
                                           ", expected each element to have memory of its own (not an expanded tensor)"));
}

// This tracks the memory that a call writes: each element has its own, and no other tensor of the call shares a byte with it.
// All tensors are on one device.
class WrittenMemory {
  public:
    // Adds a tensor that is written.
    void add(const NamedTensor& t) {
        check_no_internal_overlap(t);
        check_apart(t);
        names_[count_] = t.name;
        views_[count_++] = strided_bytes(t);
    }

    // Checks a tensor that is read. It may be one of the first `except` that are written.
    void check_apart(const NamedTensor& t, int except = 0) const {
        const StridedBytes view = strided_bytes(t);
        for (int k = except; k < count_; ++k) hipconv::check_apart(names_[k], views_[k], t.name, view);
    }

    void check_apart(const char* name, const std::optional<at::Tensor>& tensor) const {
        if (tensor.has_value()) check_apart({name, *tensor});
    }

  private:
    static constexpr int kMost = 6;  // three outputs, the pool, intermediate windows, parents
    const char* names_[kMost];
    StridedBytes views_[kMost];
    int count_ = 0;
};

// The dispatcher does this for an argument that an operator marks as written: a graph that saved it must notice.
inline void note_written(const at::Tensor& tensor) {
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

// An op that records no gradient takes a tensor that requires one only where none would be recorded anyway.
inline void check_no_grad(const NamedTensor& t, const char* remedy) {
    if (c10::GradMode::is_enabled() && t.tensor.requires_grad())
        throw pybind11::value_error(
            concat(t.name, ": got a tensor that requires grad, expected none while grad mode is on: ", remedy));
}

// `source` says where the name came from: the keyword, or an environment variable.
inline void check_kernel_name(const std::string& kernel, const std::vector<std::string>& known, const char* source = "kernel") {
    if (kernel == "auto") return;
    std::string list = "'auto'";
    for (const std::string& name : known) {
        if (kernel == name) return;
        list += ", '" + name + "'";
    }
    throw pybind11::value_error(concat(source, ": got '", kernel, "', expected one of ", list));
}

}  // namespace hipconv
