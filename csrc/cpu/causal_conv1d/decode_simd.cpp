// The causal conv1d decode for host memory, vectorised along channels: for any strides and any width.
//
// A block's parameters, window and tokens are rows of floats along the channels. The state itself moves as bits, before the
// outputs are written, because x and out may be one tensor.
#include <vector>

#include "along_channels.h"
#include "causal_conv1d/decode_row.h"
#include "decode.h"
#include "serial.h"

namespace hipconv {
namespace {

constexpr int kTokens = 16;  // of a row at a time, but for a tree, which is taken whole

// A row of a block of channels.
struct Row {
    const CausalConv1dUpdateParams& p;
    int64_t b, d, channels, step;  // the step is that of rows of floats
    RowTokens tokens;
    RowState state;
};

template <typename T>
Plane<T> plane(const Tokens& tokens, const Row& row, int64_t d, int64_t t) {
    return {token_at<T>(tokens, row.b, d, row.tokens.first + t), tokens.dim_stride, tokens.token_stride};
}

template <typename S>
Plane<S> columns(const Row& row, int64_t slot, int64_t column) {
    return {state_at<S>(row.p, slot, row.d, column), row.p.state_dim_stride, row.p.column_stride};
}

template <typename S>
Plane<S> snapshot(const Row& row, int64_t slot, int32_t t, int32_t column) {
    return {intermediate_at<S>(row.p, slot, t, row.d, column), row.p.intermediate_dim_stride, row.p.intermediate_column_stride};
}

template <typename T>
Plane<const T> as_const(const Plane<T>& plane) {
    return {plane.begin, plane.dim_stride, plane.token_stride};
}

// A thread's rows of floats.
struct Block {
    Buffer<float> parameters, history, x, out, moved;

