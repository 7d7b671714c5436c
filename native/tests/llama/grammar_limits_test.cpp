// What grammars and trigger patterns are refused before llama.cpp sees them, and what must pass. Each refused one hung,
// crashed or exhausted llama.cpp; a case that does again fails by the suite's time limit. Needs no model.
#include "llama/grammar/grammar_limits.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "llama/grammar/trigger_checks.h"

TEST_SUITE_BEGIN("llama");

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
    const Result<void> checked = luce::llama::check_grammar(grammar, nullptr);
    REQUIRE(!checked.ok());
    CHECK(checked.error().code == ErrorCode::bad_grammar);
    CHECK_MESSAGE(checked.error().text.find(why) != std::string::npos, checked.error().text);
}

void check_passes(const std::string& grammar) {
    CAPTURE(grammar.substr(0, 200));
    const Result<void> checked = luce::llama::check_grammar(grammar, nullptr);
    CHECK_MESSAGE(checked.ok(), (checked.ok() ? "" : checked.error().text));
}

// Empty: allowed.
std::string why_refused(Trigger::Kind kind, const std::string& text) {
    const std::vector<Trigger> triggers = {{kind, text, 0}};
    const Result<void> checked = luce::llama::check_triggers(triggers);
    return checked.ok() ? "" : checked.error().text;
}

bool allows(Trigger::Kind kind, const std::string& text) { return why_refused(kind, text).empty(); }

}  // namespace

TEST_CASE("Repetitions are bounded before they are expanded") {
    check_refused("root ::= \"a\"{5,3}", "m > n");
    check_refused("root ::= [a-z#\"]{5 , # comment\n 3}", "m > n");
    check_refused("root ::= \"a\"{99999999999999999999999}", "2000 times");
    check_refused("root ::= \"" + std::string(1 << 20, 'x') + "\"{2000}", "too many elements");
    check_refused("root ::= \"" + std::string(1000, 'x') + "\"{0,2000}", "too many elements");
    check_refused(std::string(100'000, 'n') + " ::= \"x\"{0,2000}\nroot ::= \"a\"", "rule names");
    check_passes("root ::= \"a\"{3,5} [b-d]{2} (\"e\" | \"f\"){0,200} \"{5,3}\" [{5,3}] # {5,3}\n");
    check_passes("root ::= [^\"\\\\]{0,2000} \"\\\"{5,3}\" \"a\"{0,5000}");
}

TEST_CASE("A character that swallows the closing quote does so for the scan, too") {
    // The parser trusts a first byte's length: the quote after \xe0 is part of that character.
    check_refused("root ::= \"\xe0\"x\" \"a\"{5,3}", "m > n");
}

TEST_CASE("Nesting and chains are bounded before llama.cpp recurses into them") {
    check_refused("root ::= " + std::string(200'000, '(') + "\"a\"" + std::string(200'000, ')'), "200 brackets");
    check_refused(chain(200'000, "", "", "", "\"x\""), "chain");
    check_passes("root ::= " + std::string(200, '(') + "\"a\"" + std::string(200, ')'));
    check_passes(chain(1900, "", "", "", "\"x\""));
    check_passes(chain(20'000, "\"a\" ", "", "", "\"x\""));
}

TEST_CASE("Left recursion is found, hidden or not, and in time") {
    check_refused("root ::= root \"a\" | \"b\"", "left-recursive");
    check_refused("root ::= a\na ::= b a \"y\" | \"z\"\nb ::= c\nc ::= \"\"", "left-recursive");
    check_refused("root ::= a \"x\"\na ::= b \"y\" | c\nb ::= a \"z\"\nc ::= a", "left-recursive");
    check_passes("root ::= (\"x\"?)* \"y\"");  // nothing comes after the rule in itself: llama.cpp ends there
    check_passes("root ::= ((\"x\"? \"z\"?)* \"w\"?)* \"y\"");
    check_refused(chain(40, "", " \"a\" | ", " \"b\"", "\"x\""), "ambiguous");
    check_refused(chain(40, "", " | ", "", "\"\""), "ambiguous");
    check_passes("root ::= \"a\" root | \"(\" root \")\" | \"\"");
}

TEST_CASE("Ways to go on are bounded") {
    check_refused("root ::= " + repeated(".? ", 2000), "ambiguous");
    check_refused("root ::= " + repeated(".* ", 1000), "ambiguous");
    std::string choices = "root ::= \"value 0\"";
    for (int i = 1; i < 5000; ++i) choices += " | \"value " + std::to_string(i) + "\"";
    check_passes(choices);
    check_passes("root ::= " + repeated("[ \\t]? ", 8));
    check_refused("root ::= \"x\" y\ny ::= " + repeated("[a-z]* ", 200), "ambiguous");
    check_refused("root ::= ([a-z] | [a-z] | [a-z] | [a-z])* \"!\"", "ambiguous");
    check_passes("root ::= ([a-z]+ \" \"?)+ \"!\"");
}

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

TEST_SUITE_END();
