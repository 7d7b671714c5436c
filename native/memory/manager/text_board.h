// TextBoard: what people see of the remembered texts, and what they ask to be kept or forgotten. A listing has the
// tree's runs: pages between two places where texts branch. Owns the holds, which are pins like a slot's. Decides
// nothing by itself.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "memory/eviction/eviction_policy.h"
#include "memory/manager/snapshot_slots.h"
#include "memory/pages/page_cache.h"
#include "memory/pages/page_name.h"
#include "memory/pages/prefix_tree.h"
#include "memory/snapshots/slots.h"

namespace luce::memory {

// Pages of a text without a branch among them. Its name is its last page's.
struct TextRun {
    PageName name;
    std::optional<PageName> parent;  // the run before it
    Position begin = 0;
    Position end = 0;
    std::int32_t n_device = 0;  // pages, by where their rows lie: in several places, some of them
    std::int32_t n_host = 0;
    std::int32_t n_disk = 0;
    std::int32_t n_pinned = 0;  // pages that slots, holds and suspended requests keep
    std::int32_t n_checkpoints = 0;
    std::int32_t n_lanes = 0;  // running requests that see its last page, or whose text it is
    bool is_held = false;      // by somebody's wish
    std::optional<double> age_s;
    Tokens first_tokens;
};

struct TextListing {
    std::int32_t n_runs = 0;   // of all
    std::int32_t n_short = 0;  // texts of less than a page
    std::vector<TextRun> runs;
};

class TextBoard {
public:
    // All must outlive it. `needs_checkpoint`: no text can begin with pages alone.
    TextBoard(PrefixTree& tree, PageCache& cache, Slots& slots, SnapshotSlots& snapshots, const EvictionPolicy& policy,
              bool needs_checkpoint)
        : tree_(tree),
          cache_(cache),
          slots_(slots),
          snapshots_(snapshots),
          policy_(policy),
          needs_checkpoint_(needs_checkpoint) {}

    // Parents before their children, the youngest text first; of them those from `first` on.
    TextListing list(std::int32_t first, std::int32_t n_most);

    // Keep the text up to the end of this page, or no longer. Errors: bad_args (no such page), no_room, unsupported.
    Result<void> hold(const PageName& name, bool on);

    // Drop the run that ends with this page and all behind it, from the disk too. What runs, waits or is in a slot
    // stays. Errors: bad_args (no such page), busy (something stayed, and what keeps it).
    Result<void> forget(const PageName& name);

private:
    bool is_present(const Page& page) const;
    std::vector<Page*> children_of(Page& page) const;
    TextRun run_from(Page*& page) const;
    std::string keepers_of(const std::vector<Page*>& pages) const;

    PrefixTree& tree_;
    PageCache& cache_;
    Slots& slots_;
    SnapshotSlots& snapshots_;
    const EvictionPolicy& policy_;
    bool needs_checkpoint_;
    std::map<PageName, Slot> holds_;
};

}  // namespace luce::memory
