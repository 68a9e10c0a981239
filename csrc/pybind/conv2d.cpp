// The conv2d module checks tensors, fills a params struct and calls the launcher. python/hipconv/ops/conv2d/router.py says
// which algorithm runs.
#include <torch/csrc/utils/pybind.h>  // must be first, as it may be there precompiled

#include <ATen/core/Tensor.h>

#include <ATen/ops/empty_ops.h>  // must be after it; <ATen/ops/empty.h> would take seconds to compile
#include <c10/core/DeviceGuard.h>
#include <pybind11/stl.h>

#include <cstdlib>
#include <optional>
#include <tuple>

#include "common/direct_call.h"
#include "common/memory.h"
#include "common/named_values.h"
#include "common/tensor_checks.h"
#include "conv2d/conv2d.h"

namespace py = pybind11;

namespace {

using namespace hipconv;
using OptionalTensor = std::optional<at::Tensor>;

const at::Tensor* address_of(const OptionalTensor& tensor) { return tensor.has_value() ? &*tensor : nullptr; }

using Ints = std::vector<int32_t>;

// This holds all of a call except its tensors. It is made once for calls that are alike, which then take no time to convert.
struct Call {
    Ints stride, padding, dilation, out_size;  // padding: top, bottom, left, right
    int32_t groups;
    PaddingMode padding_mode;
    Conv2dActivation activation;
    Float32Precision float32_precision;
    at::ScalarType out_dtype;
    bool channels_last;  // the layout of a new tensor
    Conv2dPlan plan;
    bool has_tile[3];  // whether the card's kernels have the plan's tile, or it has none, for x of each DType
};

constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};

// Tells whether an architecture has a plan's tile. A kernel of another tile is empty there: it would leave `out` as it was.
bool has_tile(const Conv2dPlan& plan, const std::string& arch, DType dtype) {
    const std::optional<std::vector<Conv2dTile>> known = conv2d_tiles(plan.algorithm, arch, dtype);
    if (!known || (plan.tile_m == 0 && plan.tile_n == 0)) return true;
    for (const Conv2dTile& tile : *known)
        if (tile.tile_m == plan.tile_m && tile.tile_n == plan.tile_n) return true;
    return false;
}

// `arch` is the card's. `tile` has the output pixels and filters of a block, and the number of parts of its sum (split-K). A
// `workspace_limit` of 0 leaves it to the algorithm.
Call make_call(const Ints& stride, const Ints& padding, const Ints& dilation, int32_t groups, const std::string& padding_mode,
               const std::string& activation, const std::string& float32_precision, const Ints& out_size,
               at::ScalarType out_dtype, bool channels_last, const std::string& algorithm, const std::string& arch,
               const Ints& tile, int64_t workspace_limit) {
    if (stride.size() != 2 || padding.size() != 4 || dilation.size() != 2 || out_size.size() != 2 || tile.size() != 3)
        throw py::value_error("stride, padding, dilation, out_size, tile: expected 2, 4, 2, 2 and 3 integers");
    check_kernel_name(algorithm, conv2d_algorithms(), "algorithm");
    Call call{stride,
              padding,
              dilation,
              out_size,
              groups,
              padding_mode_of("padding_mode", padding_mode),
              activation_of(activation),
              float32_precision_of(float32_precision),
              out_dtype,
              channels_last,
              {algorithm, tile[0], tile[1], tile[2], workspace_limit},
              {}};
    for (const DType dtype : kDTypes) call.has_tile[static_cast<int>(dtype)] = has_tile(call.plan, arch, dtype);
    return call;
}

// ---- tensors to params ----------------------------------------------------------------------------------------------------

// torch leaves any stride for an axis of one element, because it does not matter. Kernels get the stride of a dense tensor in
// the layout of the other axes, or, if these fit both layouts, in the call's.
Image image(const at::Tensor& t, bool channels_last) {
    const int64_t channels = t.size(1), height = t.size(2), width = t.size(3);
    const int64_t pixel_stride = width > 1 ? t.stride(3) : t.stride(2);
    if (channels > 1 && width * height > 1) channels_last = t.stride(1) < pixel_stride;
    const int64_t nchw[4] = {channels * height * width, height * width, width, 1};
    const int64_t nhwc[4] = {channels * height * width, 1, channels * width, channels};
    int64_t strides[4];
    for (int k = 0; k < 4; ++k) strides[k] = t.size(k) != 1 ? t.stride(k) : channels_last ? nhwc[k] : nchw[k];
    return {memory_of(t), strides[0], strides[1], strides[2], strides[3]};
}

