// OutputText: a model's output as its format is to read it. What is known to be no mark of the format, though it reads
// like one, is veiled; what stands where the format has no place for it is set aside. Both come back in what is shown.
// Knows nothing of what the format makes of it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <chat.h>
#include <trie.h>

namespace luce::llama {

// Words at which a format's text may end and a call begin.
class Openers {
public:
    void add(const std::string& word);

    size_t longest() const { return longest_; }
    bool is_at(std::string_view text, size_t at) const;
    // The first at or behind `from`, or npos.
    size_t find(std::string_view text, size_t from) const;
    // Where the text's end may be the beginning of one, or its size.
    size_t find_begun(std::string_view text) const;

    // With a veil in place of its first character, a word is none that a format knows. `unveiled` gives back what was
    // written.
    void add_veil(const std::string& word);
    std::string veil_of(std::string_view text) const;
    std::string unveiled(std::string text) const;

private:
    common_trie trie_;
    size_t longest_ = 0;
    std::vector<std::string> veiled_;  // words whose first character has a veil
    std::vector<std::string> first_;   // characters, each with the veil of its number
};

class OutputText {
public:
    // Stands before the byte `at` of what is readable.
    struct Aside {
        size_t at;
        common_chat_input text;
    };

    // readable: what the format reads.
    const common_chat_input& readable() const { return readable_; }
    const std::vector<Aside>& asides() const { return asides_; }
    // Whether what comes next is set aside as well.
    bool is_aside() const { return is_aside_; }

    void append(const common_chat_input& output);
    // In place of the character at `at`.
    void replace_first(size_t at, const std::string& veil);
    // All that is readable from `at` on. Returns where it begins in the last aside.
    size_t set_aside(size_t at);
    // Without what is readable from `at` on.
    void truncate(size_t at) { readable_.truncate(at); }
    // Of the last aside, from `at` on: readable again.
    void take_back(size_t at);

private:
    common_chat_input readable_;
    std::vector<Aside> asides_;
    bool is_aside_ = false;
};

}  // namespace luce::llama
