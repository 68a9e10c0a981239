// The conv3d module checks tensors, fills a params struct and calls the launcher. csrc/kernels/conv3d/common/algorithms.cu has
// the table of algorithms, and python/hipconv/ops/conv3d/calls.py takes the first that serves a call.
#include <torch/csrc/utils/pybind.h>  // must be first, as it may be there precompiled

#include <ATen/core/Tensor.h>

#include <c10/core/DeviceGuard.h>
#include <pybind11/stl.h>

#include <optional>
#include <tuple>

#include "common/memory.h"
#include "common/named_values.h"
#include "common/tensor_checks.h"
#include "conv3d/conv3d.h"
#include "conv3d/rms_norm.h"
#include "conv3d/scaled.h"

namespace py = pybind11;

namespace {

using namespace hipconv;
using OptionalTensor = std::optional<at::Tensor>;
using Ints = std::vector<int32_t>;

const at::Tensor* address_of(const OptionalTensor& tensor) { return tensor.has_value() ? &*tensor : nullptr; }

// This holds all of a call except its tensors. It is made once for calls that are alike.
struct Call {
    Ints stride, dilation, out_size;
    int32_t front;
    Ints padding;  // top, bottom, left, right
    int32_t groups;
    PaddingMode time_mode;
    bool is_causal;
    PaddingMode padding_mode;
    Conv2dActivation activation;
    Float32Precision float32_precision;
    std::string algorithm;
    Conv3dCard card;
};

Call make_call(const Ints& stride, int32_t front, const Ints& padding, const Ints& dilation, int32_t groups,
               const Ints& out_size, const std::string& time_mode, bool is_causal, const std::string& padding_mode,
               const std::string& activation, const std::string& float32_precision, const std::string& algorithm,
               const std::string& arch, int32_t compute_units) {
    if (stride.size() != 3 || padding.size() != 4 || dilation.size() != 3 || out_size.size() != 3)
        throw py::value_error("stride, padding, dilation, out_size: expected 3, 4, 3 and 3 integers");
    check_kernel_name(algorithm, conv3d_algorithms(), "algorithm");
    return {stride,
            dilation,
            out_size,
            front,
            padding,
            groups,
            padding_mode_of("time_padding", time_mode),
            is_causal,
            padding_mode_of("padding_mode", padding_mode),
            activation_of(activation),
            float32_precision_of(float32_precision),
            algorithm,
            {arch, compute_units}};
}

// ---- tensors to params ----------------------------------------------------------------------------------------------------

// torch leaves any stride for an axis of one element, because it does not matter. Kernels get the stride of a dense tensor in
// the layout of the other axes.
Volume volume(const at::Tensor& t) {
    const int64_t channels = t.size(1), frames = t.size(2), height = t.size(3), width = t.size(4);
    const int64_t pixel_stride = width > 1 ? t.stride(4) : height > 1 ? t.stride(3) : t.stride(2);
    const bool is_told = channels > 1 && frames * height * width > 1;
    const bool channels_last = is_told && t.stride(1) < pixel_stride;
    const int64_t plain[5] = {channels * frames * height * width, frames * height * width, height * width, width, 1};
    const int64_t last[5] = {channels * frames * height * width, 1, channels * height * width, channels * width, channels};
    int64_t strides[5];
    for (int k = 0; k < 5; ++k) strides[k] = t.size(k) != 1 ? t.stride(k) : channels_last ? last[k] : plain[k];
    return {memory_of(t), strides[0], strides[1], strides[2], strides[3], strides[4]};
}

// This checks that no index of a padded axis lies farther outside than its padding mode reaches.
void check_reach(const char* axis, PaddingMode mode, int64_t before, int64_t behind, int64_t size) {
    const int64_t limit = mode == PaddingMode::reflect    ? size - 1
                          : mode == PaddingMode::circular ? size
                                                          : std::numeric_limits<int64_t>::max();
    if (mode != PaddingMode::zeros && (size < 1 || before > limit || behind > limit))
        throw py::value_error(concat("padding: reaches ", before, " before and ", behind, " behind the ", axis, " of size ",
                                     size, ", expected at most ", limit, " for this padding_mode"));
}

struct Tensors {
    const at::Tensor &out, &x, &weight;
    const at::Tensor *cache_out, *bias, *residual, *cache;
};

// This checks kinds, types and shapes; the launch checks where the tensors lie.
Conv3dParams checked_params(const Tensors& t, const Call& call) {
    static constexpr const char* kAxes = "(batch, in_channels, frames, height, width)";
    for (const auto& [name, tensor] : {std::pair{"x", &t.x},
                                       {"weight", &t.weight},
                                       {"out", &t.out},
                                       {"cache", t.cache},
                                       {"cache_out", t.cache_out},
                                       {"residual", t.residual}}) {
        if (!tensor) continue;
        check_strided({name, *tensor});
        check_sizes_fit({name, *tensor});
        check_rank({name, *tensor}, 5, kAxes);
    }
    Conv3dParams p{};
    const at::Tensor &x = t.x, &weight = t.weight;
    p.dtype = float_dtype({"x", x});
    p.float32_precision = call.float32_precision;
    p.out_dtype = float_dtype({"out", t.out});
    check_same_dtype({"weight", weight}, {"x", x});
    for (const Ints& factors : {call.stride, call.dilation, Ints{call.groups}})
        for (const int32_t factor : factors)
            if (factor < 1) throw py::value_error(concat("stride, dilation, groups: got ", factor, ", expected at least 1"));
    if (x.size(1) % call.groups != 0 || weight.size(1) != x.size(1) / call.groups || weight.size(0) % call.groups != 0)
        throw py::value_error(concat("weight: got shape ", shape_text(weight.sizes()), " for x of shape ",
                                     shape_text(x.sizes()), " and ", call.groups,
                                     " groups, expected (a multiple of groups, in_channels / groups, frames, height, width)"));
    const int64_t history = (weight.size(2) - 1) * call.dilation[0];
    for (const auto& [name, tensor] : {std::pair{"cache", t.cache}, {"cache_out", t.cache_out}}) {
        if (!tensor) continue;
        check_same_dtype({name, *tensor}, {"x", x});
        const bool is_read = tensor == t.cache;
        const int64_t frames = is_read && tensor->size(2) <= history ? tensor->size(2) : history;
        check_shape({name, *tensor}, {x.size(0), x.size(1), frames, x.size(3), x.size(4)}, kAxes);
    }
    check_shape({"out", t.out}, {x.size(0), weight.size(0), call.out_size[0], call.out_size[1], call.out_size[2]},
                "(batch, out_channels, frames, height, width)");

    const auto size = [](const at::Tensor& tensor, int axis) { return static_cast<int32_t>(tensor.size(axis)); };
    p.batch = size(x, 0), p.in_channels = size(x, 1), p.in_frames = size(x, 2), p.in_height = size(x, 3),
    p.in_width = size(x, 4);
    p.cached = t.cache ? size(*t.cache, 2) : 0;
    p.out_channels = size(t.out, 1), p.out_frames = size(t.out, 2), p.out_height = size(t.out, 3), p.out_width = size(t.out, 4);
    p.kernel_frames = size(weight, 2), p.kernel_height = size(weight, 3), p.kernel_width = size(weight, 4);
    p.stride_t = call.stride[0], p.stride_h = call.stride[1], p.stride_w = call.stride[2];
    p.front = call.front, p.pad_top = call.padding[0], p.pad_left = call.padding[2];
    p.dilation_t = call.dilation[0], p.dilation_h = call.dilation[1], p.dilation_w = call.dilation[2];
    p.groups = call.groups;
    p.time_mode = call.time_mode, p.padding_mode = call.padding_mode;
    p.activation = call.activation;
    p.x = volume(x), p.weight = volume(weight), p.out = volume(t.out);
    if (t.cache) p.cache = volume(*t.cache);
    if (t.bias) {
        check_strided({"bias", *t.bias});
        check_shape({"bias", *t.bias}, {weight.size(0)}, "(out_channels,)");
        p.bias = memory_of(*t.bias);
        p.bias_stride = t.bias->stride(0);
        p.bias_dtype = float_dtype({"bias", *t.bias});
    }
    if (t.residual) {
        check_shape({"residual", *t.residual}, t.out.sizes(), "the shape of the result");
        p.residual = volume(*t.residual);
        p.residual_dtype = float_dtype({"residual", *t.residual});
    }
    if (t.cache_out && t.cache_out->numel() > 0) {
        p.saved = volume(*t.cache_out);
        p.saved_frames = static_cast<int32_t>(history);
        p.saved_mode = call.is_causal ? call.time_mode : PaddingMode::zeros;
    }
    if (t.out.numel() == 0) return p;
    const auto behind = [](int64_t out, int64_t stride, int64_t kernel, int64_t dilation, int64_t padding, int64_t size) {
        return (out - 1) * stride + (kernel - 1) * dilation - padding - (size - 1);
    };
    const int64_t frames = int64_t{p.cached} + p.in_frames;
    check_reach("frames", p.time_mode, p.front,
                behind(p.out_frames, p.stride_t, p.kernel_frames, p.dilation_t, p.front, frames), frames);
    check_reach("height", p.padding_mode, p.pad_top,
                behind(p.out_height, p.stride_h, p.kernel_height, p.dilation_h, p.pad_top, p.in_height), p.in_height);
    check_reach("width", p.padding_mode, p.pad_left,
                behind(p.out_width, p.stride_w, p.kernel_width, p.dilation_w, p.pad_left, p.in_width), p.in_width);
    return p;
}

// ---- packed filters -------------------------------------------------------------------------------------------------------

// This is how calls that are alike read filters that they cannot read as they are.
struct Packing {
    Conv3dParams params;  // of such a call, without the memory of its tensors
    int64_t bytes;
};

at::Tensor pack(const Packing& packing, const at::Tensor& weight, int64_t stream) {
    Conv3dParams p = packing.params;
    check_strided({"weight", weight});
    check_shape({"weight", weight},
                {p.out_channels, p.in_channels / p.groups, p.kernel_frames, p.kernel_height, p.kernel_width},
                "(out_channels, in_channels / groups, frames, height, width)");
    if (float_dtype({"weight", weight}) != p.dtype) throw py::type_error("weight: its dtype is not that of the packing");
    p.weight = volume(weight);
    const c10::DeviceGuard guard(weight.device());
    const at::Tensor packed = bytes_beside(weight, packing.bytes);
    py::gil_scoped_release no_gil;
    conv3d_pack_filters(p, packed.data_ptr(), reinterpret_cast<void*>(stream));
    return packed;
}

// The params of the call where it gets its filters packed.
Conv3dParams with_packed(Conv3dParams p, void* packed) {
    p.weight.data = packed;
    p.is_packed = true;
    return p;
}

// ---- calls ----------------------------------------------------------------------------------------------------------------

void run(const at::Tensor& out, const OptionalTensor& cache_out, const at::Tensor& x, const at::Tensor& weight,
         const OptionalTensor& bias, const OptionalTensor& residual, const OptionalTensor& cache, const Call& call,
         int64_t stream, const OptionalTensor& packed) {
    const Tensors t{out, x, weight, address_of(cache_out), address_of(bias), address_of(residual), address_of(cache)};
    Conv3dParams p = checked_params(t, call);
    WrittenMemory written;
    written.add({"out", out});
    if (t.cache_out) {
        check_same_device({"cache_out", *t.cache_out}, {"out", out});
        written.add({"cache_out", *t.cache_out});
    }
    for (const auto& [name, tensor] :
         {std::pair{"x", &x}, {"weight", &weight}, {"bias", t.bias}, {"residual", t.residual}, {"cache", t.cache}}) {
        if (!tensor) continue;
        check_same_device({name, *tensor}, {"out", out});
        // Each element of the residual is read by the thread that writes the result there, just before.
        const bool is_out = tensor == t.residual && tensor->data_ptr() == out.data_ptr() &&
                            tensor->scalar_type() == out.scalar_type() && tensor->strides() == out.strides();
        written.check_apart({name, *tensor}, is_out ? 1 : 0);
    }
    if (out.numel() == 0 && !p.saved.data) return;
    const std::string algorithm = out.numel() == 0 ? conv3d_algorithms().back() : call.algorithm;
    if (const char* served = conv3d_refusal(algorithm, p, call.card))
        throw py::value_error(concat("algorithm: got '", algorithm, "', which serves ", served));
    if (packed) {
        check_packed(*packed, x, conv3d_packed_bytes(algorithm, p, call.card), algorithm);
        p = with_packed(p, packed->data_ptr());
    }
    const c10::DeviceGuard guard(x.device());
    const Workspace workspace(x, conv3d_workspace(algorithm, p, call.card));
    py::gil_scoped_release no_gil;
    conv3d(algorithm, p, call.card, workspace.data(), reinterpret_cast<void*>(stream));
}

// ---- norms between convolutions -------------------------------------------------------------------------------------------

// Tells how many elements apart samples are whose channels and pixels are dense; -1 if those are not.
int64_t dense_batch_stride(const at::Tensor& t) {
    int64_t dense = t.size(1);
    if (t.stride(1) != 1 && t.size(1) != 1) return -1;
    for (int axis = 4; axis > 1; --axis) {
        if (t.size(axis) != 1 && t.stride(axis) != dense) return -1;
        dense *= t.size(axis);
    }
    return t.size(0) == 1 ? dense : t.stride(0);
}

// This returns whether the kernel serves these tensors, and has written `out` then. `out` may be x itself.
bool rms_norm(const at::Tensor& out, const at::Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias, float scale,
              float eps, bool use_silu, int64_t stream) {
    check_rank({"x", x}, 5, "(batch, channels, frames, height, width)");
    check_shape({"out", out}, x.sizes(), "the shape of x");
    RmsNormParams p{};
    p.dtype = float_dtype({"x", x});
    for (const auto& [name, tensor] : {std::pair{"weight", address_of(weight)}, {"bias", address_of(bias)}}) {
        if (!tensor) continue;
        check_shape({name, *tensor}, {x.size(1)}, "(channels,)");
        if (tensor->scalar_type() != x.scalar_type() || !tensor->is_contiguous()) return false;
        check_same_device({name, *tensor}, {"x", x});
    }
    check_same_dtype({"out", out}, {"x", x});
    check_same_device({"out", out}, {"x", x});
    p.x_batch_stride = dense_batch_stride(x), p.out_batch_stride = dense_batch_stride(out);
    if (p.x_batch_stride < 0 || p.out_batch_stride < 0) return false;
    const bool in_place = x.data_ptr() == out.data_ptr() && p.x_batch_stride == p.out_batch_stride;
    if (!in_place) check_no_overlap({"out", out}, {"x", x});
    p.batch = static_cast<int32_t>(x.size(0)), p.channels = static_cast<int32_t>(x.size(1));
    p.pixels = x.size(2) * x.size(3) * x.size(4);
    p.x = x.data_ptr(), p.out = out.data_ptr();
    p.weight = weight ? weight->data_ptr() : nullptr, p.bias = bias ? bias->data_ptr() : nullptr;
    p.scale = scale, p.eps = eps, p.use_silu = use_silu;
    if (conv3d_rms_norm_refusal(p)) return false;
    const c10::DeviceGuard guard(x.device());
    py::gil_scoped_release no_gil;
    conv3d_rms_norm(p, reinterpret_cast<void*>(stream));
    return true;
}

// This returns whether the kernel serves these tensors, and has written `out` then. `out` may be x itself. Scales and shifts
// are float32 videos, whose first frame stands for one frame alone where it is `apart`.
bool scaled(const at::Tensor& out, const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift, bool apart,
            bool use_silu, int64_t stream) {
    check_rank({"x", x}, 5, "(batch, channels, frames, height, width)");
    check_shape({"out", out}, x.sizes(), "the shape of x");
    check_same_dtype({"out", out}, {"x", x});
    check_rank({"scale", scale}, 5, "(batch, channels, frames, height, width)");
    check_shape({"shift", shift}, scale.sizes(), "the shape of scale");
    if (x.numel() == 0 || scale.numel() == 0 || x.size(0) != scale.size(0) || x.size(1) != scale.size(1)) return false;
    ScaledParams p{};
    p.dtype = float_dtype({"x", x});
    int32_t repeats[3];
    for (int axis = 0; axis < 3; ++axis) {
        const int64_t alone = apart && axis == 0 ? 1 : 0;
        const int64_t size = x.size(2 + axis) - alone, small = scale.size(2 + axis) - alone;
        if (small == 0 ? size != 0 : size % small != 0) return false;
        repeats[axis] = small == 0 ? 1 : static_cast<int32_t>(size / small);
        if (repeats[axis] == 0) return false;
    }
    for (const auto& [name, tensor] : {std::pair{"scale", &scale}, {"shift", &shift}}) {
        check_same_device({name, *tensor}, {"x", x});
        if (tensor->scalar_type() != at::kFloat || !tensor->is_contiguous(at::MemoryFormat::ChannelsLast3d)) return false;
        check_no_overlap({"out", out}, {name, *tensor});
    }
    check_same_device({"out", out}, {"x", x});
    p.x_batch_stride = dense_batch_stride(x), p.out_batch_stride = dense_batch_stride(out);
    if (p.x_batch_stride < 0 || p.out_batch_stride < 0) return false;
    const bool in_place = x.data_ptr() == out.data_ptr() && p.x_batch_stride == p.out_batch_stride;
    if (!in_place) check_no_overlap({"out", out}, {"x", x});
    const auto size = [](const at::Tensor& tensor, int axis) { return static_cast<int32_t>(tensor.size(axis)); };
    p.batch = size(x, 0), p.channels = size(x, 1), p.frames = size(x, 2), p.height = size(x, 3), p.width = size(x, 4);
    p.small_frames = size(scale, 2), p.small_height = size(scale, 3), p.small_width = size(scale, 4);
    p.times = repeats[0], p.lead = apart ? repeats[0] - 1 : 0, p.down = repeats[1], p.across = repeats[2];
    p.x = x.data_ptr(), p.out = out.data_ptr();
    p.scale = scale.data_ptr<float>(), p.shift = shift.data_ptr<float>(), p.use_silu = use_silu;
    if (conv3d_scaled_refusal(p)) return false;
    const c10::DeviceGuard guard(x.device());
    py::gil_scoped_release no_gil;
    conv3d_scaled(p, reinterpret_cast<void*>(stream));
    return true;
}

// ---- what the choice rests on ---------------------------------------------------------------------------------------------

using Service = std::tuple<std::optional<std::string>, std::string, int64_t>;
using FoundPacking = std::tuple<py::bytes, int64_t, Packing, int64_t>;

// This returns the form of the packing, of which there is one; its bytes; what packs; and the bytes of the call's workspace
// beside it. It returns nullopt if the call reads its filters as they are.
std::optional<FoundPacking> packing(const at::Tensor& out, const OptionalTensor& cache_out, const at::Tensor& x,
                                    const at::Tensor& weight, const OptionalTensor& bias, const OptionalTensor& residual,
                                    const OptionalTensor& cache, const Call& call) {
    const Tensors t{out, x, weight, address_of(cache_out), address_of(bias), address_of(residual), address_of(cache)};
    const Conv3dParams p = checked_params(t, call);
    const int64_t bytes = conv3d_packed_bytes(call.algorithm, p, call.card);
    if (bytes == 0) return std::nullopt;
    return FoundPacking{"", bytes, Packing{p, bytes}, conv3d_workspace(call.algorithm, with_packed(p, nullptr), call.card)};
}

// This returns text that says what the call's algorithm serves, or None if it serves these tensors; its form; and the bytes of
// its workspace where it packs its filters itself.
Service service(const at::Tensor& out, const OptionalTensor& cache_out, const at::Tensor& x, const at::Tensor& weight,
                const OptionalTensor& bias, const OptionalTensor& residual, const OptionalTensor& cache, const Call& call) {
    const Tensors t{out, x, weight, address_of(cache_out), address_of(bias), address_of(residual), address_of(cache)};
    const Conv3dParams p = checked_params(t, call);
    if (const char* served = conv3d_refusal(call.algorithm, p, call.card)) return {std::string(served), "", 0};
    return {std::nullopt, conv3d_form(call.algorithm, p, call.card), conv3d_workspace(call.algorithm, p, call.card)};
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    py::class_<Call>(m, "Call").def(py::init(&make_call));
    py::class_<Packing>(m, "Packing").def("pack", &pack);
    m.def("conv3d", &run, py::arg("out"), py::arg("cache_out"), py::arg("x"), py::arg("weight"), py::arg("bias"),
          py::arg("residual"), py::arg("cache"), py::arg("call"), py::arg("stream"), py::arg("packed") = py::none());
    m.def("rms_norm", &rms_norm);
    m.def("scaled", &scaled);
    m.def("conv3d_packing", &packing);
    m.def("conv3d_service", &service);
    m.def("conv3d_algorithms", &conv3d_algorithms);
    m.def("conv3d_has_tf32", &conv3d_has_tf32);
}
