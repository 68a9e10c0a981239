// This declares the forward kernels on GPUs, which have a file of their own each, and has their table.
#pragma once

#include "../common/launch.h"
#include "causal_conv1d/forward.h"

namespace hipconv {

constexpr int kMaxFastWidth = 8;  // of the kernels that are compiled for a width

const char* causal_conv1d_tile_refusal(const CausalConv1dFwdParams& params);
bool causal_conv1d_tile(const CausalConv1dFwdParams& params, void* workspace, void* stream);

const char* causal_conv1d_vector_refusal(const CausalConv1dFwdParams& params);
void causal_conv1d_vector(const CausalConv1dFwdParams& params, void* workspace, void* stream);

const char* causal_conv1d_shared_refusal(const CausalConv1dFwdParams& params);
void causal_conv1d_shared(const CausalConv1dFwdParams& params, void* workspace, void* stream);

const char* causal_conv1d_lines_refusal(const CausalConv1dFwdParams& params);
bool causal_conv1d_lines(const CausalConv1dFwdParams& params, void* workspace, void* stream);

const char* causal_conv1d_staged_refusal(const CausalConv1dFwdParams& params);
void causal_conv1d_staged(const CausalConv1dFwdParams& params, void* workspace, void* stream);

const char* causal_conv1d_naive_form(const CausalConv1dFwdParams& params);
void causal_conv1d_naive(const CausalConv1dFwdParams& params, void* workspace, void* stream);

// Tells whether all rows of a tensor begin on a 16-byte boundary.
inline bool begins_are_aligned(const Sequences& s, DType dtype) {
    const int tokens = 16 / element_bytes(dtype);
    return reinterpret_cast<uintptr_t>(s.data) % 16 == 0 && s.dim_stride % tokens == 0 && s.batch_stride % tokens == 0;
}

inline bool rows_are_whole_vectors(const CausalConv1dFwdParams& p) {
    return p.seqlen % (16 / element_bytes(p.dtype)) == 0 && begins_are_aligned(p.x, p.dtype) &&
           begins_are_aligned(p.out, p.dtype);
}

// There are two channel-first kernels: "shared" serves the short packed rows that are not of whole vectors. It serves short
// rows of whole vectors only where they are many and each has an odd number of vectors: they divide badly among the lanes of
// "vector".
inline bool shared_is_faster(const CausalConv1dFwdParams& p) {
    const int vector = 16 / element_bytes(p.dtype);
    const int64_t rows = static_cast<int64_t>(p.batch) * p.dim;
    const bool divides = p.seqlen % (rows >= kEnoughThreads ? 2 * vector : vector) == 0 || p.seqlen == vector;
    const bool fills_the_card = p.seqlen <= 512 || rows >= kEnoughThreads / 8;  // by tiles, of which longer rows make fewer
    return !divides && fills_the_card && !causal_conv1d_shared_refusal(p);
}
// "lines" makes short rows that "shared" does not: the others give a thread or a block a row, or a part of one.
bool lines_is_faster(const CausalConv1dFwdParams& p);
inline bool tile_is_faster(const CausalConv1dFwdParams& p) { return !lines_is_faster(p); }
// It also makes ragged rows that are short, have one tap, or few channels, where these see states or ids or more than four
// taps; and plain ones that are very short (measured on an H100 and an H200). On NVIDIA's cards it makes more, by way of
// tile_lds.cu: rows with states, of few elements only in float32 or if they are short; ragged ones with ids in float32, and in
// 16 bits if they are not long and have four taps or more; plain ragged ones that are not long or have more than four taps;
// aligned ones with ids in float32 if they are not long and have more than four taps; short ones of few channels with ids, and
// in 16 bits those of more than five taps that begin anywhere, if they are not very long; and plain ones that begin anywhere,
// in 16 bits those of more than five taps in large calls (measured on an H100 and an H200).
inline bool rows_are_faster_as_lines(const CausalConv1dFwdParams& p) {
    constexpr int kLongRow = 512;  // tokens at most of one that is not
    const int size = element_bytes(p.dtype);
    const bool plain = rows_are_plain(p), usual = plain && p.width >= 2 && p.width <= 4;
    const bool whole = p.seqlen % (16 / size) == 0, is_long = p.seqlen > kLongRow;
    const int64_t elements = static_cast<int64_t>(p.batch) * p.dim * p.seqlen;
    const bool has_ids = p.seq_idx.data, only_states = !plain && !has_ids;
    constexpr int kShortRow = 32;  // tokens: states of fewer are as much as they are
    const bool few = elements < 16 * kEnoughThreads;
    const bool suits_few = kHasPredicates && only_states && elements >= kEnoughThreads && (size == 4 || p.seqlen < kShortRow);
    if ((few && !suits_few) || p.seqlen == 1 || causal_conv1d_lines_refusal(p)) return false;
    if (kHasPredicates) {
        const bool aligned = rows_are_whole_vectors(p);
        if (plain && !whole && (p.width > 4 || !is_long)) return true;
        if (has_ids && aligned && size == 4 && (p.dim < 32 || (p.width > 4 && !is_long))) return true;
        if (has_ids && !aligned && (size == 4 || (p.width > (whole ? 4 : 3) && !is_long))) return true;
        if (only_states) return true;
        if (has_ids && (p.dim < 32 ? p.seqlen <= 128 : !aligned && p.width > 5 && p.seqlen <= 2 * kLongRow)) return true;
        if (plain && !aligned && size == 4 && whole) return true;
        if (!has_ids && !(plain && aligned) && p.width > 5 && elements >= 64 * kEnoughThreads) return true;
    }
    if (whole) return false;
    return usual ? p.seqlen <= 8 : p.seqlen <= 128 || p.width == 1 || (p.dim < 32 && size == 2);
}
inline bool vector_is_faster(const CausalConv1dFwdParams& p) {
    return !shared_is_faster(p) && !lines_is_faster(p) && !rows_are_faster_as_lines(p);
}

// A row of one token without a state sees nothing but that token. So such rows of a batch are the tokens of one row, with a
// filter of one tap, and a kernel that serves that makes it.
inline CausalConv1dFwdParams as_one_row(CausalConv1dFwdParams p) {
    if (p.seqlen != 1 || p.batch == 1 || p.initial_states.data) return p;
    const int64_t older_taps = (p.width - 1) * p.weight_width_stride;
    p.weight = static_cast<const char*>(p.weight) + older_taps * element_bytes(p.weight_dtype);
    p.width = 1;
    p.seqlen = p.batch;
    p.batch = 1;
    p.seq_idx.seqlen_stride = p.seq_idx.batch_stride;
    for (Sequences* s : {&p.x, &p.out}) s->seqlen_stride = s->batch_stride;
    p.final_states = {};
    return p;
}
using FwdRefusal = const char* (*)(const CausalConv1dFwdParams&);
using FwdChoice = bool (*)(const CausalConv1dFwdParams&);
template <FwdRefusal kRefusal>
const char* refusal_of_rows(const CausalConv1dFwdParams& p) {
    return kRefusal(as_one_row(p)) ? kRefusal(p) : nullptr;
}
template <FwdRefusal kRefusal, auto kLaunch>
auto launch_rows(const CausalConv1dFwdParams& p, void* workspace, void* stream) {
    const CausalConv1dFwdParams row = as_one_row(p);
    return kLaunch(kRefusal(row) ? p : row, workspace, stream);
}
template <FwdRefusal kRefusal, FwdChoice kIsFaster>
bool is_faster_for_rows(const CausalConv1dFwdParams& p) {
    const CausalConv1dFwdParams row = as_one_row(p);
    return kIsFaster(kRefusal(row) ? p : row);
}
template <FwdRefusal kRefusal, auto kLaunch, FwdChoice... kIsFaster>  // one or none
constexpr KernelRow<CausalConv1dFwdParams> row_of(const char* name) {
    const FwdChoice faster[] = {is_faster_for_rows<kRefusal, kIsFaster>..., nullptr};
    return {name, refusal_of_rows<kRefusal>, launch_and_final_states<launch_rows<kRefusal, kLaunch>>, nullptr, faster[0]};
}

// name, refusal, launch, workspace, auto_takes, form
constexpr KernelRow<CausalConv1dFwdParams> kFwdKernels[] = {
    row_of<causal_conv1d_tile_refusal, causal_conv1d_tile, tile_is_faster>("tile"),
    row_of<causal_conv1d_vector_refusal, causal_conv1d_vector, vector_is_faster>("vector"),
    {"shared", causal_conv1d_shared_refusal, launch_and_final_states<causal_conv1d_shared>, nullptr, shared_is_faster},
    row_of<causal_conv1d_lines_refusal, causal_conv1d_lines>("lines"),
    {"staged", causal_conv1d_staged_refusal, launch_and_final_states<causal_conv1d_staged>},
    {"naive", nullptr, launch_and_final_states<causal_conv1d_naive>, nullptr, nullptr, causal_conv1d_naive_form},
};
static_assert(are_named(kFwdKernels, kCausalConv1dFwdNames.gpu), "names stand in causal_conv1d/forward.h too");

}  // namespace hipconv
