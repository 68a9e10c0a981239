// Causal conv1d decode in vectors of channels ("vector"): a lane owns kChannels neighbouring channels of one row.
//
// The time of a decode step is two waits for memory, first for the row's indices and then for its state, and the bytes. So a lane
// asks for everything that it can before it looks at any of it: indices, tokens, parameters, all columns of the state. One token
// a row, which is what decoding mostly is, has a kernel of its own, with half the registers and twice the lanes on a card.
//
// A block is a strip of neighbouring channels of one row; the blocks that run side by side take the same strip of many rows, whose
// parameters they then find in the first cache. Where channels are neighbours in memory (conv_state as (slots, columns, dim)), a
// lane moves its own vectors. Where a slot is packed channel by channel ((slots, dim, columns)), a lane's columns are no vectors,
// but the strip is contiguous: it moves through LDS in whole vectors. Of as many columns as the window has, or one more, a lane
// transposes its part in registers; of any other number, as speculative decoding has them, it picks elements in LDS.
//
// A lane reads its window before it writes, and each token before its output, so x and out may be one tensor.
#include <hip/hip_runtime.h>

#include "causal_conv1d_parts.h"
#include "causal_conv1d_update_launchers.h"
#include "causal_conv1d_update_row.h"
#include "check.h"
#include "elements.h"

namespace hipconv {

constexpr int kVectorLanes = 128;
constexpr int kChannels = 4;        // of a lane: 8 bytes of 16-bit elements, 16 of f32
constexpr int kStagedBytes = 8192;  // in LDS, of any number of columns: with many, lanes are fewer
constexpr int kTokensAhead = 4;     // that a lane asks for at once, where there are several
constexpr int kOwnVectors = 0, kAnyColumns = -1;  // a lane's columns are vectors; or the number of columns a slot is packed by
constexpr int kCommonWidth = 4;     // what models have: other widths have no kernel for packed columns, nor one for one token
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

// kCount consecutive parameters of a type known only at run time: loaded first, looked at later.
template <int kCount>
struct Parameters {
    static constexpr int kEach = kCount * 2 % 16 == 0 ? 16 : 8, kVectors = kCount * 2 / kEach;
    using Vector = typename WordsOf<kEach>::type;
    Vector loaded[2 * kVectors];  // the second half in f32 only

    HIPCONV_INLINE void load(const void* base, int64_t first, DType dtype) {
        const bool wide = dtype == DType::f32;
        const Vector* from = reinterpret_cast<const Vector*>(static_cast<const uint16_t*>(base) + (wide ? 2 * first : first));
#pragma unroll
        for (int k = 0; k < kVectors; ++k) loaded[k] = from[k];
        if (wide) {
#pragma unroll
            for (int k = kVectors; k < 2 * kVectors; ++k) loaded[k] = from[k];
        }
    }

