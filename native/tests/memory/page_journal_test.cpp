// Tests of the page journal: what a reader is told of pages that change, and what of a reader that does not read.
#include <doctest/doctest.h>

#include "memory/pages/prefix_tree.h"

TEST_SUITE("memory") {

using namespace luce;
using namespace luce::memory;

namespace {

struct Journal {
    PrefixTree tree{"test"};
    bool is_on_disk = false;
    int n_pages = 0;

    Journal() {
        tree.journal().start(tree, [this](const PageName&) { return is_on_disk; });
        CHECK(tree.journal().take(8).begins_anew);
    }

    Page& add() {
        std::array<Token, kPageSize> tokens{};
        tokens[0] = ++n_pages;
        return tree.add(tree.root(), tokens);
    }

    void place(Page& page, Blob rows) {
        page.host = std::move(rows);
        tree.journal().note(page);
        tree.retire(page);
    }

    std::vector<PageChange> take() { return tree.journal().take(1 << 20).changes; }
};

const Blob kRows = std::make_shared<Bytes>(1);

}  // namespace

TEST_CASE("a page is told as it stands, not by what happened to it") {
    Journal at;
    Page& page = at.add();
    at.place(page, kRows);
    at.place(page, nullptr);
    at.place(page, kRows);
    const std::vector<PageChange> changes = at.take();
    REQUIRE(changes.size() == 1);
    CHECK(changes[0].tiers == PageTiers{false, true, false});
    CHECK(changes[0].text->tokens == page.tokens);
    CHECK_FALSE(changes[0].text->parent);
    at.place(page, nullptr);
    at.place(page, kRows);
    CHECK(at.take().empty());
    at.is_on_disk = true;
    at.place(page, nullptr);
    CHECK(at.take().at(0).tiers == PageTiers{false, false, true});
    at.is_on_disk = false;
    at.tree.journal().note_gone_from_disk(page.name);
    const std::vector<PageChange> last = at.take();
    REQUIRE(last.size() == 1);
    CHECK_FALSE(last[0].tiers.has_any());
    CHECK_FALSE(last[0].text);
}

TEST_CASE("a page that the tree forgets is told of by its name, if it was told") {
    Journal at;
    Page& told = at.add();
    const PageName name = told.name;
    at.place(told, kRows);
    CHECK(at.take().size() == 1);
    at.place(told, nullptr);
    at.place(at.add(), nullptr);
    at.tree.forget_evicted();
    const std::vector<PageChange> changes = at.take();
    REQUIRE(changes.size() == 1);
    CHECK(changes[0].name == name);
    CHECK_FALSE(at.tree.journal().has_news());
}

TEST_CASE("a reader that does not read is told all anew, and nothing is kept for it") {
    Journal at;
    constexpr int kMany = 70'000;
    for (int i = 0; i < kMany; ++i) at.place(at.add(), kRows);
    CHECK(at.take().size() == kMany);
    std::vector<Page*> pages;
    at.tree.for_each([&](Page& page) {
        if (!page.is_root()) pages.push_back(&page);
    });
    for (Page* page : pages) at.place(*page, nullptr);
    at.tree.forget_evicted();
    at.place(at.add(), kRows);
    const PageChanges anew = at.tree.journal().take(8);
    CHECK(anew.begins_anew);
    CHECK(anew.changes.size() == 1);
    CHECK_FALSE(at.tree.journal().has_news());
}

TEST_CASE("off, nothing is kept") {
    Journal at;
    at.tree.journal().stop();
    at.place(at.add(), kRows);
    CHECK_FALSE(at.tree.journal().has_news());
}

}  // TEST_SUITE("memory")
