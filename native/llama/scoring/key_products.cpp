#include "llama/scoring/key_products.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>

#include <ggml.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace luce::llama {

// One KV head of a page, the queries that go with it, and where the largest products go.
struct KeyHead {
    const std::uint8_t* page;
    std::size_t n_dims;
    const std::int16_t* queries;
    const float* query_scales;
    std::size_t n_rows;  // a whole number of steps is stored
    float* largest;
    float* at_end;
};

namespace {

constexpr std::size_t kKeys = memory::kPageSize;
constexpr std::size_t kLanes = 16;
constexpr std::size_t kQuarters = kKeys / kLanes;  // of a page: so many vectors
static_assert(kKeys % kLanes == 0 && kEndKeys == kLanes, "a page's last vector is its end");

// A block of a key's values, in bytes of which each holds two.
constexpr std::size_t kBlock = 32;
constexpr std::size_t kBytes = kBlock / 2;
constexpr std::size_t kScaleBytes = sizeof(ggml_fp16_t);
// Values that are next to each other in a vector, and those that are multiplied at once.
constexpr std::size_t kGroup = 4;
constexpr std::size_t kPair = 2;
constexpr std::size_t kBlockPairs = kBlock / kPair;
constexpr int kZero = 8;  // what a value of 0 is kept as

constexpr std::size_t kRowsAtOnce = 4;
constexpr float kLargestRounded = 32767;

std::size_t n_blocks(std::size_t n_dims) { return (n_dims + kBlock - 1) / kBlock; }
std::size_t head_bytes(std::size_t n_dims) { return n_blocks(n_dims) * kKeys * (kScaleBytes + kBytes); }

// Pairs of a block that have values at all, which are its first ones.
std::size_t n_pairs_in(std::size_t n_dims, std::size_t block) {
    const std::size_t n = std::min(kBlock, n_dims - block * kBlock);
    return (n + kGroup - 1) / kGroup * (kGroup / kPair);
}

std::size_t n_pairs(std::size_t n_dims) {
    return (n_blocks(n_dims) - 1) * kBlockPairs + n_pairs_in(n_dims, n_blocks(n_dims) - 1);
}

// The dimension that a pair's first or second value is of: of four neighbours the first and third make one pair.
std::size_t dimension_of(std::size_t pair, std::size_t second) { return pair / 2 * kGroup + pair % 2 + second * kPair; }

// Where in a block's bytes those of a key are: byte i of 16.
std::size_t place_of(std::size_t i, std::size_t key) { return i / kGroup * kKeys * kGroup + key * kGroup + i % kGroup; }

void read_scales(const std::uint8_t* block, float* scales) {
    for (std::size_t key = 0; key < kKeys; ++key) {
        ggml_fp16_t scale = 0;
        std::memcpy(&scale, block + key * kScaleBytes, kScaleBytes);
        scales[key] = ggml_fp16_to_fp32(scale);
    }
}

using Four [[gnu::vector_size(16), gnu::may_alias]] = float;
using Eight [[gnu::vector_size(32), gnu::may_alias]] = float;

[[gnu::always_inline]] inline void spread_out(const KeyHead& head, float* keys, float* scales) {
    static_assert(std::endian::native == std::endian::little, "a word's lowest byte is its first one");
    for (std::size_t block = 0; block < n_blocks(head.n_dims); ++block) {
        const std::uint8_t* const packed = head.page + block * kKeys * (kScaleBytes + kBytes);
        read_scales(packed, scales + block * kKeys);
        for (std::size_t pair = 0; pair < n_pairs_in(head.n_dims, block); ++pair) {
            std::array<std::uint32_t, kKeys> words;
            const std::size_t i = dimension_of(pair, 0);
            std::memcpy(words.data(), packed + kKeys * kScaleBytes + place_of(i % kBytes / kGroup * kGroup, 0),
                        sizeof(words));
            for (std::size_t second = 0; second < kPair; ++second, keys += kKeys) {
                const std::size_t shift = 8 * (dimension_of(pair, second) % kGroup) + (i < kBytes ? 0 : 4);
                for (std::size_t key = 0; key < kKeys; ++key) {
                    keys[key] = static_cast<float>(static_cast<int>((words[key] >> shift) & 15) - kZero);
                }
            }
        }
    }
}

// So many vectors of keys at once as there are registers for.
template <typename Vector, std::size_t kAtOnce>
[[gnu::always_inline]] inline void multiply_in_floats(const KeyHead& head, float* key_room, float* scale_room) {
    constexpr std::size_t kFloats = sizeof(Vector) / sizeof(float);
    constexpr std::size_t kVectors = kKeys / kFloats;
    spread_out(head, key_room, scale_room);
    const auto* const keys = reinterpret_cast<const Vector*>(key_room);
    const auto* const scales = reinterpret_cast<const Vector*>(scale_room);
    const std::size_t n_row_values = n_pairs(head.n_dims) * kPair;
    for (std::size_t row = 0; row < head.n_rows; ++row) {
        Vector lanes[kVectors];
        for (std::size_t first = 0; first < kVectors; first += kAtOnce) {
            Vector sums[kAtOnce] = {};
            const Vector* at = keys + first;
            const std::int16_t* query = head.queries + row * n_row_values;
            for (std::size_t block = 0; block < n_blocks(head.n_dims); ++block) {
                Vector products[kAtOnce] = {};
                for (std::size_t n = kPair * n_pairs_in(head.n_dims, block); n > 0; --n, at += kVectors) {
                    const auto value = static_cast<float>(*query++);
                    for (std::size_t i = 0; i < kAtOnce; ++i) products[i] += at[i] * value;
                }
                for (std::size_t i = 0; i < kAtOnce; ++i) sums[i] += products[i] * scales[block * kVectors + first + i];
            }
            std::copy_n(sums, kAtOnce, lanes + first);
        }
        const auto largest_from = [&](std::size_t first) {
            Vector most = Vector{} - std::numeric_limits<float>::infinity();
            for (std::size_t i = first; i < kVectors; ++i) most = lanes[i] > most ? lanes[i] : most;
            float largest = most[0];
            for (std::size_t j = 1; j < kFloats; ++j) largest = std::max(largest, most[j]);
            return largest;
        };
        head.largest[row] = largest_from(0) * head.query_scales[row];
        head.at_end[row] = largest_from(kVectors - kEndKeys / kFloats) * head.query_scales[row];
    }
}

void multiply_portably(const KeyHead& head, float* keys, float* scales) {
    multiply_in_floats<Four, 8>(head, keys, scales);
}

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] void multiply_in_avx2(const KeyHead& head, float* keys, float* scales) {
    multiply_in_floats<Eight, 8>(head, keys, scales);
}

