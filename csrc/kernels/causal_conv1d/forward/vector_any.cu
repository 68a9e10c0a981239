// This kernel is the causal conv1d forward, channel-first, for any rows ("vector", its form "vector_any"): rows that begin or
// end within a 16-byte vector, x that lies otherwise in its 16 bytes than out does, rows that continue from a state, and rows
// that hold packed sequences.
//
// It is vector.cu's kernel but for three things.
// - Vectors lie on the 16-byte boundaries of out. Where x lies otherwise, a vector of x and its halo are read as the 16-byte
//   granules around them, whose words then move into place; on AMD, memory is read at any address. Vectors that a row fills
//   only in part are read whole where memory before and after the row is x's as well, and written in parts.
// - The tokens before the row come from its state, if it has one. They are read when they are needed, by one lane of a row.
// - A thread leaves out the taps that reach before a row without a state. With sequence ids (kIds), it compares those of its
//   tokens with those of the tokens that their taps reach, and leaves out taps only where some differ. A token that is not
//   there has the id -1, which no token sees, because tokens of negative ids are padding.
//
// Bytes: x and out as in vector.cu. The ids are read by each channel of a block, by all but one from the first cache.
#include <hip/hip_runtime.h>

#include "../common/parts.h"
#include "launch/check.h"
#include "vector.h"

namespace hipconv {

constexpr int kNoToken = -1;  // stands for the id of a token that is not there

// Moves words down by so many bytes of less than 16, a multiple of kUnit. The last words are lost.
template <int kUnit, int kCount>
HIPCONV_INLINE void move_down(uint32_t (&words)[kCount], uint32_t bytes) {
#pragma unroll
    for (int k = 0; k + 2 < kCount; ++k) words[k] = bytes & 8 ? words[k + 2] : words[k];
#pragma unroll
    for (int k = 0; k + 1 < kCount; ++k) words[k] = bytes & 4 ? words[k + 1] : words[k];
    if constexpr (kUnit == 2) {
#pragma unroll
        for (int k = 0; k + 1 < kCount; ++k)
            words[k] = static_cast<uint32_t>((static_cast<uint64_t>(words[k + 1]) << 32 | words[k]) >> ((bytes & 2) * 8));
    }
}

// Stores elements of a vector that begins at token `first` of a dense row: those that the row has. 16-bit elements go two at a
// time where two of the row share a word of memory.
template <typename T, int kCount>
HIPCONV_INLINE void store_part_in_words(T* row, int32_t first, int32_t size, Words<T, kCount> result) {
    if constexpr (sizeof(T) == 4) {
        store_part<T, kCount>(row, first, size, result);
    } else {
        const bool odd = reinterpret_cast<uintptr_t>(row + first) % 4 != 0;
        const int32_t from = first - (odd ? 1 : 0);  // where words begin
        uint16_t* const to = reinterpret_cast<uint16_t*>(row);
#pragma unroll
        for (int k = 0; k <= kCount / 2; ++k) {
            const uint32_t own = k < kCount / 2 ? word(result, k) : 0, past = k > 0 ? word(result, k - 1) : 0;
            const uint32_t both = odd ? past >> 16 | own << 16 : own;
            const int32_t t = from + 2 * k;
            const bool has_low = t >= 0 && t < size && (k > 0 || !odd) && (k < kCount / 2 || odd);
            const bool has_high = t + 1 >= 0 && t + 1 < size && k < kCount / 2;
            if (has_low && has_high) {
                *reinterpret_cast<uint32_t*>(to + t) = both;
            } else {
                if (has_low) to[t] = static_cast<uint16_t>(both);
                if (has_high) to[t + 1] = static_cast<uint16_t>(both >> 16);
            }
        }
    }
}

// The ids of kCount tokens of a row, from token `first` on. The row's last id stands for those after it.
template <int kCount>
HIPCONV_INLINE void load_ids_one_by_one(const CausalConv1dFwdParams& p, const int32_t* row, int32_t first,
                                        int32_t (&ids)[kCount]) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
        const int32_t t = first + k, last = t < p.seqlen ? t : p.seqlen - 1;
        ids[k] = t < 0 && !p.initial_states.data ? kNoToken : row[(last < 0 ? 0 : last) * p.seq_idx.seqlen_stride];
    }
}

