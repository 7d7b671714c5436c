// How large a pool of bounded residency should be where nobody says it: as large as the devices' free memory allows and
// texts can use, but no larger than what decoding gets its speed from. Pure: it is told what was measured with the
// smallest pool in place, computes, and tells the sum.
//
// A token reads the weights (of a mixture of experts the active ones) and the keys and values in sight. A pool whose
// keys and values are a quarter of the weights' bytes makes a token, which waits for memory, cost a quarter more at
// most; beyond that each doubling is paid for in full, and what the pool leaves out is brought back when it matters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace luce::memory {

// A device's memory with a pool of PoolQuestion::n_least tokens in place. Bytes.
struct PoolDevice {
    std::string name;
    bool is_host = false;      // the processor's own memory
    bool shares_host = false;  // or a device's that has none of its own
    std::uint64_t total = 0;
    std::uint64_t free = 0;
    std::string limited_by;  // what leaves less of it than there is; empty: nothing
    std::uint64_t weights = 0;
    std::uint64_t mapped = 0;  // of those, mapped from their file: the system counts them as free
    std::uint64_t drafts = 0;  // with their caches and buffers
    std::uint64_t compute = 0;
    std::uint64_t caches = 0;        // rows of the smallest pool, windows, recurrent states and those to go back to
    std::uint64_t later = 0;         // by which windows grow beside a larger pool
    std::uint64_t reserve = 0;       // what is to stay free
    std::uint64_t a_token = 0;       // rows of the model and its draft
    std::uint64_t beside_token = 0;  // what computing needs for each token of the pool
};

struct PoolQuestion {
    std::vector<PoolDevice> devices;
    std::int64_t n_least = 0;  // the smallest pool that works, a multiple of a page
    std::int64_t n_ctx = 0;    // longest text
    std::int64_t n_lanes = 0;
    std::uint64_t weights_a_token = 0;  // bytes that decoding a token reads of the weights, the draft's too
    std::uint64_t rows_a_token = 0;     // and for each token in sight
};

// What decided, and what the others would have allowed; tokens.
struct PoolChoice {
    enum class Limit { texts, speed, memory, least };
    std::int32_t n = 0;
    Limit limit = Limit::least;
    std::int64_t n_texts = 0;
    std::int64_t n_speed = 0;
    std::int64_t n_memory = 0;
    std::string tightest;  // the device whose memory n_memory is of
};

inline constexpr std::uint64_t kSpeedShare = 4;  // weights' bytes a token by the full pool's

// What a device of so much memory keeps free for what is not known beforehand (kernels' workspace, captured graphs).
std::uint64_t pool_reserve(std::uint64_t total);

// Errors: start_failed (even the smallest pool does not fit).
Result<PoolChoice> choose_pool(const PoolQuestion& question);

// The next one to try where the device has no room for this one after all. REQUIRES: n > n_least.
std::int32_t smaller_pool(std::int32_t n, std::int32_t n_least);

// A running daemon's, whose devices turn out to have too little memory beside it: a quarter less, in whole pages, but
// n_least at the least. REQUIRES: n > n_least.
std::int32_t quarter_less(std::int32_t n, std::int32_t n_least);

// The sum, line by line.
std::vector<std::string> tell_pool(const PoolQuestion& question, const PoolChoice& choice);

}  // namespace luce::memory
