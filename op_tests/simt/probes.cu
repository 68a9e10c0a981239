// Small kernels whose results follow from the semantics of HIP, to hold the simt backend against. Plain HIP: the same file runs
// on a GPU and has to agree there. `simt_probes --list` names the probes, `simt_probes NAME` runs one: exit status 0 as
// expected, 1 with a message if a result differs, 2 if the probe could not run.
//
// `--list-host` names what only simt can promise (poison, canaries, orders), `--list-broken` wrong kernels that must not get
// by.
#include <hip/hip_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/activation.h"
#include "device/arch.h"
#include "device/dtype.h"
#include "launch/taper.h"
#include "probes.h"

#if defined(HIPCONV_HOST)
#include <thread>
#endif

namespace {

using hipconv::bf16;
using hipconv::f16;
using hipconv::kWaveSize;

__global__ void write_wave_size(int* out) { *out = kWaveSize; }

int wave_size() {  // the device pass's; the host pass may see another
    DeviceArray<int> out(1);
    hipLaunchKernelGGL(write_wave_size, dim3(1), dim3(1), 0, nullptr, out.data());
    return out.values()[0];
}

}  // namespace

#include "probes/blocks.h"
#include "probes/types.h"
#include "probes/waves.h"
#if defined(HIPCONV_HOST)
#include "probes/promises.h"
#include "probes/wrong.h"
#endif

namespace {

const std::vector<Probe>& probes() {
    static const std::vector<Probe> all = {
        {"--list", "block_reduction", block_reduction},
        {"--list", "halo", run_halo<true, -3, 3>},
        {"--list", "two_shared_arrays", two_shared_arrays},
        {"--list", "neighbour_rounds", run_neighbour_rounds<true>},
        {"--list", "divergence_before_barrier", divergence_before_barrier},
        {"--list", "early_exit", early_exit},
        {"--list", "many_blocks", many_blocks},
        {"--list", "large_shared", large_shared},
        {"--list", "indices", indices},
        {"--list", "grid_stride", grid_stride},
        {"--list", "launch_arguments", launch_arguments},
        {"--list", "invalid_launches", invalid_launches},
        {"--list", "shuffles", shuffles},
        {"--list", "wave_scan", wave_scan},
        {"--list", "back_to_back_shuffles", back_to_back_shuffles},
        {"--list", "ballots", ballots},
        {"--list", "shuffles_and_barriers", shuffles_and_barriers},
        {"--list", "atomic_add", atomic_add},
        {"--list", "atomic_exchange", atomic_exchange},
        {"--list", "f16_conversions", [] { conversions<f16>(kF16); }},
        {"--list", "bf16_conversions", [] { conversions<bf16>(kBf16); }},
        {"--list", "silu_accuracy", silu_accuracy},
        {"--list", "taper", taper},
#if defined(HIPCONV_HOST)
        {"--list-host", "poison", poison},
        {"--list-host", "missing_lane", missing_lane},
        {"--list-host", "large_stack", large_stack},
        {"--list-host", "all_of_shared", all_of_shared},
        {"--list-host", "os_threads", os_threads},
        {"--list-host", "turns", turns},
        {"--list-broken", "halo_no_barrier", run_halo<false, -3, 3>},
        {"--list-broken", "halo_below_no_barrier", run_halo<false, -3, 0>},
        {"--list-broken", "halo_above_no_barrier", run_halo<false, 0, 3>},
        {"--list-broken", "rounds_one_barrier", run_neighbour_rounds<false>},
        {"--list-broken", "rounds_one_barrier_waves_meet", run_neighbour_rounds<false, true>},
        {"--list-broken", "barrier_missed", BROKEN(miss_barrier, dim3(2), dim3(64))},
        {"--list-broken", "last_barrier_missed", BROKEN(miss_last_barrier, dim3(1), dim3(8, 4))},
        {"--list-broken", "barrier_split", BROKEN(split_barrier, dim3(1), dim3(128))},
        {"--list-broken", "shuffle_missed", BROKEN(miss_shuffle, dim3(1), dim3(128))},
        {"--list-broken", "shuffle_against_barrier", BROKEN(shuffle_against_barrier, dim3(1), dim3(64))},
        {"--list-broken", "shuffle_split", BROKEN(split_shuffle, dim3(1), dim3(64))},
        {"--list-broken", "shuffle_too_wide", BROKEN(shuffle_too_wide, dim3(1), dim3(128))},
        {"--list-broken", "shared_write_past_end", BROKEN(write_past_end, dim3(1), dim3(1))},
        {"--list-broken", "shared_write_before_begin", BROKEN(write_before_begin, dim3(1), dim3(16))},
        {"--list-broken", "shared_read_past_end", shared_read_past_end},
        {"--list-broken", "shared_too_large", BROKEN(declare_too_much, dim3(1), dim3(1))},
        {"--list-broken", "shared_uneven", BROKEN(declare_unevenly, dim3(1), dim3(2))},
        {"--list-broken", "stack_recursion", [] { among_other_stacks(BROKEN(recurse, dim3(1), dim3(1))); }},
        {"--list-broken", "stack_large_array", [] { among_other_stacks(BROKEN(outgrow_stack, dim3(1), dim3(1))); }},
        {"--list-broken", "global_out_of_bounds", BROKEN(write_out_of_bounds, dim3(5), dim3(205))},  // 1025 of 1024
#endif
    };
    return all;
}

}  // namespace

int main(int count, char** arguments) { return run_probe(probes(), count == 2 ? arguments[1] : ""); }
