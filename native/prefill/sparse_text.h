// SparseText: a prompt of which only some parts are read, the way memory and the model see it. To memory it is a text
// without holes: the parts, one behind the other. RoPE sees each token where it stands in the whole prompt. Pure.
//
// What is computed behind a part that was left out is not what reading all of it gives. So such tokens have another
// name in memory: the first ones behind a hole get ids beyond the vocabulary, made of the hole and the token by
// SHA-256. A prompt that is read whole never finds their pages, and one that leaves out the same finds them again.
#pragma once

#include <span>
#include <vector>

#include "base/token.h"

namespace luce::prefill {

// Rising, apart from each other, none empty, all of it within 0 .. n: overlapping and adjacent ones are joined.
std::vector<PositionSpan> joined(std::vector<PositionSpan> spans, Position n);

Position n_in(std::span<const PositionSpan> spans);

class SparseText {
public:
    // `parts`: what is read of the prompt. REQUIRES: as joined() gives them; the last token of the prompt is in one.
    SparseText(Tokens prompt, std::vector<PositionSpan> parts, std::int32_t n_vocab);

    const Tokens& prompt() const { return prompt_; }
    const std::vector<PositionSpan>& parts() const { return parts_; }

    const Tokens& tokens() const { return tokens_; }                 // that are read
    const Tokens& names() const { return names_; }                   // the same as memory knows them
    const std::vector<Position>& shifts() const { return shifts_; }  // from where memory has each to where RoPE sees it

    // Where memory has what stands at this position of the prompt; of what is not read, where the next part begins.
    Position read_position(Position position) const;
    std::vector<PositionSpan> read_spans(std::span<const PositionSpan> spans) const;  // none that is empty

private:
    Tokens prompt_;
    std::vector<PositionSpan> parts_;
    Tokens tokens_;
    Tokens names_;
    std::vector<Position> shifts_;
};

}  // namespace luce::prefill
