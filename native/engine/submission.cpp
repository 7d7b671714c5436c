// The part of Engine that takes requests: what is checked of them before they wait, and how they are taken back.
#include <algorithm>
#include <string>
#include <utility>

#include "engine/engine.h"

namespace luce::engine {
namespace {

constexpr std::size_t kMaxStopTokens = 4096;  // each is looked at for every token

}  // namespace

Result<void> Engine::check_length(const Request& request) const {
    const auto n_prompt = static_cast<std::int64_t>(request.prompt.size());
    // A generating request needs room for at least one token of its own.
    const std::int64_t n_least = n_prompt + (request.n_generate > 0 ? 1 : 0);
    if (n_least <= config_.n_ctx) return {};
    std::string text = "the prompt has " + std::to_string(n_prompt) + " tokens";
    if (request.sparse) {
        text = "of the prompt's " + std::to_string(request.sparse->prompt().size()) + " tokens " +
               std::to_string(n_prompt) + " are to be read, which";
    } else {
        text += " and";
    }
    text += " leaves no room in the context of " + std::to_string(config_.n_ctx) +
            "; shorten it or start with a larger --ctx";
    if (request.reading_error) text += " (it is not read in parts: " + request.reading_error->text + ")";
    return Error{ErrorCode::prompt_too_long, text};
}

Result<void> Engine::check(const Request& request) const {
    const auto n_prompt = static_cast<std::int64_t>(request.prompt.size());
    if (n_prompt == 0) return Error{ErrorCode::empty_prompt, "the prompt has no tokens"};
    if (n_prompt > std::max(kMaxSparsePrompt, config_.n_ctx)) {
        return Error{ErrorCode::prompt_too_long, "a prompt may have " + std::to_string(kMaxSparsePrompt) +
                                                     " tokens at most, however little of it is read"};
    }
    const bool may_read_less = request.compresses || request.reading.reading != prefill::Reading::full;
    Result<void> fits = may_read_less ? readings_.check(request) : check_length(request);
    if (!fits) return fits;
    const std::int32_t n_vocab = decoder_.limits().n_vocab;
    const auto outside = [n_vocab](Token token) { return token < 0 || token >= n_vocab; };
    if (Result<void> checked = check_prompt(request); !checked) return checked;
    for (const auto& [token, bias] : request.sampling.logit_bias) {
        if (outside(token)) {
            return Error{ErrorCode::token_out_of_range, "logit_bias names token " + std::to_string(token) +
                                                            ", outside the vocabulary of " + std::to_string(n_vocab)};
        }
    }
    if (request.stop_tokens.size() > kMaxStopTokens) {
        return Error{ErrorCode::bad_args, "stop= names more than " + std::to_string(kMaxStopTokens) + " tokens"};
    }
    if (request.n_generated_before > n_prompt) {
        return Error{ErrorCode::bad_args, "generated=" + std::to_string(request.n_generated_before) +
                                              " says more than the prompt's " + std::to_string(n_prompt) + " tokens"};
    }
    if (Result<void> checked = check_prompt_rows(request); !checked) return checked;
    return memory_.check(request.memory, static_cast<Position>(n_prompt));
}

Result<void> Engine::submit(Request request) {
    if (Result<void> checked = check(request); !checked) return checked;
    if (Result<void> room = admission_.check_room(readings_.size()); !room) return room;
    WaitingRequest waiting;
    if (const std::optional<Position> row = request.first_prompt_row()) request.memory.n_reuse_most = *row - 1;
    if (!request.compresses) {
        Result<std::unique_ptr<TokenSampler>> sampler = samplers_.create(request);
        if (!sampler) return sampler.error();
        waiting.sampler = std::move(sampler).value();
    }
    waiting.has_asked = request.compresses;  // memory is not asked
    const bool reads_all = !request.compresses && request.reading.reading == prefill::Reading::full;
    waiting.request = std::move(request);
    if (reads_all) {
        admission_.push(std::move(waiting));
    } else {
        readings_.push(std::move(waiting));
    }
    return {};
}

std::optional<GenerationStats> Engine::cancel(RequestKey key) {
    const std::optional<LaneId> lane = lanes_.find(key);
    if (const std::optional<WaitingRequest> waiting = readings_.remove(key)) {
        return cancelled_early(waiting->request);
    }
    if (!lane) return admission_.cancel(key, clock_.now_s());
    const GenerationStats stats = at(*lane)->stats(StopReason::cancel, clock_.now_s());
    release(*lane, {}, true);
    return stats;
}

}  // namespace luce::engine
