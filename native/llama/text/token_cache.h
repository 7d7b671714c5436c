// TokenCache: the ids of texts that were tokenised lately, so that a conversation's next prompt costs what is new in
// it. What stands between two special tokens is tokenised by itself, so its ids are the same in every prompt. Knows
// nothing of prompts or templates. Any thread may use it.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <llama.h>

namespace luce::llama {

class TokenCache {
public:
    // What a vocabulary makes of a text alone. Any thread may call it.
    using Tokenize = std::function<std::vector<llama_token>(std::string_view)>;

    // max_bytes: of texts and ids together; the longest unused leave first.
    TokenCache(Tokenize tokenize, size_t max_bytes);

    std::vector<llama_token> tokenize(std::string_view text);

    size_t n_bytes() const;

private:
    struct Entry {
        std::string text;
        std::vector<llama_token> ids;

        size_t n_bytes() const { return text.size() + ids.size() * sizeof(llama_token); }
    };

    void insert(std::string_view text, const std::vector<llama_token>& ids);

    const Tokenize tokenize_;
    const size_t max_bytes_;
    mutable std::mutex mutex_;
    std::list<Entry> entries_;  // the latest used first
    std::unordered_map<std::string_view, std::list<Entry>::iterator> by_text_;
    size_t n_bytes_ = 0;
};

}  // namespace luce::llama
