// The causal_conv1d_varlen module checks tensors, fills a params struct and calls the launcher.
#include <torch/csrc/utils/pybind.h>  // must be first, as it may be there precompiled

#include <ATen/core/Tensor.h>

#include <c10/core/DeviceGuard.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdlib>
#include <optional>

#include "causal_conv1d/prefill.h"
#include "common/conv1d_arguments.h"
#include "common/direct_call.h"
#include "common/index_checks.h"
#include "common/kernel_request.h"
#include "common/memory.h"

namespace py = pybind11;

namespace {

using namespace hipconv;

constexpr const char* kTileVariable = "HIPCONV_VARLEN_TILE";

// The outputs are one tensor like x, or q, k and v as rows of tokens.
void set_outputs(CausalConv1dVarlenParams& p, const std::vector<NamedTensor>& outputs, const at::Tensor& x) {
    const bool split = outputs.size() == 3;
    int64_t channels = 0;
    for (const NamedTensor& out : outputs) {
        check_strided(out);
        check_same_dtype(out, {"x", x});
        check_same_device(out, {"x", x});
        check_rank(out, 2, split ? "(tokens, channels)" : "(dim, tokens)");
        if (split)
            check_shape(out, {x.size(1), out.tensor.size(1)}, "(tokens of x, channels)");
        else
            check_shape(out, x.sizes(), "the shape of x");
        if (split && !out.tensor.is_contiguous())
            throw py::value_error(
                concat(out.name, ": got strides ", shape_text(out.tensor.strides()), ", expected it contiguous"));
        channels += out.tensor.size(split ? 1 : 0);
    }
    if (channels != x.size(0) || (split && outputs[0].tensor.size(1) != outputs[1].tensor.size(1)))
        throw py::value_error(concat("q, k, v: got ", outputs[0].tensor.size(1), ", ", outputs[1].tensor.size(1), " and ",
                                     outputs[2].tensor.size(1),
                                     " channels, expected k_dim, k_dim and v_dim, together x.size(0) = ", x.size(0)));
    p.out = outputs[0].tensor.data_ptr();
    p.out_dim_stride = outputs[0].tensor.stride(0);
    p.out_token_stride = outputs[0].tensor.stride(1);
    p.k_dim = split ? static_cast<int32_t>(outputs[0].tensor.size(1)) : -1;
    if (split) {
        p.k = outputs[1].tensor.data_ptr();
        p.v = outputs[2].tensor.data_ptr();
    }
}

void set_states(CausalConv1dVarlenParams& p, const at::Tensor& states, const at::Tensor& x, const at::Tensor& weight) {
    const NamedTensor named{"conv_states", states};
    check_strided(named);
    p.state_dtype = float_dtype(named);
    check_rank(named, 3, "(slots, dim, state_len)");
    if (states.size(1) != x.size(0) || states.size(2) < weight.size(1) - 1)
        throw py::value_error(concat("conv_states: got shape ", shape_text(states.sizes()), ", expected (slots, ", x.size(0),
                                     ", state_len >= width - 1 = ", weight.size(1) - 1, ")"));
    check_same_device(named, {"x", x});
    check_sizes_fit(named);
    p.states = states.data_ptr();
    p.slot_stride = states.stride(0);
    p.state_dim_stride = states.stride(1);
    p.column_stride = states.stride(2);
    p.slots = static_cast<int32_t>(states.size(0));
}

// A number that no slot can have needs no comparison.
int32_t slot_number(std::optional<int64_t> number) {
    const bool fits = number.has_value() && *number > kNoNumber && *number <= std::numeric_limits<int32_t>::max();
    return fits ? static_cast<int32_t>(*number) : kNoNumber;
}

VarlenTile parse_tile(const std::string& text) {
    VarlenTile tile{};
    char rest = 0;
    bool is_tile = std::sscanf(text.c_str(), "%9dx%9dx%9d%c", &tile.tokens, &tile.channels, &tile.warps, &rest) == 3;
    for (const int32_t side : {tile.tokens, tile.channels, tile.warps}) is_tile &= side >= 0 && (side & (side - 1)) == 0;
    if (!is_tile)
        throw py::value_error(concat(kTileVariable, ": got '", text,
                                     "', expected TOKENSxCHANNELSxWARPS in powers of two, or 0 for no choice, like 32x256x4"));
    return tile;
}

// Tells whether a is b, perhaps as another view. Empty tensors have no address: they are the same where they share a
// storage.
bool same_memory(const at::Tensor& a, const at::Tensor& b) {
    return a.data_ptr() == b.data_ptr() && (a.numel() > 0 || a.is_alias_of(b)) && a.scalar_type() == b.scalar_type() &&
           a.sizes() == b.sizes() && a.strides() == b.strides();
}

// Python passes these arguments in this order. `tensors` holds out, or q, k and v. Without a stream the call is only checked.
struct Arguments {
    const std::vector<at::Tensor>& tensors;
    const at::Tensor &x, &weight;
    const OptionalTensor& optional_bias;
    const at::Tensor &conv_states, &query_start_loc;
    const OptionalTensor &cache_indices, &cache_indices_in, &has_initial_state;
    const OptionalTensor &block_idx_first, &block_idx_last, &initial_state_idx, &num_computed_tokens;
    int64_t block_size;
    bool use_silu;
    std::optional<int64_t> pad_slot_id, null_block_id;
    const std::string &dead_tokens, &kernel_name;
    const std::array<int64_t, 3>& tile;
    std::optional<int64_t> stream;
};

// Holds a prefill call: its arguments, which are checked step by step, and the params that they give.
class Prefill : Arguments {
  public:
    explicit Prefill(const Arguments& arguments) : Arguments(arguments) {}

