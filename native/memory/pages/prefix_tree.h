// PrefixTree: what is known of the texts seen so far, as a tree of pages. A page's place in the tree is its text: two
// texts with the same prefix share their first pages. The tree knows where a page's rows lie, and which checkpoints
// stand behind it; it moves nothing and decides nothing.
//
// Compared token by token: a hash only finds the candidate. Pages whose rows are in no memory stay for a while as
// *evicted entries*, so that a miss can be explained ("evicted") and a policy can learn from it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "memory/eviction/eviction_queue.h"
#include "memory/manager/kv_device.h"
#include "memory/pages/page_journal.h"
#include "memory/residency/page_scorer.h"
#include "memory/residency/page_scores.h"
#include "memory/tiers/blob.h"

namespace luce::memory {

struct Page;

// Where IdlePages has noted a page.
struct PlaceInPool {
    enum class Kind : std::uint8_t { none, low, aside };
    Kind kind = Kind::none;
    Cell lowest = 0;  // of its cells
};

// Why a checkpoint was taken: texts depart at marks and ends more often than anywhere else, and where one has departed
// from another (departure) the next is likely to. Behind the user's last message (turn) stands what a template may
// render anew once the user writes again: a text has one such checkpoint, the last.
enum class CheckpointKind : std::uint8_t { interval, mark, turn, departure, prompt_end, answer_end };

// The state of a text at one position, in host memory. Owned by the page it stands behind.
struct Checkpoint {
    Page* page = nullptr;  // the last full page before it; the root for a text shorter than one page
    Tokens rest;           // the tokens behind that page, fewer than kPageSize
    PageName name;
    CheckpointKind kind = CheckpointKind::interval;
    CheckpointBlob data;
    std::int32_t n_pins = 0;     // slots, suspended requests, writes to disk: not to be dropped
    std::int32_t n_waiting = 0;  // requests that will use it soon: not to be dropped until then

    ConversationRef owner;   // that used it last
    bool is_queued = false;  // for eviction; this and the rest are CheckpointQueue's
    std::size_t place = 0;
    CheckpointLink link;  // which checkpoint stands before it

    Position position() const;
};

struct Page {
    Page* parent = nullptr;   // null: the root
    Page* jump = nullptr;     // some page further up (ancestor() says which); the root's is the root
    std::int32_t index = -1;  // covers positions index * kPageSize …; -1: the root
    PageName name;
    std::array<Token, kPageSize> tokens{};
    std::unordered_multimap<std::uint64_t, std::unique_ptr<Page>> children;  // by hash of their tokens
    std::list<Checkpoint> checkpoints;

    // Where the rows lie.
    std::vector<Cell> cells;  // resident: kPageSize of them, held; empty otherwise
    bool is_aside = false;    // resident, and set aside: no lane sees it
    Blob host;

    std::int32_t n_lanes = 0;     // running requests that see its cells: not evictable
    std::int32_t n_out = 0;       // running requests whose text it is, but who do not see it: pinned for them
    std::int32_t n_pins = 0;      // slots and suspended requests: never dropped from all memory
    std::int32_t n_resident = 0;  // children with cells
    std::int32_t n_kept = 0;      // children with cells or a host copy
    std::int32_t n_waiting = 0;   // requests and writes to disk that will use it soon: not to be dropped until then

    std::int32_t n_handles = 0;  // who remembers this object; its rows may go
    bool is_double = false;      // in pool and host, as PageCache has noted
    bool is_unreadable = false;  // the device did not give its rows: it is not asked again before it needs the room
    PlaceInPool place;           // IdlePages'

    PageKeys keys;               // for a scorer; null: not made
    std::optional<float> score;  // how much it mattered to whoever asked last; unset: never asked

    ConversationRef owner;              // that used it last
    ConversationRef ended;              // whose last request ended behind this page
    std::array<QueueLink, 3> queued{};  // for eviction, by QueueKind
    PageEntry journal;                  // PageJournal's

    bool is_root() const { return parent == nullptr; }
    bool is_resident() const { return !cells.empty(); }
    bool is_kept() const { return is_resident() || host != nullptr; }
    Position begin() const { return index * kPageSize; }
    Position end() const { return (index + 1) * kPageSize; }
};

inline Position Checkpoint::position() const { return page->end() + static_cast<Position>(rest.size()); }

// How many tokens both begin with.
Position n_common(std::span<const Token> a, std::span<const Token> b);

// How far a text is known.
struct Known {
    std::vector<Page*> pages;  // of the text's start, from the first; evicted entries included
    Position n_matched = 0;    // tokens up to which some known text agrees: may end within a page
    Page* beside = nullptr;    // the page (a child of the last one) that agrees beyond pages.size() * kPageSize
};

class PrefixTree {
public:
    explicit PrefixTree(std::string_view identity);
    ~PrefixTree();
    PrefixTree(const PrefixTree&) = delete;
    PrefixTree& operator=(const PrefixTree&) = delete;

    Page& root() { return *root_; }

    // Walk down along `text`. `discover` is asked for a page that the tree does not know (on disk, say) and may add it.
    using Discover = std::function<Page*(Page& parent, std::span<const Token, kPageSize> tokens)>;
    Known walk(std::span<const Token> text, const Discover& discover);

    Page* child(Page& parent, std::span<const Token, kPageSize> tokens);
    Page& add(Page& parent, std::span<const Token, kPageSize> tokens);

    // Looks through all of them.
    Page* find(const PageName& name);

    Checkpoint* find_checkpoint(Page& page, std::span<const Token> rest);
    Checkpoint& add_checkpoint(Page& page, std::span<const Token> rest, CheckpointKind kind, CheckpointBlob data);
    void remove_checkpoint(Checkpoint& checkpoint);

    // Let the page become an evicted entry if nothing needs it any more: no rows, no children, no checkpoints, no
    // references. Evicted entries are kept up to a number; the oldest go first.
    void retire(Page& page);
    void forget_evicted();

    std::size_t n_pages() const { return n_pages_; }

    void for_each(const std::function<void(Page&)>& visit);

    // Who changes where a page lies notes it here.
    PageJournal& journal() { return journal_; }

private:
    static bool is_needed(const Page& page);
    void forget_oldest_evicted();
    void erase(Page& page);

    std::unique_ptr<Page> root_;
    std::list<Page*> evicted_;  // in the order in which they became ones; may hold pages that got data again
    std::unordered_map<Page*, std::list<Page*>::iterator> evicted_places_;
    std::size_t n_pages_ = 0;
    PageJournal journal_;
};

// The page with this index on the way from the root to `page`, found in a number of steps that grows like the logarithm
// of the way ("An applicative random-access stack", Myers 1983). REQUIRES: a page of a PrefixTree; -1 <= index <=
// page's.
Page& ancestor(Page& page, std::int32_t index);

// The path from the first page to `page`, the root left out.
std::vector<Page*> path_to(Page& page);

// The text from the start to the page's end.
Tokens text_of(Page& page);

// What is written down of how much the pages matter: nothing where none of them was ever asked for. And back, for those
// pages that have no score of their own, which is newer. REQUIRES (add_scores): as many scores as pages, or none.
PageScores scores_of(std::span<Page* const> pages);
void add_scores(std::span<Page* const> pages, const PageScores& scores);

}  // namespace luce::memory
