// The causal_conv1d_bwd module checks tensors, fills a params struct and calls the launcher.
#include <torch/csrc/utils/pybind.h>  // must be first, as it may be there precompiled

#include <ATen/core/Tensor.h>

#include <ATen/ops/empty_like_ops.h>  // must be after it; <ATen/ops/empty_like.h> would take seconds to compile
#include <ATen/ops/empty_ops.h>
#include <c10/core/DeviceGuard.h>
#include <pybind11/stl.h>

#include <tuple>

#include "causal_conv1d/backward.h"
#include "common/conv1d_arguments.h"
#include "common/kernel_request.h"
#include "common/memory.h"

namespace py = pybind11;

namespace {

using namespace hipconv;
using Gradients = std::tuple<at::Tensor, at::Tensor, OptionalTensor, OptionalTensor>;

at::Tensor new_tensor(at::IntArrayRef sizes, at::ScalarType dtype, const at::Tensor& like) {
    return at::_ops::empty_memory_format::call(c10::fromIntArrayRefSlow(sizes), dtype, c10::kStrided, like.device(), false, {});
}

at::Tensor new_like(const at::Tensor& x) { return at::_ops::empty_like::call(x, {}, {}, {}, {}, {}); }

Gradients bwd(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& optional_bias, const at::Tensor& dout,
              const OptionalTensor& seq_idx, const OptionalTensor& initial_states, const OptionalTensor& dfinal_states,
              const OptionalTensor& given_dx, bool return_dinitial_states, bool use_silu, const std::string& keyword,
              int64_t stream) {
    const at::Tensor* bias = given_bias(optional_bias);
    CausalConv1dBwdParams p{};
    p.in = checked_inputs(x, weight, bias, given(seq_idx), given(initial_states), use_silu, causal_conv1d_bwd_serves_f64());
    p.dout = checked_sequences({"dout", dout}, x, x.sizes(), "the shape of x");
    if (dfinal_states) p.dfinal_states = checked_state({"dfinal_states", *dfinal_states}, x, weight);
    const KernelTable<CausalConv1dBwdParams> kernels = causal_conv1d_bwd_kernels();
    const auto wanted = requested_kernel(keyword, kCausalConv1dBwdNames, kernels);
    if (given_dx) {
        checked_sequences({"dx", *given_dx}, x, x.sizes(), "the shape of x");
        check_output({"dx", *given_dx}, {{"x", x}, {"weight", weight}, {"dout", dout}});
        if (bias) check_no_overlap({"dx", *given_dx}, {"bias", *bias});
        if (seq_idx) check_no_overlap({"dx", *given_dx}, {"seq_idx", *seq_idx});
        if (initial_states) check_no_overlap({"dx", *given_dx}, {"initial_states", *initial_states});
        if (dfinal_states) check_no_overlap({"dx", *given_dx}, {"dfinal_states", *dfinal_states});
        note_written(*given_dx);
    }
    const at::Tensor dx = given_dx ? *given_dx : new_like(x);
    p.dx = sequences_of(dx);
    settle_strides(p.in.batch, p.in.dim, p.in.seqlen, {&p.in.x, &p.dout, &p.dx});

    const at::Tensor dweight = new_tensor({x.size(1), weight.size(1)}, weight.scalar_type(), x);
    p.dweight = dweight.data_ptr();
    OptionalTensor dbias, dinitial_states;
    if (bias) {
        dbias = new_tensor({x.size(1)}, bias->scalar_type(), x);
        p.dbias = dbias->data_ptr();
    }
    if (return_dinitial_states && initial_states) {
        dinitial_states = new_tensor({x.size(0), weight.size(1) - 1, x.size(1)}, x.scalar_type(), x).transpose(1, 2);
        p.dinitial_states = sequences_of(*dinitial_states);
    }
    if (x.size(1) == 0) return {dx, dweight, dbias, dinitial_states};
    if (x.size(0) == 0) {  // the sums are over nothing
        dweight.zero_();
        if (dbias) dbias->zero_();
        return {dx, dweight, dbias, dinitial_states};
    }
    const c10::DeviceGuard guard(x.device());
    const auto* kernel = kernel_of(kernels, wanted, p);
    const Workspace workspace(x, kernel->workspace_of(p));
    {
        py::gil_scoped_release no_gil;
        kernel->launch(p, workspace.data(), reinterpret_cast<void*>(stream));
    }
    return {dx, dweight, dbias, dinitial_states};
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("causal_conv1d_bwd", &bwd);
    m.def("causal_conv1d_bwd_kernels", [] { return names_of(causal_conv1d_bwd_kernels()); });
}
