// What copies may take of running lanes' time.
#include <doctest/doctest.h>

#include "engine/copy_budget.h"

TEST_SUITE("engine") {

using luce::engine::CopyBudget;

TEST_CASE("copies take a hundredth of the steps' time, and what one took beyond it the next steps go without") {
    CopyBudget budget;
    double now_s = 5;
    budget.begin_step(now_s);
    CHECK_FALSE(budget.has_time());  // nothing is known of a step yet
    int n_copies = 0;
    for (int step = 0; step < 1000; ++step) {
        budget.begin_step(now_s += 0.02);
        while (budget.has_time()) {
            budget.spend(0.001, 1 << 20);  // five steps' share
            ++n_copies;
        }
    }
    CHECK(n_copies >= 199);
    CHECK(n_copies <= 201);
}

TEST_CASE("a copy that a device makes counts for what the bus takes for it") {
    CopyBudget budget;
    budget.begin_step(0);
    budget.begin_step(0.019);
    int n_copies = 0;
    for (; budget.has_time(); ++n_copies) budget.spend(0, 1'000'000);
    CHECK(n_copies == 5);  // 0.04 ms each
}

TEST_CASE("what was not used is not saved up, and time in which nobody computes is nobody's") {
    CopyBudget budget;
    budget.begin_step(0);
    for (int step = 1; step <= 100; ++step) budget.begin_step(0.01 * step);
    budget.spend(0.00011, 0);
    CHECK_FALSE(budget.has_time());
    budget.rest();
    budget.begin_step(1000);
    CHECK_FALSE(budget.has_time());
    budget.begin_step(1000.01);
    CHECK(budget.has_time());
}

}  // TEST_SUITE("engine")
