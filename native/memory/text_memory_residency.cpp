// The part of TextMemory that deals out the pool: room for what is computed next and, where residency is bounded, which
// pages of its text each lane sees.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/log.h"
#include "memory/page_scorer.h"
#include "memory/text_memory.h"

namespace luce::memory {
namespace {

// Queries are noted of the tokens before a choice: of a prompt's end as far as one slice reaches back, since a slice is
// not cut for it; of an answer those that the scorer looks at.
constexpr Position kWatchedOfPrompt = 2048;
constexpr Position kWatchedOfAnswer = 32;

// Pages that stay free when a choice is made, for what is written until the next one.
constexpr std::int32_t kHeadroomPages = 2;

// Tokens that are written while scores are found beside them.
constexpr Position kLag = 16;

constexpr Position kNever = std::numeric_limits<Position>::max();

}  // namespace

std::int32_t TextMemory::n_available_cells() const {
    if (!has_cells()) return std::numeric_limits<std::int32_t>::max() / 2;
    return cache_.n_available_cells() + (is_bounded() ? n_yieldable_pages() * kPageSize : 0);
}

// Of the device's cells: it may have a few more than the pool was asked to have, and has none while it is parked.
std::int32_t TextMemory::n_used_cells() const {
    return has_cells() ? device_.traits().n_cells - cache_.n_available_cells() : 0;
}

std::int32_t TextMemory::n_least_cells(std::int32_t n_tokens) const {
    return is_bounded() ? std::min(n_tokens, config_.residency->n_least) : n_tokens;
}

std::int32_t TextMemory::n_private_cells(LaneId id, Position n_computed) const {
    if (refusal()) return n_computed;
    if (!has_cells()) return 0;
    const Lane& lane = *lanes_.at(id);
    std::int32_t n_cells = n_computed - lane.page->end();
    for (const LanePage& held : lane.pages) n_cells += held.is_seen && held.page->n_lanes <= 1 ? kPageSize : 0;
    return n_cells;
}

Result<void> TextMemory::make_room(std::int32_t n_cells) {
    if (refusal() || !has_cells()) return {};
    Result<void> room = cache_.make_room(n_cells);
    if (room || !is_bounded()) return room;
    const double started_s = clock_.now_s();
    while (!room && room.error().code == ErrorCode::no_room) {
        const Result<bool> yielded = put_one_out();
        if (!yielded) return yielded.error();
        if (!yielded.value()) return room;
        room = cache_.make_room(n_cells);
    }
    residency_totals_.stall_s += clock_.now_s() - started_s;
    return room;
}

std::vector<PageView> TextMemory::views_of(const Lane& lane) const {
    std::vector<PageView> views;
    views.reserve(lane.pages.size());
    for (const LanePage& held : lane.pages) views.push_back({held.is_seen, false, held.page->score});
    return views;
}

// What is shared would have to be put out by all.
std::int32_t TextMemory::n_yieldable_pages() const {
    std::int32_t n_pages = 0;
    for (const auto& [id, lane] : lanes_) {
        if (!lane || lane->is_lost) continue;
        const std::vector<PageView> views = views_of(*lane);
        for (std::size_t i = 0; i < views.size(); ++i) {
            const bool is_private = views[i].is_seen && lane->pages[i].page->n_lanes == 1;
            n_pages += is_private && !has_to_stay(views, i, config_.residency->rules) ? 1 : 0;
        }
    }
    return n_pages;
}

// From the lane that sees most of those that can give something up, so that all come to have the same.
Result<bool> TextMemory::put_one_out() {
    std::optional<LaneId> largest;
    std::size_t most = 0;
    std::size_t index = 0;
    for (const auto& [id, lane] : lanes_) {
        if (!lane || lane->is_lost) continue;
        const std::size_t n_seen = lane->pages.size() - lane->n_out;
        if (n_seen <= most) continue;
        const std::optional<std::size_t> first = first_to_go(views_of(*lane), config_.residency->rules);
        if (!first) continue;
        largest = id;
        most = n_seen;
        index = *first;
    }
    if (!largest) return false;
    if (Result<void> out = put_out(*largest, index); !out) return out.error();
    return true;
}

Result<void> TextMemory::put_out(LaneId id, std::size_t index) {
    Lane& lane = at(id);
    if (Result<void> out = cache_.put_out(*lane.pages[index].page, id); !out) return out;
    lane.pages[index].is_seen = false;
    ++lane.n_out;
    ++residency_totals_.n_moved_out;
    return {};
}

Result<void> TextMemory::bring_back(LaneId id, std::size_t index) {
    Lane& lane = at(id);
    if (Result<void> back = cache_.bring_back(*lane.pages[index].page, id); !back) return back;
    lane.pages[index].is_seen = true;
    --lane.n_out;
    ++residency_totals_.n_moved_in;
    return {};
}

// Of a beginning that is to be put in place: what there is room for beside the lane's next tokens, or its share.
void TextMemory::choose_seen(Beginning& beginning, std::span<const Token> text) const {
    if (!is_bounded() || !has_cells()) return;
    const auto n_lanes = static_cast<std::int32_t>(
        std::count_if(lanes_.begin(), lanes_.end(), [](const auto& entry) { return entry.second.has_value(); }));
    const std::int32_t n_share = device_.traits().n_cells / (n_lanes + 1);
    const std::int32_t n_cells = std::max(cache_.n_available_cells(), std::min(n_share, n_available_cells()));
    const auto n_text = static_cast<std::int32_t>(text.size());
    const std::int32_t n_new = beginning.n_rest + std::min(n_text - beginning.n, n_cells / 2) + kPageSize;
    const auto n_most = static_cast<std::size_t>(std::max(0, n_cells - n_new) / kPageSize);
    std::vector<PageView> views;
    for (const Page* page : beginning.pages) views.push_back({false, false, page->score});
    if (n_most < views.size()) beginning.seen = choose_pages(views, n_most, config_.residency->rules);
}

bool TextMemory::outgrows_pool(const Lane& lane, Position n_computed) const {
    return lane.n_out > 0 || lane.n_prompt - n_computed > cache_.n_available_cells();
}

// A prompt's last token is computed with the pages that its end has chosen.
Position TextMemory::next_choice(const Lane& lane, Position n_computed) const {
    if (!is_bounded() || config_.residency->scorer == nullptr || n_computed >= lane.n_prompt - 1) return kNever;
    return outgrows_pool(lane, n_computed) ? lane.n_prompt - 1 : kNever;
}

// Whether it is time to choose, and whether the next computation's queries will be asked for. At a turn's beginning the
// next token waits for the choice. Later, where the processor is not what computes, scores are found beside the next
// few tokens: always as many of them, so that the text does not depend on how fast that goes.
void TextMemory::watch_residency(LaneId id, Position n_computed) {
    Lane& lane = at(id);
    if (!is_bounded() || !has_cells() || config_.residency->scorer == nullptr || lane.is_lost) return;
    const Position tau = config_.residency->rules.tau;
    const Position lag = device_.traits().is_host_memory ? 0 : std::min(kLag, tau / 2);
    const bool is_turn = lane.chosen_at < lane.n_prompt - 1;
    if (n_computed >= lane.n_prompt - 1) {
        if (lane.n_out == 0 && lane.n_scoring == 0) {
            lane.chosen_at = n_computed;
        } else if (lane.n_scoring == 0 && (is_turn || n_computed >= lane.chosen_at + tau)) {
            lane.chosen_at = n_computed;
            ask_for_pages(id);
        }
        if (lane.n_scoring > 0 && (is_turn || n_computed >= lane.chosen_at + lag)) choose_pages_of(id, is_turn);
    }
    const bool is_near = n_computed < lane.n_prompt - 1 ? lane.n_prompt - n_computed <= kWatchedOfPrompt
                                                        : n_computed + kWatchedOfAnswer >= lane.chosen_at + tau;
    const bool is_watched = is_near && outgrows_pool(lane, n_computed);
    if (is_watched != lane.is_watched) config_.residency->scorer->watch(id, is_watched);
    lane.is_watched = is_watched;
}

// What cannot be had stays as it is: the lane goes on with what it sees.
void TextMemory::warn_of_moves(const Error& error) {
    if (has_warned_of_moves_) return;
    log_warn("pages that matter could not all be brought back to the pool: " + error.text + " (said once)");
    has_warned_of_moves_ = true;
}

void TextMemory::ask_for_pages(LaneId id) {
    const double started_s = clock_.now_s();
    Lane& lane = at(id);
    const Result<bool> begun = begin_scoring(id);
    if (!begun) warn_of_moves(begun.error());
    lane.n_scoring = begun && begun.value() ? lane.pages.size() : 0;
    residency_totals_.stall_s += clock_.now_s() - started_s;
}

Result<bool> TextMemory::begin_scoring(LaneId id) {
    PageScorer& scorer = *config_.residency->scorer;
    std::vector<PageKeys> keys;
    for (const LanePage& held : at(id).pages) {
        Page& page = *held.page;
        if (page.keys == nullptr) {
            const Result<Blob> rows = cache_.rows_of(page);
            if (!rows) return rows.error();
            device_.settle();
            cache_.set_keys(page, scorer.keys_of(*rows.value()));
        }
        keys.push_back(page.keys);
    }
    return scorer.begin_scores(id, std::move(keys));
}

// A new turn asks for other things than the one before; within an answer what mattered once stays important, since the
// running maximum keeps more of what is asked for than the newest scores alone.
void TextMemory::choose_pages_of(LaneId id, bool is_turn) {
    const double started_s = clock_.now_s();
    Lane& lane = at(id);
    const std::vector<float> scores = config_.residency->scorer->end_scores(id);
    if (scores.size() == std::exchange(lane.n_scoring, 0)) {
        for (std::size_t i = 0; i < scores.size(); ++i) {
            std::optional<float>& score = lane.pages[i].page->score;
            score = is_turn || !score ? scores[i] : std::max(*score, scores[i]);
        }
        ++residency_totals_.n_choices;
        if (const Result<void> moved = move_pages(id); !moved) warn_of_moves(moved.error());
    }
    residency_totals_.stall_s += clock_.now_s() - started_s;
}

Result<void> TextMemory::move_pages(LaneId id) {
    Lane& lane = at(id);
    const std::int32_t n_free = cache_.n_available_cells() / kPageSize - kHeadroomPages;
    const std::size_t n_most = lane.pages.size() - lane.n_out + static_cast<std::size_t>(std::max(0, n_free));
    const std::vector<bool> chosen = choose_pages(views_of(lane), n_most, config_.residency->rules);
    for (std::size_t i = 0; i < chosen.size(); ++i) {
        if (chosen[i] || !lane.pages[i].is_seen) continue;
        if (Result<void> out = put_out(id, i); !out) return out;
    }
    for (std::size_t i = 0; i < chosen.size(); ++i) {
        if (!chosen[i] || lane.pages[i].is_seen) continue;
        if (Result<void> back = bring_back(id, i); !back) return back;
    }
    return {};
}

std::optional<std::string> TextMemory::check_lanes() const {
    for (const auto& [id, lane] : lanes_) {
        if (!lane) continue;
        std::size_t n_out = 0;
        const Page* page = lane->page;
        for (std::size_t i = lane->pages.size(); i-- > 0; page = page->parent) {
            const LanePage& held = lane->pages[i];
            if (held.page != page) return "a lane's pages are not its text's";
            if (held.is_seen && page->n_lanes == 0) return "a lane sees a page that does not know of it";
            if (!held.is_seen && page->n_out == 0) return "a lane has put out a page that does not know of it";
            n_out += held.is_seen ? 0 : 1;
        }
        if (!page->is_root()) return "a lane's pages do not begin at the text's start";
        if (n_out != lane->n_out) return "a lane miscounts the pages that it does not see";
    }
    return std::nullopt;
}

}  // namespace luce::memory
