// ReadingValue: whether a drafter that reads texts should read the next one. It costs time for each token of the
// prompt, and only the answer can earn that back; answers are expected to be as long as the last ones were on average.
// Knows neither drafts nor the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/token.h"
#include "speculation/draft_source.h"

namespace luce::speculation {

class ReadingValue {
public:
    // REQUIRES in all calls: lane and source within these.
    ReadingValue(std::size_t n_lanes, std::size_t n_sources);

    // Decides it for the lane's text, of which n_tokens come now; each token of the answer would gain so much time.
    bool should_read(LaneId lane, SourceIndex source, std::int32_t n_tokens, double gain_s);
    bool is_unread(LaneId lane, SourceIndex source) const {
        return readings_[source].is_unread[static_cast<std::size_t>(lane)];
    }

    void observe(SourceIndex source, std::int32_t n_tokens, double seconds);
    void observe_answer(std::int32_t n_tokens);

private:
    struct Reading {
        double token_s = 0;  // 0: never measured
        int n_unread = 0;    // texts in a row
        std::vector<bool> is_unread;
    };

    std::vector<Reading> readings_;  // by source
    double n_answer_;                // tokens
};

}  // namespace luce::speculation
