// What the engine's tests share: requests, and what came of each of them.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <variant>
#include <vector>

#include "engine/engine.h"
#include "tests/engine/fake_model.h"

namespace luce::tests {

inline engine::Request request(std::uint64_t key, Tokens prompt, int n_generate) {
    engine::Request r;
    r.key = static_cast<engine::RequestKey>(key);
    r.prompt = std::move(prompt);
    r.n_generate = n_generate;
    return r;
}

inline Tokens random_prompt(std::mt19937& random, int n) {
    Tokens tokens;
    for (int i = 0; i < n; ++i) tokens.push_back(static_cast<Token>(random() % kVocab));
    return tokens;
}

struct Outcome {
    std::map<engine::RequestKey, Tokens> tokens;
    std::map<engine::RequestKey, engine::GenerationStats> finished;
    std::map<engine::RequestKey, Error> failed;

    void take(const std::vector<engine::Event>& events) {
        for (const engine::Event& event : events) {
            if (const auto* token = std::get_if<engine::TokenEvent>(&event)) {
                REQUIRE(!finished.contains(token->key));
                REQUIRE(static_cast<std::size_t>(token->index) == tokens[token->key].size());
                tokens[token->key].push_back(token->token);
            } else if (const auto* end = std::get_if<engine::FinishedEvent>(&event)) {
                REQUIRE(finished.emplace(end->key, end->stats).second);
            } else if (const auto* failure = std::get_if<engine::FailedEvent>(&event)) {
                REQUIRE(failed.emplace(failure->key, failure->error).second);
            }
        }
    }
};

}  // namespace luce::tests
