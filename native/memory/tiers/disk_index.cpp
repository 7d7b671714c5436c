#include "memory/tiers/disk_index.h"

#include <algorithm>
#include <utility>

namespace luce::memory {

void DiskIndex::fill(std::vector<DiskFile> files) {
    std::stable_sort(files.begin(), files.end(),
                     [](const DiskFile& a, const DiskFile& b) { return a.used_ns < b.used_ns; });
    pages_.reserve(files.size());
    for (DiskFile& file : files) add(std::move(file));
}

void DiskIndex::add(DiskFile file) {
    const bool is_ours = file.identity.empty();
    n_bytes_ += file.n_bytes;
    n_foreign_ += is_ours ? 0 : 1;
    const Place place = files_.insert(files_.end(), std::move(file));
    if (is_ours) by_number_.emplace(place->number = ++n_numbers_, place);
    if (!is_ours || !names_of(place->name.kind).try_emplace(place->name.name, place).second) return;
    if (place->name.kind == DiskFileKind::checkpoint) checkpoints_by_page_[place->name.page].push_back(place);
}

std::optional<DiskIndex::Place> DiskIndex::find(const DiskFileName& name) {
    return name.kind == DiskFileKind::page ? find_page(name.name) : find_checkpoint(name.name);
}

std::optional<DiskIndex::Place> DiskIndex::find_page(const PageName& name) {
    const auto found = pages_.find(name);
    return found == pages_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<DiskIndex::Place> DiskIndex::find_checkpoint(const PageName& name) {
    const auto found = checkpoints_.find(name);
    return found == checkpoints_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<CheckpointOnDisk> DiskIndex::checkpoints_after(const PageName& page) const {
    std::vector<CheckpointOnDisk> checkpoints;
    const auto found = checkpoints_by_page_.find(page);
    if (found == checkpoints_by_page_.end()) return checkpoints;
    for (const Place& place : found->second)
        checkpoints.push_back({place->name.n_rest, place->name.name, place->n_bytes});
    return checkpoints;
}

std::vector<DiskFile> DiskIndex::files_of(const PageName& page) const {
    std::vector<DiskFile> files;
    if (const auto found = pages_.find(page); found != pages_.end()) files.push_back(*found->second);
    if (const auto found = checkpoints_by_page_.find(page); found != checkpoints_by_page_.end()) {
        for (const Place& place : found->second) files.push_back(*place);
    }
    return files;
}

std::vector<DiskFile> DiskIndex::files_since(std::uint64_t number, std::size_t n_most) const {
    std::vector<DiskFile> files;
    for (auto next = by_number_.lower_bound(number); next != by_number_.end() && files.size() < n_most; ++next) {
        files.push_back(*next->second);
    }
    return files;
}

void DiskIndex::forget_name(Place file) {
    if (!file->identity.empty()) return;
    by_number_.erase(file->number);
    Places& names = names_of(file->name.kind);
    const auto found = names.find(file->name.name);
    if (found == names.end() || found->second != file) return;
    names.erase(found);
    if (file->name.kind == DiskFileKind::page) {
        tell_page_gone_(file->name.name);
        return;
    }
    const auto checkpoints = checkpoints_by_page_.find(file->name.page);
    std::erase(checkpoints->second, file);
    if (checkpoints->second.empty()) checkpoints_by_page_.erase(checkpoints);
}

void DiskIndex::resize(Place file, std::uint64_t n_bytes) {
    n_bytes_ = n_bytes_ - file->n_bytes + n_bytes;
    file->n_bytes = n_bytes;
}

DiskFile DiskIndex::remove(Place file) {
    forget_name(file);
    n_bytes_ -= file->n_bytes;
    n_foreign_ -= file->identity.empty() ? 0 : 1;
    DiskFile removed = std::move(*file);
    files_.erase(file);
    return removed;
}

std::vector<DiskFile> DiskIndex::clear() {
    std::vector<DiskFile> removed;
    for (Place file = files_.begin(); file != files_.end();) {
        const Place next = std::next(file);
        if (file->identity.empty()) removed.push_back(remove(file));
        file = next;
    }
    return removed;
}

std::string DiskIndex::check_integrity() const {
    std::uint64_t n_bytes = 0;
    std::size_t n_foreign = 0;
    for (const DiskFile& file : files_) {
        n_bytes += file.n_bytes;
        n_foreign += file.identity.empty() ? 0 : 1;
    }
    std::size_t n_checkpoints = 0;
    for (const auto& [page, checkpoints] : checkpoints_by_page_) {
        n_checkpoints += checkpoints.size();
        for (const Place& checkpoint : checkpoints) {
            if (checkpoint->name.page != page) return "a checkpoint is listed under another page";
        }
    }
    if (n_bytes != n_bytes_) return "the files' bytes are miscounted";
    if (n_foreign != n_foreign_) return "other memories' files are miscounted";
    if (n_checkpoints != checkpoints_.size()) return "the checkpoints by page are not the checkpoints";
    if (by_number_.size() != files_.size() - n_foreign) return "not each of our files has a number";
    if (pages_.size() + checkpoints_.size() > files_.size() - n_foreign) return "there are more names than files";
    for (const Places* names : {&pages_, &checkpoints_}) {
        for (const auto& [name, place] : *names) {
            if (place->name.name != name || !place->identity.empty()) return "a name leads to another file";
        }
    }
    return {};
}

}  // namespace luce::memory