    // Calls use with value(i), parameter i as a float.
    template <typename Use>
    HIPCONV_INLINE void with(DType dtype, Use use) const {
        with_dtype(dtype, [&](auto type) {
            using P = decltype(type);
            use([&](int i) {
                const float v = to_float(from_bits<P>(element<P, kEach / static_cast<int>(sizeof(P))>(loaded, i)));
                return sizeof(P) == 4 ? canonical_nan(v) : v;
            });
        });
    }
};

// Where a strip's vector is in LDS, of lanes that are kColumns vectors apart: an even number needs a gap every 128 bytes, so that
// neighbouring lanes use different banks.
template <typename Vector, int kColumns>
HIPCONV_INLINE int staged(int vector) {
    return kColumns > 0 && kColumns % 2 == 1 ? vector : vector + vector / (128 / static_cast<int>(sizeof(Vector)));
}

// ---- the kernel ---------------------------------------------------------------------------------------------------------

// `x_in_fours`, `out_in_fours`: four tokens of a channel are a vector, in a tensor of kTokensAhead tokens a row or a multiple.
template <typename T, typename S, int kWidth, int kColumns, bool kOneToken>
__global__ void HIPCONV_LAUNCH_BOUNDS(kVectorLanes, kOneToken ? (sizeof(S) == 2 ? 8 : 6) : sizeof(S) == 2 ? 5 : 4)
    causal_conv1d_update_vectors(CausalConv1dUpdateParams params, bool x_in_fours, bool out_in_fours) {
    const CausalConv1dUpdateParams& p = first_parameter(params);
    constexpr int kPairs = kChannels / 2, kPast = kWidth - 1, kAhead = kOneToken ? 1 : kTokensAhead;
    using Vector = Words<T, kChannels>;
    using History = Words<S, kChannels>;
    constexpr int kStage = kColumns == kAnyColumns ? kStagedBytes / static_cast<int>(sizeof(History)) : kVectorLanes * kColumns;
    HIPCONV_SHARED(History, stage, kColumns ? kStage + kStage * static_cast<int>(sizeof(History)) / 128 : 1);

    const int64_t b = blockIdx.x;
    const int lane = static_cast<int>(threadIdx.x), lanes = static_cast<int>(blockDim.x);
    const int32_t strip_d = static_cast<int32_t>(blockIdx.y) * lanes * kChannels;
    const int rest = (p.dim - strip_d) / kChannels;
    const int strip = rest < lanes ? rest : lanes;  // vectors
    const bool active = lane < strip;  // the other lanes move strips and repeat the last lane's work
    const int own = active ? lane : strip - 1;
    const int32_t d = strip_d + own * kChannels;

    const RowIndices indices = indices_of_row(p, b);
    Parameters<kChannels * kWidth> weight_words;
    Parameters<kChannels> bias_words;
    weight_words.load(p.weight.as<void>(), int64_t{d} * kWidth, p.weight_dtype);
    if (p.bias) bias_words.load(p.bias.as<void>(), d, p.bias_dtype);

    const RowTokens tokens = kOneToken ? RowTokens{0, 1} : tokens_of_row(p, indices);
    const T* x = token_at<T>(p.x, b, d, tokens.first);
    Vector ahead[kAhead];
    const auto load_ahead = [&](int first) {
        if (!kOneToken && x_in_fours) {
#pragma unroll
            for (int j = 0; j < kAhead; ++j) ahead[j] = *reinterpret_cast<const Vector*>(x + j * p.x.dim_stride + first);
            return;
        }
#pragma unroll
        for (int j = 0; j < kAhead; ++j)
            if (first + j < tokens.count) ahead[j] = *reinterpret_cast<const Vector*>(x + (first + j) * p.x.token_stride);
    };
    load_ahead(0);

    const RowState row = state_of_row(p, indices, tokens.count);
    const bool speculative = !kOneToken && p.num_accepted_tokens.data;
    History ring[kPast], loaded[kColumns > 0 ? kColumns : 1], dropped{};
    if (row.live && tokens.count > 0) {
        if constexpr (kColumns == kOwnVectors) {
            const S* from = state_at<S>(p, row.read_slot, d, row.first_column);
#pragma unroll
            for (int i = 0; i < kPast; ++i) ring[i] = *reinterpret_cast<const History*>(from + i * p.column_stride);
        } else {
            const History* slot = reinterpret_cast<const History*>(state_at<S>(p, row.read_slot, strip_d, 0));
            if constexpr (kColumns > 0) {
#pragma unroll
                for (int k = 0; k < kColumns; ++k)
                    if (k * lanes + lane < strip * kColumns) loaded[k] = slot[k * lanes + lane];
            } else {
                for (int begin = lane; begin < strip * p.state_len; begin += 4 * lanes) {
                    History some[4];
#pragma unroll
                    for (int k = 0; k < 4; ++k)
                        if (begin + k * lanes < strip * p.state_len) some[k] = slot[begin + k * lanes];
#pragma unroll
                    for (int k = 0; k < 4; ++k)
                        if (begin + k * lanes < strip * p.state_len) stage[staged<History, kColumns>(begin + k * lanes)] = some[k];
                }
            }
        }
    }

    const int part = output_of_channel(p, d);
    const int64_t out_step = part == 0 ? p.out[0].token_stride : part == 1 ? p.out[1].token_stride : p.out[2].token_stride;
    T* const out = out_at<T>(p, b, d, tokens.first);
    const auto store = [&](int t, Vector value) {
        if (active) *reinterpret_cast<Vector*>(out + t * out_step) = value;
    };
    const auto store_four_tokens = [&](int first, const Vector* of_channel) {
#pragma unroll
        for (int c = 0; c < kChannels; ++c)
            if (active) *reinterpret_cast<Vector*>(out + c * p.out[0].dim_stride + first) = of_channel[c];
    };
    if (!kOneToken && active)
        zero_rest(p, indices, b, [&](int64_t t) { *reinterpret_cast<Vector*>(out_at<T>(p, 0, d, t)) = Vector{}; });
    if (!row.live || tokens.count == 0) {
        if (!p.zero_padding) return;
        const Vector zeros[kChannels] = {};
        if (!kOneToken && out_in_fours)
            for (int t = 0; t < tokens.count; t += kAhead) store_four_tokens(t, zeros);
        else
            for (int t = 0; t < tokens.count; ++t) store(t, zeros[0]);
        return;
    }

    Pair weight[kWidth][kPairs], bias[kPairs];
    weight_words.with(p.weight_dtype, [&](auto value) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
#pragma unroll
            for (int j = 0; j < kPairs; ++j) weight[i][j] = make_pair(value(2 * j * kWidth + i), value((2 * j + 1) * kWidth + i));
        }
    });
