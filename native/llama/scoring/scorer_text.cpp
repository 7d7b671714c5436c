#include "llama/scoring/scorer_text.h"

#include <llama.h>

#include <algorithm>
#include <array>

#include "memory/tiers/blob.h"

namespace luce::llama {
namespace {

// Bytes of a segment, unless the text ends: short ones cost a call each, long ones are tokenised again as they grow.
constexpr std::size_t kLeastSegment = 64;
constexpr std::size_t kMostSegment = 1024;
constexpr std::size_t kLongestCharacter = 4;

bool is_space(char byte) { return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t'; }

// Not the first byte of a character of UTF-8.
bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

std::size_t character_length(char first) {
    const auto byte = static_cast<unsigned char>(first);
    if (byte >= 0xF0U) return 4;
    if (byte >= 0xE0U) return 3;
    return byte >= 0xC0U ? 2 : 1;
}

// Without a character at the end that has only begun.
std::string_view whole_characters(std::string_view bytes) {
    for (std::size_t n = 1; n < kLongestCharacter && n <= bytes.size(); ++n) {
        const char byte = bytes[bytes.size() - n];
        if (is_continuation(byte)) continue;
        return character_length(byte) > n ? bytes.substr(0, bytes.size() - n) : bytes;
    }
    return bytes;
}

void append_piece(const llama_vocab* vocabulary, Token token, std::string& bytes) {
    if (token >= llama_vocab_n_tokens(vocabulary)) return;  // it names a hole in a prompt (prefill/sparse_text.h)
    std::array<char, 64> buffer{};
    const auto size = static_cast<std::int32_t>(buffer.size());
    const std::int32_t n = llama_token_to_piece(vocabulary, token, buffer.data(), size, 0, true);
    if (n >= 0) {
        bytes.append(buffer.data(), static_cast<std::size_t>(n));
        return;
    }
    std::string piece(static_cast<std::size_t>(-n), '\0');
    llama_token_to_piece(vocabulary, token, piece.data(), -n, 0, true);
    bytes.append(piece);
}

// None: it cannot be tokenised.
Tokens tokens_of(std::string_view text, const llama_vocab* vocabulary) {
    const auto n_text = static_cast<std::int32_t>(text.size());
    Tokens tokens(text.size() + 2);
    const auto run = [&] {
        // NOLINTNEXTLINE(bugprone-suspicious-stringview-data-usage): its size follows
        return llama_tokenize(vocabulary, text.data(), n_text, tokens.data(), static_cast<std::int32_t>(tokens.size()),
                              false, true);
    };
    std::int32_t n = run();
    if (n < 0) {
        tokens.resize(static_cast<std::size_t>(-std::int64_t{n}));
        n = run();
    }
    tokens.resize(static_cast<std::size_t>(std::max(n, 0)));
    return tokens;
}

}  // namespace

std::optional<std::size_t> first_segment(std::string_view bytes) {
    const std::string_view head = bytes.substr(0, kMostSegment);
    for (std::size_t at = kLeastSegment; at < head.size(); ++at) {
        if (head[at - 1] == '\n' && !is_space(head[at])) return at;
    }
    if (bytes.size() < kMostSegment + kLongestCharacter) return std::nullopt;
    for (std::size_t at = head.size() - 2; at > kLeastSegment; --at) {
        if (head[at] == ' ' && !is_space(head[at - 1]) && !is_space(head[at + 1])) return at;
    }
    std::size_t at = kMostSegment;
    while (at > kMostSegment - kLongestCharacter && is_continuation(bytes[at])) --at;
    return at;
}

std::uint64_t ScorerText::begin_of(std::size_t token) const {
    if (!is_written_out()) return token;
    return token == 0 ? 0 : ends_[token - 1];
}

std::uint64_t ScorerText::end_of(std::size_t token) const { return is_written_out() ? ends_[token] : token + 1; }

std::uint64_t ScorerText::end_of_page(std::size_t page) const {
    return is_written_out() ? page_ends_[page] : (page + 1) * memory::kPageSize;
}

void ScorerText::set(std::span<const Token> text, const TextVocabularies& vocabularies, bool is_whole) {
    const auto [own, other] = std::mismatch(text_.begin(), text_.end(), text.begin(), text.end());
    const auto n_same = static_cast<std::size_t>(own - text_.begin());
    if (vocabularies.are_equal()) {
        text_.resize(n_same);
        text_.insert(text_.end(), other, text.end());
        tokens_ = text_;
        return;
    }
    if (!is_written_out()) open(vocabularies);
    if (n_same < text_.size()) cut_back(n_same, vocabularies.target);
    write_out(text.subspan(n_same), vocabularies.target);
    tokens_.resize(segments_.back().n_tokens);
    ends_.resize(segments_.back().n_tokens);
    std::size_t begin = 0;
    while (const auto n = first_segment(std::string_view(open_).substr(begin))) {
        tokenise(std::string_view(open_).substr(begin, *n), vocabularies.scorer);
        segments_.push_back({n_bytes_before_open() + *n, tokens_.size()});
        begin += *n;
    }
    open_.erase(0, begin);
    if (is_whole) tokenise(whole_characters(open_), vocabularies.scorer);
}

// A scorer that was trained with a token before each text gets it.
void ScorerText::open(const TextVocabularies& vocabularies) {
    if (llama_vocab_get_add_bos(vocabularies.scorer)) {
        tokens_.push_back(llama_vocab_bos(vocabularies.scorer));
        ends_.push_back(0);
    }
    segments_.push_back({0, tokens_.size()});
}

// Where a segment ends may depend on as many bytes as one can have, and a character.
void ScorerText::cut_back(std::size_t n_text, const llama_vocab* target) {
    text_.resize(n_text);
    page_ends_.resize(n_text / memory::kPageSize);
    const auto bytes_of = [&](std::size_t begin) {
        std::string bytes;
        for (std::size_t i = begin; i < n_text; ++i) append_piece(target, text_[i], bytes);
        return bytes;
    };
    const std::size_t n_paged = page_ends_.size() * memory::kPageSize;
    const std::uint64_t n_bytes = (page_ends_.empty() ? 0 : page_ends_.back()) + bytes_of(n_paged).size();
    while (segments_.size() > 1 && segments_[segments_.size() - 2].begin + kMostSegment + kLongestCharacter > n_bytes) {
        segments_.pop_back();
    }
    const auto first_page = std::upper_bound(page_ends_.begin(), page_ends_.end(), n_bytes_before_open());
    const auto n_pages = static_cast<std::size_t>(first_page - page_ends_.begin());
    const std::uint64_t n_before = n_pages == 0 ? 0 : page_ends_[n_pages - 1];
    open_ = bytes_of(n_pages * memory::kPageSize).substr(n_bytes_before_open() - n_before);
}

void ScorerText::write_out(std::span<const Token> text, const llama_vocab* target) {
    for (const Token token : text) {
        append_piece(target, token, open_);
        text_.push_back(token);
        if (text_.size() % memory::kPageSize == 0) page_ends_.push_back(n_bytes_before_open() + open_.size());
    }
}

// The pieces of its tokens are most often the segment again. A vocabulary that writes a text in another way (a space
// before it, characters that it does not know) gets its places in proportion: they are right by a few bytes.
void ScorerText::tokenise(std::string_view segment, const llama_vocab* scorer) {
    if (segment.empty()) return;
    const Tokens tokens = tokens_of(segment, scorer);
    std::string pieces;
    std::vector<std::size_t> ends;
    for (const Token token : tokens) {
        append_piece(scorer, token, pieces);
        ends.push_back(pieces.size());
    }
    const bool has_space = pieces.size() == segment.size() + 1 && std::string_view(pieces).substr(1) == segment;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        std::size_t end = ends[i];
        if (has_space) {
            end -= 1;
        } else if (pieces != segment) {
            end = pieces.empty() ? segment.size() : ends[i] * segment.size() / pieces.size();
        }
        tokens_.push_back(tokens[i]);
        ends_.push_back(n_bytes_before_open() + std::min(end, segment.size()));
    }
}

}  // namespace luce::llama
