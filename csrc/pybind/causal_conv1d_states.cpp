// The causal_conv1d_states module checks tensors, fills a params struct and calls the launcher.
#include <torch/csrc/utils/pybind.h>  // must be first, as it may be there precompiled

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include "causal_conv1d/states.h"
#include "common/conv1d_arguments.h"

namespace py = pybind11;

namespace {

using namespace hipconv;

// `make_rows` is called when all has been checked: it makes `out` as if every row were one sequence without a state. It is None
// for float64.
void fwd(const at::Tensor& out, const OptionalTensor& final_states, const at::Tensor& x, const at::Tensor& weight,
         const OptionalTensor& optional_bias, const OptionalTensor& seq_idx, const OptionalTensor& initial_states,
         bool use_silu, const std::optional<py::function>& make_rows, int64_t stream) {
    const at::Tensor* bias = given_bias(optional_bias);
    CausalConv1dStatesParams p{};
    p.in = checked_inputs(x, weight, bias, given(seq_idx), given(initial_states), use_silu, causal_conv1d_states_serve_f64());
    p.out = checked_sequences({"out", out}, x, x.sizes(), "the shape of x");
    check_output({"out", out}, {{"x", x}, {"weight", weight}});
    if (bias) check_no_overlap({"out", out}, {"bias", *bias});
    if (seq_idx) check_no_overlap({"out", out}, {"seq_idx", *seq_idx});
    if (initial_states) check_no_overlap({"out", out}, {"initial_states", *initial_states});
    if (final_states) {
        const NamedTensor state{"final_states_out", *final_states};
        p.final_states = checked_state(state, x, weight);
        check_output(state, {{"x", x}, {"weight", weight}, {"out", out}});
        // Final states may lie in the memory of the initial states themselves: they are written after those have been read.
        const bool in_place = initial_states && final_states->data_ptr() == initial_states->data_ptr() &&
                              final_states->strides() == initial_states->strides();
        if (initial_states && !in_place) check_no_overlap(state, {"initial_states", *initial_states});
    }
    mark_written(out);
    if (final_states) mark_written(*final_states);
    if (x.size(0) == 0 || x.size(1) == 0) return;
    if (make_rows) (*make_rows)();
    const c10::DeviceGuard guard(x.device());
    py::gil_scoped_release no_gil;
    causal_conv1d_states_fwd(p, reinterpret_cast<void*>(stream));
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("causal_conv1d_states_fwd", &fwd); }