// This checks that no index of a padded image lies farther outside than its padding mode reaches.
void check_reach(const Conv2dParams& p) {
    const auto check = [&](const char* axis, int64_t first, int64_t last, int64_t size) {
        const int64_t limit = p.padding_mode == PaddingMode::reflect    ? size - 1
                              : p.padding_mode == PaddingMode::circular ? size
                                                                        : std::numeric_limits<int64_t>::max();
        if (size < 1 || -first > limit || last - (size - 1) > limit)
            throw py::value_error(concat("padding: reaches ", -first, " before and ", last - (size - 1), " behind ", axis,
                                         " of size ", size, ", expected at most ", limit, " for this padding_mode"));
    };
    if (p.padding_mode == PaddingMode::zeros) return;
    const auto last = [](int64_t out, int64_t stride, int64_t kernel, int64_t dilation, int64_t padding) {
        return (out - 1) * stride + (kernel - 1) * dilation - padding;
    };
    const int64_t bottom = last(p.out_height, p.stride_h, p.kernel_height, p.dilation_h, p.pad_top);
    const int64_t right = last(p.out_width, p.stride_w, p.kernel_width, p.dilation_w, p.pad_left);
    check("the height of x", -int64_t{p.pad_top}, bottom, p.in_height);
    check("the width of x", -int64_t{p.pad_left}, right, p.in_width);
}

// This checks kinds, types and shapes; the launch checks where the tensors lie.
Conv2dParams checked_params(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight, const at::Tensor* bias,
                            const at::Tensor* residual, const Call& call) {
    for (const NamedTensor& t : {NamedTensor{"x", x}, NamedTensor{"weight", weight}, NamedTensor{"out", out}}) {
        check_strided(t);
        check_sizes_fit(t);
    }
    check_rank({"x", x}, 4, "(batch, in_channels, height, width)");
    check_rank({"weight", weight}, 4, "(out_channels, in_channels / groups, height, width)");

    Conv2dParams p{};
    p.dtype = float_dtype({"x", x});
    p.out_dtype = float_dtype({"out", out});
    if (weight.scalar_type() != x.scalar_type())
        throw py::type_error(concat("weight: got dtype ", python_text(weight.scalar_type()), ", expected that of x, ",
                                    python_text(x.scalar_type())));
    for (const int32_t factor : {call.stride[0], call.stride[1], call.dilation[0], call.dilation[1], call.groups})
        if (factor < 1) throw py::value_error(concat("stride, dilation, groups: got ", factor, ", expected at least 1"));
    if (x.size(1) % call.groups != 0 || weight.size(1) != x.size(1) / call.groups || weight.size(0) % call.groups != 0)
        throw py::value_error(concat("weight: got shape ", shape_text(weight.sizes()), " for x of shape ",
                                     shape_text(x.sizes()), " and ", call.groups,
                                     " groups, expected (a multiple of groups, in_channels / groups, height, width)"));
    check_shape({"out", out}, {x.size(0), weight.size(0), call.out_size[0], call.out_size[1]},
                "(batch, out_channels, height, width)");

    const auto size = [](const at::Tensor& t, int axis) { return static_cast<int32_t>(t.size(axis)); };
    p.batch = size(x, 0), p.in_channels = size(x, 1), p.in_height = size(x, 2), p.in_width = size(x, 3);
    p.out_channels = size(out, 1), p.out_height = size(out, 2), p.out_width = size(out, 3);
    p.kernel_height = size(weight, 2), p.kernel_width = size(weight, 3);
    p.stride_h = call.stride[0], p.stride_w = call.stride[1];
    p.pad_top = call.padding[0], p.pad_left = call.padding[2];
    p.dilation_h = call.dilation[0], p.dilation_w = call.dilation[1];
    p.groups = call.groups;
    p.padding_mode = call.padding_mode;
    p.activation = call.activation;
    p.float32_precision = call.float32_precision;
    p.x = image(x, call.channels_last);
    p.weight = image(weight, call.channels_last);
    p.out = image(out, call.channels_last);
    if (bias) {
        check_strided({"bias", *bias});
        check_shape({"bias", *bias}, {weight.size(0)}, "(out_channels,)");
        p.bias = memory_of(*bias);
        p.bias_stride = bias->stride(0);
        p.bias_dtype = float_dtype({"bias", *bias});
    }
    if (residual) {
        check_strided({"residual", *residual});
        check_shape({"residual", *residual}, out.sizes(), "the shape of the result");
        p.residual = image(*residual, call.channels_last);
        p.residual_dtype = float_dtype({"residual", *residual});
    }
    check_reach(p);
    return p;
}

// ---- packed filters -------------------------------------------------------------------------------------------------------

// This is how calls that are alike read filters that they cannot read as they are.
struct Packing {
    Conv2dParams params;  // of such a call, without the memory of its tensors
    Conv2dPlan plan;
    bool channels_last;
    int64_t bytes;
};

