// reopen_nonblocking: a second, private open file description of a pipe or a terminal that does not block. Setting
// O_NONBLOCK on the descriptor we were given would set it for everybody who shares it, a terminal's shell included.
#pragma once

#include "base/unique_fd.h"

namespace luce {

// Not open where that cannot be had: for regular files, whose offset would be lost and which do not block, for sockets,
// and where /proc is missing.
UniqueFd reopen_nonblocking(int fd);

}  // namespace luce
