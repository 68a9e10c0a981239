// The decode kernels that take vectors of channels share these parts. A lane owns kChannels neighbouring channels of one row, a
// block a strip of them; the blocks that run side by side take the same strip of many rows, whose parameters they then find in
// the first cache. The file is for files that include <hip/hip_runtime.h>.
#pragma once

#include <type_traits>

#include "../common/vector_math.h"
#include "calls.h"
#include "causal_conv1d/decode_row.h"
#include "device/elements.h"
#include "grid.h"
#include "kernels.h"
#include "launch/division.h"

namespace hipconv {

constexpr int kVectorLanes = 64;  // small blocks: few wait for each other, and few rows fill a card
// The same where a row has one token. Kernels that begin early start their blocks one after the other (an H200 every 1.3 ns),
// which smaller ones than these would wait for.
constexpr int kTokenLanes = kCopiesPastRegisters ? 2 * kVectorLanes : kVectorLanes;
constexpr int kChannels = 4;     // of a lane: 8 bytes of 16-bit elements, 16 of f32
constexpr int kOwnVectors = 0;   // columns of the state whose channels are neighbours: a lane moves its own vectors
constexpr int kCommonWidth = 4;  // what models have
constexpr int kMostWidth = 8;
constexpr int kPairLanes = 384;                                             // of a block of rows in pairs of channels
constexpr int kFewestLanes = 32, kMostStrips = 65535, kMostRows = 1 << 24;  // a grid's limits, those of AMD included

// kColumns vectors of channels from kChannels rows of columns, or (kBack) the other way round; the same elements either way.
template <typename T, int kColumns, bool kBack, typename Vector>
HIPCONV_INLINE void transpose(Vector* to, const Vector* from) {
    constexpr int kInWord = 4 / static_cast<int>(sizeof(T));
    const auto source = [](int at) {  // of element `at` of the result
        return kBack ? at % kColumns * kChannels + at / kColumns : at % kChannels * kColumns + at / kChannels;
    };
#pragma unroll
    for (int k = 0; k < kColumns; ++k) {
#pragma unroll
        for (int w = 0; w < kChannels / kInWord; ++w) {
            const int at = k * kChannels + w * kInWord;
            const uint32_t first = element<T, kChannels>(from, source(at));
            const uint32_t second = kInWord == 2 ? element<T, kChannels>(from, source(at + 1)) << 16 : 0;
            set_word(to[k], w, first | second);
        }
    }
}

// x as the state keeps it: the same bits, or f32.
template <typename S, typename T>
HIPCONV_INLINE Words<S, kChannels> as_history(Words<T, kChannels> x) {
    if constexpr (std::is_same_v<S, T>) {
        return x;
    } else {
        Words<S, kChannels> wide{};
#pragma unroll
        for (int j = 0; j < kChannels / 2; ++j) set_pair<S>(wide, j, pair_of<T>(x, j));
        return wide;
    }
}

// kCount consecutive parameters of a type known only at run time. Parameters as wide as T, x's type, are asked for
// early and looked at later; others, which few models have, are fetched where they are used, and take no registers until then.
// With kSameWidth, there are no others.
template <typename T, int kCount, bool kSameWidth>
struct Parameters {
    static constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
    static constexpr int kEach = kBytes % 16 == 0 ? 16 : kBytes % 8 == 0 ? 8 : 4, kVectors = kBytes / kEach;
    using Vector = typename WordsOf<kEach>::type;
    Vector loaded[kVectors];

    HIPCONV_INLINE void load(const void* base, int32_t first, DType dtype) {
        if (!kSameWidth && (dtype == DType::f32) != (sizeof(T) == 4)) return;
        const Vector* from = reinterpret_cast<const Vector*>(static_cast<const T*>(base) + first);
#pragma unroll
        for (int k = 0; k < kVectors; ++k) loaded[k] = from[k];
    }

