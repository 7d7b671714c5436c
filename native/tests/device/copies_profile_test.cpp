// What the profile of steps says of a device that copies beside its computations: submitting and waiting apart, and
// copies for the threads that make them.
#include <doctest/doctest.h>

#include <memory>
#include <span>

#include "base/step_profile.h"
#include "tests/llama/llama_memory.h"

TEST_SUITE("device") {

using namespace luce;
using namespace luce::memory_tests;

TEST_CASE("copies count for the threads that make them, and for the step what it waits for") {
    const SteadyClock clock;
    StepProfile profile(clock);  // outlives the threads that copy
    Setup s({test_model("qwen3"), "q8_0"}, 1024);
    profile.begin();
    s.decoder.note_kv_device(&s.device);
    const Tokens text = some_tokens(kPageSize, 3);
    s.compute(kFirst, text);
    const StepProfile::Sums computed = profile.sums();
    CHECK(computed.of(Part::submit).n_spans > 0);
    CHECK(computed.of(Part::wait).n_spans == computed.of(Part::submit).n_spans);
    CHECK(computed.of(Part::submit).counts[1] == kPageSize);
    CHECK(computed.of(Part::submit).counts[2] >= kPageSize);
    CHECK(computed.of(Part::copies_out).n_spans == 0);

    const std::size_t n_bytes = kPageSize * s.device.traits().row_bytes;
    const auto page = std::make_shared<Bytes>(n_bytes);
    REQUIRE(s.device.read(s.find(kFirst, 0, kPageSize), *page, page));
    s.device.settle();
    const StepProfile::Sums left = profile.sums();
    CHECK(left.of(Part::copies_out).counts[0] == static_cast<std::int64_t>(n_bytes));
    CHECK(left.of(Part::copy).counts[0] == static_cast<std::int64_t>(n_bytes));
    CHECK(left.of(Part::copies_in).n_spans == 0);

    s.device.forget(kFirst);
    Cells filled(kPageSize);
    REQUIRE(s.device.place(0, text, *page, page, filled));
    s.device.show(kFirst, filled);
    const StepProfile::Sums back = profile.sums();
    CHECK(back.of(Part::copies_in).counts[0] == static_cast<std::int64_t>(n_bytes));
    CHECK(back.of(Part::copy_wait).n_spans > left.of(Part::copy_wait).n_spans);
    CHECK(back.of(Part::copies_out).counts == left.of(Part::copies_out).counts);
}

}  // TEST_SUITE("device")
