// The instances of `few_products`.
#include <hip/hip_runtime.h>

#include "kernel.h"

namespace hipconv {

namespace {

template <int kPieces, bool kAlongPixels>
void launch_16bit(const FewProductsParams& p, unsigned blocks, int lds_bytes, void* stream) {
    if constexpr (!kHalvesShareKernels) {
        if (p.conv.dtype == DType::bf16)
            return launch_few_products_instance<bf16, kPieces, kAlongPixels>(p, blocks, lds_bytes, stream);
    }
    launch_few_products_instance<f16, kPieces, kAlongPixels>(p, blocks, lds_bytes, stream);
}

template <int kPieces>
void launch_pieces(const FewProductsParams& p, bool along_pixels, unsigned blocks, int lds_bytes, void* stream) {
    (along_pixels ? launch_16bit<kPieces, true> : launch_16bit<kPieces, false>)(p, blocks, lds_bytes, stream);
}

}  // namespace

void launch_few_products(const FewProductsParams& p, int pieces, bool along_pixels, unsigned blocks, int lds_bytes,
                         void* stream) {
    if (pieces == 1) return launch_pieces<1>(p, along_pixels, blocks, lds_bytes, stream);
    if (pieces == 2) return launch_pieces<2>(p, along_pixels, blocks, lds_bytes, stream);
    if (pieces == 3) return launch_pieces<3>(p, along_pixels, blocks, lds_bytes, stream);
    launch_pieces<6>(p, along_pixels, blocks, lds_bytes, stream);
}

}  // namespace hipconv
