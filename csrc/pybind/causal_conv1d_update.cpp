// The causal_conv1d_update module checks tensors, fills a params struct and calls the launcher.
#include <torch/csrc/utils/pybind.h>  // must be first, as it may be there precompiled

#include <c10/core/DeviceGuard.h>
#include <pybind11/stl.h>

#include <optional>

#include "causal_conv1d/decode.h"
#include "common/conv1d_arguments.h"
#include "common/direct_call.h"
#include "common/kernel_request.h"

namespace py = pybind11;

namespace hipconv {
inline void assign(Address& to, const void* from) { to = address(from); }  // set_parameters calls this
}  // namespace hipconv

namespace {

using namespace hipconv;

// This returns integers as kernels read them, of 32 or 64 bits; other types are copied, on their device.
at::Tensor as_indices(const NamedTensor& t) {
    const auto type = t.tensor.scalar_type();
    if (type == at::kInt || type == at::kLong) return t.tensor;
    if (!at::isIntegralType(type, /*includeBool=*/false))
        throw py::type_error(concat(t.name, ": got dtype ", python_text(type), ", expected integers, such as torch.int32"));
    return t.tensor.to(at::kLong);
}

// A kernel chooses its vectors by these strides. The stride of an axis of size one can be anything, and means nothing.
int64_t stride_of(const at::Tensor& t, int64_t axis) { return t.size(axis) == 1 ? 0 : t.stride(axis); }

// This views (batch, dim), (batch, dim, seqlen) or (tokens, dim) as rows, channels and tokens.
Tokens as_tokens(const at::Tensor& t, bool packed) {
    if (packed) return {address(t.data_ptr()), 0, t.stride(1), stride_of(t, 0)};
    return {address(t.data_ptr()), stride_of(t, 0), t.stride(1), t.dim() == 3 ? stride_of(t, 2) : 0};
}

// This views q, k or v of a split, (tokens, channels), in which the tokens of a row follow one another.
Tokens as_split_tokens(const at::Tensor& t, bool packed, int64_t seqlen) {
    const int64_t token_stride = stride_of(t, 0);
    return {address(t.data_ptr()), packed ? 0 : token_stride * seqlen, t.stride(1), token_stride};
}

[[noreturn]] void refuse(const char* name, const char* other) {
    throw py::value_error(concat(name, ": got a tensor together with ", other, ", expected at most one of the two"));
}

void require(bool given, const char* name, const char* other) {
    if (!given) throw py::value_error(concat(name, ": got a tensor, expected ", other, " with it"));
}

// Python passes these arguments in this order. `outs` holds one tensor of the shape of x (which may be x itself), or q, k and
// v. Without a stream the call is only checked.
struct Arguments {
    const std::vector<at::Tensor>& outs;
    const at::Tensor &x, &conv_state, &weight;
    const OptionalTensor& optional_bias;
    bool use_silu;
    const OptionalTensor &conv_state_indices, &conv_state_indices_in, &num_accepted_tokens, &query_start_loc;
    int64_t max_query_len;
    std::optional<int64_t> pad_slot_id;
    const OptionalTensor &block_idx_last_scheduled_token, &initial_state_idx, &cache_seqlens;
    const OptionalTensor &intermediate_conv_window, &intermediate_state_indices;
    const OptionalTensor &retrieve_next_token, &retrieve_next_sibling, &retrieve_parent_token;
    bool state_at_end, zero_padding;
    const std::string& kernel_name;
    std::optional<int64_t> stream;
};

// Holds a decode call: its arguments, which are checked step by step, and the params that they give.
class Update : Arguments {
  public:
    explicit Update(const Arguments& arguments) : Arguments(arguments) {}

    void run() {
        check_inputs();
        check_outputs();
        check_rows();
        check_windows();
        check_trees();
        const auto kernels = causal_conv1d_update_kernels();
        const auto wanted = requested_kernel(kernel_name, kCausalConv1dUpdateNames, kernels);
        check_memory();
        if (!stream || x.numel() == 0) return;
        if (batch == 0) {  // the tokens belong to no row
            if (zero_padding)
                for (const at::Tensor& out : outs) out.zero_();
            return;
        }
        set_params();
        const auto* kernel = kernel_of(kernels, wanted, p);
        const c10::DeviceGuard guard(x.device());
        py::gil_scoped_release no_gil;
        kernel->launch(p, nullptr, reinterpret_cast<void*>(*stream));
    }

