// This kernel goes before `staged` where the outputs overwrite x. It saves what a block would need of another one's tokens: the
// inputs just before each stretch, and the inputs at the end of the sequence that lives across a stretch's beginning, if it is
// the first such beginning in its sequence. Those become the sequence's new state, in the block that has its first token.
#include <hip/hip_runtime.h>

#include "../common/launch.h"
#include "kernels.h"
#include "launch/check.h"
#include "rows.h"

namespace hipconv {

template <typename Bits>
__global__ void HIPCONV_LAUNCH_BOUNDS(kStagedThreads, 4)
    causal_conv1d_varlen_save(CausalConv1dVarlenParams p, StagedPlan plan) {
    const uint32_t number = blockIdx.z * gridDim.y + blockIdx.y;  // of the stretch before the beginning
    if (number + 1 >= plan.stretches) return;
    wait_for_kernel_before();
    let_next_kernel_begin();  // not before (loads_early)
    const CausalConv1dVarlenParams& again = first_parameter_again(p);
    const EitherIndices indices{again, plan.plain_indices};
    const int32_t stretch_tokens = static_cast<int32_t>(plan.tiles) * kTileTokens;
    const int32_t begin = static_cast<int32_t>(number + 1) * stretch_tokens;
    const int64_t d = static_cast<int64_t>(blockIdx.x) * kStagedThreads + threadIdx.x;
    const bool works = d < p.dim;
    const int first = kHalo - plan.saved_tokens;
    const auto input = [&](int64_t token) {
        return static_cast<const Bits*>(p.x)[d * again.x_dim_stride + token * again.x_token_stride];
    };
    const int64_t place = int64_t{number} * kHalo * plan.saved_dim;
    Bits* const halos = reinterpret_cast<Bits*>(plan.halos) + place + d * (plan.x_tokens_inner ? kHalo : 1);
    Bits* const lasts = reinterpret_cast<Bits*>(plan.lasts) + place + d;
    for (int i = first; i < kHalo && works; ++i)
        halos[plan.x_tokens_inner ? i : int64_t{i} * plan.saved_dim] = input(begin - kHalo + i);

    const int32_t begun = sequences_begun(indices, begin - 1, static_cast<int>(threadIdx.x) % kWaveSize);
    if (begun == 0 || !works) return;
    const int32_t start = indices.start(begun - 1), end = indices.start(begun);
    if (end <= begin || start / stretch_tokens != static_cast<int32_t>(number)) return;
    for (int i = first; i < kHalo; ++i)
        if (end - kHalo + i >= 0) lasts[int64_t{i} * plan.saved_dim] = input(end - kHalo + i);
}

// The same where rows of lanes have spans (rows.h): the vectors just before a channel's span, and of the sequence that lives
// across the span's end, if the span owns its first outputs, the last inputs.
template <typename T>
__global__ void HIPCONV_LAUNCH_BOUNDS(kStagedThreads, 4) causal_conv1d_varlen_save_rows(StagedCall call) {
    using Shape = RowsShape<T>;
    const CausalConv1dVarlenParams& p = call.params;
    const uint32_t number = blockIdx.z * gridDim.y + blockIdx.y;  // of the stretch before the beginning
    if (number + 1 >= first_parameter_again(call).plan.stretches) return;
    wait_for_kernel_before();
    let_next_kernel_begin();  // not before (loads_early)
    const CausalConv1dVarlenParams& again = first_parameter_again(p);
    const StagedPlan& plan = first_parameter_again(call).plan;
    const EitherIndices indices{again, plan.plain_indices};
    const int64_t d = static_cast<int64_t>(blockIdx.x) * kStagedThreads + threadIdx.x;
    const bool works = d < again.dim;
    const int32_t stretch_tokens = static_cast<int32_t>(plan.tiles) * Shape::kSpan;
    const int32_t next = static_cast<int32_t>(number + 1) * stretch_tokens;
    const T* const row = static_cast<const T*>(p.x) + (works ? d : 0) * again.x_dim_stride;
    const int32_t begin = next - elements_apart<T>(row + next);  // of this channel
    char* const halos = plan.halos + (int64_t{number} * plan.saved_dim + d) * (kHalo * Shape::kSize);
    Words4 cells[Shape::kHaloCells]{};
#pragma unroll
    for (int cell = 0; cell < Shape::kHaloCells && works; ++cell)
        cells[cell] = reinterpret_cast<const Words4*>(row + begin - kHalo)[cell];

    // They are on their way while the sequence is found.
    const int32_t last = sequences_begun(indices, next - 1, static_cast<int>(threadIdx.x) % kWaveSize) - 1;
#pragma unroll
    for (int cell = 0; cell < Shape::kHaloCells && works; ++cell) reinterpret_cast<Words4*>(halos)[cell] = cells[cell];
    // The sequence before, where this one begins behind the channel's beginning.
#pragma unroll 1
    for (int32_t b = last, start = next; b >= 0 && start > next - Shape::kTokens; --b) {
        start = indices.start(b);
        const int32_t end = indices.start(b + 1), past = again.width - 1;
        if (!works || start >= begin || end <= begin) continue;
        const int32_t firsts_end = start + past < end ? start + past : end;
        if (firsts_end > begin || firsts_end <= begin - stretch_tokens) continue;  // other stretches'
        const int ends_apart = elements_apart<T>(row + end);
        const T* const from =
            row + end + (ends_apart != 0 ? Shape::kTokens - ends_apart : 0) - Shape::kLastCells * Shape::kTokens;
        Words4* const lasts =
            reinterpret_cast<Words4*>(plan.lasts) + (int64_t{number} * plan.saved_dim + d) * Shape::kLastCells;
#pragma unroll
        for (int cell = 0; cell < Shape::kLastCells; ++cell) {
            const T* const part = from + cell * Shape::kTokens;
            if (reinterpret_cast<uint64_t>(part) + 16 <= plan.x_end) {
                lasts[cell] = *reinterpret_cast<const Words4*>(part);
            } else {
                for (int i = 0; i < Shape::kTokens && part + i < row + end; ++i)
                    reinterpret_cast<T*>(lasts + cell)[i] = part[i];
            }
        }
    }
}

void save_inputs(const CausalConv1dVarlenParams& p, const StagedPlan& plan, void* stream) {
    const dim3 grid = grid_of((int64_t{p.dim} + kStagedThreads - 1) / kStagedThreads, plan.stretches - 1);
    const hipStream_t s = static_cast<hipStream_t>(stream);
    if (element_bytes(p.dtype) == 4)
        HIPCONV_LAUNCH(true, causal_conv1d_varlen_save<uint32_t>, grid, dim3(kStagedThreads, 1, 1), 0, s, p, plan);
    else
        HIPCONV_LAUNCH(true, causal_conv1d_varlen_save<uint16_t>, grid, dim3(kStagedThreads, 1, 1), 0, s, p, plan);
    check_launch("causal_conv1d_varlen");
}

void save_inputs_of_rows(const StagedCall& call, void* stream) {
    const dim3 grid = grid_of((int64_t{call.params.dim} + kStagedThreads - 1) / kStagedThreads, call.plan.stretches - 1);
    with_dtype(call.params.dtype, [&](auto type) {
        HIPCONV_LAUNCH(true, causal_conv1d_varlen_save_rows<decltype(type)>, grid, dim3(kStagedThreads, 1, 1), 0,
                       static_cast<hipStream_t>(stream), call);
    });
    check_launch("causal_conv1d_varlen");
}

}  // namespace hipconv
