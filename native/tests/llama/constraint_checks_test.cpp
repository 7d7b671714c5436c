// What grammars and trigger patterns are refused, and what must pass; and that a grammar which passes cannot cost more
// than its steps. Each refused one hung, crashed or exhausted llama.cpp; a case that does again fails by the suite's
// time limit. Needs no model.
#include "llama/grammar/constraint_checks.h"

#include <doctest/doctest.h>

#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "llama-grammar.h"
#include "llama/grammar/trigger_checks.h"

TEST_SUITE("llama") {

using luce::ErrorCode;
using luce::Result;
using luce::engine::Trigger;

namespace {

std::string repeated(const std::string& text, int n) {
    std::string all;
    for (int i = 0; i < n; ++i) all += text;
    return all;
}

// root ::= r0, and each rule r_i is made by `body` from the name of the next; the last one is `last`.
std::string chain(int n, const std::string& before, const std::string& between, const std::string& after,
                  const std::string& last) {
    std::string text = "root ::= r0\n";
    for (int i = 0; i < n; ++i) {
        const std::string next = "r" + std::to_string(i + 1);
        text += "r" + std::to_string(i) + " ::= " + before + next;
        if (!between.empty()) text += between + next;
        text += after + "\n";
    }
    return text + "r" + std::to_string(n) + " ::= " + last + "\n";
}

void check_refused(const std::string& grammar, const std::string& why) {
    CAPTURE(grammar.substr(0, 200));
    const Result<void> checked = luce::llama::check_grammar(grammar, {}, nullptr);
    REQUIRE(!checked.ok());
    CHECK(checked.error().code == ErrorCode::bad_grammar);
    CHECK_MESSAGE(checked.error().text.find(why) != std::string::npos, checked.error().text);
}

void check_passes(const std::string& grammar) {
    CAPTURE(grammar.substr(0, 200));
    const Result<void> checked = luce::llama::check_grammar(grammar, {}, nullptr);
    CHECK_MESSAGE(checked.ok(), (checked.ok() ? "" : checked.error().text));
}

// Empty: allowed.
std::string why_refused(Trigger::Kind kind, const std::string& text) {
    const std::vector<Trigger> triggers = {{kind, text, 0}};
    const Result<void> checked = luce::llama::check_triggers(triggers);
    return checked.ok() ? "" : checked.error().text;
}

bool allows(Trigger::Kind kind, const std::string& text) { return why_refused(kind, text).empty(); }

#ifdef LLAMA_GRAMMAR_MAX_STEPS

// Code points, each with the 0 at its end: all short ones, and long ones that no class of letters ends.
std::vector<std::vector<std::uint32_t>> make_vocabulary() {
    std::vector<std::vector<std::uint32_t>> texts;
    for (std::uint32_t i = 0; i < 1000; ++i) texts.push_back({U"abcx -1!"[i % 8], U"abcx -1!"[i / 8 % 8], 'a' + i, 0});
    for (const char first : {'a', 'b', 'x', ' '}) {
        texts.emplace_back(40, static_cast<std::uint32_t>(first));
        texts.back().insert(texts.back().end(), {'1', 0});
        texts.push_back({static_cast<std::uint32_t>(first)});
        for (char c = 'a'; c <= 'z'; ++c) texts.back().push_back(static_cast<std::uint32_t>(c));
        texts.back().insert(texts.back().end(), {'1', 0});
    }
    return texts;
}

// A grammar that is read as common_sampler does it, but with a limit on the steps of each call.
class Reading {
public:
    explicit Reading(const std::string& grammar)
        : grammar_(llama_grammar_init_impl(nullptr, grammar.c_str(), "root", false, nullptr, 0, nullptr, 0)) {}

    // A look at all texts. False: it takes more steps.
    bool looks_at(const std::vector<std::vector<std::uint32_t>>& texts, std::uint64_t n_steps) const {
        return within(n_steps, [&] {
            llama_grammar_candidates left;
            for (const auto& text : texts) left.push_back({left.size(), text.data(), {}, 0});
            for (const llama_grammar_stack& stack : grammar_->stacks) {
                left = llama_grammar_reject_candidates_for_stack(grammar_->rules, stack, left);
            }
        });
    }

    bool accepts(std::uint32_t character, std::uint64_t n_steps) {
        return within(n_steps, [&] { llama_grammar_accept(grammar_.get(), character); });
    }

    bool is_over() const { return grammar_->stacks.empty(); }

    std::size_t n_elements() const {
        std::size_t n = 0;
        for (const llama_grammar_stack& stack : grammar_->stacks) n += stack.size();
        return n;
    }

private:
    template <typename Call>
    static bool within(std::uint64_t n_steps, Call call) {
        llama_grammar_steps_left() = n_steps;
        try {
            call();
        } catch (const std::length_error&) {
            return false;
        }
        return true;
    }

    struct Deleter {
        void operator()(llama_grammar* grammar) const { llama_grammar_free_impl(grammar); }
    };

    std::unique_ptr<llama_grammar, Deleter> grammar_;
};

// Of rules that stand further down, so that it is not left-recursive.
std::string random_alternates(std::mt19937& random, int rule, int depth);

std::string random_item(std::mt19937& random, int rule, int depth) {
    static const std::vector<std::string> kAtoms = {"\"a\"", "[a-c]", "[^b]", ".", "[a-z ]"};
    static const std::vector<std::string> kRepetitions = {"", "", "*", "+", "?", "{0,3}", "{2,}"};
    const std::string& repetition = kRepetitions[random() % kRepetitions.size()];
    if (depth > 0 && random() % 3 == 0) return "(" + random_alternates(random, rule, depth - 1) + ")" + repetition;
    if (rule < 3 && random() % 3 == 0) return "r" + std::to_string(rule + 1) + repetition;
    return kAtoms[random() % kAtoms.size()] + repetition;
}

std::string random_alternates(std::mt19937& random, int rule, int depth) {
    std::string text = random_item(random, rule, depth);
    for (int more = static_cast<int>(random() % 5); more > 0; --more) {
        text += (random() % 2 == 0 ? " | " : " ") + random_item(random, rule, depth);
    }
    return text;
}

std::string random_grammar(std::mt19937& random) {
    std::string text = "root ::= r0+\n";
    for (int rule = 0; rule <= 3; ++rule) {
        const std::string name = "r" + std::to_string(rule);
        text += name + " ::= " + random_alternates(random, rule, 2) + " | [a-c] " + name + " | [a-c] r0\n";
    }
    return text;
}

#endif

}  // namespace

TEST_CASE("Repetitions are bounded before they are expanded") {
    check_refused("root ::= \"a\"{5,3}", "m > n");
    check_refused("root ::= ([a-z#\"]{5 , # comment\n 3})", "m > n");
    check_refused("root ::= \"a\"{2001}", "number of repetitions");
    check_refused("root ::= \"a\"{99999999999999999999999}", "parse");
    check_refused("root ::= \"" + std::string(1 << 20, 'x') + "\"{2000}", "too large");
    check_refused("root ::= \"" + std::string(1000, 'x') + "\"{0,2000}", "too large");
    check_refused(std::string(100'000, 'n') + " ::= \"x\"{0,2000}\nroot ::= \"a\"", "too large");
    check_passes("root ::= \"a\"{3,5} [b-d]{2} (\"e\" | \"f\"){0,200} \"{5,3}\" [{5,3}] # {5,3}\n");
    check_passes("root ::= [^\"\\\\]{0,2000} \"\\\"{5,3}\" \"a\"{0,5000}");
}

TEST_CASE("Nesting and chains are bounded before llama.cpp recurses into them") {
    check_refused("root ::= " + std::string(200'000, '(') + "\"a\"" + std::string(200'000, ')'), "200 nested groups");
    check_refused(chain(200'000, "", "", "", "\"x\""), "chain");
    check_passes("root ::= " + std::string(200, '(') + "\"a\"" + std::string(200, ')'));
    check_passes(chain(1900, "", "", "", "\"x\""));
    check_passes(chain(20'000, "\"a\" ", "", "", "\"x\""));
}

TEST_CASE("Left recursion is found, hidden or not, and in time") {
    check_refused("root ::= root \"a\" | \"b\"", "left-recursive");
    check_refused("root ::= a\na ::= b a \"y\" | \"z\"\nb ::= c\nc ::= \"\"", "too ambiguous");
    check_refused("root ::= a \"x\"\na ::= b \"y\" | c\nb ::= a \"z\"\nc ::= a", "left-recursive");
    check_passes("root ::= (\"x\"?)* \"y\"");  // nothing comes after the rule in itself: llama.cpp ends there
    check_passes("root ::= ((\"x\"? \"z\"?)* \"w\"?)* \"y\"");
    check_refused(chain(40, "", " \"a\" | ", " \"b\"", "\"x\""), "ambiguous");
    check_passes(chain(40, "", " | ", "", "\"\""));  // all ways are the same one
    check_passes("root ::= \"a\" root | \"(\" root \")\" | \"\"");
}

TEST_CASE("Ways to go on are bounded") {
    std::string choices = "root ::= \"value 0\"";
    for (int i = 1; i < 5000; ++i) choices += " | \"value " + std::to_string(i) + "\"";
    check_passes(choices);
    check_passes("root ::= " + repeated("[ \\t]? ", 8));
    check_passes("root ::= ([a-z]+ \" \"?)+ \"!\"");
}

#ifdef LLAMA_GRAMMAR_MAX_STEPS
TEST_CASE("A look at a vocabulary that would take too many steps ends") {
    for (const std::string& grammar : {"root ::= " + repeated(".? ", 2000), "root ::= " + repeated(".* ", 1000),
                                       "root ::= \"x\" y\ny ::= " + repeated("[a-z]* ", 200),
                                       std::string("root ::= ([a-z] | [a-z] | [a-z] | [a-z])* \"!\""),
                                       "root ::= [" + repeated("abcdefgh", 100'000) + "]*"}) {
        CAPTURE(grammar.substr(0, 60));
        check_passes(grammar);
        CHECK(!Reading(grammar).looks_at(make_vocabulary(), LLAMA_GRAMMAR_MAX_STEPS));
    }
}

TEST_CASE("No call on a random grammar does more than its steps") {
    constexpr std::uint64_t kSteps = 1 << 20;
    const auto vocabulary = make_vocabulary();
    std::mt19937 random(7);
    int n_ended = 0;
    int n_read = 0;
    for (int i = 0; i < 200; ++i) {
        const std::string grammar = random_grammar(random);
        CAPTURE(grammar);
        if (!luce::llama::check_grammar(grammar, {}, nullptr).ok()) continue;
        Reading reading(grammar);
        for (int n = 0; n < 24 && !reading.is_over(); ++n) {
            if (!reading.looks_at(vocabulary, kSteps) || !reading.accepts(U"ab c"[random() % 4], kSteps)) {
                ++n_ended;
                break;
            }
            // Whatever it keeps was paid for: nothing grows that is not counted.
            CHECK(reading.n_elements() <= kSteps / 32);
            ++n_read;
        }
    }
    CHECK(n_ended > 10);
    CHECK(n_read > 100);
}
#endif

TEST_CASE("What the parser refuses is refused") {
    check_refused("start ::= \"a\"", "root");
    check_refused("root ::= missing", "parse");
    check_refused("root ::= \"open", "parse");
    check_refused("%llguidance {}", "parse");
    check_refused("root ::= <think> \"a\"", "parse");  // no vocabulary here
    check_passes("root ::= <[5]> !<[6]> \"a\"");
}

TEST_CASE("Trigger patterns that llama.cpp's templates use pass") {
    for (const char* pattern :
         {">>>(?!all)", "^\\s+to$", "^<\\|channel\\|>(?:commentary|analysis)\\s+to=functions$",
          "<\\|start\\|>\\s*assistant(<\\|channel\\|>\\s*(?:commentary|analysis)\\s+to)",
          "(?:^|<\\|start\\|>assistant)( to=(?!self<\\|message\\|>)(?!user<\\|message\\|>)[^<]*?<\\|message\\|>)",
          "^[\\s\\S]*?(<tool_call>)[\\s\\S]*$", "[[:alpha:]()*|]{3}(?:abc)+"}) {
        CAPTURE(std::string(pattern));
        CHECK(why_refused(Trigger::Kind::pattern, pattern) == "");
    }
    CHECK(allows(Trigger::Kind::pattern_full, "[^Q]*?(Q#Q)[^Q]*"));
    CHECK(allows(Trigger::Kind::word, "(((*{[<tool>"));
}

TEST_CASE("Trigger patterns that std::regex cannot match in time or stack are refused") {
    for (const char* pattern :
         {"(.*)*(.*)*(.*)*Q#Q", "(.|x)*Q#Q", "(?:a|aa)+$", "((a?){9}){9}", "(a|b){30}", "(a", "a)", ".*.*.*Q",
          "a?a?a?a?a?a?a?a?a?a?Q", "(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)", "^a|.*.*.*Q"}) {
        CAPTURE(std::string(pattern));
        CHECK(!allows(Trigger::Kind::pattern, pattern));
    }
    CHECK(!allows(Trigger::Kind::pattern, std::string(50'000, '(')));
    CHECK(!allows(Trigger::Kind::pattern, std::string(200, '(') + std::string(200, ')')));
    CHECK(!allows(Trigger::Kind::word, std::string(2000, 'x')));
    CHECK(!luce::llama::check_triggers(std::vector<Trigger>(65)).ok());
}

}  // TEST_SUITE("llama")
