// The driver encodes the tensor maps that TMA reads; this header calls it.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace hipconv {
namespace compat {

#if CUDART_VERSION < 12000
constexpr bool kHasTensorMaps = false;  // the compiler has no instructions for them either
inline bool encode_tensor_map(uint64_t (&)[16], const TensorMapSpec&) { return false; }
#else
constexpr bool kHasTensorMaps = true;

// Finds the driver's function at run time, so that nothing needs to be linked to the driver.
template <typename Function>
Function* driver_function(const char* name) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
#else
    const cudaError_t error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<Function*>(found) : nullptr;
}

inline bool encode_tensor_map(uint64_t (&words)[16], const TensorMapSpec& t) {
    static_assert(sizeof(CUtensorMap) == sizeof(words), "a tensor map has 128 bytes");
    static const auto boxes = driver_function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
    static const auto pixels = driver_function<decltype(cuTensorMapEncodeIm2col)>("cuTensorMapEncodeIm2col");
    if (!boxes || !pixels) return false;
    cuuint64_t sizes[kMaxTensorRank], strides[kMaxTensorRank];
    cuuint32_t box[kMaxTensorRank], steps[kMaxTensorRank];
    for (int axis = 0; axis < t.rank; ++axis) {
        sizes[axis] = static_cast<cuuint64_t>(t.sizes[axis]);
        if (axis) strides[axis - 1] = static_cast<cuuint64_t>(t.strides[axis]);
        box[axis] = static_cast<cuuint32_t>(t.box[axis]);
        steps[axis] = 1;
    }
    const CUtensorMapDataType type = t.dtype == DType::bf16  ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                     : t.dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                     : t.is_stored           ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                                             : CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
    const cuuint32_t channels = t.dtype == DType::f32 ? 32 : 64;  // of 128 bytes
    const cuuint32_t axes = static_cast<cuuint32_t>(t.rank);
    CUtensorMap* const map = reinterpret_cast<CUtensorMap*>(words);
    void* const data = const_cast<void*>(t.data);
    if (!t.im2col)
        return boxes(map, type, axes, data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                     CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
    steps[1] = static_cast<cuuint32_t>(t.traversal_stride[0]);
    steps[2] = static_cast<cuuint32_t>(t.traversal_stride[1]);
    return pixels(map, type, axes, data, sizes, strides, t.lower_corner, t.upper_corner, channels,
                  static_cast<cuuint32_t>(t.pixels_per_column), steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
#endif

}  // namespace compat
}  // namespace hipconv
