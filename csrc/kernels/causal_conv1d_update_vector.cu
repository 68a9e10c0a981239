// Causal conv1d decode in vectors of channels ("vector"): a lane owns kChannels neighbouring channels of one row.
//
// A block is a strip of neighbouring channels of one row. Where channels are neighbours in memory (conv_state as (slots, columns,
// dim)), a lane moves its own vectors. Where a slot is packed channel by channel ((slots, dim, columns)), a lane's columns are no
// vectors, but the strip is contiguous: it moves through LDS in whole vectors. Of as many columns as the window has, or one more,
// a lane transposes its part in registers; of any other number, as speculative decoding has them, it picks elements in LDS.
//
// Bytes: x and the window read once, out and the window written once, the parameters once a row from cache. A lane reads its
// window before it writes, and each token before its output, so x and out may be one tensor.
#include <hip/hip_runtime.h>

#include "causal_conv1d_parts.h"
#include "causal_conv1d_update_launchers.h"
#include "causal_conv1d_update_row.h"
#include "check.h"
#include "elements.h"

namespace hipconv {

constexpr int kVectorLanes = 128;
constexpr int kChannels = 4;         // of a lane: 8 bytes of 16-bit elements, 16 of f32
constexpr int kStagedBytes = 8192;   // in LDS, of any number of columns: with many, lanes are fewer
constexpr int kTokensAhead = 2;      // 4 would cost too many registers
constexpr int kOwnVectors = 0, kAnyColumns = -1;  // a lane's columns are vectors; or the number of columns a slot is packed by
constexpr int kPackedWidth = 4;      // the only width that packed columns are compiled for: models hardly have another

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

// kCount consecutive parameters, as floats through `value(i)`.
template <typename P, int kCount, typename Use>
HIPCONV_INLINE void with_parameters(const void* base, int64_t first, Use use) {
    constexpr int kBytes = kCount * static_cast<int>(sizeof(P)), kEach = kBytes % 16 == 0 ? 16 : 8;
    constexpr int kElements = kEach / static_cast<int>(sizeof(P));
    using Vector = Words<P, kElements>;
    Vector loaded[kBytes / kEach];
#pragma unroll
    for (int k = 0; k < kBytes / kEach; ++k) loaded[k] = reinterpret_cast<const Vector*>(static_cast<const P*>(base) + first)[k];
    use([&](int i) {
        const uint32_t bits = element<P, kElements>(loaded, i);
        const float v = to_float(from_bits<P>(bits));
        return sizeof(P) == 4 ? canonical_nan(v) : v;
    });
}

// Where a strip's vector is in LDS: padded by one every 128 bytes, so that lanes 32 or 64 bytes apart use different banks.
template <typename Vector>
HIPCONV_INLINE int staged(int vector) {
    return vector + vector / (128 / static_cast<int>(sizeof(Vector)));
}

// ---- the kernel ---------------------------------------------------------------------------------------------------------

template <typename T, typename S, int kWidth, int kColumns>
__global__ void HIPCONV_LAUNCH_BOUNDS(kVectorLanes, sizeof(S) == 4 ? 5 : 6)
    causal_conv1d_update_vectors(CausalConv1dUpdateParams params) {
    const CausalConv1dUpdateParams& p = first_parameter(params);
    constexpr int kPairs = kChannels / 2, kPast = kWidth - 1;
    using Vector = Words<T, kChannels>;
    using History = Words<S, kChannels>;
    constexpr int kStage = kColumns == kAnyColumns ? kStagedBytes / static_cast<int>(sizeof(History)) : kVectorLanes * kColumns;
    HIPCONV_SHARED(History, stage, kColumns ? kStage + kStage * static_cast<int>(sizeof(History)) / 128 : 1);

    const int lane = static_cast<int>(threadIdx.x), lanes = static_cast<int>(blockDim.x);
    const int64_t strip_d = static_cast<int64_t>(blockIdx.x) * lanes * kChannels;
    const int64_t rest = (p.dim - strip_d) / kChannels;
    const int strip = rest < lanes ? static_cast<int>(rest) : lanes;  // vectors
    const bool active = lane < strip;  // the other lanes move strips and repeat the last lane's work
    const int own = active ? lane : strip - 1;
    const int64_t d = strip_d + own * kChannels;

    const int64_t b = row_of_block(blockIdx.y, blockIdx.z);
    if (b >= p.batch) return;
    const RowTokens tokens = tokens_of_row(p, b);
    const T* x = token_at<T>(p.x, b, d, tokens.first);
    T* out = out_at<T>(p, b, d, tokens.first);
    const int part = output_of_channel(p, d);
    const int64_t x_step = p.x.token_stride;
    const int64_t out_step = part == 0 ? p.out[0].token_stride : part == 1 ? p.out[1].token_stride : p.out[2].token_stride;
    const auto store = [&](Vector value) {
        if (active) *reinterpret_cast<Vector*>(out) = value;
        out += out_step;
    };

    // The first tokens are on their way while the row's slot is looked up.
    Vector ahead[kTokensAhead];
    const auto load_ahead = [&](int left) {
#pragma unroll
        for (int j = 0; j < kTokensAhead; ++j) {
            if (j < left) ahead[j] = *reinterpret_cast<const Vector*>(x);
            x += x_step;
        }
    };
    load_ahead(tokens.count);

    if (p.zero_padding && p.query_start_loc.data && active) {
        // The rows share out the tokens past the last of them.
        const int64_t end = token_within(p, load_index(p.query_start_loc, p.batch));
        for (int64_t t = end + b; t < p.total_tokens; t += p.batch) *reinterpret_cast<Vector*>(out_at<T>(p, 0, d, t)) = Vector{};
    }
    if (tokens.count == 0) return;
    const RowState row = state_of_row(p, b, tokens.count);
    if (!row.live) {
        for (int t = 0; t < tokens.count && p.zero_padding; ++t) store(Vector{});
        return;
    }

    // The state is on its way while the parameters are fetched.
    const bool speculative(p.num_accepted_tokens.data);
    History ring[kPast], loaded[kColumns > 0 ? kColumns : 1], dropped{};
    if constexpr (kColumns == kOwnVectors) {
#pragma unroll
        for (int i = 0; i < kPast; ++i)
            ring[i] = *reinterpret_cast<const History*>(state_at<S>(p, row.read_slot, d, row.first_column + i));
    } else if constexpr (kColumns == kAnyColumns) {
        const History* slot = reinterpret_cast<const History*>(state_at<S>(p, row.read_slot, strip_d, 0));
        for (int begin = lane; begin < strip * p.state_len; begin += 4 * lanes) {
            History some[4];
#pragma unroll
            for (int k = 0; k < 4; ++k)
                if (begin + k * lanes < strip * p.state_len) some[k] = slot[begin + k * lanes];
#pragma unroll
            for (int k = 0; k < 4; ++k)
                if (begin + k * lanes < strip * p.state_len) stage[staged<History>(begin + k * lanes)] = some[k];
        }
    } else {
        const History* slot = reinterpret_cast<const History*>(state_at<S>(p, row.read_slot, strip_d, 0));
#pragma unroll
        for (int k = 0; k < kColumns; ++k)
            if (k * lanes + lane < strip * kColumns) loaded[k] = slot[k * lanes + lane];
    }

    Pair weight[kWidth][kPairs], bias[kPairs];
    with_dtype(p.weight_dtype, [&](auto type) {
        with_parameters<decltype(type), kChannels * kWidth>(p.weight.as<void>(), d * kWidth, [&](auto value) {
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
#pragma unroll
                for (int j = 0; j < kPairs; ++j)
                    weight[i][j] = make_pair(value(2 * j * kWidth + i), value((2 * j + 1) * kWidth + i));
            }
        });
    });
#pragma unroll
    for (int j = 0; j < kPairs; ++j) bias[j] = twice(0.0f);
    if (p.bias) {
        with_dtype(p.bias_dtype, [&](auto type) {
            with_parameters<decltype(type), kChannels>(p.bias.as<void>(), d, [&](auto value) {
#pragma unroll
                for (int j = 0; j < kPairs; ++j) bias[j] = make_pair(value(2 * j), value(2 * j + 1));
            });
        });
    }

