// The causal conv1d prefill (packed sequences) for host memory, vectorised: for any strides and any width.
//
// As on GPUs (csrc/kernels/causal_conv1d/prefill/tile_kernel.h), the packed tokens are cut into runs, whatever sequences they
// hold. The run with a sequence's first token computes all outputs that depend on the initial state, and then writes the
// states.
#include <vector>

#include "along_tokens.h"
#include "prefill.h"
#include "prefill_begin.h"
#include "serial.h"

namespace hipconv {
namespace {

// Tells what a run's tokens belong to.
struct RunSequences {
    TokenIds ids;  // from the first token's oldest tap on
    std::vector<PackedSequence> begun;
    struct Tokens {
        int32_t begin, end;
    };
    std::vector<Tokens> dead;

    RunSequences(int width, int tokens) : ids(width - 1 + tokens) {}

    void load(const CausalConv1dVarlenParams& p, int32_t begin, int32_t end) {
        const int past = p.width - 1;
        begun.clear();
        dead.clear();
        for (int t = 0; t < past - begin; ++t) ids.set(t, kNobody, true);
        const auto start_of = [&](int32_t b) { return load_index(p.query_start_loc, b); };
        int32_t t = std::max(begin - past, 0), last = last_begun(start_of, p.sequences, t);
        while (t < end) {
            while (last < p.sequences && start_of(last + 1) <= t) ++last;
            const PackedSequence s = sequence_or_none(p, last);
            const bool lives = s.number >= 0;
            if (lives && t == s.begin && t >= begin) begun.push_back(s);
            const int32_t stop = std::min(s.end, end);
            if (!lives && stop > begin) dead.push_back({std::max(t, begin), stop});
            for (; t < stop; ++t)
                ids.set(t - begin + past, lives ? s.number : kNobody, !lives || (s.read_slot != kNoSlot && t - s.begin < past));
        }
    }
};

template <typename T>
void dead_tokens(const CausalConv1dVarlenParams& p, const Part& part, int32_t begin, int32_t end) {
    if (p.dead_tokens == DeadTokens::leave) return;
    const Plane<T> out = part.plane<T>(0);
    const Plane<const T> x = x_plane<T>(p, part.begin, 0);
    for (int64_t t = begin; t < end; ++t)
        for (int64_t c = 0; c < part.end - part.begin; ++c)
            *out.from(c, t).begin = p.dead_tokens == DeadTokens::zero ? T{} : *x.from(c, t).begin;
}

// The parameters of the part's channels, out of those from channel `first` on.
Parameters parameters_from(const Parameters& parameters, const Part& part, int64_t first) {
    return {parameters.begin + (part.begin - first), parameters.step, parameters.width};
}

// This is what a run leaves to do when its sums are made.
template <typename T>
void finish_run(const CausalConv1dVarlenParams& p, const RunSequences& sequences, const Part& part,
                const Parameters& parameters, const BeginBuffers& buffers) {
    for (const auto& tokens : sequences.dead) dead_tokens<T>(p, part, tokens.begin, tokens.end);
    for (const PackedSequence& s : sequences.begun) begin_sequence<T>(p, s, part, parameters, buffers);
}

bool along_channels_in_memory(const CausalConv1dVarlenParams& p, bool x) {
    return x ? dim_is_nearer(x_plane<char>(p, 0, 0))
             : p.k_dim >= 0 || dim_is_nearer(Plane<char>{nullptr, p.out_dim_stride, p.out_token_stride});
}

bool vectors_along_tokens(const CausalConv1dVarlenParams& p) {
    if (p.width > kMostTapsAlongTokens || p.tokens < 2 * kLanes) return false;
    return !along_channels_in_memory(p, true) && !along_channels_in_memory(p, false);
}

// ---- along channels --------------------------------------------------------------------------------------------------------

template <typename T>
void along_channels(const CausalConv1dVarlenParams& p) {
    const Cut cut = cut_of(p.width, p.dim, along_channels_in_memory(p, true) && along_channels_in_memory(p, false));
    const int past = p.width - 1;
    const int64_t runs = ceil_of(p.tokens, cut.tokens), items = ceil_of(p.dim, cut.channels) * runs;
    const bool parallel = static_cast<double>(p.dim) * p.tokens >= kSerialBelow;
#pragma omp parallel if (parallel)
    {
        const Buffer<float> parameter_rows(cut.channels * (p.width + 1));
        const Tiles tiles(cut, p.width);
        const BeginBuffers buffers(cut, p.width);
        RunSequences sequences(p.width, cut.tokens);
        Parameters parameters{};
        int64_t loaded = -1;
#pragma omp for schedule(static)
        for (int64_t item = 0; item < items; ++item) {
            const int64_t first = item / runs * cut.channels, end = std::min<int64_t>(first + cut.channels, p.dim);
            const auto begin = static_cast<int32_t>(item % runs * cut.tokens);
            const int32_t tokens = std::min(cut.tokens, p.tokens - begin);
            if (loaded != first) parameters = load_parameters(parameter_rows.begin(), cut.channels, p, first, end - first);
            loaded = first;
            sequences.load(p, begin, begin + tokens);
            Part parts[3];
            for (int i = 0, count = parts_of(p, first, end, parts); i < count; ++i) {
                const Part& part = parts[i];
                const Parameters own = parameters_from(parameters, part, first);
                convolve_block<T>(x_plane<T>(p, part.begin, begin), part.plane<T>(begin), own, sequences.ids,
                                  std::min(begin, past), tokens, part.end - part.begin, p.use_silu, tiles, false,
                                  [](float*, int64_t, int) {});
                finish_run<T>(p, sequences, part, own, buffers);
            }
        }
    }
}

// ---- along tokens ----------------------------------------------------------------------------------------------------------

template <typename T>
void along_tokens(const CausalConv1dVarlenParams& p) {
    const int past = p.width - 1;
    const Cut cut{4 * kLanes, static_cast<int>(piece_of(p.tokens, kPieceTokens))};
    const int64_t blocks = ceil_of(p.dim, cut.channels), items = blocks * ceil_of(p.tokens, cut.tokens);
    const bool parallel = static_cast<double>(p.dim) * p.tokens >= kSerialBelow;
#pragma omp parallel if (parallel)
    {
        const Buffer<float> parameter_rows(cut.channels * (p.width + 1));
        const PieceBuffers pieces(p.width);
        const BeginBuffers buffers(cut, p.width);
        RunSequences sequences(p.width, cut.tokens + 4 * kLanes);
        int32_t loaded = -1;
#pragma omp for schedule(static)
        for (int64_t item = 0; item < items; ++item) {
            const int64_t first = item % blocks * cut.channels, end = std::min<int64_t>(first + cut.channels, p.dim);
            const auto begin = static_cast<int32_t>(item / blocks * cut.tokens);
            const int32_t tokens = std::min(cut.tokens, p.tokens - begin);
            if (loaded != begin) sequences.load(p, begin, begin + tokens);
            loaded = begin;
            for (int64_t d = first; d < end; ++d) {
                pieces.load_parameters(p, d);
                const Plane<const T> x = x_plane<T>(p, d, begin);
                const int before = std::min(begin, past);  // tokens
                float* oldest = pieces.oldest(p.width);
                std::fill_n(oldest, past - before, 0.0f);
                load_elements(oldest + past - before, x.from(0, -before).begin, p.x_token_stride, before);
                T* out = static_cast<T*>(p.out) + d * p.out_dim_stride + begin * p.out_token_stride;
                convolve_piece(x.begin, p.x_token_stride, out, p.out_token_stride, p.width, tokens, &sequences.ids, p.use_silu,
                               pieces, x.from(1, 0).begin);
            }
            Part parts[3];
            parts_of(p, first, end, parts);
            const Parameters parameters = load_parameters(parameter_rows.begin(), cut.channels, p, first, end - first);
            finish_run<T>(p, sequences, parts[0], parameters, buffers);
        }
    }
}

}  // namespace

const char* causal_conv1d_varlen_simd_refusal(const CausalConv1dVarlenParams& p, const VarlenTile& /*tile*/) {
    return buffered_refusal(p.width);
}

void causal_conv1d_varlen_simd(const CausalConv1dVarlenParams& p, const VarlenTile& /*tile*/, void* /*workspace*/,
                               void* /*stream*/) {
    const bool tokens = vectors_along_tokens(p);
    with_dtype(p.dtype, [&](auto type) {
        using T = decltype(type);
        tokens ? along_tokens<T>(p) : along_channels<T>(p);
    });
}

}  // namespace hipconv