    Block(int width, int tokens, int columns)
        : parameters((width + 1) * DecodeWork::kBlock), history((width - 1 + tokens) * DecodeWork::kBlock),
          x(tokens * DecodeWork::kBlock), out(tokens * DecodeWork::kBlock), moved((columns + tokens) * DecodeWork::kBlock) {}
};

// ---- the pool --------------------------------------------------------------------------------------------------------------

// This puts tokens from `first` on, as the pool keeps them, into columns.
template <typename T, typename S>
void put_tokens(const Plane<S>& to, const Row& row, int64_t first, int count, float* tile) {
    const Plane<const T> from = as_const(plane<T>(row.p.x, row, row.d, first));
    if constexpr (std::is_same_v<S, T>) {
        move(to, from, row.channels, count, tile);
    } else {
        for (int t = 0; t < count; ++t) {
            load_tile(tile, row.step, from.from(0, t), row.channels, 1);
            store_tile(to.from(0, t), tile, row.step, row.channels, 1);
        }
    }
}

// This calls column(i) for the window's columns, of which a circular state's may be apart: runs of neighbours at once.
template <typename Columns>
void for_window(const Row& row, int first, int end, const Columns& columns) {
    for (int i = first, next; i < end; i = next) {
        const int32_t column = window_column(row.p, row.state, i);
        for (next = i + 1; next < end && window_column(row.p, row.state, next) == column + next - i;) ++next;
        columns(i, column, next - i);
    }
}

// Writes the state after the row's tokens, as bits; before that, it writes the windows after the single tokens.
template <typename T, typename S>
void advance_state(const Row& row, float* tile) {
    const CausalConv1dUpdateParams& p = row.p;
    const int past = p.width - 1;
    const RowTokens& tokens = row.tokens;
    const int64_t snapshots = intermediate_slot_of_row(p, row.b);
    for (int32_t t = 0; snapshots >= 0 && t < std::min(tokens.count, p.intermediate_tokens); ++t) {
        const int older = std::max(past - t - 1, 0);  // columns that the state still has
        for_window(row, past - older, past, [&](int i, int32_t column, int count) {
            move(snapshot<S>(row, snapshots, t, i - (past - older)), as_const(columns<S>(row, row.state.read_slot, column)),
                 row.channels, count, tile);
        });
        put_tokens<T>(snapshot<S>(row, snapshots, t, older), row, t + 1 - (past - older), past - older, tile);
    }
    const auto column = [&](int64_t at) { return columns<S>(row, row.state.write_slot, at); };
    if (p.cache_seqlens.data) {
        for (int32_t t = std::max(0, tokens.count - p.state_len); t < tokens.count; ++t)
            put_tokens<T>(column((row.state.first_column + t) % p.state_len), row, t, 1, tile);
        return;
    }
    // Columns 0 to `kept` take the history from `dropped` on: a speculative row keeps all but its first column, and all tokens.
    const bool speculative(p.num_accepted_tokens.data);
    const int32_t dropped = speculative ? 1 : tokens.count, kept = std::max(p.history - dropped, 0);
    const int32_t first = std::max(dropped - p.history, 0), count = p.history - dropped + tokens.count - kept;
    const auto from = as_const(columns<S>(row, row.state.read_slot, row.state.first_column));
    if (p.state_dim_stride == 1 || !std::is_same_v<S, T>) {
        move(column(0), from.from(0, dropped), row.channels, kept, tile);
        return put_tokens<T>(column(kept), row, first, count, tile);
    }
    // Columns side by side move faster together than one by one: the whole history comes, and all that follows it goes.
    float* window = tile + std::min(dropped, p.history) * row.step;
    load_tile(tile, row.step, moved(from), row.channels, p.history);
    load_tile(window + kept * row.step, row.step, moved(as_const(plane<T>(p.x, row, row.d, first))), row.channels, count);
    store_tile(moved(column(0)), window, row.step, row.channels, kept + count);
}

// A tree leaves the pool as it is, and writes the window that each token sees.
template <typename T, typename S>
void write_tree_windows(const Row& row, const int16_t* parent, float* tile) {
    const int past = row.p.width - 1;
    const int64_t snapshots = intermediate_slot_of_row(row.p, row.b);
    for (int32_t t = 0; snapshots >= 0 && t < std::min(row.tokens.count, row.p.intermediate_tokens); ++t) {
        int node = t;
        for (int i = past; i > 0; --i, node = node >= 0 ? parent[node] : node - 1) {
            const Plane<S> to = snapshot<S>(row, snapshots, t, i - 1);
            if (node >= 0)
                put_tokens<T>(to, row, node, 1, tile);
            else
                move(to, as_const(columns<S>(row, row.state.read_slot, window_column(row.p, row.state, past + node))),
                     row.channels, 1, tile);
        }
    }
}

// ---- outputs ---------------------------------------------------------------------------------------------------------------

// The sum of token t takes the rows of history that row(i) names for the older taps, and the token itself.
template <typename RowOf>
void make_output(const Row& row, const Parameters& parameters, const Block& block, int t, const RowOf& row_of) {
    const int past = parameters.width - 1;
    const auto make = [&](auto vectors, int64_t c) __attribute__((always_inline)) {
        constexpr int kVectors = decltype(vectors)::value;
        Floats sums[kVectors];
        for (int v = 0; v < kVectors; ++v) sums[v] = parameters.bias(c + v * kLanes);
        const auto add = [&](int i, const float* from) __attribute__((always_inline)) {
            for (int v = 0; v < kVectors; ++v)
                sums[v] = sums[v] + parameters.tap(i, c + v * kLanes) * simd::load(from + c + v * kLanes);
        };
        for (int i = 0; i < past; ++i) add(i, block.history.begin() + row_of(i) * row.step);
        add(past, block.x.begin() + t * row.step);
        for (int v = 0; v < kVectors; ++v)
            simd::store(block.out.begin() + t * row.step + c + v * kLanes, row.p.use_silu ? simd::silu(sums[v]) : sums[v]);
    };
    for_vectors(row.channels, make);
}

// Loads tokens from `first` on: as they are, and behind the window in the history as the pool keeps them.
template <typename T, typename S>
void load_tokens(const Row& row, const Block& block, int64_t first, int count) {
    load_tile(block.x.begin(), row.step, as_const(plane<T>(row.p.x, row, row.d, first)), row.channels, count);
    float* to = block.history.begin() + (row.p.width - 1) * row.step;
    if (std::is_same_v<S, T> || std::is_same_v<S, float>) {
        std::copy_n(block.x.begin(), count * row.step, to);
    } else {
        S kept[kLanes];
        for (int64_t i = 0; i < count * row.step; i += kLanes) {
            simd::store(kept, simd::load(block.x.begin() + i));
            simd::store(to + i, simd::load(kept));
        }
    }
}

template <typename T>
void store_outputs(const Row& row, const Block& block, int64_t first, int count) {
    for (int64_t begin = 0; begin < row.channels;) {  // q, k and v may meet within a block
        const int part = output_of_channel(row.p, row.d + begin);
        const int64_t end = std::min<int64_t>(row.channels, row.p.out_end[part] - row.d);
        const Tokens& out = row.p.out[part];
        const Plane<T> to{out_at<T>(row.p, row.b, row.d + begin, row.tokens.first + first), out.dim_stride, out.token_stride};
        store_tile(to, block.out.begin() + begin, row.step, end - begin, count);
        begin = end;
    }
}

template <typename T, typename S>
void update_row(const Row& row, const Parameters& parameters, const Block& block) {
    const CausalConv1dUpdateParams& p = row.p;
    const int past = p.width - 1;
    float* history = block.history.begin();
    for_window(row, 0, past, [&](int i, int32_t column, int count) {
        load_tile(history + i * row.step, row.step, as_const(columns<S>(row, row.state.read_slot, column)), row.channels,
                  count);
    });
    if (p.tree_child.data) {
        int16_t parent[kMaxTreeTokens];
        const auto child = [&](int t) { return load_index(p.tree_child, row.b, t); };
        find_parents(parent, p.seqlen, child, [&](int t) { return load_index(p.tree_sibling, row.b, t); });
        if (row.d == 0 && p.tree_parent.data)
            for (int32_t t = 0; t < p.seqlen; ++t) store_parent(p.tree_parent, row.b, t, parent[t]);
        write_tree_windows<T, S>(row, parent, block.moved.begin());
        load_tokens<T, S>(row, block, 0, p.seqlen);
        std::vector<int> seen(past + 1);
        for (int32_t t = 0; t < p.seqlen; ++t) {
            for (int i = past, node = t; i >= 0; --i, node = node >= 0 ? parent[node] : node - 1) seen[i] = past + node;
            make_output(row, parameters, block, t, [&](int i) { return seen[i]; });
        }
        return store_outputs<T>(row, block, 0, p.seqlen);
    }
    if (past > 0) advance_state<T, S>(row, block.moved.begin());
    for (int32_t first = 0; first < row.tokens.count; first += kTokens) {
        const int count = std::min(kTokens, row.tokens.count - first);
        load_tokens<T, S>(row, block, first, count);
        for (int t = 0; t < count; ++t) make_output(row, parameters, block, t, [&](int i) { return t + i; });
        if (first + count < row.tokens.count) std::copy_n(history + count * row.step, past * row.step, history);
        store_outputs<T>(row, block, first, count);
    }
}

template <typename T>
void zero(const Row& row, int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; ++t)
        for (int64_t c = row.d; c < row.d + row.channels; ++c) *out_at<T>(row.p, row.b, c, t) = T{};
}

template <typename T, typename S>
void update(const CausalConv1dUpdateParams& p) {
    const DecodeWork work(p);
    const int most = p.tree_child.data ? p.seqlen : kTokens;
#pragma omp parallel if (work.parallel)
    {
        const Block block(p.width, most, std::max(p.state_len, p.history));
        Parameters parameters{};
        int64_t loaded = -1;
#pragma omp for schedule(static)
        for (int64_t item = 0; item < work.items; ++item) {
            const int64_t d = item / p.batch * DecodeWork::kBlock, b = item % p.batch;
            const int64_t channels = std::min<int64_t>(DecodeWork::kBlock, p.dim - d);
            const RowIndices indices = indices_of_row(p, b);
            Row row{p, b, d, channels, round_up(channels, kLanes), tokens_of_row(p, indices), {}};
            zero_rest(p, indices, b, [&](int64_t t) { zero<T>({p, 0, d, channels, 0, {}, {}}, t, 1); });
            if (row.tokens.count == 0) continue;
            row.state = state_of_row(p, indices, row.tokens.count);
            if (!row.state.live) {
                if (p.zero_padding) zero<T>(row, row.tokens.first, row.tokens.count);
                continue;
            }
            if (loaded != d) parameters = load_parameters(block.parameters.begin(), row.step, p, d, channels);
            loaded = d;
            update_row<T, S>(row, parameters, block);
        }
    }
}

}  // namespace

const char* causal_conv1d_update_simd_refusal(const CausalConv1dUpdateParams& p) { return buffered_refusal(p.width); }

void causal_conv1d_update_simd(const CausalConv1dUpdateParams& p, void* /*workspace*/, void* /*stream*/) {
    with_dtype(p.dtype,
               [&](auto type) { with_dtype(p.state_dtype, [&](auto state) { update<decltype(type), decltype(state)>(p); }); });
}

}  // namespace hipconv
