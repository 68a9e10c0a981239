// This file has the table of conv3d's algorithms on GPUs.
#include <hip/hip_runtime.h>

#include <stdexcept>

#include "../../conv2d/common/units.h"
#include "conv3d/conv3d.h"
#include "filters.h"
#include "launch/kernel_table.h"
#include "launchers.h"

namespace hipconv {

namespace {

enum class Filters {
    as_they_are,  // in any memory
    by_taps,      // channels-last, with anything between a filter's taps
    dense,        // channels-last, with nothing in between
};

struct Algorithm {
    KernelRow<Conv3dParams, Conv3dCard> kernel;
    Filters filters;
};

constexpr Algorithm kAlgorithms[] = {
    // {name, refusal, launch, workspace, whether auto takes it, form}, how it reads filters; the fastest first
    {{"depthwise", conv3d_depthwise_refusal, conv3d_depthwise, nullptr, nullptr, conv3d_depthwise_form}, Filters::as_they_are},
    {{"few_filters_by_warpgroups", conv3d_few_warpgroups_refusal, conv3d_few_warpgroups, conv3d_few_filters_workspace},
     Filters::by_taps},
    {{"few_filters", conv3d_few_filters_refusal, conv3d_few_filters, conv3d_few_filters_workspace}, Filters::by_taps},
    {{"warpgroup_gemm", conv3d_warpgroup_gemm_refusal, conv3d_warpgroup_gemm, conv3d_warpgroup_gemm_workspace, nullptr,
      conv3d_warpgroup_gemm_form},
     Filters::by_taps},
    {{"relaid_warpgroup_gemm", conv3d_relaid_warpgroup_gemm_refusal, conv3d_relaid_warpgroup_gemm,
      conv3d_relaid_warpgroup_gemm_workspace, nullptr, conv3d_relaid_warpgroup_gemm_form},
     Filters::by_taps},
    {{"implicit_gemm", conv3d_implicit_gemm_refusal, conv3d_implicit_gemm, conv3d_implicit_gemm_workspace, nullptr,
      conv3d_implicit_gemm_form},
     Filters::dense},
    {{"naive", nullptr, conv3d_naive}, Filters::as_they_are},
};

const Algorithm& row(const std::string& name) {
    for (const Algorithm& entry : kAlgorithms)
        if (name == entry.kernel.name) return entry;
    throw std::invalid_argument("hipconv: conv3d: there is no algorithm '" + name + "'");
}
const KernelRow<Conv3dParams, Conv3dCard>& algorithm(const std::string& name) { return row(name).kernel; }

}  // namespace

std::vector<std::string> conv3d_algorithms() {
    std::vector<std::string> names;
    for (const Algorithm& entry : kAlgorithms) names.emplace_back(entry.kernel.name);
    return names;
}
bool conv3d_has_tf32(const std::string& arch) { return has_tf32(arch); }

const char* conv3d_refusal(const std::string& name, const Conv3dParams& p, const Conv3dCard& card) {
    return algorithm(name).refusal_of(p, card);
}
const char* conv3d_form(const std::string& name, const Conv3dParams& p, const Conv3dCard& card) {
    return algorithm(name).form_of(p, card);
}
int64_t conv3d_workspace(const std::string& name, const Conv3dParams& p, const Conv3dCard& card) {
    return algorithm(name).workspace_of(p, card);
}

int64_t conv3d_packed_bytes(const std::string& name, const Conv3dParams& p, const Conv3dCard&) {
    const Filters filters = row(name).filters;
    return filters == Filters::as_they_are ? 0 : FilterLayout(p, filters == Filters::dense).packed_bytes;
}

void conv3d(const std::string& name, const Conv3dParams& p, const Conv3dCard& card, void* workspace, void* stream) {
    algorithm(name).launch(p, card, workspace, stream);
}

}  // namespace hipconv
