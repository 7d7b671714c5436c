// Tests of what is known of the cost of drafts.
#include "speculation/controller/cost_model.h"

#include <doctest/doctest.h>

TEST_SUITE("speculation") {

using luce::speculation::DraftCosts;

TEST_CASE("a source that drafts token by token is told from one that drafts a block") {
    DraftCosts block(2, 16), chain(2, 16);
    CHECK(!block.cost_s(1, 16, 100));
    for (int i = 0; i < 8; ++i) {
        for (DraftCosts* costs : {&block, &chain}) costs->observe(1, 16, 100, 0.01);
    }
    CHECK(chain.wants_short_draft(100));
    for (int i = 0; i < 6; ++i) {
        for (DraftCosts* costs : {&block, &chain}) costs->observe(1, 16, 100, 0.01);
        block.observe(1, 4, 100, 0.01);
        chain.observe(1, 4, 100, 0.0025);
    }
    CHECK(!block.wants_short_draft(100));
    CHECK(!chain.wants_short_draft(100));
    CHECK(block.is_flat());
    CHECK(!chain.is_flat());
    CHECK(*block.cost_s(1, 4, 100) == doctest::Approx(0.01).epsilon(0.1));
    CHECK(*chain.cost_s(1, 4, 100) == doctest::Approx(0.0025).epsilon(0.1));
    CHECK(*chain.cost_s(2, 16, 100) > 0.01);
    CHECK(*chain.cost_s(2, 16, 100) < 0.02);
}

TEST_CASE("what drafts cost is believed less the longer nobody asked") {
    DraftCosts costs(2, 16);
    CHECK(!costs.hopeful_s(1, 16, 100));
    for (int i = 0; i < 20; ++i) costs.observe(1, 16, 100, 0.04);
    CHECK(*costs.hopeful_s(1, 16, 100) == *costs.cost_s(1, 16, 100));
    for (int i = 0; i < 400; ++i) costs.pass(0.01);
    CHECK(*costs.hopeful_s(1, 16, 100) == *costs.cost_s(1, 16, 100));
    for (int i = 0; i < 10000; ++i) costs.pass(0.01);
    CHECK(*costs.cost_s(1, 16, 100) == doctest::Approx(0.04).epsilon(0.01));
    CHECK(*costs.hopeful_s(1, 16, 100) < 0.01);
    // One measurement then says more than all those of long ago.
    costs.observe(2, 32, 100, 0.01);
    CHECK(*costs.cost_s(2, 16, 100) == doctest::Approx(0.01).epsilon(0.1));
    CHECK(*costs.cost_s(1, 16, 100) < 0.015);
    CHECK(*costs.hopeful_s(2, 16, 100) == *costs.cost_s(2, 16, 100));
}

TEST_CASE("drafts behind long texts have a price of their own") {
    DraftCosts costs(8, 16);
    for (int i = 0; i < 5; ++i) {
        costs.observe(1, 16, 100, 0.002);
        costs.observe(8, 128, 100, 0.015);
    }
    CHECK(*costs.worst_s(8, 16, 100) == doctest::Approx(0.015).epsilon(0.1));
    CHECK(*costs.cost_s(8, 16, 8000) == doctest::Approx(0.015).epsilon(0.1));
    CHECK(*costs.worst_s(8, 16, 8000) > 0.03);
    for (int i = 0; i < 4; ++i) costs.observe(1, 16, 8000, 0.011);
    CHECK(*costs.cost_s(1, 16, 8000) == doctest::Approx(0.011).epsilon(0.1));
    CHECK(*costs.cost_s(8, 16, 8000) == doctest::Approx(0.08).epsilon(0.15));
    CHECK(*costs.worst_s(8, 16, 8000) < 0.1);
    // What is longer still is likely to cost more; what is short costs what it did.
    CHECK(*costs.cost_s(8, 16, 20000) > 0.05);
    CHECK(*costs.cost_s(8, 16, 100) == doctest::Approx(0.015).epsilon(0.1));
}

}  // TEST_SUITE("speculation")
