// Causal conv1d over packed sequences ("tile"): one launch for any mix of lengths.
//
// The packed tokens are cut into runs of equal length, whatever sequences they hold. A thread owns the channels of one 16-byte vector
// (or one channel, where vectors are not aligned) and walks a run, its window a ring in registers, as the kernel `tile` of
// causal_conv1d_fwd does. The block first looks up which sequence each of its tokens belongs to, from query_start_loc on the device;
// its first loads of x are under way meanwhile.
//
// States: the thread whose run holds a sequence's first token reads the initial state when it gets there and writes all states of the
// sequence when it leaves, their inputs read again from x where its run does not reach; no other thread touches those slots. For that,
// outputs that depend on the initial state must all be its own: where a run would begin within the first width - 1 tokens of a
// sequence, these belong to the run before.
//
// Bytes: each input read once from memory (and width - 1 tokens a run once more from cache), each output written once, each state read
// once and written once.
#include <hip/hip_runtime.h>

#include <stdexcept>

#include "causal_conv1d_launchers.h"
#include "causal_conv1d_parts.h"
#include "causal_conv1d_varlen_launchers.h"
#include "causal_conv1d_varlen_schedule.h"
#include "check.h"
#include "registers.h"

namespace hipconv {

constexpr int kVarlenThreads = 128;
constexpr int kMaxRun = 64, kMinRun = 8;  // tokens; a run is longer than any window
constexpr int kBlockTokens = 256;         // of all rows of a block
constexpr int kStartsInShared = 512;      // with more sequences, each step of a look-up is an access to memory

// How a launch divides the work. A block is blockDim.x vectors of channels by blockDim.y rows; a row is a run of tokens.
struct VarlenPlan {
    int32_t run;           // tokens
    uint32_t x_step;       // bytes from token to token
    uint32_t x_lane;       // bytes from lane to lane
    bool state_vectors;    // a thread's channels of a state column are one aligned vector
};

template <int kChannels>
constexpr int kVarlenLanes = kChannels == 1 ? 64 : 32;  // the most vectors of channels that a block is wide

template <typename T, int kChannels, int kWidth>
__global__ void HIPCONV_LAUNCH_BOUNDS(kVarlenThreads, 4) causal_conv1d_varlen_tile(CausalConv1dVarlenParams p, VarlenPlan plan) {
    constexpr int kPast = kWidth - 1;
    constexpr int kPairs = (kChannels + 1) / 2;
    constexpr int kAhead = 4 / kWidth * kWidth;  // tokens loaded before they are needed; a multiple of kWidth, so that ring positions repeat
    constexpr int kBlockChannels = kVarlenLanes<kChannels> * kChannels;
    using Vector = Words<T, kChannels>;

    HIPCONV_SHARED(float, parameters, (kWidth + 1) * kBlockChannels);
    HIPCONV_SHARED(int32_t, starts, kStartsInShared);
    HIPCONV_SHARED(PackedSequence, schedule, kBlockTokens);  // of each token of the block, its sequence
    const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
    const int threads = static_cast<int>(blockDim.x * blockDim.y);

    // ---- where this thread is --------------------------------------------------------------------------------------------
    const uint32_t vectors = static_cast<uint32_t>(p.dim) / kChannels;
    const uint32_t first_vector = blockIdx.y * blockDim.x;
    const uint32_t lane = first_vector + threadIdx.x < vectors ? threadIdx.x : vectors - 1 - first_vector;
    const bool has_channels = first_vector + threadIdx.x < vectors;
    const int64_t first_channel = static_cast<int64_t>(first_vector) * kChannels;
    const int64_t d = first_channel + static_cast<int64_t>(lane) * kChannels;
    const int32_t block_tokens = static_cast<int32_t>(blockDim.y) * plan.run;
    const int32_t block_begin = static_cast<int32_t>(blockIdx.x) * block_tokens;
    const int32_t row_offset = static_cast<int32_t>(threadIdx.y) * plan.run;
    const bool has_tokens = row_offset < p.tokens - block_begin;
    const int32_t row_begin = has_tokens ? block_begin + row_offset : p.tokens - 1;
    const int32_t row_end = plan.run < p.tokens - row_begin ? row_begin + plan.run : p.tokens;

    // The block's base address is the same for all lanes (scalar registers on AMD); a lane adds 32 bits to it.
    const int32_t base_token = block_begin > kPast ? block_begin - kPast : 0;
    const char* x = reinterpret_cast<const char*>(static_cast<const T*>(p.x) + base_token * p.x_token_stride +
                                                  first_channel * p.x_dim_stride);
    const auto x_offset = [&](int32_t token) {
        return static_cast<uint32_t>(token - base_token) * plan.x_step + lane * plan.x_lane;
    };
    const auto load = [&](uint32_t at) { return *reinterpret_cast<const Vector*>(x + at); };

    Vector ahead[kAhead];  // the next tokens; at the end of the run, the last one again
    uint32_t x_last = x_offset(row_end - 1), x_at = 0;
    const auto next = [&]() {
        const Vector v = load(x_at);
        x_at = x_at + plan.x_step < x_last ? x_at + plan.x_step : x_last;
        return v;
    };
    const auto load_ahead = [&](int32_t token) {
        x_at = x_offset(token);
#pragma unroll
        for (int j = 0; j < kAhead; ++j) ahead[j] = next();
    };
    Vector before[kPast];  // the tokens before
    const auto load_before = [&](int32_t token) {
#pragma unroll
        for (int i = 0; i < kPast; ++i) before[i] = load(x_offset(token + i > kPast ? token + i - kPast : 0));
    };
    load_before(row_begin);
    load_ahead(row_begin);

    // ---- what the block shares: parameters as floats, a row of channels for each tap; the schedule ---------------------------
    const CausalConv1dVarlenParams& shared = first_argument_again(p);
    for (int c = thread; c < static_cast<int>(blockDim.x) * kChannels; c += threads) {
        const int64_t channel = first_channel + c < shared.dim ? first_channel + c : shared.dim - 1;
        for (int i = 0; i < kWidth; ++i)
            parameters[i * kBlockChannels + c] =
                load_parameter(p.weight, channel * shared.weight_dim_stride + i * shared.weight_width_stride, shared.weight_dtype);
        parameters[kWidth * kBlockChannels + c] = p.bias ? load_parameter(p.bias, channel * shared.bias_stride, shared.bias_dtype) : 0.0f;
    }
    const bool starts_in_shared = shared.sequences < kStartsInShared;
    if (starts_in_shared)
        for (int b = thread; b <= shared.sequences; b += threads) starts[b] = clamp_token(shared, load_index(shared.query_start_loc, b));
    __syncthreads();
    for (int t = thread; t < block_tokens && t < shared.tokens - block_begin; t += threads) {
        const int32_t token = block_begin + t;
        const int32_t last =
            starts_in_shared ? last_begun([&](int32_t b) { return starts[b]; }, shared.sequences, token)
                             : last_begun([&](int32_t b) { return load_index(shared.query_start_loc, b); }, shared.sequences, token);
        schedule[t] = sequence_or_none(shared, last);
    }
    __syncthreads();
    if (!has_channels || !has_tokens) return;

    const float* mine = parameters + lane * kChannels;
    const auto parameters_of = [&](int row, int j) {
        const float* both = mine + row * kBlockChannels + 2 * j;
        return make_pair(both[0], both[kChannels > 1]);
    };
    Pair probe = twice(0.0f);  // becomes NaN if a weight is not finite
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
        #pragma unroll
        for (int i = 0; i < kWidth; ++i) {
            probe = multiply_add(parameters_of(i, j), twice(0.0f), probe);
        }
    }
    const bool finite_weights = low(probe) == 0.0f && high(probe) == 0.0f;