    // Calls use with value(i), parameter i as a float.
    template <typename Use>
    HIPCONV_INLINE void with(const void* base, int32_t first, DType dtype, Use use) const {
        const auto with_type = [&](auto type) {
            using P = decltype(type);
            if constexpr (sizeof(P) == sizeof(T)) {
                use([&](int i) {
                    const float v = to_float(from_bits<P>(element<P, kEach / static_cast<int>(sizeof(P))>(loaded, i)));
                    return sizeof(P) == 4 ? canonical_nan(v) : v;
                });
            } else {
                float values[kCount];
                load_packed(static_cast<const P*>(base) + first, values);
                use([&](int i) { return values[i]; });
            }
        };
        if constexpr (!kSameWidth)
            with_dtype(dtype, with_type);
        else if constexpr (sizeof(T) == 4)
            with_type(float{});
        else
            dtype == DType::f16 ? with_type(f16{}) : with_type(bf16{});
    }
};

// Weight and bias of a lane's channels, of which there are kOwn.
template <typename T, int kWidth, int kOwn = kChannels, bool kSameWidth = false>
struct ChannelParameters {
    static constexpr int kPairs = kOwn / 2;
    Parameters<T, kOwn * kWidth, kSameWidth> weight_words;
    Parameters<T, kOwn, kSameWidth> bias_words;
    Pair weight[kWidth][kPairs], bias[kPairs];

    template <typename P>
    HIPCONV_INLINE void load(const P& p, int32_t d) {
        weight_words.load(p.weight.template as<const void>(), d * kWidth, p.weight_dtype);
        if (p.bias) bias_words.load(p.bias.template as<const void>(), d, p.bias_dtype);
    }

    template <typename P>
    HIPCONV_INLINE void convert(const P& p, int32_t d) {
        weight_words.with(p.weight.template as<const void>(), d * kWidth, p.weight_dtype, [&](auto value) {
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
#pragma unroll
                for (int j = 0; j < kPairs; ++j)
                    weight[i][j] = make_pair(value(2 * j * kWidth + i), value((2 * j + 1) * kWidth + i));
            }
        });
#pragma unroll
        for (int j = 0; j < kPairs; ++j) bias[j] = twice(0.0f);
        if (p.bias) {
            bias_words.with(p.bias.template as<const void>(), d, p.bias_dtype, [&](auto value) {
#pragma unroll
                for (int j = 0; j < kPairs; ++j) bias[j] = make_pair(value(2 * j), value(2 * j + 1));
            });
        }
    }

    // The output of a token; window(i, j) is column i of the window before it, oldest first, of pair j of the channels.
    // kSelect: the activation is chosen without a branch.
    template <bool kSelect = false, typename Window>
    HIPCONV_INLINE Words<T, kOwn> convolve(Window window, Words<T, kOwn> token, bool use_silu) const {
        Words<T, kOwn> result{};
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
            Pair sum = bias[j];
#pragma unroll
            for (int i = 0; i < kWidth - 1; ++i) sum = multiply_add(weight[i][j], window(i, j), sum);
            sum = multiply_add(weight[kWidth - 1][j], pair_of<T>(token, j), sum);
            if constexpr (kSelect) {
                const Pair activated = silu(sum);
                set_pair<T>(result, j, make_pair(use_silu ? low(activated) : low(sum), use_silu ? high(activated) : high(sum)));
            } else {
                set_pair<T>(result, j, use_silu ? silu(sum) : sum);
            }
        }
        return result;
    }
};

// Says where a strip's vector is in LDS, for lanes that are kColumns vectors apart: an even number needs a gap every 128 bytes,
// so that neighbouring lanes use different banks.
template <typename Vector, int kColumns>
HIPCONV_INLINE int staged(int vector) {
    return kColumns > 0 && kColumns % 2 == 1 ? vector : vector + vector / (128 / static_cast<int>(sizeof(Vector)));
}

