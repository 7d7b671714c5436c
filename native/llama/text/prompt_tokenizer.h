// Tokenising a prompt whose frame and whose users' text are told apart: special tokens are recognised in the frame
// only. Where no user text spells a special token the ids are exactly those of llama_tokenize(parse_special = true).
// Knows nothing of templates: it is told which bytes to keep as text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "llama/text/prompt_tokens.h"
#include "llama/text/special_text.h"
#include "llama/text/token_cache.h"
#include "llama/text/vocabulary.h"

namespace luce::llama {

// What stands in a prompt's text for an image: `prefix`, so many bytes more, and not known to who writes messages.
// Number k of a prompt's markers becomes the one id n_vocab + k, and the texts around it are tokenised each by itself.
struct ImageMarkers {
    std::string prefix;  // empty: there are none
    size_t n_bytes = 0;  // of a marker, its prefix included
};

// kept_as_text: in order, without overlaps.
// texts: of vocabulary.tokenize(text, false, false).
PromptTokens tokenize_prompt(const Vocabulary& vocabulary, const TokenCache::Salted& texts, const SpecialText& special,
                             std::string_view prompt, const std::vector<ByteSpan>& kept_as_text,
                             const ImageMarkers& markers);

}  // namespace luce::llama
