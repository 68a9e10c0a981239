// This kernel is the causal conv1d decode of several tokens a row, width 4, for cards that copy from memory to LDS past the
// registers: `vector` runs it there for 16-bit elements whose slots are packed ((slots, dim, columns)).
//
// Its time is the bytes, as long as enough of them are under way: registers that wait for memory would hold too few. So a wave
// asks for the first tokens of its strip and for the strip's part of the slot in copies of 16 bytes, which need no registers,
// and waits for nobody but itself: there are no block barriers. The new state takes the old one's place in LDS and leaves in 16
// bytes, too.
//
// The time of the instructions, a wave's for every 128 channels of a row, is close to that of the bytes: so the work that all
// rows need is straight-line code for four tokens.
//
// A wave reads its window before it writes, and each token before its output, so x and out may be one tensor.
#include <hip/hip_runtime.h>

#include "device/vec.h"
#include "launch/check.h"
#include "vectors.h"

namespace hipconv {

constexpr int kCopyLanes = 32, kCopyWaves = 4, kCopyBlocks = 6;
constexpr int kFour = 4;                              // tokens that are asked for at once
constexpr int kDraftSlot = kCommonWidth - 2 + kFour;  // columns of a slot for speculative decoding of as many
constexpr int kStripChannels = kCopyLanes * kChannels;
constexpr int kPieceElements = 8;  // 16 bytes

HIPCONV_INLINE void split(Words2& first, Words2& second, Words4 both) {
#pragma unroll
    for (int w = 0; w < 2; ++w) {
        set_word(first, w, word(both, w));
        set_word(second, w, word(both, 2 + w));
    }
}

HIPCONV_INLINE Words4 joined(Words2 first, Words2 second) {
    Words4 both{};
#pragma unroll
    for (int w = 0; w < 4; ++w) set_word(both, w, word(w < 2 ? first : second, w % 2));
    return both;
}

// With kInFours, x and out are (batch, dim, 4) without gaps, else neighbouring channels are neighbours in memory.
template <typename T, int kColumns, bool kInFours>
__global__ void HIPCONV_LAUNCH_BOUNDS(kCopyLanes* kCopyWaves, kCopyBlocks) causal_conv1d_update_copied(VectorParams params) {
    if constexpr (!kCopiesPastRegisters) return;
    const VectorParams& p = first_parameter(params);
    constexpr int kPast = kCommonWidth - 1, kPairs = kChannels / 2;
    constexpr int kTokenPieces = kStripChannels / kPieceElements, kStatePieces = kColumns * kTokenPieces;
    constexpr int kWavePieces = kFour * kTokenPieces + kStatePieces;
    constexpr bool kDrafts = kColumns == kDraftSlot;
    using Vector = Words<T, kChannels>;
    HIPCONV_SHARED(Words4, staged, kCopyWaves * kWavePieces);

    const unsigned b = blockIdx.x;
    const int lane = static_cast<int>(threadIdx.x) % kCopyLanes, wave = static_cast<int>(threadIdx.x) / kCopyLanes;
    const int strip_d = (static_cast<int>(blockIdx.y) * kCopyWaves + wave) * kStripChannels;
    if (strip_d >= p.dim) return;
    const int strip = p.dim - strip_d < kStripChannels ? p.dim - strip_d : kStripChannels;  // channels
    const bool active = lane * kChannels < strip;
    const int d = strip_d + (active ? lane : 0) * kChannels;

    // ---- the row: its slot and its tokens -----------------------------------------------------------------------------------
    let_next_kernel_begin();
    wait_for_kernel_before();
    // The row's indices are asked for at once and looked at later.
    const bool by_starts(p.query_start_loc.data), speculative = kDrafts && p.num_accepted_tokens.data;
    IndexWords::Value slot{b, 0}, begin{}, end{}, accepted{};
    if (p.slot_of_row.data) slot = p.slot_of_row.load(b);
    if (by_starts) {
        begin = p.query_start_loc.load(b);
        end = p.query_start_loc.load(int64_t{b} + 1);
    }
    if (speculative) accepted = p.num_accepted_tokens.load(b);
    ChannelParameters<T, kCommonWidth, kChannels, true> parameters;
    parameters.load(p, d);

    const auto token_of = [&](IndexWords::Value value) {
        const int64_t token = p.query_start_loc.integer(value);
        return static_cast<int32_t>(token < 0 ? 0 : token > p.total_tokens ? p.total_tokens : token);
    };
    const int32_t first_token = by_starts ? token_of(begin) : 0, count = by_starts ? token_of(end) - first_token : p.seqlen;
    Slots slots = slots_of_row(p, b, slot);
    int32_t first_column = 0;
    if (speculative) {
        const int64_t number = p.num_accepted_tokens.integer(accepted);
        slots.live = slots.live && number >= 1 && number <= kFour && count <= kFour;
        first_column = static_cast<int32_t>(number - 1);
    }
    T* const out =
        p.out.as<T>() + b * p.out_row_stride + (kInFours ? int64_t{d} * kFour : first_token * p.out_token_stride + d);
    if (__builtin_expect(p.zero_padding, 0)) {
        const int64_t rest = by_starts ? p.query_start_loc.integer(p.query_start_loc.load(p.batch)) : p.total_tokens;
        const auto zero = [&](int64_t token) {
            if (active)
                *reinterpret_cast<Vector*>(p.out.as<T>() + b * p.out_row_stride + token * p.out_token_stride + d) = Vector{};
        };
        if (by_starts)  // the rows share out the tokens after the last of them
#pragma unroll 1
            for (int64_t t = (rest < 0 ? 0 : rest) + b; t < p.total_tokens; t += p.batch) zero(t);
#pragma unroll 1
        for (int64_t t = 0; b == 0 && t < first_token; ++t) zero(t);
#pragma unroll 1
        for (int32_t t = 0; !slots.live && !kInFours && t < count; ++t) zero(first_token + int64_t{t});
        for (int k = 0; !slots.live && kInFours && active && k < 2; ++k) reinterpret_cast<Words4*>(out)[k] = Words4{};
    }
    if (!slots.live || count <= 0) return;

    // ---- tokens and the state, to LDS ---------------------------------------------------------------------------------------
    Words4* const tokens = staged + wave * kWavePieces;
    Words4* const state = tokens + kFour * kTokenPieces;
    const T* const x = p.x.as<const T>() + b * p.x_row_stride + (kInFours ? 0 : first_token * p.x_token_stride);
#pragma unroll
    for (int k = 0; k < kFour * kTokenPieces / kCopyLanes; ++k) {
        const int piece = k * kCopyLanes + lane, token = piece / kTokenPieces, at = piece % kTokenPieces;
        if (kInFours) {
            if (piece * kPieceElements < strip * kFour)
                copy_later(tokens + piece, x + int64_t{strip_d} * kFour + piece * kPieceElements, false);
        } else if (at * kPieceElements < strip && token < count) {
            copy_later(tokens + piece, x + token * p.x_token_stride + (strip_d + at * kPieceElements), false);
        }
    }
    const auto state_of = [&](uint32_t slot) {
        return p.state.as<T>() + slot * p.slot_stride + strip_d * kColumns + lane * kPieceElements;
    };
    const auto in_strip = [&](int k) { return (k * kCopyLanes + lane) * kPieceElements < strip * kColumns; };
    const T* const from = state_of(slots.read);
#pragma unroll
    for (int k = 0; k < (kStatePieces + kCopyLanes - 1) / kCopyLanes; ++k)
        if (in_strip(k)) copy_later(state + k * kCopyLanes + lane, from + k * (kCopyLanes * kPieceElements), false);
    close_copies();
    parameters.convert(p, d);
    wait_for_copies<0>();
    sync_wave();

    // ---- the window and the tokens, in registers ----------------------------------------------------------------------------
    // These vectors of channels are the columns of the slot, oldest first, and the window with the tokens after it.
    Vector packed[kColumns], columns[kColumns], history[kPast + kFour];
    if constexpr (kColumns % 2 == 0) {
#pragma unroll
        for (int k = 0; k < kColumns / 2; ++k) split(packed[2 * k], packed[2 * k + 1], state[lane * (kColumns / 2) + k]);
    } else {
#pragma unroll
        for (int k = 0; k < kColumns; ++k) packed[k] = reinterpret_cast<const Vector*>(state)[lane * kColumns + k];
    }
    transpose<T, kColumns, false>(columns, packed);
#pragma unroll
    for (int i = 0; i < kPast; ++i) history[i] = columns[i];
    if constexpr (kDrafts) {
#pragma unroll
        for (int column = 1; column <= kColumns - kPast; ++column) {
#pragma unroll
            for (int i = 0; i < kPast; ++i) history[i] = first_column == column ? columns[i + column] : history[i];
        }
    }
    if constexpr (kInFours) {
        Vector fours[kFour];
#pragma unroll
        for (int k = 0; k < kFour / 2; ++k) split(fours[2 * k], fours[2 * k + 1], tokens[lane * (kFour / 2) + k]);
        transpose<T, kFour, false>(history + kPast, fours);
    } else {
#pragma unroll
        for (int t = 0; t < kFour; ++t) {
            history[kPast + t] = Vector{};
            if (t < count) history[kPast + t] = reinterpret_cast<const Vector*>(tokens + t * kTokenPieces)[lane];
        }
    }

    // ---- outputs ------------------------------------------------------------------------------------------------------------
    Pair sums[kFour][kPairs];
#pragma unroll
    for (int t = 0; t < kFour; ++t) {
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
            sums[t][j] = parameters.bias[j];
#pragma unroll
            for (int i = 0; i < kCommonWidth; ++i)
                sums[t][j] = multiply_add(parameters.weight[i][j], pair_of<T>(history[t + i], j), sums[t][j]);
        }
    }
    if (p.use_silu) {
#pragma unroll
        for (int t = 0; t < kFour; ++t) {
#pragma unroll
            for (int j = 0; j < kPairs; ++j) sums[t][j] = silu(sums[t][j]);
        }
    }
    Vector results[kFour];
#pragma unroll
    for (int t = 0; t < kFour; ++t) {
#pragma unroll
        for (int j = 0; j < kPairs; ++j) set_pair<T>(results[t], j, sums[t][j]);
    }
    if constexpr (kInFours) {
        Vector fours[kFour];
        transpose<T, kFour, true>(fours, results);
#pragma unroll
        for (int k = 0; k < kFour / 2; ++k)
            if (active) reinterpret_cast<Words4*>(out)[k] = joined(fours[2 * k], fours[2 * k + 1]);
    } else if (active) {
        const auto store = [&](int t) { *reinterpret_cast<Vector*>(out + t * p.out_token_stride) = results[t]; };
#pragma unroll
        for (int t = 0; t < kFour - 1; ++t)
            if (t < count) store(t);
        if (count >= kFour) store(kFour - 1);
    }

