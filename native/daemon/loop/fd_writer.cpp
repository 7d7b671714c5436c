#include "daemon/loop/fd_writer.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "base/log.h"
#include "base/nonblocking_fd.h"

namespace luce::daemon {
namespace {

constexpr std::size_t kLargeBurst = 1 << 16;

bool is_writable_now(int fd) {
    pollfd entry{fd, POLLOUT, 0};
    return ::poll(&entry, 1, 0) == 1 && (entry.revents & (POLLOUT | POLLERR | POLLHUP | POLLNVAL)) != 0;
}

}  // namespace

FdWriter::FdWriter(int fd) : fd_(fd), own_(reopen_nonblocking(fd)) {
    struct stat info{};
    if (::fstat(fd, &info) == 0) {
        is_pipe_ = S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode);
        is_socket_ = S_ISSOCK(info.st_mode);
    }
}

void FdWriter::append(std::string_view bytes) {
    if (!closed_) backlog_.append(bytes);
}

// Where it could not be reopened: a writable pipe has at least one free buffer of a page, which PIPE_BUF bytes fit
// into.
std::size_t FdWriter::burst_bytes() const { return is_pipe_ && !own_.is_open() ? PIPE_BUF : kLargeBurst; }

void FdWriter::flush() {
    while (!closed_ && backlog_bytes() > 0 && is_writable_now(fd())) {
        const std::size_t n = std::min(backlog_bytes(), burst_bytes());
        const char* first = backlog_.data() + n_written_;
        const ssize_t written =
            is_socket_ ? ::send(fd_, first, n, MSG_DONTWAIT | MSG_NOSIGNAL) : ::write(fd(), first, n);
        if (written >= 0) {
            n_written_ += static_cast<std::size_t>(written);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            break;
        } else if (errno != EINTR) {
            if (errno != EPIPE) failure_ = "writing to fd " + std::to_string(fd_) + " failed: " + std::strerror(errno);
            close();
        }
    }
    if (n_written_ == backlog_.size()) {
        backlog_.clear();
        n_written_ = 0;
    } else if (n_written_ > kLargeBurst) {
        backlog_.erase(0, n_written_);
        n_written_ = 0;
    }
}

void FdWriter::close() {
    if (!closed_) log_warn(failure_.value_or("the reader of fd " + std::to_string(fd_) + " has gone"));
    closed_ = true;
    backlog_.clear();
    n_written_ = 0;
}

}  // namespace luce::daemon
