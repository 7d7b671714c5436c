// FdWriter: an output that never blocks. What the reader has not taken yet waits here; the owner bounds how much that
// can be. Does not own the descriptor and leaves its flags alone (base/nonblocking_fd.h).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace luce::daemon {

class FdWriter {
public:
    explicit FdWriter(int fd);

    // What to poll.
    int fd() const { return own_.is_open() ? own_.get() : fd_; }
    bool is_closed() const { return closed_; }
    std::size_t backlog_bytes() const { return backlog_.size() - n_written_; }

    // Why it was closed, if not by its reader: a full disk, say.
    const std::optional<std::string>& failure() const { return failure_; }

    // Dropped if the reader is gone.
    void append(std::string_view bytes);

    // Write what can be written now. After a reader's end or a write error (logged) the writer is closed for good.
    void flush();

    // The reader is gone (seen by poll, say).
    void close();

private:
    // How many bytes one write may carry without blocking, once poll has said that the fd is writable.
    std::size_t burst_bytes() const;

    int fd_;
    UniqueFd own_;  // the same file, not blocking
    bool is_pipe_ = false;
    bool is_socket_ = false;
    bool closed_ = false;
    std::optional<std::string> failure_;
    std::string backlog_;
    std::size_t n_written_ = 0;  // of backlog_
};

}  // namespace luce::daemon
