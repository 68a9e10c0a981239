// This kernel is the causal conv1d forward, channel-first, for any rows ("vector", its form "vector_any"): rows that continue
// from a state, rows that hold packed sequences, and what vector.cu's kernel does not make of the rest. Rows may begin or end
// within a 16-byte vector, and x may lie otherwise in its 16 bytes than out does.
//
// It differs from vector.cu's kernel in these points.
// - A thread keeps its place in a row and walks through rows: the channels of a sequence, and without ids one sequence after
//   another. So what its tokens see is worked out once for all the rows of a block: it is a byte a token in LDS. A block also
//   has in LDS a record for each of its rows: the weights, the bias and the state.
// - A wave whose tokens see all that their taps reach takes the plain step; any other leaves out taps by those bytes.
// - Where rows of x and out are not whole vectors (kWhole is false), vectors lie on the 16-byte boundaries of out. Where x lies
//   otherwise, a vector of x and its halo are read as the 16-byte granules around them, whose words then move into place; on
//   AMD, memory is read at any address. Vectors that a row fills only in part are read whole where memory before and after the
//   row is x's as well, and written in parts.
//
// Bytes: x and out as in vector.cu. Ids, parameters and states are read once by each block.
#pragma once

#include <hip/hip_runtime.h>

#include "../common/vector_math.h"
#include "kernels.h"
#include "launch/check.h"
#include "vector.h"
#include "vector_any.h"
#include "vector_parts.h"

