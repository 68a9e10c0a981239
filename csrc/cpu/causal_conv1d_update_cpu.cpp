// Causal conv1d decode for host memory.
//
// `simd`: rows and blocks of channels shared out over torch's threads; a block's window, and its parameters, are rows of floats
// along the channels, whatever the strides, and vectors of them are computed at once. Widths up to kMaxWidth.
// `openmp`: channel by channel, by the formula. Any width.
#include "causal_conv1d_update.h"

#include <algorithm>
#include <stdexcept>

#include "causal_conv1d_update_row.h"
#include "simd.h"

namespace hipconv {
namespace {

using simd::Floats;
using simd::kLanes;

constexpr int kBlock = 256;  // channels
constexpr int kMaxWidth = 8;
constexpr double kSerialBelow = 1 << 14;

struct Work {
    int64_t blocks, items;
    bool parallel;
};

// Rows one after another for each block of channels, so that a thread keeps its block's parameters.
Work work_of(const CausalConv1dUpdateParams& p) {
    const int64_t blocks = (p.dim + kBlock - 1) / kBlock;
    const double tokens = p.query_start_loc.data ? p.total_tokens : static_cast<double>(p.batch) * p.seqlen;
    return {blocks, blocks * p.batch, tokens * p.dim * p.width >= 4 * kSerialBelow};
}

template <typename T>
void zero_channels(const CausalConv1dUpdateParams& p, int64_t b, int64_t d, int64_t channels, RowTokens tokens) {
    for (int64_t c = d; c < d + channels; ++c) zero_one_channel<T>(p, b, c, tokens);
}

// ---- floats from and to strided elements -----------------------------------------------------------------------------------

template <typename T>
void load_floats(float* to, const T* from, int64_t stride, int count) {
    if (stride == 1) {
        for (int c = 0; c < count; c += kLanes) simd::store(to + c, simd::load_some(from + c, count - c));
    } else {
        for (int c = 0; c < count; ++c) to[c] = to_float(from[c * stride]);
    }
}

template <typename T>
void store_floats(T* to, int64_t stride, const float* from, int count) {
    if (stride == 1) {
        for (int c = 0; c < count; c += kLanes) simd::store_some(to + c, simd::load(from + c), count - c);
    } else {
        for (int c = 0; c < count; ++c) to[c * stride] = from_float<T>(from[c]);
    }
}

template <typename T>
void store_output(const CausalConv1dUpdateParams& p, int64_t b, int64_t d, int64_t t, const float* from, int count) {
    for (int begin = 0; begin < count;) {  // q, k and v may meet within a block
        const int part = output_of_channel(p, d + begin);
        const int end = static_cast<int>(std::min<int64_t>(count, p.out_end[part] - d));
        store_floats(out_at<T>(p, b, d + begin, t), p.out[part].dim_stride, from + begin, end - begin);
        begin = end;
    }
}

// ---- a row of a block ------------------------------------------------------------------------------------------------------

struct alignas(64) Block {
    float weight[kMaxWidth + 1][kBlock];  // the last row in use is the bias
    float ring[kMaxWidth][kBlock];        // values of the last tokens: that of token n is in row n mod (width - 1)
    float x[kBlock], out[kBlock];
};

void load_parameters(const CausalConv1dUpdateParams& p, int64_t d, int count, Block& block) {
    for (int c = 0; c < count; ++c) {
        for (int i = 0; i < p.width; ++i)
            block.weight[i][c] =
                load_parameter(p.weight.as<void>(), (d + c) * p.weight_dim_stride + i * p.weight_width_stride, p.weight_dtype);
        block.weight[p.width][c] = p.bias ? load_parameter(p.bias.as<void>(), (d + c) * p.bias_stride, p.bias_dtype) : 0.0f;
    }
}

template <typename T, typename S>
void update_row(const CausalConv1dUpdateParams& p, int64_t b, int64_t d, int count, RowTokens tokens, const RowState& row,
                Block& block) {
    const int past = p.width - 1, spare = p.history - past;
    const bool speculative(p.num_accepted_tokens.data), circular(p.cache_seqlens.data);
    const int64_t snapshots = intermediate_slot_of_row(p, b);
    const auto ring = [&](int64_t age) { return block.ring[age % past]; };  // age counts from the oldest of the window
    const auto put = [&](int64_t column, const float* from) {
        store_floats(state_at<S>(p, row.write_slot, d, column), p.state_dim_stride, from, count);
    };
    const auto load_x = [&](int32_t t) {
        load_floats(block.x, token_at<T>(p.x, b, d, tokens.first + t), p.x.dim_stride, count);
    };

    for (int i = 0; i < past; ++i)
        load_floats(block.ring[i], state_at<S>(p, row.read_slot, d, window_column(p, row, i)), p.state_dim_stride, count);
    if (past && speculative) {
        for (int i = 0; i < past - 1; ++i) put(i, block.ring[i + 1]);
    } else if (past && !circular) {
        for (int i = 0; i < spare; ++i) {  // columns before the window, which move with it
            if (i + tokens.count < p.history)
                load_floats(block.x, state_at<S>(p, row.read_slot, d, i + tokens.count), p.state_dim_stride, count);
            else
                load_x(i + tokens.count - p.history);
            put(i, block.x);
        }
    }

    for (int32_t t = 0; t < tokens.count; ++t) {
        load_x(t);
        for (int c = 0; c < count; c += kLanes) {
            Floats sum = simd::load(block.weight[p.width] + c);
            for (int i = 0; i < past; ++i) sum = sum + simd::load(block.weight[i] + c) * simd::load(ring(t + i) + c);
            sum = sum + simd::load(block.weight[past] + c) * simd::load(block.x + c);
            simd::store(block.out + c, p.use_silu ? simd::silu(sum) : sum);
        }
        if (past) {
            float* last = ring(t);  // the oldest makes room
            for (int c = 0; c < count; ++c) last[c] = to_float(from_float<S>(block.x[c]));
            if (speculative)
                put(past - 1 + t, last);
            else if (circular && t + p.state_len >= tokens.count)
                put((row.first_column + t) % p.state_len, last);
            if (snapshots >= 0 && t < p.intermediate_tokens)
                for (int i = 0; i < past; ++i)
                    store_floats(intermediate_at<S>(p, snapshots, t, d, i), p.intermediate_dim_stride, ring(t + 1 + i), count);
        }
        store_output<T>(p, b, d, tokens.first + t, block.out, count);
    }
    if (past && !speculative && !circular)
        for (int i = 0; i < past; ++i) put(spare + i, ring(tokens.count + i));
}

template <typename T, typename S>
void simd_kernel(const CausalConv1dUpdateParams& p) {
    const Work work = work_of(p);
#pragma omp parallel if (work.parallel)
    {
        Block block;
        int64_t loaded = -1;
#pragma omp for schedule(static)
        for (int64_t item = 0; item < work.items; ++item) {
            const int64_t d = item / p.batch * kBlock, b = item % p.batch;
            const int count = static_cast<int>(std::min<int64_t>(kBlock, p.dim - d));
            for (int c = 0; c < count; ++c) zero_rest<T>(p, b, d + c);
            const RowTokens tokens = tokens_of_row(p, b);
            if (tokens.count == 0) continue;
            const RowState row = state_of_row(p, b, tokens.count);
            if (!row.live) {
                if (p.zero_padding) zero_channels<T>(p, b, d, count, tokens);
                continue;
            }
            if (loaded != d) load_parameters(p, d, count, block);
            loaded = d;
            update_row<T, S>(p, b, d, count, tokens, row, block);
        }
    }
}

// ---- channel by channel ----------------------------------------------------------------------------------------------------

template <typename T, typename S>
void openmp_kernel(const CausalConv1dUpdateParams& p) {
    const Work work = work_of(p);
#pragma omp parallel for schedule(static) if (work.parallel)
    for (int64_t item = 0; item < work.items; ++item) {
        const int64_t begin = item / p.batch * kBlock, b = item % p.batch;
        const int64_t channels = std::min<int64_t>(kBlock, p.dim - begin);
        for (int64_t d = begin; d < begin + channels; ++d) zero_rest<T>(p, b, d);
        const RowTokens tokens = tokens_of_row(p, b);
        if (tokens.count == 0) continue;
        const RowState row = state_of_row(p, b, tokens.count);
        if (!row.live) {
            if (p.zero_padding) zero_channels<T>(p, b, begin, channels, tokens);
            continue;
        }
        if (!p.tree_child.data) {
            for (int64_t d = begin; d < begin + channels; ++d) update_one_channel<T, S>(p, b, d, tokens, row);
            continue;
        }
        int16_t parent[kMaxTreeTokens];
        const auto child = [&](int t) { return load_index(p.tree_child, b, t); };
        find_parents(parent, p.seqlen, child, [&](int t) { return load_index(p.tree_sibling, b, t); });
        if (begin == 0 && p.tree_parent.data)
            for (int32_t t = 0; t < p.seqlen; ++t) store_parent(p.tree_parent, b, t, parent[t]);
        for (int32_t t = p.seqlen - 1; t >= 0; --t)
            for (int64_t d = begin; d < begin + channels; ++d) update_one_tree_token<T, S>(p, b, d, row, t, parent);
    }
}

// ---- choice of the instance ------------------------------------------------------------------------------------------------

template <typename T, typename S>
void with_types(const CausalConv1dUpdateParams& p, bool simd) {
    simd ? simd_kernel<T, S>(p) : openmp_kernel<T, S>(p);
}

template <typename T>
void with_state_dtype(const CausalConv1dUpdateParams& p, bool simd) {
    switch (p.state_dtype) {
        case DType::f32:
            return with_types<T, float>(p, simd);
        case DType::f16:
            return with_types<T, f16>(p, simd);
        case DType::bf16:
            return with_types<T, bf16>(p, simd);
    }
}

}  // namespace

std::vector<std::string> causal_conv1d_update_kernels() { return {"simd", "openmp"}; }

void causal_conv1d_update(const CausalConv1dUpdateParams& p, const std::string& kernel, void* /*stream*/) {
    const bool serves = p.width <= kMaxWidth && !p.tree_child.data;
    if (kernel == "simd" && !serves)
        throw std::invalid_argument("kernel: got 'simd', which serves width <= " + std::to_string(kMaxWidth) +
                                    " and no retrieve_next_token");
    const bool simd = serves && kernel != "openmp";
    switch (p.dtype) {
        case DType::f32:
            return with_state_dtype<float>(p, simd);
        case DType::f16:
            return with_state_dtype<f16>(p, simd);
        case DType::bf16:
            return with_state_dtype<bf16>(p, simd);
    }
}

}  // namespace hipconv
