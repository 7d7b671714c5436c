#include "memory/tiers/disk_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/atomic_file.h"
#include "base/log.h"
#include "base/unique_fd.h"

namespace luce::memory {
namespace {

// What the cache holds is made of people's prompts: for their eyes only.
constexpr mode_t kFolderMode = 0700;
constexpr mode_t kFileMode = 0600;

constexpr std::int64_t kNanosecondsPerSecond = 1'000'000'000;

using Folder = std::unique_ptr<DIR, int (*)(DIR*)>;

Folder open_folder(int parent, const std::string& name) {
    UniqueFd fd(::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    Folder folder(fd.is_open() ? ::fdopendir(fd.get()) : nullptr, &::closedir);
    if (folder) {
        std::ignore = fd.release();  // the folder closes it
    } else if (errno != ENOTDIR && errno != ELOOP) {
        log_warn("disk cache: cannot list " + name + ": " + std::strerror(errno));
    }
    return folder;
}

bool is_folder_digits(std::string_view name) {
    return name.size() == 2 && name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Each entry's name but the dots.
template <typename F>
void for_each_name(const Folder& folder, const F& f) {
    while (const dirent* entry = ::readdir(folder.get())) {
        const std::string_view name = entry->d_name;
        if (name != "." && name != "..") f(std::string(name));
    }
}

// The lock is free once the process that wrote it is gone, however it went.
void remove_if_abandoned(int folder, const std::string& name) {
    const UniqueFd fd(::openat(folder, name.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
    if (fd.is_open() && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) ::unlinkat(folder, name.c_str(), 0);
}

// Nothing, if there is no regular file.
std::optional<DiskFile> look_at(int folder, const std::string& path, const DiskFileName& name) {
    struct stat info{};
    if (::fstatat(folder, path.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode)) {
        return std::nullopt;
    }
    DiskFile file;
    file.name = name;
    file.n_bytes = static_cast<std::uint64_t>(info.st_size);
    file.used_ns = info.st_mtim.tv_sec * kNanosecondsPerSecond + info.st_mtim.tv_nsec;
    return file;
}

void list_files(const Folder& folder, const std::string& folder_name, const std::string& identity,
                std::vector<DiskFile>& files) {
    const int fd = ::dirfd(folder.get());
    for_each_name(folder, [&](const std::string& name) {
        const std::optional<DiskFileName> known = parse_file_name(name);
        const bool is_in_place = known && to_folder_name(*known) == folder_name;
        if (std::optional<DiskFile> file = is_in_place ? look_at(fd, name, *known) : std::nullopt) {
            file->identity = identity;
            files.push_back(std::move(*file));
        } else if (is_scratch_name(name)) {
            remove_if_abandoned(fd, name);
        }
    });
}

// The folders are nearly always there, so they are made only when that turns out wrong.
Result<AtomicFile> create_with_folders(const std::string& path) {
    Result<AtomicFile> file = AtomicFile::create(path, kFileMode);
    if (file) return file;
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    ::mkdir(folder.parent_path().parent_path().c_str(), kFolderMode);
    ::mkdir(folder.parent_path().c_str(), kFolderMode);
    if (::mkdir(folder.c_str(), kFolderMode) != 0 && errno != EEXIST) return file;
    return AtomicFile::create(path, kFileMode);
}

bool is_there(const std::string& path, std::uint64_t n_bytes) {
    struct stat info{};
    return ::lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
           static_cast<std::uint64_t>(info.st_size) == n_bytes;
}

}  // namespace

std::string path_of(const DiskFile& file, const std::string& folder, const std::string& own_identity) {
    return folder + "/" + (file.identity.empty() ? own_identity : file.identity) + "/" + to_folder_name(file.name) +
           "/" + to_file_name(file.name);
}

std::vector<DiskFile> list_cache(const std::string& folder, const std::string& own_identity) {
    std::vector<DiskFile> files;
    const Folder top(::opendir(folder.c_str()), &::closedir);
    if (!top) return files;
    for_each_name(top, [&](const std::string& identity) {
        if (!memory_identity_of(identity)) return;
        const Folder of_identity = open_folder(::dirfd(top.get()), identity);
        if (!of_identity) return;
        for_each_name(of_identity, [&](const std::string& digits) {
            if (!is_folder_digits(digits)) return;
            const Folder bucket = open_folder(::dirfd(of_identity.get()), digits);
            if (bucket) list_files(bucket, digits, identity == own_identity ? std::string() : identity, files);
        });
    });
    return files;
}

std::optional<DiskFile> find_cache_file(const std::string& folder, const std::string& identity,
                                        const DiskFileName& name) {
    DiskFile file;
    file.name = name;
    return look_at(AT_FDCWD, path_of(file, folder, identity), name);
}

Result<void> write_cache_file(const std::string& path, std::uint64_t n_bytes,
                              const std::function<Result<void>(const WriteBytes&)>& encode) {
    if (is_there(path, n_bytes)) {
        mark_used_now(path);
        return {};
    }
    Result<AtomicFile> file = create_with_folders(path);
    if (!file) return file.error();
    if (Result<void> written = encode([&](auto bytes) { return file.value().write(bytes); }); !written) return written;
    return file.value().commit();
}

void mark_used(const std::string& path, std::int64_t at_ns) {
    const timespec at = {at_ns / kNanosecondsPerSecond, at_ns % kNanosecondsPerSecond};
    const std::array<timespec, 2> times = {timespec{0, UTIME_OMIT}, at};
    ::utimensat(AT_FDCWD, path.c_str(), times.data(), AT_SYMLINK_NOFOLLOW);
}

void mark_used_now(const std::string& path) {
    const std::array<timespec, 2> times = {timespec{0, UTIME_OMIT}, timespec{0, UTIME_NOW}};
    ::utimensat(AT_FDCWD, path.c_str(), times.data(), AT_SYMLINK_NOFOLLOW);
}

bool remove_cache_file(const std::string& path) { return ::unlink(path.c_str()) == 0; }

}  // namespace luce::memory
