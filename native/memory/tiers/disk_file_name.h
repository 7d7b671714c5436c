// What the disk store's files are called, and back. Pure. Only names of exactly these forms are ours:
//   <identity>/<2 hex>/<page name>.page
//   <identity>/<2 hex>/<page name>-<tokens behind the page>-<checkpoint name>.checkpoint
// with names as 32 lower-case hexadecimal digits and the folder as the first two of the page's name; and either of them
// with what AtomicFile appends, while it is written.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "memory/pages/page_name.h"

namespace luce::memory {

enum class DiskFileKind { page, checkpoint };

struct DiskFileName {
    DiskFileKind kind = DiskFileKind::page;
    PageName name;            // of the page, or of the checkpoint
    PageName page;            // the page, or the one that the checkpoint stands behind
    std::int32_t n_rest = 0;  // a checkpoint's tokens behind that page

    static DiskFileName of_page(const PageName& name) { return {DiskFileKind::page, name, name, 0}; }
    static DiskFileName of_checkpoint(const PageName& page, std::int32_t n_rest, const PageName& name) {
        return {DiskFileKind::checkpoint, name, page, n_rest};
    }
    auto operator<=>(const DiskFileName&) const = default;
};

std::string to_file_name(const DiskFileName& name);

// The folder below the identity's.
std::string to_folder_name(const DiskFileName& name);

std::optional<DiskFileName> parse_file_name(std::string_view text);

// Whether it is one of ours with what AtomicFile appends.
bool is_scratch_name(std::string_view text);

}  // namespace luce::memory