// ---- a kernel's parameters: few, because those of a small call take as long to fetch as its tensors -------------------------

// Integers as 32-bit words: one, or (wide) two, a row; null for none.
struct IndexWords {
    Address data;
    int32_t step;
    bool wide;

    struct Value {
        uint32_t low, high;  // the latter is zero of an integer of 32 bits
    };
    HIPCONV_INLINE Value load(int64_t row) const {  // waits for nothing
        const uint32_t* words = data.as<const uint32_t>() + row * step;
        Value value{words[0], 0};
        if (wide) value.high = words[1];
        return value;
    }
    HIPCONV_INLINE int64_t integer(Value value) const {
        const int32_t low = static_cast<int32_t>(value.low);
        const int32_t high = wide ? static_cast<int32_t>(value.high) : low >> 31;
        return static_cast<int64_t>(static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | value.low);
    }
};

struct VectorParams {
    Address x, out, state, weight, bias;
    IndexWords slot_of_row;
    int64_t x_row_stride, out_row_stride, slot_stride, column_stride;
    int32_t dim;
    uint32_t slots, pad_slot_word;  // the latter is no slot where none is padding
    DType weight_dtype, bias_dtype;
    bool fork, split, use_silu, zero_padding;

    // Several tokens a row.
    bool x_in_fours, out_in_fours;  // whether vectors are of four tokens of a channel
    IndexWords query_start_loc, num_accepted_tokens;
    int64_t x_token_stride, out_token_stride, x_dim_stride, out_dim_stride;
    int32_t batch, seqlen, total_tokens, state_len;

    // A fork, and a split.
    Indices write_slots, read_slots, write_columns, read_columns;
    int64_t pad_slot;
    bool has_pad_slot;
    Tokens outs[kMaxOutputs];
    int32_t out_end[kMaxOutputs];
};

// The places where a row's window is read and written.
struct Slots {
    bool live;  // or else padding
    uint32_t read, write;
};

HIPCONV_INLINE Slots slots_of_row(const VectorParams& p, int64_t b, IndexWords::Value found) {
    if (__builtin_expect(p.fork, 0)) {
        const int64_t write = load_slot(p.write_slots, p.write_columns, b);
        const int64_t read = load_slot(p.read_slots, p.read_columns, b);
        return {is_in_pool(p, p.write_slots, write) && is_in_pool(p, p.read_slots, read), static_cast<uint32_t>(read),
                static_cast<uint32_t>(write)};
    }
    return {found.high == 0 && found.low < p.slots && found.low != p.pad_slot_word, found.low, found.low};
}

// The output of a channel's token where there are several outputs.
template <typename T>
HIPCONV_INLINE T* split_out_at(const VectorParams& p, int64_t b, int64_t d, int64_t t) {
    const int part = output_of_channel(p, d);
    const Tokens& out = part == 0 ? p.outs[0] : part == 1 ? p.outs[1] : p.outs[2];
    return token_at<T>(out, b, part == 0 ? d : d - (part == 1 ? p.out_end[0] : p.out_end[1]), t);
}

// ---- what the kernels serve -----------------------------------------------------------------------------------------------

inline bool is_aligned(Address data, int bytes) { return data.bits % static_cast<unsigned>(bytes) == 0; }

inline bool in_words(const Indices& indices) { return indices.row_stride < (1 << 30) && indices.row_stride > -(1 << 30); }

// Neighbouring channels in vectors.
inline bool in_vectors(const CausalConv1dUpdateParams& p, const Tokens& tokens) {
    return tokens.dim_stride == 1 && is_aligned(tokens.data, kChannels * element_bytes(p.dtype)) &&
           tokens.row_stride % kChannels == 0 && tokens.token_stride % kChannels == 0;
}

inline bool outputs_in_vectors(const CausalConv1dUpdateParams& p) {
    for (int part = 0, begin = 0; begin < p.dim; begin = p.out_end[part++])
        if (!in_vectors(p, p.out[part]) || p.out_end[part] % kChannels != 0) return false;
    return true;
}