    // ---- states ------------------------------------------------------------------------------------------------------------
    const auto state_offset = [&](int32_t slot, int column) {
        const CausalConv1dVarlenParams& pool = first_argument_again(p);
        return slot * pool.slot_stride + d * pool.state_dim_stride + (pool.first_column + column) * pool.column_stride;
    };
    // The inputs before `position`, counted from the sequence's first token: of x, of the initial state, or nothing.
    const auto load_window = [&](const PackedSequence& s, int32_t position, Pair(&window)[kWidth][kPairs]) {
        const CausalConv1dVarlenParams& again = first_argument_again(p);
        with_dtype(again.state_dtype, [&](auto type) {
            using S = decltype(type);
            constexpr int kParts = kChannels * sizeof(S) > 16 ? 2 : 1;
            using StateVector = Words<S, kChannels / kParts>;
#pragma unroll
            for (int i = 0; i < kPast; ++i) {
                const int32_t at = position - kPast + i;
                if (at >= 0) {
                    const T* from = static_cast<const T*>(p.x) + (static_cast<int64_t>(s.begin) + at) * again.x_token_stride +
                                    d * again.x_dim_stride;
                    const Vector v = *reinterpret_cast<const Vector*>(from);
#pragma unroll
                    for (int j = 0; j < kPairs; ++j) window[i][j] = pair_of<T>(v, j);
                } else if (s.read_slot == kNoSlot) {
#pragma unroll
                    for (int j = 0; j < kPairs; ++j) window[i][j] = twice(0.0f);
                } else {
                    const S* from = static_cast<const S*>(p.states) + state_offset(s.read_slot, kPast + at);
                    if (plan.state_vectors) {
#pragma unroll
                        for (int part = 0; part < kParts; ++part) {
                            const StateVector v = reinterpret_cast<const StateVector*>(from)[part];
#pragma unroll
                            for (int j = 0; j < kPairs / kParts; ++j) window[i][part * (kPairs / kParts) + j] = pair_of<S>(v, j);
                        }
                    } else {
#pragma unroll
                        for (int j = 0; j < kPairs; ++j)
                            window[i][j] = make_pair(to_float(from[2 * j * p.state_dim_stride]),
                                                     to_float(from[(2 * j + (kChannels > 1)) * p.state_dim_stride]));
                    }
                }
            }
        });
    };
    const auto store_window = [&](int32_t slot, const Pair(&window)[kWidth][kPairs]) {
        with_dtype(p.state_dtype, [&](auto type) {
            using S = decltype(type);
            constexpr int kParts = kChannels * sizeof(S) > 16 ? 2 : 1;
            constexpr bool kNarrows = sizeof(S) < sizeof(T);
            using StateVector = Words<S, kChannels / kParts>;
            const auto value = [&](int i, int j) {
                const Pair v = window[i][j];
                return kNarrows ? make_pair(canonical_nan(low(v)), canonical_nan(high(v))) : v;
            };
#pragma unroll
            for (int i = 0; i < kPast; ++i) {
                S* to = static_cast<S*>(p.states) + state_offset(slot, i);
                if (plan.state_vectors) {
#pragma unroll
                    for (int part = 0; part < kParts; ++part) {
                        StateVector v;
#pragma unroll
                        for (int j = 0; j < kPairs / kParts; ++j) set_pair<S>(v, j, value(i, part * (kPairs / kParts) + j));
                        reinterpret_cast<StateVector*>(to)[part] = v;
                    }
                } else {
#pragma unroll
                    for (int j = 0; j < kPairs; ++j) {
                        to[2 * j * p.state_dim_stride] = from_float<S>(low(value(i, j)));
                        if (kChannels > 1) to[(2 * j + 1) * p.state_dim_stride] = from_float<S>(high(value(i, j)));
                    }
                }
            }
        });
    };

