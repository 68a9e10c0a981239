// The causal_conv1d module: checked tensors -> params struct -> launcher.
#include <c10/core/DeviceGuard.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>

#include "causal_conv1d.h"
#include "tensor_checks.h"

namespace py = pybind11;

namespace {

using namespace hipconv;

Sequences sequences(const at::Tensor& tensor) {
    return {tensor.data_ptr(), tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

void fwd(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& optional_bias,
         bool use_silu, const std::string& kernel, int64_t stream) {
    const at::Tensor* bias = optional_bias.has_value() && optional_bias->numel() > 0 ? &*optional_bias : nullptr;
    check_strided({"x", x});
    check_strided({"weight", weight});
    check_strided({"out", out});
    check_rank({"x", x}, 3, "(batch, dim, seqlen)");
    check_rank({"weight", weight}, 2, "(dim, width)");

    CausalConv1dFwdParams p{};
    p.dtype = float_dtype({"x", x});
    p.weight_dtype = float_dtype({"weight", weight});
    if (out.scalar_type() != x.scalar_type())
        throw py::type_error(concat("out: got dtype ", python_text(out.scalar_type()), ", expected that of x, ",
                                    python_text(x.scalar_type())));
    if (weight.size(0) != x.size(1) || weight.size(1) < 1)
        throw py::value_error(concat("weight: got shape ", shape_text(weight.sizes()), ", expected (dim, width) = (", x.size(1),
                                     ", width >= 1), dim being x.size(1)"));
    if (bias) {
        check_strided({"bias", *bias});
        p.bias_dtype = float_dtype({"bias", *bias});
        check_shape({"bias", *bias}, {x.size(1)}, "(dim,)");
        check_same_device({"bias", *bias}, {"x", x});
    }
    check_shape({"out", out}, x.sizes(), "the shape of x");
    check_same_device({"weight", weight}, {"x", x});
    check_same_device({"out", out}, {"x", x});
    check_sizes_fit({"x", x});
    check_sizes_fit({"weight", weight});
    check_kernel_name(kernel, causal_conv1d_fwd_kernels());
    check_no_internal_overlap({"out", out});
    check_no_overlap({"out", out}, {"x", x});
    check_no_overlap({"out", out}, {"weight", weight});
    if (bias) check_no_overlap({"out", out}, {"bias", *bias});
    if (x.numel() == 0) return;

    p.batch = static_cast<int32_t>(x.size(0));
    p.dim = static_cast<int32_t>(x.size(1));
    p.seqlen = static_cast<int32_t>(x.size(2));
    p.width = static_cast<int32_t>(weight.size(1));
    p.x = sequences(x);
    p.out = sequences(out);
    p.weight = weight.data_ptr();
    p.weight_dim_stride = weight.stride(0);
    p.weight_width_stride = weight.stride(1);
    if (bias) {
        p.bias = bias->data_ptr();
        p.bias_stride = bias->stride(0);
    }
    p.use_silu = use_silu;

    const c10::DeviceGuard guard(x.device());
    py::gil_scoped_release no_gil;
    causal_conv1d_fwd(p, kernel, reinterpret_cast<void*>(stream));
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("causal_conv1d_fwd", &fwd, py::arg("out"), py::arg("x"), py::arg("weight"), py::arg("bias"), py::arg("use_silu"),
          py::arg("kernel"), py::arg("stream"));
    m.def("causal_conv1d_fwd_kernels", &causal_conv1d_fwd_kernels);
}
