// Tests of a target's text in a scorer's tokens: the same however the text has grown, and each where it belongs.
#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <random>
#include <string>

#include <llama.h>

#include "llama/scoring/scorer_text.h"
#include "test_paths.h"
#include "tests/llama/llama_memory.h"

TEST_SUITE("llama") {

using namespace luce;
using namespace luce::memory_tests;
using llama::first_segment;
using llama::ScorerText;
using llama::TextVocabularies;

namespace {

struct Vocabulary {
    explicit Vocabulary(const std::string& path) {
        static const llama::Backend backend;
        llama_model_params params = llama_model_default_params();
        params.vocab_only = true;
        model.reset(llama_model_load_from_file(path.c_str(), params));
        REQUIRE(model);
    }
    const llama_vocab* get() const { return llama_model_get_vocab(model.get()); }

    std::string piece(Token token) const {
        std::array<char, 256> buffer{};
        const int n = llama_token_to_piece(get(), token, buffer.data(), buffer.size(), 0, true);
        REQUIRE(n >= 0);
        return {buffer.data(), static_cast<std::size_t>(n)};
    }

    Tokens tokens(const std::string& text) const {
        Tokens found(4 * text.size() + 8);  // a byte that is no character becomes one of three
        const int n = llama_tokenize(get(), text.c_str(), static_cast<int>(text.size()), found.data(),
                                     static_cast<int>(found.size()), false, true);
        REQUIRE(n >= 0);
        found.resize(static_cast<std::size_t>(n));
        return found;
    }

    std::unique_ptr<llama_model, llama::LlamaModelDeleter> model;
};

// Two of its tokens have changed places.
const Vocabulary& target() {
    static const Vocabulary vocabulary(LUCE_TINY_MODEL);
    return vocabulary;
}
const Vocabulary& other() {
    static const Vocabulary vocabulary(test_model("drafts/other-vocabulary"));
    return vocabulary;
}
TextVocabularies both() { return {target().get(), other().get()}; }

// Words, lines, code without spaces, characters of two to four bytes; in pieces of the target's that a text would not
// be cut into, so that the scorer's tokens lie across their borders, and across the pages'.
Tokens random_text(std::size_t n, std::mt19937_64& random) {
    static const std::array<std::string, 12> kParts = {
        "The wind moved over the hills. ", "\n", "\n\n    return x + 1\n", "größer ",    "日本語のテキスト", "🙂🦊",
        "x=1;y=2;foo(bar,baz);",           " ",  "<|im_start|>user\n",     "0123456789", "naïve café ",      "\t\t"};
    Tokens text;
    while (text.size() < n) {
        const std::string& part = kParts[random() % kParts.size()];
        const std::size_t step = random() % 3 == 0 ? 1 + random() % 3 : part.size();
        for (std::size_t i = 0; i < part.size(); i += step) {
            for (const Token token : target().tokens(part.substr(i, step))) text.push_back(token);
        }
    }
    text.resize(n);
    return text;
}

std::string written(const Vocabulary& vocabulary, const Tokens& tokens) {
    std::string bytes;
    for (const Token token : tokens) bytes += vocabulary.piece(token);
    return bytes;
}

void check_same(const ScorerText& grown, const Tokens& text, bool is_whole) {
    ScorerText fresh;
    fresh.set(text, both(), is_whole);
    REQUIRE(grown.text() == text);
    REQUIRE(grown.tokens() == fresh.tokens());
    for (std::size_t i = 0; i < fresh.tokens().size(); ++i) REQUIRE(grown.end_of(i) == fresh.end_of(i));
    for (std::size_t i = 0; i < text.size() / kPageSize; ++i) REQUIRE(grown.end_of_page(i) == fresh.end_of_page(i));
}

}  // namespace

TEST_CASE("tokens of the same vocabulary stay what they are") {
    ScorerText text;
    const Tokens tokens = some_tokens(200, 3);
    text.set(tokens, {}, true);
    CHECK(text.tokens() == tokens);
    CHECK(text.begin_of(130) == 130);
    CHECK(text.end_of(130) == 131);
    CHECK(text.end_of_page(1) == 128);
    text.set(std::span(tokens).first(90), {}, false);
    CHECK(text.tokens().size() == 90);
}

TEST_CASE("a text that is written out is whole, and each token lies where its bytes do") {
    std::mt19937_64 random(1);
    for (int round = 0; round < 20; ++round) {
        const Tokens text = random_text(500, random);
        ScorerText scored;
        scored.set(text, both(), true);
        const std::string bytes = written(target(), text);
        const Tokens& tokens = scored.tokens();
        const std::string again = written(other(), tokens);
        // A character that has only begun is left out.
        REQUIRE(again.size() + 3 >= bytes.size());
        REQUIRE(scored.end_of(tokens.size() - 1) <= bytes.size());
        std::size_t at = 0;
        bool is_exact = true;
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            const std::string piece = other().piece(tokens[i]);
            REQUIRE(scored.begin_of(i) == (i == 0 ? 0 : scored.end_of(i - 1)));
            is_exact = is_exact && bytes.compare(at, piece.size(), piece) == 0;
            if (is_exact) REQUIRE(scored.end_of(i) == at + piece.size());
            at += piece.size();
        }
        for (std::size_t page = 0; page < text.size() / kPageSize; ++page) {
            const auto end = static_cast<std::ptrdiff_t>((page + 1) * kPageSize);
            CHECK(scored.end_of_page(page) == written(target(), Tokens(text.begin(), text.begin() + end)).size());
        }
    }
}

