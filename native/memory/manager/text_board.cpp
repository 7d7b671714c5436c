#include "memory/manager/text_board.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

namespace luce::memory {
namespace {

constexpr std::size_t kFirstTokens = 32;  // enough to know a text again
constexpr Position kLeastTokens = 8;      // of a page that differs only at its end
constexpr int kMaxCompared = 64;          // pages beside one
constexpr std::size_t kMaxHolds = 256;

Error no_such_page() { return {ErrorCode::bad_args, "page=: nothing that is remembered ends there: list texts again"}; }

double last_use_s(const Page& page) { return page.owner ? page.owner->last_use_s : 0; }

// The first ones. Behind a branch from where it differs from the pages beside it: what they begin with tells none.
Tokens telling_tokens(const Page& page) {
    Position begin = 0;
    int n_compared = 0;
    if (!page.parent->is_root()) {
        for (const auto& [_, beside] : page.parent->children) {
            if (beside.get() == &page) continue;
            if (n_compared++ == kMaxCompared) break;
            begin = std::max(begin, n_common(page.tokens, beside->tokens));
        }
    }
    const auto rest =
        std::span(page.tokens).subspan(static_cast<std::size_t>(std::min(begin, kPageSize - kLeastTokens)));
    const auto shown = rest.first(std::min(rest.size(), kFirstTokens));
    return {shown.begin(), shown.end()};
}

Checkpoint* longest_checkpoint(Page& page) {
    const auto longest = std::ranges::max_element(page.checkpoints, {},
                                                  [](const Checkpoint& checkpoint) { return checkpoint.rest.size(); });
    return longest == page.checkpoints.end() ? nullptr : &*longest;
}

}  // namespace

bool TextBoard::is_present(const Page& page) const { return page.is_kept() || cache_.is_on_disk(page); }

std::vector<Page*> TextBoard::children_of(Page& page) const {
    std::vector<Page*> children;
    for (const auto& [_, child] : page.children) {
        if (is_present(*child)) children.push_back(child.get());
    }
    std::ranges::sort(children, [](const Page* a, const Page* b) {
        return last_use_s(*a) != last_use_s(*b) ? last_use_s(*a) > last_use_s(*b) : a->name < b->name;
    });
    return children;
}

// From this page on; `page` is the run's last one then.
TextRun TextBoard::run_from(Page*& page) const {
    TextRun run;
    run.begin = page->begin();
    if (!page->parent->is_root()) run.parent = page->parent->name;
    run.first_tokens = telling_tokens(*page);
    for (;;) {
        run.n_device += page->is_resident() ? 1 : 0;
        run.n_host += page->host != nullptr ? 1 : 0;
        run.n_disk += cache_.is_on_disk(*page) ? 1 : 0;
        run.n_pinned += page->n_pins > 0 ? 1 : 0;
        run.n_checkpoints += static_cast<std::int32_t>(page->checkpoints.size());
        if (page->owner) {
            const double age_s = std::max(policy_.now_s() - page->owner->last_use_s, 0.0);
            run.age_s = std::min(run.age_s.value_or(age_s), age_s);
        }
        const std::vector<Page*> children = children_of(*page);
        if (children.size() != 1 || holds_.contains(page->name)) break;
        page = children.front();
    }
    run.name = page->name;
    run.end = page->end();
    run.n_lanes = page->n_lanes + page->n_out;
    run.is_held = holds_.contains(page->name);
    return run;
}

TextListing TextBoard::list(std::int32_t first, std::int32_t n_most) {
    TextListing listing;
    listing.n_short = static_cast<std::int32_t>(tree_.root().checkpoints.size());
    std::vector<Page*> next = children_of(tree_.root());
    std::ranges::reverse(next);
    while (!next.empty()) {
        Page* page = next.back();
        next.pop_back();
        TextRun run = run_from(page);
        std::vector<Page*> children = children_of(*page);
        next.insert(next.end(), children.rbegin(), children.rend());
        const std::int32_t number = listing.n_runs++;
        if (number >= first && number - first < n_most) listing.runs.push_back(std::move(run));
    }
    return listing;
}

Result<void> TextBoard::hold(const PageName& name, bool on) {
    const auto held = holds_.find(name);
    if (!on) {
        if (held == holds_.end()) return {};
        slots_.let_go(held->second);
        holds_.erase(held);
        return {};
    }
    if (held != holds_.end()) return {};
    if (holds_.size() >= kMaxHolds) {
        return Error{ErrorCode::no_room,
                     "so many texts are held already (" + std::to_string(kMaxHolds) + "): let one go"};
    }
    Page* page = tree_.find(name);
    if (page == nullptr || !page->is_kept()) return no_such_page();
    Slot place{page, longest_checkpoint(*page), page->end(), 0};
    // A model with state goes on from a checkpoint only: from the last one before the end.
    while (needs_checkpoint_ && place.checkpoint == nullptr && !place.page->parent->is_root()) {
        place.page = place.page->parent;
        place.checkpoint = longest_checkpoint(*place.page);
    }
    if (needs_checkpoint_ && place.checkpoint == nullptr) {
        return Error{ErrorCode::unsupported, "there is no checkpoint from which this text could be gone on with"};
    }
    place.position = place.checkpoint != nullptr ? place.checkpoint->position() : place.page->end();
    if (Result<void> kept = slots_.hold(place); !kept) return kept;
    holds_.emplace(name, place);
    return {};
}

Result<void> TextBoard::forget(const PageName& name) {
    snapshots_.forget_all_ended();
    Page* top = tree_.find(name);
    if (top == nullptr) return no_such_page();
    while (!top->parent->is_root() && children_of(*top->parent).size() == 1 && !holds_.contains(top->parent->name)) {
        top = top->parent;
    }
    std::vector<Page*> pages{top};  // parents before their children
    for (std::size_t i = 0; i < pages.size(); ++i) {
        for (const auto& [_, child] : pages[i]->children) pages.push_back(child.get());
    }
    for (std::size_t i = pages.size(); i-- > 0;) {
        const auto held = holds_.find(pages[i]->name);
        if (held == holds_.end()) continue;
        slots_.let_go(held->second);
        holds_.erase(held);
    }
    const std::size_t n_pages = pages.size();
    std::ranges::reverse(pages);  // from the leaves up
    std::erase_if(pages, [this](Page* page) { return cache_.forget(*page); });
    if (pages.empty()) {
        tree_.forget_evicted();
        return {};
    }
    Error busy{ErrorCode::busy, std::to_string(pages.size()) + " of " + std::to_string(n_pages) +
                                    " pages stay: they are kept by " + keepers_of(pages)};
    tree_.forget_evicted();
    return busy;
}

// For people. REQUIRES: something keeps each of them.
std::string TextBoard::keepers_of(const std::vector<Page*>& pages) const {
    std::set<std::int32_t> numbers;
    bool is_read = false;
    bool is_awaited = false;
    bool is_suspended = false;
    for (const Page* page : pages) {
        const std::vector<std::int32_t> slots = slots_.pinning(*page);
        numbers.insert(slots.begin(), slots.end());
        is_read |= page->n_lanes > 0 || page->n_out > 0;
        is_awaited |= page->n_waiting > 0;
        is_suspended |= page->n_pins > static_cast<std::int32_t>(slots.size());
    }
    std::vector<std::string> keepers;
    for (const std::int32_t number : numbers) keepers.push_back("slot " + std::to_string(number));
    if (is_read) keepers.emplace_back("running requests");
    if (is_suspended) keepers.emplace_back("suspended requests");
    if (is_awaited) keepers.emplace_back("waiting requests or writes to disk");
    std::string text;
    for (const std::string& keeper : keepers) text += (text.empty() ? "" : ", ") + keeper;
    return text;
}

}  // namespace luce::memory
