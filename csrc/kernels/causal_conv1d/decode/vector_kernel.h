// This kernel is the causal conv1d decode of several tokens a row, or of any number a row where query_start_loc gives it, in
// vectors of channels ("vector"). It serves speculative decoding, and also one token where `step` does not.
//
// Its time is two waits for memory, first for the row's indices and then for tokens and state, and the bytes. So a lane asks at
// once for all that it can: the indices and its parameters, then kTokensAhead tokens and its part of the state.
//
// Where channels are neighbours in memory (conv_state as (slots, columns, dim)), a lane moves its own vectors. Where a slot is
// packed channel by channel ((slots, dim, columns)), a lane's columns are no vectors, but the strip is contiguous: it moves
// through LDS in whole vectors. Where the slot has as many columns as the window, or one more, or as many as speculative
// decoding of four tokens needs, a lane transposes its part in registers; with any other number it picks elements in LDS.
// Tokens that are neighbours in memory (contiguous (batch, dim, seqlen)) come in vectors of four, which a lane transposes too.
//
// A lane reads its window before it writes, and each token before its output, so x and out may be one tensor.
#pragma once

#include "launch/check.h"
#include "vectors.h"

namespace hipconv {

constexpr int kStagedBytes = 4096;                              // in LDS, of any number of columns: with many, lanes are fewer
constexpr int kTokensAhead = 4;                                 // that a lane asks for at once
constexpr int kAnyColumns = -1;                                 // of a packed slot; known numbers stand for themselves
constexpr int kDraftColumns = kCommonWidth - 2 + kTokensAhead;  // of speculative decoding of the tokens that are loaded at once

template <int kColumns>  // of a block; those that share strips have LDS for no more
constexpr int kMostLanes = kColumns == kOwnVectors ? kTokenLanes : kVectorLanes;
template <typename S, int kWidth, int kColumns>  // on a compute unit
constexpr int kBlocks = ((sizeof(S) == 4                            ? 8
                          : kColumns > kCommonWidth || kColumns < 0 ? 10
                          : kColumns                                ? 12
                                                                    : 14) -
                         (kWidth > kCommonWidth ? kWidth - 2 : 0)) *
                        kVectorLanes / kMostLanes<kColumns>;

template <typename S, int kWidth>  // on a compute unit, of pairs: by the registers of window, tokens and parameters
constexpr int kPairBlocks = 65536 / (40 + 4 * kWidth + kWidth * static_cast<int>(sizeof(S)) / 2) / kPairLanes;

// kOwn: channels of a lane. With two of them, which are lanes' own vectors, a block has some rows.
template <typename T, typename S, int kWidth, int kColumns, int kOwn>
__global__ void HIPCONV_LAUNCH_BOUNDS((kOwn == 2 ? kPairLanes : kMostLanes<kColumns>),
                                      (kOwn == 2 ? kPairBlocks<S, kWidth> : kBlocks<S, kWidth, kColumns>))
    causal_conv1d_update_vectors(VectorParams params) {
    const VectorParams& p = first_parameter(params);
    constexpr int kPast = kWidth - 1, kAhead = kTokensAhead;
    constexpr bool kFours = kOwn == kChannels;
    static_assert(kFours || kColumns == kOwnVectors, "two channels are a lane's own vectors");
    using Vector = Words<T, kOwn>;
    using History = Words<S, kOwn>;
    constexpr int kStage = kColumns == kAnyColumns ? kStagedBytes / static_cast<int>(sizeof(History)) : kVectorLanes * kColumns;
    HIPCONV_SHARED(History, stage, kColumns ? kStage + kStage * static_cast<int>(sizeof(History)) / 128 : 1);

    const unsigned b = kFours ? blockIdx.x : blockIdx.x * blockDim.y + threadIdx.y;
    const int lane = static_cast<int>(threadIdx.x), lanes = static_cast<int>(blockDim.x);
    const int strip_d = static_cast<int>(blockIdx.y) * lanes * kOwn;
    const int left = p.dim - strip_d;
    const int strip = left < lanes * kOwn ? left / kOwn : lanes;  // vectors
    const bool active = lane < strip && (kFours || b < static_cast<unsigned>(p.batch));
    if (!kColumns && !active) return;
    const int d = strip_d + (active ? lane : 0) * kOwn;  // the other lanes move strips, and compute what nobody sees

    // ---- the row: its slot, its tokens, and the first of them on their way --------------------------------------------------
    let_next_kernel_begin();
    wait_for_kernel_before();
    // These values of the row are known without a wait.
    const bool by_starts(p.query_start_loc.data);
    const bool speculative = (kColumns <= 0 || kColumns == kDraftColumns) && p.num_accepted_tokens.data;
    IndexWords::Value slot{b, 0}, begin{}, end{}, last_end{}, accepted{};
    if (by_starts) {
        begin = p.query_start_loc.load(b);
        end = p.query_start_loc.load(int64_t{b} + 1);
        last_end = p.query_start_loc.load(p.batch);
    }
    if (p.slot_of_row.data) slot = p.slot_of_row.load(b);
    if (speculative) accepted = p.num_accepted_tokens.load(b);
    ChannelParameters<T, kWidth, kOwn> parameters;
    parameters.load(p, d);

    int32_t first_token = 0, count = p.seqlen;
    if (by_starts) {
        const auto within = [&](IndexWords::Value value) {
            const int64_t token = p.query_start_loc.integer(value);
            return static_cast<int32_t>(token < 0 ? 0 : token > p.total_tokens ? p.total_tokens : token);
        };
        first_token = within(begin);
        count = within(end) - first_token;
    }
    const T* x = p.x.as<const T>() + b * p.x_row_stride + first_token * p.x_token_stride + d * p.x_dim_stride;
    Vector ahead[kAhead];
    const auto load_ahead = [&](int first) {
        const T* from = x + first * p.x_token_stride;
        const int64_t step = kFours && p.x_in_fours ? p.x_dim_stride : p.x_token_stride;
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            if (first + j < count) ahead[j] = *reinterpret_cast<const Vector*>(from);
            from += step;
        }
    };
    load_ahead(0);

