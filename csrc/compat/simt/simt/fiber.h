// A fiber is a stack of its own and a switch to it and back. A switch takes 25 ns, against 390 ns for ucontext, which saves the
// signal mask with a system call each time. Below each stack lies a guard, so that an overflow faults instead of corrupting.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>

#if !defined(__x86_64__)
#error "the simt backend switches fibers in x86-64 assembly; run it on an x86-64 machine"
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

// void hipconv_simt_switch(void** save, void* load) pushes the callee-saved registers, stores the stack pointer in *save, and
// continues from `load`. It is in a COMDAT section, because several translation units of a module include this header.
asm(R"(
.pushsection .text.hipconv_simt_switch,"axG",@progbits,hipconv_simt_switch,comdat
.weak hipconv_simt_switch
.hidden hipconv_simt_switch
.type hipconv_simt_switch,@function
hipconv_simt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size hipconv_simt_switch, .-hipconv_simt_switch
.popsection
)");
extern "C" __attribute__((visibility("hidden"))) void hipconv_simt_switch(void** save, void* load);

namespace simt {

class Stack {
  public:
    static constexpr size_t kBytes = 256 * 1024;
    static constexpr size_t kGuardBytes = 1024 * 1024;  // wide, because one large local array would step over a page

    Stack() {
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void* memory = mmap(nullptr, kGuardBytes + kBytes, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        mapping_ = static_cast<char*>(memory);
        if (mprotect(mapping_, kGuardBytes, PROT_NONE) != 0) {
            munmap(mapping_, kGuardBytes + kBytes);
            throw std::bad_alloc();
        }
    }
    Stack(Stack&& other) noexcept : mapping_(other.mapping_) { other.mapping_ = nullptr; }
    Stack(const Stack&) = delete;
    Stack& operator=(const Stack&) = delete;
    ~Stack() {
        if (mapping_) munmap(mapping_, kGuardBytes + kBytes);
    }

    char* bottom() const { return mapping_ + kGuardBytes; }

    // This returns the stack pointer of a fiber that, when switched to, enters `entry` with a correctly aligned, otherwise
    // empty stack.
    void* fresh(void (*entry)()) const {
        void** slot = reinterpret_cast<void**>(bottom() + kBytes) - 2;
        *slot = reinterpret_cast<void*>(entry);         // `ret` pops it
        for (int i = 0; i < 6; ++i) *--slot = nullptr;  // the six registers
        return slot;
    }

  private:
    char* mapping_;
};

// A context is one side of a switch. AddressSanitizer has to be told of every change of stack.
struct Context {
    void* stack_pointer = nullptr;
    const void* stack_bottom = nullptr;
    size_t stack_bytes = 0;
    void* fake_stack = nullptr;
};

// This leaves `from` and continues `to`; it returns when a fiber switches back to `from`. A context that never continues says
// so.
inline void switch_context(Context& from, Context& to, bool from_is_done = false) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(from_is_done ? nullptr : &from.fake_stack, to.stack_bottom, to.stack_bytes);
    hipconv_simt_switch(&from.stack_pointer, to.stack_pointer);
    __sanitizer_finish_switch_fiber(from.fake_stack, &to.stack_bottom, &to.stack_bytes);
#else
    (void)from_is_done;
    hipconv_simt_switch(&from.stack_pointer, to.stack_pointer);
#endif
}

}  // namespace simt
