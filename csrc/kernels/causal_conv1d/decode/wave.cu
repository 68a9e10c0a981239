// The decode kernel "wave" on the host: how it divides a call, and which calls it serves. The kernel is in wave_kernel.h.
#include <hip/hip_runtime.h>

#include "calls.h"
#include "kernels.h"
#include "wave_plan.h"

namespace hipconv {

bool wave_plan(const CausalConv1dUpdateParams& p, int64_t resident_blocks, WavePlan& plan) {
    const int kBytes = element_bytes(p.dtype), kOwn = 4 / kBytes;
    plan = {};
    const bool packed = p.state_dim_stride != 1, by_starts(p.query_start_loc.data);
    plan.room = by_starts || p.seqlen > kRoom ? kRoom : p.seqlen;
    const int64_t all = p.dim / kOwn, words = all <= kWholeWords ? all : kStripWords;
    const int64_t channels = words * kOwn, strips = ceil_of(all, words);
    plan.words = small_divisor_of(words);
    plan.strips = static_cast<int32_t>(strips);
    plan.strips_divisor = divisor_of(static_cast<uint32_t>(strips));
    plan.step_rows = static_cast<int32_t>(kTeam / words);
    plan.step_words = static_cast<int32_t>(kTeam % words);
    plan.parts_at = static_cast<int32_t>(words * taps_vectors(p.width, kOwn) * 16);
    const bool one_token = p.seqlen == 1 && !by_starts;
    plan.one_stretch = one_token || (strips == 1 && p.x.token_stride == p.dim);
    if (!plan.one_stretch && p.x.token_stride * kBytes % 16 != 0) return false;
    if (!packed && strips > 1) return false;
    const int64_t columns = packed || p.num_accepted_tokens.data ? p.state_len : p.width - 1;
    plan.tokens_at = static_cast<int32_t>(round_up(channels * columns * kBytes, 16) + 16);
    plan.token_bytes = static_cast<int32_t>(plan.one_stretch ? channels * kBytes : round_up(channels * kBytes, 16) + 16);
    plan.row_bytes = static_cast<int32_t>(
        plan.tokens_at + (plan.one_stretch ? round_up(plan.room * plan.token_bytes, 16) + 16 : plan.room * plan.token_bytes));

    const int64_t room = kStageBytes - plan.parts_at;
    int64_t teams = kMostTeams;
    while (teams > 1 && teams * plan.row_bytes > room) --teams;
    if (teams * plan.row_bytes > room) return false;
    int64_t rows = 1;
    int64_t best = 0;  // of lanes with a word
    for (int64_t r = 1;
         r <= kMostRowsAtOnce && teams * r * plan.row_bytes <= room && (r == 1 || r * plan.row_bytes <= kEnoughBytes); ++r) {
        if (r > 1 && p.batch * strips < r * teams * resident_blocks) break;
        const int64_t filled = 1024 * r * words / round_up(r * words, kTeam);
        if (filled > best + 20 || (r * plan.row_bytes <= kEnoughBytes / 2 && filled >= best)) best = filled, rows = r;
    }
    const int64_t groups = ceil_of(p.batch, rows) * strips, rounds = ceil_of(groups, resident_blocks * teams);
    const int64_t most = kMostRows / (teams * rows), waves = ceil_of(rounds, most);
    plan.teams = static_cast<int32_t>(teams);
    plan.rows = static_cast<int32_t>(rows);
    plan.turns = static_cast<int32_t>(ceil_of(rounds, waves));
    plan.two_places = kCopiesPastRegisters && plan.turns > 1 && 2 * teams * rows * plan.row_bytes <= room;
    const int64_t vectors = plan.tokens_at / 16;
    plan.log_movers = rows == 1 || vectors > 128 ? 5 : rows < 4 || vectors > 64 ? 4 : 3;
    plan.fours = packed && (p.state_len == 4 || p.state_len == 8) && p.state.bits % (4 * kBytes) == 0 && p.slot_stride % 4 == 0;
    plan.stores_fours = plan.fours && (!p.num_accepted_tokens.data || p.state_len - (p.width - 2) <= kRoom);
    return true;
}

namespace {

bool serves(const CausalConv1dUpdateParams& p) {
    if (p.width < kLeastWidth || p.width > kMostWidth || p.state_dtype != p.dtype || p.history != p.width - 1) return false;
    if (p.batch * ceil_of(p.dim, kStripWords) > kMostBlocks) return false;
    if (p.tree_child.data || p.cache_seqlens.data || p.intermediate) return false;
    // Then both slots lie as far behind a multiple of 16 bytes, and are written whole.
    const bool alike = p.slot_stride * element_bytes(p.dtype) % 16 == 0 && p.state_len == p.width - 1;
    if (p.fork && (!alike || p.num_accepted_tokens.data)) return false;
    if (!rows_are_words(p)) return false;
    const bool packed = p.state_dim_stride != 1 && p.state_dim_stride == p.state_len && p.column_stride == 1;
    const bool rows = p.state_dim_stride == 1 && (p.column_stride == p.dim || p.state_len == 1);
    if (!packed && !rows) return false;
    WavePlan plan;
    return wave_plan(p, 1, plan);
}

}  // namespace

const char* causal_conv1d_update_wave_refusal(const CausalConv1dUpdateParams& p) {
    if (serves(p)) return nullptr;
    return "widths 2 to 8 with conv_state of the dtype of x and no gaps in a slot, aligned channels in words of 4 bytes, "
           "no columns that move before the window, and none of: cache_seqlens, intermediate_conv_window, retrieve_next_token, "
           "conv_state_indices_in; up to 384 channels, or 192 of float32, where channels are neighbours in conv_state";
}

namespace {

constexpr int64_t kFewBytes = 12 << 20, kSomeBytes = 30 << 20, kManyBytes = 80 << 20;  // that a call moves

}  // namespace

// By times of an H100 and an H200: many bytes of channels that come in pairs only, but for narrow widths; packed slots with
// weights wider than x, which `step` fetches for each row; and packed slots whose columns `vector` would pick one by one.
bool causal_conv1d_update_wave_beats_vectors(const CausalConv1dUpdateParams& p) {
    if (!kCopiesPastRegisters || bytes_of(p) < kFewBytes || causal_conv1d_update_wave_refusal(p)) return false;
    constexpr int kFours = 4, kCommonWidth = 4;
    const bool one_token = has_one_token(p), packed = p.state_dim_stride != 1;
    const int bytes_of_x = element_bytes(p.dtype);
    if (p.dim % kFours != 0) {
        const bool late = bytes_of_x == 4 || (one_token && p.width <= kCommonWidth);
        return bytes_of(p) >= (late ? 2 * kManyBytes : kManyBytes) && p.width >= (bytes_of_x == 4 ? 4 : 3);
    }
    if (!packed) return false;
    if (one_token)
        return element_bytes(p.weight_dtype) > bytes_of_x &&
               bytes_of(p) >= (p.width > kCommonWidth ? kSomeBytes : 2 * kManyBytes);
    const bool in_registers = p.state_len == 3 || p.state_len == 4 || p.state_len == 6;  // of `vector`
    return p.width == kCommonWidth && !in_registers;
}

// By the same, where neither of those serves: all but few bytes of few channels.
bool causal_conv1d_update_wave_is_choice(const CausalConv1dUpdateParams& p) {
    const int words = p.dim * element_bytes(p.dtype) / 4;
    return kCopiesPastRegisters && (words > kWholeWords || bytes_of(p) >= kFewBytes);
}

void causal_conv1d_update_wave(const CausalConv1dUpdateParams& p, void* /*workspace*/, void* stream) {
    with_dtype(p.dtype, [&](auto type) { launch_waves<decltype(type)>(p, static_cast<hipStream_t>(stream)); });
}

}  // namespace hipconv
