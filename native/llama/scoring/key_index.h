// KeyIndex: a page's keys in few bits, and how much pages matter to queries. Pure arithmetic on bytes: must not know
// where keys and queries come from, nor lanes.
//
// s[h,t,p] is the largest product of head h's query t with a key of page p, or with one of the last keys of the page
// before it, over sqrt(size of a head); z is s less its mean over the pages, in standard deviations; a page's score is
// its largest z over all queries and heads. Normalised because heads differ in how loudly they speak; the largest
// because a single query of a single head may be the one that asks; with the keys just before it because what is asked
// for often stands behind what the query finds ("the code of the red fox is", and then the code). Every key of every
// page is looked at: a few that stand for a page, far apart or long ones, miss one in ten of the pages that matter
// most. So products have to be fast (KeyProducts): they are all of an answer's cost that grows with its text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "llama/scoring/key_products.h"
#include "memory/residency/page_scorer.h"

namespace luce::llama {

class KeyIndex {
public:
    // Errors: unsupported (heads that do not go together, or no CPU backend).
    static Result<std::unique_ptr<KeyIndex>> create(const KeyShape& shape, std::int32_t n_threads);

    const KeyShape& shape() const { return shape_; }
    std::size_t keys_bytes() const { return packed_bytes(shape_); }  // of one page

    // A page's keys: key by key, in each KV head by KV head. REQUIRES: memory::kPageSize of them.
    memory::PageKeys encode(std::span<const float> keys) const;

    // Of each page of a text, in their order. The queries: query by query, in each head by head. REQUIRES: whole
    // queries, pages from encode().
    std::vector<float> scores(std::span<const float> queries, std::span<const memory::PageKeys> pages);

    // The same where a page's keys are in several blocks, one page's behind the other's: `ends` has for each page the
    // number of blocks up to its end. REQUIRES: no page is empty, the last end is the number of blocks.
    std::vector<float> scores(std::span<const float> queries, std::span<const memory::PageKeys> blocks,
                              std::span<const std::size_t> ends);

private:
    KeyIndex(const KeyShape& shape, KeyProducts products) : shape_(shape), products_(std::move(products)) {}

    static void reach_over(LargestProducts& products, std::size_t n_pages);
    // The pages' scores from their products, which lie page by page.
    static std::vector<float> normalised(std::span<const float> largest, std::size_t n_all);

    KeyShape shape_;
    KeyProducts products_;
};

}  // namespace luce::llama
