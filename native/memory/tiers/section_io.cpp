#include "memory/tiers/section_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/crc32c.h"

namespace luce::memory {
namespace {

static_assert(std::endian::native == std::endian::little);

Error cut_short() { return {ErrorCode::bad_snapshot, "it is cut short"}; }

}  // namespace

Result<void> SpanSource::read(std::span<std::uint8_t> out) {
    if (out.size() > left_.size()) return cut_short();
    std::copy_n(left_.begin(), out.size(), out.begin());
    left_ = left_.subspan(out.size());
    return {};
}

Result<FileSource> FileSource::open(const std::string& path, Links links) {
    const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (links == Links::refuse ? O_NOFOLLOW : 0);
    UniqueFd fd(::open(path.c_str(), flags));
    if (!fd.is_open()) {
        const int code = errno;
        if (code == ELOOP && links == Links::refuse) return Error{ErrorCode::bad_snapshot, path + " is a link"};
        const bool missing = code == ENOENT || code == ENOTDIR;
        return Error{missing ? ErrorCode::no_such_file : ErrorCode::io_error,
                     "cannot open " + path + ": " + std::strerror(code)};
    }
    struct stat info{};
    if (::fstat(fd.get(), &info) != 0) {
        return Error{ErrorCode::io_error, "cannot read " + path + ": " + std::strerror(errno)};
    }
    if (!S_ISREG(info.st_mode)) return Error{ErrorCode::bad_snapshot, path + " is no regular file"};
    return FileSource(std::move(fd), static_cast<std::uint64_t>(info.st_size));
}

Result<void> FileSource::read(std::span<std::uint8_t> out) {
    if (out.size() > n_left_) return cut_short();
    n_left_ -= out.size();
    while (!out.empty()) {
        const ssize_t n = ::read(fd_.get(), out.data(), out.size());
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return Error{ErrorCode::io_error, std::string("it cannot be read: ") + std::strerror(errno)};
        if (n == 0) return cut_short();  // by somebody, since it was opened
        out = out.subspan(static_cast<std::size_t>(n));
    }
    return {};
}

Result<void> write_section(const WriteBytes& write, std::span<const std::uint8_t> bytes) {
    if (Result<void> written = write(bytes); !written) return written;
    const std::uint32_t checksum = crc32c(bytes);
    return write(bytes_of(checksum));
}

Result<void> read_section(ByteSource& source, std::span<std::uint8_t> out) {
    if (Result<void> read = source.read(out); !read) return read;
    std::uint32_t checksum = 0;
    if (Result<void> read = source.read({reinterpret_cast<std::uint8_t*>(&checksum), sizeof checksum}); !read) {
        return read;
    }
    if (checksum != crc32c(out)) return Error{ErrorCode::bad_snapshot, "a checksum does not fit: it is damaged"};
    return {};
}

}  // namespace luce::memory
