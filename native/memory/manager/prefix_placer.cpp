#include "memory/manager/prefix_placer.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/log.h"

namespace luce::memory {
namespace {

constexpr std::int32_t kFewIdleCells = 256;  // libllama looks at cells by as many

}  // namespace

// A computation looks at all cells up to the highest used one, also at those of texts that nobody runs: measured on a
// CPU, a prompt takes twice as long beside some 10,000 of them. There, where moving them costs something as well, they
// stay until they cost more than that.
bool PrefixPlacer::is_in_the_way(std::int32_t n_foreign, std::int32_t n_text) const {
    const std::int32_t n_running = pool_.n_used_cells();
    return n_foreign > kFewIdleCells + (n_running + n_text) / 4;
}

// Where a page is copied at the speed of memory, idle texts move over to the host's tier, and what the lane goes on
// from comes back into the lowest cells.
void PrefixPlacer::clear_the_way(const PrefixMatch& match, std::int32_t n_text) {
    if (!has_cells(device_) || !device_.traits().is_host_memory || device_.traits().refusal) return;
    std::int32_t n_own = 0;
    for (const Page* page : match.pages) n_own += page->place.kind == PlaceInPool::Kind::low ? kPageSize : 0;
    const auto n_low = static_cast<std::int32_t>(cache_.n_low_idle_pages()) * kPageSize;
    if (!is_in_the_way(n_low - n_own, n_text)) return;
    // Nothing is lost by it, or it is not done.
    if (!cache_.has_room_for_uncopied()) return;
    if (const Result<void> evicted = cache_.evict_idle(); !evicted) log_warn(evicted.error().text);
}

// What is idle still, when the lane's own pages are no more.
void PrefixPlacer::set_foreign_aside(std::size_t n_own_aside, std::int32_t n_text) {
    if (!has_cells(device_) || device_.traits().refusal) return;
    if (!device_.traits().is_host_memory) return pool_.set_idle_aside(n_own_aside);
    const std::size_t n_low = cache_.n_low_idle_pages();
    if (is_in_the_way(static_cast<std::int32_t>(n_low) * kPageSize, n_text)) cache_.set_idle_aside(n_low);
}

// Making room for what has to come from elsewhere must not take the prefix away: its pages and its checkpoint wait
// meanwhile, as what it takes from others is held by its blob.
Result<void> PrefixPlacer::place(LaneId lane, PrefixMatch& match, std::span<const Token> text,
                                 const PinnedRanges& pins) {
    const auto n_text = static_cast<std::int32_t>(text.size());
    if (match.n == 0) {
        clear_the_way(match, n_text);
        set_foreign_aside(0, n_text);
        return {};
    }
    const CheckpointBlob checkpoint = match.checkpoint != nullptr ? match.checkpoint->data : nullptr;
    const Tokens checkpoint_rest = match.checkpoint != nullptr ? match.checkpoint->rest : Tokens{};
    match.data = checkpoint;
    Blob beside;
    if (match.beside != nullptr) {
        Result<Blob> rows = cache_.rows_of(*match.beside);
        if (!rows) return rows.error();
        beside = std::move(rows).value();
    }
    for (Page* page : match.pages) cache_.wait_for(*page);
    if (match.checkpoint != nullptr) cache_.wait_for(*match.checkpoint);
    clear_the_way(match, n_text);
    pool_.choose_seen(match, text, pins);
    Taken taken;
    const auto put = [&]() -> Result<void> {
        if (has_cells(device_)) {
            if (Result<void> done = take_pages(match, n_text, taken); !done) return done;
            // All at once: the device waits for copies only here.
            std::vector<Cell> seen;
            for (std::size_t i = 0; i < match.pages.size(); ++i) {
                const std::vector<Cell>& cells = match.pages[i]->cells;
                if (match.sees(i)) seen.insert(seen.end(), cells.begin(), cells.end());
            }
            if (!seen.empty()) device_.show(lane, seen);
            if (match.n_rest > 0) {
                const Bytes& rows = checkpoint != nullptr ? checkpoint->rows : *beside;
                if (Result<void> written = write_rest(lane, match, text, rows); !written) return written;
            }
        }
        if (device_.traits().has_state()) return device_.load_state(lane, checkpoint->state);
        return {};
    };
    Result<void> done = put();
    if (checkpoint != nullptr) {
        match.checkpoint =
            tree_.find_checkpoint(match.pages.empty() ? tree_.root() : *match.pages.back(), checkpoint_rest);
    }
    if (!done) {
        for (Page* page : taken.seen) cache_.leave(*page, {});
        for (Page* page : taken.unseen) cache_.leave_out(*page, {});
        device_.forget(lane);
    }
    if (match.checkpoint != nullptr) cache_.stop_waiting_for(*match.checkpoint);
    for (Page* page : match.pages) cache_.stop_waiting_for(*page);
    return done;
}

Result<void> PrefixPlacer::take_pages(const PrefixMatch& match, std::int32_t n_text, Taken& taken) {
    // Those that are there first: from then on they stay.
    for (std::size_t i = 0; i < match.pages.size(); ++i) {
        Page* page = match.pages[i];
        if (!match.sees(i)) {
            if (!page->is_kept()) return Error{ErrorCode::no_room, "a page left the memory meanwhile"};
            if (Result<void> stays = cache_.enter_out(*page); !stays) return stays;
            taken.unseen.push_back(page);
        } else if (page->is_resident()) {
            cache_.enter(*page);
            taken.seen.push_back(page);
        }
    }
    std::vector<Page*> aside;
    std::copy_if(taken.seen.begin(), taken.seen.end(), std::back_inserter(aside),
                 [](const Page* page) { return page->is_aside; });
    set_foreign_aside(aside.size(), n_text);
    cache_.bring_back(aside);
    for (std::size_t i = 0; i < match.pages.size(); ++i) {
        Page* page = match.pages[i];
        if (!match.sees(i) || page->is_resident()) continue;
        if (Result<void> room = pool_.make_room(kPageSize); !room) return room;
        if (page->host == nullptr) return Error{ErrorCode::no_room, "a page left the memory meanwhile"};
        if (Result<void> placed = cache_.place(*page); !placed) return placed;
        cache_.enter(*page);
        taken.seen.push_back(page);
    }
    return {};
}

// The rows behind the last full page.
Result<void> PrefixPlacer::write_rest(LaneId lane, const PrefixMatch& match, std::span<const Token> text,
                                      const Bytes& rows) {
    if (Result<void> room = pool_.make_room(match.n_rest); !room) return room;
    const auto n_rows = static_cast<std::int32_t>(rows.size() / device_.traits().row_bytes);
    std::array<Cell, kPageSize> cells{};
    const Position rest = match.n - match.n_rest;
    return device_.write(lane, rest, part(text, rest, match.n), rows, n_rows,
                         std::span(cells).first(static_cast<std::size_t>(match.n_rest)));
}

}  // namespace luce::memory
