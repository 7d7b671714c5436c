// A border that moves: what it gives up and takes back, and that every expert is where the layout says.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "experts/expert_border.h"
#include "experts/expert_layout.h"

TEST_SUITE("experts") {

using namespace luce;
using namespace luce::experts;

namespace {

constexpr std::size_t kGranule = 1024;
constexpr std::int32_t kExperts = 24;

ExpertLayout laid_out(std::size_t budget, const ExpertUse& use = {}) {
    std::vector<ExpertTensor> tensors;
    for (std::int32_t layer = 0; layer < 5; ++layer) {
        tensors.push_back({"up" + std::to_string(layer), layer, kExperts, 300});
        tensors.push_back({"down" + std::to_string(layer), layer, kExperts, 1500});
    }
    Result<ExpertLayout> layout = lay_out(std::move(tensors), budget, kGranule, use, true);
    REQUIRE(layout.ok());
    return std::move(layout).value();
}

std::vector<std::int32_t> residents(const ExpertLayout& layout) {
    std::vector<std::int32_t> all;
    for (const LayerExperts& layer : layout.layers) all.push_back(layer.n_resident);
    return all;
}

// Which expert's bytes are in each place, kept beside the layout.
using Contents = std::vector<std::vector<std::int32_t>>;

void check(const ExpertLayout& layout, const Contents& contents) {
    for (std::size_t l = 0; l < layout.layers.size(); ++l) {
        const LayerExperts& layer = layout.layers[l];
        REQUIRE(layer.n_device_places == layer.n_resident + 1);
        REQUIRE(layer.free_place >= 0);
        REQUIRE(layer.free_place < layer.n_device_places);
        REQUIRE(layer.first_host_place >= layer.n_device_places);
        REQUIRE(layer.expert_in[static_cast<std::size_t>(layer.free_place)] == kNoExpert);
        for (std::int32_t expert = 0; expert < kExperts; ++expert) {
            const auto place = static_cast<std::size_t>(layer.place_of[static_cast<std::size_t>(expert)]);
            REQUIRE(layer.expert_in[place] == expert);
            REQUIRE(contents[l][place] == expert);
        }
        for (const std::size_t i : layer.tensors) {
            const TensorParts& part = layout.parts[i];
            REQUIRE(part.device_bytes % kGranule == 0);
            REQUIRE(part.device_bytes >=
                    layout.tensors[i].expert_bytes * static_cast<std::size_t>(layer.n_device_places));
            REQUIRE(part.device_bytes <=
                    layout.tensors[i].expert_bytes * static_cast<std::size_t>(layer.first_host_place));
            REQUIRE(part.total_bytes() >= layout.tensors[i].expert_bytes * (kExperts + 1) + kTailBytes);
        }
    }
}

void move(ExpertLayout& layout, Contents& contents, const BorderMove& one, const ExpertUse& use) {
    const auto relocation = move_border(layout, one, use.empty() ? nullptr : &use[one.layer]);
    if (!relocation) return;
    auto& places = contents[one.layer];
    places[static_cast<std::size_t>(relocation->to)] = places[static_cast<std::size_t>(relocation->from)];
}

}  // namespace

TEST_CASE("no layer becomes whole where the border may move") {
    const ExpertLayout layout = laid_out(1 << 24);
    for (const LayerExperts& layer : layout.layers) CHECK(layer.n_resident == kExperts - 1);
}

TEST_CASE("at random: as much is given up as was asked for, as little is left as may be, and all comes back") {
    std::mt19937 random(5);
    for (int round = 0; round < 40; ++round) {
        ExpertUse use(5, std::vector<double>(kExperts));
        for (auto& layer : use) {
            for (double& n : layer) n = static_cast<double>(random() % 100);
        }
        if (round % 4 == 0) use.clear();
        ExpertLayout layout = laid_out(30'000 + random() % 150'000, use);
        if (std::ranges::any_of(layout.layers, [](const auto& layer) { return layer.n_resident == 0; })) continue;
        Contents contents;
        for (const LayerExperts& layer : layout.layers) contents.push_back(layer.expert_in);
        check(layout, contents);
        const std::vector<std::int32_t> most = residents(layout), least(5, 1);
        const std::size_t n_most = layout.device_bytes();
        for (int step = 0; step < 30; ++step) {
            const std::size_t before = layout.device_bytes();
            const std::size_t n_asked = kGranule * (1 + random() % 20);
            if (random() % 2 == 0) {
                for (const BorderMove& one : give_up(layout, n_asked, least, use)) move(layout, contents, one, use);
                const std::size_t n_given = before - layout.device_bytes();
                if (n_given < n_asked) CHECK(residents(layout) == least);
                CHECK(n_given < n_asked + 8 * kGranule);
            } else {
                for (const BorderMove& one : take_back(layout, n_asked, most, use)) move(layout, contents, one, use);
                CHECK(layout.device_bytes() - before <= n_asked);
            }
            check(layout, contents);
        }
        for (const BorderMove& one : take_back(layout, n_most, most, use)) move(layout, contents, one, use);
        check(layout, contents);
        CHECK(residents(layout) == most);
        CHECK(layout.device_bytes() == n_most);
    }
}

TEST_CASE("the layer that loses the fewest uses gives way") {
    ExpertUse use(5, std::vector<double>(kExperts, 1.0));
    use[3] = std::vector<double>(kExperts, 0.0);
    use[3][7] = 100;
    const ExpertLayout layout = laid_out(100'000);
    const std::vector<std::int32_t> least(5, 1);
    const std::vector<BorderMove> moves = give_up(layout, 2 * kGranule, least, use);
    REQUIRE(moves.size() == 1);
    CHECK(moves[0].layer == 3);
    const std::vector<BorderMove> even = give_up(layout, 40 * kGranule, least, {});
    CHECK(even.size() == 5);
}

}  // TEST_SUITE("experts")
