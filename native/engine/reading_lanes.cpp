// The part of Engine that prompts have which are read in parts: when they wait for a lane, and the repair of what they
// left behind: the whole text is read in a lane that nobody wants, as an ordinary prompt without an answer. It is a
// text of its own to memory, so that the next turn of the conversation finds it in place of the parts.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "base/log.h"
#include "engine/engine.h"

namespace luce::engine {
namespace {

// Of the time of lanes that answer: they get slower by no more than this.
constexpr double kRepairShare = 0.04;

}  // namespace

void Engine::take_decided(std::vector<Event>& events) {
    for (WaitingRequest& waiting : readings_.advance()) {
        Request& request = waiting.request;
        if (request.compresses) {
            if (request.reading_error) {
                events.emplace_back(FailedEvent{request.key, *request.reading_error});
            } else {
                events.emplace_back(ChosenEvent{request.key, request.sparse});
            }
        } else if (const Result<void> fits = check_length(request); !fits) {
            events.emplace_back(FailedEvent{request.key, fits.error()});
        } else {
            if (request.sparse) readings_.note_begun(*request.sparse);
            admission_.push(std::move(waiting));
        }
    }
}

// What a request that read parts leaves behind: which, for its next turn, and its whole text, to be read.
void Engine::note_read(const Generation& g) {
    const prefill::SparseText& sparse = *g.request().sparse;
    Tokens text = sparse.prompt();
    const std::int32_t n_answer = g.n_computed() - g.n_prompt();
    if (n_answer > 0) {
        const auto answer =
            g.text().subspan(static_cast<std::size_t>(g.n_prompt()), static_cast<std::size_t>(n_answer));
        text.insert(text.end(), answer.begin(), answer.end());
    }
    const bool is_known = g.request().memory.reuse.value_or(true) && !memory_.refusal();
    if (config_.repairs && is_known && static_cast<std::int32_t>(text.size()) <= config_.n_ctx) {
        Repair repair{text, g.request().whole_memory};
        repair.memory.reuse = true;
        // Templates show an answer otherwise than it was written.
        repair.memory.marks.push_back(static_cast<Position>(sparse.prompt().size()));
        repairs_.add(std::move(repair));
    }
    std::vector<PositionSpan> parts = sparse.parts();
    parts.back().end = static_cast<Position>(text.size());
    const auto n_prompt = static_cast<Position>(sparse.prompt().size());
    readings_.note_read(std::move(text), n_prompt, std::move(parts), g.request().reading.share);
}

bool Engine::can_begin_repair() const {
    return !repairs_.is_empty() && !is_repair_paused_ && !lanes_.find_repair() && lanes_.find_free() &&
           admission_.is_empty() && readings_.is_empty() && admission_.is_open();
}

void Engine::begin_repair(std::vector<Event>& events) {
    WaitingRequest waiting;
    waiting.request.key = kRepairKey;
    Repair repair = repairs_.take();
    waiting.request.prompt = std::move(repair.text);
    waiting.request.memory = std::move(repair.memory);
    waiting.request.priority = std::numeric_limits<std::int32_t>::min();
    begin(*lanes_.find_free(), std::move(waiting), events);
}

// It goes on later from where it is.
void Engine::stop_repair(bool is_sound) {
    const LaneId lane = *lanes_.find_repair();
    repairs_.add({at(lane)->request().prompt, at(lane)->request().memory});
    release(lane, {}, is_sound);
}

void Engine::forget_readings() {
    if (lanes_.find_repair()) stop_repair();
    repairs_.clear();
    readings_.forget();
}

void Engine::pause_repairs(bool is_paused) {
    is_repair_paused_ = is_paused;
    if (is_paused && lanes_.find_repair()) stop_repair();
}

// Whether it may take part in the next step, and with how many tokens: beside lanes that answer no more than their
// credit pays for, in a call of its own.
bool Engine::allow_repair(LaneView& view) const {
    if (readings_.wants_step()) return false;
    const auto computes = [](const auto& lane) { return lane && !lane->is_repair() && !is_waiting(*lane); };
    if (std::none_of(lanes_.begin(), lanes_.end(), computes)) return true;
    if (sizer_.token_price_s() <= 0) return false;
    const double n_paid = (repair_credit_s_ - sizer_.call_price_s()) / sizer_.token_price_s();
    if (n_paid < SliceSizer::kMinTokens) return false;
    view.n_slice = static_cast<std::int32_t>(std::min(std::floor(n_paid), static_cast<double>(view.n_slice)));
    return true;
}

void Engine::spend_on_repair(const PlannedCall& call, double seconds) {
    std::int32_t n_tokens = 0;
    for (const PlannedSlice& slice : call) n_tokens += at(slice.lane)->is_repair() ? slice.n_tokens : 0;
    if (lanes_.n_requests() == 0) {
        repair_credit_s_ = 0;
    } else if (n_tokens == 0) {
        if (lanes_.has_decoding()) repair_credit_s_ += kRepairShare * seconds;
    } else {
        const double share_s = sizer_.call_price_s() + n_tokens * sizer_.token_price_s();
        repair_credit_s_ -= call.size() == 1 ? seconds : std::min(seconds, share_s);
    }
}

void Engine::hide_repair(std::vector<Event>& events) {
    std::erase_if(events, [](const Event& event) {
        const auto* finished = std::get_if<FinishedEvent>(&event);
        const auto* failed = std::get_if<FailedEvent>(&event);
        const auto* progress = std::get_if<PrefillEvent>(&event);
        return (finished && finished->key == kRepairKey) || (failed && failed->key == kRepairKey) ||
               (progress && progress->key == kRepairKey);
    });
}

}  // namespace luce::engine
