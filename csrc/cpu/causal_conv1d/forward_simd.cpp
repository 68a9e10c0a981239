// The causal conv1d forward for host memory, vectorised: for any strides, any width, states and packed sequences.
//
// Where tokens are neighbours in memory, and taps few, vectors lie along tokens; else they lie along channels. What does not
// lie so goes through tiles of floats.
#include "along_channels.h"
#include "along_tokens.h"
#include "causal_conv1d/forward_formula.h"
#include "forward.h"
#include "serial.h"

namespace hipconv {
namespace {

bool is_parallel(const CausalConv1dFwdParams& p) { return static_cast<double>(p.batch) * p.dim * p.seqlen >= kSerialBelow; }

template <typename T>
void along_tokens(const CausalConv1dFwdParams& p) {
    const int past = p.width - 1;
    const int64_t length = piece_of(p.seqlen, kPieceTokens), pieces = ceil_of(p.seqlen, length);
    const int64_t items = int64_t{p.batch} * p.dim * pieces;
    const bool has_ids = p.seq_idx.data;  // then channels follow one another, and use a piece's ids in turn
#pragma omp parallel if (is_parallel(p))
    {
        PieceBuffers buffers(p.width);
        int64_t loaded = -1, loaded_ids = -1;
#pragma omp for schedule(static)
        for (int64_t item = 0; item < items; ++item) {
            const int64_t b = item / (p.dim * pieces);
            const int64_t d = has_ids ? item % p.dim : item / pieces % p.dim;
            const int64_t begin = (has_ids ? item / p.dim % pieces : item % pieces) * length;
            const int count = static_cast<int>(std::min(length, p.seqlen - begin));
            if (loaded != d) buffers.load_parameters(p, d);
            loaded = d;
            const bool varies = has_ids || (begin < past && !p.initial_states.data);
            const int64_t whose = has_ids ? b * pieces + begin / length : begin;
            if (varies && loaded_ids != whose) {
                buffers.ids.load(p, b, begin - past, past + count);
                loaded_ids = whose;
            }
            const T* x = &at<const T>(p.x, b, d, begin);
            load_history<T>(buffers.oldest(p.width), p, b, d, begin);
            const T* next = has_ids ? x + p.x.dim_stride : x + count * p.x.seqlen_stride;
            convolve_piece(x, p.x.seqlen_stride, &at<T>(p.out, b, d, begin), p.out.seqlen_stride, p.width, count,
                           varies ? &buffers.ids : nullptr, p.use_silu, buffers, next);
        }
    }
}

template <typename T>
void along_channels(const CausalConv1dFwdParams& p) {
    const Cut cut = cut_of(p.width, p.dim, dim_is_inner(p.x) && dim_is_inner(p.out));
    const int past = p.width - 1;
    const int64_t runs = ceil_of(p.seqlen, cut.tokens);
    const int64_t items = ceil_of(p.dim, cut.channels) * p.batch * runs;
#pragma omp parallel if (is_parallel(p))
    {
        const Buffer<float> parameter_rows(cut.channels * (p.width + 1));
        const Tiles tiles(cut, p.width);
        TokenIds ids(past + cut.tokens);
        Parameters parameters{};
        int64_t loaded = -1;
#pragma omp for schedule(static)
        for (int64_t item = 0; item < items; ++item) {
            const int64_t d = item / (p.batch * runs) * cut.channels, b = item / runs % p.batch;
            const int64_t begin = item % runs * cut.tokens;
            const int64_t channels = std::min(cut.channels, p.dim - d);
            const int tokens = static_cast<int>(std::min<int64_t>(cut.tokens, p.seqlen - begin));
            if (loaded != d) parameters = load_parameters(parameter_rows.begin(), cut.channels, p, d, channels);
            loaded = d;
            ids.load(p, b, begin - past, past + tokens);
            const bool continues = begin < past && p.initial_states.data;
            const auto history = [&](float* to, int64_t step, int count) {
                const Sequences& s = p.initial_states;
                load_tile(to, step, Plane<const T>{&at<const T>(s, b, d, begin), s.dim_stride, s.seqlen_stride}, channels,
                          count);
            };
            convolve_block<T>({&at<const T>(p.x, b, d, begin), p.x.dim_stride, p.x.seqlen_stride},
                              {&at<T>(p.out, b, d, begin), p.out.dim_stride, p.out.seqlen_stride}, parameters, ids,
                              static_cast<int>(std::min<int64_t>(begin, past)), tokens, channels, p.use_silu, tiles, continues,
                              history);
        }
    }
}

// The result depends on nothing but sizes, strides and types.
bool vectors_along_tokens(const CausalConv1dFwdParams& p) {
    if (p.width > kMostTapsAlongTokens) return false;
    return p.dim < kLanes || (p.seqlen >= 2 * kLanes && !dim_is_inner(p.x) && !dim_is_inner(p.out));
}

}  // namespace

const char* causal_conv1d_simd_refusal(const CausalConv1dFwdParams& p) {
    if (const char* refusal = buffered_refusal(p.width)) return refusal;
    return p.dtype != kF64 ? nullptr : "x of 16 or 32 bits";
}

const char* causal_conv1d_simd_form(const CausalConv1dFwdParams& p) {
    return vectors_along_tokens(p) ? "simd_along_tokens" : "simd_along_channels";
}

void causal_conv1d_simd(const CausalConv1dFwdParams& p, void* /*workspace*/, void* /*stream*/) {
    const bool tokens = vectors_along_tokens(p);
    with_dtype(p.dtype, [&](auto type) {
        using T = decltype(type);
        tokens ? along_tokens<T>(p) : along_channels<T>(p);
    });
}

}  // namespace hipconv
