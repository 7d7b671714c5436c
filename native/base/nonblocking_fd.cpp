#include "base/nonblocking_fd.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <string>

namespace luce {

UniqueFd reopen_nonblocking(int fd) {
    struct stat info{};
    if (::fstat(fd, &info) != 0 || !(S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode))) return UniqueFd();
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    return UniqueFd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace luce
