// Engine: continuous batching. It owns the lanes and the requests that run in them, and turns one step() into: admit ->
// plan (scheduler, pure) -> decode -> sample -> events. It does no I/O and keeps no time of its own.
//
// Life of a request: submit() checks it and queues it; a free lane takes it up; its prompt is computed in slices; each
// further token is sampled, reported and computed; then it finishes, fails or is cancelled, which is its last event.
// Who gets a lane is Admission's, what helps when memory is short PoolReliever's; speculative_step.cpp has the part
// that drafts and verifies, image_lanes.cpp the one that images have, reading_lanes.cpp the one of prompts that are
// read in parts, prompt_rows.cpp the one of prompts whose own log-probabilities are wanted.
//
// The text of a lane never exceeds n_ctx tokens, and n_pool >= n_ctx, so a lane that runs alone always fits the pool;
// or residency is bounded, and the memory makes it fit. What lanes and slots remember is KvCacheManager's business; the
// engine says when a text begins, grows and ends.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "engine/admission.h"
#include "engine/copy_budget.h"
#include "engine/decoder.h"
#include "engine/events.h"
#include "engine/generation.h"
#include "engine/lane_table.h"
#include "engine/pool_relief.h"
#include "engine/reading_queue.h"
#include "engine/repair_queue.h"
#include "engine/scheduler.h"
#include "engine/slice_sizer.h"
#include "engine/speculator.h"
#include "memory/manager/kv_cache_manager.h"

namespace luce::engine {

struct EngineConfig {
    std::int32_t n_ctx = 0;  // longest text of one lane, prompt included
    std::int32_t n_lanes = 1;
    std::int32_t n_queue = 64;                             // most requests that wait beyond what the free lanes take
    std::optional<PoolRelief> pool_relief = std::nullopt;  // unset: a call without memory fails
    prefill::PromptScorer* scorer = nullptr;               // must outlive the engine; null: prompts are read whole
    bool repairs = true;                                   // what was read in parts is read whole when there is time
};

struct EngineStatus {
    std::int32_t n_lanes_busy = 0;
    std::int32_t n_queued = 0;
    std::int32_t n_suspended = 0;
    std::int32_t n_cells_used = 0;
    std::uint64_t n_prompt_tokens = 0;       // computed since the start
    std::uint64_t n_reused_tokens = 0;       // prompt tokens that were not, since the start
    std::uint64_t n_generated_tokens = 0;    // since the start
    std::uint64_t n_suspensions = 0;         // since the start
    std::optional<Speculation> speculation;  // since the start; unset: this engine does not speculate
    ReadingStatus reading;
    std::uint64_t n_repaired_tokens = 0;  // read anew, since the start
    std::int32_t n_repairs = 0;           // texts that wait for that, or are being read
};

class Engine {
public:
    // All must outlive the engine; without a speculator each token is decoded alone. REQUIRES: decoder.limits().n_pool
    // >= config.n_ctx, or memory.is_bounded(); the memory's device is the decoder's.
    Engine(Decoder& decoder, SamplerFactory& samplers, memory::KvCacheManager& memory, const Clock& clock,
           const EngineConfig& config, Speculator* speculator = nullptr);

    // Errors: empty_prompt, prompt_too_long, token_out_of_range, queue_full, bad_args, and the sampler factory's.
    Result<void> submit(Request request);

    // The stats up to here if the request was known: it ends now, without a further event.
    std::optional<GenerationStats> cancel(RequestKey key);

    bool is_idle() const { return lanes_.n_requests() == 0 && admission_.is_empty() && readings_.is_empty(); }

    // Whether a step would do anything: not while all that is there waits for the disk, or for images.
    bool wants_step() const {
        return has_work() || admission_.wants_step() || readings_.wants_step() || can_begin_repair();
    }

    // One step: computes for the lanes, and copies what must not wait for their end. What has ended is still to be let
    // go of: with long texts that takes longer than a token, and who waits for its last one need not wait for it.
    // REQUIRES: release_ended() before anything else.
    std::vector<Event> compute_step();
    void release_ended();

    // Both, for those who tell nobody.
    std::vector<Event> step() {
        std::vector<Event> events = compute_step();
        release_ended();
        return events;
    }

    // What can wait for that: a little at a time, so that a request which comes meanwhile does not wait. Where copies
    // have been sent and are not there yet it does nothing: call again soon.
    bool has_idle_work() const { return !wants_step() && (memory_.has_to_copy(true) || decoder_.has_idle_work()); }
    void use_idle_time();

    // Texts that were read in parts are read whole when there is time, or not any more: no lane does so then.
    void pause_repairs(bool is_paused);
    void forget_readings();  // and those that are owed

    // Before the end: what the disk is owed goes to it, as far as it has room among its writes: so many files.
    std::size_t copy_owed() { return memory_.copy_owed(); }

    // Keep in a slot what a request has computed: of a running one as far as it is, of an ended one all. Returns the
    // position. Errors: bad_slot, unknown_id, empty_prompt, unsupported, no_room.
    Result<Position> snapshot(std::int32_t slot, RequestKey of);

    // The model cannot be computed with any more: calls in a row have failed for other reasons than room.
    bool is_broken() const { return n_failed_calls_ >= kMaxFailedCalls; }

    EngineStatus status() const;

