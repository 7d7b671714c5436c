// A mixture's experts and the attention cache share the device's memory: whatever either has of it, and whenever that
// changes, answers are the same to the bit.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "llama/experts/elastic_cache.h"
#include "llama/experts/expert_lookup.h"
#include "llama/experts/expert_stream.h"
#include "llama/kv_cache/kv_device.h"
#include "memory/manager/kv_cache_manager.h"
#include "memory/residency/pool_limit.h"
#include "tests/device/split_mixture.h"
#include "tests/llama/llama_memory.h"

TEST_SUITE("device") {

using namespace luce;
using namespace luce::memory_tests;
using luce::tests::banked;
using luce::tests::kDeviceBytes;
using luce::tests::load;
using luce::tests::PlainMemory;
using luce::tests::refusals;
using luce::tests::whole_bytes;

namespace {

constexpr std::int32_t kPool = 2048;

llama::ModelOptions with_pool() {
    llama::ModelOptions options;
    options.n_ctx = kPool;
    options.n_lanes = 2;
    options.cache_type_k = options.cache_type_v = "q4_0";  // the tests' models have few experts
    return options;
}

Result<llama::Model> load_plain(const std::string& name) { return load(name, {}, with_pool()); }

// Three quarters of the experts have room, of which the cache may get most.
Result<llama::Model> load_elastic(const std::string& name, std::size_t n_whole) {
    llama::PlacementOptions placement = banked(3 * n_whole / 4);
    placement.expert_lendable_bytes = n_whole / 2;
    placement.cache_step_bytes = 1;
    return load(name, placement, with_pool());
}

// What a model says to a text and token by token behind it; `between` two calls.
std::vector<Logits> say(const llama::Model& model, llama::ExpertMover* mover, const std::function<void()>& between) {
    llama::LlamaDecoder decoder(model, 2);
    decoder.note_experts(mover);
    const Tokens text = some_tokens(300, 5);
    std::vector<Logits> all;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t n = at < 240 ? 80 : 1;  // streamed, and not
        const engine::Slice slice{kFirst, static_cast<Position>(at), std::span(text).subspan(at, n), 1};
        REQUIRE(decoder.decode(std::span(&slice, 1)));
        all.emplace_back(decoder.logits(0).begin(), decoder.logits(0).end());
        between();
        at += n;
    }
    decoder.forget(kFirst);
    return all;
}

// Of the range of values: rows that lie in other cells are added up in another order.
double distance(const Logits& a, const Logits& b) {
    double most = 0;
    for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(static_cast<double>(a[i]) - b[i]));
    const auto [least, largest] = std::ranges::minmax(b);
    return most / static_cast<double>(largest - least);
}

struct Shared {
    explicit Shared(const std::string& name) : plain(load_plain(name)) {
        REQUIRE_MESSAGE(plain.ok(), plain.error().text);
        shared.emplace(load_elastic(name, whole_bytes(plain.value())));
        REQUIRE_MESSAGE(shared->ok(), shared->error().text);
        REQUIRE(model().elastic_cache() != nullptr);
    }

    const llama::Model& model() const { return shared->value(); }
    llama::ElasticCache& cache() const { return *model().elastic_cache(); }
    llama::ExpertBank& bank() const { return *model().experts(); }
    std::size_t n_on_device() const { return dynamic_cast<PlainMemory&>(*bank().memory()).n_on_device(); }

    Result<llama::Model> plain;
    std::optional<Result<llama::Model>> shared;
};

bool is_streamed(const llama::Model& model) {
    const auto& lookup = llama::ExpertLookup::instance();
    return std::ranges::any_of(model.model()->tensors_by_name, [&](const auto& named) {
        const ggml_tensor* weight = named.second;
        return named.first.find("_exps.weight") != std::string::npos &&
               lookup.weight(weight, llama::ExpertStream::kFrom) != lookup.weight(weight, 1);
    });
}

