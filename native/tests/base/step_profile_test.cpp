// Tests of the profile of steps: what is counted for which part, by a clock that stands still between two events.
#include <doctest/doctest.h>

#include <numeric>
#include <thread>

#include "base/step_profile.h"

TEST_SUITE("base") {

using namespace luce;

namespace {

double sum_of_engine(const StepProfile::Sums& sums) {
    double sum = 0;
    for (std::size_t i = 0; i < kParts; ++i) {
        if (is_of_engine(static_cast<Part>(i))) sum += sums.parts[i].seconds;
    }
    return sum;
}

}  // namespace

TEST_CASE("Each moment counts for the innermost open span, and the parts add up to all of the time") {
    ManualClock clock;
    StepProfile profile(clock);
    profile.begin();
    clock.advance(1);  // loop
    {
        Span step(Part::step);
        clock.advance(2);
        {
            const Span plan(Part::plan);
            clock.advance(4);
        }
        Span submit(Part::submit);
        clock.advance(8);
        submit.count({2, 30, 64});
        submit.end();
        clock.advance(16);  // the step's own
        for (int lane = 0; lane < 2; ++lane) {
            const Span sample(Part::sample, {lane});
            clock.advance(32);
        }
    }
    const Span idle(Part::idle);
    clock.advance(128);  // still open
    const StepProfile::Sums sums = profile.sums();
    CHECK(sums.of(Part::loop).seconds == 1);
    CHECK(sums.of(Part::step).seconds == 18);
    CHECK(sums.of(Part::plan).seconds == 4);
    CHECK(sums.of(Part::submit).seconds == 8);
    CHECK(sums.of(Part::submit).counts == SpanCounts{2, 30, 64});
    CHECK(sums.of(Part::sample).seconds == 64);
    CHECK(sums.of(Part::sample).n_spans == 2);
    CHECK(sums.of(Part::idle).seconds == 128);
    CHECK(sums.of(Part::idle).n_spans == 0);
    CHECK(sums.seconds == 223);
    CHECK(sum_of_engine(sums) == sums.seconds);
    clock.advance(5);
    CHECK(sum_of_engine(profile.sums()) == 228);
}

TEST_CASE("Other threads have parts of their own, and what they mark as the engine's is not counted") {
    ManualClock clock;
    StepProfile profile(clock);
    profile.begin();
    std::thread([&clock] {
        const Span not_the_engine(Part::sample);
        CHECK_FALSE(not_the_engine.is_measured());
        const BackgroundSpan copies(Part::copies_out, 4096);
        clock.advance(3);
    }).join();
    const StepProfile::Sums sums = profile.sums();
    CHECK(sums.of(Part::copies_out).seconds == 3);
    CHECK(sums.of(Part::copies_out).counts[0] == 4096);
    CHECK(sums.of(Part::sample).n_spans == 0);
    CHECK(sum_of_engine(sums) == sums.seconds);
}

TEST_CASE("Without a profile, and after one has gone, a span measures nothing") {
    CHECK_FALSE(Span(Part::step).is_measured());
    {
        ManualClock clock;
        StepProfile profile(clock);
        CHECK_FALSE(Span(Part::step).is_measured());  // it has not begun
        profile.begin();
        CHECK(Span(Part::step).is_measured());
    }
    CHECK_FALSE(Span(Part::step).is_measured());
    const BackgroundSpan nowhere(Part::files, 1);
}

TEST_CASE("Every part has a name of its own") {
    for (std::size_t i = 0; i < kParts; ++i) {
        CHECK_FALSE(traits_of(static_cast<Part>(i)).name.empty());
        for (std::size_t k = 0; k < i; ++k) {
            CHECK(traits_of(static_cast<Part>(i)).name != traits_of(static_cast<Part>(k)).name);
        }
    }
}

}  // TEST_SUITE("base")