    // The window, oldest first. Packed columns may have one more: before the window, moving with it, or after it, at rest.
    History packed[kColumns > 0 ? kColumns : 1];
    const bool spare_before = kColumns > kPast && p.history > kPast;
    const auto element_of = [&](int c, int column) {  // of the strip, where it has any number of columns
        const int at = (own * kChannels + c) * p.state_len + column;
        return reinterpret_cast<S*>(stage) + (staged<History>(at / kChannels) * kChannels + at % kChannels);
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
            if (k * lanes + lane < strip * kColumns) stage[staged<History>(k * lanes + lane)] = loaded[k];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < kColumns; ++k) loaded[k] = stage[staged<History>(own * kColumns + k)];
        transpose<S, kColumns, false>(packed, loaded);
#pragma unroll
        for (int i = 0; i < kPast; ++i) ring[i] = spare_before ? packed[i + (kColumns > kPast)] : packed[i];
    }

    if (kColumns <= 0 && speculative) {
#pragma unroll
        for (int i = 0; i < kPast - 1; ++i) put(i, ring[i + 1]);
    }
    for (int left = tokens.count; left > 0; left -= kTokensAhead) {
        if (left < tokens.count) load_ahead(left);
#pragma unroll
        for (int t = 0; t < kTokensAhead; ++t) {
            if (t >= left) break;
            Vector result{};
#pragma unroll
            for (int j = 0; j < kPairs; ++j) {
                Pair sum = bias[j];
#pragma unroll
                for (int i = 0; i < kPast; ++i) sum = multiply_add(weight[i][j], pair_of<S>(ring[i], j), sum);
                sum = multiply_add(weight[kPast][j], pair_of<T>(ahead[t], j), sum);
                set_pair<T>(result, j, p.use_silu ? silu(sum) : sum);
            }
            store(result);
            dropped = ring[0];
#pragma unroll
            for (int i = 0; i < kPast - 1; ++i) ring[i] = ring[i + 1];
            ring[kPast - 1] = as_history<S, T>(ahead[t]);
            if (kColumns <= 0 && speculative) put(kPast - 1 + tokens.count - left + t, ring[kPast - 1]);
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
            for (int at = lane; at < strip * p.state_len; at += lanes) slot[at] = stage[staged<History>(at)];
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
            if (active) stage[staged<History>(lane * kColumns + k)] = loaded[k];
        __syncthreads();
        History* slot = reinterpret_cast<History*>(state_at<S>(p, row.write_slot, strip_d, 0));
#pragma unroll
        for (int k = 0; k < kColumns; ++k)
            if (k * lanes + lane < strip * kColumns) slot[k * lanes + lane] = stage[staged<History>(k * lanes + lane)];
    }
}

