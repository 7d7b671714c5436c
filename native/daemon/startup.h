// What a daemon does with its process before it serves: its descriptors, its parent, its start line. No model here.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace luce::daemon {

// Keep stdout for replies alone: returns a descriptor of its own for it and lets fd 1 point to stderr, so that nothing
// a library prints can get between two replies.
UniqueFd take_over_stdout();

// Errors: bad_args if `fd` is not open for writing.
Result<void> check_is_writable(int fd);

// Have the kernel kill this process when its parent ends. Errors: start_failed if the parent is gone already.
Result<void> die_with_parent();

// Write all of `line` (blocking), for what is said before or instead of the event loop.
void write_line(int fd, const std::string& line);

}  // namespace luce::daemon
