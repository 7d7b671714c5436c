#include "memory/pages/page_journal.h"

#include <algorithm>
#include <utility>

#include "memory/pages/prefix_tree.h"

namespace luce::memory {
namespace {

constexpr std::size_t kMaxGone = std::size_t{1} << 16;

}  // namespace

void PageJournal::start(PrefixTree& tree, IsOnDisk is_on_disk) {
    tree_ = &tree;
    is_on_disk_ = std::move(is_on_disk);
    is_void_ = true;
}

void PageJournal::stop() {
    tree_ = nullptr;
    noted_.clear();
    gone_.clear();
    on_disk_.clear();
}

PageTiers PageJournal::tiers_of(const Page& page) const {
    return {page.is_resident(), page.host != nullptr, is_on_disk_(page.name)};
}

void PageJournal::begin_anew() {
    noted_.clear();
    gone_.clear();
    on_disk_.clear();
    is_void_ = false;
    tree_->for_each([this](Page& page) {
        page.journal = {};
        if (!page.is_root() && tiers_of(page).has_any()) add(page);
    });
}

void PageJournal::add(Page& page) {
    if (page.journal.number != 0) return;
    page.journal.number = ++n_notes_;
    noted_.emplace(page.journal.number, &page);
}

void PageJournal::note_gone_from_disk(const PageName& name) {
    if (is_void_) return;
    if (const auto found = on_disk_.find(name); found != on_disk_.end()) note(*found->second);
}

void PageJournal::forget(Page& page) {
    if (tree_ == nullptr || is_void_) return;
    noted_.erase(page.journal.number);
    if (!page.journal.told.has_any()) return;
    on_disk_.erase(page.name);
    gone_.push_back(page.name);
    if (gone_.size() > kMaxGone) is_void_ = true;
}

// What has gone comes first: a page of the same name may have come after it.
PageChanges PageJournal::take(std::size_t n_most) {
    PageChanges taken{is_void_, {}};
    if (is_void_) begin_anew();
    const std::size_t n_gone = std::min(n_most, gone_.size());
    for (std::size_t i = 0; i < n_gone; ++i) taken.changes.push_back({gone_[i], {}, {}});
    gone_.erase(gone_.begin(), gone_.begin() + static_cast<std::ptrdiff_t>(n_gone));
    while (taken.changes.size() < n_most && !noted_.empty()) {
        Page& page = *noted_.begin()->second;
        noted_.erase(noted_.begin());
        page.journal.number = 0;
        const PageTiers before = page.journal.told;
        const PageTiers now = tiers_of(page);
        if (now == before) continue;
        page.journal.told = now;
        if (now.is_on_disk) {
            on_disk_.emplace(page.name, &page);
        } else {
            on_disk_.erase(page.name);
        }
        PageChange change{page.name, now, {}};
        if (!before.has_any()) {
            change.text.emplace();
            if (!page.parent->is_root()) change.text->parent = page.parent->name;
            change.text->tokens = page.tokens;
        }
        taken.changes.push_back(std::move(change));
    }
    return taken;
}

}  // namespace luce::memory