namespace {

// Whether packed columns are few and fixed. The slot is written whole: a fork would overwrite a column at rest.
bool transposes(const CausalConv1dUpdateParams& p) {
    return !p.num_accepted_tokens.data && p.state_len <= p.width && (p.history == p.state_len || !p.fork);
}

template <typename T, typename S, int kWidth, int kColumns>
void launch(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    const int64_t vectors = p.dim / kChannels;
    unsigned lanes = kVectorLanes;
    while (kColumns == kAnyColumns && lanes * p.state_len * sizeof(Words<S, kChannels>) > kStagedBytes) lanes /= 2;
    while (lanes > 64 && p.batch * ((vectors + lanes - 1) / lanes) < 264) lanes /= 2;  // few rows: more blocks
    lanes = power_of_two_up_to(vectors, lanes);
    const dim3 grid = strips_of_rows(p, blocks_up_to(vectors, lanes, 1 << 30));
    hipLaunchKernelGGL((causal_conv1d_update_vectors<T, S, kWidth, kColumns>), grid, dim3(lanes, 1, 1), 0, stream, p);
    check_launch("causal_conv1d_update");
}

template <typename T, typename S, int kWidth>
void with_columns(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    if (p.state_dim_stride == 1) return launch<T, S, kWidth, kOwnVectors>(p, stream);
    if constexpr (std::is_same_v<T, S> && kWidth == kPackedWidth)
        !transposes(p)         ? launch<T, S, kWidth, kAnyColumns>(p, stream)
        : p.state_len == kWidth ? launch<T, S, kWidth, kWidth>(p, stream)
                                : launch<T, S, kWidth, kWidth - 1>(p, stream);
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

bool aligned(Address data, int bytes) { return data.bits % static_cast<unsigned>(bytes) == 0; }

bool in_vectors(const Tokens& tokens, int bytes) {
    return tokens.dim_stride == 1 && aligned(tokens.data, bytes) && tokens.row_stride % kChannels == 0 &&
           tokens.token_stride % kChannels == 0;
}

}  // namespace

bool causal_conv1d_update_vector_serves(const CausalConv1dUpdateParams& p) {
    const int bytes = kChannels * element_bytes(p.dtype), state_bytes = kChannels * element_bytes(p.state_dtype);
    if (p.width < 2 || p.width > 4 || p.dim % kChannels != 0) return false;
    if (p.state_dtype != p.dtype && p.state_dtype != DType::f32) return false;
    if (p.tree_child.data || p.cache_seqlens.data || p.intermediate) return false;
    if (!in_vectors(p.x, bytes)) return false;
    for (int part = 0, begin = 0; begin < p.dim; begin = p.out_end[part++])
        if (!in_vectors(p.out[part], bytes) || p.out_end[part] % kChannels != 0) return false;

    const int weight_bytes = kChannels * p.width * element_bytes(p.weight_dtype);
    if (p.weight_width_stride != 1 || p.weight_dim_stride != p.width) return false;
    if (!aligned(p.weight, weight_bytes % 16 == 0 ? 16 : 8)) return false;
    const int bias_bytes = kChannels * element_bytes(p.bias_dtype);
    if (p.bias && (p.bias_stride != 1 || !aligned(p.bias, bias_bytes))) return false;

    if (!aligned(p.state, state_bytes) || p.slot_stride % kChannels != 0) return false;
    const bool alone = p.history == p.width - 1;
    if (p.state_dim_stride == 1) return alone && p.column_stride % kChannels == 0;
    return p.width == kPackedWidth && p.column_stride == 1 && p.state_dim_stride == p.state_len && p.state_dtype == p.dtype &&
           (transposes(p) || (alone && 32 * p.state_len * state_bytes <= kStagedBytes));
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
