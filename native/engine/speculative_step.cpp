// The part of Engine that speculates: what lanes may draft, and what becomes of the drafted tokens of a call.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/step_profile.h"
#include "engine/engine.h"
#include "speculation/trees/draft_tree.h"

namespace luce::engine {
namespace {

constexpr double kWithoutStates_s = 60;  // memory that was short may be there again

}  // namespace

// What prompts have left, up to a half of the call that they share with drafts: these would take all of it.
std::int32_t Engine::n_kept_for_prompts() const {
    const DecoderLimits& limits = decoder_.limits();
    if (limits.separate_prefill) return 0;
    const std::int32_t n_most = std::min(limits.n_ubatch, limits.n_batch) / 2;
    std::int32_t n_kept = 0;
    for (const auto& lane : lanes_) {
        if (lane && lane->is_prefilling() && !lane->is_repair()) n_kept = std::min(n_most, n_kept + lane->n_pending());
    }
    return n_kept;
}

// Drafts never cross the place of a checkpoint, the request's end or the context's end, however many branches they
// have; all tokens of all branches need a cell and a row of logits.
void Engine::propose() {
    if (speculator_ == nullptr) return;
    const Span span(Part::speculate);
    std::vector<Speculator::Candidate> candidates;
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
        if (lanes_[i] && !lanes_[i]->is_prefilling()) {
            candidates.push_back({static_cast<LaneId>(i), lanes_[i]->text(), 0, 0});
        }
    }
    if (candidates.empty()) return;
    const DecoderLimits& limits = decoder_.limits();
    const bool can_go_back = memory_.can_go_back() && clock_.now_s() >= keeps_from_s_;
    const std::int32_t n_back = can_go_back ? speculator_->n_most() : memory_.n_rollback();
    const auto n_lanes = static_cast<std::int32_t>(candidates.size());
    const std::int32_t n_kept = n_kept_for_prompts();
    const std::int32_t n_call = std::min({memory_.n_available_cells(), limits.n_ubatch, limits.n_batch}) - n_kept;
    const std::int32_t n_share = std::min(n_call, limits.n_logits) / n_lanes - 1;
    for (Speculator::Candidate& candidate : candidates) {
        const Generation& g = *at(candidate.lane);
        const std::int32_t n_left = g.request().n_generate - g.n_generated();
        const std::int32_t n_room = config_.n_ctx - g.n_text();
        const std::int32_t n_cut = memory_.n_until_cut(candidate.lane, g.n_computed());
        candidate.n_most = std::max(0, n_share);
        candidate.n_deepest = std::max(0, std::min({n_left - 1, n_room - 1, n_cut - 1, n_back}));
        candidate.ends_with = [this, &g](Token token) {
            // What is no token stands for an image, which no text continues with.
            const bool is_token = token < decoder_.limits().n_vocab;
            return !is_token || g.ends_with(token, decoder_.is_end_of_generation(token));
        };
    }
    if (is_withdrawn_) {
        is_withdrawn_ = false;
        speculator_->withdraw();
        return;
    }
    speculator_->propose(candidates);
}

std::int32_t Engine::n_drafted(LaneId lane) const {
    if (speculator_ == nullptr) return 0;
    return std::max(0, static_cast<std::int32_t>(speculator_->proposed(lane).size()) - 1);
}

Slice Engine::slice_of(const PlannedSlice& planned) {
    const Generation& g = *at(planned.lane);
    if (!planned.is_prefill && planned.n_tokens > 1) {
        Slice drafted{planned.lane, g.n_computed(), speculator_->proposed(planned.lane), planned.n_tokens,
                      speculator_->parents(planned.lane)};
        drafted.rope_shift = g.rope_shift(drafted.begin);
        return drafted;
    }
    const std::int32_t n_least = planned.n_tokens == g.n_pending() ? 1 : 0;
    Slice slice = g.next_slice(planned.lane, planned.n_tokens, n_least);
    slice.is_certain = true;
    if (const std::optional<Position> row = g.next_prompt_row()) {
        const Position first = std::max(slice.begin, *row - 1);  // a token's row is that of the one before it
        slice.n_logits = std::max(n_least, slice.begin + planned.n_tokens - first);
    }
    return slice;
}

// The state of each lane that the call may have to take back further than the model can. Returns whether it is kept.
bool Engine::keep_states(const PlannedCall& call) {
    for (const PlannedSlice& planned : call) {
        if (planned.is_prefill || planned.n_tokens - 1 <= memory_.n_rollback()) continue;
        if (!speculator_->parents(planned.lane).empty()) continue;  // Decoder::keep() takes all of it back
        const Result<void> kept = memory_.keep(planned.lane);
        if (kept) continue;
        log_warn("drafts are shorter for a minute, because states cannot be kept for longer ones: " +
                 kept.error().text);
        keeps_from_s_ = clock_.now_s() + kWithoutStates_s;
        is_withdrawn_ = true;
        return false;
    }
    return true;
}

// The lane as it was before the call. What was right of it is computed again with the token that follows; where none
// does, once the others' rows of logits are no longer needed.
Result<void> Engine::go_back(LaneId lane, std::int32_t n_right, std::optional<StopReason> finished) {
    const double started_s = clock_.now_s();
    n_redone_ += n_right;
    ++n_back_;
    if (finished) ended_short_.push_back({lane, *finished});
    const Result<void> back = memory_.go_back(lane, at(lane)->n_computed());
    at(lane)->go_back();
    going_back_s_ += clock_.now_s() - started_s;
    return back;
}

