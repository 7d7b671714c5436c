// DraftValue: what asking a source that is not free brings in each lane, by what it brought of late, and when a lane in
// which it does not pay is asked again: after 8 tokens, 16, 32 … 512. A text that was never asked about is expected to
// be like the average text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/token.h"
#include "speculation/draft_source.h"

namespace luce::speculation {

// What is taken of a draft, on average.
struct Taken {
    double n_right = 0;  // tokens, of all drafts
    double share = 0;    // of the drafts: something is taken
    double width = 0;    // tokens, of those drafts
};

class DraftValue {
public:
    // REQUIRES in all calls: lane and source within these.
    DraftValue(std::size_t n_lanes, std::size_t n_sources, std::int32_t n_most);

    // To be expected of a draft of n_tokens >= 1.
    Taken expected(LaneId lane, SourceIndex source, std::int32_t n_tokens) const;
    // Of a full draft, over all texts.
    Taken average(SourceIndex source) const;
    std::int32_t n_asks(SourceIndex source) const { return averages_[source].n_asks; }
    bool is_due(LaneId lane, SourceIndex source, std::int32_t n_text) const;  // long enough since it was asked

    // It will be asked for so many tokens; a draft worth more than `needed` tokens would have paid.
    void ask(LaneId lane, SourceIndex source, std::int32_t n_text, std::int32_t n_tokens, double needed);
    bool is_asked(LaneId lane, SourceIndex source) const { return of(lane, source).n_tokens > 0; }
    // What came of it: the draft's worth, what would be taken of it, its chances by token; all of it 0: there was none.
    void observe(LaneId lane, SourceIndex source, double worth, Taken taken, std::span<const float> chances);

    void begin(LaneId lane);  // another text

private:
    struct Mean {
        Taken taken;
        std::vector<double> chances;  // by token
        void blend(const Taken& newest, std::span<const float> chances, std::size_t n_asked, double weight);
        double share(std::int32_t n_tokens) const;  // of a full draft's right tokens: in its first n_tokens
    };
    struct Record {
        Mean mean;
        std::int32_t n_asks = 0;
        std::int32_t asked_at = 0;  // tokens of text
        std::int32_t interval = 0;  // to the next trial
        std::int32_t n_tokens = 0;  // asked for and not answered; 0: not asked
        double needed = 0;
        double n_expected = 0;  // right tokens, before correction
    };

    double correction(SourceIndex source) const;
    const Record& of(LaneId lane, SourceIndex source) const {
        return records_[static_cast<std::size_t>(lane) * averages_.size() + source];
    }
    Record& of(LaneId lane, SourceIndex source) {
        return records_[static_cast<std::size_t>(lane) * averages_.size() + source];
    }

    std::vector<Record> records_;   // by lane, then by source
    std::vector<Record> averages_;  // over texts, by source
    // Of all drafts of a source, the latest most: who is asked is who looks best, and those look better than they are.
    std::vector<double> right_;
    std::vector<double> expected_;
};

}  // namespace luce::speculation