  private:
    const at::Tensor* const bias = given_bias(optional_bias);
    const bool packed = query_start_loc.has_value(), split = outs.size() == 3;
    const char* const names[kMaxOutputs] = {split ? "q" : "out", "k", "v"};
    int64_t batch = 0, seqlen = 0, dim = 0, width = 0, state_len = 0;
    std::vector<at::Tensor> kept;  // converted indices stay here for as long as the launch needs them
    CausalConv1dUpdateParams p{};

    void same_device(const NamedTensor& t) { check_same_device(t, {"x", x}); }

    // Takes indices of shape (size,), or (size, columns) where that is allowed.
    Indices strided(const at::Tensor& given, const at::Tensor& found, int64_t column_stride, int64_t columns) {
        if (!found.is_same(given)) kept.push_back(found);
        return {address(found.data_ptr()), found.stride(0), column_stride, static_cast<int32_t>(columns),
                found.scalar_type() == at::kLong};
    }

    Indices indices(const char* name, const OptionalTensor& optional, int64_t size, const char* axes, bool table = false) {
        if (!optional.has_value()) return {};
        const NamedTensor t{name, *optional};
        check_strided(t);
        const at::Tensor found = as_indices(t);
        const bool two = table && t.tensor.dim() == 2;
        if ((t.tensor.dim() != 1 && !two) || t.tensor.size(0) != size || (two && t.tensor.size(1) < 1))
            throw py::value_error(concat(name, ": got shape ", shape_text(t.tensor.sizes()), ", expected ", axes, " = ",
                                         shape_text({size}), table ? " or (batch, blocks) with at least one block" : ""));
        check_sizes_fit(t);
        same_device(t);
        return strided(t.tensor, found, two ? found.stride(1) : 0, two ? found.size(1) : 1);
    }

    Indices links(const char* name, const OptionalTensor& optional, int64_t seqlen) {
        if (!optional.has_value()) return {};
        const NamedTensor t{name, *optional};
        check_strided(t);
        const at::Tensor found = as_indices(t);
        check_shape(t, {batch, seqlen}, "(batch, seqlen)");
        same_device(t);
        return strided(t.tensor, found, found.stride(1), seqlen);
    }

    // Checks x, weight, bias and conv_state.
    void check_inputs() {
        check_strided({"x", x});
        check_strided({"conv_state", conv_state});
        if (packed)
            check_rank({"x", x}, 2, "(tokens, dim), as there is a query_start_loc");
        else if (x.dim() != 2 && x.dim() != 3)
            throw py::value_error(concat("x: got shape ", shape_text(x.sizes()),
                                         ", expected 2 or 3 dimensions (batch, dim) or (batch, dim, seqlen)"));
        check_rank({"conv_state", conv_state}, 3, "(slots, dim, state_len)");
        if (packed) check_rank({"query_start_loc", *query_start_loc}, 1, "(batch + 1,)");
        if (packed && query_start_loc->size(0) < 1)
            throw py::value_error("query_start_loc: got shape (0,), expected (batch + 1,), of at least one element");
        p.dtype = float_dtype({"x", x});
        p.state_dtype = float_dtype({"conv_state", conv_state});
        set_parameters(p, x, 1, weight, bias);
        dim = p.dim, width = p.width, state_len = conv_state.size(2);
        batch = packed ? query_start_loc->size(0) - 1 : x.size(0);
        seqlen = packed ? 0 : x.dim() == 3 ? x.size(2) : 1;
        if (conv_state.size(1) != dim || state_len < width - 1)
            throw py::value_error(concat("conv_state: got shape ", shape_text(conv_state.sizes()), ", expected (slots, ", dim,
                                         ", state_len >= width - 1 = ", width - 1, ")"));
        same_device({"conv_state", conv_state});
        check_parameters_device(x, weight, bias);
        check_sizes_fit({"conv_state", conv_state});
    }

