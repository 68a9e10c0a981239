// conv3d as a product of matrices on matrix cores: rows are a frame's pixels, columns filters, and the inner product runs over
// the channels of all taps, those of a frame after those of the frame before. Chunks of 16 bytes of channels stand in one row,
// tap after tap, and a step takes kTileChunks of them, so that taps of 96 channels need no padding. Frames of zeros are left
// out.
#pragma once

#include "../common/filters.h"
#include "../common/frame_gemm.h"

namespace hipconv {

struct FrameGemmParams {
    Conv3dParams conv;
    SavePlan save;
    ConvGemmParams frame;
    int32_t frames_of_sample;                     // in out
    bool by_vectors;                              // 16 bytes of channels of x and of the cache are aligned
    bool lanes_along_pixels;                      // when single elements are loaded
    int32_t chunks, chunks_of_frame, all_chunks;  // of a tap's channels, of a frame's taps, of all taps
    Divisor divide_by_chunks, divide_by_frame, divide_by_width, divide_by_frames;
    const void* filters;
    int64_t filter_stride;  // bytes
};

constexpr int kGemmThreads = 256, kGemmPixels = 128;

// Launches the instances of a file: of 16-bit types by vectors or by elements, and of float32, either way, as it is or rounded
// to TF32.
void launch_frame_gemm_vectors(const FrameGemmParams& params, int tile_n, void* stream);
void launch_frame_gemm_elements(const FrameGemmParams& params, int tile_n, void* stream);
void launch_frame_gemm_f32(const FrameGemmParams& params, int tile_n, void* stream);
void launch_frame_gemm_tf32(const FrameGemmParams& params, int tile_n, void* stream);

}  // namespace hipconv