    // ---- the walk ------------------------------------------------------------------------------------------------------------
    Pair ring[kWidth][kPairs];  // between tokens, the last kPast ones lie in order at its begin
    const auto keep = [&](int slot, Vector v) {
#pragma unroll
        for (int j = 0; j < kPairs; ++j) ring[slot][j] = pair_of<T>(v, j);
    };
    // q, k or v is chosen by the vector's first channel: their boundaries lie between vectors.
    const CausalConv1dVarlenParams& outputs = first_argument_again(p);
    const bool split = outputs.k_dim >= 0, is_k = split && d >= outputs.k_dim, is_v = split && d >= 2 * outputs.k_dim;
    const int64_t out_channel = d - (is_v ? 2 * outputs.k_dim : is_k ? outputs.k_dim : 0);
    const int64_t out_dim_stride = split ? 1 : outputs.out_dim_stride;
    const int64_t out_token_stride = is_v ? outputs.dim - 2 * outputs.k_dim : split ? outputs.k_dim : outputs.out_token_stride;
    const int64_t out_step = out_token_stride * static_cast<int64_t>(sizeof(T));
    char* const out_begin = static_cast<char*>(is_v ? p.v : is_k ? p.k : p.out) +
                            out_channel * out_dim_stride * static_cast<int64_t>(sizeof(T));
    char* out = out_begin;
    const auto store = [&](Vector v) {
        *reinterpret_cast<Vector*>(out) = v;
        out += out_step;
    };
    Pair weight[kWidth][kPairs], bias[kPairs];
    const auto produce = [&](int slot, int absent) {  // the output of the token in this slot of the ring
        Vector result;
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
            Pair sum = bias[j];
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
                const Pair longer = multiply_add(weight[i][j], ring[(slot + 1 + i) % kWidth][j], sum);
                sum = i >= absent ? longer : sum;
            }
            set_pair<T>(result, j, p.use_silu ? silu(sum) : sum);
        }
        store(result);
    };

    int32_t t = row_begin;
    const PackedSequence* s = schedule + (t - block_begin);
    if (s->number >= 0 && t > s->begin && t - s->begin < kPast) {  // these belong to the run before
        t = s->end - s->begin < kPast ? s->end : s->begin + kPast;
        if (t < row_end) {
            load_before(t);
            load_ahead(t);
        }
    }
