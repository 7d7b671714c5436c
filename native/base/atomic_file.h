// Files that are there whole or not at all: written under another name beside their place, synced, then renamed. A
// reader sees the old file or the new one, also after a crash at any moment; a crash may leave the scratch file behind.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"

namespace luce {

// What a scratch file's name has after the file's own; then come kScratchDigits letters and digits.
inline constexpr std::string_view kScratchInfix = ".tmp-";
inline constexpr std::size_t kScratchDigits = 6;

class AtomicFile {
public:
    // Replaces what is called exactly `path`, a symbolic link too. `mode` is subject to the umask.
    static Result<AtomicFile> create(const std::string& path, mode_t mode);

    // Replaces the file that a person names: a symbolic link stays one, the file it points to is replaced; what stands
    // there and is no regular file is an error.
    static Result<AtomicFile> replace(const std::string& path);

    AtomicFile(AtomicFile&&) = default;
    AtomicFile& operator=(AtomicFile&&) = delete;
    ~AtomicFile();  // without a commit() nothing has happened

    // The scratch file is locked (flock) for as long as it is open: who can lock one knows that its writer is dead.
    // Errors: io_error with the path and the system's reason, here and in commit().
    Result<void> write(std::span<const std::uint8_t> bytes);

    // On disk, then in its place; the folder is synced too, so that a power cut does not undo it.
    Result<void> commit();

private:
    AtomicFile(std::string path, std::string scratch, UniqueFd fd);

    std::string path_;
    std::string scratch_;
    UniqueFd fd_;  // not open: committed, or moved from
};

// AtomicFile::replace of a file of these bytes.
Result<void> write_file_atomically(const std::string& path, std::string_view bytes);

}  // namespace luce
