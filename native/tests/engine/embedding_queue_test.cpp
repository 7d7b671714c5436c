// Tests of the texts that wait for vectors: what is taken, and what is read together.
#include <doctest/doctest.h>

#include <vector>

#include "engine/embedding/embedding_queue.h"

TEST_SUITE("engine") {

using namespace luce;
using engine::EmbeddingQueue;
using engine::EmbeddingRequest;

namespace {

constexpr engine::EmbedderLimits kQueueLimits = {.n_text = 20, .n_batch = 10, .n_texts = 3, .n_vocab = 100};

EmbeddingRequest text_of(std::int32_t id, std::size_t n_tokens) { return {id, Tokens(n_tokens, 7)}; }

std::vector<std::int32_t> ids_of(const std::vector<EmbeddingRequest>& batch) {
    std::vector<std::int32_t> ids;
    for (const EmbeddingRequest& request : batch) ids.push_back(request.id);
    return ids;
}

ErrorCode code_of(EmbeddingQueue& queue, EmbeddingRequest request) {
    return queue.add(std::move(request)).error().code;
}

}  // namespace

TEST_CASE("embedding queue: texts are read together as far as one call takes them, in their order") {
    EmbeddingQueue queue(kQueueLimits, 100);
    CHECK(queue.next_batch().empty());
    for (const auto& [id, n] : std::vector<std::pair<int, int>>{{1, 4}, {2, 6}, {3, 1}, {4, 1}, {5, 1}, {6, 1}}) {
        REQUIRE(queue.add(text_of(id, static_cast<std::size_t>(n))));
    }
    CHECK(ids_of(queue.next_batch()) == std::vector<std::int32_t>{1, 2});     // all the tokens
    CHECK(ids_of(queue.next_batch()) == std::vector<std::int32_t>{3, 4, 5});  // all the texts
    CHECK(ids_of(queue.next_batch()) == std::vector<std::int32_t>{6});
    CHECK(queue.empty());
}

TEST_CASE("embedding queue: a text that is longer than a shared call is computed alone") {
    EmbeddingQueue queue(kQueueLimits, 100);
    for (const auto& [id, n] : std::vector<std::pair<int, int>>{{1, 2}, {2, 20}, {3, 2}}) {
        REQUIRE(queue.add(text_of(id, static_cast<std::size_t>(n))));
    }
    CHECK(ids_of(queue.next_batch()) == std::vector<std::int32_t>{1});
    CHECK(ids_of(queue.next_batch()) == std::vector<std::int32_t>{2});
    CHECK(ids_of(queue.next_batch()) == std::vector<std::int32_t>{3});
}

TEST_CASE("embedding queue: what cannot be computed is refused") {
    EmbeddingQueue queue(kQueueLimits, 2);
    CHECK(code_of(queue, text_of(1, 0)) == ErrorCode::empty_prompt);
    CHECK(code_of(queue, text_of(1, 21)) == ErrorCode::prompt_too_long);
    CHECK(code_of(queue, {1, {5, 100}}) == ErrorCode::token_out_of_range);
    CHECK(code_of(queue, {1, {5, -1}}) == ErrorCode::token_out_of_range);
    REQUIRE(queue.add({1, {0, 99}}));
    CHECK(code_of(queue, text_of(1, 1)) == ErrorCode::duplicate_id);
    REQUIRE(queue.add(text_of(2, 20)));
    CHECK(code_of(queue, text_of(3, 1)) == ErrorCode::queue_full);
    CHECK(queue.size() == 2);
}

TEST_CASE("embedding queue: what is taken back is not computed") {
    EmbeddingQueue queue(kQueueLimits, 100);
    for (const int id : {1, 2, 3}) REQUIRE(queue.add(text_of(id, 1)));
    CHECK(queue.remove(2));
    CHECK_FALSE(queue.remove(2));
    CHECK_FALSE(queue.remove(9));
    CHECK(ids_of(queue.next_batch()) == std::vector<std::int32_t>{1, 3});
    CHECK_FALSE(queue.remove(1));
}

}  // TEST_SUITE("engine")
