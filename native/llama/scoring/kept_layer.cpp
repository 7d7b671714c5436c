#include "llama/scoring/kept_layer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cassert>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>
#include <type_traits>

#include "base/atomic_file.h"
#include "base/crc32c.h"
#include "base/unique_fd.h"

namespace luce::llama {
namespace {

constexpr std::size_t kNameDigits = 32;
constexpr std::int32_t kMostLayer = 1 << 16;

struct File {
    std::array<char, 8> magic = {'L', 'U', 'C', 'E', 'L', 'A', 'Y', 'R'};
    std::uint32_t format = 1;
    std::uint32_t has_layer = 0;
    std::array<char, kNameDigits> name{};
    std::int32_t layer = 0;
    float mean_reciprocal_rank = 0;
    std::uint32_t reserved = 0;
    std::uint32_t checksum = 0;  // of all before it
};
static_assert(sizeof(File) == 64 && std::is_trivially_copyable_v<File>);

std::uint32_t checksum_of(const File& file) {
    return crc32c({reinterpret_cast<const std::uint8_t*>(&file), offsetof(File, checksum)});
}

std::string path_of(const std::string& folder, const std::string& name) { return folder + "/" + name + ".layer"; }

Error bad(const std::string& path, const std::string& why) { return {ErrorCode::bad_snapshot, path + ": " + why}; }

Error io_error(const std::string& path, int code) { return {ErrorCode::io_error, path + ": " + std::strerror(code)}; }

// A file of exactly this size; none: there is none. Never waits for what is no file.
Result<std::optional<File>> read_file(const std::string& path) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd.is_open() && errno == ENOENT) return std::optional<File>();
    if (!fd.is_open()) return io_error(path, errno);
    struct stat status{};
    if (::fstat(fd.get(), &status) != 0) return io_error(path, errno);
    if (!S_ISREG(status.st_mode)) return bad(path, "it is no file");
    if (status.st_size != sizeof(File)) return bad(path, "it has another size");
    File file;
    const ssize_t n = ::read(fd.get(), &file, sizeof file);
    if (n < 0) return io_error(path, errno);
    if (n != sizeof file) return bad(path, "it ends early");
    return std::optional<File>(file);
}

}  // namespace

std::optional<std::string> calibration_folder(const char* xdg_cache_home, const char* home) {
    const auto is_absolute = [](const char* path) { return path != nullptr && path[0] == '/'; };
    constexpr std::string_view kOurs = "luce-daemon/layers";
    if (is_absolute(xdg_cache_home)) return std::string(xdg_cache_home).append("/").append(kOurs);
    if (is_absolute(home)) return std::string(home).append("/.cache/").append(kOurs);
    return std::nullopt;
}

Result<std::optional<KeptLayer>> read_kept_layer(const std::string& folder, const std::string& name) {
    const std::string path = path_of(folder, name);
    const Result<std::optional<File>> read = read_file(path);
    if (!read) return read.error();
    if (!read.value()) return std::optional<KeptLayer>();
    const File& file = *read.value();
    if (file.magic != File().magic) return bad(path, "it is no file of this program");
    if (file.checksum != checksum_of(file)) return bad(path, "it is damaged");
    if (file.format != File().format) return bad(path, "it has format " + std::to_string(file.format));
    if (name != std::string_view(file.name.data(), file.name.size())) return bad(path, "it was kept for another model");
    const float rank = file.mean_reciprocal_rank;
    const bool is_sound = file.has_layer <= 1 && file.reserved == 0 && file.layer >= 0 && file.layer <= kMostLayer &&
                          rank >= 0 && rank <= 1;
    if (!is_sound) return bad(path, "it says what cannot be");
    KeptLayer kept;
    if (file.has_layer == 1) kept.layer = file.layer;
    kept.mean_reciprocal_rank = rank;
    return std::optional<KeptLayer>(kept);
}

Result<void> keep_layer(const std::string& folder, const std::string& name, const KeptLayer& kept) {
    assert(name.size() == kNameDigits);
    File file;
    std::memcpy(file.name.data(), name.data(), kNameDigits);
    file.has_layer = kept.layer ? 1 : 0;
    file.layer = kept.layer.value_or(0);
    file.mean_reciprocal_rank = kept.mean_reciprocal_rank;
    file.checksum = checksum_of(file);
    std::error_code failure;
    std::filesystem::create_directories(folder, failure);
    if (failure) return Error{ErrorCode::io_error, folder + ": " + failure.message()};
    Result<AtomicFile> out = AtomicFile::create(path_of(folder, name), 0666);
    if (!out) return out.error();
    const std::span bytes(reinterpret_cast<const std::uint8_t*>(&file), sizeof file);
    if (Result<void> written = out.value().write(bytes); !written) return written;
    return out.value().commit();
}

}  // namespace luce::llama
