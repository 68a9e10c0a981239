// This file has the table of conv2d's algorithms on GPUs.
#include <hip/hip_runtime.h>

#include <stdexcept>

#include "conv2d/conv2d.h"
#include "launch/kernel_table.h"
#include "launchers.h"

namespace hipconv {

namespace {

struct Algorithm {
    KernelRow<Conv2dParams, Conv2dPlan> kernel;
    std::vector<Conv2dTile> (*tiles)(const std::string& arch, DType dtype);  // null: it has none anywhere
    // Packed filters, where it can take them. Without functions it reads all filters as they are.
    Conv2dPacking (*packing)(const Conv2dParams&, const Conv2dPlan&) = nullptr;
    void (*pack)(const Conv2dParams&, const Conv2dPlan&, void* packed, void* stream) = nullptr;
};

constexpr Algorithm kAlgorithms[] = {
    // {name, refusal, launch, workspace}, tiles, packing, pack; the fastest first
    {{"depthwise_banded", conv2d_depthwise_banded_refusal, conv2d_depthwise_banded}, conv2d_depthwise_banded_tiles},
    {{"depthwise_rolling", conv2d_depthwise_rolling_refusal, conv2d_depthwise_rolling}, conv2d_depthwise_rolling_tiles},
    {{"depthwise_strips", conv2d_depthwise_strips_refusal, conv2d_depthwise_strips}, conv2d_depthwise_strips_tiles},
    {{"depthwise_diagonal", conv2d_depthwise_diagonal_refusal, conv2d_depthwise_diagonal}, conv2d_depthwise_diagonal_tiles},
    {{"depthwise", conv2d_depthwise_refusal, conv2d_depthwise}, nullptr},
    {{"depthwise_tile", conv2d_depthwise_tile_refusal, conv2d_depthwise_tile}, nullptr},
    {{"relaid_warpgroup_gemm", conv2d_relaid_warpgroup_gemm_refusal, conv2d_relaid_warpgroup_gemm,
      conv2d_relaid_warpgroup_gemm_workspace},
     conv2d_warpgroup_gemm_tiles,
     conv2d_relaid_warpgroup_gemm_packing,
     conv2d_relaid_warpgroup_gemm_pack},
    {{"warpgroup_gemm", conv2d_warpgroup_gemm_refusal, conv2d_warpgroup_gemm, conv2d_warpgroup_gemm_workspace},
     conv2d_warpgroup_gemm_tiles,
     conv2d_warpgroup_gemm_packing,
     conv2d_warpgroup_gemm_pack},
    {{"direct", conv2d_direct_refusal, conv2d_direct, conv2d_direct_workspace},
     conv2d_direct_tiles,
     conv2d_direct_packing,
     conv2d_direct_pack},
    {{"few_filters", conv2d_few_filters_refusal, conv2d_few_filters}, conv2d_few_filters_tiles},
    {{"few_products", conv2d_few_products_refusal, conv2d_few_products}, conv2d_few_products_tiles},
    {{"pointwise", conv2d_pointwise_refusal, conv2d_pointwise}, conv2d_pointwise_tiles},
    {{"skinny_gemm", conv2d_skinny_gemm_refusal, conv2d_skinny_gemm}, conv2d_skinny_gemm_tiles},
    {{"wave_gemm", conv2d_wave_gemm_refusal, conv2d_wave_gemm}, conv2d_wave_gemm_tiles},
    {{"split_warpgroup_gemm", conv2d_split_warpgroup_gemm_refusal, conv2d_split_warpgroup_gemm,
      conv2d_split_warpgroup_gemm_workspace},
     conv2d_split_warpgroup_gemm_tiles,
     conv2d_split_warpgroup_gemm_packing,
     conv2d_split_warpgroup_gemm_pack},
    {{"winograd_f4", conv2d_winograd_refusal, conv2d_winograd, conv2d_winograd_workspace},
     conv2d_winograd_tiles,
     conv2d_winograd_packing,
     conv2d_winograd_pack},
    {{"winograd_f2", conv2d_winograd_refusal, conv2d_winograd, conv2d_winograd_workspace},
     conv2d_winograd_tiles,
     conv2d_winograd_packing,
     conv2d_winograd_pack},
    {{"relaid_implicit_gemm", conv2d_relaid_implicit_gemm_refusal, conv2d_relaid_implicit_gemm,
      conv2d_relaid_implicit_gemm_workspace},
     conv2d_implicit_gemm_tiles,
     conv2d_relaid_implicit_gemm_packing,
     conv2d_relaid_implicit_gemm_pack},
    {{"split_implicit_gemm", conv2d_split_implicit_gemm_refusal, conv2d_split_implicit_gemm, conv2d_implicit_gemm_workspace},
     conv2d_split_implicit_gemm_tiles,
     conv2d_implicit_gemm_packing,
     conv2d_implicit_gemm_pack},
    {{"fma_direct", conv2d_fma_direct_refusal, conv2d_fma_direct}, nullptr},
    {{"fma_gemm", conv2d_fma_gemm_refusal, conv2d_fma_gemm}, conv2d_fma_gemm_tiles},
    {{"implicit_gemm", conv2d_implicit_gemm_refusal, conv2d_implicit_gemm, conv2d_implicit_gemm_workspace},
     conv2d_implicit_gemm_tiles,
     conv2d_implicit_gemm_packing,
     conv2d_implicit_gemm_pack},
    {{"naive", nullptr, conv2d_naive}, nullptr},
};

const Algorithm& algorithm(const std::string& name) {
    for (const Algorithm& entry : kAlgorithms)
        if (name == entry.kernel.name) return entry;
    throw std::invalid_argument("hipconv: conv2d: there is no algorithm '" + name + "'");
}

}  // namespace

std::vector<std::string> conv2d_algorithms() {
    std::vector<std::string> names;
    for (const Algorithm& entry : kAlgorithms) names.emplace_back(entry.kernel.name);
    return names;
}

std::optional<std::vector<Conv2dTile>> conv2d_tiles(const std::string& name, const std::string& arch, DType dtype) {
    const auto tiles = algorithm(name).tiles;
    return tiles ? std::optional(tiles(arch, dtype)) : std::nullopt;
}

const char* conv2d_refusal(const Conv2dParams& params, const Conv2dPlan& plan) {
    return algorithm(plan.algorithm).kernel.refusal_of(params, plan);
}

int64_t conv2d_workspace(const Conv2dParams& params, const Conv2dPlan& plan) {
    return algorithm(plan.algorithm).kernel.workspace_of(params, plan);
}

Conv2dPacking conv2d_packing(const Conv2dParams& params, const Conv2dPlan& plan) {
    const auto packing = algorithm(plan.algorithm).packing;
    return packing ? packing(params, plan) : Conv2dPacking{};
}

void conv2d_pack_filters(const Conv2dParams& params, const Conv2dPlan& plan, void* packed, void* stream) {
    algorithm(plan.algorithm).pack(params, plan, packed, stream);
}

void conv2d(const Conv2dParams& params, const Conv2dPlan& plan, void* workspace, void* stream) {
    algorithm(plan.algorithm).kernel.launch(params, plan, workspace, stream);
}

}  // namespace hipconv