namespace hipconv {

constexpr int kRecordBytes = 8 << 10;  // of a block's records, at most

constexpr int vector_any_blocks(int width, bool whole) {
    return whole ? (width <= 4 ? 8 : width <= 6 ? 7 : 6) : (width <= 4 ? 7 : 6);
}

template <typename T, int kWidth, bool kWhole>
__global__ void HIPCONV_LAUNCH_BOUNDS(kVectorThreads, vector_any_blocks(kWidth, kWhole))
    causal_conv1d_fwd_vector_any(CausalConv1dFwdParams p, VectorAnyPlan plan) {
    constexpr int kSize = static_cast<int>(sizeof(T)), kTokens = 16 / kSize;
    constexpr int kAhead = 2, kPast = kWidth - 1, kHalf = kTokens / 2;
    using Vector = Words<T, kTokens>;
    using Past = TokensBefore<T, kWidth>;
    using Part = typename Past::Part;
    constexpr int kParts = kPast > 0 ? Past::kParts : 0, kPartTokens = Past::kPartTokens;
    constexpr int kHalo = kParts * kPartTokens;  // tokens
    constexpr int kPartWords = kPartTokens * kSize / 4, kHaloWords = kParts * kPartWords, kWords = kHaloWords + 4;
    constexpr int kSights = kTokens / 4;                   // words
    constexpr int kRecord = 2 * kWidth;                    // floats: weights, bias, state
    constexpr int kRecordWords = kWidth % 2 == 0 ? 4 : 2;  // that are read at once
    using RecordPart = typename WordsOf<kRecordWords * 4>::type;

    HIPCONV_SHARED(RecordPart, records, kRecordBytes / 4 / kRecordWords);
    HIPCONV_SHARED(uint32_t, sights, (kVectorThreads + 1) * kSights + 1);  // from the vector before the block's first one on

    const Piece piece = piece_of_block(plan.taper, blockIdx.y * gridDim.x + blockIdx.x);
    if (piece.count == 0) return;
    let_next_kernel_begin();
    const int count = piece.count;
    const bool has_ids = p.seq_idx.data != nullptr, has_state = p.initial_states.data != nullptr;

    // The block's stretch of a row, and its rows: numbers of channels of a sequence, or of all sequences without ids.
    const uint32_t of_ids = plan.stretches == 1 ? piece.row : piece.row / plan.stretches;
    const int32_t stretch = static_cast<int32_t>(piece.row - of_ids * plan.stretches);
    const uint32_t first_row = piece.first * blockDim.y, own_row = first_row + threadIdx.y;
    const int rows_left = static_cast<int>(plan.rows - first_row);
    const int rows = rows_left < count * static_cast<int>(blockDim.y) ? rows_left : count * static_cast<int>(blockDim.y);
    const int own_count =
        (rows - static_cast<int>(threadIdx.y) + static_cast<int>(blockDim.y) - 1) / static_cast<int>(blockDim.y);
    const auto batch_of = [&](uint32_t row) { return has_ids ? of_ids : row / static_cast<uint32_t>(p.dim); };
    const auto channel_of = [&](uint32_t row) { return has_ids ? row : row % static_cast<uint32_t>(p.dim); };

    const int32_t lane_token = (stretch * static_cast<int32_t>(blockDim.x) + static_cast<int32_t>(threadIdx.x)) * kTokens;
    const uint32_t batch = batch_of(own_row);
    int32_t d = static_cast<int32_t>(channel_of(own_row));

    // ---- loads --------------------------------------------------------------------------------------------------------------
    // The addresses of the rows of the next vector to load. All threads load all vectors, so that there are few branches: one
    // that has none at its place loads that of its row's first token, and one that has no row, or none left, another's. Of
    // tokens before a row, something else is loaded.
    const char* x = static_cast<const char*>(p.x.data);
    char* out = static_cast<char*>(p.out.data);
    if (own_count > 0) {
        x += (d * p.x.dim_stride + batch * p.x.batch_stride) * kSize;
        out += (d * p.out.dim_stride + batch * p.out.batch_stride) * kSize;
    }
    const bool has_place = lane_token < p.seqlen;  // of whole rows
    if constexpr (kWhole) {
        x += has_place ? int64_t{lane_token} * kSize : 0;
        out += int64_t{lane_token} * kSize;
    }
    Vector current[kAhead], next[kAhead];
    Part before[kAhead][kParts + 1];
    uint32_t shift[kAhead];  // bytes that words have to move by
    int32_t token[kAhead];   // that the vector begins with; it is negative where it begins before the row
    char* to[kAhead];        // the address of the outputs
    int loaded = 0;
    const auto fetch = [&](int u) {
        int32_t t = lane_token;
        if constexpr (kWhole) {
            to[u] = out;
            current[u] = *reinterpret_cast<const Vector*>(x);
#pragma unroll
            for (int k = 0; k < kParts; ++k) {
                const int back = kHalo - k * kPartTokens;
                before[u][k] = *reinterpret_cast<const Part*>(x - (has_place && t >= back ? back * kSize : 0));
            }
        } else {
            t -= static_cast<int32_t>((static_cast<uint32_t>(reinterpret_cast<uintptr_t>(out)) & plan.edges.boundary) / kSize);
            to[u] = out + int64_t{t} * kSize;
            int place = t < p.seqlen ? t : 0;
            in_a_register(place);
            const uint32_t last_bits =
                static_cast<uint32_t>(reinterpret_cast<uintptr_t>(x)) + static_cast<uint32_t>(place) * kSize;
            shift[u] = kUnalignedVectors ? 0 : last_bits & 15;
            const char* const at = global_address<const char>(x + (int64_t{place} * kSize - shift[u]));
            bool inside = true;  // x's memory. All granules are but those at the ends of rows.
            if (place < kHalo + kTokens || place > plan.last_inner_x) {
                const uint64_t begin = reinterpret_cast<uint64_t>(at);
                inside = begin - kHalo * kSize >= plan.edges.x_begin && begin + (shift[u] != 0 ? 32 : 16) <= plan.edges.x_end;
            }
            if (!inside) {
                const T* row = global_address<const T>(x);
                shift[u] = 0;
                current[u] = load_part<T, kTokens>(row, t, p.seqlen);
#pragma unroll
                for (int k = 0; k < kParts; ++k)
                    before[u][k] = load_part<T, kPartTokens>(row, t - kHalo + k * kPartTokens, p.seqlen);
            } else if constexpr (kUnalignedVectors) {
                current[u] = load_unaligned<Vector>(at);
                uint32_t back = kHalo * kSize;
                beside_access(back);  // lest two loads become others, whose registers would have to be moved at once
#pragma unroll
                for (int k = 0; k < kParts; ++k) before[u][k] = load_unaligned<Part>(at - back + k * kPartTokens * kSize);
            } else {
                current[u] = *reinterpret_cast<const Vector*>(at);
                if (shift[u] != 0) next[u] = *reinterpret_cast<const Vector*>(at + 16);
#pragma unroll
                for (int k = 0; k < kParts; ++k)
                    before[u][k] = *reinterpret_cast<const Part*>(at - (kHalo - k * kPartTokens) * kSize);
            }
        }
        token[u] = t;
        if (++loaded >= own_count) return;
        d += plan.channels_on;
        x += plan.x_on;
        out += plan.out_on;
        if (d >= p.dim) {
            d -= p.dim;
            x += plan.x_wrap;
            out += plan.out_wrap;
        }
    };
    wait_for_kernel_before();
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
        next[u] = Vector{};
        fetch(u);
    }

