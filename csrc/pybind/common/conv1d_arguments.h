// Forms of the causal conv1d share these arguments: their checks, and the params that they give. Those of all forms come first,
// then those of rows with sequence ids and states.
#pragma once

#include <initializer_list>
#include <optional>

#include "causal_conv1d/states.h"
#include "tensor_checks.h"

namespace hipconv {

using OptionalTensor = std::optional<at::Tensor>;

inline const at::Tensor* given(const OptionalTensor& t) { return t.has_value() ? &*t : nullptr; }
inline const at::Tensor* given_bias(const OptionalTensor& bias) {
    return bias.has_value() && bias->numel() > 0 ? &*bias : nullptr;
}

// float64 passes only where a kernel serves it.
inline DType conv1d_dtype(const NamedTensor& t, bool serves_f64) {
    if (serves_f64 && t.tensor.scalar_type() == at::kDouble) return kF64;
    return float_dtype(t);
}

inline void assign(const void*& to, const void* from) { to = from; }

// Checks weight (dim, width) and bias (dim,) and sets them in the params of any form; dim is x.size(channels). It checks
// kinds, types and shapes; `check_parameters_device` checks where the tensors lie.
template <typename Params>
void set_parameters(Params& p, const at::Tensor& x, int channels, const at::Tensor& weight, const at::Tensor* bias,
                    bool serves_f64 = false) {
    const NamedTensor named{"weight", weight};
    check_strided(named);
    check_rank(named, 2, "(dim, width)");
    p.weight_dtype = conv1d_dtype(named, serves_f64);
    const int64_t dim = x.size(channels);
    if (weight.size(0) != dim || weight.size(1) < 1)
        throw pybind11::value_error(concat("weight: got shape ", shape_text(weight.sizes()), ", expected (dim, width) = (", dim,
                                           ", width >= 1), dim being x.size(", channels, ")"));
    if (bias) {
        const NamedTensor named_bias{"bias", *bias};
        check_strided(named_bias);
        p.bias_dtype = conv1d_dtype(named_bias, serves_f64);
        check_shape(named_bias, {dim}, "(dim,)");
        assign(p.bias, memory_of(*bias));
        p.bias_stride = bias->stride(0);
    }
    check_sizes_fit({"x", x});
    check_sizes_fit(named);
    p.dim = static_cast<int32_t>(dim);
    p.width = static_cast<int32_t>(weight.size(1));
    assign(p.weight, memory_of(weight));
    p.weight_dim_stride = weight.stride(0);
    p.weight_width_stride = weight.stride(1);
}

inline void check_parameters_device(const at::Tensor& x, const at::Tensor& weight, const at::Tensor* bias) {
    check_same_device({"weight", weight}, {"x", x});
    if (bias) check_same_device({"bias", *bias}, {"x", x});
}

inline Sequences sequences_of(const at::Tensor& t) { return {memory_of(t), t.stride(0), t.stride(1), t.stride(2)}; }

// The stride of an axis of one element means nothing, and torch leaves anything there. Kernels get one that fits, as if the
// tensors were dense in the layout of their longer axes, and aligned.
inline void settle_strides(int64_t batch, int64_t dim, int64_t seqlen, std::initializer_list<Sequences*> all) {
    const auto each_has = [&](int64_t Sequences::* stride) {
        for (const Sequences* s : all)
            if (s->*stride != 1) return false;
        return true;
    };
    const auto round_up = [](int64_t size) { return (size + 15) / 16 * 16; };
    const bool channel_last = dim > 1 && each_has(&Sequences::dim_stride);
    for (Sequences* s : all) {
        if (batch == 1) s->batch_stride = 0;
        if (seqlen == 1) s->seqlen_stride = channel_last ? round_up(dim) : 1;
    }
    const bool channel_first = each_has(&Sequences::seqlen_stride);
    for (Sequences* s : all)
        if (dim == 1) s->dim_stride = channel_first ? round_up(seqlen) : 1;
}

// Checks x (batch, dim, seqlen), with weight and bias.
template <typename Params>
void set_rows(Params& p, const at::Tensor& x, const at::Tensor& weight, const at::Tensor* bias, bool use_silu,
              bool serves_f64 = false) {
    check_strided({"x", x});
    check_rank({"x", x}, 3, "(batch, dim, seqlen)");
    p.dtype = conv1d_dtype({"x", x}, serves_f64);
    set_parameters(p, x, 1, weight, bias, p.dtype == kF64);  // sums of narrower types are f32
    p.batch = static_cast<int32_t>(x.size(0));
    p.seqlen = static_cast<int32_t>(x.size(2));
    p.x = sequences_of(x);
    p.use_silu = use_silu;
}

// Checks a tensor that must have x's dtype and device and the given shape: out, dout, dx or a state.
inline Sequences checked_sequences(const NamedTensor& t, const at::Tensor& x, at::IntArrayRef shape, const char* axes) {
    check_strided(t);
    check_same_dtype(t, {"x", x});
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
    CausalConv1dInputs in{};
    set_rows(in, x, weight, bias, use_silu, serves_f64);
    check_parameters_device(x, weight, bias);
    if (seq_idx) {
        const NamedTensor t{"seq_idx", *seq_idx};
        check_strided(t);
        if (seq_idx->scalar_type() != at::kInt)
            throw pybind11::type_error(
                concat("seq_idx: got dtype ", python_text(seq_idx->scalar_type()), ", expected torch.int32"));
        check_shape(t, {x.size(0), x.size(2)}, "(batch, seqlen)");
        check_same_device(t, {"x", x});
        in.seq_idx = {static_cast<const int32_t*>(seq_idx->data_ptr()), seq_idx->stride(0), seq_idx->stride(1)};
    }
    if (initial_states) in.initial_states = checked_state({"initial_states", *initial_states}, x, weight);
    return in;
}

// An output may share a buffer with inputs, but no byte, and each of its elements has memory of its own.
inline void check_output(const NamedTensor& out, std::initializer_list<NamedTensor> inputs) {
    check_no_internal_overlap(out);
    for (const NamedTensor& input : inputs) check_no_overlap(out, input);
}

}  // namespace hipconv