// With a mask of all lanes where there is such a form: GCC 12 takes what the others leave undefined for our mistake.
constexpr __mmask16 kAll = 0xffff;
constexpr __mmask8 kAllPairs = 0xff;
using Words [[gnu::vector_size(64), gnu::may_alias]] = std::uint32_t;
using HalfWords [[gnu::vector_size(64), gnu::may_alias]] = std::int16_t;

// Each 32 bits of a vector hold a pair of values of one key.
[[gnu::target("avx512f,avx512bw,avx512vnni")]] void spread_out_pairs(const KeyHead& head, HalfWords* keys,
                                                                     __m512* scales) {
    for (std::size_t block = 0; block < n_blocks(head.n_dims); ++block) {
        const std::uint8_t* const packed = head.page + block * kKeys * (kScaleBytes + kBytes);
        for (std::size_t quarter = 0; quarter < kQuarters; ++quarter) {
            const auto* const halves = reinterpret_cast<const __m256i*>(packed) + quarter;
            *scales++ = _mm512_maskz_cvtph_ps(kAll, _mm256_loadu_si256(halves));
        }
        const std::uint8_t* const bytes = packed + kKeys * kScaleBytes;
        for (std::size_t i = 0; i < n_pairs_in(head.n_dims, block) * kPair; i += kGroup, keys += 2 * kQuarters) {
            const std::uint32_t half = i < kBytes ? 0 : 4;
            for (std::size_t quarter = 0; quarter < kQuarters; ++quarter) {
                const std::uint8_t* const from = bytes + place_of(i % kBytes, quarter * kLanes);
                const Words four = reinterpret_cast<Words>(_mm512_loadu_si512(from)) >> half;
                keys[quarter] = reinterpret_cast<HalfWords>(four & 0x000f000fU) - std::int16_t{kZero};
                keys[kQuarters + quarter] =
                    reinterpret_cast<HalfWords>((four >> 8) & 0x000f000fU) - std::int16_t{kZero};
            }
        }
    }
}

