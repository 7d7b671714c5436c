// Whether experts that do not fit are read over the link or computed by the processor.
#include <doctest/doctest.h>

#include "experts/expert_hits.h"

TEST_SUITE("experts") {

using namespace luce::experts;

namespace {

ExpertProfile profile_of(std::vector<double> decode) {
    return {std::string(32, 'a'), {{0, decode, std::vector<double>(decode.size(), 0)}}};
}

}  // namespace

TEST_CASE("hits are the profile's, of all layers together, once it has seen enough") {
    ExpertProfile known = profile_of({60'000, 20'000, 10'000, 10'000});
    CHECK(hits_at(0.25, known) == doctest::Approx(0.6));
    CHECK(hits_at(0.5, known) == doctest::Approx(0.8));
    CHECK(hits_at(0, known) == 0);
    CHECK(hits_at(1, known) == doctest::Approx(1));
    known.layers.push_back({1, {100'000, 0, 0, 0}, {0, 0, 0, 0}});
    CHECK(hits_at(0.25, known) == doctest::Approx(0.8));
    CHECK(hits_at(0.3, profile_of({1, 2, 3})) == hits_at(0.3, {}));
}

TEST_CASE("of an unknown mixture hits rise with the share as others' do") {
    double before = -1;
    for (double share = 0; share <= 1.0001; share += 0.01) {
        const double hits = hits_at(share, {});
        CHECK(hits >= before);
        CHECK(hits >= share - 1e-9);
        CHECK(hits <= 1);
        before = hits;
    }
    CHECK(hits_at(0.25, {}) == doctest::Approx(0.80));
}

TEST_CASE("a wide link reads, a narrow one leaves experts to the processor") {
    CHECK(is_reading_cheaper(0.3, 0.84, {55e9, 30e9}));
    CHECK(is_reading_cheaper(0.1, 0.1, {55e9, 30e9}));
    CHECK_FALSE(is_reading_cheaper(0.3, 0.3, {25e9, 50e9}));
    CHECK(is_reading_cheaper(0.3, 0.84, {25e9, 50e9}));
    CHECK_FALSE(is_reading_cheaper(0.3, 0.84, {4e9, 50e9}));
    CHECK(is_reading_cheaper(0.3, 0.3, {4e9, 0}));
    CHECK_FALSE(is_reading_cheaper(0.3, 0.3, {0, 50e9}));
}

}  // TEST_SUITE("experts")