TEST_CASE("tokens reach across the borders of pages, and characters across those of the target's tokens") {
    constexpr std::size_t kBefore = 30;
    const Token dot = target().tokens(".")[0];
    const Tokens face = target().tokens("🙂");
    REQUIRE(face.size() > 2);  // bytes of one character each
    Tokens tokens(kBefore, dot);
    tokens.insert(tokens.end(), face.begin(), face.end());
    tokens.resize(kPageSize - 3, dot);
    for (const char letter : std::string(" hills.")) tokens.push_back(target().tokens(std::string(1, letter))[0]);
    ScorerText scored;
    scored.set(tokens, both(), true);
    CHECK(written(other(), scored.tokens()) == written(target(), tokens));
    const std::uint64_t border = scored.end_of_page(0);
    bool crosses = false;
    for (std::size_t i = 0; i < scored.tokens().size(); ++i) {
        crosses = crosses || (scored.begin_of(i) < border && scored.end_of(i) > border);
    }
    CHECK(crosses);
    // As long as the character is not whole, nothing is made of it.
    scored.set(std::span(tokens).first(kBefore + face.size() - 1), both(), true);
    CHECK(written(other(), scored.tokens()) == std::string(kBefore, '.'));
}

TEST_CASE("tokens do not depend on how a text has grown, or on what stood there before") {
    std::mt19937_64 random(2);
    std::size_t n_kept = 0;
    for (int round = 0; round < 12; ++round) {
        ScorerText grown;
        Tokens text;
        for (int step = 0; step < 14; ++step) {
            if (random() % 4 == 0) text.resize(text.size() - random() % (text.size() + 1));
            const Tokens more = random_text(1 + random() % 400, random);
            text.insert(text.end(), more.begin(), more.end());
            const bool is_whole = random() % 2 == 0;
            grown.set(text, both(), is_whole);
            check_same(grown, text, is_whole);
            n_kept += grown.tokens().size();
        }
    }
    CHECK(n_kept > 0);
}

TEST_CASE("a text is cut behind a line's end, before a word, or between characters") {
    const std::string line(80, 'a');
    CHECK(!first_segment(line + "\n"));  // what comes next may be of the same blank
    CHECK(!first_segment(line + "\n\n  "));
    CHECK(first_segment(line + "\nb") == 81);
    CHECK(first_segment(line + "\n\n  b") == std::nullopt);
    CHECK(first_segment("a\nb" + line + "\nb") == 84);  // not too short
    const std::string words = std::string(1000, 'a') + " word " + std::string(100, 'b');
    CHECK(first_segment(words) == 1005);
    CHECK(!first_segment(words.substr(0, 1020)));
    std::string faces;
    while (faces.size() < 2000) faces += "🙂";
    CHECK(first_segment("." + faces) == 1021);
    CHECK(first_segment(std::string(2000, '\x80')).value_or(0) > 1000);  // no text at all
}

}  // TEST_SUITE("llama")