// The second, where the first is no number.
[[gnu::target("avx512f,avx512bw,avx512vnni")]] inline __m512 larger(__m512 a, __m512 b) {
    return _mm512_maskz_max_ps(kAll, a, b);
}

// Of four vectors each one's largest, in the first four lanes: each step halves what is left of all of them.
[[gnu::target("avx512f,avx512bw,avx512vnni")]] inline __m512 largest_of_each(const __m512 (&rows)[kRowsAtOnce]) {
    static_assert(kRowsAtOnce == 4);
    const __m512 a =
        larger(_mm512_maskz_unpacklo_ps(kAll, rows[0], rows[1]), _mm512_maskz_unpackhi_ps(kAll, rows[0], rows[1]));
    const __m512 b =
        larger(_mm512_maskz_unpacklo_ps(kAll, rows[2], rows[3]), _mm512_maskz_unpackhi_ps(kAll, rows[2], rows[3]));
    const auto pairs_a = reinterpret_cast<__m512d>(a);
    const auto pairs_b = reinterpret_cast<__m512d>(b);
    __m512 all = larger(reinterpret_cast<__m512>(_mm512_maskz_unpacklo_pd(kAllPairs, pairs_a, pairs_b)),
                        reinterpret_cast<__m512>(_mm512_maskz_unpackhi_pd(kAllPairs, pairs_a, pairs_b)));
    all = larger(all, _mm512_maskz_shuffle_f32x4(kAll, all, all, _MM_SHUFFLE(1, 0, 3, 2)));
    return larger(all, _mm512_maskz_shuffle_f32x4(kAll, all, all, _MM_SHUFFLE(2, 3, 0, 1)));
}

[[gnu::target("avx512f,avx512bw,avx512vnni")]] void multiply_in_pairs(const KeyHead& head, float* key_room,
                                                                      float* scale_room) {
    auto* const keys = reinterpret_cast<HalfWords*>(key_room);
    auto* const scales = reinterpret_cast<__m512*>(scale_room);
    spread_out_pairs(head, keys, scales);
    const std::size_t n_row_values = n_pairs(head.n_dims) * kPair;
    const __m512 least = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    for (std::size_t row = 0; row < head.n_rows; row += kRowsAtOnce) {
        __m512 sums[kRowsAtOnce][kQuarters];
        for (auto& of_row : sums) {
            for (__m512& sum : of_row) sum = _mm512_setzero_ps();
        }
        const HalfWords* at = keys;
        const std::int16_t* query = head.queries + row * n_row_values;
        for (std::size_t block = 0; block < n_blocks(head.n_dims); ++block) {
            __m512i products[kRowsAtOnce][kQuarters];
            for (auto& of_row : products) {
                for (__m512i& product : of_row) product = _mm512_setzero_si512();
            }
#pragma GCC unroll 4
            for (std::size_t n = n_pairs_in(head.n_dims, block); n > 0; --n, at += kQuarters, query += kPair) {
                for (std::size_t i = 0; i < kRowsAtOnce; ++i) {
                    std::int32_t pair = 0;
                    std::memcpy(&pair, query + i * n_row_values, sizeof(pair));
                    const __m512i values = _mm512_set1_epi32(pair);
                    for (std::size_t j = 0; j < kQuarters; ++j) {
                        products[i][j] = _mm512_dpwssd_epi32(products[i][j], reinterpret_cast<__m512i>(at[j]), values);
                    }
                }
            }
            for (std::size_t i = 0; i < kRowsAtOnce; ++i) {
                for (std::size_t j = 0; j < kQuarters; ++j) {
                    using Signed [[gnu::vector_size(64)]] = std::int32_t;
                    const auto whole = reinterpret_cast<Signed>(products[i][j]);
                    sums[i][j] += __builtin_convertvector(whole, __m512) * scales[block * kQuarters + j];
                }
            }
        }
        __m512 largest[kRowsAtOnce];
        __m512 at_end[kRowsAtOnce];
        for (std::size_t i = 0; i < kRowsAtOnce; ++i) {
            at_end[i] = larger(sums[i][kQuarters - 1], least);
            largest[i] = at_end[i];
            for (std::size_t j = 0; j + 1 < kQuarters; ++j) largest[i] = larger(sums[i][j], largest[i]);
        }
        const __m512 largest_of_rows = largest_of_each(largest);
        const __m512 at_end_of_rows = largest_of_each(at_end);
        for (std::size_t i = 0; i < std::min(kRowsAtOnce, head.n_rows - row); ++i) {
            head.largest[row + i] = largest_of_rows[i] * head.query_scales[row + i];
            head.at_end[row + i] = at_end_of_rows[i] * head.query_scales[row + i];
        }
    }
}
#endif