using FoundPacking = std::tuple<py::bytes, int64_t, Packing, int64_t>;

// This returns the form of the packing (see Conv2dPacking); its bytes; what packs; and the bytes of the call's workspace beside
// it. It returns nullopt if the call reads its filters as they are.
std::optional<FoundPacking> packing(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight,
                                    const OptionalTensor& bias, const OptionalTensor& residual, const Call& call) {
    Conv2dParams p = checked_params(out, x, weight, address_of(bias), address_of(residual), call);
    const Conv2dPacking found = conv2d_packing(p, call.plan);
    if (found.bytes == 0) return std::nullopt;
    const py::bytes form(reinterpret_cast<const char*>(found.form.data()), found.form.size() * sizeof(int64_t));
    const Packing packing{p, call.plan, call.channels_last, found.bytes};
    p.packed_filters = reinterpret_cast<const void*>(uintptr_t{4096});  // nobody reads there
    return FoundPacking{form, found.bytes, packing, conv2d_workspace(p, call.plan)};
}

at::Tensor pack(const Packing& packing, const at::Tensor& weight, int64_t stream) {
    Conv2dParams p = packing.params;
    check_strided({"weight", weight});
    check_shape({"weight", weight}, {p.out_channels, p.in_channels / p.groups, p.kernel_height, p.kernel_width},
                "(out_channels, in_channels / groups, height, width)");
    if (float_dtype({"weight", weight}) != p.dtype) throw py::type_error("weight: its dtype is not that of the packing");
    p.weight = image(weight, packing.channels_last);
    const c10::DeviceGuard guard(weight.device());
    const at::Tensor packed = bytes_beside(weight, packing.bytes);
    py::gil_scoped_release no_gil;
    conv2d_pack_filters(p, packing.plan, packed.data_ptr(), reinterpret_cast<void*>(stream));
    return packed;
}

// Null if the call's plan serves these params on its card, else text that says what its algorithm serves.
const char* refusal_of(const Conv2dParams& p, const Call& call) {
    if (!call.has_tile[static_cast<int>(p.dtype)]) return "the tiles alone that conv2d_tiles has for the architecture";
    return conv2d_refusal(p, call.plan);
}

// ---- calls ----------------------------------------------------------------------------------------------------------------

void launch(Conv2dParams& p, const at::Tensor& out, const at::Tensor& x, const Call& call, int64_t stream,
            const OptionalTensor& packed) {
    if (out.numel() == 0) return;
    if (const char* served = refusal_of(p, call))
        throw py::value_error(concat("algorithm: got '", call.plan.algorithm, "', which serves ", served));
    if (packed) {
        check_packed(*packed, x, conv2d_packing(p, call.plan).bytes, call.plan.algorithm);
        p.packed_filters = packed->data_ptr();
    }
    const c10::DeviceGuard guard(x.device());
    const Workspace workspace(x, conv2d_workspace(p, call.plan));
    py::gil_scoped_release no_gil;
    conv2d(p, call.plan, workspace.data(), reinterpret_cast<void*>(stream));
}

void run(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& optional_bias,
         const OptionalTensor& optional_residual, const Call& call, int64_t stream, const OptionalTensor& packed) {
    const char* remedy =
        "this form writes into `out` and records no gradient. Call it under torch.no_grad(), or pass detached tensors.";
    const at::Tensor *bias = address_of(optional_bias), *residual = address_of(optional_residual);
    Conv2dParams p = checked_params(out, x, weight, bias, residual, call);
    check_no_internal_overlap({"out", out});
    check_no_grad({"out", out}, remedy);
    for (const auto& [name, tensor] : {std::pair{"x", &x}, {"weight", &weight}, {"bias", bias}, {"residual", residual}}) {
        if (tensor == nullptr) continue;
        check_no_grad({name, *tensor}, remedy);
        check_same_device({name, *tensor}, {"out", out});
        check_no_overlap({"out", out}, {name, *tensor});
    }
    note_written(out);
    launch(p, out, x, call, stream, packed);
}

