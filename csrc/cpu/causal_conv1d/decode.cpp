// These are the causal conv1d decode kernels for host memory.
//
// `simd` shares rows and blocks of channels out over torch's threads. A block's window and its parameters are rows of floats
// along the channels, whatever the strides, and the kernel computes vectors of them at once. The state itself moves as bits,
// before the outputs are written, because x and out may be one tensor. It serves widths up to kMaxWidth. `openmp` computes
// channel by channel, by the formula. It serves any width.
#include "causal_conv1d/decode.h"

#include <algorithm>
#include <iterator>

#include "../simd.h"
#include "causal_conv1d/decode_row.h"

namespace hipconv {
namespace {

using simd::Floats;
using simd::kLanes;

constexpr int kBlock = 256;  // channels
constexpr int kMaxWidth = 8;
constexpr double kSerialBelow = 1 << 12;  // fewer outputs are not worth waking a second thread for

struct Work {
    int64_t blocks, items;
    bool parallel;
};

// Rows follow one another for each block of channels, so that a thread keeps its block's parameters.
Work work_of(const CausalConv1dUpdateParams& p) {
    const int64_t blocks = (p.dim + kBlock - 1) / kBlock;
    const double tokens = p.query_start_loc.data ? p.total_tokens : static_cast<double>(p.batch) * p.seqlen;
    return {blocks, blocks * p.batch, tokens * p.dim >= kSerialBelow};
}

template <typename T>
void zero_channels(const CausalConv1dUpdateParams& p, int64_t b, int64_t d, int64_t channels, RowTokens tokens) {
    for (int64_t c = d; c < d + channels; ++c) zero_one_channel<T>(p, b, c, tokens);
}

// ---- rows of channels, from and to strided elements ------------------------------------------------------------------------

template <typename T>
void load_floats(float* to, const T* from, int64_t stride, int count) {
    if (stride == 1) {
        for (int c = 0; c < count; c += kLanes) simd::store(to + c, simd::load_some(from + c, count - c));
    } else {
        for (int c = 0; c < count; ++c) to[c] = to_float(from[c * stride]);
    }
}

// This loads rows first, first + 1 … of (channel, kInside) elements without gaps.
template <int kInside, typename T>
void load_inside(float (*rows)[kBlock], const T* from, int first, int rows_wanted, int count) {
    alignas(64) float all[kBlock * kInside];
    load_floats(all, from, 1, count * kInside);
    for (int i = 0; i < rows_wanted; ++i)
        for (int c = 0; c < count; ++c) rows[i][c] = all[c * kInside + first + i];
}

// This loads `rows_wanted` rows of (channel, row) elements. If there are no gaps, each channel has `inside` of them side by
// side.
template <typename T>
void load_rows(float (*rows)[kBlock], const T* from, int64_t dim_stride, int64_t row_stride, int64_t inside, int first,
               int rows_wanted, int count) {
    if (row_stride == 1 && dim_stride == inside) {
        switch (inside) {
            case 2:
                return load_inside<2>(rows, from, first, rows_wanted, count);
            case 3:
                return load_inside<3>(rows, from, first, rows_wanted, count);
            case 4:
                return load_inside<4>(rows, from, first, rows_wanted, count);
        }
    }
    for (int i = 0; i < rows_wanted; ++i) load_floats(rows[i], from + (first + i) * row_stride, dim_stride, count);
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

template <typename S, typename T>
void copy_channels(S* to, int64_t to_stride, const T* from, int64_t from_stride, int count) {
    for (int c = 0; c < count; ++c) to[c * to_stride] = history_of<S>(from[c * from_stride]);
}

// ---- a row of a block ------------------------------------------------------------------------------------------------------

struct alignas(64) Block {
    float weight[kMaxWidth + 1][kBlock];  // the last row in use is the bias
    float ring[kMaxWidth][kBlock];        // the history: value n, counted from the window's oldest, in row n mod (width - 1)
    float x[kBlock], out[kBlock];
};

template <typename P>
void load_parameters(const CausalConv1dUpdateParams& p, int64_t d, int count, Block& block) {
    const P* weight = p.weight.as<const P>() + d * p.weight_dim_stride;
    load_rows(block.weight, weight, p.weight_dim_stride, p.weight_width_stride, p.width, 0, p.width, count);
    for (int c = 0; c < count; ++c) block.weight[p.width][c] = bias_at(p, d + c);
}

void load_parameters(const CausalConv1dUpdateParams& p, int64_t d, int count, Block& block) {
    switch (p.weight_dtype) {
        case DType::f32:
            return load_parameters<float>(p, d, count, block);
        case DType::f16:
            return load_parameters<f16>(p, d, count, block);
        case DType::bf16:
            return load_parameters<bf16>(p, d, count, block);
    }
}

// This writes the state after the row's tokens, as bits; before that, it writes the windows after the single tokens.
template <typename T, typename S>
void advance_state(const CausalConv1dUpdateParams& p, int64_t b, int64_t d, int count, RowTokens tokens, const RowState& row) {
    const int past = p.width - 1;
    const auto put_token = [&](S* to, int64_t stride, int32_t t) {
        copy_channels(to, stride, token_at<T>(p.x, b, d, tokens.first + t), p.x.dim_stride, count);
    };
    const auto column = [&](int64_t at) { return state_at<S>(p, row.write_slot, d, at); };
    const auto move_column = [&](int64_t to, int64_t from) {
        copy_channels(column(to), p.state_dim_stride, state_at<S>(p, row.read_slot, d, from), p.state_dim_stride, count);
    };

    const int64_t snapshots = intermediate_slot_of_row(p, b);
    for (int32_t t = 0; snapshots >= 0 && t < std::min(tokens.count, p.intermediate_tokens); ++t) {
        for (int32_t i = 0; i < past; ++i) {
            S* to = intermediate_at<S>(p, snapshots, t, d, i);
            if (t + 1 + i < past)
                copy_channels(to, p.intermediate_dim_stride, state_at<S>(p, row.read_slot, d, window_column(p, row, t + 1 + i)),
                              p.state_dim_stride, count);
            else
                put_token(to, p.intermediate_dim_stride, t + 1 + i - past);
        }
    }

    if (p.cache_seqlens.data) {
        for (int32_t t = std::max(0, tokens.count - p.state_len); t < tokens.count; ++t)
            put_token(column((row.first_column + t) % p.state_len), p.state_dim_stride, t);
        return;
    }
    // Columns 0 to `columns` take the history from `dropped` on: a speculative row keeps all but its first column, and all
    // tokens.
    const bool speculative(p.num_accepted_tokens.data);
    const int32_t dropped = speculative ? 1 : tokens.count, columns = p.history - dropped + tokens.count;
    for (int32_t i = 0; i < columns; ++i) {
        if (i + dropped < p.history)
            move_column(i, row.first_column + i + dropped);
        else
            put_token(column(i), p.state_dim_stride, i + dropped - p.history);
    }
}

template <typename T, typename S>
void update_row(const CausalConv1dUpdateParams& p, int64_t b, int64_t d, int count, RowTokens tokens, const RowState& row,
                Block& block) {
    const int past = p.width - 1;
    const auto ring = [&](int64_t age) { return block.ring[age % past]; };
    if (past > 0) {
        if (p.cache_seqlens.data) {
            for (int i = 0; i < past; ++i)
                load_floats(block.ring[i], state_at<S>(p, row.read_slot, d, window_column(p, row, i)), p.state_dim_stride,
                            count);
        } else {
            load_rows(block.ring, state_at<S>(p, row.read_slot, d, 0), p.state_dim_stride, p.column_stride, p.state_len,
                      window_column(p, row, 0), past, count);
        }
        advance_state<T, S>(p, b, d, count, tokens, row);
    }
    for (int32_t t = 0; t < tokens.count; ++t) {
        load_floats(block.x, token_at<T>(p.x, b, d, tokens.first + t), p.x.dim_stride, count);
        for (int c = 0; c < count; c += kLanes) {
            Floats sum = simd::load(block.weight[p.width] + c);
            for (int i = 0; i < past; ++i) sum = sum + simd::load(block.weight[i] + c) * simd::load(ring(t + i) + c);
            sum = sum + simd::load(block.weight[past] + c) * simd::load(block.x + c);
            simd::store(block.out + c, p.use_silu ? simd::silu(sum) : sum);
        }
        if (past > 0) {
            float* last = ring(t);  // the oldest makes room
            for (int c = 0; c < count; ++c) last[c] = to_float(history_of<S>(from_float<T>(block.x[c])));
        }
        store_output<T>(p, b, d, tokens.first + t, block.out, count);
    }
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
            const RowIndices indices = indices_of_row(p, b);
            if (p.zero_padding && p.query_start_loc.data)
                for (int c = 0; c < count; ++c) zero_rest<T>(p, indices, b, d + c);
            const RowTokens tokens = tokens_of_row(p, indices);
            if (tokens.count == 0) continue;
            const RowState row = state_of_row(p, indices, tokens.count);
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
        const RowIndices indices = indices_of_row(p, b);
        for (int64_t d = begin; d < begin + channels; ++d) zero_rest<T>(p, indices, b, d);
        const RowTokens tokens = tokens_of_row(p, indices);
        if (tokens.count == 0) continue;
        const RowState row = state_of_row(p, indices, tokens.count);
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

template <typename T>
void with_state_dtype(const CausalConv1dUpdateParams& p, bool simd) {
    with_dtype(p.state_dtype, [&](auto state) {
        using S = decltype(state);
        simd ? simd_kernel<T, S>(p) : openmp_kernel<T, S>(p);
    });
}

void launch(const CausalConv1dUpdateParams& p, bool simd) {
    with_dtype(p.dtype, [&](auto type) { with_state_dtype<decltype(type)>(p, simd); });
}

// ---- the table -------------------------------------------------------------------------------------------------------------

const char* simd_refusal(const CausalConv1dUpdateParams& p) {
    static_assert(kMaxWidth == 8, "the text below says so");
    return p.width <= kMaxWidth && !p.tree_child.data ? nullptr : "width <= 8 and no retrieve_next_token";
}

// name, refusal, launch
constexpr KernelRow<CausalConv1dUpdateParams> kUpdateKernels[] = {
    {"simd", simd_refusal, [](const CausalConv1dUpdateParams& p, void*, void*) { launch(p, /*simd=*/true); }},
    {"openmp", nullptr, [](const CausalConv1dUpdateParams& p, void*, void*) { launch(p, /*simd=*/false); }},
};
static_assert(are_named(kUpdateKernels, kCausalConv1dUpdateNames.cpu), "names stand in causal_conv1d/decode.h too");

}  // namespace

KernelTable<CausalConv1dUpdateParams> causal_conv1d_update_kernels() { return {kUpdateKernels, std::size(kUpdateKernels)}; }

}  // namespace hipconv
