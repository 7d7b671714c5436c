// Sections: runs of bytes followed by their CRC-32C, which is all that files of the memory consist of behind their
// header. Where bytes come from and go to: a file, or memory (tests, the fuzzer). Knows no file's layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace luce::memory {

class ByteSource {
public:
    virtual ~ByteSource() = default;

    // How much read() may still ask for; a file's size is looked at once, when it is opened.
    virtual std::uint64_t n_left() const = 0;

    // Fills `out`. Errors: bad_snapshot (there is not so much), io_error.
    virtual Result<void> read(std::span<std::uint8_t> out) = 0;
};

class SpanSource final : public ByteSource {
public:
    explicit SpanSource(std::span<const std::uint8_t> bytes) : left_(bytes) {}
    std::uint64_t n_left() const override { return left_.size(); }
    Result<void> read(std::span<std::uint8_t> out) override;

private:
    std::span<const std::uint8_t> left_;
};

class FileSource final : public ByteSource {
public:
    enum class Links { follow, refuse };

    // Never waits for the other end of a pipe. Errors: no_such_file, bad_snapshot (no regular file), io_error.
    static Result<FileSource> open(const std::string& path, Links links);

    std::uint64_t n_left() const override { return n_left_; }
    Result<void> read(std::span<std::uint8_t> out) override;

private:
    FileSource(UniqueFd fd, std::uint64_t n_bytes) : fd_(std::move(fd)), n_left_(n_bytes) {}

    UniqueFd fd_;
    std::uint64_t n_left_ = 0;
};

using WriteBytes = std::function<Result<void>(std::span<const std::uint8_t>)>;

inline constexpr std::uint64_t kChecksumBytes = 4;

// What a section of so many bytes takes up.
constexpr std::uint64_t section_bytes(std::uint64_t n_bytes) { return n_bytes + kChecksumBytes; }

// Errors: those of `write`.
Result<void> write_section(const WriteBytes& write, std::span<const std::uint8_t> bytes);

// Fills `out`. Errors: bad_snapshot (cut short, or the checksum does not fit), io_error.
Result<void> read_section(ByteSource& source, std::span<std::uint8_t> out);

// A section of n values. REQUIRES: n was checked against what is there and what may be, as this allocates.
template <typename Values>
Result<Values> read_section_of(ByteSource& source, std::size_t n) {
    Values values(n);
    const std::size_t n_bytes = n * sizeof(typename Values::value_type);
    Result<void> read = read_section(source, {reinterpret_cast<std::uint8_t*>(values.data()), n_bytes});
    if (!read) return read.error();
    return values;
}

template <typename T>
std::span<const std::uint8_t> bytes_of(const T& value) {
    return {reinterpret_cast<const std::uint8_t*>(&value), sizeof value};
}

template <typename T>
std::span<const std::uint8_t> bytes_of_all(std::span<const T> values) {
    return {reinterpret_cast<const std::uint8_t*>(values.data()), values.size_bytes()};
}

}  // namespace luce::memory
