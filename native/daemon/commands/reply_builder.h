// What the engine says of a request -> the wire's words for it. Pure; the way back from RequestBuilder's.
#pragma once

#include <utility>
#include <vector>

#include "base/token.h"
#include "engine/decoder.h"
#include "engine/request.h"
#include "wire/reply.h"

namespace luce::daemon {

std::vector<std::pair<Token, float>> to_wire(const std::vector<engine::TokenLogprob>& logprobs);
wire::Speculation to_wire(const engine::SpeculationStats& stats);
wire::GenerateOk to_wire(const engine::FinishedStats& stats);  // whose request it is, and its file, are left open

}  // namespace luce::daemon