const std::vector<std::string> kMixtures = {"qwen3moe", "qwen35moe", "gemma4moe", "laguna"};

}  // namespace

TEST_CASE("answers are the same to the bit while the cache grows and shrinks, and experts move") {
    for (const std::string& name : kMixtures) {
        CAPTURE(name);
        Shared s(name);
        const std::vector<Logits> expected = say(s.plain.value(), nullptr, [] {});
        llama::LlamaKvDevice device(s.model(), 2);
        llama::ExpertMover mover(s.model(), {});
        const std::int32_t n_step = device.n_step_cells();
        const std::int32_t n_least = device.n_cells();
        REQUIRE(n_step > 0);
        REQUIRE(n_least + n_step <= kPool);
        CHECK((name != "qwen35moe" || is_streamed(s.model())));
        const std::int64_t n_most_experts = s.bank().layout().n_resident();
        CHECK(n_most_experts == s.bank().most_resident());
        const std::size_t n_bytes = s.n_on_device();
        std::mt19937 random(3);
        std::int64_t n_fewest = n_most_experts;
        const std::vector<Logits> found = say(s.model(), &mover, [&] {
            if (random() % 3 == 0) return;
            const std::int32_t n_steps = (kPool - n_least) / n_step;
            const auto n_more = static_cast<std::int32_t>(random() % static_cast<std::size_t>(n_steps + 1));
            if (n_least + n_more * n_step < 512) return;  // some would be seen
            REQUIRE(device.resize(n_more == n_steps ? kPool : n_least + n_more * n_step));
            CHECK(s.n_on_device() == n_bytes);
            n_fewest = std::min(n_fewest, s.bank().layout().n_resident());
        });
        CHECK(found == expected);
        CHECK(n_fewest < n_most_experts);
        CHECK(n_fewest >= s.bank().least_resident());
        REQUIRE(device.resize(kPool));
        CHECK(s.bank().n_lendable() < static_cast<std::size_t>(s.cache().n_mapped_bytes() / tests::kGranularity));
        REQUIRE(device.resize(n_least));
        CHECK(s.bank().layout().n_resident() == n_most_experts);
        CHECK(s.n_on_device() == n_bytes);
    }
}

TEST_CASE("a step that the driver refuses changes nothing, and is not asked for again") {
    Shared s("qwen3moe");
    const std::vector<Logits> expected = say(s.plain.value(), nullptr, [] {});
    const std::size_t n_bytes = s.n_on_device();
    const std::int64_t n_experts = s.bank().layout().n_resident();
    const std::int32_t n_cells = s.cache().n_cells();
    int n_refused = 0;
    for (std::size_t n_maps = 1;; n_maps += 1 + n_maps / 4) {
        llama::LlamaKvDevice device(s.model(), 2);
        CHECK(device.n_more_cells() == kPool - n_cells);
        refusals().n_maps_left = n_maps;
        const bool has_grown = device.resize(kPool);
        const bool was_refused = refusals().n_maps_left == 0;
        refusals().n_maps_left = 0;
        CHECK(has_grown == !was_refused);
        if (has_grown) break;
        ++n_refused;
        CHECK(device.n_more_cells() == 0);
        CHECK(device.n_cells() == n_cells);
        CHECK(s.cache().n_cells() == n_cells);
        CHECK(s.bank().layout().n_resident() == n_experts);
        CHECK(s.n_on_device() == n_bytes);
        if (n_refused % 4 == 1) CHECK(say(s.model(), nullptr, [] {}) == expected);
    }
    CHECK(n_refused > 5);
    CHECK(say(s.model(), nullptr, [] {}) == expected);
}