KeyProducts::Multiply multiply_of(KeyProducts::Way way) {
    switch (way) {
#if defined(__x86_64__)
        case KeyProducts::Way::avx512: return multiply_in_pairs;
        case KeyProducts::Way::avx2: return multiply_in_avx2;
#endif
        default: return multiply_portably;
    }
}

// Key by key, in each KV head by KV head, and KV head by KV head, so that each head's keys follow one another.
std::size_t place_by_head(const KeyShape& shape, std::size_t head, std::size_t key) {
    return (head * kKeys + key) * n_blocks(shape.n_dims) * kBlock;
}

}  // namespace

std::size_t packed_bytes(const KeyShape& shape) { return shape.n_heads_kv * head_bytes(shape.n_dims); }

memory::Bytes pack_keys(const KeyShape& shape, std::span<const float> keys) {
    assert(keys.size() == kKeys * shape.n_heads_kv * shape.n_dims);
    std::vector<float> by_head(place_by_head(shape, shape.n_heads_kv, 0), 0.0F);
    const float* from = keys.data();
    for (std::size_t key = 0; key < kKeys; ++key) {
        for (std::size_t head = 0; head < shape.n_heads_kv; ++head, from += shape.n_dims) {
            std::copy_n(from, shape.n_dims, by_head.data() + place_by_head(shape, head, key));
        }
    }
    memory::Bytes rows(packed_bytes(shape));
    ggml_quantize_chunk(GGML_TYPE_Q4_0, by_head.data(), rows.data(), 0,
                        static_cast<std::int64_t>(shape.n_heads_kv * kKeys),
                        static_cast<std::int64_t>(n_blocks(shape.n_dims) * kBlock), nullptr);
    memory::Bytes packed(rows.size());
    const std::uint8_t* row = rows.data();
    for (std::size_t head = 0; head < shape.n_heads_kv; ++head) {
        for (std::size_t key = 0; key < kKeys; ++key) {
            std::uint8_t* block = packed.data() + head * head_bytes(shape.n_dims);
            for (std::size_t i = 0; i < n_blocks(shape.n_dims); ++i) {
                std::copy_n(row, kScaleBytes, block + key * kScaleBytes);
                block += kKeys * kScaleBytes;
                row += kScaleBytes;
                for (std::size_t byte = 0; byte < kBytes; ++byte) block[place_of(byte, key)] = *row++;
                block += kKeys * kBytes;
            }
        }
    }
    return packed;
}

