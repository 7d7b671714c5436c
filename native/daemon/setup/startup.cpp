#include "daemon/setup/startup.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <string_view>

#include "base/nonblocking_fd.h"

namespace luce::daemon {

bool fill_standard_fds() {
    bool has_stdout = true;
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (::fcntl(fd, F_GETFD) >= 0) continue;
        if (fd == STDOUT_FILENO) has_stdout = false;
        [[maybe_unused]] const int lowest_free = ::open("/dev/null", O_RDWR);
    }
    return has_stdout;
}

void keep_stderr_from_blocking() {
    // llama.cpp prints some of its messages past any callback, so the descriptor itself has to be of that kind.
    const UniqueFd own = reopen_nonblocking(STDERR_FILENO);
    if (own.is_open()) ::dup2(own.get(), STDERR_FILENO);
}

UniqueFd take_over_stdout() {
    UniqueFd own(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
    if (own.is_open()) ::dup2(STDERR_FILENO, STDOUT_FILENO);
    return own;
}

Result<void> check_is_writable(int fd) {
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags < 0) {
        return Error{ErrorCode::bad_args,
                     "--stream-fd " + std::to_string(fd) + " is not an open descriptor: " + std::strerror(errno)};
    }
    if ((flags & O_ACCMODE) == O_RDONLY) {
        return Error{ErrorCode::bad_args, "--stream-fd " + std::to_string(fd) + " is open for reading only"};
    }
    return {};
}

Result<void> die_with_parent() {
    const pid_t parent = ::getppid();
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
        return Error{ErrorCode::start_failed, std::string("--die-with-parent: ") + std::strerror(errno)};
    }
    // The parent may have ended before the kernel knew of our wish.
    if (::getppid() != parent) return Error{ErrorCode::start_failed, "the parent process has ended"};
    return {};
}

Result<void> write_text(int fd, std::string_view text) {
    while (!text.empty()) {
        const ssize_t n = ::write(fd, text.data(), text.size());
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            return Error{ErrorCode::io_error, std::string("the output could not be written: ") + std::strerror(errno)};
        }
        text.remove_prefix(static_cast<std::size_t>(n));
    }
    return {};
}

}  // namespace luce::daemon