#pragma unroll
    for (int j = 0; j < kPairs; ++j) bias[j] = twice(0.0f);
    if (p.bias) {
        bias_words.with(p.bias_dtype, [&](auto value) {
#pragma unroll
            for (int j = 0; j < kPairs; ++j) bias[j] = make_pair(value(2 * j), value(2 * j + 1));
        });
    }


    // The window, oldest first. Packed columns may have one more: before the window, moving with it, or after it, at rest.
    History packed[kColumns > 0 ? kColumns : 1];
    const bool spare_before = kColumns > kPast && p.history > kPast;
    const auto element_of = [&](int c, int column) {  // of the strip, where it has any number of columns
        const int at = (own * kChannels + c) * p.state_len + column;
        return reinterpret_cast<S*>(stage) + (staged<History, kColumns>(at / kChannels) * kChannels + at % kChannels);
    };
    const auto put = [&](int column, History value) {
        if (!active) return;
        if constexpr (kColumns == kAnyColumns) {
#pragma unroll
            for (int c = 0; c < kChannels; ++c) *element_of(c, column) = from_bits<S>(element<S, kChannels>(&value, c));
        } else if constexpr (kColumns == kOwnVectors) {
            *reinterpret_cast<History*>(state_at<S>(p, row.write_slot, d, column)) = value;
        }
    };
    if constexpr (kColumns == kAnyColumns) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            S column[kChannels];
#pragma unroll
            for (int c = 0; c < kChannels; ++c) column[c] = *element_of(c, row.first_column + i);
            ring[i] = join<S>(column);
        }
    } else if constexpr (kColumns != kOwnVectors) {
#pragma unroll
        for (int k = 0; k < kColumns; ++k)
            if (k * lanes + lane < strip * kColumns) stage[staged<History, kColumns>(k * lanes + lane)] = loaded[k];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < kColumns; ++k) loaded[k] = stage[staged<History, kColumns>(own * kColumns + k)];
        transpose<S, kColumns, false>(packed, loaded);
#pragma unroll
        for (int i = 0; i < kPast; ++i) ring[i] = spare_before ? packed[i + (kColumns > kPast)] : packed[i];
    }

    if (kColumns <= 0 && speculative) {
#pragma unroll
        for (int i = 0; i < kPast - 1; ++i) put(i, ring[i + 1]);
    }
    const auto convolve = [&](Vector token) {
        Vector result{};
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
            Pair sum = bias[j];
#pragma unroll
            for (int i = 0; i < kPast; ++i) sum = multiply_add(weight[i][j], pair_of<S>(ring[i], j), sum);
            sum = multiply_add(weight[kPast][j], pair_of<T>(token, j), sum);
            set_pair<T>(result, j, p.use_silu ? silu(sum) : sum);
        }
        dropped = ring[0];
