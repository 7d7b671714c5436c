// tokenize_prompt: see the header.
#include "llama/text/prompt_tokenizer.h"

#include <utility>

namespace luce::llama {

namespace {

bool is_utf8_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

size_t next_character(std::string_view text, size_t at) {
    ++at;
    while (at < text.size() && is_utf8_continuation(text[at])) {
        ++at;
    }
    return at;
}

// The ids of a stretch that continues raw text. Vocabularies of the SentencePiece kind put a space before each text
// that they are given; here it is not wanted, and goes where it came out as a token of its own.
std::vector<llama_token> tokenize_continuation(const Vocabulary& vocabulary, std::string_view text) {
    std::vector<llama_token> ids = vocabulary.tokenize(text, false, false);
    if (!ids.empty() && text.substr(0, 1) != " " && vocabulary.piece(ids.front(), false) == " ") {
        ids.erase(ids.begin());
    }
    return ids;
}

// Where to halve a spelling: at the first place whose right half begins without a space of its own.
size_t halving_place(const Vocabulary& vocabulary, std::string_view text, const ByteSpan& span) {
    const size_t first = next_character(text, span.begin);
    for (size_t place = first; place < span.end; place = next_character(text, place)) {
        const auto ids = tokenize_continuation(vocabulary, text.substr(place, span.end - place));
        if (!ids.empty() && vocabulary.piece(ids.front(), false).substr(0, 1) != " ") {
            return place;
        }
    }
    return first;
}

// Even with parse_special = false llama_tokenize recognises user-defined tokens. A spelling of one that has to stay
// text is therefore given to it in two halves.
void append_raw(const Vocabulary& vocabulary, const TokenCache::Salted& texts, const SpecialText& special,
                std::string_view text, std::vector<llama_token>& ids) {
    size_t begin = 0;
    const auto append = [&](size_t end) {
        const std::string_view part = text.substr(begin, end - begin);
        const auto more = begin == 0 ? texts.get(part) : tokenize_continuation(vocabulary, part);
        ids.insert(ids.end(), more.begin(), more.end());
        begin = end;
    };
    for (const ByteSpan& span : special.user_defined_frame_in(text)) {
        append(halving_place(vocabulary, text, span));
    }
    append(text.size());
}

// A stretch of raw text, cut at the markers of images.
class TextBetweenImages {
public:
    TextBetweenImages(const Vocabulary& vocabulary, const TokenCache::Salted& texts, const SpecialText& special,
                      const ImageMarkers& markers)
        : vocabulary_(vocabulary), texts_(texts), special_(special), markers_(markers) {}

    // `begin`: of the text in the prompt.
    void append(std::string_view text, size_t begin, PromptTokens& tokens) {
        size_t at = 0;
        while (!markers_.prefix.empty()) {
            const size_t found = text.find(markers_.prefix, at);
            if (found == std::string_view::npos || text.size() - found < markers_.n_bytes) break;
            append_text(text.substr(at, found - at), begin + at, tokens);
            const auto id = static_cast<llama_token>(llama_vocab_n_tokens(vocabulary_.text())) + n_images_++;
            tokens.anchors.push_back({begin + found, tokens.ids.size(), LLAMA_TOKEN_NULL});
            tokens.ids.push_back(id);
            at = found + markers_.n_bytes;
        }
        append_text(text.substr(at), begin + at, tokens);
    }

private:
    void append_text(std::string_view text, size_t begin, PromptTokens& tokens) {
        if (text.empty()) return;
        tokens.anchors.push_back({begin, tokens.ids.size(), LLAMA_TOKEN_NULL});
        append_raw(vocabulary_, texts_, special_, text, tokens.ids);
    }

    const Vocabulary& vocabulary_;
    const TokenCache::Salted& texts_;
    const SpecialText& special_;
    const ImageMarkers& markers_;
    llama_token n_images_ = 0;
};

}  // namespace

PromptTokens tokenize_prompt(const Vocabulary& vocabulary, const TokenCache::Salted& texts, const SpecialText& special,
                             std::string_view prompt, const std::vector<ByteSpan>& kept_as_text,
                             const ImageMarkers& markers) {
    TextBetweenImages raw(vocabulary, texts, special, markers);
    const llama_vocab* vocab = vocabulary.text();
    const std::vector<llama_token> around = vocabulary.tokenize("", true, false);
    const bool has_first = llama_vocab_get_add_bos(vocab) || llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_WPM;
    const auto behind = around.begin() + (has_first && !around.empty() ? 1 : 0);
    PromptTokens tokens;
    tokens.ids.assign(around.begin(), behind);
    for (const Fragment& fragment : special.cut(prompt, kept_as_text)) {
        if (fragment.is_token()) {
            tokens.anchors.push_back({fragment.begin, tokens.ids.size(), fragment.id});
            tokens.ids.push_back(fragment.id);
        } else {
            raw.append(prompt.substr(fragment.begin, fragment.end - fragment.begin), fragment.begin, tokens);
        }
    }
    tokens.ids.insert(tokens.ids.end(), behind, around.end());
    return tokens;
}

}  // namespace luce::llama