    void check_outputs() {
        int64_t channels = 0;
        for (size_t part = 0; part < outs.size(); ++part) {
            const NamedTensor out{names[part], outs[part]};
            check_strided(out);
            check_same_dtype(out, {"x", x});
            if (!split) check_shape(out, x.sizes(), "the shape of x");
            if (split) {
                check_rank(out, 2, "(tokens, channels)");
                const int64_t tokens = packed ? x.size(0) : batch * seqlen;
                check_shape(out, {tokens, out.tensor.size(1)}, "(tokens, channels)");
            }
            channels += out.tensor.size(1);
            p.out_end[part] = static_cast<int32_t>(channels);
            same_device(out);
        }
        for (size_t part = outs.size(); part < kMaxOutputs; ++part) p.out_end[part] = static_cast<int32_t>(channels);
        if (channels != dim)
            throw py::value_error(concat("q, k, v: got ", channels, " channels together, expected those of x, ", dim));
    }

    // Checks slots, lengths and positions.
    void check_rows() {
        p.write_slots = indices("conv_state_indices", conv_state_indices, batch, "(batch,)", true);
        p.read_slots = indices("conv_state_indices_in", conv_state_indices_in, batch, "(batch,)", true);
        p.write_columns = indices("block_idx_last_scheduled_token", block_idx_last_scheduled_token, batch, "(batch,)");
        p.read_columns = indices("initial_state_idx", initial_state_idx, batch, "(batch,)");
        p.query_start_loc = indices("query_start_loc", query_start_loc, batch + 1, "(batch + 1,)");
        p.num_accepted_tokens = indices("num_accepted_tokens", num_accepted_tokens, batch, "(batch,)");
        p.cache_seqlens = indices("cache_seqlens", cache_seqlens, batch, "(batch,)");
        if (conv_state_indices_in) require(conv_state_indices.has_value(), "conv_state_indices_in", "conv_state_indices");
        if (block_idx_last_scheduled_token)
            require(conv_state_indices.has_value(), "block_idx_last_scheduled_token", "conv_state_indices");
        if (initial_state_idx) require(conv_state_indices.has_value(), "initial_state_idx", "conv_state_indices");
        if (!conv_state_indices && conv_state.size(0) < batch)
            throw py::value_error(concat("conv_state: got shape ", shape_text(conv_state.sizes()),
                                         ", expected a slot for each of the ", batch,
                                         " rows, as there are no conv_state_indices"));
        p.fork = conv_state_indices_in || block_idx_last_scheduled_token || initial_state_idx;
        if (!conv_state_indices_in) p.read_slots = p.write_slots;
        if (cache_seqlens && num_accepted_tokens) refuse("num_accepted_tokens", "cache_seqlens");
        if (cache_seqlens && p.fork)
            throw py::value_error(
                "cache_seqlens: got a tensor together with slots to read other than those to write, expected at "
                "most one of the two: a circular state is advanced in its place");
        if (state_at_end && num_accepted_tokens)
            throw py::value_error("num_accepted_tokens: got a tensor, expected none where the window is in the last columns");
        const int64_t most = packed ? max_query_len : seqlen;
        if (num_accepted_tokens && width > 1 && state_len < width - 2 + most)
            throw py::value_error(concat("conv_state: got shape ", shape_text(conv_state.sizes()),
                                         ", expected state_len >= ", width - 2 + most,
                                         ": with num_accepted_tokens it keeps width - 2 columns and ", most, " new tokens"));
    }

    // Checks the windows after each token.
    void check_windows() {
        if (intermediate_conv_window) {
            const NamedTensor t{"intermediate_conv_window", *intermediate_conv_window};
            check_strided(t);
            check_rank(t, 4, "(slots, tokens, dim, width - 1)");
            if (t.tensor.size(2) != dim || t.tensor.size(3) != width - 1 || t.tensor.size(1) < seqlen)
                throw py::value_error(concat(t.name, ": got shape ", shape_text(t.tensor.sizes()),
                                             ", expected (slots, at least ", seqlen, " tokens, ", dim, ", ", width - 1, ")"));
            check_same_dtype(t, {"conv_state", conv_state});
            if (!intermediate_state_indices && t.tensor.size(0) < batch)
                throw py::value_error(concat(t.name, ": got shape ", shape_text(t.tensor.sizes()),
                                             ", expected a slot for each of the ", batch,
                                             " rows, as there are no intermediate_state_indices"));
            same_device(t);
            check_sizes_fit(t);
        }
        p.intermediate_slot = indices("intermediate_state_indices", intermediate_state_indices, batch, "(batch,)");
        if (intermediate_state_indices)
            require(intermediate_conv_window.has_value(), "intermediate_state_indices", "intermediate_conv_window");
    }

