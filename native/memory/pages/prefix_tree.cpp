#include "memory/pages/prefix_tree.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "memory/pages/page_name.h"

namespace luce::memory {
namespace {

// Evicted entries that nothing stands behind, and pages of any kind at which evicted entries have to go: about half a
// kilobyte each.
constexpr std::size_t kMaxEvicted = std::size_t{1} << 16;
constexpr std::size_t kMaxPages = std::size_t{1} << 19;

std::uint64_t hash_of(std::span<const Token, kPageSize> tokens) {
    std::uint64_t h = 0x9e3779b97f4a7c15ULL;
    for (const Token token : tokens) {
        h = (h ^ static_cast<std::uint32_t>(token)) * 0xff51afd7ed558ccdULL;
        h ^= h >> 32;
    }
    return h;
}

}  // namespace

Position n_common(std::span<const Token> a, std::span<const Token> b) {
    const auto n = static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
    return static_cast<Position>(std::mismatch(a.begin(), a.begin() + n, b.begin()).first - a.begin());
}

PrefixTree::PrefixTree(std::string_view identity) : root_(std::make_unique<Page>()) {
    root_->name = root_name(identity);
    root_->jump = root_.get();
}

// Texts are thousands of pages deep: taken apart from the leaves up, not by recursion.
PrefixTree::~PrefixTree() {
    std::vector<std::unique_ptr<Page>> open;
    open.push_back(std::move(root_));
    while (!open.empty()) {
        const std::unique_ptr<Page> page = std::move(open.back());
        open.pop_back();
        for (auto& [hash, child] : page->children) open.push_back(std::move(child));
    }
}

Known PrefixTree::walk(std::span<const Token> text, const Discover& discover) {
    Known known;
    Page* at = root_.get();
    std::span<const Token> left = text;
    while (left.size() >= kPageSize) {
        const auto tokens = left.first<kPageSize>();
        Page* next = child(*at, tokens);
        if (next == nullptr && discover) next = discover(*at, tokens);
        if (next == nullptr) break;
        known.pages.push_back(next);
        at = next;
        left = left.subspan(kPageSize);
    }
    known.n_matched = at->end();
    // A text that departs within a page still shares that page's first rows.
    Position n_best = 0;
    for (const auto& [hash, page] : at->children) {
        const Position n = n_common(page->tokens, left);
        if (n < n_best || n == 0) continue;
        if (n == n_best && known.beside != nullptr && known.beside->is_kept()) continue;
        n_best = n;
        known.beside = page.get();
    }
    for (const Checkpoint& checkpoint : at->checkpoints) n_best = std::max(n_best, n_common(checkpoint.rest, left));
    known.n_matched += n_best;
    return known;
}

Page* PrefixTree::child(Page& parent, std::span<const Token, kPageSize> tokens) {
    const auto [first, last] = parent.children.equal_range(hash_of(tokens));
    for (auto it = first; it != last; ++it) {
        if (std::equal(tokens.begin(), tokens.end(), it->second->tokens.begin())) return it->second.get();
    }
    return nullptr;
}

Page& PrefixTree::add(Page& parent, std::span<const Token, kPageSize> tokens) {
    assert(child(parent, tokens) == nullptr);
    auto page = std::make_unique<Page>();
    page->parent = &parent;
    // Two jumps of the same length become one of double that length and one page.
    const Page& further = *parent.jump;
    const bool are_alike = parent.index - further.index == further.index - further.jump->index;
    page->jump = are_alike ? further.jump : &parent;
    page->index = parent.index + 1;
    page->name = next_name(parent.name, tokens);
    std::copy(tokens.begin(), tokens.end(), page->tokens.begin());
    Page& added = *page;
    parent.children.emplace(hash_of(tokens), std::move(page));
    ++n_pages_;
    return added;
}

Checkpoint* PrefixTree::find_checkpoint(Page& page, std::span<const Token> rest) {
    const auto it =
        std::find_if(page.checkpoints.begin(), page.checkpoints.end(), [rest](const Checkpoint& checkpoint) {
            return std::equal(rest.begin(), rest.end(), checkpoint.rest.begin(), checkpoint.rest.end());
        });
    return it == page.checkpoints.end() ? nullptr : &*it;
}

Checkpoint& PrefixTree::add_checkpoint(Page& page, std::span<const Token> rest, CheckpointKind kind,
                                       CheckpointBlob data) {
    assert(rest.size() < kPageSize);
    Checkpoint& checkpoint = page.checkpoints.emplace_back();
    checkpoint.page = &page;
    checkpoint.rest.assign(rest.begin(), rest.end());
    checkpoint.name = checkpoint_name(page.name, rest);
    checkpoint.kind = kind;
    checkpoint.data = std::move(data);
    return checkpoint;
}

void PrefixTree::remove_checkpoint(Checkpoint& checkpoint) {
    Page& page = *checkpoint.page;
    page.checkpoints.remove_if([&checkpoint](const Checkpoint& other) { return &other == &checkpoint; });
    retire(page);
}

bool PrefixTree::is_needed(const Page& page) {
    return page.is_root() || page.is_kept() || !page.children.empty() || !page.checkpoints.empty() ||
           page.n_lanes > 0 || page.n_pins > 0 || page.n_waiting > 0 || page.n_handles > 0;
}

void PrefixTree::retire(Page& page) {
    if (is_needed(page) || evicted_places_.contains(&page)) return;
    evicted_.push_back(&page);
    evicted_places_.emplace(&page, std::prev(evicted_.end()));
    while (!evicted_.empty() && (evicted_.size() > kMaxEvicted || n_pages_ > kMaxPages)) forget_oldest_evicted();
}

void PrefixTree::forget_evicted() {
    while (!evicted_.empty()) forget_oldest_evicted();
}

// And the pages before it that lived for it alone.
void PrefixTree::forget_oldest_evicted() {
    Page* page = evicted_.front();
    evicted_places_.erase(page);
    evicted_.pop_front();
    while (!is_needed(*page)) {
        Page* parent = page->parent;
        erase(*page);
        page = parent;
    }
}

void PrefixTree::erase(Page& page) {
    Page* parent = page.parent;
    journal_.forget(page);
    if (const auto it = evicted_places_.find(&page); it != evicted_places_.end()) {
        evicted_.erase(it->second);
        evicted_places_.erase(it);
    }
    const auto [first, last] = parent->children.equal_range(hash_of(page.tokens));
    for (auto it = first; it != last; ++it) {
        if (it->second.get() != &page) continue;
        parent->children.erase(it);
        break;
    }
    --n_pages_;
}

void PrefixTree::for_each(const std::function<void(Page&)>& visit) {
    std::vector<Page*> open = {root_.get()};
    while (!open.empty()) {
        Page* page = open.back();
        open.pop_back();
        visit(*page);
        for (const auto& [hash, child] : page->children) open.push_back(child.get());
    }
}

Page* PrefixTree::find(const PageName& name) {
    Page* found = nullptr;
    for_each([&](Page& page) {
        if (!page.is_root() && page.name == name) found = &page;
    });
    return found;
}

Page& ancestor(Page& page, std::int32_t index) {
    assert(index >= -1 && index <= page.index);
    Page* at = &page;
    while (at->index > index) at = at->jump->index >= index ? at->jump : at->parent;
    return *at;
}

std::vector<Page*> path_to(Page& page) {
    std::vector<Page*> path;
    for (Page* at = &page; !at->is_root(); at = at->parent) path.push_back(at);
    std::reverse(path.begin(), path.end());
    return path;
}

Tokens text_of(Page& page) {
    Tokens text;
    text.reserve(static_cast<std::size_t>(page.end()));
    for (const Page* at : path_to(page)) text.insert(text.end(), at->tokens.begin(), at->tokens.end());
    return text;
}

PageScores scores_of(std::span<Page* const> pages) {
    PageScores scores(pages.size());
    bool has_any = false;
    for (std::size_t i = 0; i < pages.size(); ++i) {
        // What a broken computation left behind is not worth keeping.
        if (!pages[i]->score || !std::isfinite(*pages[i]->score)) continue;
        scores[i] = pages[i]->score;
        has_any = true;
    }
    return has_any ? scores : PageScores{};
}

void add_scores(std::span<Page* const> pages, const PageScores& scores) {
    assert(scores.empty() || scores.size() == pages.size());
    for (std::size_t i = 0; i < scores.size(); ++i) {
        if (!pages[i]->score) pages[i]->score = scores[i];
    }
}

}  // namespace luce::memory
