#include "memory/manager/page_selector.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/log.h"
#include "memory/residency/page_scorer.h"

namespace luce::memory {
namespace {

// Queries are noted of the tokens before a choice: of a prompt's end as far as one slice reaches back, since a slice is
// not cut for it. Of an answer fewer than the scorer looks at, since a computation whose queries are noted costs more:
// the last ones, and one of so many before, so that nothing that an answer speaks of for a while goes unheard.
constexpr Position kWatchedOfPrompt = 2048;
constexpr Position kWatchedOfAnswer = 4;
constexpr Position kWatchedOneIn = 8;

// Pages that stay free when a choice is made, for what is written until the next one.
constexpr std::int32_t kHeadroomPages = 2;

// Tokens that are written while scores are found beside them.
constexpr Position kLag = 16;

// What an answer's choice may bring back, in all and with each computation.
constexpr std::size_t kPlanBytes = std::size_t{64} << 20;

constexpr Position kNever = std::numeric_limits<Position>::max();

}  // namespace

bool PageSelector::outgrows_pool(const Lane& lane, Position n_computed) const {
    return lane.n_out > 0 || lane.n_prompt - n_computed > cache_.n_available_cells();
}

// Whether the prompt's end is still to say which pages matter.
bool PageSelector::awaits_choice(const Lane& lane, Position n_computed) const {
    return uses_scores() && lane.chosen_at < lane.n_prompt - 1 && outgrows_pool(lane, n_computed);
}

// A prompt's last token is computed with the pages that its end has chosen.
Position PageSelector::next_choice(const Lane& lane, Position n_computed) const {
    return n_computed < lane.n_prompt - 1 && awaits_choice(lane, n_computed) ? lane.n_prompt - 1 : kNever;
}

// Whether it is time to choose, and whether the next computation's queries will be asked for. At a turn's prefix the
// next token waits for the choice. Later, where the processor is not what computes, scores are found beside the next
// few tokens: always as many of them, so that the text does not depend on how fast that goes.
void PageSelector::advance(LaneId id, std::span<const Token> text, Position n_computed) {
    Lane& lane = lanes_.at(id);
    if (!uses_scores() || !has_cells(device_) || lane.is_lost) return;
    make_next_move(id);
    const Position tau = residency_->rules.tau;
    const Position lag = device_.traits().is_host_memory ? 0 : std::min(kLag, tau / 2);
    const bool is_turn = lane.chosen_at < lane.n_prompt - 1;
    if (n_computed >= lane.n_prompt - 1) {
        if (lane.n_out == 0 && lane.n_scoring == 0) {
            lane.chosen_at = n_computed;
        } else if (lane.n_scoring == 0 && (is_turn || n_computed >= lane.chosen_at + tau)) {
            lane.chosen_at = n_computed;
            ask_for_pages(id, text);
        }
        if (lane.n_scoring > 0 && (is_turn || n_computed >= lane.chosen_at + lag)) choose_pages_of(id, is_turn);
    }
    const bool is_answer = n_computed >= lane.n_prompt - 1;
    const bool is_near = is_answer ? n_computed + kWatchedOfAnswer >= lane.chosen_at + tau
                                   : lane.n_prompt - n_computed <= kWatchedOfPrompt;
    const bool is_heard = is_near || (is_answer && n_computed % kWatchedOneIn == 0);
    const bool outgrows = outgrows_pool(lane, n_computed);
    if (outgrows) {
        const double started_s = clock_.now_s();
        residency_->scorer->read(id, text.first(static_cast<std::size_t>(n_computed)));
        pool_.totals().stall_s += clock_.now_s() - started_s;
    }
    const bool is_watched = is_heard && outgrows;
    if (is_watched != lane.is_watched) residency_->scorer->watch(id, is_watched);
    lane.is_watched = is_watched;
}

// What cannot be had stays as it is: the lane goes on with what it sees.
void PageSelector::warn_of_moves(const Error& error) {
    if (has_warned_of_moves_) return;
    log_warn("pages that matter could not all be brought back to the pool: " + error.text + " (said once)");
    has_warned_of_moves_ = true;
}

void PageSelector::ask_for_pages(LaneId id, std::span<const Token> text) {
    const double started_s = clock_.now_s();
    Lane& lane = lanes_.at(id);
    const Result<bool> scoring = begin_scoring(id, text);
    if (!scoring) warn_of_moves(scoring.error());
    lane.n_scoring = scoring && scoring.value() ? lane.pages.size() : 0;
    pool_.totals().stall_s += clock_.now_s() - started_s;
}

Result<bool> PageSelector::begin_scoring(LaneId id, std::span<const Token> text) {
    PageScorer& scorer = *residency_->scorer;
    std::vector<PageKeys> keys;
    for (const LanePage& held : lanes_.at(id).pages) {
        Page& page = *held.page;
        if (page.keys == nullptr && scorer.needs_keys()) {
            const Result<Blob> rows = cache_.rows_of(page);
            if (!rows) return rows.error();
            device_.settle();
            cache_.set_keys(page, scorer.keys_of(*rows.value()));
        }
        keys.push_back(scorer.needs_keys() ? page.keys : nullptr);
    }
    return scorer.begin_scores(id, text, std::move(keys));
}

// A new turn asks for other things than the one before; within an answer what mattered once stays important, since the
// running maximum keeps more of what is asked for than the newest scores alone.
void PageSelector::choose_pages_of(LaneId id, bool is_turn) {
    const double started_s = clock_.now_s();
    Lane& lane = lanes_.at(id);
    const std::vector<float> scores = residency_->scorer->end_scores(id);
    if (scores.size() == std::exchange(lane.n_scoring, 0)) {
        for (std::size_t i = 0; i < scores.size(); ++i) {
            std::optional<float>& score = lane.pages[i].page->score;
            score = is_turn || !score ? scores[i] : std::max(*score, scores[i]);
        }
        plan_moves_of(id, is_turn);
        if (is_turn) make_all_moves(id);
    }
    pool_.totals().stall_s += clock_.now_s() - started_s;
}

// Within an answer no more than what can come page by page until the next choice; what is left out then will be wanted
// again, if it still matters.
void PageSelector::plan_moves_of(LaneId id, bool is_turn) {
    Lane& lane = lanes_.at(id);
    // Without room for a page what is written next would push out the one that is on its way.
    std::int32_t n_free = cache_.n_available_cells() / kPageSize - kHeadroomPages;
    for (; n_free < 1 - kHeadroomPages; ++n_free) {
        const Result<bool> yielded = pool_.offload_one();
        if (!yielded) warn_of_moves(yielded.error());
        if (!yielded || !yielded.value()) break;
    }
    const std::size_t n_seen = lane.pages.size() - lane.n_out + static_cast<std::size_t>(std::max(0, n_free));
    const std::vector<PageView> views = pool_.views_of(lane);
    const std::vector<bool> chosen = choose_pages(views, n_seen, residency_->rules);
    const auto tau = static_cast<std::size_t>(residency_->rules.tau);
    const std::size_t n_most =
        is_turn ? views.size() : std::clamp<std::size_t>(kPlanBytes / cache_.page_bytes(), 1, (tau + 1) / 2);
    const std::vector<PageMove> moves = plan_moves(views, chosen, n_most);
    lane.moves.assign(moves.begin(), moves.end());
    ++pool_.totals().n_choices;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
        pool_.totals().n_wanted += chosen[i] ? 1 : 0;
        pool_.totals().n_found += chosen[i] && views[i].is_seen ? 1 : 0;
    }
}

