// The causal_conv1d module checks tensors, fills a params struct and calls the launcher.
#include <torch/csrc/utils/pybind.h>  // must be first, as it may be there precompiled

#include <ATen/core/Tensor.h>

#include <ATen/ops/empty_like_ops.h>  // must be after it; <ATen/ops/empty_like.h> would take seconds to compile
#include <c10/core/DeviceGuard.h>
#include <pybind11/stl.h>

#include <optional>
#include <tuple>

#include "causal_conv1d/forward.h"
#include "common/conv1d_arguments.h"
#include "common/direct_call.h"
#include "common/kernel_request.h"

namespace py = pybind11;

namespace {

using namespace hipconv;

using Kernel = KernelRow<CausalConv1dFwdParams>;
using Request = KernelRequest<CausalConv1dFwdParams>;

Request request(const std::string& keyword) {
    return requested_kernel(keyword, kCausalConv1dFwdNames, causal_conv1d_fwd_kernels());
}

// ---- tensors to params ----------------------------------------------------------------------------------------------------

// Checks kinds, types and shapes; the launch checks where the tensors lie.
CausalConv1dFwdParams checked_params(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight,
                                     const at::Tensor* bias, bool use_silu) {
    CausalConv1dFwdParams p{};
    set_rows(p, x, weight, bias, use_silu);
    check_strided({"out", out});
    check_same_dtype({"out", out}, {"x", x});
    check_shape({"out", out}, x.sizes(), "the shape of x");
    p.out = sequences_of(out);
    settle_strides(p.batch, p.dim, p.seqlen, {&p.x, &p.out});
    return p;
}

// Checks a call whose rows may continue from a state, end in one, or hold packed sequences.
CausalConv1dFwdParams checked_rows(const at::Tensor& out, const at::Tensor* final_states, const at::Tensor& x,
                                   const at::Tensor& weight, const at::Tensor* bias, const at::Tensor* seq_idx,
                                   const at::Tensor* initial_states, bool use_silu) {
    CausalConv1dFwdParams p{};
    static_cast<CausalConv1dInputs&>(p) =
        checked_inputs(x, weight, bias, seq_idx, initial_states, use_silu, causal_conv1d_fwd_serves_f64());
    p.out = checked_sequences({"out", out}, x, x.sizes(), "the shape of x");
    settle_strides(p.batch, p.dim, p.seqlen, {&p.x, &p.out});
    check_output({"out", out}, {{"x", x}, {"weight", weight}});
    if (bias) check_no_overlap({"out", out}, {"bias", *bias});
    if (seq_idx) check_no_overlap({"out", out}, {"seq_idx", *seq_idx});
    if (initial_states) check_no_overlap({"out", out}, {"initial_states", *initial_states});
    if (p.width == 1) p.initial_states = {};
    if (!final_states) return p;
    const NamedTensor state{"final_states_out", *final_states};
    const Sequences final = checked_state(state, x, weight);
    if (p.width > 1) p.final_states = final;
    check_output(state, {{"x", x}, {"weight", weight}, {"out", out}});
    // Final states may lie in the memory of the initial states themselves: they are written after those have been read.
    const bool in_place = initial_states && final_states->data_ptr() == initial_states->data_ptr() &&
                          final_states->strides() == initial_states->strides();
    if (initial_states && !in_place) check_no_overlap(state, {"initial_states", *initial_states});
    return p;
}

// ---- calls ----------------------------------------------------------------------------------------------------------------

void launch(const CausalConv1dFwdParams& p, const at::Tensor& x, const Request& wanted, int64_t stream) {
    if (x.numel() == 0) return;
    const Kernel* kernel = kernel_of(causal_conv1d_fwd_kernels(), wanted, p);
    const c10::DeviceGuard guard(x.device());
    py::gil_scoped_release no_gil;
    kernel->launch(p, nullptr, reinterpret_cast<void*>(stream));
}

void fwd(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight, const at::Tensor* bias, bool use_silu,
         const std::string& kernel, int64_t stream) {
    const char* remedy =
        "this form writes into `out` and records no gradient. Call it under torch.no_grad(), or pass detached tensors.";
    check_no_grad({"out", out}, remedy);
    check_no_grad({"x", x}, remedy);
    check_no_grad({"weight", weight}, remedy);
    if (bias) check_no_grad({"bias", *bias}, remedy);
    const CausalConv1dFwdParams p = checked_params(out, x, weight, bias, use_silu);
    check_parameters_device(x, weight, bias);
    check_same_device({"out", out}, {"x", x});
    const Request wanted = request(kernel);
    check_no_internal_overlap({"out", out});
    check_no_overlap({"out", out}, {"x", x});
    check_no_overlap({"out", out}, {"weight", weight});
    if (bias) check_no_overlap({"out", out}, {"bias", *bias});
    if (!out.is_inference()) out.unsafeGetTensorImpl()->bump_version();  // a graph that saved `out` must notice
    launch(p, x, wanted, stream);
}

// A kernel that serves no states or ids makes rows as if they were plain, and the outputs that differ are made after it.
struct RowsKernel {
    const Kernel* kernel;
    bool mends;
};

RowsKernel kernel_of_rows(const CausalConv1dFwdParams& p, const CausalConv1dFwdParams& plain, const Request& wanted) {
    const KernelTable<CausalConv1dFwdParams> kernels = causal_conv1d_fwd_kernels();
    if (!wanted.kernel) {
        const Kernel* kernel = kernels.choice(p);
        if (kernel + 1 != kernels.end()) return {kernel, false};
    }
    const Kernel* kernel = kernel_of(kernels, wanted, plain);
    return {kernel, kernel->refusal_of(p) != nullptr};
}

void rows_fwd(const at::Tensor& out, const OptionalTensor& final_states, const at::Tensor& x, const at::Tensor& weight,
              const OptionalTensor& bias, const OptionalTensor& seq_idx, const OptionalTensor& initial_states, bool use_silu,
              int64_t stream) {
    const CausalConv1dFwdParams p =
        checked_rows(out, given(final_states), x, weight, given_bias(bias), given(seq_idx), given(initial_states), use_silu);
    const Request wanted = p.dtype == kF64 ? Request{nullptr, "kernel"} : request("auto");
    note_written(out);
    if (final_states) note_written(*final_states);
    if (p.batch == 0 || p.dim == 0) return;
    const c10::DeviceGuard guard(x.device());
    CausalConv1dFwdParams plain = p;
    plain.initial_states = plain.final_states = {};
    plain.seq_idx = {};
    const RowsKernel rows = p.seqlen > 0 ? kernel_of_rows(p, plain, wanted) : RowsKernel{};
    py::gil_scoped_release no_gil;
    void* const hip_stream = reinterpret_cast<void*>(stream);
    if (rows.kernel) rows.kernel->launch(rows.mends ? plain : p, nullptr, hip_stream);
    if (rows.mends) causal_conv1d_mend(p, hip_stream);
    if (p.final_states.data && (rows.mends || !rows.kernel)) causal_conv1d_final_states(p, hip_stream);
}

at::Tensor new_tensor(const at::Tensor& x, const at::Tensor& weight, const at::Tensor* bias, bool use_silu,
                      const std::string& kernel, int64_t stream) {
    const char* remedy =
        "torch.ops.hipconv.causal_conv1d records no gradient. Call hipconv.causal_conv1d, which does, or pass detached "
        "tensors.";
    check_no_grad({"x", x}, remedy);
    check_no_grad({"weight", weight}, remedy);
    if (bias) check_no_grad({"bias", *bias}, remedy);
    check_strided({"x", x});
    at::Tensor out = at::_ops::empty_like::call(x, {}, {}, {}, {}, {});
    const CausalConv1dFwdParams p = checked_params(out, x, weight, bias, use_silu);
    check_parameters_device(x, weight, bias);
    launch(p, x, request(kernel), stream);
    return out;
}

// Does the same past the dispatcher, called with Python's objects (out, x, weight, bias, use_silu, kernel), on the current
// stream. It returns False if the arguments do not fit a call, or the dispatcher has something to do.
PyObject* fwd_directly(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    return with_python_errors([&] {
        at::Tensor out, x, weight;
        OptionalTensor bias;
        bool use_silu = false;
        std::string kernel;
        if (count != 6 || !read(arguments[0], out) || !read(arguments[1], x) || !read(arguments[2], weight) ||
            !read(arguments[3], bias) || !read(arguments[4], use_silu) || !read(arguments[5], kernel) ||
            !nothing_looks_on({&out, &x, &weight, given(bias)}))
            return Py_NewRef(Py_False);
        fwd(out, x, weight, given_bias(bias), use_silu, kernel, current_stream(x));
        return Py_NewRef(Py_True);
    });
}

// Does the same for (x, weight, bias, use_silu, kernel, record), and makes the output. If autograd has something to do, it
// calls record(x, weight, bias, use_silu, this module), which comes back without. It returns None where the function above
// returns False, and if `record` is None, or does not serve the call.
PyObject* new_tensor_directly(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
    return with_python_errors([&] {
        at::Tensor x, weight;
        OptionalTensor bias;
        bool use_silu = false;
        std::string kernel;
        if (count != 6 || !read(arguments[0], x) || !read(arguments[1], weight) || !read(arguments[2], bias) ||
            !read(arguments[3], use_silu) || !read(arguments[4], kernel) || !nothing_looks_on({&x, &weight, given(bias)}))
            return Py_NewRef(Py_None);
        if (!nothing_to_record({&x, &weight, given_bias(bias)})) {
            if (arguments[5] == Py_None || kernel != "auto" || x.scalar_type() == at::kDouble) return Py_NewRef(Py_None);
            PyObject* const inputs[] = {arguments[0], arguments[1], given_bias(bias) ? arguments[2] : Py_None, arguments[3],
                                        module};
            return PyObject_Vectorcall(arguments[5], inputs, 5, nullptr);
        }
        return py::cast(new_tensor(x, weight, given_bias(bias), use_silu, kernel, current_stream(x))).release().ptr();
    });
}

// Tells how a call with these tensors would run: the kernel, its form, what asked for it, and all kernels that serve the
// call.
std::tuple<std::string, std::string, std::string, std::vector<std::string>> plan(const at::Tensor& out, const at::Tensor& x,
                                                                                 const at::Tensor& weight,
                                                                                 const OptionalTensor& bias, bool use_silu,
                                                                                 const std::string& keyword) {
    const CausalConv1dFwdParams p = checked_params(out, x, weight, given_bias(bias), use_silu);
    const Request wanted = request(keyword);
    if (x.numel() == 0) return {"none", "none", "the empty x", {}};
    const Kernel* kernel = kernel_of(causal_conv1d_fwd_kernels(), wanted, p);
    return {kernel->name, kernel->form_of(p), wanted.kernel ? wanted.source : "auto",
            names_serving(causal_conv1d_fwd_kernels(), p)};
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("causal_conv1d_fwd",
          [](const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias, bool use_silu,
             const std::string& kernel, int64_t stream) { fwd(out, x, weight, given_bias(bias), use_silu, kernel, stream); });
    m.def("causal_conv1d", [](const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias, bool use_silu,
                              const std::string& kernel,
                              int64_t stream) { return new_tensor(x, weight, given_bias(bias), use_silu, kernel, stream); });
    m.def("causal_conv1d_rows_fwd", &rows_fwd);
    m.def("causal_conv1d_plan", &plan);
    m.def("causal_conv1d_fwd_kernels", [] { return names_of(causal_conv1d_fwd_kernels()); });
    add_direct_call(m, "nothing_looks_on", nothing_looks_on);
    add_direct_call(m, "causal_conv1d_fwd_directly", fwd_directly);
    add_direct_call(m, "causal_conv1d_directly", new_tensor_directly);
}
