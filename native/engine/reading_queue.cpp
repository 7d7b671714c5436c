#include "engine/reading_queue.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "base/log.h"
#include "prefill/part_choice.h"

namespace luce::engine {
namespace {

constexpr std::size_t kLogTokens = std::size_t{4} << 20;

// Below it the scorer takes longer than what it saves.
constexpr Position kLeastSparse = 16 * prefill::kChunk;

// Whether what must be read of the first n tokens is among the parts.
bool holds_all(const std::vector<PositionSpan>& parts, const std::vector<PositionSpan>& keep, Position n) {
    std::vector<PositionSpan> both = parts;
    both.insert(both.end(), keep.begin(), keep.end());
    return prefill::n_in(prefill::joined(std::move(both), n)) == prefill::n_in(parts);
}

}  // namespace

ReadingQueue::ReadingQueue(memory::KvCacheManager& memory, prefill::PromptScorer* scorer, std::int32_t n_vocab,
                           std::int32_t n_ctx)
    : memory_(memory), scorer_(scorer), n_vocab_(n_vocab), n_ctx_(n_ctx), log_(kLogTokens) {}

Result<void> ReadingQueue::check(const Request& request) const {
    if (scorer_ == nullptr || !scorer_->is_there()) {
        return Error{ErrorCode::unsupported,
                     "a prompt is read in parts by the choice of a small model: start with --prefill-scorer FILE"};
    }
    if (!request.images.empty()) {
        return Error{ErrorCode::unsupported, "a prompt with images is read whole: leave prefill= out"};
    }
    if (request.memory.restore_slot || !request.memory.snapshots.empty()) {
        return Error{ErrorCode::unsupported,
                     "slots hold what was read whole: prefill= does not go with restore= or snap="};
    }
    return {};
}

std::optional<WaitingRequest> ReadingQueue::remove(RequestKey key) {
    const auto job =
        std::find_if(jobs_.begin(), jobs_.end(), [key](const Job& j) { return j.waiting.request.key == key; });
    if (job == jobs_.end()) return std::nullopt;
    WaitingRequest waiting = std::move(job->waiting);
    jobs_.erase(job);
    return waiting;
}

bool ReadingQueue::is_fetched(const Job& job) {
    return job.waiting.fetch == nullptr || memory::KvCacheManager::is_done(*job.waiting.fetch);
}

bool ReadingQueue::wants_step() const {
    return std::any_of(jobs_.begin(), jobs_.end(),
                       [](const Job& job) { return !job.waiting.has_asked || is_fetched(job); });
}

std::vector<WaitingRequest> ReadingQueue::advance() {
    std::vector<WaitingRequest> decided;
    for (auto job = jobs_.begin(); job != jobs_.end();) {
        WaitingRequest& waiting = job->waiting;
        if (!waiting.has_asked) {
            waiting.fetch = memory_.fetch(waiting.request.names(), waiting.request.memory);
            waiting.has_asked = true;
        }
        const bool is_done = is_fetched(*job) && is_decided(*job);
        if (is_done) decided.push_back(take(*job));
        job = is_done ? jobs_.erase(job) : std::next(job);
    }
    const auto job = next_to_score();
    if (job == jobs_.end()) return decided;
    const Result<bool> scored = score(*job);
    if (!scored) read_whole(*job, scored.error());
    if (!scored || scored.value()) {
        decided.push_back(take(*job));
        jobs_.erase(job);
    }
    return decided;
}

// Memory is asked anew, for what is read.
WaitingRequest ReadingQueue::take(Job& job) {
    if (job.waiting.request.sparse != nullptr) {
        job.waiting.fetch.reset();
        job.waiting.has_asked = false;
    }
    return std::move(job.waiting);
}

// Answers come before those who only ask, then higher priority, then who came first.
std::list<ReadingQueue::Job>::iterator ReadingQueue::next_to_score() {
    const auto rank = [](const Job& job) {
        const Request& request = job.waiting.request;
        return std::tuple(job.is_scored, !request.compresses, request.priority);
    };
    const auto first =
        std::max_element(jobs_.begin(), jobs_.end(), [&rank](const Job& a, const Job& b) { return rank(a) < rank(b); });
    return first != jobs_.end() && first->is_scored ? first : jobs_.end();
}

// What was read whole is worth more than what was read in parts, where it costs the same. What leaves no room for the
// rest is worth nothing.
ReadingQueue::Start ReadingQueue::start_of(const Request& request) {
    const auto n = static_cast<Position>(request.prompt.size());
    Start nothing{{}, 0, n};
    if (request.compresses) return nothing;
    Start start = nothing;
    const Position n_known = memory_.n_known(request.names(), request.memory);
    if (n_known > 0) start = {{{0, n_known}}, n_known, n - n_known};
    if (std::optional<Start> parts = parts_of(request); parts && parts->n_to_do < start.n_to_do) start = *parts;
    const double n_more = request.reading.share * (n - start.begin) + kLeastSparse + n_answer(request);
    const bool is_whole = fits(n, request);
    return is_whole || prefill::n_in(start.parts) + n_more <= n_ctx_ ? start : nothing;
}

// Where the prompt goes on from one of which parts were read.
std::optional<ReadingQueue::Start> ReadingQueue::parts_of(const Request& request) {
    // The log does not tell whose text it was.
    if (!request.memory.reuse.value_or(true) || request.memory.salt) return std::nullopt;
    const std::span<const Token> text = request.prompt;
    const std::optional<prefill::ReadingLog::Found> read = log_.find(text, request.reading.share);
    if (!read || !holds_all(read->parts, request.reading.keep, read->n_common)) return std::nullopt;
    const prefill::SparseText head(Tokens(text.begin(), text.begin() + read->n_common), read->parts, n_vocab_);
    const Position n_known = memory_.n_known(head.names(), request.memory);
    const auto n_head = static_cast<Position>(head.names().size());
    return Start{read->parts, read->n_common, n_head - n_known + static_cast<Position>(text.size()) - read->n_common};
}

Position ReadingQueue::n_answer(const Request& request) const { return std::min(request.n_generate, n_ctx_ / 4); }

bool ReadingQueue::fits(Position n, const Request& request) const {
    return n + (request.n_generate > 0 ? 1 : 0) <= n_ctx_;
}

// Whether nothing has to be scored: the request reads all, or goes on from what was read in parts before.
bool ReadingQueue::is_decided(Job& job) {
    if (job.is_scored) return false;
    Request& request = job.waiting.request;
    const prefill::ReadingWish& wish = request.reading;
    job.start = start_of(request);
    const auto n = static_cast<Position>(request.prompt.size());
    const Position n_rest = prefill::n_in(job.start.parts) + n - job.start.begin;
    const bool is_automatic = wish.reading == prefill::Reading::automatic && fits(n, request);
    const Position n_from = is_automatic ? std::max(wish.n_from, kLeastSparse) : kLeastSparse;
    if (request.compresses || job.start.n_to_do >= n_from || !fits(n_rest, request)) {
        job.is_scored = true;
        return false;
    }
    std::vector<PositionSpan> parts = job.start.parts;
    parts.push_back({job.start.begin, n});
    read_parts(request, std::move(parts));
    return true;
}

// Whether it is known now.
Result<bool> ReadingQueue::score(Job& job) {
    Request& request = job.waiting.request;
    Result<bool> read = scorer_->read(request.prompt);
    if (!read || !read.value()) return read;
    const Result<std::vector<float>> scores = scorer_->scores(request.prompt);
    if (!scores) return scores.error();
    const auto n = static_cast<Position>(request.prompt.size());
    prefill::PartRules rules;
    rules.begin = job.start.begin;
    rules.n_budget = static_cast<Position>(std::ceil(request.reading.share * (n - job.start.begin)));
    if (!request.compresses) {
        const Position n_room = n_ctx_ - prefill::n_in(job.start.parts) - n_answer(request);
        rules.n_budget = std::min(rules.n_budget, std::max(0, n_room));
        // What the request generated earlier is its own.
        rules.keep.push_back({n - request.n_generated_before, n});
    }
    rules.keep.insert(rules.keep.end(), request.reading.keep.begin(), request.reading.keep.end());
    rules.blocks = request.reading.blocks;
    std::vector<PositionSpan> parts = prefill::choose_parts(n, scores.value(), rules);
    parts.insert(parts.end(), job.start.parts.begin(), job.start.parts.end());
    read_parts(request, std::move(parts));
    return true;
}

void ReadingQueue::read_parts(Request& request, std::vector<PositionSpan> parts) const {
    const auto n = static_cast<Position>(request.prompt.size());
    parts = prefill::joined(std::move(parts), n);
    if (prefill::n_in(parts) == n && !request.compresses) return;
    request.sparse = std::make_shared<prefill::SparseText>(std::move(request.prompt), std::move(parts), n_vocab_);
    request.prompt = request.sparse->tokens();
    request.whole_memory = request.memory;
    memory::MemoryRequest& memory = request.memory;
    for (Position& mark : memory.marks) mark = request.sparse->read_position(mark);
    if (memory.turn) memory.turn = request.sparse->read_position(*memory.turn);
    if (memory.salt) memory.salt->from = request.sparse->read_position(memory.salt->from);
    memory.pins = request.sparse->read_spans(memory.pins);
}

void ReadingQueue::read_whole(Job& job, const Error& why) {
    job.waiting.request.reading_error = why;
    if (std::exchange(has_warned_, true)) return;
    log_warn("a prompt is not read in parts: " + why.text + " (said once)");
}

void ReadingQueue::note_read(Tokens text, Position n_prompt, std::vector<PositionSpan> parts, double share) {
    log_.add(std::move(text), n_prompt, std::move(parts), share);
}

void ReadingQueue::note_begun(const prefill::SparseText& text) {
    ++status_.n_prompts;
    status_.n_tokens += text.prompt().size();
    status_.n_left_out += text.prompt().size() - text.tokens().size();
}

}  // namespace luce::engine
