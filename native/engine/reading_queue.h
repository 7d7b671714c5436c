// ReadingQueue: requests that read only a part of their prompts, until it is known which part. What memory has of a
// prompt, read whole or in parts, is gone on from; of the rest the scorer says which pages matter. Knows memory and the
// scorer; no lanes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/waiting_queue.h"
#include "memory/manager/kv_cache_manager.h"
#include "prefill/prompt_scorer.h"
#include "prefill/reading_log.h"
#include "prefill/sparse_text.h"

namespace luce::engine {

// Of prompts that were read in parts, since the start.
struct ReadingStatus {
    std::uint64_t n_prompts = 0;
    std::uint64_t n_tokens = 0;    // of these prompts
    std::uint64_t n_left_out = 0;  // of them, tokens that were not read
};

class ReadingQueue {
public:
    // All must outlive it; `scorer` null: every prompt is read whole.
    ReadingQueue(memory::KvCacheManager& memory, prefill::PromptScorer* scorer, std::int32_t n_vocab,
                 std::int32_t n_ctx);

    // Errors: unsupported, bad_args.
    Result<void> check(const Request& request) const;

    void push(WaitingRequest waiting) { jobs_.push_back({std::move(waiting), {}, false}); }
    std::optional<WaitingRequest> remove(RequestKey key);

    bool is_empty() const { return jobs_.empty(); }
    std::size_t size() const { return jobs_.size(); }
    bool wants_step() const;

    // A piece of work, and the requests of which it is known now what they read.
    std::vector<WaitingRequest> advance();

    // A text, its answer behind a prompt of so many tokens, has been read in these parts.
    void note_read(Tokens text, Position n_prompt, std::vector<PositionSpan> parts, double share);
    void forget() { log_.clear(); }
    void note_begun(const prefill::SparseText& text);

    const ReadingStatus& status() const { return status_; }

private:
    // What memory has of a text, or will have of the parts that were read before.
    struct Start {
        std::vector<PositionSpan> parts;
        Position begin = 0;    // what stands before is decided
        Position n_to_do = 0;  // tokens to compute if all behind it is read
    };
    struct Job {
        WaitingRequest waiting;
        Start start;
        bool is_scored = false;  // decided: to be scored
    };

    static bool is_fetched(const Job& job);
    static WaitingRequest take(Job& job);
    std::list<Job>::iterator next_to_score();
    Start start_of(const Request& request);
    std::optional<Start> parts_of(const Request& request);
    Position n_answer(const Request& request) const;  // tokens that are kept free for it
    bool fits(Position n, const Request& request) const;
    bool is_decided(Job& job);
    Result<bool> score(Job& job);
    void read_parts(Request& request, std::vector<PositionSpan> parts) const;
    void read_whole(Job& job, const Error& why);

    memory::KvCacheManager& memory_;
    prefill::PromptScorer* scorer_;
    std::int32_t n_vocab_;
    std::int32_t n_ctx_;
    prefill::ReadingLog log_;
    std::list<Job> jobs_;
    ReadingStatus status_;
    bool has_warned_ = false;
};

}  // namespace luce::engine