TEST_CASE("texts come and go, cells follow them, and every text goes on as in a pool of its own") {
    Shared s("laguna");
    const SteadyClock clock;
    const auto serve = [&](const llama::Model& model, std::vector<std::int32_t>& n_cells) {
        llama::LlamaDecoder decoder(model, 2);
        llama::LlamaKvDevice device(model, 2);
        decoder.note_kv_device(&device);
        const MemoryConfig config{"test", std::size_t{1} << 26, 4, model.info().n_vocab, true};
        KvCacheManager memory(device, nullptr, config, clock);
        std::vector<Logits> all;
        std::uint64_t n_ended = 0;
        const auto run = [&](int first, int n_prompt, int n_answer) {
            const Tokens text = some_tokens(n_prompt + n_answer, first);
            const auto begun = memory.begin(kFirst, text, {}, true);
            REQUIRE(begun);
            for (Position at = begun.value().n; at < static_cast<Position>(text.size());) {
                const Position n = at < n_prompt ? std::min(n_prompt - at, 128) : 1;
                REQUIRE(memory.make_room(n));
                const auto tokens = std::span(text).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(n));
                const engine::Slice slice{kFirst, at, tokens, 1};
                REQUIRE(decoder.decode(std::span(&slice, 1)));
                at += n;
                memory.advance(kFirst, std::span(text).first(static_cast<std::size_t>(at)), at, {});
                n_cells.push_back(device.n_cells());
            }
            all.emplace_back(decoder.logits(0).begin(), decoder.logits(0).end());
            memory.end(kFirst, ++n_ended, text, static_cast<Position>(text.size()), {}, true);
            REQUIRE(memory.check_integrity() == std::nullopt);
        };
        run(1, 1100, 3);
        run(2, 64, PoolLimit::kCalm + 60);
        run(1, 1200, 3);
        return all;
    };
    std::vector<std::int32_t> of_plain, of_shared;
    const std::vector<Logits> found = serve(s.model(), of_shared);
    const std::vector<Logits> expected = serve(s.plain.value(), of_plain);
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) CHECK(distance(found[i], expected[i]) < 1e-3);
    CHECK(std::ranges::min(of_plain) == kPool);
    const auto [least, most] = std::ranges::minmax(of_shared);
    CHECK(most >= 1203);
    CHECK(most < kPool);
    CHECK(least < most);
    CHECK(std::ranges::is_sorted(of_shared) == false);  // some went, and came again
}

TEST_CASE("what is lent goes with the model, and another one begins as the first did") {
    Shared s("qwen35moe");
    const std::int32_t n_cells = s.cache().n_cells();
    const std::int64_t n_experts = s.bank().layout().n_resident();
    const std::vector<Logits> expected = say(s.plain.value(), nullptr, [] {});
    llama::LlamaKvDevice device(s.model(), 2);
    REQUIRE(device.resize(kPool));
    device.unbind();
    s.shared->value().unload();
    s.shared->value() = std::move(load_elastic("qwen35moe", whole_bytes(s.plain.value()))).value();
    device.rebind();
    CHECK(device.n_cells() == n_cells);
    CHECK(device.n_more_cells() == kPool - n_cells);
    CHECK(s.bank().layout().n_resident() == n_experts);
    REQUIRE(device.resize(kPool));
    CHECK(say(s.model(), nullptr, [] {}) == expected);
}

TEST_CASE("a budget of one's own is not shared") {
    const Result<llama::Model> plain = load_plain("qwen3moe");
    REQUIRE(plain.ok());
    const Result<llama::Model> model = load("qwen3moe", banked(whole_bytes(plain.value()) / 2), with_pool());
    REQUIRE_MESSAGE(model.ok(), model.error().text);
    CHECK(model.value().elastic_cache() == nullptr);
    CHECK(model.value().experts()->least_resident() == model.value().experts()->most_resident());
    llama::LlamaKvDevice device(model.value(), 2);
    CHECK(device.n_step_cells() == 0);
    CHECK(device.n_cells() == device.traits().n_cells);
    CHECK(device.n_more_cells() == 0);
}

}  // TEST_SUITE("device")
