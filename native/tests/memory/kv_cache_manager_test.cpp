// Random operations on lanes, slots, tiers and park, on a model of arithmetic, against a simple model of what a slot
// holds and what a request must answer. Without a device that fails nothing may go wrong, however small the budgets;
// with one, whatever fails says so and breaks no books.
#include <doctest/doctest.h>

#include <random>

#include "tests/memory/disk_samples.h"
#include "tests/memory/memory_player.h"

TEST_SUITE("memory") {

using namespace luce;
using namespace luce::tests;

namespace {

PlayOptions some_options(std::uint64_t seed) {
    std::mt19937_64 random(seed * 7919);
    static constexpr std::size_t kBudgets[] = {0, 1400, 4000, 10000, 40000, 1 << 20};
    PlayOptions options;
    options.has_state = random() % 2 == 0;
    options.host_budget = kBudgets[random() % std::size(kBudgets)];
    options.n_ctx = 100 + static_cast<std::int32_t>(random() % 200);
    options.n_pool = options.n_ctx + static_cast<std::int32_t>(random() % 100);
    options.n_lanes = 1 + static_cast<std::int32_t>(random() % 4);
    return options;
}

void play_rounds(int n_rounds, std::uint64_t first_seed, bool fails, bool with_disk) {
    std::uint64_t n_restored = 0;
    std::uint64_t n_suspensions = 0;
    std::int64_t n_moved_cells = 0;
    for (int round = 0; round < n_rounds; ++round) {
        const std::uint64_t seed = first_seed + static_cast<std::uint64_t>(round);
        INFO("seed " << seed);
        const memory::samples::TemporaryFolder folder;
        PlayOptions options = some_options(seed);
        options.fails = fails;
        // What lies on disk is larger: its logits are as many as the vocabulary.
        if (with_disk) {
            options.folder = folder.path;
            options.host_budget *= 4;
        }
        Player player(options, seed);
        player.play(300);
        n_restored += player.n_restored;
        n_suspensions += player.n_suspensions();
        n_moved_cells += player.n_moved_cells();
    }
    // The rounds were heavy enough to mean something.
    CHECK(n_restored > static_cast<std::uint64_t>(n_rounds));
    CHECK(n_suspensions > static_cast<std::uint64_t>(n_rounds / 4));
    CHECK(n_moved_cells > 64 * n_rounds);
}

int rounds(int n) { return memory::samples::times("LUCE_MEMORY_ROUNDS", n); }

}  // namespace

TEST_CASE("random operations: nothing goes wrong, however small the budgets") {
    play_rounds(rounds(60), 1, false, false);
}

TEST_CASE("random operations with a disk") { play_rounds(rounds(30), 100'000, false, true); }

TEST_CASE("random operations on a device that fails: what fails says so, the books agree") {
    play_rounds(rounds(60), 200'000, true, false);
}

TEST_CASE("random operations with a disk on a device that fails") { play_rounds(rounds(30), 300'000, true, true); }

TEST_CASE("random operations with a pool that is smaller than the texts: the same answers") {
    memory::ResidencyStatus moved;
    for (int round = 0; round < rounds(40); ++round) {
        const std::uint64_t seed = 400'000 + static_cast<std::uint64_t>(round);
        INFO("seed " << seed);
        std::mt19937_64 random(seed);
        PlayOptions options;
        options.has_state = random() % 2 == 0;
        options.fails = random() % 4 == 0;
        options.has_scorer = random() % 4 != 0;
        options.needs_keys = random() % 4 != 0;
        options.host_budget = 1 << 22;
        options.n_ctx = 300 + static_cast<std::int32_t>(random() % 1000);
        options.n_text = options.n_ctx;
        options.n_lanes = 1 + static_cast<std::int32_t>(random() % 3);
        options.residency =
            memory::ResidencyRules{random() % 3, 1 + random() % 2, 1 + static_cast<Position>(random() % 80)};
        options.n_pool = options.n_lanes * memory::least_cells(*options.residency, 1) + 32 +
                         static_cast<std::int32_t>(random() % 200);
        const memory::samples::TemporaryFolder folder;
        if (random() % 3 == 0) {
            options.folder = folder.path;
            options.host_budget *= 4;
        }
        Player player(options, seed);
        player.play(150);
        moved.n_moved_in += player.residency().n_moved_in;
        moved.n_moved_out += player.residency().n_moved_out;
        moved.n_choices += player.residency().n_choices;
    }
    const auto n_rounds = static_cast<std::uint64_t>(rounds(40));
    CHECK(moved.n_moved_out > 10 * n_rounds);
    CHECK(moved.n_moved_in > 2 * n_rounds);
    CHECK(moved.n_choices > n_rounds);
}

}  // TEST_SUITE("memory")
