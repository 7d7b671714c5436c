// Prompt files: what a path in a command holds. Only regular files are read, so that no path can make the daemon wait.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/token.h"

namespace luce::daemon {

enum class PromptLayout {
    raw,      // int32 little endian, as many as the file's size says
    counted,  // a uint32 count first
};

// At most n_max tokens: a longer file is not read. Errors: no_such_file, bad_prompt_file, empty_prompt,
// prompt_too_long, io_error.
Result<Tokens> read_prompt_file(const std::string& path, PromptLayout layout, std::int64_t n_max);

// The counterpart of PromptLayout::counted.
std::string to_counted_bytes(const Tokens& tokens);

// A whole small file (a grammar). Errors: no_such_file, io_error, bad_args when it is larger than max_bytes.
Result<std::string> read_text_file(const std::string& path, std::size_t max_bytes);

}  // namespace luce::daemon