#pragma unroll
        for (int i = 0; i < kPast - 1; ++i) ring[i] = ring[i + 1];
        ring[kPast - 1] = as_history<S, T>(token);
        return result;
    };
    if constexpr (kOneToken) {
        store(0, convolve(ahead[0]));
    } else {
        for (int first = 0; first < tokens.count; first += kAhead) {
            if (first > 0) load_ahead(first);
            Vector results[kAhead];
            if (x_in_fours) {
                transpose<T, kAhead, false>(results, ahead);
#pragma unroll
                for (int t = 0; t < kAhead; ++t) ahead[t] = results[t];
            }
#pragma unroll
            for (int t = 0; t < kAhead; ++t) {
                if (first + t >= tokens.count) break;
                results[t] = convolve(ahead[t]);
                if (!out_in_fours) store(first + t, results[t]);
                if (kColumns <= 0 && speculative) put(kPast - 1 + first + t, ring[kPast - 1]);
            }
            if (out_in_fours) {
                transpose<T, kAhead, true>(ahead, results);
                store_four_tokens(first, ahead);
            }
        }
    }

    if constexpr (kColumns <= 0) {
        if (!speculative) {
#pragma unroll
            for (int i = 0; i < kPast; ++i) put(i, ring[i]);
        }
    }
    if constexpr (kColumns == kAnyColumns) {
        __syncthreads();
        const int columns = speculative ? kPast - 1 + tokens.count : kPast;
        if (row.read_slot == row.write_slot || columns == p.state_len) {
            History* slot = reinterpret_cast<History*>(state_at<S>(p, row.write_slot, strip_d, 0));
            for (int at = lane; at < strip * p.state_len; at += lanes) slot[at] = stage[staged<History, kColumns>(at)];
        } else if (active) {  // a fork: the other columns of the slot written are not the row's
            for (int c = 0; c < kChannels; ++c)
                for (int i = 0; i < columns; ++i) *state_at<S>(p, row.write_slot, d + c, i) = *element_of(c, i);
        }
    } else if constexpr (kColumns > 0) {
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
            if (spare_before)
                packed[i] = i == 0 ? dropped : ring[i - (kColumns > kPast)];
            else if (i < kPast)
                packed[i] = ring[i];
        }
        transpose<S, kColumns, true>(loaded, packed);
#pragma unroll
        for (int k = 0; k < kColumns; ++k)
            if (active) stage[staged<History, kColumns>(lane * kColumns + k)] = loaded[k];
        __syncthreads();
        History* slot = reinterpret_cast<History*>(state_at<S>(p, row.write_slot, strip_d, 0));
#pragma unroll
        for (int k = 0; k < kColumns; ++k)
            if (k * lanes + lane < strip * kColumns) slot[k * lanes + lane] = stage[staged<History, kColumns>(k * lanes + lane)];
    }
}

