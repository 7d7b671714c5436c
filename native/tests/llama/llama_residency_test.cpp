// A lane that does not see all of its text, on real models of each family: what it computes is what the whole cache
// gives where the same pages are masked, wherever the pages lie that it sees, and each page comes back bit for bit.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "test_paths.h"
#include "tests/llama/llama_memory.h"

TEST_SUITE("llama") {

using namespace luce;
using namespace luce::memory_tests;

namespace {

constexpr std::size_t kPages = 8;

Cells cells_of(Setup& s, std::size_t page) {
    return s.find(kFirst, static_cast<Position>(page) * kPageSize, kPageSize);
}

}  // namespace

TEST_CASE("what a lane computes with some of its pages is what the whole cache gives with the others masked") {
    for (const char* name : {"", "qwen3", "qwen3moe", "qwen35", "qwen35moe", "gemma4", "laguna"}) {
        for (const char* type : {"bf16", "q8_0"}) {
            CAPTURE(name);
            CAPTURE(type);
            const Variant variant{*name == '\0' ? LUCE_TINY_MODEL : test_model(name), type};
            const std::vector<std::size_t> hidden = {1, 3, 4};
            const Tokens text = some_tokens(static_cast<int>(kPages) * kPageSize + 10, 3);
            const std::vector<Position> cuts = {200, 400};

            Setup masked(variant);
            masked.compute(kFirst, text, cuts);
            const Snapshot snapshot = masked.take(kFirst, text);
            for (const std::size_t page : hidden) {
                const Cells cells = cells_of(masked, page);
                masked.device.hold(cells);  // the rows stay where they are, nobody sees them
                masked.device.hide(kFirst, cells);
            }
            const auto n_text = static_cast<Position>(text.size());
            const std::vector<Logits> reference = masked.go_on(kFirst, n_text);

            // The pages lie in other cells, and in another order, with nothing in the place of the others.
            Setup bounded(variant, 768);
            bounded.load_state(kFirst, snapshot);
            for (std::size_t page = snapshot.pages.size(); page-- > 0;) {
                if (std::find(hidden.begin(), hidden.end(), page) == hidden.end()) {
                    bounded.write_page(kFirst, snapshot, page);
                }
            }
            if (bounded.device.traits().has_state()) bounded.load_state(kFirst, snapshot);
            CHECK(logit_distance(bounded.go_on(kFirst, n_text), reference) < 1e-4);

            // And masking does change something.
            Setup whole(variant);
            whole.load_state(kFirst, snapshot);
            whole.write(kFirst, snapshot);
            if (whole.device.traits().has_state()) whole.load_state(kFirst, snapshot);
            CHECK(logit_distance(whole.go_on(kFirst, n_text), reference) > 1e-3);
        }
    }
}

TEST_CASE("pages that leave and come back at random are the same bytes, and the text goes on as if they had stayed") {
    Setup s;
    const Tokens text = some_tokens(static_cast<int>(kPages) * kPageSize + 10, 3);
    const auto n_text = static_cast<Position>(text.size());
    s.compute(kFirst, text, std::vector<Position>{200, 400});
    const Snapshot snapshot = s.take(kFirst, text);
    std::mt19937 random(3);
    std::vector<bool> is_seen(kPages, true);
    for (int round = 0; round < 300; ++round) {
        const std::size_t page = random() % kPages;
        if (is_seen[page]) {
            s.device.hide(kFirst, cells_of(s, page));
        } else {
            s.write_page(kFirst, snapshot, page);
        }
        is_seen[page] = !is_seen[page];
    }
    for (std::size_t page = 0; page < kPages; ++page) {
        if (!is_seen[page]) s.write_page(kFirst, snapshot, page);
    }
    const Snapshot after = s.take(kFirst, text);
    CHECK(after.pages == snapshot.pages);
    CHECK(after.state == snapshot.state);

    Setup untouched;
    untouched.load_state(kFirst, snapshot);
    untouched.write(kFirst, snapshot);
    if (untouched.device.traits().has_state()) untouched.load_state(kFirst, snapshot);
    // In other cells sums are formed in another order, which may turn one step of an 8-bit activation.
    CHECK(logit_distance(s.go_on(kFirst, n_text), untouched.go_on(kFirst, n_text)) < 0.15);
}

}  // TEST_SUITE("llama")
