// The part of KvCacheManager that knows the disk: finding pages there by name, and reading what a request will need.
#include <algorithm>
#include <utility>

#include "memory/manager/kv_cache_manager.h"
#include "memory/pages/page_name.h"
#include "memory/tiers/disk_store.h"

namespace luce::memory {

// What one request waits for. Its pages stay in memory until it is gone; what is read after that is kept if there is
// room, like anything else.
class KvCacheManager::Fetch {
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

bool KvCacheManager::is_done(const Fetch& fetch) { return fetch.n_pending == 0; }
bool KvCacheManager::has_read(const Fetch& fetch) { return fetch.n_read > 0; }
bool KvCacheManager::has_foreign_disk() const { return disk_ != nullptr && disk_->has_foreign(); }

void KvCacheManager::touch_disk(Page& last) {
    if (disk_ == nullptr) return;
    std::vector<PageName> chain;
    for (const Page* page : path_to(last)) chain.push_back(page->name);
    for (const Checkpoint& checkpoint : last.checkpoints) chain.push_back(checkpoint.name);
    disk_->touch(chain);
}

void KvCacheManager::save_late_checkpoint(Lane& lane) {
    if (const std::optional<LateCheckpoint> checkpoint = std::exchange(lane.late_checkpoint, std::nullopt)) {
        cache_.save_checkpoint(*checkpoint->page, checkpoint->rest, checkpoint->data);
    }
}

Known KvCacheManager::walk(std::span<const Token> text) {
    if (disk_ == nullptr) return tree_.walk(text, nullptr);
    return tree_.walk(text, [this](Page& parent, std::span<const Token, kPageSize> tokens) -> Page* {
        return disk_->has_page(next_name(parent.name, tokens)) ? &tree_.add(parent, tokens) : nullptr;
    });
}

std::shared_ptr<KvCacheManager::Fetch> KvCacheManager::fetch(std::span<const Token> text,
                                                             const MemoryRequest& request) {
    const bool reuses = request.reuse.value_or(config_.reuses);
    if (disk_ == nullptr || refusal() || request.restore_slot || !reuses) return nullptr;
    const Known known = walk(text);
    const auto gone = std::find_if(known.pages.begin(), known.pages.end(),
                                   [&](const Page* page) { return !page->is_kept() && !cache_.is_on_disk(*page); });
    auto n_pages = static_cast<std::size_t>(gone - known.pages.begin());

    // The deepest checkpoint that all pages are there for; the rows of a pure attention model need none, but go further
    // by it, and learn from it how much the pages before it matter.
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
        for (const Checkpoint& checkpoint : page.checkpoints) {
            if (checkpoint.rest.size() > left.size()) continue;
            const auto rest = left.first(checkpoint.rest.size());
            if (std::equal(rest.begin(), rest.end(), checkpoint.rest.begin())) consider(rest, false);
        }
        for (const CheckpointOnDisk& checkpoint : disk_->checkpoints_after(page.name)) {
            const auto n_rest = static_cast<std::size_t>(checkpoint.n_rest);
            if (n_rest > left.size()) continue;
            const auto rest = left.first(n_rest);
            if (checkpoint_name(page.name, rest) == checkpoint.name) consider(rest, true);
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
        disk_->read_checkpoint(
            page.name, n_before, rest, [this, fetch, &page, rest](const Result<ScoredCheckpoint>& read) {
                --fetch->n_pending;
                if (!read) return;
                if (uses_scores()) add_scores(path_to(page), read.value().scores);
                const CheckpointBlob& data = read.value().checkpoint;
                Checkpoint* kept =
                    cache_.keep_checkpoint(page, rest, CheckpointKind::prompt_end, data, policy_.begin(), false);
                if (kept != nullptr) ++fetch->n_read;
            });
    }
    return fetch->n_pending > 0 ? fetch : nullptr;
}

}  // namespace luce::memory
