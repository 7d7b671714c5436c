// UniqueFd: sole owner of a file descriptor, closed when it goes.
#pragma once

#include <unistd.h>

#include <utility>

namespace luce {

class UniqueFd {
public:
    UniqueFd() = default;
    explicit UniqueFd(int fd) : fd_(fd) {}
    UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    UniqueFd& operator=(UniqueFd&& other) noexcept {
        if (this != &other) {
            reset();
            fd_ = std::exchange(other.fd_, -1);
        }
        return *this;
    }
    ~UniqueFd() { reset(); }

    bool is_open() const { return fd_ >= 0; }
    int get() const { return fd_; }

    // Somebody else closes it from here on.
    [[nodiscard]] int release() { return std::exchange(fd_, -1); }

    void reset() {
        if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    }

private:
    int fd_ = -1;
};

}  // namespace luce
