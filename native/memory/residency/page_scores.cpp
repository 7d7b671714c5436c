#include "memory/residency/page_scores.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
#include <type_traits>

namespace luce::memory {
namespace {

struct Record {
    float score = 0;
    std::uint32_t is_set = 0;
};
static_assert(sizeof(Record) == 8 && std::is_trivially_copyable_v<Record>);

bool is_good(const Record& record) {
    if (record.is_set == 0) return std::bit_cast<std::uint32_t>(record.score) == 0;
    return record.is_set == 1 && std::isfinite(record.score);
}

}  // namespace

std::uint64_t scores_bytes(std::uint64_t n_scores) {
    return n_scores == 0 ? 0 : section_bytes(n_scores * sizeof(Record));
}

bool can_be_written(const PageScores& scores) {
    return scores.size() <= kMaxScores &&
           std::all_of(scores.begin(), scores.end(), [](const auto& score) { return !score || std::isfinite(*score); });
}

Result<void> write_scores(const WriteBytes& write, const PageScores& scores) {
    if (scores.empty()) return {};
    std::vector<Record> records;
    records.reserve(scores.size());
    for (const std::optional<float>& score : scores) records.push_back({score.value_or(0), score ? 1U : 0U});
    return write_section(write, bytes_of_all(std::span<const Record>(records)));
}

Result<PageScores> read_scores(ByteSource& source, std::size_t n) {
    PageScores scores;
    if (n == 0) return scores;
    const Result<std::vector<Record>> records = read_section_of<std::vector<Record>>(source, n);
    if (!records) return records.error();
    scores.reserve(n);
    for (const Record& record : records.value()) {
        if (!is_good(record)) return Error{ErrorCode::bad_snapshot, "it has a page's score that is none"};
        scores.push_back(record.is_set == 1 ? std::optional(record.score) : std::nullopt);
    }
    return scores;
}

}  // namespace luce::memory
