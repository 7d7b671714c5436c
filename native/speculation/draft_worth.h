// DraftWorth: what asking a source that is not free brings in a lane, by what it brought of late, and when a lane in
// which it does not pay is asked again all the same: after 8 tokens, 16, 32 … 512, until it does. A text that was never
// asked about is expected to be like the average text.
//
// Of a draft it keeps what is taken of it: whether anything is, how much then, and how much of that is right. What that
// costs depends on the other lanes and on the context, and is reckoned when it is asked for.
#pragma once

#include <cstddef>
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

class DraftWorth {
public:
    // REQUIRES in all calls: lane, source and numbers of tokens within these.
    DraftWorth(std::size_t n_lanes, std::size_t n_sources, std::int32_t n_most);

    // To be expected of a draft of n_tokens >= 1.
    Taken expected(LaneId lane, SourceIndex source, std::int32_t n_tokens) const;

    // Long enough since it was asked.
    bool is_due(LaneId lane, SourceIndex source, std::int32_t n_text) const;

    // It will be asked for so many tokens; a draft worth more than `needed` tokens would have paid.
    void ask(LaneId lane, SourceIndex source, std::int32_t n_text, std::int32_t n_tokens, double needed);
    bool is_asked(LaneId lane, SourceIndex source) const { return of(lane, source).n_tokens > 0; }

    // What came of it: the draft's worth, what would be taken of it, its chances by token; all of it 0 if there was
    // none.
    void observe(LaneId lane, SourceIndex source, double worth, Taken taken, std::span<const float> chances);

    // The lane serves another text.
    void begin(LaneId lane);

private:
    struct Record {
        Taken taken;  // of full drafts
        std::int32_t n_asks = 0;
        std::int32_t asked_at = 0;  // tokens of text
        std::int32_t interval = 0;  // to the next trial
        std::int32_t n_tokens = 0;  // asked for and not answered; 0: not asked
        double needed = 0;
        double n_expected = 0;  // right tokens, before correction
    };
    struct Average {  // over texts
        Taken taken;
        std::int32_t n_asks = 0;
        // Of all drafts, the latest most: who is asked is who looks best, and those look better than they are.
        double n_right = 1;
        double n_expected = 1;
    };

    // How much of a full draft's right tokens lies in its first n_tokens.
    double share(LaneId lane, SourceIndex source, std::int32_t n_tokens) const;
    std::size_t index_of(LaneId lane, SourceIndex source) const;
    const Record& of(LaneId lane, SourceIndex source) const { return records_[index_of(lane, source)]; }
    std::span<float> profile(std::size_t row);
    std::span<const float> profile(std::size_t row) const;
    static void blend(Taken& mean, Taken newest, double weight);
    static void blend(std::span<float> profile, std::span<const float> chances, std::size_t n_asked, float weight);

    std::size_t n_sources_;
    std::size_t n_lanes_;
    std::size_t n_most_;
    std::vector<Record> records_;    // by lane, then by source
    std::vector<Average> averages_;  // by source
    std::vector<float> profiles_;    // mean chances by token: rows as records_, then as averages_
};

}  // namespace luce::speculation
