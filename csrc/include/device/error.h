// The error of a call that the host's side of a kernel cannot do. Python gets a RuntimeError. It is no std::runtime_error:
// files of kernels include neither <stdexcept> nor <string>, which take compilers half a second in each of them.
#pragma once

#include <cstddef>
#include <exception>
#include <initializer_list>

namespace hipconv {

class Error : public std::exception {
  public:
    // The parts of the text, of which a thousand characters are kept.
    explicit Error(std::initializer_list<const char*> parts) {
        size_t end = 0;
        for (const char* part : parts)
            for (; *part != '\0' && end + 1 < sizeof(text_); ++part) text_[end++] = *part;
        text_[end] = '\0';
    }
    const char* what() const noexcept override { return text_; }

  private:
    char text_[1001];
};

}  // namespace hipconv
