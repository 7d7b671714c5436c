// Tests of what a lazy grammar is shown of the text that it waits through.
#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <vector>

#include "llama/sampling/trigger_window.h"

TEST_SUITE_BEGIN("llama");

using luce::Tokens;
using luce::engine::Trigger;
using luce::llama::TriggerWindow;

namespace {

const std::vector<Trigger> kTriggers = {{Trigger::Kind::word, "<call>\n", 0}, {Trigger::Kind::token, "", 99}};

}  // namespace

TEST_CASE("a lazy grammar is shown the tokens that its trigger word lies in, however long it waited") {
    std::optional<TriggerWindow> window = TriggerWindow::of(kTriggers);
    REQUIRE(window);
    for (int i = 0; i < 10000; ++i) CHECK(window->add(1, "no <call> here ").empty());
    CHECK(window->add(2, "then <ca").empty());
    CHECK(window->add(3, "").empty());
    CHECK(window->add(4, "ll").empty());
    CHECK(window->add(5, ">\nname") == Tokens{2, 3, 4, 5});
}

TEST_CASE("a trigger token is all that a lazy grammar is shown") {
    std::optional<TriggerWindow> window = TriggerWindow::of(kTriggers);
    CHECK(window->add(2, "then <call").empty());
    CHECK(window->add(99, "") == Tokens{99});
}

TEST_CASE("a trigger that may match a text of any length has no window") {
    for (const Trigger::Kind kind : {Trigger::Kind::pattern, Trigger::Kind::pattern_full}) {
        std::vector<Trigger> triggers = kTriggers;
        triggers.push_back({kind, "a.*b", 0});
        CHECK(!TriggerWindow::of(triggers));
    }
    const std::vector<Trigger> empty = {{Trigger::Kind::word, std::string(1, '\0') + "word", 0}};
    CHECK(!TriggerWindow::of(empty));
}

TEST_SUITE_END();
