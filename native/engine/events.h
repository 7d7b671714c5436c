// Events: what a step tells of requests; a request's last one is finished, failed or chosen. Plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "base/result.h"
#include "engine/decoder.h"
#include "engine/generation.h"
#include "memory/manager/kv_cache_types.h"

namespace luce::engine {

struct TokenEvent {
    RequestKey key{};
    Token token = 0;
    std::int32_t index = 0;  // of this request's generated tokens, from 0
    std::vector<TokenLogprob> logprobs;
};
struct PromptLogprobsEvent {
    RequestKey key{};
    Position position = 0;               // of a prompt token; they rise
    std::vector<TokenLogprob> logprobs;  // that token's first
};
struct PrefillEvent {
    RequestKey key{};
    std::int32_t n_done = 0;
    std::int32_t n_total = 0;
};
struct SnapshotEvent {
    RequestKey key{};
    memory::SnapshotOutcome outcome;
};
struct FinishedEvent {
    RequestKey key{};
    GenerationStats stats;
};
struct FailedEvent {
    RequestKey key{};
    Error error;
};
struct ChosenEvent {  // of a request that only asked: what of its prompt would be read
    RequestKey key{};
    std::shared_ptr<const prefill::SparseText> parts;
};
struct PoolEvent {  // of no request: the pool has become smaller
    std::int32_t n_tokens = 0;
};
using Event = std::variant<TokenEvent, PromptLogprobsEvent, PrefillEvent, SnapshotEvent, FinishedEvent, FailedEvent,
                           ChosenEvent, PoolEvent>;

}  // namespace luce::engine
