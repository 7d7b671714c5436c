#include "memory/manager/disk_exchange.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace luce::memory {

void DiskExchange::write(const PageName& name, OnFiles on_done) {
    write_rest(name, std::numeric_limits<std::size_t>::max(), std::move(on_done));
}

// What the disk's queue did not take follows once that is empty, as long as each round leaves less.
void DiskExchange::write_rest(const PageName& name, std::size_t n_before, OnFiles on_done) {
    Page* last = tree_.find(name);
    if (last == nullptr) {
        return on_done(Error{ErrorCode::bad_args, "page=: nothing that is remembered ends there"});
    }
    const std::size_t n_missing = write_what_fits(*last);
    if (n_missing == 0 || n_missing >= n_before) return on_done(files_of(*last));
    disk_->after_writes(
        [this, name, n_missing, on_done = std::move(on_done)] { write_rest(name, n_missing, on_done); });
}

// Returns how many files were missing before.
std::size_t DiskExchange::write_what_fits(Page& last) {
    std::size_t n_missing = 0;
    for (Page* page : path_to(last)) {
        if (page->is_kept() && !cache_.is_on_disk(*page)) {
            ++n_missing;
            if (disk_->may_write(cache_.page_bytes())) cache_.copy_to_disk(*page);
        }
        const std::vector<DiskFile> there = disk_->files_of(page->name);
        for (const Checkpoint& checkpoint : page->checkpoints) {
            const bool is_there = std::ranges::any_of(
                there, [&checkpoint](const DiskFile& file) { return file.name.name == checkpoint.name; });
            if (is_there) continue;
            ++n_missing;
            if (disk_->may_write(checkpoint.data->n_bytes())) {
                cache_.save_checkpoint(*page, checkpoint.rest, checkpoint.data);
            }
        }
    }
    return n_missing;
}

std::vector<DiskFile> DiskExchange::files_of(Page& last) const {
    std::vector<DiskFile> files;
    for (const Page* page : path_to(last)) {
        const std::vector<DiskFile> more = disk_->files_of(page->name);
        files.insert(files.end(), more.begin(), more.end());
    }
    return files;
}

}  // namespace luce::memory
