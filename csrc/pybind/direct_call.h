// May a call skip torch's dispatcher? An operator written in Python costs 3 us to reach (measured on a 2-core cloud host), more
// than all the rest of a call, and mostly the dispatcher has nothing to do but run it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <initializer_list>

namespace at {
TORCH_API bool hasCallbacks();  // of <ATen/record_function.h>, which takes 3 s to compile
}

namespace hipconv {

// Whether the dispatcher would go straight to the kernel of the tensors' device: no mode, functional transform, tracer, lazy
// conjugate or wrapper of a tensor is on the way, and no profiler listens. Autograd and autocast do not count: for operators
// that register nothing with them they do nothing. Overrides in Python (__torch_function__) are the caller's to ask for.
inline bool dispatcher_adds_nothing(std::initializer_list<const at::Tensor*> tensors) {
    c10::DispatchKeySet keys;
    for (const at::Tensor* tensor : tensors)
        if (tensor) keys = keys | tensor->key_set();
    const auto thread = c10::impl::tls_local_dispatch_key_set();
    keys = (keys | thread.included_) - thread.excluded_;
    keys = keys - c10::autograd_dispatch_keyset_with_ADInplaceOrView - c10::autocast_dispatch_keyset -
           c10::DispatchKeySet(c10::DispatchKey::BackendSelect);
    const c10::DispatchKey next = keys.highestPriorityTypeId();
    return (next == c10::DispatchKey::CPU || next == c10::DispatchKey::CUDA) && !at::hasCallbacks();
}

// Whether autograd has no part in a call: for operators that write into their arguments.
inline bool nothing_to_record(std::initializer_list<const at::Tensor*> tensors) {
    if (!c10::GradMode::is_enabled()) return true;
    for (const at::Tensor* tensor : tensors)
        if (tensor && tensor->requires_grad()) return false;
    return true;
}

// What the dispatcher does for an argument that an operator marks as written: a graph that saved it must notice.
inline void note_written(const at::Tensor& tensor) {
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

}  // namespace hipconv