    // Nothing if the accounts agree, else what is wrong with them.
    std::optional<std::string> check_integrity() const;

private:
    // A slice whose call has been computed.
    struct CalledSlice {
        PlannedSlice planned;
        std::span<const Token> tokens;
        std::span<const std::int32_t> parents;  // as in Slice
        std::size_t row = 0;                    // its first row of logits …
        std::int32_t n_logits = 0;              // … of so many
        std::int32_t batch_row = 0;             // the place of its first token in the call
        double seconds = 0;                     // its share of what the call took
    };

    // A lane whose last event is out. The logits are those of the decoder's last call, which the next one overwrites.
    struct EndedLane {
        LaneId lane{};
        std::span<const float> logits;
    };

    Result<void> check(const Request& request) const;
    Result<void> check_length(const Request& request) const;
    void take_decided(std::vector<Event>& events);
    void note_read(const Generation& g);
    bool can_begin_repair() const;
    void begin_repair(std::vector<Event>& events);
    void stop_repair(bool is_sound = true);
    bool allow_repair(LaneView& view) const;
    void spend_on_repair(const PlannedCall& call, double seconds);
    static void hide_repair(std::vector<Event>& events);
    Result<void> check_prompt(const Request& request) const;
    Result<void> check_prompt_rows(const Request& request) const;
    std::int32_t n_before_rows(const Generation& g) const;
    std::int32_t n_until_rows_end(const Generation& g) const;
    void tell_prompt_rows(const CalledSlice& called, std::vector<Event>& events);
    void want_images(LaneId lane);
    static bool is_waiting(const Generation& g);
    bool has_work() const;
    void fail_images(std::vector<Event>& events);
    std::int32_t n_slice_most(LaneId lane) const;
    std::int32_t n_busy() const { return lanes_.n_busy(); }
    LaneView view_of(LaneId lane, bool is_tight) const;
    std::unique_ptr<Generation>& at(LaneId lane) { return lanes_.at(lane); }

    void admit(std::vector<Event>& events);
    void take_waiting(std::vector<Event>& events);
    void copy_beside_lanes();
    void begin(LaneId lane, WaitingRequest waiting, std::vector<Event>& events);
    void remember(LaneId lane, std::span<const float> logits, std::vector<Event>& events);
    void suspend(LaneId lane, bool is_sound = true);
    void forget(LaneId lane);
    bool relieve(const PlannedCall& call, const Error& why, std::vector<Event>& events);
    StepPlan plan() const;
    bool run_call(const PlannedCall& call, std::vector<Event>& events);
    bool may_run_on(std::span<const Slice> slices) const;
    bool after_call(const PlannedCall& call, std::span<const Slice> slices, double seconds, bool is_timed,
                    std::vector<Event>& events);
    void choose_ahead(const PlannedCall& call, std::span<const Slice> slices);
    void advance(const CalledSlice& called, std::vector<Event>& events);
    Result<Token> sample(std::size_t row, LaneId lane, std::vector<Event>& events);
    void sample_first(std::size_t row, LaneId lane, std::vector<Event>& events);
    void propose();
    std::int32_t n_drafted(LaneId lane) const;
    std::int32_t n_kept_for_prompts() const;
    Slice slice_of(const PlannedSlice& planned);
    bool keep_states(const PlannedCall& call);
    Result<void> go_back(LaneId lane, std::int32_t n_right, std::optional<StopReason> finished);
    bool finish_short_ones(std::vector<Event>& events);
    std::optional<speculation::StepCost> cost_of(const PlannedCall& call, double seconds);
    void measure(std::optional<speculation::StepCost> cost);
    void count(const Speculation& step, Generation& g);
    void verify(const CalledSlice& called, std::vector<Event>& events);
    Result<void> take_back(const CalledSlice& called, std::span<const std::int32_t> path);
    void finish(LaneId lane, StopReason reason, std::span<const float> logits, std::vector<Event>& events);
    void fail(LaneId lane, const Error& error, std::vector<Event>& events);
    void release(LaneId lane, std::span<const float> logits, bool is_valid);

    Decoder& decoder_;
    SamplerFactory& samplers_;
    memory::KvCacheManager& memory_;
    const Clock& clock_;
    Speculator* speculator_;  // null: none
    EngineConfig config_;
    SliceSizer sizer_;
    LaneTable lanes_;
    Admission admission_;
    PoolReliever relief_;
    CopyBudget copy_budget_;
    ReadingQueue readings_;
    RepairQueue repairs_;
    bool is_repair_paused_ = false;
    double repair_credit_s_ = 0;  // what repairing may take of running lanes' time
    std::vector<EndedLane> ended_;
    static constexpr int kMaxFailedCalls = 3;
    int n_failed_calls_ = 0;        // in a row
    bool is_withdrawn_ = false;     // the device had no room for drafts of late: none in the next step
    double keeps_from_s_ = 0;       // by the clock: before, no states to go back to, for which there was no memory
    bool has_read_prompt_ = false;  // the last call, or a text that had to be read again
    std::int32_t n_matched_ = 0;    // drafted tokens, in the running call
    // Of the running call: lanes that went back.
    std::int32_t n_redone_ = 0;  // tokens that were right and are computed again
    std::int32_t n_back_ = 0;    // by so many lanes
    double going_back_s_ = 0;
    std::vector<std::pair<LaneId, StopReason>> ended_short_;  // they are not, and no token follows
    std::uint64_t n_read_ = 0;                                // tokens of all prompts
    bool is_under_way_ = false;                               // the last call, on a device that computes by itself
    std::uint64_t n_arrivals_ = 0;
    EngineStatus totals_;
};

}  // namespace luce::engine