    // ---- the new state ------------------------------------------------------------------------------------------------------
    if (speculative) {  // no more tokens than such a state keeps, and it keeps them all
#pragma unroll
        for (int i = 0; kDrafts && i < kPast - 1; ++i) columns[i] = history[i + 1];
#pragma unroll
        for (int t = 0; kDrafts && t < kFour; ++t)
            columns[kPast - 1 + t] = t < count ? history[kPast + t] : columns[kPast - 1 + t];
    } else {
#pragma unroll
        for (int i = 0; i < kPast; ++i) columns[i] = history[kFour + i];
        if (__builtin_expect(count < kFour, 0)) {
#pragma unroll
            for (int i = 0; i < kPast; ++i)
                columns[i] = count == 1 ? history[1 + i] : count == 2 ? history[2 + i] : history[3 + i];
        }
#pragma unroll 1
        for (int t = kFour; !kInFours && t < count; ++t) {  // few rows are longer: their other tokens are loaded here
            const Vector token = *reinterpret_cast<const Vector*>(x + t * p.x_token_stride + d);
            const auto window = [&](int i, int j) { return pair_of<T>(columns[i], j); };
            const Vector result = parameters.template convolve<true>(window, token, p.use_silu);
            if (active) *reinterpret_cast<Vector*>(out + t * p.out_token_stride) = result;
#pragma unroll
            for (int i = 0; i < kPast - 1; ++i) columns[i] = columns[i + 1];
            columns[kPast - 1] = token;
        }
    }