#pragma unroll
    for (int i = 0; i < kPast; ++i) keep(i, before[i]);

    while (t < row_end) {
        if (t >= s->end) s = schedule + (t - block_begin);
        int32_t end = s->end < row_end ? s->end : row_end;
        out = out_begin + t * out_step;
        if (s->number < 0) {
            const DeadTokens dead = first_argument_again(p).dead_tokens;
            if (dead != DeadTokens::leave)
                for (int32_t u = t; u < end; ++u) store(dead == DeadTokens::zero ? Vector{} : load(x_offset(u)));
            t = end;
            if (t < row_end) load_ahead(t);
            continue;
        }
        const bool begins = t == s->begin;
        int absent = 0;  // taps before the sequence, skipped where a weight times zero is not zero
        if (begins) {
            load_window(*s, 0, ring);
            if (s->read_slot == kNoSlot && !finite_weights) absent = kPast;
            if (end < s->end && end - s->begin < kPast) {  // the run ends here, but not this thread's part of the sequence
                end = s->end - s->begin < kPast ? s->end : s->begin + kPast;
                x_last = x_offset(end - 1);
                load_ahead(t);
            }
        }
        forget_loaded_values();  // of the parameters: states took their registers
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
            bias[j] = parameters_of(kWidth, j);
#pragma unroll
            for (int i = 0; i < kWidth; ++i) weight[i][j] = parameters_of(i, j);
        }
        for (; t + kAhead <= end && absent == 0; t += kAhead) {
#pragma unroll
            for (int j = 0; j < kAhead; ++j) {
                keep((kPast + j) % kWidth, ahead[j]);
                ahead[j] = next();
                produce((kPast + j) % kWidth, 0);
            }
        }
        for (; t < end; ++t) {  // one by one, the ring and what was loaded ahead moved along
            keep(kPast, ahead[0]);
#pragma unroll
            for (int j = 0; j + 1 < kAhead; ++j) ahead[j] = ahead[j + 1];
            ahead[kAhead - 1] = next();
            produce(kPast, absent);
            if (absent > 0) --absent;
#pragma unroll
            for (int i = 0; i < kPast; ++i)
#pragma unroll
                for (int j = 0; j < kPairs; ++j) ring[i][j] = ring[i + 1][j];
        }
        if (!begins) continue;
        // The ring is free now, or holds the final state of a sequence that ends here.
        const CausalConv1dVarlenParams& table = first_argument_again(p);
        for (int pass = 0; pass < 2; ++pass) {  // the slot that is read is overwritten last
            for (int32_t n = 0; n <= s->boundaries; ++n) {
                const StateToWrite to = state_to_write(table, *s, n);
                if (to.slot == kNoSlot || (to.slot == s->read_slot) != (pass == 1)) continue;
                if (s->boundaries > 0 || t < s->end) load_window(*s, to.position, ring);
                store_window(to.slot, ring);
            }
        }
    }
}

