#include "memory/residency/pool_size.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "memory/tiers/blob.h"

namespace luce::memory {
namespace {

constexpr std::int64_t kMostCells = std::int64_t{1} << 28;  // as options allow
constexpr std::int64_t kCellsStep = 256;                    // libllama has cells by as many
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

std::int64_t up_to_page(std::int64_t n) { return (n + kPageSize - 1) / kPageSize * kPageSize; }

std::int64_t tokens_of(std::uint64_t n) {
    return static_cast<std::int64_t>(std::min<std::uint64_t>(n, static_cast<std::uint64_t>(kMostCells)));
}

std::uint64_t sum_of(std::uint64_t a, std::uint64_t b) {
    return b > std::numeric_limits<std::uint64_t>::max() - a ? std::numeric_limits<std::uint64_t>::max() : a + b;
}

std::uint64_t to_mib(std::uint64_t bytes) { return bytes / kMiB + (bytes % kMiB >= kMiB / 2 ? 1 : 0); }

// Rounded up: a need is not told smaller than it is.
std::string mib(std::uint64_t bytes) { return std::to_string(bytes / kMiB + (bytes % kMiB > 0 ? 1 : 0)) + " MiB"; }

// The most that the device has cells for: the smallest pool's and what the free memory allows. None: not even those.
std::optional<std::int64_t> cells_of(const PoolDevice& device, std::int64_t n_least) {
    const std::uint64_t taken = sum_of(device.reserve, device.later);
    if (device.free < taken) return std::nullopt;
    const std::uint64_t a_token = sum_of(device.a_token, device.beside_token);
    return std::min(kMostCells, n_least + tokens_of((device.free - taken) / a_token));
}

std::string padded(const std::string& text, std::size_t width) {
    return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

std::string name_of(PoolChoice::Limit limit) {
    switch (limit) {
        case PoolChoice::Limit::texts: return "what texts can use";
        case PoolChoice::Limit::speed: return "speed";
        case PoolChoice::Limit::memory: return "memory";
        case PoolChoice::Limit::least: break;
    }
    return "the smallest pool that works";
}

}  // namespace

std::uint64_t pool_reserve(std::uint64_t total) { return std::clamp(total / 16, 256 * kMiB, 1024 * kMiB); }

Result<PoolChoice> choose_pool(const PoolQuestion& question) {
    PoolChoice choice;
    choice.n_memory = kMostCells;
    for (const PoolDevice& device : question.devices) {
        if (device.a_token == 0) continue;
        const std::optional<std::int64_t> n_cells = cells_of(device, question.n_least);
        if (!n_cells) {
            const std::uint64_t needed = sum_of(device.reserve, device.later);
            return Error{ErrorCode::start_failed,
                         "--kv-offload auto: even the smallest pool of " + std::to_string(question.n_least) +
                             " tokens leaves " + device.name + " too little memory: " + mib(needed) +
                             " are to stay free and " + mib(device.free) + " are" +
                             (device.limited_by.empty() ? "" : " (" + device.limited_by + ")") + "; " +
                             mib(needed - device.free) + " are missing (fewer --lanes, a smaller --ubatch" +
                             (device.is_host || device.shares_host ? " or --host-cache" : " or fewer --gpu-layers") +
                             " need less; --kv-offload " + std::to_string(question.n_least) + " starts all the same)"};
        }
        if (choice.tightest.empty() || *n_cells < choice.n_memory) {
            choice.n_memory = *n_cells;
            choice.tightest = device.name;
        }
    }
    const std::int64_t n_lanes = std::clamp<std::int64_t>(question.n_lanes, 0, kMostCells);
    const std::int64_t n_text = up_to_page(std::clamp<std::int64_t>(question.n_ctx, 0, kMostCells));
    choice.n_texts = std::min(kMostCells, n_text * n_lanes);
    choice.n_speed = question.rows_a_token == 0
                         ? kMostCells
                         : tokens_of(question.weights_a_token / kSpeedShare / question.rows_a_token);
    const auto whole = [](std::int64_t n) { return n / kCellsStep * kCellsStep; };
    const std::array<std::pair<std::int64_t, PoolChoice::Limit>, 3> limits = {{
        {choice.n_texts, PoolChoice::Limit::texts},
        {whole(choice.n_memory), PoolChoice::Limit::memory},
        {whole(choice.n_speed), PoolChoice::Limit::speed},
    }};
    const auto tightest =
        std::min_element(limits.begin(), limits.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    const bool is_least = tightest->first <= question.n_least;
    choice.limit = is_least ? PoolChoice::Limit::least : tightest->second;
    choice.n = static_cast<std::int32_t>(std::min(kMostCells, is_least ? question.n_least : tightest->first));
    return choice;
}

std::int32_t smaller_pool(std::int32_t n, std::int32_t n_least) {
    return n_least + (n - n_least) / 2 / kPageSize * kPageSize;
}

std::int32_t quarter_less(std::int32_t n, std::int32_t n_least) {
    return std::max(n_least, (n - n / 4) / kPageSize * kPageSize);
}

std::vector<std::string> tell_pool(const PoolQuestion& question, const PoolChoice& choice) {
    constexpr std::array<const char*, 9> kColumns = {"total",   "weights", "drafts",  "compute",   "caches",
                                                     "windows", "free",    "reserve", "KV a token"};
    constexpr std::size_t kWidth = 11;
    std::size_t n_name = 6;
    for (const PoolDevice& device : question.devices) n_name = std::max(n_name, device.name.size());
    std::vector<std::string> lines;
    std::string head = padded("", n_name);
    for (const char* column : kColumns) head += padded(column, kWidth);
    lines.push_back("--kv-offload auto, with the smallest pool of " + std::to_string(question.n_least) +
                    " tokens in place, in MiB; KV a token in bytes, for the pool of model and draft:");
    lines.push_back(std::move(head));
    for (const PoolDevice& device : question.devices) {
        std::string line = device.name + std::string(n_name - device.name.size(), ' ');
        for (const std::uint64_t bytes : {device.total, device.weights, device.drafts, device.compute, device.caches,
                                          device.later, device.free, device.reserve}) {
            line += padded(std::to_string(to_mib(bytes)), kWidth);
        }
        lines.push_back(line + padded(std::to_string(sum_of(device.a_token, device.beside_token)), kWidth));
    }
    for (const PoolDevice& device : question.devices) {
        if (!device.limited_by.empty()) {
            lines.push_back("total and free of " + device.name + " are what " + device.limited_by + " leaves");
        }
    }
    lines.push_back("memory allows " + std::to_string(choice.n_memory) + " tokens" +
                    (choice.tightest.empty() ? "" : " (" + choice.tightest + ")") + "; speed " +
                    std::to_string(choice.n_speed) + " (a token reads " + mib(question.weights_a_token) +
                    " of weights, and of the pool " + std::to_string(question.rows_a_token) +
                    " bytes for each of its tokens: a " + "quarter as much at most); texts can use " +
                    std::to_string(choice.n_texts) + " (" + std::to_string(question.n_lanes) + " lanes of --ctx " +
                    std::to_string(question.n_ctx) + "); at least " + std::to_string(question.n_least) + " are needed");
    lines.push_back("--kv-offload auto: a pool of " + std::to_string(choice.n) +
                    " tokens; what decided: " + name_of(choice.limit));
    return lines;
}

}  // namespace luce::memory
