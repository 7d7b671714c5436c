#include "engine/engine.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/step_profile.h"

namespace luce::engine {
namespace {

constexpr std::size_t kIdleBytes = std::size_t{4} << 20;  // copied at once; a request that comes meanwhile waits for it

// Of logits, as Decoder::decode() leaves them.
std::size_t n_rows(const Slice& slice) { return static_cast<std::size_t>(std::max(1, slice.n_logits)); }
SpanCounts counts_of(std::span<const PlannedCall> calls) {
    SpanCounts lanes_and_tokens{};
    for (const PlannedCall& call : calls) {
        lanes_and_tokens[0] += static_cast<std::int64_t>(call.size());
        for (const PlannedSlice& slice : call) lanes_and_tokens[1] += slice.n_tokens;
    }
    return lanes_and_tokens;
}

}  // namespace

Engine::Engine(Decoder& decoder, SamplerFactory& samplers, memory::KvCacheManager& memory, const Clock& clock,
               const EngineConfig& config, Speculator* speculator)
    : decoder_(decoder),
      samplers_(samplers),
      memory_(memory),
      clock_(clock),
      speculator_(speculator),
      config_(config),
      sizer_(std::min(decoder.limits().n_ubatch, decoder.limits().n_batch), decoder.limits().waits_for_device ? 2 : 1),
      lanes_(config.n_lanes),
      admission_(lanes_, memory, decoder, config.n_queue),
      relief_(config.pool_relief, decoder, memory, admission_),
      readings_(memory, config.scorer, decoder.limits().n_vocab, config.n_ctx) {
    assert(decoder.limits().n_pool >= config.n_ctx || memory.is_bounded());
    if (speculator != nullptr) totals_.speculation.emplace();
}

std::vector<Event> Engine::compute_step() {
    assert(ended_.empty());
    Span whole(Part::step);
    std::vector<Event> events;
    take_decided(events);
    admit(events);
    if (can_begin_repair()) begin_repair(events);
    release_ended();  // those that were known to their end are not in the plan
    fail_images(events);
    if (n_busy() > 0) {
        copy_beside_lanes();
        propose();
        const StepPlan step_plan = plan();
        for (const LaneId lane : step_plan.suspend) suspend(lane);
        whole.count(counts_of(step_plan.calls));
        for (const PlannedCall& call : step_plan.calls) {
            if (!run_call(call, events)) break;
        }
        // A draft that lacks memory drafts no more, and a scorer says nothing: requests need neither, but are the
        // poorer for it.
        if (const std::optional<Error> shortage = relief_.take_shortage()) relieve({}, *shortage, events);
    }
    hide_repair(events);
    return events;
}

void Engine::release_ended() {
    for (const EndedLane& ended : std::exchange(ended_, {})) release(ended.lane, ended.logits, true);
}

// Of what earlier steps left, so that this one's tokens do not wait for it.
void Engine::copy_beside_lanes() {
    double now_s = clock_.now_s();
    copy_budget_.begin_step(now_s);
    if (!copy_budget_.has_time() || !memory_.has_to_copy(false)) return;
    const Span span(Part::write_back);
    while (copy_budget_.has_time()) {
        const std::size_t n_bytes = memory_.copy_next(false);
        const double begun_s = std::exchange(now_s, clock_.now_s());
        copy_budget_.spend(now_s - begun_s, n_bytes);
        if (n_bytes == 0) return;
    }
}

void Engine::use_idle_time() {
    const Span span(Part::write_back);
    copy_budget_.rest();
    std::size_t n_copied = 0;
    while (n_copied < kIdleBytes) {
        const std::size_t n_bytes = memory_.copy_next(true);
        if (n_bytes == 0) break;
        n_copied += n_bytes;
    }
    if (n_copied == 0 && decoder_.has_idle_work()) decoder_.use_idle_time();
}

void Engine::admit(std::vector<Event>& events) {
    if (!admission_.is_open()) return;
    const Span span(Part::admit);
    take_waiting(events);
    // Nobody waits for a repair.
    if (!lanes_.find_repair() || !admission_.wants_step()) return;
    stop_repair();
    take_waiting(events);
}

void Engine::take_waiting(std::vector<Event>& events) {
    while (const std::optional<LaneId> lane = admission_.resume_next()) {
        want_images(*lane);
        if (speculator_ != nullptr) speculator_->begin(*lane, at(*lane)->text(), at(*lane)->n_computed());
    }
    while (std::optional<Admission::Admitted> next = admission_.take_next()) {
        begin(next->lane, std::move(next->waiting), events);
    }
}

void Engine::begin(LaneId lane, WaitingRequest waiting, std::vector<Event>& events) {
    const std::shared_ptr<memory::KvCacheManager::Fetch> fetch = std::move(waiting.fetch);
    const bool generates = waiting.request.n_generate > 0;
    at(lane) = std::make_unique<Generation>(std::move(waiting.request), std::move(waiting.sampler), n_arrivals_++,
                                            clock_.now_s());
    Generation& g = *at(lane);
    const Result<memory::PrefillStart> start =
        memory_.begin(lane, g.names(), g.request().memory, generates, fetch.get());
    if (!start) {
        events.emplace_back(FailedEvent{g.request().key, start.error()});
        forget(lane);
        at(lane).reset();
        return;
    }
    g.begin(start.value());
    g.n_read_before = n_read_;
    want_images(lane);
    if (speculator_ != nullptr) speculator_->begin(lane, g.text(), g.n_computed());
    if (!g.is_repair()) totals_.n_reused_tokens += static_cast<std::uint64_t>(g.n_computed());
    const memory::CheckpointBlob& known = start.value().logits;
    const std::span<const float> logits = known ? std::span<const float>(known->logits) : std::span<const float>{};
    if (g.n_computed() > 0) remember(lane, logits, events);
    if (g.n_pending() > 0) return;
    // All of the prompt is known, and with it what comes next.
    if (!generates) {
        finish(lane, StopReason::limit, logits, events);
        release_ended();  // while `known` holds the logits
        return;
    }
    if (const Result<void> recalled = decoder_.recall(logits); !recalled) {
        fail(lane, recalled.error(), events);
        return;
    }
    sample_first(0, lane, events);
}

void Engine::suspend(LaneId lane, bool is_sound) {
    if (at(lane)->is_repair()) {
        stop_repair(is_sound);
        return;
    }
    admission_.suspend(lane, is_sound);
    forget(lane);
    ++totals_.n_suspensions;
}

// Whether the call has been dealt with: its requests go on, or have failed.
bool Engine::relieve(const PlannedCall& call, const Error& why, std::vector<Event>& events) {
    release_ended();
    if (!relief_.can_help()) return false;
    const auto is_called = [&](LaneId lane) {
        return std::any_of(call.begin(), call.end(), [&](const PlannedSlice& planned) { return planned.lane == lane; });
    };
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
        const auto lane = static_cast<LaneId>(i);
        if (lanes_[i]) suspend(lane, !is_called(lane));
    }
    if (!relief_.relieve(why, events)) n_failed_calls_ = kMaxFailedCalls;
    return true;
}

