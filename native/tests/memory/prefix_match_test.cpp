// Tests of the choice of a prefix, on a tree alone: how far, from what, and why not further.
#include <doctest/doctest.h>

#include <numeric>

#include "memory/pages/prefix_match.h"

TEST_SUITE("memory") {

using namespace luce;
using namespace luce::memory;

namespace {

Tokens counting(std::size_t n) {
    Tokens tokens(n);
    std::iota(tokens.begin(), tokens.end(), 1);
    return tokens;
}

// A tree that knows one text: its pages in host memory, and checkpoints where they are put.
struct Texts {
    explicit Texts(const Tokens& text) : text(text) {
        Page* page = &tree.root();
        for (std::size_t i = 0; i + kPageSize <= text.size(); i += kPageSize) {
            page = &tree.add(*page, std::span(text).subspan(i).first<kPageSize>());
            page->host = std::make_shared<Bytes>();
            pages.push_back(page);
        }
    }

    Checkpoint& checkpoint_at(Position position, bool with_logits) {
        const Position n_pages = position / kPageSize;
        Page& page = n_pages == 0 ? tree.root() : *pages[static_cast<std::size_t>(n_pages - 1)];
        auto data = std::make_shared<CheckpointData>();
        if (with_logits) data->logits = {1.0F};
        const auto rest = std::span(text).subspan(static_cast<std::size_t>(page.end()),
                                                  static_cast<std::size_t>(position - page.end()));
        return tree.add_checkpoint(page, rest, CheckpointKind::mark, std::move(data));
    }

    PrefixMatch choose(const Tokens& wanted, bool has_state, std::optional<Position> n_most = {}) {
        const auto n = static_cast<Position>(wanted.size());
        return match_prefix(tree.walk(wanted, nullptr), tree.root(), wanted, {n_most.value_or(n), true, has_state});
    }

    PrefixTree tree{"test"};
    Tokens text;
    std::vector<Page*> pages;
};

Tokens with(Tokens tokens, std::size_t at, Token token) {
    tokens[at] = token;
    return tokens;
}

}  // namespace

TEST_CASE("rows: up to where the texts part, within a page and within a checkpoint") {
    Texts known(counting(170));
    known.checkpoint_at(170, false);
    CHECK(known.choose(with(counting(200), 100, 7), false).n == 100);
    CHECK(known.choose(with(counting(200), 150, 7), false).n == 150);
    CHECK(known.choose(counting(200), false).n == 170);
    // The last token is computed again where its logits are not known.
    CHECK(known.choose(counting(170), false).n == 169);
    known.checkpoint_at(128, true);
    const PrefixMatch whole = known.choose(counting(128), false);
    CHECK(whole.n == 128);
    CHECK(whole.has_logits);
    CHECK(known.choose(counting(200), false, 90).n == 90);
}

TEST_CASE("with state a prefix ends where a checkpoint stands, and says why not further") {
    Texts known(counting(200));
    known.checkpoint_at(70, true);
    known.checkpoint_at(150, true);
    CHECK(known.choose(counting(200), true).n == 150);
    CHECK(to_string(known.choose(with(counting(200), 100, 7), true).miss) == "differs_at:100");
    CHECK(to_string(known.choose(with(counting(200), 140, 7), true).miss) == "no_tail");
    CHECK(known.choose(with(counting(200), 100, 7), true).n == 70);
    CHECK(to_string(known.choose(with(counting(200), 70, 7), true).miss) == "differs_at:70");
    known.pages[1]->host = nullptr;
    CHECK(known.choose(counting(200), true).n == 70);
    CHECK(to_string(known.choose(counting(200), true).miss) == "evicted");
    CHECK(to_string(known.choose(with(counting(200), 0, 7), true).miss) == "differs_at:0");
}

TEST_CASE(
    "exactly so many positions: from a checkpoint, from a page that goes on, from a longer checkpoint, or not at all") {
    Texts known(counting(170));
    const Tokens& text = known.text;
    const auto at = [&](Position position, bool has_state = false) {
        return prefix_match_at(known.pages, known.tree.root(), position, text, has_state);
    };
    CHECK(at(128)->n == 128);
    CHECK(at(100)->beside == known.pages[1]);
    CHECK(!at(150));  // nothing holds these rows
    CHECK(!at(128, true));
    Checkpoint& checkpoint = known.checkpoint_at(170, true);
    for (const Position position : {129, 150, 169}) {
        const std::optional<PrefixMatch> prefix_match = at(position);
        REQUIRE(prefix_match);
        CHECK(prefix_match->n_rest == position - 128);
        CHECK(prefix_match->checkpoint == &checkpoint);
        CHECK(!prefix_match->has_logits);
    }
    CHECK(at(170)->has_logits);
    CHECK(at(170, true)->checkpoint == &checkpoint);
    CHECK(!at(150, true));
}

}  // TEST_SUITE("memory")
