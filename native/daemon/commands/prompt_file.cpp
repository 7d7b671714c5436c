#include "daemon/commands/prompt_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/unique_fd.h"

namespace luce::daemon {
namespace {

constexpr std::size_t kTokenBytes = 4;

struct RegularFile {
    UniqueFd fd;
    std::size_t n_bytes = 0;
};

Result<RegularFile> open_regular(const std::string& path, ErrorCode otherwise) {
    // O_NONBLOCK: opening a FIFO that nobody writes to would wait.
    RegularFile file{UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)), 0};
    if (!file.fd.is_open()) {
        const bool missing = errno == ENOENT || errno == ENOTDIR;
        return Error{missing ? ErrorCode::no_such_file : ErrorCode::io_error, path + ": " + std::strerror(errno)};
    }
    struct stat info{};
    if (::fstat(file.fd.get(), &info) != 0) return Error{ErrorCode::io_error, path + ": " + std::strerror(errno)};
    if (!S_ISREG(info.st_mode)) return Error{otherwise, path + " is not a regular file"};
    file.n_bytes = static_cast<std::size_t>(info.st_size);
    return file;
}

Result<std::string> read_bytes(const RegularFile& file, const std::string& path) {
    std::string bytes(file.n_bytes, '\0');
    std::size_t n = 0;
    while (n < bytes.size()) {
        const ssize_t got = ::read(file.fd.get(), bytes.data() + n, bytes.size() - n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return Error{ErrorCode::io_error, path + ": " + std::strerror(errno)};
        if (got == 0) return Error{ErrorCode::io_error, path + " became shorter while it was read"};
        n += static_cast<std::size_t>(got);
    }
    return bytes;
}

std::uint32_t little_endian(const char* p) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < kTokenBytes; ++i) {
        value |= std::uint32_t{static_cast<unsigned char>(p[i])} << (8 * i);
    }
    return value;
}

void append_little_endian(std::string& out, std::uint32_t value) {
    for (std::size_t i = 0; i < kTokenBytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

}  // namespace

Result<Tokens> read_prompt_file(const std::string& path, PromptLayout layout, std::int64_t n_max) {
    Result<RegularFile> file = open_regular(path, ErrorCode::bad_prompt_file);
    if (!file) return file.error();
    const std::size_t n_header = layout == PromptLayout::counted ? kTokenBytes : 0;
    const std::size_t n_bytes = file.value().n_bytes;
    if (n_bytes == 0) return Error{ErrorCode::empty_prompt, path + " is empty"};
    if (n_bytes % kTokenBytes != 0 || n_bytes < n_header) {
        return Error{ErrorCode::bad_prompt_file,
                     path + " has " + std::to_string(n_bytes) + " bytes: no whole number of int32 tokens"};
    }
    const std::size_t n_tokens = (n_bytes - n_header) / kTokenBytes;
    if (n_tokens > static_cast<std::size_t>(n_max)) {
        return Error{ErrorCode::prompt_too_long,
                     path + " holds " + std::to_string(n_tokens) + " tokens; the context has " + std::to_string(n_max)};
    }
    const Result<std::string> bytes = read_bytes(file.value(), path);
    if (!bytes) return bytes.error();
    if (layout == PromptLayout::counted && little_endian(bytes.value().data()) != n_tokens) {
        return Error{ErrorCode::bad_prompt_file, path + " announces " +
                                                     std::to_string(little_endian(bytes.value().data())) +
                                                     " tokens and holds " + std::to_string(n_tokens)};
    }
    if (n_tokens == 0) return Error{ErrorCode::empty_prompt, path + " holds no tokens"};
    Tokens tokens(n_tokens);
    for (std::size_t i = 0; i < n_tokens; ++i) {
        tokens[i] = static_cast<Token>(little_endian(bytes.value().data() + n_header + kTokenBytes * i));
    }
    return tokens;
}

std::string to_counted_bytes(const Tokens& tokens) {
    std::string bytes;
    bytes.reserve((tokens.size() + 1) * kTokenBytes);
    append_little_endian(bytes, static_cast<std::uint32_t>(tokens.size()));
    for (const Token token : tokens) append_little_endian(bytes, static_cast<std::uint32_t>(token));
    return bytes;
}

Result<std::string> read_text_file(const std::string& path, std::size_t max_bytes) {
    Result<RegularFile> file = open_regular(path, ErrorCode::io_error);
    if (!file) return file.error();
    if (file.value().n_bytes > max_bytes) {
        return Error{ErrorCode::bad_args, path + " has more than " + std::to_string(max_bytes) + " bytes"};
    }
    return read_bytes(file.value(), path);
}

}  // namespace luce::daemon