    void check_trees() {
        if (retrieve_next_token.has_value() != retrieve_next_sibling.has_value())
            require(false, retrieve_next_token ? "retrieve_next_token" : "retrieve_next_sibling",
                    retrieve_next_token ? "retrieve_next_sibling" : "retrieve_next_token");
        if (retrieve_parent_token) require(retrieve_next_token.has_value(), "retrieve_parent_token", "retrieve_next_token");
        if (retrieve_next_token) {
            if (packed) refuse("retrieve_next_token", "query_start_loc");
            if (seqlen > kMaxTreeTokens)
                throw py::value_error(concat("x: got shape ", shape_text(x.sizes()), ", expected a tree of at most ",
                                             int64_t{kMaxTreeTokens}, " tokens"));
            p.tree_child = links("retrieve_next_token", retrieve_next_token, seqlen);
            p.tree_sibling = links("retrieve_next_sibling", retrieve_next_sibling, seqlen);
            p.tree_parent = links("retrieve_parent_token", retrieve_parent_token, seqlen);
            if (retrieve_parent_token &&
                p.tree_parent.data.bits != address(retrieve_parent_token->data_ptr()).bits)  // it was converted
                throw py::type_error(concat("retrieve_parent_token: got dtype ",
                                            python_text(retrieve_parent_token->scalar_type()),
                                            ", expected torch.int32 or torch.int64"));
        }
    }

    // Every tensor that is written has memory of its own, except that out may be x.
    void check_memory() const {
        WrittenMemory written;
        for (size_t part = 0; part < outs.size(); ++part) written.add({names[part], outs[part]});
        written.add({"conv_state", conv_state});
        if (intermediate_conv_window) written.add({"intermediate_conv_window", *intermediate_conv_window});
        if (retrieve_parent_token) written.add({"retrieve_parent_token", *retrieve_parent_token});
        const bool in_place = !split && outs[0].data_ptr() == x.data_ptr() && outs[0].strides() == x.strides();
        written.check_apart({"x", x}, in_place ? 1 : 0);
        written.check_apart({"weight", weight});
        written.check_apart("bias", optional_bias);
        written.check_apart("conv_state_indices", conv_state_indices);
        written.check_apart("conv_state_indices_in", conv_state_indices_in);
        written.check_apart("num_accepted_tokens", num_accepted_tokens);
        written.check_apart("query_start_loc", query_start_loc);
        written.check_apart("block_idx_last_scheduled_token", block_idx_last_scheduled_token);
        written.check_apart("initial_state_idx", initial_state_idx);
        written.check_apart("cache_seqlens", cache_seqlens);
        written.check_apart("intermediate_state_indices", intermediate_state_indices);
        written.check_apart("retrieve_next_token", retrieve_next_token);
        written.check_apart("retrieve_next_sibling", retrieve_next_sibling);
    }

