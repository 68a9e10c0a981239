// The causal_conv1d_bwd module checks tensors, fills a params struct and calls the launcher.
#include <torch/csrc/utils/pybind.h>  // must be first, as it may be there precompiled

#include <ATen/core/Tensor.h>

#include <ATen/ops/copy_ops.h>  // must be after it; <ATen/ops/copy.h> would take seconds to compile
#include <ATen/ops/empty_like_ops.h>
#include <ATen/ops/empty_ops.h>
#include <c10/core/DeviceGuard.h>
#include <pybind11/stl.h>

#include <tuple>

#include "causal_conv1d/backward.h"
#include "common/conv1d_arguments.h"
#include "common/kernel_request.h"

namespace py = pybind11;

namespace {

using namespace hipconv;
using Gradients = std::tuple<at::Tensor, at::Tensor, OptionalTensor, OptionalTensor>;

at::Tensor new_tensor(at::IntArrayRef sizes, at::ScalarType dtype, const at::Tensor& like) {
    return at::_ops::empty_memory_format::call(c10::fromIntArrayRefSlow(sizes), dtype, c10::kStrided, like.device(), false, {});
}

at::Tensor new_like(const at::Tensor& x) { return at::_ops::empty_like::call(x, {}, {}, {}, {}, {}); }

// Tells whether neighbours in memory are channels of one and tokens of the other.
bool are_crossed(const Sequences& a, const Sequences& b) {
    const auto channels_inside = [](const Sequences& s) { return s.dim_stride == 1 && s.seqlen_stride != 1; };
    const auto tokens_inside = [](const Sequences& s) { return s.seqlen_stride == 1 && s.dim_stride != 1; };
    return (channels_inside(a) && tokens_inside(b)) || (tokens_inside(a) && channels_inside(b));
}

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
    // The fast kernels take tensors of one order. Copies of those in another one cost less than a kernel that takes any,
    // where a faster one serves the copies.
    at::Tensor dout_like_x, dx_like_x;
    if (!wanted.kernel && (are_crossed(p.dout, p.in.x) || are_crossed(p.dx, p.in.x))) {
        CausalConv1dBwdParams in_order = p;
        if (are_crossed(p.dout, p.in.x)) in_order.dout = sequences_of(dout_like_x = new_like(x));
        if (are_crossed(p.dx, p.in.x)) in_order.dx = sequences_of(dx_like_x = new_like(x));
        settle_strides(p.in.batch, p.in.dim, p.in.seqlen, {&in_order.in.x, &in_order.dout, &in_order.dx});
        const auto* faster = kernels.choice(in_order);
        if (faster < kernel) {  // it stands before it in the table
            kernel = faster;
            p = in_order;
            if (dout_like_x.defined()) at::_ops::copy_::call(dout_like_x, dout, false);
        } else {
            dout_like_x = dx_like_x = at::Tensor();
        }
    }
    const at::Tensor workspace = new_tensor({kernel->workspace_of(p)}, at::kByte, x);
    {
        py::gil_scoped_release no_gil;
        kernel->launch(p, workspace.data_ptr(), reinterpret_cast<void*>(stream));
    }
    if (dx_like_x.defined()) at::_ops::copy_::call(const_cast<at::Tensor&>(dx), dx_like_x, false);
    return {dx, dweight, dbias, dinitial_states};
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("causal_conv1d_bwd", &bwd);
    m.def("causal_conv1d_bwd_kernels", [] { return causal_conv1d_bwd_kernels().names(); });
}