// The same of the tokens of a vector that begins at token t, and of the kBefore tokens before it. Ids that lie one after
// another are read as 16-byte vectors, also where these have some of other rows.
template <int kBefore, int kTokens>
HIPCONV_INLINE void load_ids(const CausalConv1dFwdParams& p, const VectorPlan& plan, const int32_t* row, int32_t t,
                             int32_t (&ids)[kBefore + kTokens]) {
    constexpr int kFront = (kBefore + 3) / 4 * 4, kVectors = (kFront + kTokens) / 4;
    const char* at = reinterpret_cast<const char*>(row + (t - kFront));
    const uint32_t shift = kUnalignedVectors ? 0 : static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at)) & 15;
    at -= shift;
    if (t < kFront + 4 || t > plan.last_inner_ids) {
        const uint64_t begin = reinterpret_cast<uint64_t>(at), end = begin + kVectors * 16 + (shift != 0 ? 16 : 0);
        if (t < kBefore || begin < plan.ids_begin || end > plan.ids_end) return load_ids_one_by_one(p, row, t - kBefore, ids);
    }
    uint32_t words[kVectors * 4 + 4] = {};
    const auto load = [&](int v) {
        const Words4 four = kUnalignedVectors ? load_unaligned<Words4>(at + v * 16) : reinterpret_cast<const Words4*>(at)[v];
#pragma unroll
        for (int i = 0; i < 4; ++i) words[4 * v + i] = word(four, i);
    };
#pragma unroll
    for (int v = 0; v < kVectors; ++v) load(v);
    if (!kUnalignedVectors && shift != 0) {
        load(kVectors);
        move_down<4>(words, shift);
    }
#pragma unroll
    for (int k = 0; k < kBefore + kTokens; ++k) ids[k] = static_cast<int32_t>(words[kFront - kBefore + k]);
}

constexpr int vector_any_blocks(int width, bool ids) {
    if (ids) return width <= 4 ? 6 : 5;
    return width <= 4 ? 7 : 6;
}

