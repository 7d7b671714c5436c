#include "daemon/setup/cgroup_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string_view>
#include <system_error>
#include <vector>

namespace luce::daemon {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostRead = std::size_t{64} << 10;  // of a file
constexpr std::size_t kMostPath = 4096;

// What the two versions call the same things.
struct Version {
    fs::path mount;
    std::vector<const char*> limits;
    const char* current;
    std::vector<std::string_view> of_files;  // in memory.stat
};

std::string read(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::string text(kMostRead, '\0');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
    return text;
}

std::vector<std::string_view> cut(std::string_view text, char at) {
    std::vector<std::string_view> parts;
    for (;;) {
        const std::size_t end = text.find(at);
        parts.push_back(text.substr(0, end));
        if (end == std::string_view::npos) return parts;
        text.remove_prefix(end + 1);
    }
}

// A whole number and nothing else; "max", and what is larger than any memory, is none.
std::optional<std::uint64_t> number(std::string_view text) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return value;
}

std::optional<std::uint64_t> number_in(const fs::path& path) {
    const std::string text = read(path);
    return number(cut(text, '\n').front());
}

// Files that are kept in memory and make way for others.
std::uint64_t of_files(const fs::path& folder, const Version& version) {
    const std::string text = read(folder / "memory.stat");
    std::uint64_t sum = 0;
    for (const std::string_view line : cut(text, '\n')) {
        const std::vector<std::string_view> words = cut(line, ' ');
        const auto& wanted = version.of_files;
        if (words.size() != 2 || std::find(wanted.begin(), wanted.end(), words[0]) == wanted.end()) continue;
        const std::uint64_t bytes = number(words[1]).value_or(0);
        sum += std::min(bytes, ~sum);
    }
    return sum;
}

std::optional<CgroupMemory> look(const fs::path& folder, const Version& version) {
    std::optional<CgroupMemory> found;
    for (const char* name : version.limits) {
        const std::optional<std::uint64_t> limit = number_in(folder / name);
        if (!limit || (found && found->limit <= *limit)) continue;
        found = CgroupMemory{*limit, 0, (folder / name).string()};
    }
    if (!found) return found;
    const std::uint64_t current = number_in(folder / version.current).value_or(0);
    const std::uint64_t taken = current - std::min(current, of_files(folder, version));
    found->available = found->limit - std::min(found->limit, taken);
    return found;
}

// The group and all around it. A container may see its own group as the outermost one, under a path of the machine's.
void look_upwards(std::string_view group, const Version& version, std::optional<CgroupMemory>& tightest) {
    if (group.size() > kMostPath) group = "";
    fs::path folder = version.mount;
    std::vector<fs::path> folders = {folder};
    for (const std::string_view part : cut(group, '/')) {
        if (part.empty() || part == ".") continue;
        if (part == "..") return look_upwards("", version, tightest);  // outside of what we see
        folders.push_back(folder /= part);
    }
    for (const fs::path& one : folders) {
        const std::optional<CgroupMemory> found = look(one, version);
        if (found && (!tightest || found->available < tightest->available)) tightest = found;
    }
}

}  // namespace

std::optional<CgroupMemory> cgroup_memory(const fs::path& root) {
    const fs::path mount = root / "sys/fs/cgroup";
    const Version two = {mount, {"memory.max", "memory.high"}, "memory.current", {"inactive_file", "active_file"}};
    const Version one = {mount / "memory",
                         {"memory.limit_in_bytes", "memory.soft_limit_in_bytes"},
                         "memory.usage_in_bytes",
                         {"total_inactive_file", "total_active_file"}};
    const std::string groups = read(root / "proc/self/cgroup");
    std::optional<CgroupMemory> tightest;
    for (const std::string_view line : cut(groups, '\n')) {
        // A number, what is controlled with commas between, and a path, which may have colons of its own.
        const std::vector<std::string_view> parts = cut(line, ':');
        if (parts.size() < 3) continue;
        const std::string_view path = line.substr(parts[0].size() + parts[1].size() + 2);
        const std::vector<std::string_view> controlled = cut(parts[1], ',');
        if (parts[0] == "0" && parts[1].empty()) {
            look_upwards(path, two, tightest);
        } else if (std::find(controlled.begin(), controlled.end(), "memory") != controlled.end()) {
            look_upwards(path, one, tightest);
        }
    }
    return tightest;
}

}  // namespace luce::daemon