    transpose<T, kColumns, true>(packed, columns);
    if (active) {
        if constexpr (kColumns % 2 == 0) {
#pragma unroll
            for (int k = 0; k < kColumns / 2; ++k) state[lane * (kColumns / 2) + k] = joined(packed[2 * k], packed[2 * k + 1]);
        } else {
#pragma unroll
            for (int k = 0; k < kColumns; ++k) reinterpret_cast<Vector*>(state)[lane * kColumns + k] = packed[k];
        }
    }
    sync_wave();
    T* const to = state_of(slots.write);
#pragma unroll
    for (int k = 0; k < (kStatePieces + kCopyLanes - 1) / kCopyLanes; ++k)
        if (in_strip(k)) *reinterpret_cast<Words4*>(to + k * (kCopyLanes * kPieceElements)) = state[k * kCopyLanes + lane];
}

namespace {

template <typename T, int kColumns>
void launch(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    const dim3 grid(static_cast<unsigned>(p.batch), blocks_up_to(p.dim, kCopyWaves * kStripChannels, kMostStrips), 1);
    const dim3 block(kCopyLanes * kCopyWaves, 1, 1);
    const VectorParams params = vector_params(p);
    if (params.x_in_fours)
        HIPCONV_LAUNCH(true, (causal_conv1d_update_copied<T, kColumns, true>), grid, block, 0, stream, params);
    else
        HIPCONV_LAUNCH(true, (causal_conv1d_update_copied<T, kColumns, false>), grid, block, 0, stream, params);
    check_launch("causal_conv1d_update");
}

template <typename T>
void with_columns(const CausalConv1dUpdateParams& p, hipStream_t stream) {
    p.state_len == kDraftSlot     ? launch<T, kDraftSlot>(p, stream)
    : p.state_len == kCommonWidth ? launch<T, kCommonWidth>(p, stream)
                                  : launch<T, kCommonWidth - 1>(p, stream);
}

// Rows of whole pieces.
bool in_pieces(const CausalConv1dUpdateParams& p, const Tokens& tokens, bool fours) {
    const bool packed = fours ? in_fours(p, tokens) && p.seqlen == kFour && tokens.dim_stride == kFour
                              : in_vectors(p, tokens) && tokens.token_stride % kPieceElements == 0;
    return packed && is_aligned(tokens.data, 16) && tokens.row_stride % kPieceElements == 0;
}

}  // namespace