template <typename T, int kWidth, bool kIds>
__global__ void HIPCONV_LAUNCH_BOUNDS(kVectorThreads, vector_any_blocks(kWidth, kIds))
    causal_conv1d_fwd_vector_any(CausalConv1dFwdParams p, VectorPlan plan) {
    constexpr int kSize = static_cast<int>(sizeof(T)), kTokens = 16 / kSize;
    constexpr int kAhead = 2, kPast = kWidth - 1, kHalf = kTokens / 2;
    using Vector = Words<T, kTokens>;
    using Past = TokensBefore<T, kWidth>;
    using Part = typename Past::Part;
    constexpr int kParts = kPast > 0 ? Past::kParts : 0, kPartTokens = Past::kPartTokens;
    constexpr int kHalo = kParts * kPartTokens;  // tokens
    constexpr int kPartWords = kPartTokens * kSize / 4, kHaloWords = kParts * kPartWords, kWords = kHaloWords + 4;

    const Piece piece = piece_of_block(plan.taper, blockIdx.y * gridDim.x + blockIdx.x);
    const int64_t d = static_cast<int64_t>(piece.row) * blockDim.y + threadIdx.y;
    if (d >= p.dim || piece.count == 0) return;
    let_next_kernel_begin();
    const int count = piece.count;

    // These say where the next vector to load and the next to write lie: their rows, and their stretches of these.
    const uint32_t batch = plan.stretches == 1 ? piece.first : piece.first / plan.stretches;
    const char* x = static_cast<const char*>(p.x.data) + d * p.x.dim_stride * kSize + batch * plan.x_batch;
    char* out = static_cast<char*>(p.out.data) + d * p.out.dim_stride * kSize + batch * plan.out_batch;
    int32_t in_token = static_cast<int32_t>(piece.first - batch * plan.stretches) * plan.stretch_tokens, to_token = in_token;
    const int32_t* ids_row = p.seq_idx.data + batch * p.seq_idx.batch_stride;
    const T* state =
        static_cast<const T*>(p.initial_states.data) + batch * p.initial_states.batch_stride + d * p.initial_states.dim_stride;
    const bool has_state = p.initial_states.data != nullptr;

    // This is the token that a thread's vector in a row's first stretch begins with, by the last bits of the address of the row
    // of out. It is negative where the vector begins before the row.
    const auto first_token = [&](uint32_t last_bits_of_row) {
        const int32_t token = static_cast<int32_t>(threadIdx.x) * kTokens;
        return plan.on_boundaries ? token - static_cast<int32_t>(last_bits_of_row % 16 / kSize) : token;
    };
    uint32_t out_of_in = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(out));  // the row of out of the next vector to load
    int32_t in_first = first_token(out_of_in), to_first = in_first;

    Vector current[kAhead], next[kAhead];
    Part before[kAhead][kParts + 1];
    uint32_t shift[kAhead];  // bytes that words have to move by
    int loaded = 0;
    const auto fetch = [&](int u) {
        if (loaded == count) return;
        ++loaded;
        const int32_t t = in_token + in_first;
        if (t < p.seqlen) {
            const char* at = x + int64_t{t} * kSize;
            shift[u] = kUnalignedVectors ? 0 : static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at)) & 15;
            at -= shift[u];
            bool inside = true;  // x's memory. All granules are but those at the ends of rows.
            if (t < kHalo + kTokens || t > plan.last_inner_x) {
                const uint64_t begin = reinterpret_cast<uint64_t>(at);
                inside = begin - kHalo * kSize >= plan.x_begin && begin + (shift[u] != 0 ? 32 : 16) <= plan.x_end;
            }
            if (!inside) {
                const T* row = reinterpret_cast<const T*>(x);
                shift[u] = 0;
                current[u] = load_part<T, kTokens>(row, t, p.seqlen);
#pragma unroll
                for (int k = 0; k < kParts; ++k)
                    before[u][k] = load_part<T, kPartTokens>(row, t - kHalo + k * kPartTokens, p.seqlen);
            } else if constexpr (kUnalignedVectors) {
                current[u] = load_unaligned<Vector>(at);
#pragma unroll
                for (int k = 0; k < kParts; ++k) before[u][k] = load_unaligned<Part>(at - (kHalo - k * kPartTokens) * kSize);
            } else {
                current[u] = *reinterpret_cast<const Vector*>(at);
                if (shift[u] != 0) next[u] = *reinterpret_cast<const Vector*>(at + 16);
#pragma unroll
                for (int k = 0; k < kParts; ++k)
                    before[u][k] = *reinterpret_cast<const Part*>(at - (kHalo - k * kPartTokens) * kSize);
            }
        }
        in_token += plan.stretch_tokens;
        if (in_token >= plan.sequence_tokens) {
            in_token = 0;
            x += plan.x_batch;
            out_of_in += static_cast<uint32_t>(plan.out_batch);
            in_first = first_token(out_of_in);
        }
    };
    wait_for_kernel_before();
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
        current[u] = next[u] = Vector{};
        shift[u] = 0;