// Tells whether channels, parameters and state come in vectors, and the feature is one that vectors serve: the caller has yet
// to check x and out.
inline bool channels_in_vectors(const CausalConv1dUpdateParams& p) {
    if (p.batch > kMostRows || p.dim > kMostStrips * kFewestLanes * kChannels || p.dim % kChannels != 0) return false;
    if (p.state_dtype != p.dtype && p.state_dtype != DType::f32) return false;
    if (p.tree_child.data || p.cache_seqlens.data || p.intermediate) return false;
    if (!in_words(p.write_slots) || !in_words(p.query_start_loc) || !in_words(p.num_accepted_tokens)) return false;
    const int weight_bytes = kChannels * p.width * element_bytes(p.weight_dtype);
    if (p.weight_width_stride != 1 || p.weight_dim_stride != p.width) return false;
    if (!is_aligned(p.weight, weight_bytes % 16 == 0 ? 16 : 8)) return false;
    if (p.bias && (p.bias_stride != 1 || !is_aligned(p.bias, kChannels * element_bytes(p.bias_dtype)))) return false;
    if (p.width == 1) return true;  // there is no state
    if (!is_aligned(p.state, kChannels * element_bytes(p.state_dtype)) || p.slot_stride % kChannels != 0) return false;
    if (p.state_dim_stride == 1) return p.history == p.width - 1 && (p.state_len == 1 || p.column_stride % kChannels == 0);
    return p.column_stride == 1 && p.state_dim_stride == p.state_len;
}

// Tells the same of pairs of channels, x and the outputs included. A packed slot has no more columns than the window, and
// vectors of those of a pair.
inline bool channels_in_pairs(const CausalConv1dUpdateParams& p) {
    if (p.tree_child.data || p.cache_seqlens.data || p.intermediate || p.state_dtype != p.dtype || p.width < 2) return false;
    if (p.dim % 2 != 0 || p.batch > kMostRows || p.dim > kMostStrips * kPairLanes || p.history != p.width - 1) return false;
    if (!in_words(p.write_slots) || !in_words(p.query_start_loc) || !in_words(p.num_accepted_tokens)) return false;
    if (p.weight_width_stride != 1 || p.weight_dim_stride != p.width || !is_aligned(p.weight, 16)) return false;
    if (p.bias && (p.bias_stride != 1 || !is_aligned(p.bias, 8))) return false;
    const int bytes = element_bytes(p.dtype);
    const auto in_pairs = [&](const Tokens& tokens) {
        return tokens.dim_stride == 1 && is_aligned(tokens.data, 2 * bytes) && tokens.row_stride % 2 == 0 &&
               (has_one_token(p) || tokens.token_stride % 2 == 0);
    };
    if (!in_pairs(p.x)) return false;
    for (int part = 0, begin = 0; begin < p.dim; begin = p.out_end[part++])
        if (!in_pairs(p.out[part]) || p.out_end[part] % 2 != 0) return false;
    // Elements of a packed slot that move together.
    const int vector = p.state_dim_stride == 1 || p.width % 2 == 0 ? 2 : p.width == 5 ? 16 / bytes : kChannels;
    if (!is_aligned(p.state, vector * bytes) || p.slot_stride % vector != 0) return false;
    if (p.state_dim_stride == 1) return p.state_len == 1 || p.column_stride % 2 == 0;
    return p.column_stride == 1 && p.state_dim_stride == p.state_len && p.state_len == p.width - 1;
}

// Tells whether a packed slot has as many columns as the window, or one more: then each lane has all columns that move in
// registers. The slot is written whole: a fork would overwrite a column at rest.
inline bool columns_in_registers(const CausalConv1dUpdateParams& p) {
    return !p.num_accepted_tokens.data && p.state_len <= p.width && (p.history == p.state_len || !p.fork);
}