    // This returns false, and does nothing, if `out` is x and no kernel serves that.
    bool run() {
        check_inputs();
        check_indices();
        const auto kernels = in_place ? causal_conv1d_varlen_in_place_kernels() : causal_conv1d_varlen_kernels();
        const auto wanted = requested_kernel(kernel_name, kCausalConv1dVarlenNames, kernels);
        check_tile();
        check_memory();
        if (!stream || x.numel() == 0) return true;

        set_params();
        if (in_place && wanted.kernel && !kernels.has(wanted.kernel)) return false;
        const auto* kernel = kernel_of(kernels, wanted, p, forced_tile);
        if (in_place && (!kernel || p.dead_tokens != DeadTokens::leave)) return false;
        if (in_place && sequences == 0) return true;
        const c10::DeviceGuard guard(x.device());
        const Workspace workspace(x, kernel->workspace_of(p, forced_tile));
        py::gil_scoped_release no_gil;
        kernel->launch(p, forced_tile, workspace.data(), reinterpret_cast<void*>(*stream));
        return true;
    }

  private:
    bool in_place = false;
    std::vector<NamedTensor> outputs;
    int64_t sequences = 0;
    VarlenTile forced_tile{};
    CausalConv1dVarlenParams p{};

    void check_inputs() {
        const at::Tensor* bias = given_bias(optional_bias);
        check_strided({"x", x});
        check_rank({"x", x}, 2, "(dim, tokens)");
        p.dtype = float_dtype({"x", x});
        set_parameters(p, x, 0, weight, bias);
        check_parameters_device(x, weight, bias);
        const std::array<const char*, 3> names = {tensors.size() == 3 ? "q" : "out", "k", "v"};
        for (size_t i = 0; i < tensors.size(); ++i) outputs.push_back({names[i], tensors[i]});
        set_outputs(p, outputs, x);
        in_place = tensors.size() == 1 && same_memory(tensors[0], x);
        set_states(p, conv_states, x, weight);
        check_rank({"query_start_loc", query_start_loc}, 1, "(sequences + 1,)");
        if (query_start_loc.size(0) < 1)
            throw py::value_error(
                "query_start_loc: got shape (0,), expected (sequences + 1,): at least the one start of no sequences");
        p.query_start_loc = index_array({"query_start_loc", query_start_loc}, {"x", x}, query_start_loc.size(0));
        sequences = query_start_loc.size(0) - 1;
    }