LaneView Engine::view_of(LaneId lane, bool is_tight) const {
    const Generation& g = *lanes_[static_cast<std::size_t>(lane)];
    LaneView view;
    view.lane = lane;
    view.n_cells = is_tight ? memory_.n_private_cells(lane, g.n_computed()) : 0;
    view.n_pending = g.n_pending();
    view.n_slice = n_slice_most(lane);
    // An image's rows and tokens are no one call's; log-probabilities are to be the same whatever runs beside them, and
    // however long calls take.
    view.is_alone = g.next_prompt_row().has_value();
    view.is_untimed = view.is_alone && n_before_rows(g) == 0;
    if (const ImageRun* image = g.image_at(g.n_computed())) {
        view.is_alone = true;
        view.is_whole = image->sees_all;
        view.is_waiting = !image->rows->is_done();
    }
    view.n_draft = n_drafted(lane);
    view.is_prefilling = g.is_prefilling();
    view.priority = g.request().priority;
    view.arrival = g.arrival();
    view.due = g.n_read_before + static_cast<std::uint64_t>(g.n_pending());
    return view;
}

StepPlan Engine::plan() const {
    const Span span(Part::plan);
    // With room for everybody's next token nobody has to be suspended, and it does not matter what that would free.
    const bool is_tight = memory_.refusal() || memory_.n_available_cells() < n_busy();
    std::vector<LaneView> views;
    std::int32_t n_private = 0;
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
        if (!lanes_[i]) continue;
        LaneView view = view_of(static_cast<LaneId>(i), is_tight);
        if (lanes_[i]->is_repair() && !allow_repair(view)) continue;
        views.push_back(view);
        n_private += view.n_cells;
    }
    const DecoderLimits& limits = decoder_.limits();
    StepBudget budget;
    budget.n_pool = memory_.refusal() ? limits.n_pool : memory_.n_available_cells() + n_private;
    // Who comes while only a repair is read waits no longer than lanes that answer.
    budget.n_prefill = sizer_.next(lanes_.has_decoding() || lanes_.n_requests() == 0);
    budget.n_call = std::min(limits.n_ubatch, limits.n_batch);
    budget.separate_prefill = limits.separate_prefill;
    budget.n_stages = limits.n_stages;
    return plan_step(views, budget);
}