    Slots slots = slots_of_row(p, b, slot);
    int32_t first_column = 0;
    if (speculative) {
        const int64_t number = p.num_accepted_tokens.integer(accepted);
        const int32_t kept = p.state_len - (kWidth - 2);  // tokens that a state holds after the width - 2 before them
        slots.live = slots.live && number >= 1 && number <= kept && count <= kept;
        first_column = static_cast<int32_t>(number - 1);
    }

    // ---- outputs: where they go, and zeros for padding ----------------------------------------------------------------------
    T* out = p.out.as<T>() + b * p.out_row_stride + first_token * p.out_token_stride + d * p.out_dim_stride;
    int64_t out_step = kFours && p.out_in_fours ? p.out_dim_stride : p.out_token_stride;
    if (__builtin_expect(p.split, 0)) {
        const int part = output_of_channel(p, d);
        out = split_out_at<T>(p, b, d, first_token);
        out_step = part == 0 ? p.outs[0].token_stride : part == 1 ? p.outs[1].token_stride : p.outs[2].token_stride;
    }
    const auto store = [&](T* to, Vector value) {
        if (active) *reinterpret_cast<Vector*>(to) = value;
    };
    // The rows divide the tokens after the last row among themselves; the tokens before the first row belong to it.
    if (p.zero_padding && by_starts) {
        const int64_t rest = p.query_start_loc.integer(last_end);
        const auto zero = [&](int64_t t) {
            store(p.split ? split_out_at<T>(p, 0, d, t) : p.out.as<T>() + t * p.out_token_stride + d, Vector{});
        };
        for (int64_t t = (rest < 0 ? 0 : rest) + b; t < p.total_tokens; t += p.batch) zero(t);
        for (int64_t t = 0; b == 0 && t < first_token; ++t) zero(t);
    }
    if (!slots.live || count <= 0) {
        for (int t = 0; t < count && p.zero_padding; t += kFours && p.out_in_fours ? kAhead : 1) {
            if (kFours && p.out_in_fours) {
                for (int c = 0; c < kAhead; ++c) store(out + c * out_step + t, Vector{});
            } else {
                store(out + t * out_step, Vector{});
            }
        }
        return;
    }

