#include "prefill/reading_log.h"

#include <algorithm>
#include <utility>

#include "prefill/sparse_text.h"

namespace luce::prefill {
namespace {

// Of a prompt, its end that a template may show otherwise once the answer is there: how an answer begins. Always read.
constexpr Position kAnswerHead = 64;

Position n_common(std::span<const Token> a, std::span<const Token> b) {
    return static_cast<Position>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

void ReadingLog::add(Tokens text, Position n_prompt, std::vector<PositionSpan> parts, double share) {
    std::erase_if(texts_, [&text](const Text& known) {
        return known.tokens.size() <= text.size() && std::equal(known.tokens.begin(), known.tokens.end(), text.begin());
    });
    texts_.push_front({std::move(text), n_prompt, std::move(parts), share});
    std::size_t n_tokens = 0;
    for (auto known = texts_.begin(); known != texts_.end();) {
        n_tokens += known->tokens.size();
        known = n_tokens > n_most_tokens_ && known != texts_.begin() ? texts_.erase(known) : std::next(known);
    }
}

std::optional<ReadingLog::Found> ReadingLog::find(std::span<const Token> text, double share) {
    auto best = texts_.end();
    Position n_best = 0;
    for (auto known = texts_.begin(); known != texts_.end(); ++known) {
        const Position n = n_common(known->tokens, text);
        if (n <= n_best || n + kAnswerHead < known->n_prompt || known->share < share) continue;
        best = known;
        n_best = n;
    }
    if (best == texts_.end()) return std::nullopt;
    Found found{n_best, joined(best->parts, n_best)};
    if (n_in(found.parts) == n_best) return std::nullopt;
    texts_.splice(texts_.begin(), texts_, best);
    return found;
}

}  // namespace luce::prefill
