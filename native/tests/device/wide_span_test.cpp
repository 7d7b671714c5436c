// On a GPU attention runs over a few cells more than a call needs, so that graphs last: how long they do, and that no
// cell is lost by it.
#include <doctest/doctest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "tests/llama/llama_memory.h"

TEST_SUITE("device") {

using namespace luce;
using namespace luce::memory_tests;

namespace {

constexpr std::int32_t kPool = 4096;

// Of n calls of one token behind a text: those for which libllama had the graph.
int n_reused(Setup& s, Position begin, int n) {
    const auto count = [&] { return llama_perf_context(s.model.context()).n_reused; };
    const int before = count();
    for (const Token token : some_tokens(n, 91)) s.decode(kFirst, begin++, std::span(&token, 1));
    return count() - before;
}

}  // namespace

TEST_CASE("an answer goes on with its graph where llama.cpp would span more cells") {
    const Tokens text = some_tokens(200, 3);
    Setup plain({test_model("qwen3"), "q8_0"}, kPool);
    plain.compute(kFirst, text);
    Setup wide({test_model("qwen3"), "q8_0"}, kPool);
    wide.decoder.note_kv_device(&wide.device);
    wide.compute(kFirst, text);
    // Behind 256 cells, behind 512, and none of it: graphs are kept from the second call of a shape on.
    const int n_plain = n_reused(plain, 200, 400);
    const int n_wide = n_reused(wide, 200, 400);
    CHECK(n_wide == n_plain + 2);
    CHECK(n_wide >= 397);
}

TEST_CASE("the cell that the span ends at may be free, be filled by the call, or be set aside") {
    Setup s({test_model("qwen3"), "q8_0"}, kPool);
    s.decoder.note_kv_device(&s.device);
    const Tokens idle = some_tokens(64, 40);
    s.compute(kSecond, idle);
    Cells aside = s.find(kSecond, 0, idle.size());
    s.device.hold(aside);
    s.device.forget(kSecond);
    s.device.set_aside(aside);
    REQUIRE(std::ranges::max(aside) == kPool - 1);

    const Tokens text = some_tokens(kPool - 64 - 40, 3);
    std::vector<Position> cuts;
    for (Position at = 200; at < static_cast<Position>(text.size()); at += 200) cuts.push_back(at);
    s.compute(kFirst, text, cuts);
    Position end = static_cast<Position>(text.size());
    const auto n_used = [&] { return s.device.usage().n_used_cells; };
    CHECK(n_used() == end);
    for (const Token token : some_tokens(40, 91)) s.decode(kFirst, end++, std::span(&token, 1));
    CHECK(n_used() == end);
    CHECK(s.device.n_free_cells() == 0);
    CHECK(s.device.usage().n_aside_cells == 64);
    CHECK(s.device.n_spanned_cells(0) == kPool - 64);

    s.device.forget(kFirst);
    CHECK(n_used() == 0);
    s.device.bring_back(aside);
    CHECK(n_used() == 64);
    s.device.release(aside);
    CHECK(s.device.n_free_cells() == kPool);
}

TEST_CASE("a lane computes up to the pool's last cell") {
    Setup s({test_model("qwen3"), "q8_0"}, 1024);
    s.decoder.note_kv_device(&s.device);
    const std::vector<Position> cuts = {200, 400, 600, 800};
    s.compute(kFirst, some_tokens(1000, 3), cuts);
    Position end = 1000;
    for (const Token token : some_tokens(24, 91)) s.decode(kFirst, end++, std::span(&token, 1));
    CHECK(s.device.n_free_cells() == 0);
    CHECK(s.device.usage().n_used_cells == 1024);
    s.device.forget(kFirst);
    CHECK(s.device.n_free_cells() == 1024);
}

}  // TEST_SUITE("device")