bool causal_conv1d_update_copied_serves(const CausalConv1dUpdateParams& p) {
    const auto as_wide_as_x = [&](DType dtype) { return element_bytes(dtype) == element_bytes(p.dtype); };
    if (!kCopiesPastRegisters || p.dtype == DType::f32 || p.state_dtype != p.dtype || p.width != kCommonWidth) return false;
    if (!as_wide_as_x(p.weight_dtype) || (p.bias && !as_wide_as_x(p.bias_dtype))) return false;
    if (p.out_end[0] != p.dim || p.dim % kPieceElements != 0 || !channels_in_vectors(p) || p.state_dim_stride == 1)
        return false;
    // Tokens of a row after the fourth come one by one: where they are few.
    if (p.query_start_loc.data ? p.total_tokens > int64_t{kFour} * p.batch : p.seqlen > kFour) return false;
    const bool drafts = p.state_len == kDraftSlot && !p.fork;
    if (p.history != p.width - 1 || !(columns_in_registers(p) || drafts)) return false;
    if (!is_aligned(p.state, 16) || p.slot_stride % kPieceElements != 0) return false;
    const bool fours = in_fours(p, p.x);
    return in_pieces(p, p.x, fours) && in_pieces(p, p.out[0], fours);
}

void causal_conv1d_update_copied(const CausalConv1dUpdateParams& p, void* stream) {
    const hipStream_t hip_stream = static_cast<hipStream_t>(stream);
    p.dtype == DType::f16 ? with_columns<f16>(p, hip_stream) : with_columns<bf16>(p, hip_stream);
}

}  // namespace hipconv
