#include "base/atomic_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/unique_fd.h"

namespace luce {
namespace {

Error io_error(const std::string& what, const std::string& path, int code) {
    return {ErrorCode::io_error, what + " " + path + ": " + std::strerror(code)};
}

// 0 or the errno of what failed.
int write_all(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t n = ::write(fd, bytes.data(), bytes.size());
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return 0;
}

mode_t current_umask() {
    const mode_t mask = ::umask(0);
    ::umask(mask);
    return mask;
}

// The rename itself must survive a power cut too, so the folder is synced after it.
void sync_folder_of(const std::string& path) {
    std::string folder = std::filesystem::path(path).parent_path().string();
    if (folder.empty()) folder = ".";
    const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd.is_open()) ::fsync(fd.get());
}

}  // namespace

Result<void> write_file_atomically(const std::string& given_path, std::string_view bytes) {
    std::error_code failure;
    const std::filesystem::path resolved = std::filesystem::weakly_canonical(given_path, failure);
    const std::string path = failure ? given_path : resolved.string();
    const std::filesystem::file_status status = std::filesystem::status(path, failure);
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
        return Error{ErrorCode::io_error, given_path + " is there and no regular file"};
    }
    std::string scratch = path + ".tmp-XXXXXX";
    UniqueFd fd(::mkostemp(scratch.data(), O_CLOEXEC));
    if (!fd.is_open()) return io_error("cannot create a file beside", path, errno);
    int failed = write_all(fd.get(), bytes);
    if (failed == 0 && ::fchmod(fd.get(), 0666 & ~current_umask()) != 0) failed = errno;
    if (failed == 0 && ::fsync(fd.get()) != 0) failed = errno;
    fd.reset();
    if (failed == 0 && ::rename(scratch.c_str(), path.c_str()) != 0) failed = errno;
    if (failed != 0) {
        ::unlink(scratch.c_str());
        return io_error("cannot write", path, failed);
    }
    sync_folder_of(path);
    return {};
}

}  // namespace luce