    // ---- what the block shares ----------------------------------------------------------------------------------------------
    // The block's table of what tokens see, and its records.
    const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x),
              threads = static_cast<int>(blockDim.x * blockDim.y);
    constexpr int kFirst = kWhole ? 1 : 0;  // whole rows have no token in the vector before the block's first one
    for (int v = thread + kFirst; v <= static_cast<int>(blockDim.x); v += threads) {
        uint32_t words[kSights];
        const int32_t t = (stretch * static_cast<int32_t>(blockDim.x) + v - 1) * kTokens;
        find_sights<kWidth, kTokens>(p, p.seq_idx.data + of_ids * p.seq_idx.batch_stride, t, words);
#pragma unroll
        for (int w = 0; w < kSights; ++w) sights[v * kSights + w] = words[w];
        if (!kWhole && v == 0) sights[(static_cast<int>(blockDim.x) + 1) * kSights] = 0;
    }
    for (int row = thread; row < rows; row += threads) {
        const uint32_t d = channel_of(first_row + row);
        // All of it is under way together.
        uint32_t weight_bits[kWidth], bias_bits = 0;
#pragma unroll
        for (int i = 0; i < kWidth; ++i)
            weight_bits[i] = load_parameter_bits(p.weight, d * p.weight_dim_stride + i * p.weight_width_stride, p.weight_dtype);
        if (p.bias) bias_bits = load_parameter_bits(p.bias, d * p.bias_stride, p.bias_dtype);
        float record[kRecord];
#pragma unroll
        for (int i = 0; i < kPast; ++i) record[kWidth + 1 + i] = 0.0f;
        if (has_state && stretch == 0) {
            const T* state = static_cast<const T*>(p.initial_states.data) +
                             batch_of(first_row + row) * p.initial_states.batch_stride + d * p.initial_states.dim_stride;
#pragma unroll
            for (int i = 0; i < kPast; ++i) record[kWidth + 1 + i] = to_float(state[i * p.initial_states.seqlen_stride]);
        }
#pragma unroll
        for (int i = 0; i < kWidth; ++i) record[i] = parameter_of(weight_bits[i], p.weight_dtype);
        record[kWidth] = parameter_of(bias_bits, p.bias_dtype);
        float* const to = reinterpret_cast<float*>(records) + row * kRecord;
#pragma unroll
        for (int i = 0; i < kRecord; ++i) to[i] = record[i];
    }
    __syncthreads();

    // ---- what the thread's tokens see ---------------------------------------------------------------------------------------
    // The bytes of the vector that begins at token t.
    uint32_t sees[kSights];
    const auto look = [&](int32_t t) {
        const uint32_t at = t - lane_token + (threadIdx.x + 1) * kTokens, w = at / 4, bits = at % 4 * 8;
#pragma unroll
        for (int k = 0; k < kSights; ++k) {
            if constexpr (kWhole)
                sees[k] = sights[w + k];
            else
                sees[k] = static_cast<uint32_t>((static_cast<uint64_t>(sights[w + k + 1]) << 32 | sights[w + k]) >> bits);
        }
    };
    bool wave_leaves_out = false, wave_has_padding = false;
    const auto vote = [&] {
        uint32_t differ = 0, signs = 0;
#pragma unroll
        for (int k = 0; k < kSights; ++k) {
            differ |= sees[k] ^ kEachByte * kSeesAll<kWidth>;
            signs |= sees[k] & kEachByte * kIsPadding;
        }
        wave_leaves_out = __ballot(differ != 0) != 0;
        wave_has_padding = has_ids && __ballot(signs != 0) != 0;
    };
    if constexpr (kWhole) {
        look(lane_token);
        vote();
    }

    // ---- rows, one after another --------------------------------------------------------------------------------------------
    for (int item = 0; item < count; item += kAhead) {
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
            const int32_t t = kWhole ? lane_token : token[u];
            char* const address = global_address<char>(to[u]);
            float window[kHalo + kTokens];
            {
                uint32_t words[kWords + 4];
#pragma unroll
                for (int k = 0; k < kHaloWords; ++k) words[k] = word(before[u][k / kPartWords], k % kPartWords);
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    words[kHaloWords + k] = word(current[u], k);
                    words[kWords + k] = word(next[u], k);
                }
                if (!kWhole && !kUnalignedVectors && shift[u] != 0) move_down<kSize>(words, shift[u]);
                unpack_words<T>(words, window);
                if constexpr (!kWhole) {
#pragma unroll
                    for (int k = 0; k < kHalo + kTokens; ++k) in_a_register(window[k]);
                }
            }
            fetch(u);
            if constexpr (!kWhole) {
                if (has_ids) {
                    look(t);
                    vote();
                } else {
                    wave_leaves_out = !has_state && __ballot(t < kPast) != 0;
                    if (wave_leaves_out) look(t);
                }
            }

            // The row's record.
            float record[kRecord];
            const int number = item + u < count ? item + u : item;
            const RecordPart* const from = records + (number * blockDim.y + threadIdx.y) * (kRecord / kRecordWords);
