// KeyProducts: a page's keys in 4 bits as they are kept, and the largest products of queries with them, in whole
// numbers. Pure arithmetic on bytes, as fast as the processor at hand allows; must not know pages of texts or scores.
//
// A key's values come in blocks of 32 with a scale each, as ggml rounds them (Q4_0), but lie so that 16 keys make a
// vector: for each KV head and block the scales of all keys, then for four values at a time all keys' bytes, with the
// values 16 further on in the bytes' upper halves. Queries are rounded to 16 bits with a scale each: that is a
// thousandth of what rounding the keys has cost, and products of whole numbers are what processors compute fastest. A
// block's sum stays below 2^24, so that floats, where there is no such instruction, find the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/tiers/blob.h"

namespace luce::llama {

struct KeyShape {
    std::size_t n_heads = 0;     // of a query
    std::size_t n_heads_kv = 0;  // of a key; query head h goes with h / (n_heads / n_heads_kv)
    std::size_t n_dims = 0;      // that are compared
    std::size_t head_size = 0;   // what products are scaled by
    bool operator==(const KeyShape&) const = default;
};

struct KeyHead;

// Keys at a page's end that are looked at by themselves, too.
inline constexpr std::size_t kEndKeys = 16;

std::size_t packed_bytes(const KeyShape& shape);  // of one page

// A page's keys: key by key, in each KV head by KV head. REQUIRES: memory::kPageSize keys; of unpack_keys() that many
// bytes from pack_keys().
memory::Bytes pack_keys(const KeyShape& shape, std::span<const float> keys);
std::vector<float> unpack_keys(const KeyShape& shape, std::span<const std::uint8_t> packed);

// Queries as products take them. Of one that is no number all products are none.
class RoundedQueries {
public:
    // Query by query, in each head by head.
    RoundedQueries(const KeyShape& shape, std::span<const float> queries);

    // Of all heads; they are ordered KV head by KV head, in each query by query, head of the group by head.
    std::size_t n_rows() const { return n_heads_kv_ * n_rows_of_head_; }

private:
    friend class KeyProducts;
    static float round(std::span<const float> query, std::span<std::int16_t> values);

    std::size_t n_heads_kv_ = 0;
    std::size_t n_rows_of_head_ = 0;
    std::size_t n_stored_ = 0;          // rows of a head, to a whole number of steps
    std::vector<std::int16_t> values_;  // row by row, in the keys' order
    std::vector<float> scales_;
};

// One thread's; room for one page.
class KeyProducts {
public:
    // Products by these instructions, or in the compiler's own vectors.
    enum class Way { avx512, avx2, portable };
    static std::vector<Way> ways();  // that this processor has, the fastest first

    // REQUIRES: one of ways().
    explicit KeyProducts(const KeyShape& shape, Way way = ways().front());

    // For each row the largest product with a key of the page, and with one of its last kEndKeys. A key that is no
    // number loses every comparison. REQUIRES: packed_bytes() of them, n_rows() of each.
    void run(const RoundedQueries& queries, std::span<const std::uint8_t> page, std::span<float> largest,
             std::span<float> at_end);

    // One KV head's, with room for its keys and for their scales.
    using Multiply = void (*)(const KeyHead&, float*, float*);

private:
    struct alignas(64) Lanes : std::array<float, 16> {};

    KeyShape shape_;
    Multiply multiply_;
    std::vector<Lanes> keys_;    // of one KV head, spread out
    std::vector<Lanes> scales_;  // of its blocks
};

}  // namespace luce::llama
