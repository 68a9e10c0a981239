// This is the host's side of the fast prefill kernels: how wide a call's vectors are, how a launch divides tokens and starts of
// sequences among blocks, and in which form a kernel sees the states.
#pragma once

#include <stdexcept>

#include "../common/launch.h"
#include "causal_conv1d/prefill_schedule.h"
#include "thread.h"

namespace hipconv {

// The number of channels of a thread that makes the start of a sequence.
HIPCONV_INLINE constexpr int channels_of_begin(int channels, int size, int state_size) {
    return state_size > size && channels > 1 ? channels / 2 : channels;
}

inline bool aligned(const void* data, int64_t bytes) { return reinterpret_cast<uintptr_t>(data) % bytes == 0; }

// The bytes of a thread's vectors: wide windows of many channels have no registers.
constexpr int vector_bytes(int width) { return width <= 4 ? kLaneBytes : 8; }

// The number of channels of one vector, if every vector of x and of the outputs is aligned and the parameters are packed; else
// one.
inline int channels_a_vector(const CausalConv1dVarlenParams& p) {
    const int bytes = vector_bytes(p.width);
    const int wanted = bytes / element_bytes(p.dtype);
    const auto vectors = [&](const void* data, int64_t dim_stride, int64_t token_stride) {
        return dim_stride == 1 && aligned(data, bytes) && token_stride % wanted == 0;
    };
    bool all = p.dim % wanted == 0 && vectors(p.x, p.x_dim_stride, p.x_token_stride) && parameters_are_packed(p);
    if (p.k_dim < 0)
        all = all && vectors(p.out, p.out_dim_stride, p.out_token_stride);
    else
        all = all && p.k_dim % wanted == 0 && aligned(p.out, bytes) && aligned(p.k, bytes) && aligned(p.v, bytes);
    return all ? wanted : 1;
}

// A forced size of the tile, or 0 for none. A size that a block cannot have stands for the nearest one that it can have.
inline int power_of_two(const char* name, int value) {
    if (value < 0 || (value & (value - 1)) != 0)
        throw std::invalid_argument(std::string(name) + ": got " + std::to_string(value) + ", expected a power of two, or 0");
    return value;
}

constexpr int kEnoughBegins = 1 << 18;  // threads that make starts of sequences; with more, a row makes several
constexpr uint32_t kMostBegins = 4;

// The number of starts of sequences that a row makes, one after another, where a block has so many `rows` and `threads`, and a
// sequence `lanes` in all. A forced tile has as many as fit.
inline uint32_t begins_a_row(const CausalConv1dVarlenParams& p, const VarlenTile& tile, int64_t rows, unsigned threads,
                             int32_t run, int64_t lanes) {
    uint32_t number = 1;
    const auto more = [&] { return tile.tokens ? run >= 16 : p.sequences / (number * 2) * lanes >= kEnoughBegins; };
    while (number < kMostBegins && rows * number * 2 <= threads && more()) number *= 2;
    return number;
}

// This says how a launch of `tile` or `words` is laid out, in place or not.
struct PrefillShape {
    int width;              // of the kernel's instance
    int64_t items;          // what a lane has one of, of a token's channels: a vector, or a word
    unsigned lanes, rows;   // of a block
    int32_t run;            // tokens of a row
    uint32_t begins_a_row;  // starts of sequences
    int64_t run_blocks, begin_blocks;

    int past() const { return width - 1; }
};

// Cuts the tokens into runs: of `usual` tokens, or shorter ones, so that a large card is full, or as long as block_m says.
// `enough` threads are those that fill it.
inline void cut_into_runs(PrefillShape& s, const CausalConv1dVarlenParams& p, const VarlenTile& tile, bool in_place,
                          int32_t usual, int32_t most, int enough) {
    s.run = usual;
    while (s.run > 4 && s.items * (p.tokens / s.run) < enough) s.run /= 2;
    if (const int tokens = power_of_two("block_m", tile.tokens))
        s.run = static_cast<int32_t>(power_of_two_up_to(tokens / static_cast<int>(s.rows), most));
    while (in_place && s.run < s.past()) s.run *= 2;  // a row's halo lies in the row before
    const int64_t block_tokens = int64_t{s.rows} * s.run;
    s.run_blocks = (p.tokens + block_tokens - 1) / block_tokens;
}

// Shares the starts of sequences out among blocks of so many `rows`, each of which makes shape.begins_a_row of them.
inline void share_out_begins(PrefillShape& s, const CausalConv1dVarlenParams& p, int64_t rows) {
    const int64_t begins = rows * s.begins_a_row;
    s.begin_blocks = (p.sequences + begins - 1) / begins;
}

// Writes down for the kernel what of the division is the same for `tile` and `words`. No blocks, no launch: false.
inline bool plan_blocks(VarlenPlan& plan, const CausalConv1dVarlenParams& p, const PrefillShape& shape, int64_t runs,
                        int64_t begins) {
    plan.run = shape.run;
    plan.begins_a_row = shape.begins_a_row;
    plan.blocks = static_cast<uint32_t>(runs + begins);
    if (plan.blocks == 0) return false;
    plan.begins_of = (static_cast<uint64_t>(begins) << 32) / plan.blocks;
    plan.plain_indices = PlainIndices::fit(p);
    return true;
}

// Tells whether each row of 16-bit outputs begins and ends with a whole word.
inline bool outputs_in_words(const CausalConv1dVarlenParams& p) {
    const auto words = [](const void* data, int64_t token_stride) { return aligned(data, 4) && token_stride % 2 == 0; };
    if (p.dim % 2 != 0) return false;
    if (p.k_dim < 0) return words(p.out, p.out_token_stride);
    return words(p.out, p.k_dim) && words(p.k, p.k_dim) && words(p.v, p.dim - 2 * int64_t{p.k_dim});
}

// The form in which a kernel compiled for `width` sees the states.
inline StateForm state_form(const CausalConv1dVarlenParams& p, int channels, int width) {
    const int bytes = element_bytes(p.state_dtype);
    // Vectors of up to 16 bytes, as load_packed takes them, divide `each` elements.
    const auto packed = [&](int64_t each, int64_t stride) {
        const int64_t size = each * bytes, vector = size % 16 == 0 ? 16 : size % 8 == 0 ? 8 : 4;
        return aligned(p.states, vector) && p.slot_stride * bytes % vector == 0 && stride * bytes % vector == 0 &&
               size % vector == 0;
    };
    if (channels == 1 || p.first_column != 0) return StateForm::elements;
    if (p.state_dim_stride == 1 && packed(channels, p.column_stride)) return StateForm::columns;
    const int past = p.width - 1;
    if (p.width >= width - 1 && p.column_stride == 1 && p.state_dim_stride == past && packed(int64_t{channels} * past, 0))
        return StateForm::rows;
    return StateForm::elements;
}

}  // namespace hipconv
