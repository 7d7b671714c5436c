// The pool that bounded residency chooses by itself: every limit decides where it is the tightest, and no figure, zero
// and the largest included, makes it overflow or go below what works.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "memory/residency/pool_size.h"

TEST_SUITE("memory") {

using namespace luce::memory;
using Limit = PoolChoice::Limit;

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

// A card of 24 GiB with a model of 16 GiB, 64 KiB a token, and four lanes of 256K tokens.
PoolQuestion card() {
    PoolDevice device;
    device.name = "CUDA0";
    device.total = 24 * kGiB;
    device.free = 6 * kGiB;
    device.reserve = kGiB;
    device.a_token = 64 << 10;
    return {{device}, 2112, 262144, 4, 16 * kGiB, 64 << 10};
}

PoolChoice chosen(const PoolQuestion& question) {
    const auto choice = choose_pool(question);
    REQUIRE(choice);
    return choice.value();
}

}  // namespace

TEST_CASE("a full pool's rows are a quarter of the weights that a token reads, at most") {
    const PoolChoice choice = chosen(card());
    CHECK(choice.n == 65536);
    CHECK(choice.limit == Limit::speed);
    CHECK(choice.n_memory == 2112 + 5 * kGiB / (64 << 10));
    CHECK(choice.tightest == "CUDA0");
}

TEST_CASE("less memory makes it smaller, in whole steps of libllama's cells") {
    PoolQuestion question = card();
    question.devices[0].free = 2 * kGiB;
    PoolChoice choice = chosen(question);
    CHECK(choice.limit == Limit::memory);
    CHECK(choice.n == (2112 + 16384) / 256 * 256);
    SUBCASE("what grows beside the rows, and what computing needs for them, is taken off") {
        question.devices[0].later = 512 * kMiB;
        CHECK(chosen(question).n == (2112 + 8192) / 256 * 256);
        question.devices[0].beside_token = 64 << 10;
        CHECK(chosen(question).n == (2112 + 4096) / 256 * 256);
    }
    SUBCASE("of several devices the tightest decides; one that holds no rows does not matter") {
        PoolDevice second = question.devices[0];
        second.name = "CUDA1";
        second.free = kGiB + 64 * kMiB;
        question.devices.push_back(second);
        PoolDevice host;
        host.name = "host";
        question.devices.push_back(host);
        choice = chosen(question);
        CHECK(choice.tightest == "CUDA1");
        CHECK(choice.n == (2112 + 1024) / 256 * 256);
    }
}

TEST_CASE("texts that cannot be longer need no more, to whole pages") {
    PoolQuestion question = card();
    question.n_ctx = 1000;
    CHECK(chosen(question).n == 4 * 1024);
    CHECK(chosen(question).limit == Limit::texts);
    question.n_ctx = 100;
    CHECK(chosen(question).n == 2112);
    CHECK(chosen(question).limit == Limit::least);
}

TEST_CASE("the smallest pool stays where speed would ask for less, and is refused where it does not fit") {
    PoolQuestion question = card();
    question.weights_a_token = 0;
    CHECK(chosen(question).n == 2112);
    question = card();
    question.devices[0].free = question.devices[0].reserve;
    CHECK(chosen(question).n == 2112);
    CHECK(chosen(question).limit == Limit::least);
    question.devices[0].free -= 100 * kMiB;
    const auto refused = choose_pool(question);
    REQUIRE(!refused);
    CHECK(refused.error().code == luce::ErrorCode::start_failed);
    for (const char* part : {"CUDA0", "2112", "1024 MiB", "924 MiB", "100 MiB are missing", "--gpu-layers"}) {
        CHECK(refused.error().text.find(part) != std::string::npos);
    }
    question.devices[0].is_host = true;
    CHECK(choose_pool(question).error().text.find("--host-cache") != std::string::npos);
    question.devices[0].later = kMost;
    CHECK(!choose_pool(question));
}

