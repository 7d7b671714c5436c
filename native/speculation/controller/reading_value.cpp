#include "speculation/controller/reading_value.h"

#include <algorithm>

namespace luce::speculation {
namespace {

constexpr double kFirstAnswer = 128;     // tokens, before there was one
constexpr double kReadShare = 1.0 / 8;   // of the newest measurement
constexpr int kMostUnread = 16;          // texts in a row: then one is read, since drafts may have become worth it
constexpr std::int32_t kFewTokens = 16;  // tell nothing: they may only be put by

}  // namespace

ReadingValue::ReadingValue(std::size_t n_lanes, std::size_t n_sources)
    : readings_(n_sources, Reading{0, 0, std::vector<bool>(n_lanes)}), n_answer_(kFirstAnswer) {}

bool ReadingValue::should_read(LaneId lane, SourceIndex source, std::int32_t n_tokens, double gain_s) {
    Reading& reading = readings_[source];
    const bool pays = reading.token_s * n_tokens <= gain_s * n_answer_ || reading.n_unread >= kMostUnread;
    reading.n_unread = pays ? 0 : reading.n_unread + 1;
    reading.is_unread[static_cast<std::size_t>(lane)] = !pays;
    return pays;
}

void ReadingValue::observe(SourceIndex source, std::int32_t n_tokens, double seconds) {
    if (n_tokens < kFewTokens || !(seconds >= 0)) return;
    double& token_s = readings_[source].token_s;
    const double newest = seconds / n_tokens;
    token_s = token_s == 0 ? newest : token_s + kReadShare * (newest - token_s);
}

void ReadingValue::observe_answer(std::int32_t n_tokens) {
    if (n_tokens > 0) n_answer_ += kReadShare * (n_tokens - n_answer_);
}

}  // namespace luce::speculation
