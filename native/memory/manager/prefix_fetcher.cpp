#include "memory/manager/prefix_fetcher.h"

#include <algorithm>
#include <utility>

#include "memory/pages/page_name.h"
#include "memory/tiers/disk_store.h"

namespace luce::memory {

PrefixFetch::PrefixFetch(PrefixTree& tree, PageCache& cache, Page& last, std::weak_ptr<const bool> alive)
    : tree_(tree), cache_(cache), last_(last), alive_(std::move(alive)) {
    ++last_.n_handles;
}

PrefixFetch::~PrefixFetch() {
    if (alive_.expired()) return;
    for (Page* page : pages) cache_.stop_waiting_for(*page);
    --last_.n_handles;
    tree_.retire(last_);
}

void PrefixFetch::add(Page& page) {
    cache_.wait_for(page);
    pages.push_back(&page);
}

bool PrefixFetcher::has_foreign_disk() const { return disk_ != nullptr && disk_->has_foreign(); }

void PrefixFetcher::clear_disk() {
    if (disk_ != nullptr) disk_->clear();
}

void PrefixFetcher::touch(Page& last) {
    if (disk_ == nullptr) return;
    std::vector<PageName> chain;
    for (const Page* page : path_to(last)) {
        chain.push_back(page->name);
        if (page == &last || page->children.size() < 2) continue;
        // Where texts have branched, the next one goes on from there.
        for (const Checkpoint& checkpoint : page->checkpoints) chain.push_back(checkpoint.name);
    }
    for (const Checkpoint& checkpoint : last.checkpoints) chain.push_back(checkpoint.name);
    disk_->touch(chain);
}

Known PrefixFetcher::walk(std::span<const Token> text) {
    if (disk_ == nullptr) return tree_.walk(text, nullptr);
    return tree_.walk(text, [this](Page& parent, std::span<const Token, kPageSize> tokens) -> Page* {
        if (!disk_->has_page(next_name(parent.name, tokens))) return nullptr;
        Page& found = tree_.add(parent, tokens);
        tree_.journal().note(found);
        return &found;
    });
}

// Behind one page, in memory or on disk.
std::optional<PrefixFetcher::Wanted> PrefixFetcher::longest_behind(Page& page, std::span<const Token> left) {
    std::optional<Wanted> wanted;
    const auto consider = [&](std::span<const Token> rest, bool is_on_disk) {
        if (!wanted || rest.size() > wanted->rest.size()) wanted = Wanted{&page, rest, is_on_disk};
    };
    for (const Checkpoint& checkpoint : page.checkpoints) {
        if (checkpoint.rest.size() > left.size()) continue;
        const auto rest = left.first(checkpoint.rest.size());
        if (std::equal(rest.begin(), rest.end(), checkpoint.rest.begin())) consider(rest, false);
    }
    const auto on_disk = disk_ == nullptr ? std::vector<CheckpointOnDisk>() : disk_->checkpoints_after(page.name);
    for (const CheckpointOnDisk& checkpoint : on_disk) {
        const auto n_rest = static_cast<std::size_t>(checkpoint.n_rest);
        if (n_rest > left.size()) continue;
        const auto rest = left.first(n_rest);
        if (checkpoint_name(page.name, rest) == checkpoint.name) consider(rest, true);
    }
    return wanted;
}

// Of the known pages, from the first on.
std::size_t PrefixFetcher::n_held_pages(const Known& known) const {
    const auto gone = std::find_if(known.pages.begin(), known.pages.end(),
                                   [&](const Page* page) { return !page->is_kept() && !cache_.is_on_disk(*page); });
    return static_cast<std::size_t>(gone - known.pages.begin());
}

Reach PrefixFetcher::reach(std::span<const Token> text) {
    const Known known = walk(text);
    Reach reach{0, n_held_pages(known)};
    if (!device_.traits().has_state()) reach.n_known = static_cast<Position>(reach.n_pages) * kPageSize;
    if (const std::optional<Wanted> at = find_checkpoint(known, reach.n_pages, text)) {
        reach.n_known = std::max(reach.n_known, at->page->end() + static_cast<Position>(at->rest.size()));
    }
    if (!known.pages.empty()) tree_.retire(*known.pages.back());
    return reach;
}

// The rows of a pure attention model need no checkpoint, but go further by one behind the last page; and where nobody
// has asked yet how much the pages matter, a checkpoint further up may know.
std::optional<PrefixFetcher::Wanted> PrefixFetcher::find_checkpoint(const Known& known, std::size_t n_pages,
                                                                    std::span<const Token> text) {
    const auto end = known.pages.begin() + static_cast<std::ptrdiff_t>(n_pages);
    const bool lacks_scores = uses_scores_ && std::none_of(known.pages.begin(), end,
                                                           [](const Page* page) { return page->score.has_value(); });
    const bool looks_further = device_.traits().has_state() || lacks_scores;
    for (std::size_t n = n_pages + 1; n-- > 0;) {
        Page& page = n == 0 ? tree_.root() : *known.pages[n - 1];
        if (page.end() > static_cast<Position>(text.size())) continue;
        std::optional<Wanted> wanted = longest_behind(page, text.subspan(static_cast<std::size_t>(page.end())));
        if (wanted || !looks_further) return wanted;
    }
    return std::nullopt;
}

std::optional<PrefixFetcher::Wanted> PrefixFetcher::checkpoint_at(const Known& known, std::size_t n_pages,
                                                                  std::span<const Token> text, Position position) {
    const auto n = static_cast<std::size_t>(position / kPageSize);
    if (n > n_pages) return std::nullopt;
    Page& page = n == 0 ? tree_.root() : *known.pages[n - 1];
    const auto rest = text.subspan(n * kPageSize, static_cast<std::size_t>(position % kPageSize));
    if (tree_.find_checkpoint(page, rest) != nullptr) return Wanted{&page, rest, false};
    const auto on_disk = disk_->checkpoints_after(page.name);
    const bool is_there = std::any_of(on_disk.begin(), on_disk.end(), [&](const CheckpointOnDisk& checkpoint) {
        return checkpoint.name == checkpoint_name(page.name, rest);
    });
    return is_there ? std::optional(Wanted{&page, rest, true}) : std::nullopt;
}

std::shared_ptr<PrefixFetch> PrefixFetcher::fetch(std::span<const Token> text,
                                                  std::span<const SnapshotPoint> snapshots) {
    if (disk_ == nullptr) return nullptr;
    const Known known = walk(text);
    std::size_t n_pages = n_held_pages(known);
    std::vector<Wanted> of_snapshots;
    std::size_t n_most = text.size();
    for (const SnapshotPoint& point : device_.traits().has_state() ? snapshots : std::span<const SnapshotPoint>{}) {
        const std::optional<Wanted> at = checkpoint_at(known, n_pages, text, point.position);
        if (!at) n_most = std::min(n_most, static_cast<std::size_t>(point.position));
        if (at && at->is_on_disk) of_snapshots.push_back(*at);
    }
    const std::optional<Wanted> wanted = find_checkpoint(known, n_pages, text.first(n_most));
    if (device_.traits().has_state()) {
        if (!wanted) {
            if (!known.pages.empty()) tree_.retire(*known.pages.back());
            return nullptr;
        }
        n_pages = static_cast<std::size_t>(wanted->page->index + 1);
    }
    Page& last = known.pages.empty() ? tree_.root() : *known.pages.back();
    auto fetch = std::make_shared<PrefixFetch>(tree_, cache_, last, alive_);
    for (std::size_t i = 0; i < n_pages; ++i) {
        fetch->add(*known.pages[i]);
        if (!known.pages[i]->is_kept()) read_page(fetch, *known.pages[i]);
    }
    if (wanted && wanted->is_on_disk) read_checkpoint(fetch, *wanted);
    for (const Wanted& other : of_snapshots) {
        const bool is_read = wanted->page == other.page && wanted->rest.size() == other.rest.size();
        if (!is_read && other.page->index <= wanted->page->index) read_checkpoint(fetch, other);
    }
    return fetch->is_done() ? nullptr : fetch;
}

void PrefixFetcher::read_page(const std::shared_ptr<PrefixFetch>& fetch, Page& page) {
    ++fetch->n_pending;
    disk_->read_page(page.name, page.parent->name, page.tokens, [this, fetch, &page](Result<Blob> rows) {
        --fetch->n_pending;
        if (rows && cache_.keep(page, std::move(rows).value())) ++fetch->n_read;
    });
}

void PrefixFetcher::read_checkpoint(const std::shared_ptr<PrefixFetch>& fetch, const Wanted& wanted) {
    ++fetch->n_pending;
    Tokens rest(wanted.rest.begin(), wanted.rest.end());
    Page& page = *wanted.page;
    if (!page.is_root()) fetch->add(page);
    const auto n_before = static_cast<std::size_t>(page.index + 1);
    disk_->read_checkpoint(page.name, n_before, rest, [this, fetch, &page, rest](const Result<ScoredCheckpoint>& read) {
        --fetch->n_pending;
        if (!read) return;
        if (uses_scores_) add_scores(path_to(page), read.value().scores);
        const CheckpointBlob& data = read.value().checkpoint;
        Checkpoint* kept = cache_.keep_checkpoint(page, rest, CheckpointKind::prompt_end, data, policy_.begin(), false);
        if (kept != nullptr) ++fetch->n_read;
    });
}

}  // namespace luce::memory