namespace {

bool is_power_of_two(int64_t value) { return value > 0 && (value & (value - 1)) == 0; }

// Channels of one vector: 16 bytes of them, if every vector of x and of the outputs is aligned; else one.
int channels_a_vector(const CausalConv1dVarlenParams& p) {
    const int bytes = element_bytes(p.dtype);
    const int wanted = 16 / bytes;
    const auto aligned = [&](const void* data, int64_t dim_stride, int64_t token_stride) {
        return dim_stride == 1 && reinterpret_cast<uintptr_t>(data) % 16 == 0 && token_stride % wanted == 0;
    };
    bool all = p.dim % wanted == 0 && aligned(p.x, p.x_dim_stride, p.x_token_stride);
    if (p.k_dim < 0)
        all = all && aligned(p.out, p.out_dim_stride, p.out_token_stride);
    else
        all = all && p.k_dim % wanted == 0 && aligned(p.out, 1, 0) && aligned(p.k, 1, 0) && aligned(p.v, 1, 0);
    return all ? wanted : 1;
}

bool states_are_vectors(const CausalConv1dVarlenParams& p, int channels) {
    const int bytes = element_bytes(p.state_dtype);
    const int vector = channels * bytes < 16 ? channels * bytes : 16;
    const auto aligned = [&](int64_t elements) { return elements * bytes % vector == 0; };
    return channels > 1 && p.state_dim_stride == 1 && reinterpret_cast<uintptr_t>(p.states) % vector == 0 &&
           aligned(p.slot_stride) && aligned(p.column_stride);
}

// Long runs re-read few tokens, short ones make many threads: the longest that make enough to fill a large card, and that do not hold
// many sequences, whose states a thread would wait for one after another.
int32_t tokens_of_a_run(const CausalConv1dVarlenParams& p, int64_t vectors) {
    int32_t run = kMaxRun;
    while (run > kMinRun && p.tokens / run * vectors < (1 << 16)) run /= 2;
    while (run > 2 * kMinRun && p.tokens / run < p.sequences) run /= 2;
    return run;
}

template <typename T, int kChannels, int kWidth>
void launch(const CausalConv1dVarlenParams& p, const VarlenTile& tile, hipStream_t stream) {
    constexpr int kLanes = kVarlenLanes<kChannels>;
    const int64_t vectors = p.dim / kChannels;
    unsigned lanes = power_of_two_up_to(vectors, kLanes);
    unsigned threads = kVarlenThreads;
    VarlenPlan plan{};
    plan.run = tokens_of_a_run(p, vectors);
    if (tile.tokens) {
        if (!is_power_of_two(tile.tokens) || tile.tokens < 4 || tile.tokens > kBlockTokens)
            throw std::invalid_argument("block_m: got " + std::to_string(tile.tokens) + ", expected a power of two from 4 to " +
                                        std::to_string(kBlockTokens) + ", or 0");
        plan.run = tile.tokens;
    }
    if (tile.channels) {
        if (!is_power_of_two(tile.channels) || tile.channels < kChannels || tile.channels > kLanes * kChannels)
            throw std::invalid_argument("block_n: got " + std::to_string(tile.channels) + ", expected a power of two from " +
                                        std::to_string(kChannels) + " to " + std::to_string(kLanes * kChannels) +
                                        " for these tensors, or 0");
        lanes = static_cast<unsigned>(tile.channels / kChannels);
    }
    if (tile.warps) {
        if (!is_power_of_two(tile.warps) || tile.warps * 32 > kVarlenThreads)
            throw std::invalid_argument("num_warps: got " + std::to_string(tile.warps) + ", expected 1, 2 or 4, or 0");
        threads = static_cast<unsigned>(tile.warps) * 32;
    }
    unsigned rows = threads > lanes ? threads / lanes : 1;
    if (rows * plan.run > kBlockTokens) rows = kBlockTokens / plan.run;
    plan.x_step = static_cast<uint32_t>(p.x_token_stride * static_cast<int64_t>(sizeof(T)));
    plan.x_lane = static_cast<uint32_t>(kChannels * p.x_dim_stride * static_cast<int64_t>(sizeof(T)));
    plan.state_vectors = states_are_vectors(p, kChannels);

    const int64_t block_tokens = static_cast<int64_t>(rows) * plan.run;
    const dim3 grid(static_cast<unsigned>((p.tokens + block_tokens - 1) / block_tokens),
                    static_cast<unsigned>((vectors + lanes - 1) / lanes), 1);
    hipLaunchKernelGGL((causal_conv1d_varlen_tile<T, kChannels, kWidth>), grid, dim3(lanes, rows, 1), 0, stream, p, plan);
    check_launch("causal_conv1d_varlen");
}

template <typename T, int kWidth>
void with_channels(const CausalConv1dVarlenParams& p, const VarlenTile& tile, hipStream_t stream) {
    constexpr int kWide = 16 / sizeof(T);
    channels_a_vector(p) == 1 ? launch<T, 1, kWidth>(p, tile, stream) : launch<T, kWide, kWidth>(p, tile, stream);
}

template <typename T>
void with_width(const CausalConv1dVarlenParams& p, const VarlenTile& tile, hipStream_t stream) {
    switch (p.width) {
        case 2:
            return with_channels<T, 2>(p, tile, stream);
        case 3:
            return with_channels<T, 3>(p, tile, stream);
        case 4:
            return with_channels<T, 4>(p, tile, stream);
    }
}

}  // namespace

bool causal_conv1d_varlen_tile_serves(const CausalConv1dVarlenParams& p) {
    if (p.width < 2 || p.width > 4 || p.x_token_stride < 0 || p.x_dim_stride < 0) return false;
    if (p.dim > 65535) return false;  // blocks along channels
    // A block spans its tokens, the few before them, and at most 256 channels.
    const int64_t reach = (kBlockTokens + 8) * p.x_token_stride + 256 * p.x_dim_stride;
    return reach * element_bytes(p.dtype) < kOffsetLimit;
}

void causal_conv1d_varlen_tile(const CausalConv1dVarlenParams& p, const VarlenTile& tile, void* stream) {
    const hipStream_t hip_stream = static_cast<hipStream_t>(stream);
    switch (p.dtype) {
        case DType::f32:
            return with_width<float>(p, tile, hip_stream);
        case DType::f16:
            return with_width<f16>(p, tile, hip_stream);
        case DType::bf16:
            return with_width<bf16>(p, tile, hip_stream);
    }
}

}  // namespace hipconv
