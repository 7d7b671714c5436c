#include "prefill/sparse_text.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "base/sha256.h"

namespace luce::prefill {
namespace {

// Of the tokens behind a hole: 31 bits each, so that no two holes are one to memory by chance or by intent.
constexpr Position kNamedTokens = 4;

Token name_of(Position n_left_out, Position i, Token token, std::int32_t n_vocab) {
    const std::array<std::int32_t, 3> values = {n_left_out, i, token};
    std::array<char, sizeof(values)> bytes{};
    std::memcpy(bytes.data(), values.data(), sizeof(values));
    Sha256 hash;
    hash.update("hole in a prompt");
    hash.update({bytes.data(), bytes.size()});
    const Sha256::Digest digest = hash.finish();
    std::uint32_t value = 0;
    std::memcpy(&value, digest.data(), sizeof(value));
    const auto n_ids = static_cast<std::uint32_t>(std::numeric_limits<Token>::max() - n_vocab);
    return n_vocab + static_cast<Token>(value % n_ids);
}

}  // namespace

std::vector<PositionSpan> joined(std::vector<PositionSpan> spans, Position n) {
    for (PositionSpan& span : spans) span = {std::max(span.begin, 0), std::min(span.end, n)};
    std::erase_if(spans, [](const PositionSpan& span) { return span.begin >= span.end; });
    std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    std::vector<PositionSpan> apart;
    for (const PositionSpan& span : spans) {
        if (!apart.empty() && span.begin <= apart.back().end) {
            apart.back().end = std::max(apart.back().end, span.end);
        } else {
            apart.push_back(span);
        }
    }
    return apart;
}

Position n_in(std::span<const PositionSpan> spans) {
    Position n = 0;
    for (const PositionSpan& span : spans) n += span.end - span.begin;
    return n;
}

SparseText::SparseText(Tokens prompt, std::vector<PositionSpan> parts, std::int32_t n_vocab)
    : prompt_(std::move(prompt)), parts_(std::move(parts)) {
    assert(!parts_.empty() && parts_.back().end == static_cast<Position>(prompt_.size()));
    const auto n_read = static_cast<std::size_t>(n_in(parts_));
    tokens_.reserve(n_read);
    names_.reserve(n_read);
    shifts_.reserve(n_read);
    Position end = 0;
    Position shift = 0;
    for (const PositionSpan& part : parts_) {
        const Position n_left_out = part.begin - end;
        shift += n_left_out;
        for (Position at = part.begin; at < part.end; ++at) {
            const Token token = prompt_[static_cast<std::size_t>(at)];
            const Position i = at - part.begin;
            tokens_.push_back(token);
            names_.push_back(n_left_out > 0 && i < kNamedTokens ? name_of(n_left_out, i, token, n_vocab) : token);
            shifts_.push_back(shift);
        }
        end = part.end;
    }
}

Position SparseText::read_position(Position position) const {
    Position n = 0;
    for (const PositionSpan& part : parts_) {
        if (position <= part.begin) return n;
        n += std::min(position, part.end) - part.begin;
        if (position <= part.end) return n;
    }
    return n;
}

std::vector<PositionSpan> SparseText::read_spans(std::span<const PositionSpan> spans) const {
    std::vector<PositionSpan> read;
    for (const PositionSpan& span : spans) {
        const PositionSpan at = {read_position(span.begin), read_position(span.end)};
        if (at.begin < at.end) read.push_back(at);
    }
    return read;
}

}  // namespace luce::prefill