#pragma unroll
        for (int k = 0; k < kParts; ++k) before[u][k] = Part{};
        fetch(u);
    }

    Pair weight[kWidth];
    with_dtype(p.weight_dtype, [&](auto type) {
        using P = decltype(type);
#pragma unroll
        for (int i = 0; i < kWidth; ++i)
            weight[i] = twice(parameter<P>(p.weight, d * p.weight_dim_stride + i * p.weight_width_stride));
    });
    const float bias = p.bias ? load_parameter(p.bias, d * p.bias_stride, p.bias_dtype) : 0.0f;

    // This makes the outputs of the vector that begins at token t, from the words loaded for it.
    const auto make = [&](const uint32_t(&words)[kWords + 4], int32_t t) {
        float window[kHalo + kTokens];
#pragma unroll
        for (int k = 0; k < kWords; ++k) {
            if constexpr (kSize == 2) {
                const Pair both = unpack<T>(words[k]);
                window[2 * k] = low(both);
                window[2 * k + 1] = high(both);
            } else {
                window[k] = bit_cast<float>(words[k]);
            }
        }
        constexpr int kOldest = kHalo - kPast;
        if (t < kPast && has_state) {
#pragma unroll
            for (int k = 0; k < kPast + kTokens; ++k) {
                const int32_t column = t + k;
                if (column >= 0 && column < kPast)
                    window[kOldest + k] = to_float(state[column * p.initial_states.seqlen_stride]);
            }
        }
        int32_t ids[kPast + kTokens] = {};
        bool leaves_out = t < kPast && !has_state, has_padding = false;
        if constexpr (kIds) {
            load_ids<kPast, kTokens>(p, plan, ids_row, t, ids);
            int32_t differ = 0, signs = 0;
#pragma unroll
            for (int k = 1; k < kPast + kTokens; ++k) differ |= ids[k] ^ ids[k - 1];
#pragma unroll
            for (int e = 0; e < kTokens; ++e) signs |= ids[kPast + e];
            leaves_out = differ != 0;
            has_padding = signs < 0;
        }
        // Tells whether tap i of the vector's token e sees something.
        const auto sees = [&](int e, int i) { return kIds ? ids[e + i] == ids[e + kPast] : t + e + i >= kPast; };

        Pair sums[kHalf];
#pragma unroll
        for (int j = 0; j < kHalf; ++j) sums[j] = twice(bias);
        const auto inputs = [&](int j, int i) { return make_pair(window[kOldest + j + i], window[kOldest + j + i + kHalf]); };
        if (!leaves_out) {
#pragma unroll
            for (int j = 0; j < kHalf; ++j) {
#pragma unroll
                for (int i = 0; i < kWidth; ++i) sums[j] = multiply_add(weight[i], inputs(j, i), sums[j]);
            }
        } else {
#pragma unroll
            for (int j = 0; j < kHalf; ++j) {
#pragma unroll
                for (int i = 0; i < kPast; ++i)
                    sums[j] = multiply_add_where(sees(j, i), sees(j + kHalf, i), weight[i], inputs(j, i), sums[j]);
                sums[j] = multiply_add(weight[kPast], inputs(j, kPast), sums[j]);
            }
        }
        if (p.use_silu) {
#pragma unroll
            for (int j = 0; j < kHalf; ++j) sums[j] = silu(sums[j]);
        }
        if (has_padding) {
#pragma unroll
            for (int j = 0; j < kHalf; ++j)
                sums[j] = choose(ids[j + kPast] >= 0, ids[j + kHalf + kPast] >= 0, sums[j], twice(0.0f));
        }
        const Vector result = vector_of_halves<T, kTokens>(sums);

        T* row = reinterpret_cast<T*>(out);
        if (plan.on_boundaries && t >= 0 && t <= p.seqlen - kTokens)
            *reinterpret_cast<Vector*>(row + t) = result;
        else
            store_part_in_words<T, kTokens>(row, t, p.seqlen, result);
    };

    for (int item = 0; item < count; item += kAhead) {
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
            uint32_t words[kWords + 4];
#pragma unroll
            for (int k = 0; k < kHaloWords; ++k) words[k] = word(before[u][k / kPartWords], k % kPartWords);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                words[kHaloWords + k] = word(current[u], k);
                words[kWords + k] = word(next[u], k);
            }
            if (!kUnalignedVectors && shift[u] != 0) move_down<kSize>(words, shift[u]);
            fetch(u);
            const int32_t t = to_token + to_first;
            if (item + u < count && t < p.seqlen) make(words, t);
            to_token += plan.stretch_tokens;
            if (to_token >= plan.sequence_tokens) {
                to_token = 0;
                out += plan.out_batch;
                to_first = first_token(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(out)));
                if constexpr (kIds) ids_row += p.seq_idx.batch_stride;
                state += p.initial_states.batch_stride;
            }
        }
    }
}

void launch_vector_any(const CausalConv1dFwdParams& p, const VectorPlan& plan, dim3 grid, dim3 block, bool early,
                       hipStream_t stream) {
    with_instance<kMaxFastWidth, 1>(p.dtype, p.width, [&](auto type, auto width) {
        using T = decltype(type);
        constexpr int kWidth = decltype(width)::value;
        if (p.seq_idx.data)
            HIPCONV_LAUNCH(early, (causal_conv1d_fwd_vector_any<T, kWidth, true>), grid, block, 0, stream, p, plan);
        else
            HIPCONV_LAUNCH(early, (causal_conv1d_fwd_vector_any<T, kWidth, false>), grid, block, 0, stream, p, plan);
    });
    check_launch("causal_conv1d_fwd");
}

}  // namespace hipconv