// Returns whether the plan still holds: not when lanes had to be suspended or have failed.
bool Engine::run_call(const PlannedCall& call, std::vector<Event>& events) {
    release_ended();  // of the call before: this one takes its logits' place
    std::vector<Slice> slices;
    slices.reserve(call.size());
    std::int32_t n_tokens = 0;
    bool has_drafts = false;
    for (const PlannedSlice& planned : call) {
        slices.push_back(slice_of(planned));
        n_tokens += planned.n_tokens;
        has_drafts = has_drafts || (!planned.is_prefill && planned.n_tokens > 1);
    }
    if (is_under_way_ && lanes_.has_decoding()) {
        decoder_.wait();
        is_under_way_ = false;
    }
    const bool follows = std::exchange(is_under_way_, false);
    const double started_s = clock_.now_s();
    Span room(Part::make_room, {n_tokens});
    if (!keep_states(call)) return false;
    Result<void> decoded = memory_.make_room(n_tokens);
    room.end();
    if (decoded) {
        decoded = decoder_.decode(slices, [this] {
            if (speculator_ != nullptr && decoder_.limits().waits_for_device) speculator_->overlapped();
        });
    }
    if (decoded) {
        n_failed_calls_ = 0;
        is_under_way_ = may_run_on(slices);
        if (!is_under_way_) decoder_.wait();
        // Of slices that follow one another each waits for the one before: that takes as long as computing one. Of the
        // first and the last the time says nothing.
        return after_call(call, slices, clock_.now_s() - started_s, follows == is_under_way_, events);
    }
    // By our accounts it fits, the device disagrees (a sliding window's cells, say): make room and plan anew.
    if (decoded.error().code == ErrorCode::no_room && (has_drafts || n_busy() > 1)) {
        if (has_drafts) {
            is_withdrawn_ = true;
        } else {
            suspend(lanes_.lowest_ranked());
            admission_.note_crowded();
        }
        return false;
    }
    if (decoded.error().code == ErrorCode::out_of_memory && relieve(call, decoded.error(), events)) return false;
    // What does not fit is the request's own failure: the device has done nothing wrong.
    if (decoded.error().code != ErrorCode::no_room) ++n_failed_calls_;
    log_error("decoding failed: " + decoded.error().text);
    for (const PlannedSlice& planned : call) fail(planned.lane, decoded.error(), events);
    return false;
}

// While only prompts are read, the next slice is made ready beside this one's computation. Decoding lanes are not kept
// waiting by what they do not see, and drafters read what was computed.
bool Engine::may_run_on(std::span<const Slice> slices) const {
    const bool wants_logits =
        std::any_of(slices.begin(), slices.end(), [](const Slice& slice) { return slice.n_logits > 0; });
    const bool has_readers = speculator_ != nullptr && speculator_->has_models();
    return decoder_.limits().waits_for_device && !wants_logits && !has_readers && !lanes_.has_decoding();
}

