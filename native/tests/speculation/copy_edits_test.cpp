// Tests of what a copy changes: which edits are learnt, and when they are expected again.
#include <doctest/doctest.h>

#include "speculation/ngram/copy_edits.h"

TEST_SUITE("speculation") {

using namespace luce;
using namespace luce::speculation;

namespace {

// A passage, and its copy so far behind it.
struct Copying {
    Tokens text;
    std::size_t n_text = 0, from = 0;  // to here it is known
    CopyEdits edits;

    Copying(const Tokens& passage, const Tokens& copy) : text(passage), n_text(passage.size()) {
        text.insert(text.end(), copy.begin(), copy.end());
    }
    // The copy has come to before `place`.
    void learn(std::size_t place) {
        edits.learn(text, n_text, from, place);
        n_text = text.size();
        from = place;
    }
    Tokens expected(std::size_t place) const {
        const CopyEdit* edit = edits.expected(text, place);
        return edit == nullptr ? Tokens{} : edit->after;
    }
};

}  // namespace

TEST_CASE("an edit is learnt and expected where the same tokens stand") {
    Copying copying({1, 2, 7, 8, 3, 4, 7, 8, 5}, {1, 2, 60, 61, 62, 3, 4});
    copying.learn(6);
    CHECK(copying.expected(6) == Tokens{60, 61, 62});
    CHECK(copying.expected(2) == Tokens{60, 61, 62});
    CHECK(copying.expected(4).empty());
    CHECK(copying.edits.expected(copying.text, copying.text.size()) == nullptr);
}

TEST_CASE("of several edits in one go the new one is found") {
    Copying copying({1, 7, 2, 3, 7, 4, 9, 5, 9}, {1, 60, 2, 3});
    copying.learn(4);
    for (const Token token : {60, 4, 90, 5}) copying.text.push_back(token);
    copying.learn(8);
    CHECK(copying.expected(8) == Tokens{90});
    CHECK(copying.expected(4) == Tokens{60});
}

TEST_CASE("what is kept as often as changed is not expected to change") {
    Copying copying({1, 7, 2, 3, 7, 4}, {1, 60, 2, 3});
    copying.learn(4);
    CHECK(copying.expected(4) == Tokens{60});
    for (const Token token : {7, 4}) copying.text.push_back(token);
    copying.learn(6);
    CHECK(copying.expected(4).empty());
}

TEST_CASE("what is left out is an edit, what is only added or long is none") {
    Copying left_out({1, 7, 2, 3, 7}, {1, 2, 3});
    left_out.learn(4);
    REQUIRE(left_out.edits.expected(left_out.text, 4) != nullptr);
    CHECK(left_out.edits.expected(left_out.text, 4)->after.empty());
    Copying added({1, 2, 3, 4}, {1, 2, 60, 3});
    added.learn(3);
    for (std::size_t place = 0; place < 4; ++place) CHECK(added.edits.expected(added.text, place) == nullptr);
    Tokens passage(40, 7), copy(40, 60);
    passage.front() = copy.front() = 1;
    passage.back() = copy.back() = 2;
    Copying other(passage, copy);
    other.learn(40);
    CHECK(other.edits.expected(other.text, 1) == nullptr);
}

}  // TEST_SUITE("speculation")