// All that go first, so that those that come do so side by side.
void PageSelector::make_all_moves(LaneId id) {
    Lane& lane = lanes_.at(id);
    const auto make = [&]() -> Result<void> {
        for (const PageMove& move : lane.moves) {
            if (!move.out) continue;
            if (Result<void> out = pool_.offload(id, *move.out); !out) return out;
        }
        for (const PageMove& move : lane.moves) {
            if (Result<void> placed = pool_.place(*lane.pages[move.in].page); !placed) return placed;
        }
        for (const PageMove& move : lane.moves) {
            if (Result<void> back = pool_.load(id, move.in); !back) return back;
        }
        return {};
    };
    if (const Result<void> made = make(); !made) {
        ++pool_.totals().n_unmade;
        warn_of_moves(made.error());
    }
    lane.moves.clear();
}

// With each computation one page: it is on its way beside the next one, and seen from then on.
void PageSelector::make_next_move(LaneId id) {
    Lane& lane = lanes_.at(id);
    if (!lane.arriving && lane.moves.empty()) return;
    const double started_s = clock_.now_s();
    const auto make = [&]() -> Result<void> {
        if (const auto in = std::exchange(lane.arriving, std::nullopt); in && !lane.pages[*in].is_seen) {
            if (Result<void> back = pool_.load(id, *in); !back) return back;
        }
        if (lane.moves.empty()) return {};
        const PageMove move = lane.moves.front();
        lane.moves.pop_front();
        if (move.out) {
            if (!lane.pages[*move.out].is_seen) return {};  // its room has gone to what was written
            if (Result<void> out = pool_.offload(id, *move.out); !out) return out;
        }
        lane.arriving = move.in;
        return pool_.place(*lane.pages[move.in].page);
    };
    if (const Result<void> made = make(); !made) {
        ++pool_.totals().n_unmade;
        warn_of_moves(made.error());
        lane.moves.clear();
        lane.arriving.reset();
    }
    pool_.totals().stall_s += clock_.now_s() - started_s;
}

}  // namespace luce::memory