bool Engine::after_call(const PlannedCall& call, std::span<const Slice> slices, double seconds, bool is_timed,
                        std::vector<Event>& events) {
    std::int32_t n_tokens = 0;
    bool has_prefill = false;
    for (const PlannedSlice& planned : call) {
        n_tokens += planned.n_tokens;
        has_prefill = has_prefill || planned.is_prefill;
    }
    if (has_prefill) sizer_.observe(n_tokens, is_timed ? seconds : 0);
    spend_on_repair(call, seconds);
    const std::optional<speculation::StepCost> cost = cost_of(call, seconds);
    choose_ahead(call, slices);
    CalledSlice called;
    called.seconds = seconds / static_cast<double>(call.size());
    for (std::size_t i = 0; i < call.size(); ++i) {
        called.planned = call[i];
        called.tokens = slices[i].tokens;
        called.parents = slices[i].parents;
        called.n_logits = slices[i].n_logits;
        const auto first_token = static_cast<std::size_t>(called.batch_row);
        if (slices[i].n_logits > 0) {
            at(called.planned.lane)->count(decoder_.expert_reads(first_token, called.tokens.size()));
        }
        if (called.planned.is_prefill) {
            advance(called, events);
        } else {
            verify(called, events);
        }
        called.row += n_rows(slices[i]);
        called.batch_row += called.planned.n_tokens;
    }
    measure(cost);
    return finish_short_ones(events);
}

// Each lane's first token of the call is certain to be sampled from its slice's first row, or from the last one of a
// prompt; how many follow in a draft is known only then.
void Engine::choose_ahead(const PlannedCall& call, std::span<const Slice> slices) {
    std::vector<PendingSample> pending;
    std::size_t row = 0;
    for (std::size_t i = 0; i < call.size(); ++i) {
        Generation& g = *at(call[i].lane);
        const std::size_t first = row;
        row += n_rows(slices[i]);
        if (slices[i].n_logits == 0 || g.request().n_generate == 0) continue;
        if (!call[i].is_prefill) {
            pending.push_back({&g.sampler(), first});
        } else if (call[i].n_tokens == g.n_pending()) {
            pending.push_back({&g.sampler(), row - 1});
        }
    }
    const Span span(Part::choose, {static_cast<std::int64_t>(pending.size())});
    samplers_.choose_ahead(pending);
}

void Engine::advance(const CalledSlice& called, std::vector<Event>& events) {
    const LaneId lane = called.planned.lane;
    Generation& g = *at(lane);
    tell_prompt_rows(called, events);
    g.mark_computed(called.planned.n_tokens);
    n_read_ += static_cast<std::uint64_t>(called.planned.n_tokens);
    if (!g.is_redoing()) {
        (g.is_repair() ? totals_.n_repaired_tokens : totals_.n_prompt_tokens) +=
            static_cast<std::uint64_t>(called.planned.n_tokens);
    }
    if (g.n_generated() == 0) events.emplace_back(PrefillEvent{g.request().key, g.n_computed(), g.n_prompt()});
    if (speculator_ != nullptr) {
        speculator_->follow(lane, g.text(), g.n_computed(), called.planned.n_tokens, called.batch_row,
                            g.n_generated() > 0);
    }
    const bool reaches_end = g.n_pending() == 0;
    const std::size_t last_row = called.row + static_cast<std::size_t>(std::max(1, called.n_logits)) - 1;
    const std::span<const float> logits = reaches_end ? decoder_.logits(last_row) : std::span<const float>{};
    remember(lane, logits, events);
    if (!reaches_end) return;
    if (g.request().n_generate == 0) {
        finish(lane, StopReason::limit, logits, events);
    } else {
        sample_first(last_row, lane, events);
    }
}

void Engine::remember(LaneId lane, std::span<const float> logits, std::vector<Event>& events) {
    const Span span(Part::remember, {static_cast<std::int64_t>(lane)});
    const Generation& g = *at(lane);
    for (memory::SnapshotOutcome& outcome : memory_.advance(lane, g.names(), g.n_computed(), logits)) {
        events.emplace_back(SnapshotEvent{g.request().key, std::move(outcome)});
    }
}

