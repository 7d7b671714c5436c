// Which experts lie on the device, and where the border is.
#include <doctest/doctest.h>

#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "experts/expert_layout.h"
#include "experts/expert_usage.h"

TEST_SUITE("experts") {

using namespace luce;
using namespace luce::experts;

namespace {

std::vector<ExpertTensor> mixture(std::int32_t n_layers, std::int32_t n_experts, std::size_t expert_bytes) {
    std::vector<ExpertTensor> tensors;
    for (std::int32_t layer = 0; layer < n_layers; ++layer) {
        for (const char* part : {"up", "down"}) {
            tensors.push_back({std::string(part) + std::to_string(layer), layer, n_experts, expert_bytes});
        }
    }
    return tensors;
}

bool is_resident(const LayerExperts& layer, std::int32_t expert) {
    return layer.place_of[static_cast<std::size_t>(expert)] < layer.n_device_places;
}

ExpertLayout laid_out(std::size_t budget, const ExpertUse& use = {}) {
    Result<ExpertLayout> layout = lay_out(mixture(4, 16, 1000), budget, 256, use);
    REQUIRE(layout.ok());
    return std::move(layout).value();
}

}  // namespace

TEST_CASE("no budget is exceeded, and all that is left is too little for one expert more") {
    for (std::size_t budget = 0; budget < 200'000; budget += 777) {
        const ExpertLayout layout = laid_out(budget);
        CHECK(layout.device_bytes() <= budget);
        if (layout.n_resident() < layout.n_experts() && budget > 0) {
            CHECK(budget - layout.device_bytes() < 2 * (2 * 1000 + 256 + 512));  // with a free place
        }
        for (const LayerExperts& layer : layout.layers) {
            for (const std::size_t i : layer.tensors) {
                const TensorParts& parts = layout.parts[i];
                CHECK(parts.device_bytes % 256 == 0);
                CHECK(parts.host_bytes % 256 == 0);
                CHECK(parts.device_bytes >= 1000 * static_cast<std::size_t>(layer.n_resident));
                CHECK(parts.total_bytes() >= 16 * 1000 + kTailBytes);
            }
        }
    }
    CHECK(laid_out(1 << 20).n_resident() == 64);
    CHECK(laid_out(0).n_resident() == 0);
}

TEST_CASE("layers share evenly where nothing is known") {
    const ExpertLayout layout = laid_out(70'000);
    for (const LayerExperts& layer : layout.layers) {
        CHECK(layer.n_resident >= layout.n_resident() / 4 - 1);
        CHECK(layer.n_resident <= layout.n_resident() / 4 + 1);
    }
}

TEST_CASE("the most used lie on the device, whatever their layer") {
    ExpertUse use(4, std::vector<double>(16, 1.0));
    use[2] = std::vector<double>(16, 0.0);
    use[2][13] = use[2][5] = 50;
    const ExpertLayout layout = laid_out(20'000, use);
    const LayerExperts& third = layout.layers[2];
    CHECK(third.n_resident >= 2);
    CHECK(third.place_of[13] < 2);
    CHECK(third.place_of[5] < 2);
    CHECK(third.n_resident < layout.layers[0].n_resident + 2);
}

TEST_CASE("tensors of a layer that do not go together are refused") {
    std::vector<ExpertTensor> tensors = mixture(1, 16, 1000);
    tensors.back().n_experts = 15;
    CHECK(lay_out(tensors, 0, 256, {}).error().code == ErrorCode::bad_args);
    tensors.back() = {"down0", 0, 16, 0};
    CHECK(lay_out(tensors, 0, 256, {}).error().code == ErrorCode::bad_args);
}

TEST_CASE("places are all experts and a free one on the device") {
    for (std::size_t budget = 0; budget < 140'000; budget += 1234) {
        for (const LayerExperts& layer : laid_out(budget).layers) {
            const bool moves = layer.n_resident > 0 && !layer.is_whole();
            CHECK(layer.expert_in.size() == 16 + (moves ? 1 : 0));
            CHECK((layer.free_place >= 0) == moves);
            if (moves) CHECK(layer.expert_in[static_cast<std::size_t>(layer.free_place)] == kNoExpert);
            std::int32_t n_resident = 0;
            for (std::int32_t expert = 0; expert < 16; ++expert) {
                CHECK(layer.expert_in[static_cast<std::size_t>(layer.place_of[static_cast<std::size_t>(expert)])] ==
                      expert);
                n_resident += is_resident(layer, expert) ? 1 : 0;
            }
            CHECK(n_resident == layer.n_resident);
            CHECK(layer.first_host_place >= layer.n_device_places);
        }
    }
}

TEST_CASE("exchanges lead to the most used set, and stop there") {
    ExpertLayout layout = laid_out(60'000);
    ExpertUsage usage(layout, {});
    std::mt19937 random(3);
    for (int token = 0; token < 3000; ++token) {
        usage.begin_call(1, false);
        for (std::size_t layer = 0; layer < 4; ++layer) {
            const std::int32_t expert = 15 - static_cast<std::int32_t>(random() % (2 + random() % 14));
            usage.count(layer, std::vector<std::int32_t>{expert});
        }
    }
    for (std::size_t l = 0; l < 4; ++l) {
        LayerExperts& layer = layout.layers[l];
        int n_exchanges = 0;
        for (Exchange next = usage.best(layout, l); next.gain > 0; next = usage.best(layout, l)) {
            auto& comes = layer.place_of[static_cast<std::size_t>(next.comes)];
            auto& goes = layer.place_of[static_cast<std::size_t>(next.goes)];
            CHECK(comes >= layer.first_host_place);
            CHECK(goes < layer.n_device_places);
            const std::int32_t left = goes;
            goes = comes;
            comes = layer.free_place;
            layer.free_place = left;
            for (auto& place : layer.expert_in) place = kNoExpert;
            for (std::int32_t expert = 0; expert < 16; ++expert) {
                layer.expert_in[static_cast<std::size_t>(layer.place_of[static_cast<std::size_t>(expert)])] = expert;
            }
            REQUIRE(++n_exchanges < 100);
        }
        const std::vector<double> values = usage.values()[l];
        double least_in = 1e9, most_out = 0;
        for (std::int32_t expert = 0; expert < 16; ++expert) {
            const double value = values[static_cast<std::size_t>(expert)];
            if (is_resident(layer, expert)) least_in = std::min(least_in, value);
            if (layer.place_of[static_cast<std::size_t>(expert)] >= layer.first_host_place)
                most_out = std::max(most_out, value);
        }
        CHECK((most_out < 1.25 * least_in || most_out < least_in + 2));
    }
}

TEST_CASE("prompts decide until answers have, and old counts fade") {
    const ExpertLayout layout = laid_out(40'000);
    ExpertUsage usage(layout, {});
    const auto use = [&usage](std::int32_t expert, int n, bool is_prefill) {
        for (int i = 0; i < n; ++i) {
            usage.begin_call(1, is_prefill);
            usage.count(0, std::vector<std::int32_t>{expert});
        }
    };
    use(3, 100, true);
    CHECK(usage.values()[0][3] > usage.values()[0][4]);
    use(4, 100, false);
    CHECK(usage.values()[0][4] > usage.values()[0][3]);
    use(5, 200'000, false);
    CHECK(usage.values()[0][4] < 0.1);
    CHECK(usage.values()[0][5] == doctest::Approx(1024 / 0.693).epsilon(0.01));
    const ExpertProfile kept = usage.profile("x");
    CHECK(kept.layers[0].decode[5] == doctest::Approx(usage.values()[0][5]).epsilon(0.01));
}

}  // TEST_SUITE("experts")