#pragma unroll
            for (int k = 0; k < (kWidth + 1 + kRecordWords - 1) / kRecordWords; ++k) {
                const RecordPart part = from[k];
#pragma unroll
                for (int i = 0; i < kRecordWords; ++i) record[k * kRecordWords + i] = bit_cast<float>(word(part, i));
            }
            constexpr int kOldest = kHalo - kPast;
            if (has_state && t < kPast) {
                const float* const state = reinterpret_cast<const float*>(from) + kWidth + 1;
#pragma unroll
                for (int k = 0; k < kPast + (kWhole ? 0 : kTokens - 1); ++k) {
                    const int32_t column = kWhole && kTokens > kPast ? k : t + k;
                    if (column >= 0 && column < kPast) window[kOldest + k] = state[column];
                }
            }

            Pair sums[kHalf];
#pragma unroll
            for (int j = 0; j < kHalf; ++j) sums[j] = twice(record[kWidth]);
            const auto inputs = [&](int j, int i) {
                return make_pair(window[kOldest + j + i], window[kOldest + j + i + kHalf]);
            };
            if (!wave_leaves_out) {
#pragma unroll
                for (int j = 0; j < kHalf; ++j) {
#pragma unroll
                    for (int i = 0; i < kWidth; ++i) sums[j] = multiply_add(twice(record[i]), inputs(j, i), sums[j]);
                }
            } else {
                if constexpr (kWidth > 4) {
                    // AMD's compiler would make a mask of lanes for each tap in front of the loop: too many for its registers.
#pragma unroll
                    for (int k = 0; k < kSights; ++k) beside_access(sees[k]);
                }
                if constexpr (kHasPredicates) {  // one token after another, whose byte becomes predicates as a whole
                    float all[kTokens];
#pragma unroll
                    for (int e = 0; e < kTokens; ++e) {
                        const uint32_t own = sees[e / 4] >> e % 4 * 8;
                        float sum = record[kWidth];
#pragma unroll
                        for (int i = 0; i < kWidth; ++i) {
                            if (i < kPast && !(own >> (kPast - 1 - i) & 1)) continue;
                            sum = low(multiply_add(twice(record[i]), twice(window[kOldest + e + i]), twice(sum)));
                        }
                        all[e] = sum;
                    }
#pragma unroll
                    for (int j = 0; j < kHalf; ++j) sums[j] = make_pair(all[j], all[j + kHalf]);
                } else {
                    const auto sees_tap = [&](int e, int i) { return (sees[e / 4] & 1u << (e % 4 * 8 + kPast - 1 - i)) != 0; };
#pragma unroll
                    for (int j = 0; j < kHalf; ++j) {
#pragma unroll
                        for (int i = 0; i < kPast; ++i)
                            sums[j] = multiply_add_where(sees_tap(j, i), sees_tap(j + kHalf, i), twice(record[i]), inputs(j, i),
                                                         sums[j]);
                        sums[j] = multiply_add(twice(record[kPast]), inputs(j, kPast), sums[j]);
                    }
                }
            }
            if (p.use_silu) {
#pragma unroll
                for (int j = 0; j < kHalf; ++j) sums[j] = silu(sums[j]);
            }
            if (wave_has_padding) {
                const auto is_padding = [&](int e) { return (sees[e / 4] & kIsPadding << e % 4 * 8) != 0; };
#pragma unroll
                for (int j = 0; j < kHalf; ++j) sums[j] = choose(is_padding(j), is_padding(j + kHalf), twice(0.0f), sums[j]);
            }
            const Vector result = vector_of_halves<T, kTokens>(sums);

            if (item + u < own_count && t < p.seqlen) {
                if (kWhole || static_cast<uint32_t>(t) < plan.edges.full_end)
                    *reinterpret_cast<Vector*>(address) = result;
                else
                    store_part_in_words<T, kTokens>(reinterpret_cast<T*>(address) - t, t, p.seqlen, result);
            }
        }
    }
}

// Launches the instance for the element type and the width. Each type has a file of its own.
template <typename T>
void launch_vector_any(const CausalConv1dFwdParams& p, const VectorAnyPlan& plan, dim3 grid, dim3 block, bool whole,
                       hipStream_t stream) {
    const bool early = begins_early(plan.taper);
    with_width<kMaxFastWidth>(p.width, [&](auto width) {
        constexpr int kWidth = decltype(width)::value;
        if (whole)
            HIPCONV_LAUNCH(early, (causal_conv1d_fwd_vector_any<T, kWidth, true>), grid, block, 0, stream, p, plan);
        else
            HIPCONV_LAUNCH(early, (causal_conv1d_fwd_vector_any<T, kWidth, false>), grid, block, 0, stream, p, plan);
    });
    check_launch("causal_conv1d_fwd");
}
extern template void launch_vector_any<f16>(const CausalConv1dFwdParams&, const VectorAnyPlan&, dim3, dim3, bool, hipStream_t);
extern template void launch_vector_any<bf16>(const CausalConv1dFwdParams&, const VectorAnyPlan&, dim3, dim3, bool, hipStream_t);

}  // namespace hipconv