    // ---- the window, in vectors of channels or by way of LDS ----------------------------------------------------------------
    const S* from = p.state.as<const S>() + slots.read * p.slot_stride;
    S* const to = p.state.as<S>() + slots.write * p.slot_stride;
    History ring[kPast], loaded[kColumns > 0 ? kColumns : 1];
    if constexpr (kColumns == kOwnVectors) {
        const S* oldest = from + d + first_column * p.column_stride;
#pragma unroll
        for (int i = 0; i < kPast; ++i) ring[i] = *reinterpret_cast<const History*>(oldest + i * p.column_stride);
    } else if constexpr (kColumns == kAnyColumns) {
        const History* strip_from = reinterpret_cast<const History*>(from + int64_t{strip_d} * p.state_len);
        for (int at = lane; at < strip * p.state_len; at += 4 * lanes) {
            History some[4];
#pragma unroll
            for (int k = 0; k < 4; ++k)
                if (at + k * lanes < strip * p.state_len) some[k] = strip_from[at + k * lanes];
#pragma unroll
            for (int k = 0; k < 4; ++k)
                if (at + k * lanes < strip * p.state_len) stage[staged<History, kColumns>(at + k * lanes)] = some[k];
        }
    } else {
        const History* strip_from = reinterpret_cast<const History*>(from + int64_t{strip_d} * kColumns);
#pragma unroll
        for (int k = 0; k < kColumns; ++k)
            if (k * lanes + lane < strip * kColumns) loaded[k] = strip_from[k * lanes + lane];
    }
    parameters.convert(p, d);

    // The window, oldest first. Packed columns may be more, and are at rest unless drafts are kept there.
    History packed[kColumns > 0 ? kColumns : 1];
    const auto element_of = [&](int c, int column) {  // of the strip, where it has any number of columns
        const int at = (lane * kChannels + c) * p.state_len + column;
        return reinterpret_cast<S*>(stage) + (staged<History, kColumns>(at / kChannels) * kChannels + at % kChannels);
    };
    const auto put = [&](int column, History value) {
        if (!active) return;
        if constexpr (kColumns == kAnyColumns) {
#pragma unroll
            for (int c = 0; c < kChannels; ++c) *element_of(c, column) = from_bits<S>(element<S, kChannels>(&value, c));
        } else if constexpr (kColumns == kOwnVectors) {
            *reinterpret_cast<History*>(to + d + column * p.column_stride) = value;
        }
    };
    if constexpr (kColumns == kAnyColumns) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kPast; ++i) {
            S column[kChannels];
#pragma unroll
            for (int c = 0; c < kChannels; ++c) column[c] = *element_of(c, first_column + i);
            ring[i] = join<S>(column);
        }
    } else if constexpr (kColumns != kOwnVectors) {
#pragma unroll
        for (int k = 0; k < kColumns; ++k)
            if (k * lanes + lane < strip * kColumns) stage[staged<History, kColumns>(k * lanes + lane)] = loaded[k];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < kColumns; ++k) loaded[k] = stage[staged<History, kColumns>(lane * kColumns + k)];
        transpose<S, kColumns, false>(packed, loaded);
