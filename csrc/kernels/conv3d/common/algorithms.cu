// This file has the table of conv3d's algorithms on GPUs.
#include <hip/hip_runtime.h>

#include <stdexcept>

#include "../../conv2d/common/units.h"
#include "conv3d/conv3d.h"
#include "launch/kernel_table.h"
#include "launchers.h"

namespace hipconv {

namespace {

using Row = KernelRow<Conv3dParams, Conv3dCard>;
constexpr Row kRows[] = {
    // {name, refusal, launch, workspace, whether auto takes it, form}; the fastest first
    {"depthwise", conv3d_depthwise_refusal, conv3d_depthwise, nullptr, nullptr, conv3d_depthwise_form},
    {"few_filters", conv3d_few_filters_refusal, conv3d_few_filters, conv3d_few_filters_workspace},
    {"warpgroup_gemm", conv3d_warpgroup_gemm_refusal, conv3d_warpgroup_gemm, conv3d_warpgroup_gemm_workspace, nullptr,
     conv3d_warpgroup_gemm_form},
    {"relaid_warpgroup_gemm", conv3d_relaid_warpgroup_gemm_refusal, conv3d_relaid_warpgroup_gemm,
     conv3d_relaid_warpgroup_gemm_workspace, nullptr, conv3d_relaid_warpgroup_gemm_form},
    {"implicit_gemm", conv3d_implicit_gemm_refusal, conv3d_implicit_gemm, conv3d_implicit_gemm_workspace, nullptr,
     conv3d_implicit_gemm_form},
    {"naive", nullptr, conv3d_naive},
};
constexpr KernelTable<Conv3dParams, Conv3dCard> kTable{kRows, sizeof(kRows) / sizeof(*kRows)};

const Row& algorithm(const std::string& name) {
    if (const Row* row = kTable.find(name)) return *row;
    throw std::invalid_argument("hipconv: conv3d: there is no algorithm '" + name + "'");
}

}  // namespace

std::vector<std::string> conv3d_algorithms() { return kTable.names(); }
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

void conv3d(const std::string& name, const Conv3dParams& p, const Conv3dCard& card, void* workspace, void* stream) {
    algorithm(name).launch(p, card, workspace, stream);
}

}  // namespace hipconv