TEST_CASE("zero is a figure") {
    PoolQuestion question;
    CHECK(chosen(question).n == 0);
    question = card();
    question.devices.clear();
    question.rows_a_token = 0;
    CHECK(chosen(question).n == 4 * 262144);
    question.n_lanes = 0;
    CHECK(chosen(question).n == 2112);
}

TEST_CASE("the reserve is a sixteenth of the memory, from a quarter of a GiB to a whole one") {
    CHECK(pool_reserve(0) == 256 * kMiB);
    CHECK(pool_reserve(8 * kGiB) == 512 * kMiB);
    CHECK(pool_reserve(kMost) == kGiB);
}

TEST_CASE("a pool that the device refuses is halved towards the smallest, which it reaches") {
    std::int32_t n = 1 << 28;
    int n_tries = 0;
    for (; n != 2112; ++n_tries) {
        const std::int32_t smaller = smaller_pool(n, 2112);
        REQUIRE(smaller < n);
        REQUIRE(smaller >= 2112);
        REQUIRE(smaller % 64 == 0);
        n = smaller;
    }
    CHECK(n_tries < 25);
}

TEST_CASE("random figures: between what works and what the limits say, and more memory is never less pool") {
    std::mt19937_64 random(9);
    const auto figure = [&] { return random() >> (random() % 64); };
    for (int round = 0; round < 20000; ++round) {
        PoolQuestion question;
        question.n_least = static_cast<std::int64_t>(random() % 4096 * 64);
        question.n_ctx = static_cast<std::int64_t>(figure() >> 1);
        question.n_lanes = static_cast<std::int64_t>(figure() >> 1);
        question.weights_a_token = figure();
        for (std::size_t i = random() % 4; i > 0; --i) {
            PoolDevice device;
            device.name = "device" + std::to_string(i);
            device.free = figure();
            device.later = random() % 2 == 0 ? 0 : figure();
            device.reserve = random() % 2 == 0 ? 0 : figure();
            device.a_token = random() % 4 == 0 ? 0 : figure();
            device.beside_token = random() % 2 == 0 ? 0 : figure();
            question.rows_a_token = std::max(question.rows_a_token, device.a_token);
            question.devices.push_back(device);
        }
        const auto choice = choose_pool(question);
        if (!choice) continue;
        const PoolChoice& made = choice.value();
        REQUIRE(made.n >= question.n_least);
        REQUIRE((made.limit == Limit::least) == (made.n == question.n_least));
        REQUIRE(made.n <= std::max({question.n_least, std::min({made.n_texts, made.n_speed, made.n_memory})}));
        REQUIRE(tell_pool(question, made).size() == 4 + question.devices.size());
        for (PoolDevice& device : question.devices) {
            const std::uint64_t needed = (made.n - question.n_least) * (device.a_token + device.beside_token);
            if (device.a_token > 0 && made.n > question.n_least) {
                REQUIRE(device.free - device.reserve - device.later >= needed);
            }
            device.free += std::min(kMost - device.free, figure());
        }
        REQUIRE(chosen(question).n >= made.n);
    }
}

TEST_CASE("the sum names every figure and what decided") {
    const PoolQuestion question = card();
    const std::vector<std::string> lines = tell_pool(question, chosen(question));
    std::string all;
    for (const std::string& line : lines) all += line + "\n";
    for (const char* part : {"CUDA0", "24576", "6144", "1024", "65536", "16384 MiB", "1048576", "2112", "speed"}) {
        CHECK(all.find(part) != std::string::npos);
    }
}

TEST_CASE("the sum and an error name what leaves less memory than there is") {
    PoolQuestion question = card();
    question.devices[0].limited_by = "/sys/fs/cgroup/memory.max";
    const std::vector<std::string> lines = tell_pool(question, chosen(question));
    const std::string line = "total and free of CUDA0 are what /sys/fs/cgroup/memory.max leaves";
    CHECK(std::find(lines.begin(), lines.end(), line) != lines.end());
    question.devices[0].free = 0;
    const auto refused = choose_pool(question);
    REQUIRE(!refused);
    CHECK(refused.error().text.find("are (/sys/fs/cgroup/memory.max)") != std::string::npos);
}

}  // TEST_SUITE("memory")
