// The part of Engine that prompts have whose own log-probabilities are wanted: what does not go with that, how long
// their slices may be, and what is told of a slice. A row of logits says what follows its token, so a token's own are
// those of the row before it. Rows are told slice by slice and not kept; each slice is a call of its own, since what
// runs beside a token moves its numbers a little.
#include <algorithm>
#include <string>
#include <utility>

#include "engine/engine.h"

namespace luce::engine {

Result<void> Engine::check_prompt_rows(const Request& request) const {
    if (!request.n_prompt_logprobs) return {};
    const auto unsupported = [](const std::string& why) {
        return Error{ErrorCode::unsupported, "no log-probabilities of a prompt " + why};
    };
    if (memory_.is_bounded()) return unsupported("where lanes do not see all of their texts (--kvflash)");
    if (request.reading.reading != prefill::Reading::full) return unsupported("that is read in parts (prefill=)");
    if (!request.images.empty()) return unsupported("with images");
    if (request.prompt_logprobs_from > static_cast<Position>(request.prompt.size())) {
        return Error{ErrorCode::bad_args, "prompt_logprobs_from=" + std::to_string(request.prompt_logprobs_from) +
                                              " lies behind the prompt's " + std::to_string(request.prompt.size()) +
                                              " tokens"};
    }
    return {};
}

// Pending tokens before the first one whose row is wanted. REQUIRES: there is one.
std::int32_t Engine::n_before_rows(const Generation& g) const {
    return std::max(0, *g.next_prompt_row() - 1 - g.n_computed());
}

// Tokens of the lane's next slice, where rows of it are wanted. What is left is cut into equal slices, so that the last
// one is no narrow rest: a backend may add up a narrow call's numbers in another order.
std::int32_t Engine::n_until_rows_end(const Generation& g) const {
    if (!g.next_prompt_row()) return std::numeric_limits<std::int32_t>::max();
    if (const std::int32_t n_before = n_before_rows(g); n_before > 0) return n_before;
    const std::int32_t n_left = static_cast<std::int32_t>(g.request().prompt.size()) - g.n_computed();
    const std::int32_t n_most = std::max(1, decoder_.limits().n_prompt_logits);
    const std::int32_t n_slices = (n_left + n_most - 1) / n_most;
    return (n_left + n_slices - 1) / n_slices;
}

void Engine::tell_prompt_rows(const CalledSlice& called, std::vector<Event>& events) {
    Generation& g = *at(called.planned.lane);
    if (!g.next_prompt_row()) return;
    const Position end = g.n_computed() + called.planned.n_tokens;
    const Position first_row = end - called.n_logits;  // the position of the slice's first row of logits
    while (g.next_prompt_row() && *g.next_prompt_row() <= end) {
        const Position position = *g.next_prompt_row();
        const std::size_t row = called.row + static_cast<std::size_t>(position - 1 - first_row);
        const Token token = g.text()[static_cast<std::size_t>(position)];
        events.emplace_back(PromptLogprobsEvent{g.request().key, position,
                                                g.sampler().logprobs(row, token, *g.request().n_prompt_logprobs)});
        g.mark_row_told();
    }
}

}  // namespace luce::engine
