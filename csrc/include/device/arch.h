// This header says once what the target is. It is the only file that asks which compiler reads it: everything else uses the
// names of the vendor's header below. amd.h, nvidia.h and host.h have one list of these in one order. It needs no -D flag:
// hipcc, clang++ -x hip, nvcc and g++ can each compile a kernel with `-Icsrc/include` alone.
#pragma once

#if defined(__HIP__)
#define HIPCONV_AMD 1  // HIP compiled by clang, in the host and device pass
#if defined(__AMDGCN__)
#define HIPCONV_AMD_DEVICE 1  // the device pass
#endif
#elif defined(__NVCC__)
#define HIPCONV_NVIDIA 1  // the same text through csrc/compat/cuda
#if defined(__CUDA_ARCH__)
#define HIPCONV_NVIDIA_DEVICE 1
#endif
#else
#define HIPCONV_HOST 1  // plain C++: csrc/cpu, the bindings, and kernels through csrc/compat/simt
#endif

#include <cstdint>
#include <cstring>

namespace hipconv {

// The instructions that multiply matrices (matrix/mma.h); `fma` stands for none.
enum class MatrixUnit { fma, mfma, wmma11, wmma12, mma_sync };

}  // namespace hipconv

// Each vendor's header has:
//
//   kWaveSize, kSimdsPerComputeUnit: lanes of a wave, and SIMD units that share the waves of a block's compute unit. Constants
//       of the device pass: a host pass sees a value too, because it parses kernel bodies, and must not base a decision on it
//   kLdsBytes: a compute unit has at least this much LDS, which its blocks share
//   kLaneBytes: a lane moves so many bytes at a time in kernels that keep many values of each element in registers
//   kVectorsBeginAtWords: a vector's address need only be a multiple of 4
//   kHasPredicates: lanes leave out an instruction at no cost, by a predicate, and pairs of values are no better than single
//       ones. Elsewhere conditions cost a selection each, and one instruction computes with both of a pair (on some cards)
//   kRoundsNan: rounding to 16 bits keeps every NaN; elsewhere one whose bits are low may become an infinity or a zero
//   kMatrixUnit: the instructions that multiply matrices; it holds in the device pass
//   kHasTf32: there are such instructions of TF32, if there are any; it holds in the device pass
//   kCopiesPastRegisters: memory is copied to LDS past the registers, while the thread goes on (copy_later); LDS beyond 48 KB
//       is then there if the launch asks for it. It is the same in the host and the device pass
//   kHasWarpgroups: kernels of warpgroups do something here. It means nothing in the host pass of a GPU compiler
//   kDies: a card has so many dies, which take the blocks of a launch in turns and have an L2 cache each
//   kPrefetches: prefetch() does something
//   kUnalignedVectors: a lane reads vectors at any address that is one of an element (load_unaligned)
//
//   HIPCONV_INLINE: a function that kernels call
//   HIPCONV_LAUNCH_BOUNDS(threads, blocks): promises the compiler at most `threads` threads a block, and asks for registers
//       such that `blocks` blocks fit on a compute unit (AMD) or multiprocessor (NVIDIA)
//   HIPCONV_SHARED(type, name, count): declares LDS at the top level of a kernel body: `name` points to `count` elements
//   HIPCONV_LARGE_SHARED(type, name, count): LDS of which a block may need more than a declaration can give: one array a
//       kernel, of 16-byte elements, for a launch that asks for launch_shared_bytes(); on NVIDIA its address is a multiple of
//       1024
//   HIPCONV_IN_PLACE: before a kernel's parameter: it stays where the launch put it, and is read from there
//
//   keep_order(): the compiler moves nothing across it: code behind it waits for loads, and code in front hides their latency
//   keep_apart<side>(): it stands at the end of each side of a branch, with a number each. Where the sides do the same with
//       different registers, compilers would make one side of them, which finds its registers by an index: the registers
//       would be in scratch memory
//   beside_access(offset): precedes an access at an address that all lanes share plus this offset. AMD has an access that takes
//       exactly these two, and its compiler uses it only where it sees the 32 bits widened beside the access, not in front of a
//       loop: this hides them
//   from_here_on(value): results from the value are worked out behind this, and not kept in registers from before. An int,
//       which lanes may share, is left alone on AMD; a uint32_t, which each lane has its own of, on NVIDIA
//   in_a_register(value): the value is kept in a register, and not worked out again wherever it is used, nor moved to another
//       register to be half of a pair. An int or an address, which lanes may share, is left alone on AMD
//   enter_loop_here(): it starts a loop that begins with a condition. AMD's compiler would copy the condition to the end
//       of the loop, which then would have two entries
//   global_pointer<T>(address): it makes a pointer to device memory from an integer or a pointer: AMD's compiler has to be
//       told that it does not point to LDS, wherever it cannot see that
//   promise_global(pointer): tells NVIDIA's compiler that a pointer is one to device memory
//   first_parameter(p): the first parameter of a kernel, read from where the launch put it (AMD), each member when it is
//       needed: AMD's compiler reads all members of a plain parameter at the start of the kernel. It must hold no pointers:
//       their address space would not be known
//   first_parameter_again(p): the same, but values read before are not kept in scalar registers, of which a large struct has
//       too many. It may hold pointers: apply global_pointer to them
//   prefetch(address), prefetch_if(address, wanted): asks for memory to be brought to the second cache, where that is possible
//       (NVIDIA; AMD has more registers for loads under way). Nothing waits for it, and there is no branch
//   load_past_first_cache(from): 16 bytes as the second cache has them, whatever the first one of an NVIDIA card holds
//   sync_wave(): all lanes of a wave see what each has written to LDS, and their reads before it are done
//   copy_later(to, from, zeros): copies 16, 8 or 4 bytes to LDS past the registers, where kCopiesPastRegisters, while the
//       thread goes on. With `zeros`, it writes zero bytes, and `from` may be any address
//   copy_later_if(wanted, to, from): the same of 16 bytes, by a predicate: copies that stand behind each other stay so
//   copy_later(to, from): the same with 8 bytes, or with 4
//   close_copies(): the copies asked for since the last call become a group, which may be empty
//   wait_for_copies<groups>(): this thread's copies are done, but for those of the last groups
//
//   HIPCONV_LAUNCH(early, kernel, grid, block, shared_bytes, stream, ...): launches a kernel; if `early`, it may begin while
//       the one before it in the stream ends (sm_90 and later): its blocks take what is free of the card, get ready, and wait.
//       Such a kernel calls wait_for_kernel_before() in all threads before it touches memory, even if it needs nothing from
//       the one before: the one behind it counts on both being done
//   HIPCONV_LAUNCH_CLUSTERS(blocks, kernel, …): an early launch in clusters of so many blocks (matrix/cluster.h); 1: of none
//   let_next_kernel_begin(): the kernel before calls it to allow this
//
//   bit_cast<To>(from): the same bits
//   f16_bits_to_float, float_to_f16_bits, float_to_bf16_bits: conversions; both stores round to nearest, ties to even
//   at_least(v, least): the larger of the two; a NaN v stays one
//   approx_exp2, approx_rcp, approx_rsqrt: the hardware's own approximations
//   shifted_right(low, high, bits), shifted_left(low, high, bits): the lower word of the two, shifted right by 16 bits or none,
//       and the upper word, shifted left
//   lower_halves(a, b), upper_halves(a, b): a word of these halves of two words, a's first
//   Words4, Words2, Pair: vectors of 16 and 8 bytes and of two floats; native vector types where the compiler has them: a
//       struct around an array of registers ends up in scratch memory on gfx90a and gfx942
//   word(v, i), set_word(v, i, w), make_pair, low, high, multiply_add, multiply, add: the operations of vectors
#if defined(HIPCONV_AMD)
#include "device/amd.h"
#elif defined(HIPCONV_NVIDIA)
#include "device/nvidia.h"
#else
#include "device/host.h"
#endif

namespace hipconv {

// Tells whether a kernel of matrix instructions serves both types of 16 bits, with a branch to the products of each, which
// halves the time to compile. AMD's compiler would take the loads of both sides to the front of the branch, and run out of
// registers.
constexpr bool kHalvesShareKernels = kCopiesPastRegisters;

template <typename T>
HIPCONV_INLINE T* global_pointer(const void* address) {
    return global_pointer<T>(reinterpret_cast<uint64_t>(address));
}

constexpr int launch_shared_bytes(int bytes) { return kCopiesPastRegisters ? bytes : 0; }

}  // namespace hipconv