    void set_params() {
        p.batch = static_cast<int32_t>(batch);
        p.seqlen = static_cast<int32_t>(seqlen);
        p.total_tokens = packed ? static_cast<int32_t>(x.size(0)) : 0;
        p.use_silu = use_silu;
        p.zero_padding = zero_padding;
        p.x = as_tokens(x, packed);
        for (size_t part = 0; part < outs.size(); ++part)
            p.out[part] = split ? as_split_tokens(outs[part], packed, seqlen) : as_tokens(outs[part], packed);
        p.state = address(conv_state.data_ptr());
        p.slot_stride = stride_of(conv_state, 0);
        p.state_dim_stride = conv_state.stride(1);
        p.column_stride = stride_of(conv_state, 2);
        p.slots = static_cast<int32_t>(conv_state.size(0));
        p.state_len = static_cast<int32_t>(state_len);
        p.history = static_cast<int32_t>(state_at_end ? state_len : width - 1);
        p.has_pad_slot = pad_slot_id.has_value();
        p.pad_slot = pad_slot_id.value_or(0);
        if (intermediate_conv_window) {
            const at::Tensor& t = *intermediate_conv_window;
            p.intermediate = address(t.data_ptr());
            p.intermediate_slot_stride = t.stride(0);
            p.intermediate_token_stride = t.stride(1);
            p.intermediate_dim_stride = t.stride(2);
            p.intermediate_column_stride = t.stride(3);
            p.intermediate_slots = static_cast<int32_t>(t.size(0));
            p.intermediate_tokens = static_cast<int32_t>(t.size(1));
        }
    }
};

void update(const Arguments& arguments) { Update(arguments).run(); }

// Does the same past the dispatcher, on the current stream, called with Python's objects: what is written as `read_outputs` has
// it, (x, conv_state, weight, bias), use_silu, the tuple of the other tensors, max_query_len, pad_slot_id, state_at_end,
// zero_padding and kernel. It returns what is written, or does nothing and returns None if the arguments do not fit a call, the
// dispatcher has something to do on the way, or gradients must be refused.
PyObject* update_directly(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    return with_python_errors([&] {
        std::vector<at::Tensor> outs;
        at::Tensor x, conv_state, weight;
        OptionalTensor bias, others[12];
        bool use_silu = false, state_at_end = false, zero_padding = false;
        int64_t max_query_len = 0;
        std::optional<int64_t> pad_slot_id;
        std::string kernel;
        if (count != 9 || !read_items(arguments[1], x, conv_state, weight, bias) || !read(arguments[2], use_silu) ||
            !read_items(arguments[3], others) || !read(arguments[4], max_query_len) || !read(arguments[5], pad_slot_id) ||
            !read(arguments[6], state_at_end) || !read(arguments[7], zero_padding) || !read(arguments[8], kernel))
            return Py_NewRef(Py_None);
        const at::Tensor* given_tensors[12];
        for (int i = 0; i < 12; ++i) given_tensors[i] = given(others[i]);
        const auto& t = given_tensors;
        if (!nothing_to_record({&conv_state, &x, &weight, given(bias)}) ||
            !nothing_looks_on({&x, &conv_state, &weight, given(bias), t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8],
                               t[9], t[10], t[11]}) ||
            !read_outputs(arguments[0], x, outs) || !nothing_to_record({&outs.front()}) ||
            !nothing_looks_on({&outs.front(), &outs[outs.size() / 2], &outs.back()}))
            return Py_NewRef(Py_None);
        update({outs,      x,         conv_state,    weight,      bias,         use_silu,     others[0], others[1],
                others[2], others[3], max_query_len, pad_slot_id, others[4],    others[5],    others[6], others[7],
                others[8], others[9], others[10],    others[11],  state_at_end, zero_padding, kernel,    current_stream(x)});
        for (const at::Tensor& out : outs) note_written(out);
        note_written(conv_state);
        for (const int written : {7, 11})  // intermediate_conv_window, retrieve_parent_token
            if (others[written]) note_written(*others[written]);
        return outputs_of(arguments[0], outs);
    });
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    using T = const at::Tensor&;
    using O = const OptionalTensor&;
    m.def("causal_conv1d_update",
          [](const std::vector<at::Tensor>& outs, T x, T conv_state, T weight, O bias, bool use_silu, O conv_state_indices,
             O conv_state_indices_in, O num_accepted_tokens, O query_start_loc, int64_t max_query_len,
             std::optional<int64_t> pad_slot_id, O block_idx_last_scheduled_token, O initial_state_idx, O cache_seqlens,
             O intermediate_conv_window, O intermediate_state_indices, O retrieve_next_token, O retrieve_next_sibling,
             O retrieve_parent_token, bool state_at_end, bool zero_padding, const std::string& kernel,
             std::optional<int64_t> stream) {
              update({outs,
                      x,
                      conv_state,
                      weight,
                      bias,
                      use_silu,
                      conv_state_indices,
                      conv_state_indices_in,
                      num_accepted_tokens,
                      query_start_loc,
                      max_query_len,
                      pad_slot_id,
                      block_idx_last_scheduled_token,
                      initial_state_idx,
                      cache_seqlens,
                      intermediate_conv_window,
                      intermediate_state_indices,
                      retrieve_next_token,
                      retrieve_next_sibling,
                      retrieve_parent_token,
                      state_at_end,
                      zero_padding,
                      kernel,
                      stream});
          });
    m.def("causal_conv1d_update_kernels", [] { return names_of(causal_conv1d_update_kernels()); });
    add_direct_call(m, "causal_conv1d_update_directly", update_directly);
}
