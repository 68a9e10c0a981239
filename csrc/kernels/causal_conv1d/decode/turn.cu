// The decode kernel "turn" on the host: how it divides a call, and which calls it serves. The kernel is in turn_kernel.h.
#include <hip/hip_runtime.h>

#include "calls.h"
#include "kernels.h"
#include "turn_plan.h"

namespace hipconv {

namespace {

bool slots_in_vectors(const CausalConv1dUpdateParams& p, int bytes) {
    return p.state.bits % static_cast<unsigned>(bytes) == 0 && p.slot_stride * element_bytes(p.dtype) % bytes == 0;
}

}  // namespace

SlotForm turn_form(const CausalConv1dUpdateParams& p) {
    if (p.state_dim_stride == 1) return SlotForm::rows;
    const int vector = p.state_len % 4 == 0 ? 16 : p.state_len % 2 == 0 ? 8 : 4;
    const bool window = p.state_len == p.width - 1 && !p.num_accepted_tokens.data && slots_in_vectors(p, vector);
    return window ? SlotForm::window : SlotForm::packed;
}

TurnPlan turn_plan(const CausalConv1dUpdateParams& p, int sets, int most_lanes, int64_t resident) {
    TurnPlan plan{};
    const bool packed = p.state_dim_stride != 1;
    const int64_t all = p.dim * element_bytes(p.dtype) / 4;  // words of a row
    const int64_t lanes = all <= kWholeStrip ? all : kUsualStrip, strips = ceil_of(all, lanes);
    const int kBytes = element_bytes(p.dtype);
    plan.row_vectors = static_cast<int32_t>(packed ? ceil_of(lanes * p.state_len * 4, 16) + 1 : 0);
    plan.fours = packed && (p.state_len == 4 || p.state_len == 8) && slots_in_vectors(p, 4 * kBytes);
    int64_t rows = most_lanes / lanes;
    if (rows > kTurnRows / sets) rows = kTurnRows / sets;
    while (packed && rows > 1 && sets * rows * plan.row_vectors > kTurnStage) --rows;
    while (rows > 1 && p.batch * strips < sets * rows * resident) --rows;  // few rows are for the whole card
    const int64_t rounds = ceil_of(ceil_of(p.batch, sets * rows) * strips, resident), most = kTurnRows / (sets * rows);
    plan.rows = static_cast<int32_t>(rows);
    plan.turns = static_cast<int32_t>(ceil_of(rounds, ceil_of(rounds, most)));
    plan.strips = static_cast<int32_t>(strips);
    plan.strips_divisor = divisor_of(static_cast<uint32_t>(strips));
    plan.lanes = small_divisor_of(lanes);
    return plan;
}

namespace {

bool serves(const CausalConv1dUpdateParams& p) {
    if (p.width < kLeastTurnWidth || p.width > kMostTurnWidth || p.state_dtype != p.dtype || p.history != p.width - 1)
        return false;
    if (p.tree_child.data || p.cache_seqlens.data || p.intermediate) return false;
    const int own = 4 / element_bytes(p.dtype);
    if (int64_t{p.batch} * ceil_of(p.dim / own, kUsualStrip) > kMostTurnBlocks) return false;
    if (!rows_are_words(p)) return false;
    if (p.state_dim_stride == 1) return p.state_len == 1 || p.column_stride % own == 0;
    if (p.column_stride != 1 || p.state_dim_stride != p.state_len) return false;
    // A packed slot is written whole: a fork would overwrite columns at rest.
    if (p.fork && (p.num_accepted_tokens.data || p.state_len != p.width - 1)) return false;
    const int64_t words = p.dim / own <= kWholeStrip ? p.dim / own : kUsualStrip;
    if (p.fork && p.slot_stride * element_bytes(p.dtype) % 16 != 0) return false;  // both slots begin as far behind a vector
    return kTurnSets<kLeastTurnWidth> * (ceil_of(words * p.state_len * 4, 16) + 1) <= kTurnStage;
}

}  // namespace

const char* causal_conv1d_update_turn_refusal(const CausalConv1dUpdateParams& p) {
    if (serves(p)) return nullptr;
    return "widths 2 to 8 with conv_state of the dtype of x, aligned channels in words of 4 bytes, (slots, dim, state_len) "
           "without gaps and of few columns, no columns that move before the window, and none of: cache_seqlens, "
           "intermediate_conv_window, retrieve_next_token";
}

namespace {

constexpr int kFours = 4, kCommonWidth = 4;
constexpr int64_t kFewBytes = 12 << 20, kSomeBytes = 40 << 20;  // that a call moves

}  // namespace

// By an H100's times: float32 at the widths of which `step` and `vector` have pairs of channels; several tokens of 16 bits
// whose weights are wider, which those fetch for each row; and pairs of channels at width 2, whose rows have few bytes.
bool causal_conv1d_update_turn_beats_vectors(const CausalConv1dUpdateParams& p) {
    if (!kCopiesPastRegisters || bytes_of(p) < kFewBytes || causal_conv1d_update_turn_refusal(p)) return false;
    const bool packed = p.state_dim_stride != 1, several = !has_one_token(p), half = element_bytes(p.dtype) == 2;
    const bool wide_weights = half && element_bytes(p.weight_dtype) == 4;
    if (p.dim % kFours != 0) return !packed && several && half && p.width == 2;
    if (packed) return several && wide_weights && p.width == kCommonWidth && p.state_len > kFours;
    if (!half) return p.width > kCommonWidth;
    return several && wide_weights && p.width > kCommonWidth && bytes_of(p) >= kSomeBytes;
}

// By the same: besides, packed slots of several tokens, and of few channels where a call has few bytes.
bool causal_conv1d_update_turn_is_choice(const CausalConv1dUpdateParams& p) {
    if (causal_conv1d_update_turn_beats_vectors(p)) return true;
    if (!kCopiesPastRegisters || p.state_dim_stride == 1) return false;
    const bool half = element_bytes(p.dtype) == 2;
    if (bytes_of(p) < kFewBytes) return p.dim * element_bytes(p.dtype) / 4 <= kWholeStrip && p.width > 3;
    return !has_one_token(p) && (p.dim % kFours == 0 || (half && p.width < kMostTurnWidth));
}

void causal_conv1d_update_turn(const CausalConv1dUpdateParams& p, void* /*workspace*/, void* stream) {
    with_dtype(p.dtype, [&](auto type) { launch_turns<decltype(type)>(p, static_cast<hipStream_t>(stream)); });
}

}  // namespace hipconv
