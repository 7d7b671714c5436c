// DiskExchange: files of the disk cache that others bring into its folder, and those that are there for others to take.
// Whom they are brought from and taken to it must not know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.h"
#include "memory/pages/page_cache.h"
#include "memory/pages/prefix_tree.h"
#include "memory/tiers/disk_store.h"

namespace luce::memory {

class DiskExchange {
public:
    using OnFiles = std::function<void(const Result<std::vector<DiskFile>>&)>;

    // All must outlive it; `disk` may be null.
    DiskExchange(PrefixTree& tree, PageCache& cache, DiskStore* disk) : tree_(tree), cache_(cache), disk_(disk) {}

    // Null: there is no disk cache.
    DiskStore* disk() { return disk_; }

    // The text that ends with this page is written now, with its checkpoints, as far as it is in memory: not more at
    // once than may wait for the disk. Tells its files that are there then, the first page's first. Errors: bad_args
    // (no such page). REQUIRES: a disk.
    void write(const PageName& name, OnFiles on_done);

private:
    std::size_t write_what_fits(Page& last);
    void write_rest(const PageName& name, std::size_t n_before, OnFiles on_done);
    std::vector<DiskFile> files_of(Page& last) const;

    PrefixTree& tree_;
    PageCache& cache_;
    DiskStore* disk_;
};

}  // namespace luce::memory
