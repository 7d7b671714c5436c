// A reader of the page journal that reads when it likes, and its copy of what memory holds, checked against the listing
// of texts. That leaves out pages whose parent is gone: no text gets to them.
#pragma once

#include <doctest/doctest.h>

#include <map>
#include <random>

#include "memory/manager/kv_cache_manager.h"
#include "memory/pages/page_name.h"
#include "tests/memory/disk_samples.h"

namespace luce::tests {

class PageMirror {
public:
    void look(memory::KvCacheManager& memory) {
        memory::PageJournal& journal = memory.page_journal();
        if (random_() % 64 == 0) memory.watch_pages(is_on_ = !is_on_);
        if (random_() % 8 != 0) return;
        while (journal.has_news() && random_() % 16 != 0) apply(journal.take(1 + random_() % 20));
        if (is_on_ && !journal.has_news()) compare(memory.texts());
    }

private:
    void apply(const memory::PageChanges& taken) {
        if (taken.begins_anew) known_.clear();
        for (const memory::PageChange& change : taken.changes) {
            REQUIRE(change.text.has_value() == (change.tiers.has_any() && !known_.contains(change.name)));
            Known& known = known_[change.name];
            if (change.text) {
                known.parent = change.text->parent.value_or(root_);
                REQUIRE(change.name == memory::next_name(known.parent, change.text->tokens));
            }
            known.tiers = change.tiers;
            if (!change.tiers.has_any()) known_.erase(change.name);
        }
    }

    void compare(memory::TextBoard& texts) const {
        std::map<std::string, std::int64_t> listed;
        for (const memory::TextRun& run : texts.list(0, 1 << 30).runs) {
            REQUIRE(known_.contains(run.name));
            listed["pages"] += (run.end - run.begin) / memory::kPageSize;
            listed["device"] += run.n_device;
            listed["host"] += run.n_host;
            listed["disk"] += run.n_disk;
        }
        std::map<std::string, std::int64_t> told;
        for (const auto& [name, known] : known_) {
            if (!is_reached(name)) continue;
            told["pages"] += 1;
            told["device"] += known.tiers.is_resident ? 1 : 0;
            told["host"] += known.tiers.is_on_host ? 1 : 0;
            told["disk"] += known.tiers.is_on_disk ? 1 : 0;
        }
        REQUIRE(told == listed);
    }

    bool is_reached(memory::PageName name) const {
        while (name != root_) {
            const auto found = known_.find(name);
            if (found == known_.end()) return false;
            name = found->second.parent;
        }
        return true;
    }

    struct Known {
        memory::PageTiers tiers;
        memory::PageName parent;
    };

    const memory::PageName root_ = memory::root_name(memory::samples::kIdentity);
    std::mt19937_64 random_{7};
    std::map<memory::PageName, Known> known_;
    bool is_on_ = false;
};

}  // namespace luce::tests
