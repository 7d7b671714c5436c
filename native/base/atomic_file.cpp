#include "base/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace luce {
namespace {

Error io_error(const std::string& what, const std::string& path, int code) {
    return {ErrorCode::io_error, what + " " + path + ": " + std::strerror(code)};
}

// 0 or the errno of what failed.
int write_all(int fd, std::span<const std::uint8_t> bytes) {
    while (!bytes.empty()) {
        const ssize_t n = ::write(fd, bytes.data(), bytes.size());
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
    return 0;
}

std::string scratch_name_for(const std::string& path) {
    static constexpr std::string_view kDigits = "0123456789abcdefghijklmnopqrstuv";
    std::array<std::uint8_t, kScratchDigits> random{};
    // Six bytes are given at once or, before the machine has gathered any randomness, not at all: then O_EXCL decides.
    if (::getrandom(random.data(), random.size(), GRND_NONBLOCK) < 0)
        random.fill(static_cast<std::uint8_t>(::getpid()));
    std::string name = path;
    name += kScratchInfix;
    for (const std::uint8_t byte : random) name += kDigits[byte % kDigits.size()];
    return name;
}

// The rename itself must survive a power cut too, so the folder is synced after it.
void sync_folder_of(const std::string& path) {
    std::string folder = std::filesystem::path(path).parent_path().string();
    if (folder.empty()) folder = ".";
    const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd.is_open()) ::fsync(fd.get());
}

}  // namespace

AtomicFile::AtomicFile(std::string path, std::string scratch, UniqueFd fd)
    : path_(std::move(path)), scratch_(std::move(scratch)), fd_(std::move(fd)) {}

AtomicFile::~AtomicFile() {
    if (fd_.is_open()) ::unlink(scratch_.c_str());
}

Result<AtomicFile> AtomicFile::create(const std::string& path, mode_t mode) {
    static constexpr int kAttempts = 16;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
        std::string scratch = scratch_name_for(path);
        UniqueFd fd(::open(scratch.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
        if (!fd.is_open() && errno == EEXIST) continue;
        if (!fd.is_open()) return io_error("cannot create a file beside", path, errno);
        ::flock(fd.get(), LOCK_EX | LOCK_NB);  // where the file system has no locks, there is nothing to tell
        return AtomicFile(path, std::move(scratch), std::move(fd));
    }
    return io_error("cannot create a file beside", path, EEXIST);
}

Result<AtomicFile> AtomicFile::replace(const std::string& given_path) {
    std::error_code failure;
    const std::filesystem::path resolved = std::filesystem::weakly_canonical(given_path, failure);
    const std::string path = failure ? given_path : resolved.string();
    const std::filesystem::file_status status = std::filesystem::status(path, failure);
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
        return Error{ErrorCode::io_error, given_path + " is there and no regular file"};
    }
    return create(path, 0666);
}

Result<void> AtomicFile::write(std::span<const std::uint8_t> bytes) {
    if (const int failed = write_all(fd_.get(), bytes); failed != 0) return io_error("cannot write", path_, failed);
    return {};
}

Result<void> AtomicFile::commit() {
    if (::fsync(fd_.get()) != 0 || ::rename(scratch_.c_str(), path_.c_str()) != 0) {
        return io_error("cannot write", path_, errno);
    }
    fd_.reset();
    sync_folder_of(path_);
    return {};
}

Result<void> write_file_atomically(const std::string& path, std::string_view bytes) {
    Result<AtomicFile> file = AtomicFile::replace(path);
    if (!file) return file.error();
    const auto* first = reinterpret_cast<const std::uint8_t*>(bytes.data());
    if (Result<void> written = file.value().write({first, bytes.size()}); !written) return written;
    return file.value().commit();
}

}  // namespace luce