namespace {

// Whether packed columns are few and fixed. The slot is written whole: a fork would overwrite a column at rest.
bool transposes(const CausalConv1dUpdateParams& p) {
    return !p.num_accepted_tokens.data && p.state_len <= p.width && (p.history == p.state_len || !p.fork);
}

bool one_token(const CausalConv1dUpdateParams& p) {
    return p.seqlen == 1 && !p.query_start_loc.data && !p.num_accepted_tokens.data;
}

bool aligned(Address data, int bytes) { return data.bits % static_cast<unsigned>(bytes) == 0; }

// Neighbouring channels in vectors.
bool in_vectors(const CausalConv1dUpdateParams& p, const Tokens& tokens) {
    return tokens.dim_stride == 1 && aligned(tokens.data, kChannels * element_bytes(p.dtype)) &&
           tokens.row_stride % kChannels == 0 && tokens.token_stride % kChannels == 0;
}

// Neighbouring tokens in vectors, as in a contiguous (batch, dim, seqlen).
bool in_fours(const CausalConv1dUpdateParams& p, const Tokens& tokens) {
    return tokens.token_stride == 1 && aligned(tokens.data, kTokensAhead * element_bytes(p.dtype)) &&
           tokens.row_stride % kTokensAhead == 0 && tokens.dim_stride % kTokensAhead == 0 && p.seqlen % kTokensAhead == 0 &&
           !p.query_start_loc.data;
}

template <typename T, typename S, int kWidth, int kColumns, bool kOneToken>
void launch(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    const int64_t vectors = p.dim / kChannels;
    unsigned lanes = kVectorLanes;
    while (kColumns == kAnyColumns && lanes * p.state_len * sizeof(Words<S, kChannels>) > kStagedBytes) lanes /= 2;
    while (lanes > 64 && p.batch * ((vectors + lanes - 1) / lanes) < 264) lanes /= 2;  // few rows: more blocks
    lanes = power_of_two_up_to(vectors, lanes);
    const dim3 grid(static_cast<unsigned>(p.batch), blocks_up_to(vectors, lanes, kMostStrips), 1);
    hipLaunchKernelGGL((causal_conv1d_update_vectors<T, S, kWidth, kColumns, kOneToken>), grid, dim3(lanes, 1, 1), 0, stream, p,
                       in_fours(p, p.x), p.out_end[0] == p.dim && in_fours(p, p.out[0]));
    check_launch("causal_conv1d_update");
}

template <typename T, typename S, int kWidth, int kColumns>
void with_tokens(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    if constexpr (kWidth == kCommonWidth && kColumns != kAnyColumns) {
        if (one_token(p)) return launch<T, S, kWidth, kColumns, true>(p, stream);
    }
    launch<T, S, kWidth, kColumns, false>(p, stream);
}

template <typename T, typename S, int kWidth>
void with_columns(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    if (p.state_dim_stride == 1) return with_tokens<T, S, kWidth, kOwnVectors>(p, stream);
    if constexpr (std::is_same_v<T, S> && kWidth == kCommonWidth)
        !transposes(p)          ? with_tokens<T, S, kWidth, kAnyColumns>(p, stream)
        : p.state_len == kWidth ? with_tokens<T, S, kWidth, kWidth>(p, stream)
                                : with_tokens<T, S, kWidth, kWidth - 1>(p, stream);
}

template <typename T, typename S>
void with_width(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    switch (p.width) {
        case 2:
            return with_columns<T, S, 2>(p, stream);
        case 3:
            return with_columns<T, S, 3>(p, stream);
        case 4:
            return with_columns<T, S, 4>(p, stream);
    }
}

template <typename T>
void with_state_dtype(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    p.state_dtype == p.dtype ? with_width<T, T>(p, stream) : with_width<T, float>(p, stream);
}

}  // namespace

bool causal_conv1d_update_vector_serves(const CausalConv1dUpdateParams& p) {
    const int state_bytes = kChannels * element_bytes(p.state_dtype);
    if (p.batch > kMostRows || p.dim > kMostStrips * kFewestLanes * kChannels) return false;
    if (p.width < 2 || p.width > 4 || p.dim % kChannels != 0) return false;
    if (p.state_dtype != p.dtype && p.state_dtype != DType::f32) return false;
    if (p.tree_child.data || p.cache_seqlens.data || p.intermediate) return false;
    if (!in_vectors(p, p.x) && !in_fours(p, p.x)) return false;
    if (p.out_end[0] != p.dim || !in_fours(p, p.out[0])) {
        for (int part = 0, begin = 0; begin < p.dim; begin = p.out_end[part++])
            if (!in_vectors(p, p.out[part]) || p.out_end[part] % kChannels != 0) return false;
    }

    const int weight_bytes = kChannels * p.width * element_bytes(p.weight_dtype);
    if (p.weight_width_stride != 1 || p.weight_dim_stride != p.width) return false;
    if (!aligned(p.weight, weight_bytes % 16 == 0 ? 16 : 8)) return false;
    const int bias_bytes = kChannels * element_bytes(p.bias_dtype);
    if (p.bias && (p.bias_stride != 1 || !aligned(p.bias, bias_bytes))) return false;

    if (!aligned(p.state, state_bytes) || p.slot_stride % kChannels != 0) return false;
    const bool alone = p.history == p.width - 1;
    if (p.state_dim_stride == 1) return alone && p.column_stride % kChannels == 0;
    return p.width == kCommonWidth && p.column_stride == 1 && p.state_dim_stride == p.state_len && p.state_dtype == p.dtype &&
           (transposes(p) || (alone && kFewestLanes * p.state_len * state_bytes <= kStagedBytes));
}

void causal_conv1d_update_vector(const CausalConv1dUpdateParams& p, void* stream) {
    const hipStream_t hip_stream = static_cast<hipStream_t>(stream);
    switch (p.dtype) {
        case DType::f32:
            return with_state_dtype<float>(p, hip_stream);
        case DType::f16:
            return with_state_dtype<f16>(p, hip_stream);
        case DType::bf16:
            return with_state_dtype<bf16>(p, hip_stream);
    }
}

}  // namespace hipconv