    // Checks the tensors that say where sequences have their states.
    void check_indices() {
        const auto per_sequence = [&](const char* name, const OptionalTensor& tensor, bool may_be_bool = false) {
            if (!tensor.has_value()) return IndexArray{};
            check_rank({name, *tensor}, 1, "(sequences,)");
            return index_array({name, *tensor}, {"x", x}, sequences, may_be_bool);
        };
        const auto table = [&](const char* name, const OptionalTensor& tensor) {
            if (!tensor.has_value()) return IndexArray{};
            if (tensor->dim() != 2) check_rank({name, *tensor}, 1, "(sequences,), or two (sequences, blocks)");
            return index_array({name, *tensor}, {"x", x}, sequences);
        };
        p.cache_indices = table("cache_indices", cache_indices);
        p.cache_indices_in = table("cache_indices_in", cache_indices_in);
        p.has_initial_state = per_sequence("has_initial_state", has_initial_state, /*may_be_bool=*/true);
        p.block_idx_first = per_sequence("block_idx_first_scheduled_token", block_idx_first);
        p.block_idx_last = per_sequence("block_idx_last_scheduled_token", block_idx_last);
        p.initial_state_idx = per_sequence("initial_state_idx", initial_state_idx);
        p.num_computed_tokens = per_sequence("num_computed_tokens", num_computed_tokens);
        if ((block_idx_last.has_value() || initial_state_idx.has_value()) &&
            !(cache_indices.has_value() && cache_indices->dim() == 2))
            throw py::value_error(concat("cache_indices: got ", cache_indices.has_value() ? "one dimension" : "None",
                                         ", expected a block table (sequences, blocks) beside "
                                         "block_idx_last_scheduled_token or initial_state_idx"));
        if (block_idx_first.has_value()) {
            if (!block_idx_last.has_value() || !num_computed_tokens.has_value())
                throw py::value_error(
                    "block_idx_first_scheduled_token: got it alone, expected "
                    "block_idx_last_scheduled_token and num_computed_tokens beside it");
            if (block_size < 1 || block_size > std::numeric_limits<int32_t>::max())
                throw py::value_error(concat("block_size_to_align: got ", block_size,
                                             ", expected the tokens of a cache block, at least 1, ",
                                             "beside block_idx_first_scheduled_token"));
        }
    }

    void check_tile() {
        if (const char* text = std::getenv(kTileVariable); text != nullptr && *text != '\0') forced_tile = parse_tile(text);
        const char* const sides[] = {"block_m", "block_n", "num_warps"};
        for (size_t i = 0; i < tile.size(); ++i)
            if (tile[i] < 0 || tile[i] > std::numeric_limits<int32_t>::max())
                throw py::value_error(concat(sides[i], ": got ", tile[i], ", expected a power of two, or 0 for no choice"));
        if (tile[0]) forced_tile.tokens = static_cast<int32_t>(tile[0]);
        if (tile[1]) forced_tile.channels = static_cast<int32_t>(tile[1]);
        if (tile[2]) forced_tile.warps = static_cast<int32_t>(tile[2]);
    }

    // Every tensor that is written has memory of its own, except that out may be x.
    void check_memory() const {
        WrittenMemory written;
        for (const NamedTensor& out : outputs) written.add(out);
        written.add({"conv_states", conv_states});
        written.check_apart({"x", x}, in_place ? 1 : 0);
        written.check_apart({"weight", weight});
        written.check_apart("bias", optional_bias);
        written.check_apart({"query_start_loc", query_start_loc});
        written.check_apart("cache_indices", cache_indices);
        written.check_apart("cache_indices_in", cache_indices_in);
        written.check_apart("has_initial_state", has_initial_state);
        written.check_apart("block_idx_first_scheduled_token", block_idx_first);
        written.check_apart("block_idx_last_scheduled_token", block_idx_last);
        written.check_apart("initial_state_idx", initial_state_idx);
        written.check_apart("num_computed_tokens", num_computed_tokens);
    }

