// TextFailure: how the parts of luce_text report what went wrong. An exception, unlike elsewhere in native/, because
// llama.cpp's chat code throws too and both end at the same place: the C functions of luce_text.cpp, which turn each
// into a status and a message. Must not leave the library.
#pragma once

#include <stdexcept>
#include <string>

#include "llama/text/luce_text.h"

namespace luce::llama {

class TextFailure : public std::runtime_error {
public:
    TextFailure(luce_text_status status, const std::string& message) : std::runtime_error(message), status_(status) {}

    luce_text_status status() const { return status_; }

private:
    luce_text_status status_;
};

// The caller's data are at fault.
[[noreturn]] inline void refuse(const std::string& message) { throw TextFailure(LUCE_TEXT_BAD_ARGUMENT, message); }

}  // namespace luce::llama
