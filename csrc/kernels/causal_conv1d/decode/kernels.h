// This declares the decode kernels on GPUs, which have a file of their own each, and has their table.
#pragma once

#include "causal_conv1d/decode.h"

namespace hipconv {

const char* causal_conv1d_update_step_refusal(const CausalConv1dUpdateParams& params);
bool causal_conv1d_update_step_is_choice(const CausalConv1dUpdateParams& params);  // by measurement
void causal_conv1d_update_step(const CausalConv1dUpdateParams& params, void* workspace, void* stream);

const char* causal_conv1d_update_vector_refusal(const CausalConv1dUpdateParams& params);
bool causal_conv1d_update_vector_is_choice(const CausalConv1dUpdateParams& params);  // by measurement
void causal_conv1d_update_vector(const CausalConv1dUpdateParams& params, void* workspace, void* stream);

// `vector` on NVIDIA, where it serves: copies go past the registers there.
bool causal_conv1d_update_copied_serves(const CausalConv1dUpdateParams& params);
void causal_conv1d_update_copied(const CausalConv1dUpdateParams& params, void* stream);

const char* causal_conv1d_update_wave_refusal(const CausalConv1dUpdateParams& params);
bool causal_conv1d_update_wave_beats_vectors(const CausalConv1dUpdateParams& params);  // `step` and `vector`, by measurement
bool causal_conv1d_update_wave_is_choice(const CausalConv1dUpdateParams& params);      // by measurement
void causal_conv1d_update_wave(const CausalConv1dUpdateParams& params, void* workspace, void* stream);

const char* causal_conv1d_update_turn_refusal(const CausalConv1dUpdateParams& params);
bool causal_conv1d_update_turn_beats_vectors(const CausalConv1dUpdateParams& params);  // `step` and `vector`, by measurement
bool causal_conv1d_update_turn_is_choice(const CausalConv1dUpdateParams& params);      // by measurement
void causal_conv1d_update_turn(const CausalConv1dUpdateParams& params, void* workspace, void* stream);

const char* causal_conv1d_update_pair_refusal(const CausalConv1dUpdateParams& params);
bool causal_conv1d_update_pair_is_choice(const CausalConv1dUpdateParams& params);  // where channels are neighbours
void causal_conv1d_update_pair(const CausalConv1dUpdateParams& params, void* workspace, void* stream);

const char* causal_conv1d_update_channel_refusal(const CausalConv1dUpdateParams& params);
void causal_conv1d_update_channel(const CausalConv1dUpdateParams& params, void* workspace, void* stream);

void causal_conv1d_update_naive(const CausalConv1dUpdateParams& params, void* workspace, void* stream);

// name, refusal, launch, workspace, choice
constexpr KernelRow<CausalConv1dUpdateParams> kUpdateKernels[] = {
    {"step", causal_conv1d_update_step_refusal, causal_conv1d_update_step, nullptr, causal_conv1d_update_step_is_choice},
    {"vector", causal_conv1d_update_vector_refusal, causal_conv1d_update_vector, nullptr,
     causal_conv1d_update_vector_is_choice},
    {"turn", causal_conv1d_update_turn_refusal, causal_conv1d_update_turn, nullptr, causal_conv1d_update_turn_is_choice},
    {"wave", causal_conv1d_update_wave_refusal, causal_conv1d_update_wave, nullptr, causal_conv1d_update_wave_is_choice},
    {"pair", causal_conv1d_update_pair_refusal, causal_conv1d_update_pair, nullptr, causal_conv1d_update_pair_is_choice},
    {"channel", causal_conv1d_update_channel_refusal, causal_conv1d_update_channel},
    {"naive", nullptr, causal_conv1d_update_naive},
};
static_assert(are_named(kUpdateKernels, kCausalConv1dUpdateNames.gpu), "names stand in causal_conv1d/decode.h too");

}  // namespace hipconv
