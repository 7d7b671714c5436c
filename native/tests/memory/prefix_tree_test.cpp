// Tests of the tree of known texts: what is shared, what is found, and what is forgotten.
#include <doctest/doctest.h>

#include "memory/pages/prefix_tree.h"

TEST_SUITE("memory") {

using namespace luce;
using namespace luce::memory;

namespace {

Tokens page_of(Token a, Token b) {
    Tokens tokens(kPageSize, a);
    tokens.back() = b;
    return tokens;
}

std::span<const Token, kPageSize> as_page(const Tokens& tokens) { return std::span(tokens).first<kPageSize>(); }

}  // namespace

TEST_CASE("texts share the pages that they begin with") {
    PrefixTree tree("test");
    Page& first = tree.add(tree.root(), as_page(page_of(1, 1)));
    Page& left = tree.add(first, as_page(page_of(2, 1)));
    tree.add(first, as_page(page_of(2, 2)));
    Tokens text = page_of(1, 1);
    const Tokens second = page_of(2, 1);
    text.insert(text.end(), second.begin(), second.end());
    const Known known = tree.walk(text, nullptr);
    CHECK(known.pages == std::vector<Page*>{&first, &left});
    CHECK(known.n_matched == 128);
    text.back() = 9;
    const Known parted = tree.walk(text, nullptr);
    CHECK(parted.pages.size() == 1);
    CHECK(parted.n_matched == 127);
    CHECK(parted.beside != nullptr);
    CHECK(text_of(left).size() == 128);
}

TEST_CASE("very many dead texts are forgotten without end of the stack") {
    PrefixTree tree("test");
    // More than the tree keeps, each two pages long: forgetting a leaf makes its parent the next to go.
    for (Token i = 0; i < 70'000; ++i) {
        Page& parent = tree.add(tree.root(), as_page(page_of(i, 1)));
        Page& leaf = tree.add(parent, as_page(page_of(i, 2)));
        tree.retire(leaf);
    }
    CHECK(tree.n_pages() <= 140'000);
    tree.forget_evicted();
    CHECK(tree.n_pages() == 0);
}

}  // TEST_SUITE("memory")
