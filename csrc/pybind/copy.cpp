// The copy module checks that tensors are contiguous and of equal size, and calls the launcher.
#include <torch/csrc/utils/pybind.h>  // must be first, as it may be there precompiled

#include <c10/core/DeviceGuard.h>

#include "common/tensor_checks.h"
#include "copy/copy.h"

namespace py = pybind11;

namespace {

using namespace hipconv;

void copy_tensor(const at::Tensor& out, const at::Tensor& x, int64_t stream) {
    check_shape({"out", out}, x.sizes(), "the shape of x");
    check_same_device({"out", out}, {"x", x});
    const int64_t bytes = static_cast<int64_t>(x.nbytes());
    for (const NamedTensor& t : {NamedTensor{"x", x}, NamedTensor{"out", out}})
        if (!t.tensor.is_contiguous() || reinterpret_cast<uintptr_t>(t.tensor.data_ptr()) % 16 != 0 || bytes % 16 != 0)
            throw py::value_error(concat(t.name, ": expected a contiguous tensor of whole, aligned 16-byte vectors"));
    if (out.nbytes() != x.nbytes()) throw py::type_error("out: expected the dtype of x");
    check_no_overlap({"out", out}, {"x", x});
    const c10::DeviceGuard guard(x.device());
    py::gil_scoped_release no_gil;
    copy(out.data_ptr(), x.data_ptr(), bytes, reinterpret_cast<void*>(stream));
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("copy", &copy_tensor, py::arg("out"), py::arg("x"), py::arg("stream")); }