// The lane's next token, reported and appended to its text.
Result<Token> Engine::sample(std::size_t row, LaneId lane, std::vector<Event>& events) {
    const Span span(Part::sample, {static_cast<std::int64_t>(lane)});
    Generation& g = *at(lane);
    Result<Token> sampled = g.sampler().sample(row);
    if (!sampled) return sampled;
    const Token token = sampled.value();
    TokenEvent event{g.request().key, token, g.n_generated(), {}};
    if (g.request().n_logprobs > 0) event.logprobs = g.sampler().logprobs(row, token, g.request().n_logprobs);
    events.push_back(std::move(event));
    g.append(token, clock_.now_s());
    ++totals_.n_generated_tokens;
    return token;
}

// The token after a prompt, or after what had to be computed again: a step of the answer like any other then.
void Engine::sample_first(std::size_t row, LaneId lane, std::vector<Event>& events) {
    Generation& g = *at(lane);
    const bool is_step = speculator_ != nullptr && g.n_generated() > 0;
    const Result<Token> sampled = sample(row, lane, events);
    if (!sampled) {
        fail(lane, sampled.error(), events);
        return;
    }
    if (is_step) count({.n_steps = 1}, g);
    if (const auto reason =
            g.finish_after(sampled.value(), decoder_.is_end_of_generation(sampled.value()), config_.n_ctx)) {
        finish(lane, *reason, decoder_.logits(row), events);
    }
}

void Engine::finish(LaneId lane, StopReason reason, std::span<const float> logits, std::vector<Event>& events) {
    events.push_back(FinishedEvent{at(lane)->request().key, at(lane)->stats(reason, clock_.now_s())});
    ended_.push_back({lane, logits});
}

void Engine::fail(LaneId lane, const Error& error, std::vector<Event>& events) {
    events.push_back(FailedEvent{at(lane)->request().key, error});
    release(lane, {}, false);
}

void Engine::release(LaneId lane, std::span<const float> logits, bool is_valid) {
    Span span(Part::remember, {static_cast<std::int64_t>(lane)});
    const Generation& g = *at(lane);
    if (speculator_ != nullptr) {
        const auto n_prompt = static_cast<std::int32_t>(g.request().prompt.size());
        speculator_->end(lane, g.text(), g.n_computed(), g.n_computed() - n_prompt);
    }
    memory_.end(lane, static_cast<std::uint64_t>(g.request().key), g.names(), g.n_computed(), logits, is_valid);
    if (is_valid && g.request().sparse != nullptr) note_read(g);
    span.end();
    forget(lane);
    at(lane).reset();
    admission_.note_ended();
}

// What memory has let go of already is not searched for again.
void Engine::forget(LaneId lane) {
    if (memory_.refusal()) decoder_.forget(lane);
    if (speculator_ != nullptr) speculator_->forget(lane);
}

Result<Position> Engine::snapshot(std::int32_t slot, RequestKey of) {
    memory::SnapshotSlots& snapshots = memory_.snapshots();
    const std::optional<LaneId> lane = lanes_.find(of);
    if (!lane) return snapshots.snapshot_ended(slot, static_cast<std::uint64_t>(of));
    const Generation& g = *at(*lane);
    return snapshots.snapshot_lane(slot, *lane, g.names(), g.n_computed());
}

EngineStatus Engine::status() const {
    EngineStatus status = totals_;
    status.n_lanes_busy = lanes_.n_requests();
    status.n_queued = static_cast<std::int32_t>(admission_.n_waiting() + readings_.size());
    status.reading = readings_.status();
    status.n_repairs = static_cast<std::int32_t>(repairs_.size()) + (lanes_.find_repair() ? 1 : 0);
    status.n_suspended = static_cast<std::int32_t>(admission_.n_suspended());
    for (const auto& lane : lanes_) status.n_cells_used += lane ? lane->n_computed() : 0;
    if (!memory_.refusal()) status.n_cells_used = memory_.n_used_cells();
    return status;
}

std::optional<std::string> Engine::check_integrity() const {
    for (const auto& lane : lanes_) {
        if (!lane) continue;
        if (lane->n_pending() < 1) return "a lane has nothing to compute and is not released";
        if (lane->n_text() > config_.n_ctx) return "a text is longer than the context";
    }
    if (std::optional<std::string> wrong = admission_.check_integrity()) return wrong;
    return memory_.check_integrity();
}

}  // namespace luce::engine
