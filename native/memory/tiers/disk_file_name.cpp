#include "memory/tiers/disk_file_name.h"

#include <algorithm>
#include <charconv>

#include "base/atomic_file.h"

namespace luce::memory {
namespace {

constexpr std::string_view kPageEnd = ".page";
constexpr std::string_view kCheckpointEnd = ".tail";
constexpr std::size_t kNameDigits = 32;

std::optional<std::int32_t> parse_rest(std::string_view text) {
    std::int32_t n = 0;
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), n);
    const bool whole = failed == std::errc() && end == text.data() + text.size();
    if (!whole || n < 0 || n >= kPageSize || text != std::to_string(n)) return std::nullopt;
    return n;
}

}  // namespace

std::string to_file_name(const DiskFileName& name) {
    if (name.kind == DiskFileKind::page) return to_hex(name.name).append(kPageEnd);
    return to_hex(name.page) + "-" + std::to_string(name.n_rest) + "-" + to_hex(name.name).append(kCheckpointEnd);
}

std::string to_folder_name(const DiskFileName& name) { return to_hex(name.page).substr(0, 2); }

std::optional<DiskFileName> parse_file_name(std::string_view text) {
    const std::optional<PageName> page = page_name_of(text.substr(0, kNameDigits));
    if (!page) return std::nullopt;
    text.remove_prefix(kNameDigits);
    if (text == kPageEnd) return DiskFileName::of_page(*page);
    if (!text.starts_with('-') || !text.ends_with(kCheckpointEnd)) return std::nullopt;
    text.remove_prefix(1);
    text.remove_suffix(kCheckpointEnd.size());
    const std::size_t dash = text.find('-');
    if (dash == std::string_view::npos) return std::nullopt;
    const std::optional<std::int32_t> n_rest = parse_rest(text.substr(0, dash));
    const std::optional<PageName> name = page_name_of(text.substr(dash + 1));
    if (!n_rest || !name) return std::nullopt;
    return DiskFileName::of_checkpoint(*page, *n_rest, *name);
}

bool is_scratch_name(std::string_view text) {
    const std::size_t n_suffix = kScratchInfix.size() + kScratchDigits;
    if (text.size() <= n_suffix) return false;
    const std::string_view suffix = text.substr(text.size() - n_suffix);
    const std::string_view digits = suffix.substr(kScratchInfix.size());
    const bool is_suffix = suffix.starts_with(kScratchInfix) && std::all_of(digits.begin(), digits.end(), [](char c) {
                               return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
                           });
    return is_suffix && parse_file_name(text.substr(0, text.size() - n_suffix));
}

}  // namespace luce::memory
