#include "experts/expert_profile.h"

#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/atomic_file.h"
#include "base/crc32c.h"

namespace luce::experts {
namespace {

constexpr std::string_view kMagic = "LUCEEXPT";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kIdentityBytes = 32;
constexpr std::uint32_t kMostLayers = 4096;
constexpr std::uint32_t kMostExperts = 65536;
constexpr std::uintmax_t kMostBytes = std::uintmax_t{256} << 20;

static_assert(std::endian::native == std::endian::little, "the file is written as memory has it");

template <typename T>
void put(std::string& bytes, const T& value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// What is read must be there.
class Reader {
public:
    explicit Reader(std::string_view bytes) : bytes_(bytes) {}

    std::optional<std::string_view> take(std::size_t n) {
        if (n > bytes_.size()) return std::nullopt;
        const std::string_view part = bytes_.substr(0, n);
        bytes_.remove_prefix(n);
        return part;
    }

    template <typename T>
    std::optional<T> number() {
        const auto part = take(sizeof(T));
        if (!part) return std::nullopt;
        T value;
        std::copy_n(part->begin(), sizeof value, reinterpret_cast<char*>(&value));
        return value;
    }

    // Counts are finite and not negative.
    std::optional<std::vector<double>> counts(std::uint32_t n) {
        const auto part = take(std::size_t{n} * sizeof(double));
        if (!part) return std::nullopt;
        std::vector<double> values(n);
        std::memcpy(values.data(), part->data(), part->size());
        for (const double value : values) {
            if (!std::isfinite(value) || value < 0) return std::nullopt;
        }
        return values;
    }

    bool is_at_end() const { return bytes_.empty(); }

private:
    std::string_view bytes_;
};

std::uint32_t checksum(std::string_view bytes) {
    return crc32c({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

std::optional<LayerUse> read_layer(Reader& reader) {
    const auto layer = reader.number<std::int32_t>();
    const auto n = reader.number<std::uint32_t>();
    if (!layer || !n || *n == 0 || *n > kMostExperts) return std::nullopt;
    auto decode = reader.counts(*n);
    auto prefill = reader.counts(*n);
    if (!decode || !prefill) return std::nullopt;
    return LayerUse{*layer, std::move(*decode), std::move(*prefill)};
}

Error refused(const std::string& path, const std::string& why) {
    return {ErrorCode::bad_args, "expert profile " + path + ": " + why};
}

Result<ExpertProfile> parse(const std::string& path, std::string_view bytes) {
    const Error damaged = refused(path, "it is damaged; remove it, a new one is learnt");
    if (bytes.size() < kMagic.size() || bytes.substr(0, kMagic.size()) != kMagic) {
        return refused(path, "it is no expert profile");
    }
    if (bytes.size() < kMagic.size() + sizeof(std::uint32_t)) return damaged;
    const std::string_view body = bytes.substr(0, bytes.size() - sizeof(std::uint32_t));
    Reader reader(body.substr(kMagic.size()));
    Reader end(bytes.substr(body.size()));
    const auto version = reader.number<std::uint32_t>();
    if (version && *version != kVersion) {
        return refused(path, "version " + std::to_string(*version) + " is not known here");
    }
    if (checksum(body) != end.number<std::uint32_t>()) return damaged;
    const auto n_layers = reader.number<std::uint32_t>();
    const auto identity = reader.take(kIdentityBytes);
    if (!n_layers || *n_layers > kMostLayers || !identity) return damaged;
    ExpertProfile profile{std::string(*identity), {}};
    for (std::uint32_t i = 0; i < *n_layers; ++i) {
        auto layer = read_layer(reader);
        if (!layer) return damaged;
        profile.layers.push_back(std::move(*layer));
    }
    if (!reader.is_at_end()) return damaged;
    return profile;
}

}  // namespace

std::optional<std::string> profile_file(const std::optional<std::string>& named,
                                        const std::optional<std::string>& folder, const std::string& identity) {
    if (named || !folder) return named;
    return *folder + "/" + identity + ".experts";
}

Result<ExpertProfile> read_profile(const std::string& path, const std::string& identity) {
    struct stat info{};
    if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) {
        return Error{ErrorCode::no_such_file, "expert profile " + path + ": there is no such file"};
    }
    if (static_cast<std::uintmax_t>(info.st_size) > kMostBytes) return refused(path, "it is too large to be one");
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    if (!file.good() && !file.eof()) return refused(path, "it cannot be read");
    Result<ExpertProfile> profile = parse(path, bytes);
    if (profile && profile.value().identity != identity) {
        return refused(path, "it is of another model; name another file");
    }
    return profile;
}

Result<void> write_profile(const std::string& path, const ExpertProfile& profile) {
    std::string bytes(kMagic);
    put(bytes, kVersion);
    put(bytes, static_cast<std::uint32_t>(profile.layers.size()));
    std::string identity = profile.identity;
    identity.resize(kIdentityBytes, '0');
    bytes += identity;
    for (const LayerUse& layer : profile.layers) {
        put(bytes, layer.layer);
        put(bytes, static_cast<std::uint32_t>(layer.decode.size()));
        for (const auto* counts : {&layer.decode, &layer.prefill}) {
            bytes.append(reinterpret_cast<const char*>(counts->data()), counts->size() * sizeof(double));
        }
    }
    put(bytes, checksum(bytes));
    return write_file_atomically(path, bytes);
}

}  // namespace luce::experts