#pragma unroll
        for (int i = 0; i < kPast; ++i) ring[i] = packed[i];
    }
    if constexpr (kColumns == kDraftColumns) {
#pragma unroll
        for (int column = 1; column <= kColumns - kPast; ++column) {
#pragma unroll
            for (int i = 0; i < kPast; ++i) ring[i] = first_column == column ? packed[i + column] : ring[i];
        }
    }

    // ---- tokens: outputs, and the window moved on ---------------------------------------------------------------------------
    if (speculative) {
#pragma unroll
        for (int i = 0; i < kPast - 1; ++i) {
            if constexpr (kColumns == kDraftColumns)
                packed[i] = ring[i + 1];
            else
                put(i, ring[i + 1]);
        }
    }
    const auto window = [&](int i, int j) { return pair_of<S>(ring[i], j); };
    for (int first = 0; first < count; first += kAhead) {
        if (first > 0) load_ahead(first);
        Vector results[kAhead];
        if constexpr (kFours) {
            if (p.x_in_fours) {
                transpose<T, kAhead, false>(results, ahead);
#pragma unroll
                for (int t = 0; t < kAhead; ++t) ahead[t] = results[t];
            }
        }
#pragma unroll
        for (int t = 0; t < kAhead; ++t) {
            if (first + t >= count) break;
            results[t] = parameters.convolve(window, ahead[t], p.use_silu);
            if (!kFours || !p.out_in_fours) store(out + (first + t) * out_step, results[t]);
#pragma unroll
            for (int i = 0; i < kPast - 1; ++i) ring[i] = ring[i + 1];
            if constexpr (std::is_same_v<S, T>)
                ring[kPast - 1] = ahead[t];
            else
                ring[kPast - 1] = as_history<S, T>(ahead[t]);
            if (speculative) {
                if constexpr (kColumns == kDraftColumns)
                    packed[kPast - 1 + t] = ring[kPast - 1];  // first is 0: there are no more tokens than such a state keeps
                else
                    put(kPast - 1 + first + t, ring[kPast - 1]);
            }
        }
        if constexpr (kFours) {
            if (p.out_in_fours) {
                transpose<T, kAhead, true>(ahead, results);
#pragma unroll
                for (int c = 0; c < kAhead; ++c) store(out + c * out_step + first, ahead[c]);
            }
        }
    }

    // ---- the new state ------------------------------------------------------------------------------------------------------
    if constexpr (kColumns <= 0) {
        if (!speculative) {
#pragma unroll
            for (int i = 0; i < kPast; ++i) put(i, ring[i]);
        }
    }
    if constexpr (kColumns == kAnyColumns) {
        __syncthreads();
        const int columns = speculative ? kPast - 1 + count : kPast;
        if (slots.read == slots.write || columns == p.state_len) {
            History* strip_to = reinterpret_cast<History*>(to + int64_t{strip_d} * p.state_len);
            for (int at = lane; at < strip * p.state_len; at += lanes) strip_to[at] = stage[staged<History, kColumns>(at)];
        } else if (active) {  // a fork: the other columns of the slot written are not the row's
            for (int c = 0; c < kChannels; ++c)
                for (int i = 0; i < columns; ++i) to[int64_t{d + c} * p.state_len + i] = *element_of(c, i);
        }
    } else if constexpr (kColumns > 0) {
        if (!speculative) {
#pragma unroll
            for (int i = 0; i < kPast; ++i) packed[i] = ring[i];
        }
        transpose<S, kColumns, true>(loaded, packed);
#pragma unroll
        for (int k = 0; k < kColumns; ++k)
            if (active) stage[staged<History, kColumns>(lane * kColumns + k)] = loaded[k];
        __syncthreads();
        History* strip_to = reinterpret_cast<History*>(to + int64_t{strip_d} * kColumns);
#pragma unroll
        for (int k = 0; k < kColumns; ++k)
            if (k * lanes + lane < strip * kColumns)
                strip_to[k * lanes + lane] = stage[staged<History, kColumns>(k * lanes + lane)];
    }
}

// Launches the instance for rows of an even number of channels (vector_pairs.cu).
void launch_vectors_of_pairs(const CausalConv1dUpdateParams& p, hipStream_t stream);

}  // namespace hipconv
