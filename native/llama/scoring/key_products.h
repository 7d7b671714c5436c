// KeyProducts: a page's keys in 4 bits, as ggml's rows of Q4_0, and the largest products of queries with them, which
// ggml computes on the CPU, with the threads that it computes with there. Must not know texts or scores.
//
// ggml rounds what rows of Q4_0 are multiplied with to 8 bits, a fraction of what rounding the keys has cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <ggml-cpp.h>

#include "memory/residency/page_scorer.h"
#include "memory/tiers/blob.h"

namespace luce::llama {

struct KeyShape {
    std::size_t n_heads = 0;     // of a query
    std::size_t n_heads_kv = 0;  // of a key; query head h goes with h / (n_heads / n_heads_kv)
    std::size_t n_dims = 0;      // that are compared
    std::size_t head_size = 0;   // what products are scaled by
    bool operator==(const KeyShape&) const = default;
};

// Keys at a page's end that are looked at by themselves, too.
inline constexpr std::size_t kEndKeys = 16;

std::size_t packed_bytes(const KeyShape& shape);  // of one page

// The keys of a page, KV head by KV head. `keys`: key by key, in each head by head. REQUIRES: memory::kPageSize keys.
memory::Bytes pack_keys(const KeyShape& shape, std::span<const float> keys);

// Page by page; in each KV head by KV head, query by query, head of the group by head.
struct LargestProducts {
    using Floats = std::vector<float, memory::UntouchedAllocator<float>>;
    Floats of_page;  // with any key of the page
    Floats at_end;   // with one of its last kEndKeys
};

class KeyProducts {
public:
    // Without a CPU backend there are none. One thread at a time uses it.
    KeyProducts(const KeyShape& shape, std::int32_t n_threads);

    bool is_there() const { return backend_ != nullptr; }

    // A key that is no number loses every comparison; of a query that is none, all products are none. `queries`: query
    // by query, in each head by head. REQUIRES: is_there(); whole queries, pages from pack_keys().
    LargestProducts run(std::span<const float> queries, std::span<const memory::PageKeys> pages);

private:
    struct Queries;
    Queries round(std::span<const float> queries) const;
    void run_batch(const Queries& queries, std::span<const memory::PageKeys> pages, float* of_page, float* at_end);

    KeyShape shape_;
    ggml_backend_ptr backend_;
    std::vector<std::uint8_t> keys_;  // of a batch's pages, head by head
    std::vector<float> products_;     // of a batch
};

}  // namespace luce::llama
