// A file of probe kernels needs this on the host: device memory, comparisons, and a command that runs a probe by its name.
// Plain HIP.
#pragma once

#include <hip/hip_runtime.h>

#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

struct Mismatch : std::runtime_error {
    using std::runtime_error::runtime_error;
};

inline void check(hipError_t error, const char* what) {
    if (error != hipSuccess) throw std::runtime_error(std::string(what) + ": " + hipGetErrorString(error));
}

inline void finish() {
    check(hipGetLastError(), "launch");
    check(hipDeviceSynchronize(), "kernel");
}

template <typename T>
class DeviceArray {
  public:
    explicit DeviceArray(const std::vector<T>& values) : size_(values.size()) {
        check(hipMalloc(&data_, size_ * sizeof(T)), "hipMalloc");
        check(hipMemcpy(data_, values.data(), size_ * sizeof(T), hipMemcpyHostToDevice), "hipMemcpy");
    }
    explicit DeviceArray(size_t size) : DeviceArray(std::vector<T>(size)) {}
    DeviceArray(const DeviceArray&) = delete;
    DeviceArray& operator=(const DeviceArray&) = delete;
    ~DeviceArray() { (void)hipFree(data_); }

    T* data() const { return data_; }
    std::vector<T> values() const {
        finish();
        std::vector<T> values(size_);
        check(hipMemcpy(values.data(), data_, size_ * sizeof(T), hipMemcpyDeviceToHost), "hipMemcpy");
        return values;
    }

  private:
    size_t size_;
    T* data_ = nullptr;
};

template <typename T>
void expect_equal(const std::string& what, const std::vector<T>& got, const std::vector<T>& expected) {
    if (got.size() != expected.size()) throw Mismatch(what + ": sizes differ");
    for (size_t i = 0; i < got.size(); ++i)
        if (!(got[i] == expected[i]))
            throw Mismatch(what + ": element " + std::to_string(i) + " is " + std::to_string(got[i]) + ", expected " +
                           std::to_string(expected[i]));
}

inline void expect(bool condition, const std::string& what) {
    if (!condition) throw Mismatch(what);
}

struct Probe {
    const char* list;
    const char* name;
    std::function<void()> run;
};

// The probes of a list, by its name, or one of them: the exit status is 0 as expected, 1 with a message if a result differs, 2
// if the probe could not run.
inline int run_probe(const std::vector<Probe>& probes, const std::string& argument) {
    try {
        bool known = argument.rfind("--list", 0) == 0;
        for (const Probe& probe : probes) {
            if (argument == probe.list) std::printf("%s\n", probe.name);
            if (argument != probe.name) continue;
            known = true;
            probe.run();
        }
        if (!known) throw std::invalid_argument("'" + argument + "' is no probe; --list names them");
        return 0;
    } catch (const Mismatch& mismatch) {
        std::printf("mismatch: %s\n", mismatch.what());
        return 1;
    } catch (const std::invalid_argument& error) {
        std::printf("invalid argument: %s\n", error.what());
        return 2;
    } catch (const std::exception& error) {
        std::printf("error: %s\n", error.what());
        return 2;
    }
}