std::vector<float> unpack_keys(const KeyShape& shape, std::span<const std::uint8_t> packed) {
    assert(packed.size() == packed_bytes(shape));
    std::vector<float> keys(kKeys * shape.n_heads_kv * shape.n_dims);
    for (std::size_t head = 0; head < shape.n_heads_kv; ++head) {
        for (std::size_t i = 0; i < shape.n_dims; ++i) {
            const std::uint8_t* const block =
                packed.data() + head * head_bytes(shape.n_dims) + i / kBlock * kKeys * (kScaleBytes + kBytes);
            std::array<float, kKeys> scales;
            read_scales(block, scales.data());
            const std::size_t byte = i % kBlock % kBytes;
            const int shift = i % kBlock < kBytes ? 0 : 4;
            for (std::size_t key = 0; key < kKeys; ++key) {
                const int value = (block[kKeys * kScaleBytes + place_of(byte, key)] >> shift) & 15;
                keys[(key * shape.n_heads_kv + head) * shape.n_dims + i] =
                    static_cast<float>(value - kZero) * scales[key];
            }
        }
    }
    return keys;
}

RoundedQueries::RoundedQueries(const KeyShape& shape, std::span<const float> queries) {
    assert(queries.size() % (shape.n_heads * shape.n_dims) == 0);
    const std::size_t n_queries = queries.size() / (shape.n_heads * shape.n_dims);
    const std::size_t group = shape.n_heads / shape.n_heads_kv;
    n_heads_kv_ = shape.n_heads_kv;
    n_rows_of_head_ = n_queries * group;
    n_stored_ = (n_rows_of_head_ + kRowsAtOnce - 1) / kRowsAtOnce * kRowsAtOnce;
    const std::size_t n_values = n_pairs(shape.n_dims) * kPair;
    values_.resize(n_heads_kv_ * n_stored_ * n_values);
    scales_.resize(n_heads_kv_ * n_stored_);
    const float* from = queries.data();
    for (std::size_t query = 0; query < n_queries; ++query) {
        for (std::size_t head = 0; head < shape.n_heads; ++head, from += shape.n_dims) {
            const std::size_t row = head / group * n_stored_ + query * group + head % group;
            scales_[row] = round(std::span(from, shape.n_dims), std::span(values_).subspan(row * n_values, n_values)) /
                           std::sqrt(static_cast<float>(shape.head_size));
        }
    }
}

// What a step of the rounded values stands for.
float RoundedQueries::round(std::span<const float> query, std::span<std::int16_t> values) {
    float largest = 0;
    for (const float value : query) {
        if (!std::isfinite(value)) return std::numeric_limits<float>::quiet_NaN();
        largest = std::max(largest, std::abs(value));
    }
    if (largest == 0) return 0;
    const float step = largest / kLargestRounded;
    for (std::size_t i = 0; i < values.size(); ++i) {
        const std::size_t of_block = i % kBlock;
        const std::size_t dimension = i / kBlock * kBlock + dimension_of(of_block / kPair, of_block % kPair);
        if (dimension < query.size()) values[i] = static_cast<std::int16_t>(std::lround(query[dimension] / step));
    }
    return step;
}

std::vector<KeyProducts::Way> KeyProducts::ways() {
    std::vector<Way> ways;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni")) ways.push_back(Way::avx512);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) ways.push_back(Way::avx2);
#endif
    ways.push_back(Way::portable);
    return ways;
}

KeyProducts::KeyProducts(const KeyShape& shape, Way way)
    : shape_(shape),
      multiply_(multiply_of(way)),
      keys_(n_pairs(shape.n_dims) * kPair * kQuarters),
      scales_(n_blocks(shape.n_dims) * kQuarters) {}

void KeyProducts::run(const RoundedQueries& queries, std::span<const std::uint8_t> page, std::span<float> largest,
                      std::span<float> at_end) {
    assert(page.size() == packed_bytes(shape_));
    assert(largest.size() == queries.n_rows() && at_end.size() == queries.n_rows());
    const std::size_t n_values = n_pairs(shape_.n_dims) * kPair;
    for (std::size_t head = 0; head < shape_.n_heads_kv; ++head) {
        const std::size_t first = head * queries.n_stored_;
        multiply_({page.data() + head * head_bytes(shape_.n_dims), shape_.n_dims,
                   queries.values_.data() + first * n_values, queries.scales_.data() + first, queries.n_rows_of_head_,
                   largest.data() + head * queries.n_rows_of_head_, at_end.data() + head * queries.n_rows_of_head_},
                  keys_.data()->data(), scales_.data()->data());
    }
}

}  // namespace luce::llama
