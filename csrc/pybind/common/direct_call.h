// Tells whether a call may skip torch's dispatcher. An operator written in Python costs 3 us to reach (measured on a 2-core
// cloud host), more than all the rest of a call, and mostly the dispatcher has nothing to do but run it. Where a call takes a
// few microseconds in all, it may skip pybind11's conversions of arguments too.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like_ops.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/utils/pybind.h>

#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tensor_checks.h"

namespace at {
TORCH_API bool hasCallbacks();  // <ATen/record_function.h> declares it, and takes 3 s to compile
}

namespace hipconv {

// Tells whether the dispatcher would go straight to the kernel of the tensors' device, `keys` being the union of theirs: no
// mode, functional transform, tracer, lazy negation or conjugate, tensor of zeros without memory, or wrapper of a tensor is on
// the way, no forward-mode derivative is under way, and no profiler listens. Reverse-mode gradients do not count: a caller that
// records them checks that itself. Autocast counts for operators that have a kernel for it.
inline bool dispatcher_adds_nothing(c10::DispatchKeySet keys, bool autocasts) {
    const auto thread = c10::impl::tls_local_dispatch_key_set();
    keys = (keys | thread.included_) - thread.excluded_;
    keys = keys - c10::autograd_dispatch_keyset_with_ADInplaceOrView - c10::DispatchKeySet(c10::DispatchKey::BackendSelect);
    if (!autocasts) keys = keys - c10::autocast_dispatch_keyset;
    const c10::DispatchKey next = keys.highestPriorityTypeId();
    return (next == c10::DispatchKey::CPU || next == c10::DispatchKey::CUDA) && !at::hasCallbacks() &&
           !torch::autograd::ForwardADLevel::try_get_by_idx(0);
}

// This overload takes tensors that may be missing. The caller checks for overrides in Python (__torch_function__).
inline bool dispatcher_adds_nothing(std::initializer_list<const at::Tensor*> tensors, bool autocasts = false) {
    c10::DispatchKeySet keys;
    for (const at::Tensor* tensor : tensors)
        if (tensor) keys = keys | tensor->key_set();
    return dispatcher_adds_nothing(keys, autocasts);
}

// Tells whether reverse-mode autograd has no part in a call.
inline bool nothing_to_record(std::initializer_list<const at::Tensor*> tensors) {
    if (!c10::GradMode::is_enabled()) return true;
    for (const at::Tensor* tensor : tensors)
        if (tensor && tensor->requires_grad()) return false;
    return true;
}

// ---- functions that Python calls with its own objects ---------------------------------------------------------------------

// These functions need these objects of torch's Python. They are found when a module is loaded, because an import may let go of
// the GIL, and a thread that waits for another's initialization of a static variable must not hold it.
struct PythonOfTorch {
    PyObject *tensor_type, *parameter_type, *current_stream;
};
inline PythonOfTorch python_of_torch{};

// This returns the current stream of the tensor's device, as the pointer that kernels are launched on. (It asks Python, where
// ROCm, CUDA and torch's versions all have it under one name, so there is no further library to link.)
inline int64_t current_stream(const at::Tensor& tensor) {
    if (!tensor.is_cuda()) return 0;
    const auto owned = [](PyObject* object) { return pybind11::reinterpret_steal<pybind11::object>(object); };
    const auto device = owned(PyLong_FromLong(tensor.get_device()));
    const auto stream = owned(PyObject_CallOneArg(python_of_torch.current_stream, device.ptr()));
    const int64_t pointer = stream ? PyLong_AsLongLong(stream.ptr()) : -1;
    if (pointer == -1 && PyErr_Occurred()) throw pybind11::error_already_set();
    return pointer;
}

// Tells whether neither Python nor the dispatcher would do more than run the kernel.
inline bool nothing_looks_on(std::initializer_list<const at::Tensor*> tensors) {
    return !at::impl::torch_function_mode_enabled() && dispatcher_adds_nothing(tensors);
}

// These convert Python's objects to C++ types; they return false if only the way through the operator handles an object. They
// take tensors and Parameters themselves, no subclass. (torch's python_variable.h has this too, and takes 8 s to compile.)
inline bool read(PyObject* object, at::Tensor& tensor) {
    PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
    if (type != python_of_torch.tensor_type && type != python_of_torch.parameter_type) return false;
    tensor = pybind11::handle(object).cast<at::Tensor>();
    return true;
}
inline bool read(PyObject* object, std::optional<at::Tensor>& tensor) {
    return object == Py_None || read(object, tensor.emplace());
}
inline bool read(PyObject* object, bool& value) {
    value = object == Py_True;
    return value || object == Py_False;
}
inline bool read(PyObject* object, std::string& value) {
    Py_ssize_t size = 0;
    const char* bytes = PyUnicode_CheckExact(object) ? PyUnicode_AsUTF8AndSize(object, &size) : nullptr;
    if (bytes == nullptr) {
        PyErr_Clear();
        return false;
    }
    value.assign(bytes, static_cast<size_t>(size));
    return true;
}

inline bool read(PyObject* object, int64_t& value) {
    if (PyLong_Check(object)) {
        int overflow = 0;
        value = PyLong_AsLongLongAndOverflow(object, &overflow);
        return overflow == 0;
    }
    if (!PyIndex_Check(object)) return false;
    const auto number = pybind11::reinterpret_steal<pybind11::object>(PyNumber_Index(object));  // of numpy's, for example
    if (!number) PyErr_Clear();
    return number && read(number.ptr(), value);
}
inline bool read(PyObject* object, std::optional<int64_t>& value) { return object == Py_None || read(object, value.emplace()); }

// These take the items of a tuple or a list apart.
template <typename... Values>
bool read_items(PyObject* tuple, Values&... values) {
    Py_ssize_t at = 0;
    return PyTuple_CheckExact(tuple) && PyTuple_GET_SIZE(tuple) == sizeof...(values) &&
           (read(PyTuple_GET_ITEM(tuple, at++), values) && ...);
}
template <typename Value, size_t kCount>
bool read_items(PyObject* tuple, Value (&values)[kCount]) {
    bool fits = PyTuple_CheckExact(tuple) && PyTuple_GET_SIZE(tuple) == kCount;
    for (size_t i = 0; fits && i < kCount; ++i) fits = read(PyTuple_GET_ITEM(tuple, static_cast<Py_ssize_t>(i)), values[i]);
    return fits;
}
inline bool read(PyObject* list, std::vector<at::Tensor>& tensors) {
    if (!PyList_CheckExact(list)) return false;
    tensors.resize(static_cast<size_t>(PyList_GET_SIZE(list)));
    bool fits = !tensors.empty();
    for (size_t i = 0; fits && i < tensors.size(); ++i)
        fits = read(PyList_GET_ITEM(list, static_cast<Py_ssize_t>(i)), tensors[i]);
    return fits;
}

// Reads what a call writes: a list of tensors, or None for a new one like x.
inline bool read_outputs(PyObject* object, const at::Tensor& x, std::vector<at::Tensor>& tensors) {
    if (object != Py_None) return read(object, tensors);
    check_strided({"x", x});
    tensors.push_back(at::_ops::empty_like::call(x, {}, {}, {}, {}, {}));
    return true;
}
// Returns them to Python: the list, or the new tensor.
inline PyObject* outputs_of(PyObject* object, const std::vector<at::Tensor>& tensors) {
    return object == Py_None ? pybind11::cast(tensors.front()).release().ptr() : Py_NewRef(object);
}

// pybind11 wraps functions in the same way: C++ exceptions become Python's. Launchers, which do not see pybind11, throw
// std::invalid_argument; torch's translation, for its own exceptions, would make a RuntimeError of that.
template <typename Function>
PyObject* with_python_errors(const Function& function) {
    try {
        return function();
    } catch (const pybind11::builtin_exception& error) {
        error.set_error();
    } catch (const std::invalid_argument& error) {
        PyErr_SetString(PyExc_ValueError, error.what());
    } catch (...) {
        torch::translate_exception_to_python(std::current_exception());
    }
    return nullptr;
}

// This overload takes any number of Python's objects, tensors and None.
inline PyObject* nothing_looks_on(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    return with_python_errors([&] {
        c10::DispatchKeySet keys;
        for (Py_ssize_t k = 0; k < count; ++k) {
            at::Tensor tensor;
            if (arguments[k] == Py_None) continue;
            if (!read(arguments[k], tensor)) return Py_NewRef(Py_False);
            keys = keys | tensor.key_set();
        }
        const bool nothing = !at::impl::torch_function_mode_enabled() && dispatcher_adds_nothing(keys, false);
        return Py_NewRef(nothing ? Py_True : Py_False);
    });
}

// Makes `function`, which takes an array of `count` objects, a function of the module. `name` must outlive the module.
using DirectCall = PyObject* (*)(PyObject* module, PyObject* const* arguments, Py_ssize_t count);
inline void add_direct_call(pybind11::module_& module, const char* name, DirectCall function) {
    const auto of_torch = [](const char* module_name, const char* what) {
        const auto from = pybind11::module_::import(module_name);
        return pybind11::object(pybind11::getattr(from, what, pybind11::none())).release().ptr();
    };
    if (!python_of_torch.tensor_type)  // (a torch without GPUs has no current stream to ask for)
        python_of_torch = {of_torch("torch", "Tensor"), of_torch("torch.nn", "Parameter"),
                           of_torch("torch._C", "_cuda_getCurrentRawStream")};
    const auto untyped = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
    auto* definitions = new PyMethodDef[2]{{name, untyped, METH_FASTCALL, nullptr}, {}};  // Python keeps the pointer
    if (PyModule_AddFunctions(module.ptr(), definitions) != 0) throw pybind11::error_already_set();
}

}  // namespace hipconv
