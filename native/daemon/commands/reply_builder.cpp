#include "daemon/commands/reply_builder.h"

namespace luce::daemon {

std::vector<std::pair<Token, float>> to_wire(const std::vector<engine::TokenLogprob>& logprobs) {
    std::vector<std::pair<Token, float>> entries;
    for (const engine::TokenLogprob& entry : logprobs) entries.emplace_back(entry.token, entry.logprob);
    return entries;
}

}  // namespace luce::daemon
