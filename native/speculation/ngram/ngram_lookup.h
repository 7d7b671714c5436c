// NgramLookup: drafts without a model. Where the end of a lane's text stood before in it, what followed there may
// follow here too: code is edited, documents are quoted, tables have rows. Knows the lanes' texts by what it is asked
// and told.
//
// For a draft the longest end of the text that occurred before is looked up, and what followed is proposed: of several
// occurrences what most of them went on with, then what the latest one did. A lane also remembers where it was copying
// from: after a departure (a changed name, an inserted line) one or two equal tokens near that place are enough to go
// on there, and what it has changed before is changed again where the same tokens stand (copy_edits.h). A draft is no
// longer than twice what is equal before it, until that is much. The latest answers of all lanes are looked up as well:
// tool calls have the same frame each time, which no prompt shows. What a proposal is worth is learnt, over all lanes,
// from what really followed: by how much is equal, how many occurrences agree, whether the place is where the lane was
// copying from, and whether it is in an earlier answer. Of both drafts the one that is expected to be right for longer
// is proposed.
//
// Sources: "Prompt Lookup Decoding" (Saxena, 2023); earlier answers as in "SuffixDecoding" (Oliaro et al., 2024);
// chains of places by hash as in LZ77 compressors.
//
// Costs: a token of text 16 bytes at most and amortised O(1) time; a draft some microseconds, however long the text is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "speculation/draft_source.h"

namespace luce::speculation {

class NgramLookup final : public DraftSource {
public:
    // REQUIRES: both >= 1. At most n_most tokens a draft; an end of the text shorter than n_least tokens is not looked
    // up. Two are enough: how little so short a match is worth shows in its confidence.
    // `keeps_answers`: all lanes' drafts are copied from the latest answers as well.
    explicit NgramLookup(std::int32_t n_most, std::int32_t n_least = 2, bool keeps_answers = true);
    ~NgramLookup() override;
    NgramLookup(const NgramLookup&) = delete;
    NgramLookup& operator=(const NgramLookup&) = delete;

    const SourceTraits& traits() const override { return traits_; }
    Result<void> draft(std::span<const DraftAsk> asks, std::vector<Draft>& drafts) override;
    void follow(LaneId lane, std::span<const Token> text, std::int32_t n_computed, std::int32_t n_new,
                BatchRows rows) override;
    void begin(LaneId lane, std::span<const Token> text, std::int32_t n_computed) override;
    void answered(std::span<const Token> text, std::int32_t n_prompt) override;
    void forget(LaneId lane) override;

    // Held for what is known of the lane's text.
    std::size_t n_bytes(LaneId lane) const;

private:
    struct State;
    SourceTraits traits_;
    bool keeps_answers_;
    std::unique_ptr<State> state_;
};

}  // namespace luce::speculation
