// A device that has no memory left for a computation, with a pool that texts may outgrow: the pool becomes smaller and
// requests go on; where that does not help they fail, and the engine says that it is of no use any more.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "tests/device/short_engine.h"

TEST_SUITE("device") {

using namespace luce;
using namespace luce::memory_tests;
using namespace luce::tests;

TEST_CASE("a computation that the device has no memory for makes the pool smaller, and requests go on") {
    for (const char* name : {"qwen3", "qwen35", "gemma4"}) {
        CAPTURE(name);
        const Variant variant{test_model(name), "q8_0"};
        Short undisturbed(variant);
        undisturbed.submit(1, 300);
        undisturbed.run();
        CHECK(undisturbed.model.info().n_pool == kPool);

        Short s(variant);
        s.submit(1, 300);
        s.run(1);
        CHECK(s.failures.empty());
        CHECK(s.model.info().n_pool == 1536);
        CHECK(s.decoder.limits().n_pool == 1536);
        CHECK(s.memory.status().cache.n_resident <= 1536 / kPageSize);
        CHECK(s.tokens[RequestKey{1}].size() == kAnswer);
        CHECK(s.finished[RequestKey{1}].n_generated == kAnswer);
        // Up to there they are the same; behind it sums may be formed in another order.
        const Tokens& before = undisturbed.tokens[RequestKey{1}];
        CHECK(std::equal(before.begin(), before.begin() + 10, s.tokens[RequestKey{1}].begin()));
        if (std::string(name) == "qwen3") CHECK(s.tokens[RequestKey{1}] == before);

        s.submit(2, 1200);  // and there is room for more
        s.run();
        CHECK(s.finished[RequestKey{2}].n_generated == kAnswer);
    }
}

TEST_CASE("it becomes smaller until the computation has room, for all lanes, texts longer than it among them") {
    Short s({test_model("qwen3"), "q8_0"});
    for (std::uint64_t key = 1; key <= 4; ++key) s.submit(key, 150 * static_cast<int>(key));
    s.submit(5, 1700);
    s.run(800 * s.device.traits().row_bytes, 5);
    CHECK(s.failures.empty());
    CHECK(s.model.info().n_pool < 1536);
    CHECK(s.model.info().n_pool >= kLeast);
    for (std::uint64_t key = 1; key <= 5; ++key) CHECK(s.tokens[RequestKey{key}].size() == kAnswer);
}

TEST_CASE("where the smallest pool does not do requests fail, and nothing can be computed any more") {
    Short s({test_model("qwen3"), "q8_0"});
    s.submit(1, 300);
    s.submit(2, 200);
    s.run(kWorkspace);
    REQUIRE(s.failures.size() == 2);
    CHECK(s.failures[0].code == ErrorCode::out_of_memory);
    CHECK(s.engine.is_broken());
}

TEST_CASE("a pool that has to stay as it is fails the requests of the call alone") {
    Short s({test_model("qwen3"), "q8_0"}, {.may_shrink = false});
    s.submit(1, 300);
    s.run(1);
    REQUIRE(s.failures.size() == 1);
    CHECK(s.failures[0].code == ErrorCode::out_of_memory);
    CHECK(s.model.info().n_pool == kPool);
    CHECK(!s.engine.is_broken());
}

}  // TEST_SUITE("device")
