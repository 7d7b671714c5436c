// PageJournal: which pages have come, gone or changed their place since the last telling, for a reader outside that
// keeps a copy. It tells how a page stands now, not what happened to it in between: what it holds is bounded by the
// pages that there are, however slow the reader is. Must not know who reads. Off, it costs one comparison a change.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "memory/tiers/blob.h"

namespace luce::memory {

struct Page;
class PrefixTree;

// Where a page's rows lie; in several places, or in none.
struct PageTiers {
    bool is_resident = false;
    bool is_on_host = false;
    bool is_on_disk = false;

    bool has_any() const { return is_resident || is_on_host || is_on_disk; }
    bool operator==(const PageTiers&) const = default;
};

// A page's part in the journal, kept by the page.
struct PageEntry {
    PageTiers told;            // what the reader knows
    std::uint64_t number = 0;  // of its note; 0: nothing is to be told of it
};

struct PageChange {
    // Of a page that the reader did not know.
    struct Text {
        std::optional<PageName> parent;  // none: a text begins here
        std::array<Token, kPageSize> tokens{};
    };

    PageName name;
    PageTiers tiers;  // as they are now
    std::optional<Text> text;
};

struct PageChanges {
    bool begins_anew = false;  // the reader's copy is void: all pages follow, in these changes and the next ones
    std::vector<PageChange> changes;
};

class PageJournal {
public:
    using IsOnDisk = std::function<bool(const PageName&)>;

    // From now on changes are noted, and the first thing to be told is all that there is. Both outlive it.
    void start(PrefixTree& tree, IsOnDisk is_on_disk);
    void stop();

    bool has_news() const { return tree_ != nullptr && (is_void_ || !gone_.empty() || !noted_.empty()); }

    // Up to n of them. Parents that are new come before their children.
    PageChanges take(std::size_t n_most);

    // Its tiers may have changed.
    void note(Page& page) {
        if (tree_ != nullptr && !is_void_) add(page);
    }
    void note_gone_from_disk(const PageName& name);

    // The tree lets go of it.
    void forget(Page& page);

private:
    void add(Page& page);
    void begin_anew();
    PageTiers tiers_of(const Page& page) const;

    PrefixTree* tree_ = nullptr;  // null: off
    IsOnDisk is_on_disk_;
    std::map<std::uint64_t, Page*> noted_;  // in the order in which they were
    std::uint64_t n_notes_ = 0;
    std::vector<PageName> gone_;                   // told pages that are in the tree no more
    std::unordered_map<PageName, Page*> on_disk_;  // told of as being there
    bool is_void_ = false;                         // the reader knows nothing, or too much has gone untold
};

}  // namespace luce::memory
