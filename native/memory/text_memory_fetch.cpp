// The part of TextMemory that knows the disk: finding pages there by name, and reading what a request will need.
#include <algorithm>
#include <utility>

#include "memory/disk_store.h"
#include "memory/page_name.h"
#include "memory/text_memory.h"

namespace luce::memory {

// What one request waits for. Its pages stay in memory until it is gone; what is read after that is kept if there is
// room, like anything else.
class TextMemory::Fetch {
public:
    // `last`: the last page that is known of the text; none of its path is forgotten before this is.
    Fetch(PageTree& tree, PageCache& cache, Page& last, std::weak_ptr<const bool> alive)
        : tree_(tree), cache_(cache), last_(last), alive_(std::move(alive)) {
        ++last_.n_handles;
    }
    ~Fetch() {
        if (alive_.expired()) return;
        for (Page* page : pages) cache_.stop_waiting_for(*page);
        --last_.n_handles;
        tree_.retire(last_);
    }
    Fetch(const Fetch&) = delete;
    Fetch& operator=(const Fetch&) = delete;

    void add(Page& page) {
        cache_.wait_for(page);
        pages.push_back(&page);
    }

    std::vector<Page*> pages;
    std::int32_t n_pending = 0;
    std::int32_t n_read = 0;

private:
    PageTree& tree_;
    PageCache& cache_;
    Page& last_;
    std::weak_ptr<const bool> alive_;
};

bool TextMemory::is_done(const Fetch& fetch) { return fetch.n_pending == 0; }
bool TextMemory::has_read(const Fetch& fetch) { return fetch.n_read > 0; }
bool TextMemory::has_foreign_disk() const { return disk_ != nullptr && disk_->has_foreign(); }

void TextMemory::touch_disk(Page& last) {
    if (disk_ == nullptr) return;
    std::vector<PageName> chain;
    for (const Page* page : path_to(last)) chain.push_back(page->name);
    for (const Tail& tail : last.tails) chain.push_back(tail.name);
    disk_->touch(chain);
}

void TextMemory::save_late_tail(Lane& lane) {
    if (const std::optional<LateTail> tail = std::exchange(lane.late_tail, std::nullopt)) {
        cache_.save_tail(*tail->page, tail->rest, tail->data);
    }
}

Known TextMemory::walk(std::span<const Token> text) {
    if (disk_ == nullptr) return tree_.walk(text, nullptr);
    return tree_.walk(text, [this](Page& parent, std::span<const Token, kPageSize> tokens) -> Page* {
        return disk_->has_page(next_name(parent.name, tokens)) ? &tree_.add(parent, tokens) : nullptr;
    });
}

std::shared_ptr<TextMemory::Fetch> TextMemory::fetch(std::span<const Token> text, const MemoryRequest& request) {
    const bool reuses = request.reuse.value_or(config_.reuses);
    if (disk_ == nullptr || refusal() || request.restore_slot || !reuses) return nullptr;
    const Known known = walk(text);
    const auto gone = std::find_if(known.pages.begin(), known.pages.end(),
                                   [&](const Page* page) { return !page->is_kept() && !cache_.is_on_disk(*page); });
    auto n_pages = static_cast<std::size_t>(gone - known.pages.begin());

    // The deepest tail that all pages are there for; the rows of a pure attention model need none, but go further by
    // it, and learn from it how much the pages before it matter.
    const bool lacks_scores = uses_scores() && std::none_of(known.pages.begin(), gone,
                                                            [](const Page* page) { return page->score.has_value(); });
    struct Wanted {
        Page* page = nullptr;
        std::span<const Token> rest;
        bool is_on_disk = false;
    };
    std::optional<Wanted> wanted;
    for (std::size_t n = n_pages + 1; n-- > 0 && !wanted;) {
        Page& page = n == 0 ? tree_.root() : *known.pages[n - 1];
        const auto left = text.subspan(static_cast<std::size_t>(page.end()));
        const auto consider = [&](std::span<const Token> rest, bool is_on_disk) {
            if (!wanted || rest.size() > wanted->rest.size()) wanted = Wanted{&page, rest, is_on_disk};
        };
        for (const Tail& tail : page.tails) {
            if (tail.rest.size() > left.size()) continue;
            const auto rest = left.first(tail.rest.size());
            if (std::equal(rest.begin(), rest.end(), tail.rest.begin())) consider(rest, false);
        }
        for (const TailOnDisk& tail : disk_->tails_after(page.name)) {
            const auto n_rest = static_cast<std::size_t>(tail.n_rest);
            if (n_rest > left.size()) continue;
            const auto rest = left.first(n_rest);
            if (tail_name(page.name, rest) == tail.name) consider(rest, true);
        }
        if (!device_.traits().has_state() && !lacks_scores) break;
    }
    if (device_.traits().has_state()) {
        if (!wanted) {
            if (!known.pages.empty()) tree_.retire(*known.pages.back());
            return nullptr;
        }
        n_pages = static_cast<std::size_t>(wanted->page->index + 1);
    }

    Page& last = known.pages.empty() ? tree_.root() : *known.pages.back();
    auto fetch = std::make_shared<Fetch>(tree_, cache_, last, alive_);
    for (std::size_t i = 0; i < n_pages; ++i) {
        Page& page = *known.pages[i];
        fetch->add(page);
        if (page.is_kept()) continue;
        ++fetch->n_pending;
        disk_->read_page(page.name, page.parent->name, page.tokens, [this, fetch, &page](Result<Blob> rows) {
            --fetch->n_pending;
            if (rows && cache_.keep(page, std::move(rows).value())) ++fetch->n_read;
        });
    }
    if (wanted && wanted->is_on_disk) {
        ++fetch->n_pending;
        Tokens rest(wanted->rest.begin(), wanted->rest.end());
        Page& page = *wanted->page;
        if (!page.is_root()) fetch->add(page);
        const auto n_before = static_cast<std::size_t>(page.index + 1);
        disk_->read_tail(page.name, n_before, rest, [this, fetch, &page, rest](const Result<ScoredTail>& read) {
            --fetch->n_pending;
            if (!read) return;
            if (uses_scores()) add_scores(path_to(page), read.value().scores);
            const TailBlob& data = read.value().tail;
            Tail* kept = cache_.keep_tail(page, rest, TailKind::prompt_end, data, policy_.begin(), false);
            if (kept != nullptr) ++fetch->n_read;
        });
    }
    return fetch->n_pending > 0 ? fetch : nullptr;
}

}  // namespace luce::memory
