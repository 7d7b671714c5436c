// KeyIndex: a page's keys in few bits, and how much pages matter to queries. Pure arithmetic on bytes: must not know
// where keys and queries come from, nor lanes.
//
// s[h,t,p] is the largest product of head h's query t with a key of page p, or with one of the last keys of the page
// before it, over sqrt(size of a head); z is s less its mean over the pages, in standard deviations; a page's score is
// its largest z over all queries and heads. Normalised because heads differ in how loudly they speak; the largest
// because a single query of a single head may be the one that asks; with the keys just before it because what is asked
// for often stands behind what the query finds ("the code of the red fox is", and then the code). The products come
// from ggml's matrix product on the CPU: it is the fastest one here, and the only one that can be called where the
// CPU's kernels are loaded at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "memory/page_scorer.h"

namespace luce::llama {

struct KeyShape {
    std::size_t n_heads = 0;     // of a query
    std::size_t n_heads_kv = 0;  // of a key; query head h goes with h / (n_heads / n_heads_kv)
    std::size_t n_dims = 0;      // that are compared
    std::size_t head_size = 0;   // what products are scaled by
    bool operator==(const KeyShape&) const = default;
};

class KeyIndex {
public:
    // Errors: unsupported (heads that do not go together; no CPU kernels for it), out_of_memory.
    static Result<std::unique_ptr<KeyIndex>> create(const KeyShape& shape, std::int32_t n_threads);
    ~KeyIndex();
    KeyIndex(const KeyIndex&) = delete;
    KeyIndex& operator=(const KeyIndex&) = delete;

    const KeyShape& shape() const { return shape_; }
    std::size_t keys_bytes() const;  // of one page

    // A page's keys: key by key, in each KV head by KV head. REQUIRES: memory::kPageSize of them.
    memory::PageKeys encode(std::span<const float> keys) const;

    // The keys as scores() sees them, in the same order.
    std::vector<float> decode(const memory::Bytes& encoded) const;

    // Of each page of a text, in their order. The queries: query by query, in each head by head. REQUIRES: whole
    // queries, pages from encode().
    std::vector<float> scores(std::span<const float> queries, std::span<const memory::PageKeys> pages);

    // The same where a page's keys are in several blocks, one page's behind the other's: `ends` has for each page the
    // number of blocks up to its end. REQUIRES: no page is empty, the last end is the number of blocks.
    std::vector<float> scores(std::span<const float> queries, std::span<const memory::PageKeys> blocks,
                              std::span<const std::size_t> ends);

    // The largest product with a page's own keys: page by page, in each query by query, head by head.
    std::vector<float> largest_products(std::span<const float> queries, std::span<const memory::PageKeys> pages);

private:
    class Multiplier;

    KeyIndex(const KeyShape& shape, std::vector<std::unique_ptr<Multiplier>> multipliers);

    std::size_t n_padded() const;      // dimensions of a key, to a whole number of blocks
    std::size_t n_multiplied() const;  // the first of them, that a product needs
    // Page by page, in the order that the product gives: KV head by KV head, in each query by query, head of the group
    // by head. Empty: failed.
    struct Products {
        std::vector<float> largest;
        std::vector<float> at_end;  // the largest with the page's last keys
    };
    Products products(std::span<const float> queries, std::span<const memory::PageKeys> pages);
    std::vector<float> arranged(std::span<const float> queries) const;
    static void reach_over(Products& products, std::size_t n_pages);
    // The pages' scores from their products, which lie page by page.
    static std::vector<float> normalised(std::span<const float> largest, std::size_t n_all);

    KeyShape shape_;
    std::vector<std::unique_ptr<Multiplier>> multipliers_;  // one a thread
};

}  // namespace luce::llama