    void set_params() {
        p.tokens = static_cast<int32_t>(x.size(1));
        p.sequences = static_cast<int32_t>(sequences);
        p.x = x.data_ptr();
        p.x_dim_stride = x.stride(0);
        p.x_token_stride = x.stride(1);
        p.block_size = static_cast<int32_t>(block_size);
        p.pad_slot = slot_number(pad_slot_id);
        p.null_block = slot_number(null_block_id);
        p.dead_tokens = dead_tokens == "zero" ? DeadTokens::zero : dead_tokens == "copy" ? DeadTokens::copy : DeadTokens::leave;
        p.use_silu = use_silu;
    }
};

bool varlen(const Arguments& arguments) { return Prefill(arguments).run(); }

// Does the same past the dispatcher, on the current stream, called with Python's objects: what is written as `read_outputs` has
// it, (x, weight, bias), conv_states, query_start_loc, the tuple of options, dead_tokens, kernel and tile. It returns what is
// written, or does nothing and returns None if the arguments do not fit a call, the dispatcher has something to do on the way,
// gradients must be refused, or the output is x and no kernel serves that.
PyObject* varlen_directly(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    return with_python_errors([&] {
        std::vector<at::Tensor> outs;
        at::Tensor x, weight, conv_states, starts;
        OptionalTensor bias, t[7];
        int64_t block_size = 0;
        std::array<int64_t, 3> tile{};
        bool use_silu = false;
        std::optional<int64_t> pad_slot_id, null_block_id;
        std::string dead_tokens, kernel;
        if (count != 8 || !read_items(arguments[1], x, weight, bias) || !read(arguments[2], conv_states) ||
            !read(arguments[3], starts) ||
            !read_items(arguments[4], t[0], t[1], t[2], t[3], t[4], t[5], t[6], block_size, use_silu, pad_slot_id,
                        null_block_id) ||
            !read(arguments[5], dead_tokens) || !read(arguments[6], kernel) ||
            !read_items(arguments[7], tile[0], tile[1], tile[2]) ||
            !nothing_to_record({&conv_states, &x, &weight, given(bias)}) ||
            !nothing_looks_on({&x, &weight, given(bias), &conv_states, &starts, given(t[0]), given(t[1]), given(t[2]),
                               given(t[3]), given(t[4]), given(t[5]), given(t[6])}) ||
            !read_outputs(arguments[0], x, outs) || !nothing_to_record({&outs.front()}) ||
            !nothing_looks_on({&outs.front(), &outs[outs.size() / 2], &outs.back()}) ||
            !varlen({outs,     x,           weight,        bias,        conv_states, starts, t[0],
                     t[1],     t[2],        t[3],          t[4],        t[5],        t[6],   block_size,
                     use_silu, pad_slot_id, null_block_id, dead_tokens, kernel,      tile,   current_stream(x)}))
            return Py_NewRef(Py_None);
        for (const at::Tensor& out : outs) note_written(out);
        note_written(conv_states);
        return outputs_of(arguments[0], outs);
    });
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    using T = const at::Tensor&;
    using O = const OptionalTensor&;
    m.def("causal_conv1d_varlen",
          [](const std::vector<at::Tensor>& tensors, T x, T weight, O bias, T conv_states, T query_start_loc, O cache_indices,
             O cache_indices_in, O has_initial_state, O block_idx_first, O block_idx_last, O initial_state_idx,
             O num_computed_tokens, int64_t block_size, bool use_silu, std::optional<int64_t> pad_slot_id,
             std::optional<int64_t> null_block_id, const std::string& dead_tokens, const std::string& kernel,
             const std::array<int64_t, 3>& tile, std::optional<int64_t> stream) {
              return varlen({tensors,
                             x,
                             weight,
                             bias,
                             conv_states,
                             query_start_loc,
                             cache_indices,
                             cache_indices_in,
                             has_initial_state,
                             block_idx_first,
                             block_idx_last,
                             initial_state_idx,
                             num_computed_tokens,
                             block_size,
                             use_silu,
                             pad_slot_id,
                             null_block_id,
                             dead_tokens,
                             kernel,
                             tile,
                             stream});
          });
    m.def("causal_conv1d_varlen_kernels", [] { return names_of(causal_conv1d_varlen_kernels()); });
    m.def("causal_conv1d_varlen_in_place_kernels", [] { return names_of(causal_conv1d_varlen_in_place_kernels()); });
    add_direct_call(m, "causal_conv1d_varlen_directly", varlen_directly);
}
