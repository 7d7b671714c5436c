// What the engine says of a request -> the wire's words for it. Pure; the way back from RequestBuilder's.
#pragma once

#include <utility>
#include <vector>

#include "base/token.h"
#include "engine/decoder.h"

namespace luce::daemon {

std::vector<std::pair<Token, float>> to_wire(const std::vector<engine::TokenLogprob>& logprobs);

}  // namespace luce::daemon
