// What a daemon does with its process before it serves: its descriptors, its parent, its start line. No model here.
#pragma once

#include <optional>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"

namespace luce::daemon {

// Give each standard descriptor that is closed a file that reads as empty and takes everything, so that no file opened
// later gets its number. Returns whether stdout was open.
bool fill_standard_fds();

// Never wait for whoever should read the log: where stderr is a pipe or a terminal that is full, its lines are lost.
void keep_stderr_from_blocking();

// Keep stdout for replies alone: returns a descriptor of its own for it and lets fd 1 point to stderr, so that nothing
// a library prints can get between two replies.
UniqueFd take_over_stdout();

// Errors: bad_args if `fd` is not open for writing.
Result<void> check_is_writable(int fd);

// Have the kernel kill this process when its parent ends. Errors: start_failed if the parent is gone already.
Result<void> die_with_parent();

// Write all of `text` (blocking), for what is said before or instead of the event loop. Errors: io_error.
Result<void> write_text(int fd, std::string_view text);

}  // namespace luce::daemon
