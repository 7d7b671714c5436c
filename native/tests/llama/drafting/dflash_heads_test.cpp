// Tests of DFlash drafters with what newer ones have behind their block: they draft what llama.cpp's own driver drafts,
// alone and beside lanes that ask for fewer tokens, and what its graphs would assert is refused before.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "llama/drafting/dflash_drafts.h"
#include "llama/gguf_check/draft_fit.h"
#include "tests/llama/drafting/speculating.h"

TEST_SUITE("llama") {

using namespace luce;
using namespace luce::draft_tests;

namespace {

const std::vector<Pair> kHeads = {{"qwen3", "dflash-qwen3", "draft-dflash"},
                                  {"qwen3", "dspark-qwen3", "draft-dspark"},
                                  {"qwen3", "dspark-bonus", "draft-dspark"},
                                  {"qwen3", "dflash2-qwen3", "draft-dflash"},
                                  {"qwen35", "dflash2-qwen35", "draft-dflash"}};

using Ours = Speculating<llama::DflashDrafts>;

}  // namespace

TEST_CASE("drafts of every kind of DFlash drafter are those of llama.cpp's own driver") {
    for (const Pair& pair : kHeads) check_same_drafts<llama::DflashDrafts>(pair, 8);
}

TEST_CASE("a lane that asks for fewer tokens gets the beginning of what it would get, and others all of theirs") {
    for (const Pair& pair : kHeads) {
        CAPTURE(pair.draft);
        Ours ours(pair.target, pair.draft);
        ours.start(kFirst, some_tokens(50, 3));
        ours.start(kSecond, some_tokens(70, 11));
        const Tokens first = ours.draft({kFirst})[0].tokens;
        const Tokens second = ours.draft({kSecond})[0].tokens;
        std::vector<Draft> both;
        REQUIRE(ours.drafts
                    ->draft(std::vector<DraftAsk>{{kFirst, ours.text(kFirst), 2}, {kSecond, ours.text(kSecond), kMost}},
                            both)
                    .ok());
        REQUIRE(both.size() == 2);
        CHECK(text_of(both[1].tokens) == text_of(second));
        REQUIRE(both[0].tokens.size() == 2);
        // A block without a head is as long as its lane asks, and its places see each other.
        if (pair.draft == "dflash-qwen3") continue;
        CHECK(text_of(both[0].tokens) == text_of(Tokens(first.begin(), first.begin() + 2)));
    }
}

}  // TEST_SUITE("llama")