// Neighbouring tokens in vectors, as in a contiguous (batch, dim, seqlen).
inline bool in_fours(const CausalConv1dUpdateParams& p, const Tokens& tokens) {
    return tokens.token_stride == 1 && is_aligned(tokens.data, 4 * element_bytes(p.dtype)) && tokens.row_stride % 4 == 0 &&
           tokens.dim_stride % 4 == 0 && p.seqlen % 4 == 0 && !p.query_start_loc.data;
}

// ---- launches -------------------------------------------------------------------------------------------------------------

// Tells whether rows in pairs of channels take so long that a card's memory is the limit.
inline bool many_pairs(const CausalConv1dUpdateParams& p) { return int64_t{p.batch} * p.dim >= 1 << 19; }

// Blocks of some rows in pairs of channels.
struct PairGrid {
    dim3 blocks, block;
};
inline PairGrid pair_grid(const CausalConv1dUpdateParams& p) {
    constexpr int64_t kFewBlocks = 1024;
    const int64_t pairs = p.dim / 2, strips = ceil_of(pairs, kPairLanes / 2), lanes = ceil_of(pairs, strips);
    int64_t rows = kPairLanes / lanes;
    while (rows > 1 && p.batch * strips < kFewBlocks * rows) --rows;  // few rows are for the whole card
    return {dim3(static_cast<unsigned>(ceil_of(p.batch, rows)), static_cast<unsigned>(strips), 1),
            dim3(static_cast<unsigned>(lanes), static_cast<unsigned>(rows), 1)};
}

inline VectorParams vector_params(const CausalConv1dUpdateParams& p) {
    const auto words = [](const Indices& indices) {
        return IndexWords{indices.data, static_cast<int32_t>(indices.row_stride * (indices.wide ? 2 : 1)), indices.wide};
    };
    const bool pads = p.write_slots.data && p.has_pad_slot && p.pad_slot >= 0 && p.pad_slot < p.slots;
    VectorParams v{};
    v.x = p.x.data;
    v.out = p.out[0].data;
    v.state = p.state;
    v.weight = p.weight;
    v.bias = p.bias;
    v.slot_of_row = words(p.write_slots);
    v.x_row_stride = p.x.row_stride;
    v.out_row_stride = p.out[0].row_stride;
    v.slot_stride = p.slot_stride;
    v.column_stride = p.column_stride;
    v.dim = p.dim;
    v.slots = static_cast<uint32_t>(p.slots);
    v.pad_slot_word = pads ? static_cast<uint32_t>(p.pad_slot) : ~0u;
    v.weight_dtype = p.weight_dtype;
    v.bias_dtype = p.bias_dtype;
    v.fork = p.fork;
    v.split = p.out_end[0] != p.dim;
    v.use_silu = p.use_silu;
    v.zero_padding = p.zero_padding;

    v.x_in_fours = in_fours(p, p.x);
    v.out_in_fours = !v.split && in_fours(p, p.out[0]);
    v.query_start_loc = words(p.query_start_loc);
    v.num_accepted_tokens = words(p.num_accepted_tokens);
    v.x_token_stride = p.x.token_stride;
    v.out_token_stride = p.out[0].token_stride;
    v.x_dim_stride = p.x.dim_stride;
    v.out_dim_stride = p.out[0].dim_stride;
    v.batch = p.batch;
    v.seqlen = p.seqlen;
    v.total_tokens = p.total_tokens;
    v.state_len = p.state_len;

    v.write_slots = p.write_slots;
    v.read_slots = p.read_slots;
    v.write_columns = p.write_columns;
    v.read_columns = p.read_columns;
    v.pad_slot = p.pad_slot;
    v.has_pad_slot = p.has_pad_slot;
    for (int part = 0; part < kMaxOutputs; ++part) {
        v.outs[part] = p.out[part];
        v.out_end[part] = p.out_end[part];
    }
    return v;
}

}  // namespace hipconv