// Without that call an answer is whole all the same, but its end is not kept. Returns whether the plan still holds: not
// where a device had no memory for it and the pool was made smaller.
bool Engine::finish_short_ones(std::vector<Event>& events) {
    std::optional<Error> shortage;
    for (const auto& [lane, reason] : std::exchange(ended_short_, {})) {
        Generation& g = *at(lane);
        const std::int32_t n = g.n_pending() - 1;  // the last token is nobody's to compute
        const Slice slice = g.next_slice(lane, n, 1);
        release_ended();  // before their logits are overwritten
        const Result<void> decoded = decoder_.decode(std::span(&slice, 1));
        std::span<const float> logits;
        if (decoded) {
            g.mark_computed(n);
            speculator_->follow(lane, g.text(), g.n_computed(), n, 0, true);
            logits = decoder_.logits(0);
            remember(lane, logits, events);
        } else {
            log_warn("the end of an answer is not kept: " + decoded.error().text);
            if (decoded.error().code == ErrorCode::out_of_memory) shortage = decoded.error();
        }
        finish(lane, reason, logits, events);
    }
    return !shortage || !relieve({}, *shortage, events);
}

// Only calls of nothing but decoding lanes say what a step costs. What one of them got right and computes again is
// charged to the step before.
std::optional<speculation::StepCost> Engine::cost_of(const PlannedCall& call, double seconds) {
    if (speculator_ == nullptr) return std::nullopt;
    speculation::StepCost cost;
    bool is_decoding = true, reads_text = false;
    for (const PlannedSlice& planned : call) {
        is_decoding = is_decoding && !planned.is_prefill;
        reads_text = reads_text || (planned.is_prefill && !at(planned.lane)->is_redoing());
        ++cost.n_lanes;
        cost.n_tokens += planned.n_tokens;
        cost.n_longest = std::max(cost.n_longest, at(planned.lane)->n_text());
        cost.has_branches = cost.has_branches || !speculator_->parents(planned.lane).empty();
    }
    cost.seconds = seconds;
    cost.is_first = decoder_.was_first();
    cost.follows_prompt = std::exchange(has_read_prompt_, reads_text);
    if (!is_decoding) return std::nullopt;
    return cost;
}

void Engine::count(const Speculation& step, Generation& g) {
    g.count(step);
    *totals_.speculation += step;
}

void Engine::measure(std::optional<speculation::StepCost> cost) {
    const std::int32_t n_redone = std::exchange(n_redone_, 0), n_back = std::exchange(n_back_, 0);
    const std::int32_t n_matched = std::exchange(n_matched_, 0);
    const double going_back_s = std::exchange(going_back_s_, 0.0);
    if (!cost) return;
    cost->n_redone = n_redone;
    cost->n_back = n_back;
    cost->n_right = n_matched;
    cost->seconds += going_back_s;
    speculator_->measured(*cost);
}

// One token after the other is sampled as if it had been decoded alone, as long as the draft has foreseen it.
void Engine::verify(const CalledSlice& called, std::vector<Event>& events) {
    const LaneId lane = called.planned.lane;
    Generation& g = *at(lane);
    const auto tree = speculation::DraftTree::of(called.tokens, called.parents);
    std::vector<std::int32_t> path = {0};
    std::optional<StopReason> finished;
    std::optional<Error> failed;
    while (true) {
        const auto node = static_cast<std::size_t>(path.back());
        const Result<Token> sampled = sample(called.row + node, lane, events);
        if (!sampled) {
            failed = sampled.error();
            break;
        }
        finished = g.finish_after(sampled.value(), decoder_.is_end_of_generation(sampled.value()), config_.n_ctx);
        const auto next = tree.child(node, sampled.value());
        if (finished || !next) break;
        path.push_back(static_cast<std::int32_t>(*next));
    }
    const auto n_kept = static_cast<std::int32_t>(path.size());
    const std::int32_t n_matched = n_kept - 1;
    n_matched_ += n_matched;
    const bool goes_back = called.parents.empty() && called.planned.n_tokens - n_kept > memory_.n_rollback();
    if (!goes_back) g.mark_computed(n_kept);
    if (speculator_ != nullptr) {
        const auto n_got = static_cast<std::size_t>(failed ? n_matched : n_kept);
        const std::int32_t n_seen = finished || failed ? n_matched : called.planned.n_tokens - 1;
        const Speculation step = speculator_->judged(lane, g.text().last(n_got), n_matched, n_seen, called.seconds);
        count(step, g);
    }
    if (goes_back && !failed) {
        if (const Result<void> back = go_back(lane, n_kept, finished); !back) fail(lane, back.error(), events);
        return;
    }
    if (!goes_back) {
        if (const Result<void> taken_back = take_back(called, path); !taken_back) failed = taken_back.error();
    }
    if (failed) {
        fail(lane, *failed, events);
        return;
    }
    const std::span<const std::int32_t> offsets = called.parents.empty() ? std::span<const std::int32_t>() : path;
    if (speculator_ != nullptr) {
        speculator_->follow(lane, g.text(), g.n_computed(), n_kept, {called.batch_row, offsets}, true);
    }
    const std::span<const float> logits = decoder_.logits(called.row + static_cast<std::size_t>(path.back()));
    remember(lane, logits, events);
    if (finished) finish(lane, *finished, logits, events);
}

// What was computed beside the path was none of the text.
Result<void> Engine::take_back(const CalledSlice& called, std::span<const std::int32_t> path) {
    if (!called.parents.empty()) return decoder_.keep(called.planned.lane, path);
    if (path.size() == called.tokens.size()) return {};
    return memory_.drop(called.planned.lane, at(called.planned.lane)->n_computed());
}

}  // namespace luce::engine
