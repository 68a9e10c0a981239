// Checks of what the training forms of the causal conv1d share: x, weight, bias, sequence ids and states.
#pragma once

#include <optional>
#include <string>

#include "causal_conv1d/states.h"
#include "tensor_checks.h"

namespace hipconv {

using OptionalTensor = std::optional<at::Tensor>;

inline const at::Tensor* given(const OptionalTensor& t) { return t.has_value() ? &*t : nullptr; }
inline const at::Tensor* given_bias(const OptionalTensor& bias) {
    return bias.has_value() && bias->numel() > 0 ? &*bias : nullptr;
}

inline DType training_dtype(const NamedTensor& t, bool serves_f64) {
    if (serves_f64 && t.tensor.scalar_type() == at::kDouble) return kF64;
    return float_dtype(t);
}

inline Sequences sequences_of(const at::Tensor& t) { return {t.data_ptr(), t.stride(0), t.stride(1), t.stride(2)}; }

// A tensor of x's dtype and device and of the given shape: out, dout, dx or a state.
inline Sequences checked_sequences(const NamedTensor& t, const at::Tensor& x, at::IntArrayRef shape, const char* axes) {
    check_strided(t);
    if (t.tensor.scalar_type() != x.scalar_type())
        throw pybind11::type_error(concat(t.name, ": got dtype ", python_text(t.tensor.scalar_type()), ", expected that of x, ",
                                          python_text(x.scalar_type())));
    check_shape(t, shape, axes);
    check_same_device(t, {"x", x});
    return sequences_of(t.tensor);
}

inline Sequences checked_state(const NamedTensor& t, const at::Tensor& x, const at::Tensor& weight) {
    return checked_sequences(t, x, {x.size(0), x.size(1), weight.size(1) - 1}, "(batch, dim, width - 1)");
}

inline CausalConv1dInputs checked_inputs(const at::Tensor& x, const at::Tensor& weight, const at::Tensor* bias,
                                         const at::Tensor* seq_idx, const at::Tensor* initial_states, bool use_silu,
                                         bool serves_f64) {
    check_strided({"x", x});
    check_strided({"weight", weight});
    check_rank({"x", x}, 3, "(batch, dim, seqlen)");
    check_rank({"weight", weight}, 2, "(dim, width)");
    CausalConv1dInputs in{};
    in.dtype = training_dtype({"x", x}, serves_f64);
    const bool wide = in.dtype == kF64;  // sums of narrower types are f32
    in.weight_dtype = training_dtype({"weight", weight}, wide);
    if (weight.size(0) != x.size(1) || weight.size(1) < 1)
        throw pybind11::value_error(concat("weight: got shape ", shape_text(weight.sizes()), ", expected (dim, width) = (",
                                           x.size(1), ", width >= 1), dim being x.size(1)"));
    check_same_device({"weight", weight}, {"x", x});
    check_sizes_fit({"x", x});
    check_sizes_fit({"weight", weight});
    in.batch = static_cast<int32_t>(x.size(0));
    in.dim = static_cast<int32_t>(x.size(1));
    in.seqlen = static_cast<int32_t>(x.size(2));
    in.width = static_cast<int32_t>(weight.size(1));
    in.x = sequences_of(x);
    in.weight = weight.data_ptr();
    in.weight_dim_stride = weight.stride(0);
    in.weight_width_stride = weight.stride(1);
    if (bias) {
        const NamedTensor t{"bias", *bias};
        check_strided(t);
        in.bias_dtype = training_dtype(t, wide);
        check_shape(t, {x.size(1)}, "(dim,)");
        check_same_device(t, {"x", x});
        in.bias = bias->data_ptr();
        in.bias_stride = bias->stride(0);
    }
    if (seq_idx) {
        const NamedTensor t{"seq_idx", *seq_idx};
        check_strided(t);
        if (seq_idx->scalar_type() != at::kInt)
            throw pybind11::type_error(concat("seq_idx: got dtype ", python_text(seq_idx->scalar_type()),
                ", expected torch.int32"));
        check_shape(t, {x.size(0), x.size(2)}, "(batch, seqlen)");
        check_same_device(t, {"x", x});
        in.seq_idx = {static_cast<const int32_t*>(seq_idx->data_ptr()), seq_idx->stride(0), seq_idx->stride(1)};
    }
    if (initial_states) in.initial_states = checked_state({"initial_states", *initial_states}, x, weight);
    in.use_silu = use_silu;
    return in;
}

// An output may share a buffer with inputs, but no byte, and each of its elements has memory of its own.
inline void check_output(const NamedTensor& out, std::initializer_list<NamedTensor> inputs) {
    check_no_internal_overlap(out);
    for (const NamedTensor& input : inputs) check_no_overlap(out, input);
}

// A graph that saved what is written must notice.
inline void mark_written(const at::Tensor& t) {
    if (!t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
}

}  // namespace hipconv
