// The decode kernels for host memory: the functions of each, which has a file of its own, and their table.
//
// Both share rows and blocks of channels out over torch's threads.
#pragma once

#include <algorithm>

#include "causal_conv1d/decode.h"

namespace hipconv {

// decode_simd.cpp computes vectors along channels, whatever the strides. It serves windows that fit its buffers (serial.h).
const char* causal_conv1d_update_simd_refusal(const CausalConv1dUpdateParams& params);
void causal_conv1d_update_simd(const CausalConv1dUpdateParams& params, void* workspace, void* stream);

// decode.cpp goes channel by channel, by the formula. It is there to compare with.
void causal_conv1d_update_openmp(const CausalConv1dUpdateParams& params, void* workspace, void* stream);

// name, refusal, launch
constexpr KernelRow<CausalConv1dUpdateParams> kUpdateKernels[] = {
    {"simd", causal_conv1d_update_simd_refusal, causal_conv1d_update_simd},
    {"openmp", nullptr, causal_conv1d_update_openmp},
};
static_assert(are_named(kUpdateKernels, kCausalConv1dUpdateNames.cpu), "names stand in causal_conv1d/decode.h too");

// Tells how work is cut. Rows follow one another for each block of channels, so that a thread keeps its block's parameters.
struct DecodeWork {
    static constexpr int64_t kBlock = 256;           // channels
    static constexpr double kSerialBelow = 1 << 12;  // fewer outputs are not worth waking a second thread for

    int64_t items;
    bool parallel;

    explicit DecodeWork(const CausalConv1dUpdateParams& p) {
        const double tokens = p.query_start_loc.data ? p.total_tokens : static_cast<double>(p.batch) * p.seqlen;
        items = (p.dim + kBlock - 1) / kBlock * p.batch;
        parallel = tokens * p.dim >= kSerialBelow;
    }
};

}  // namespace hipconv