// This runs a call into a new tensor; the caller knows that no gradient is wanted.
at::Tensor run_new(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& optional_bias,
                   const OptionalTensor& optional_residual, const Call& call, int64_t stream, const OptionalTensor& packed) {
    const at::Tensor *bias = address_of(optional_bias), *residual = address_of(optional_residual);
    check_rank({"x", x}, 4, "(batch, in_channels, height, width)");
    check_rank({"weight", weight}, 4, "(out_channels, in_channels / groups, height, width)");
    const at::Tensor out = at::_ops::empty_memory_format::call(
        c10::fromIntArrayRefSlow({x.size(0), weight.size(0), call.out_size[0], call.out_size[1]}), call.out_dtype, {},
        x.device(), {}, call.channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
    Conv2dParams p = checked_params(out, x, weight, bias, residual, call);
    check_same_device({"weight", weight}, {"x", x});
    if (bias) check_same_device({"bias", *bias}, {"x", x});
    if (residual) check_same_device({"residual", *residual}, {"x", x});
    launch(p, out, x, call, stream, packed);
    return out;
}

// This returns a key of all that a call's preparation depends on, except its plain arguments: calls that are alike have equal
// keys. It returns nullopt if a tensor is not dense, has more than four axes or lies elsewhere, so that the operator says what
// is wrong; and also if torch's dispatcher would do more than come here.
std::optional<py::bytes> key(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
                             const OptionalTensor& residual, const OptionalTensor& out) {
    if (!dispatcher_adds_nothing({&x, &weight, address_of(bias), address_of(residual), address_of(out)}, true))
        return std::nullopt;
    int64_t numbers[5 * 10 + 1];
    int count = 0;
    numbers[count++] = x.device().index();
    for (const at::Tensor* tensor : {&x, &weight, address_of(bias), address_of(residual), address_of(out)}) {
        if (tensor == nullptr) {
            numbers[count++] = -1;
            continue;
        }
        if (tensor->layout() != at::kStrided || tensor->device() != x.device() || tensor->dim() > 4) return std::nullopt;
        numbers[count++] = static_cast<int64_t>(tensor->scalar_type()) * 256 + tensor->dim() * 16 +
                           static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor->data_ptr()) % 16);
        for (const int64_t size : tensor->sizes()) numbers[count++] = size;
        for (const int64_t stride : tensor->strides()) numbers[count++] = stride;
    }
    const char* variable = std::getenv("HIPCONV_CONV2D_ALGORITHM");  // os.environ writes through to it
    std::string bytes(reinterpret_cast<const char*>(numbers), count * sizeof(int64_t));
    return py::bytes(variable ? bytes + variable : bytes);
}

// ---- what the router asks -------------------------------------------------------------------------------------------------

// This returns None if the call's plan serves these tensors, else text that says which ones its algorithm serves.
std::optional<std::string> refusal(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight,
                                   const OptionalTensor& bias, const OptionalTensor& residual, const Call& call) {
    const char* served = refusal_of(checked_params(out, x, weight, address_of(bias), address_of(residual), call), call);
    return served ? std::optional<std::string>(served) : std::nullopt;
}

// This returns the bytes of the call's workspace where it packs its filters itself.
int64_t workspace_bytes(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
                        const OptionalTensor& residual, const Call& call) {
    return conv2d_workspace(checked_params(out, x, weight, address_of(bias), address_of(residual), call), call.plan);
}

std::optional<std::vector<Ints>> tiles(const std::string& algorithm, const std::string& arch, at::ScalarType dtype) {
    const DType type = dtype == at::kFloat ? DType::f32 : dtype == at::kHalf ? DType::f16 : DType::bf16;
    const std::optional<std::vector<Conv2dTile>> known = conv2d_tiles(algorithm, arch, type);
    if (!known) return std::nullopt;
    std::vector<Ints> found;
    for (const Conv2dTile& tile : *known) found.push_back({tile.tile_m, tile.tile_n});
    return found;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    py::class_<Call>(m, "Call").def(
        py::init(&make_call), py::arg("stride"), py::arg("padding"), py::arg("dilation"), py::arg("groups"),
        py::arg("padding_mode"), py::arg("activation"), py::arg("float32_precision"), py::arg("out_size"), py::arg("out_dtype"),
        py::arg("channels_last"), py::arg("algorithm"), py::arg("arch"), py::arg("tile"), py::arg("workspace_limit") = 0);
    m.def("conv2d", &run_new, py::arg("x"), py::arg("weight"), py::arg("bias"), py::arg("residual"), py::arg("call"),
          py::arg("stream"), py::arg("packed") = py::none());
    m.def("conv2d_out", &run, py::arg("out"), py::arg("x"), py::arg("weight"), py::arg("bias"), py::arg("residual"),
          py::arg("call"), py::arg("stream"), py::arg("packed") = py::none());
    py::class_<Packing>(m, "Packing").def("pack", &pack);
    m.def("conv2d_packing", &packing);
    m.def("conv2d_key", &key);
    m.def("conv2d_refusal", &refusal);
    m.def("conv2d_workspace", &workspace_bytes);
    m.def("conv2d_tiles", &tiles);
    m.def("conv2d_algorithms", &conv2d_algorithms);
    m.def("conv2d_has_tf32", &conv2d_has_tf32);
}
