// PrefixFetcher: finds texts by name on the disk, and reads what a request will need of them before it begins. Knows
// the tree, the cache and the disk: no lanes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "memory/manager/kv_cache_types.h"

namespace luce::memory {

class DiskStore;

// What one request waits for. Its pages stay in memory until it is gone; what is read after that is kept if there is
// room, like anything else.
class PrefixFetch {
public:
    // `last`: the last page that is known of the text; none of its path is forgotten before this is.
    PrefixFetch(PrefixTree& tree, PageCache& cache, Page& last, std::weak_ptr<const bool> alive);
    ~PrefixFetch();
    PrefixFetch(const PrefixFetch&) = delete;
    PrefixFetch& operator=(const PrefixFetch&) = delete;

    void add(Page& page);

    bool is_done() const { return n_pending == 0; }
    bool has_read() const { return n_read > 0; }

    std::vector<Page*> pages;
    std::int32_t n_pending = 0;
    std::int32_t n_read = 0;

private:
    PrefixTree& tree_;
    PageCache& cache_;
    Page& last_;
    std::weak_ptr<const bool> alive_;
};

// From where a text could be gone on with.
struct Reach {
    Position n_known = 0;     // tokens that need not be computed
    std::size_t n_pages = 0;  // of its first pages those that are in memory or on disk
};

class PrefixFetcher {
public:
    // All must outlive it; `disk` may be null. uses_scores: whether how much pages matter is of use.
    PrefixFetcher(KvDevice& device, PrefixTree& tree, PageCache& cache, EvictionPolicy& policy, DiskStore* disk,
                  bool uses_scores)
        : device_(device), tree_(tree), cache_(cache), policy_(policy), disk_(disk), uses_scores_(uses_scores) {}

    // How far the text is known, in memory or on disk.
    Known walk(std::span<const Token> text);

    // `snapshots` need checkpoints where they stand: those on disk are read as well, and where there is none the text
    // is of use only up to there. Null: nothing to wait for.
    std::shared_ptr<PrefixFetch> fetch(std::span<const Token> text, std::span<const SnapshotPoint> snapshots);

    // What a request would find, from the disk too, without reading any of it.
    Reach reach(std::span<const Token> text);

    // The text that ends behind this page was used: on disk it is among the newest.
    void touch(Page& last);

    bool has_foreign_disk() const;
    void clear_disk();

private:
    // Where the deepest checkpoint stands that all pages are there for.
    struct Wanted {
        Page* page = nullptr;
        std::span<const Token> rest;
        bool is_on_disk = false;
    };

    std::size_t n_held_pages(const Known& known) const;
    std::optional<Wanted> find_checkpoint(const Known& known, std::size_t n_pages, std::span<const Token> text);
    std::optional<Wanted> checkpoint_at(const Known& known, std::size_t n_pages, std::span<const Token> text,
                                        Position position);
    std::optional<Wanted> longest_behind(Page& page, std::span<const Token> left);
    void read_page(const std::shared_ptr<PrefixFetch>& fetch, Page& page);
    void read_checkpoint(const std::shared_ptr<PrefixFetch>& fetch, const Wanted& wanted);

    KvDevice& device_;
    PrefixTree& tree_;
    PageCache& cache_;
    EvictionPolicy& policy_;
    DiskStore* disk_;
    bool uses_scores_;
    std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);  // what is read may come after us
};

}  // namespace luce::memory
