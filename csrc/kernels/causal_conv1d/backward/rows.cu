// The backward kernel of short rows ("rows", rows_kernel.h): its plan, and its instances, for 16-bit types.
#include <hip/hip_runtime.h>

#include "kernels.h"
#include "rows_kernel.h"
#include "rows_single.h"
#include "sums.h"

namespace hipconv {

namespace {

constexpr int kWave = 32;                // lanes; the order of sums is the same on all cards
constexpr int kLeastRowsChannels = 32;   // of a block, where there are more: states are read 64 bytes at a time
constexpr int kMostTokensOfThread = 32;  // of a stage, where LDS has room: what a stage takes beside its tokens is shared
constexpr int kLeastTokensOfThread = 8;  // even of few blocks, where rows are shorter
constexpr int kMostStages = 16;          // of a block
constexpr int64_t kEnoughRowsBlocks = 1024;
constexpr int kMostConflicts = 8;           // lanes that meet in a bank of LDS
constexpr int kMostBytesOfFollowing = 128;  // of a row, if several are one stretch
constexpr int kFewChannels = 8;

int64_t greatest_common_divisor(int64_t a, int64_t b) { return b == 0 ? a : greatest_common_divisor(b, a % b); }

// Tells how a row of so many channels lies: in one piece of memory, if at least half of that is its elements.
struct BwdRowsPiece {
    bool is_one, has_gaps, tokens_inside;
};

BwdRowsPiece bwd_rows_piece(const CausalConv1dBwdParams& p, const Sequences& s, int channels) {
    const int64_t t = p.in.seqlen > 1 ? s.seqlen_stride : 0, d = channels > 1 ? s.dim_stride : 0;
    const int64_t tokens = p.in.seqlen, elements = channels * tokens;
    const bool tokens_inside = (tokens == 1 || t == 1) && (channels == 1 || d >= tokens);
    const bool channels_inside = (channels == 1 || d == 1) && (tokens == 1 || t >= channels);
    const int64_t span = (channels - 1) * d + (tokens - 1) * t + 1;
    return {(tokens_inside || channels_inside) && span <= 2 * elements, span != elements, tokens_inside};
}

// Lanes of neighbouring channels that meet in a bank of LDS, at most.
int64_t bwd_rows_conflicts(const Sequences& s, int channels, int size) {
    const int64_t lanes = channels < kWave ? channels : kWave;
    return lanes * greatest_common_divisor(s.dim_stride * size, 128) / 128;
}

// Lays a tensor out in LDS for blocks of so many channels, but for its place there. Returns its bytes of a row.
int bwd_rows_lay_out(const CausalConv1dBwdParams& p, const Sequences& s, int channels, bool is_dx, BwdRowsTensor* how) {
    const int size = element_bytes(p.in.dtype);
    *how = {};
    how->t_memory = s.seqlen_stride * size;
    how->d_memory = s.dim_stride * size;
    how->row_memory = s.batch_stride * size;
    const BwdRowsPiece piece = bwd_rows_piece(p, s, channels);
    how->is_flat = piece.is_one && (channels == 1 || bwd_rows_conflicts(s, channels, size) <= kMostConflicts) &&
                   !(is_dx && piece.has_gaps && p.in.seqlen == 1);  // single tokens are stored where they are made
    how->has_gaps = piece.has_gaps;
    how->tokens_inside = piece.tokens_inside;
    if (!how->is_flat) {
        if (is_dx) return 0;
        how->t_step = size;
        how->d_step = static_cast<int32_t>(ceil_of(int64_t{p.in.seqlen} * size, 4) | 1) * 4;
        how->row_step = channels * how->d_step;
        return how->row_step;
    }
    how->t_step = p.in.seqlen > 1 ? static_cast<int32_t>(how->t_memory) : 0;
    how->d_step = channels > 1 ? static_cast<int32_t>(how->d_memory) : 0;
    if (p.in.seqlen == 1) how->t_memory = 0;
    if (channels == 1 && p.in.dim == 1) how->d_memory = 0;
    const int64_t bytes = int64_t{channels - 1} * how->d_step + int64_t{p.in.seqlen - 1} * how->t_step + size;
    how->rows_follow = channels == p.in.dim && bytes <= kMostBytesOfFollowing && how->row_memory >= bytes &&
                       how->row_memory % 32 != 0 && how->row_memory <= (is_dx ? bytes : 2 * bytes);
    // Rows that lie apart begin in banks of their own.
    how->row_step = how->rows_follow ? static_cast<int32_t>(how->row_memory)
                                     : static_cast<int32_t>(round_up(bytes + kBwdRowsUnit - size, kBwdRowsUnit)) | kBwdRowsUnit;
    return how->row_step;
}

// Tells whether dx lies in its 16 bytes as dout does, so that it can take dout's place in LDS.
bool bwd_rows_lie_alike(const CausalConv1dBwdParams& p, const BwdRowsTensor& a, const BwdRowsTensor& b) {
    const auto differ = [](int64_t one, int64_t other) { return (one - other) % kBwdRowsUnit != 0; };
    return a.is_flat && b.is_flat && a.rows_follow == b.rows_follow && a.t_step == b.t_step && a.d_step == b.d_step &&
           a.row_step == b.row_step && (p.in.batch == 1 || !differ(a.row_memory, b.row_memory)) &&
           !differ(a.d_memory, b.d_memory) &&
           !differ(reinterpret_cast<int64_t>(p.dout.data), reinterpret_cast<int64_t>(p.dx.data));
}

// The plan for blocks of so many channels; it has no rows if none fits.
BwdRowsPlan bwd_rows_plan_of(const CausalConv1dBwdParams& p, int channels) {
    BwdRowsPlan plan{};
    plan.channels = channels;
    plan.groups = static_cast<uint32_t>((p.in.dim + channels - 1) / channels);
    const int of_x = bwd_rows_lay_out(p, p.in.x, channels, false, &plan.x);
    const int of_dout = bwd_rows_lay_out(p, p.dout, channels, false, &plan.dout);
    int of_dx = bwd_rows_lay_out(p, p.dx, channels, true, &plan.dx);
    const bool in_place = bwd_rows_lie_alike(p, plan.dout, plan.dx);
    if (in_place) of_dx = 0;
    const int of_taps = p.in.seq_idx.data ? p.in.seqlen : 0;
    const int of_row = of_x + of_dout + of_dx + of_taps, least = (kBwdRowsMaxWidth + 1) * 4 * kBwdRowsThreads;
    constexpr int kOfStage = 4 * 2 * kBwdRowsUnit;  // what is lost at the ends of regions
    const int fit = (kBwdRowsLds - kOfStage) / of_row;
    int rows = kBwdRowsThreads / channels;
    if (rows > fit) rows = fit;
    if (rows > p.in.batch) rows = p.in.batch;
    if (rows < 1) return plan;
    // Fewer rows, if the last wave of a block would be idle for the most part.
    const int threads = rows * channels, whole = threads / kWave * kWave / channels;
    if (2 * whole >= rows && whole * channels * round_up(threads, kWave) > threads * round_up(int64_t{whole} * channels, kWave))
        rows = whole;
    plan.rows = rows;
    const auto flag = [](bool set, BwdRowsFlags value) { return set ? value : 0u; };
    plan.flags = flag(p.in.use_silu, kRowsSilu) | flag(p.in.seq_idx.data, kRowsIds) |
                 flag(p.in.initial_states.data, kRowsInitial) | flag(p.dinitial_states.data, kRowsGiveInitial) |
                 flag(p.dfinal_states.data, kRowsFinal) | flag(plan.dx.is_flat, kRowsDxIsFlat);
    plan.of_row = small_divisor_of(int64_t{p.in.seqlen} * channels);
    plan.of_line = small_divisor_of(plan.dx.tokens_inside ? p.in.seqlen : channels);
    const int64_t batch = p.in.batch, all_turns = ceil_of(batch, rows);
    plan.turns = kMostTokensOfThread / p.in.seqlen;
    const int least_turns = kLeastTokensOfThread / p.in.seqlen;
    while (plan.turns > least_turns && plan.groups * ceil_of(all_turns, plan.turns) < kEnoughRowsBlocks) --plan.turns;
    if (plan.turns > fit / rows) plan.turns = fit / rows;
    if (plan.turns > all_turns) plan.turns = static_cast<int>(all_turns);
    if (plan.turns < 1) plan.turns = 1;
    const int all_rows = rows * plan.turns;
    plan.all_stages = static_cast<int>((batch + all_rows - 1) / all_rows);
    // Takes as many stages a block as cost a large card least: each round of the blocks that it holds at once has a start and
    // an end, which take as long as a stage.
    const int64_t at_once = kUnitsOfLargeCard * bwd_rows_blocks(p.in.width);
    const auto pieces = [&](int stages) { return (int64_t{plan.all_stages} + stages - 1) / stages; };
    const auto cost_of = [&](int stages) { return ceil_of(plan.groups * pieces(stages), at_once) * (stages + 1); };
    plan.stages = 1;
    for (int stages = 2; stages <= kMostStages; ++stages)
        if (cost_of(stages) < cost_of(plan.stages)) plan.stages = stages;
    plan.pieces = static_cast<uint32_t>(pieces(plan.stages));
    const auto region = [&](int of_each) {
        return static_cast<int>(round_up(int64_t{of_each} * all_rows + kBwdRowsUnit, kBwdRowsUnit));
    };
    plan.dout.begin = region(of_x);
    plan.dx.begin = in_place ? plan.dout.begin : plan.dout.begin + region(of_dout);
    plan.taps_begin = in_place ? plan.dout.begin + region(of_dout) : plan.dx.begin + region(of_dx);
    plan.lds_bytes = plan.taps_begin + static_cast<int>(round_up(int64_t{of_taps} * all_rows, kBwdRowsUnit));
    if (plan.lds_bytes < least) plan.lds_bytes = least;
    return plan;
}

// Takes as many channels as leave few lanes idle.
BwdRowsPlan bwd_rows_plan(const CausalConv1dBwdParams& p) {
    constexpr int kTries = 4;
    constexpr double kEnough = 0.9, kClearly = 1.03;
    BwdRowsPlan best{};
    double busy = 0;
    const int64_t dim = p.in.dim;
    int64_t groups = (dim + kBwdRowsThreads - 1) / kBwdRowsThreads;
    int tries = 0;
    for (; tries < kTries && groups <= dim && busy < kEnough; ++groups) {
        const int channels = static_cast<int>((dim + groups - 1) / groups);
        if (channels < dim && channels < kLeastRowsChannels) break;
        const BwdRowsPlan plan = bwd_rows_plan_of(p, channels);
        if (plan.rows < 1) {  // as many channels as this have no room
            groups += groups / 4;
            continue;
        }
        ++tries;
        const int threads = channels * plan.rows;
        const double share =
            static_cast<double>(dim) / (static_cast<double>(plan.groups) * channels) * threads / round_up(threads, kWave);
        if (share <= kClearly * busy) continue;
        best = plan;
        busy = share;
    }
    return best;
}

}  // namespace

const char* causal_conv1d_bwd_rows_refusal(const CausalConv1dBwdParams& p) {
    const char* served = "rows of one token and, of 16-bit types, of 2 to 8 tokens, some of which fit LDS, widths 1 to 8";
    if (causal_conv1d_bwd_single_serves(p)) return nullptr;
    if (p.in.dtype == DType::f32 || p.in.width > kBwdRowsMaxWidth || p.in.seqlen < 1 || p.in.seqlen > kBwdRowsMostTokens)
        return served;
    const BwdRowsPlan plan = bwd_rows_plan(p);
    return plan.rows > 0 && plan.groups <= kGridLimit ? nullptr : served;
}

// Takes rows of which `vector` or `tile` serve each end for itself: those with states, single tokens, tensors of different
// orders unless they are plain, and few channels. Rows must come to LDS in whole vectors, or at least by lanes along channels.
bool causal_conv1d_bwd_rows_is_faster(const CausalConv1dBwdParams& p) {
    if (causal_conv1d_bwd_single_serves(p)) return true;
    const auto of_channels = [&](const Sequences& s) { return s.dim_stride == 1; };
    const bool is_channel_last = of_channels(p.in.x) && of_channels(p.dout) && of_channels(p.dx);
    const bool is_crossed = of_channels(p.in.x) != of_channels(p.dout) || of_channels(p.in.x) != of_channels(p.dx);
    const bool has_ends = !is_channel_last && (bwd_has_states(p) || p.in.seqlen == 1);
    const bool has_few = p.in.dim <= kFewChannels && (is_channel_last || p.in.seq_idx.data);
    const bool is_plain = !p.in.seq_idx.data && !bwd_has_states(p);
    if (p.in.dim == 1 || !(has_ends || (is_crossed && !is_plain) || has_few)) return false;
    const BwdRowsPlan plan = bwd_rows_plan(p);
    const auto comes_well = [&](const Sequences& s, const BwdRowsTensor& how) {
        return how.is_flat || of_channels(s) || p.in.seqlen == 1;
    };
    return comes_well(p.in.x, plan.x) && comes_well(p.dout, plan.dout) && comes_well(p.dx, plan.dx);
}

int64_t causal_conv1d_bwd_rows_workspace(const CausalConv1dBwdParams& p) {
    if (causal_conv1d_bwd_single_serves(p)) return causal_conv1d_bwd_single_workspace(p);
    return bwd_sums_workspace(p, sums_or_partials(equal_partials(bwd_rows_plan(p).pieces)), /*looks_at_taps=*/false);
}

void causal_conv1d_bwd_rows(const CausalConv1dBwdParams& params, void* workspace, void* stream) {
    const hipStream_t s = static_cast<hipStream_t>(stream);
    if (causal_conv1d_bwd_single_serves(params)) return causal_conv1d_bwd_single(params, workspace, s);
    BwdRowsCall call{params, bwd_rows_plan(params)};
    const BwdPartials partials = sums_or_partials(equal_partials(call.plan.pieces));
    call.p = bwd_sums_begin(params, partials, /*looks_at_taps=*/false, workspace, s);
    if (call.p.in.dtype == DType::f16)
        launch_bwd_rows_of<f16>(call, s);
    else
        launch_bwd_rows_of<bf16>(call, s);
    bwd_sums_add_up(call.p, partials, s);
}

}  // namespace hipconv
