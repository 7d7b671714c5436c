// A mixture whose experts lie partly in a device's memory and partly in the host's: answers are the same, wherever each
// expert lies and whatever moves between two calls.
#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <unistd.h>

#include "llama/drafting/common_drafts.h"
#include "llama/experts/expert_bank.h"
#include "llama/experts/expert_mover.h"
#include "llama/model/model.h"
#include "tests/device/split_mixture.h"
#include "tests/llama/llama_memory.h"
#include "tests/support/volume.h"

TEST_SUITE("device") {

using namespace luce;
using namespace luce::memory_tests;
using luce::tests::answer;
using luce::tests::banked;
using luce::tests::is_full;
using luce::tests::kDeviceBytes;
using luce::tests::load;
using luce::tests::whole_bytes;

namespace {

// Of a lane in each call.
struct Width {
    std::int32_t n_tokens = 1;
    std::int32_t n_logits = 1;
};

using Reads = std::vector<std::vector<engine::ExpertReads>>;  // [call][lane]

bool is_same(const engine::ExpertReads& a, const engine::ExpertReads& b) {
    return a.n_hits == b.n_hits && a.n_misses == b.n_misses;
}

// Each lane has a text of its own: a prompt, and so many calls behind it, which the lanes share.
Reads reads_of(const llama::Model& model, llama::ExpertMover& mover,
               const std::vector<std::pair<LaneId, Width>>& lanes) {
    constexpr std::size_t kPrompt = 40, kCalls = 16;
    llama::LlamaDecoder decoder(model, 2);
    decoder.note_experts(&mover);
    const auto text_of = [](LaneId lane) { return some_tokens(100, 5 + static_cast<int>(lane)); };
    for (const auto& [lane, width] : lanes) {
        const Tokens text = text_of(lane);
        const engine::Slice prompt{lane, 0, std::span(text).first(kPrompt), 1};
        REQUIRE(decoder.decode(std::span(&prompt, 1)));
        CHECK(is_same(decoder.expert_reads(0, kPrompt).value(), {}));
    }
    Reads all;
    for (std::size_t call = 0; call < kCalls; ++call) {
        std::vector<Tokens> texts;
        for (const auto& [lane, width] : lanes) texts.push_back(text_of(lane));
        std::vector<engine::Slice> slices;
        for (std::size_t i = 0; i < lanes.size(); ++i) {
            const auto& [lane, width] = lanes[i];
            const auto n = static_cast<std::size_t>(width.n_tokens);
            const std::size_t begin = kPrompt + call * n;
            slices.push_back(
                {lane, static_cast<Position>(begin), std::span(texts[i]).subspan(begin, n), width.n_logits});
        }
        REQUIRE(decoder.decode(slices));
        all.emplace_back();
        std::size_t first = 0;
        for (const engine::Slice& slice : slices) {
            all.back().push_back(decoder.expert_reads(first, slice.tokens.size()).value());
            first += slice.tokens.size();
        }
    }
    for (const auto& [lane, width] : lanes) decoder.forget(lane);
    return all;
}

const std::vector<std::string> kMixtures = {"qwen3moe", "qwen35moe", "gemma4moe", "laguna"};

}  // namespace

TEST_CASE("answers are the same for every number of resident experts") {
    for (const std::string& name : kMixtures) {
        CAPTURE(name);
        const Result<llama::Model> plain = load(name, {});
        REQUIRE(plain.ok());
        const Tokens expected = answer(plain.value());
        std::size_t budget = 0, n_before = SIZE_MAX;
        bool is_whole = false;
        while (!is_whole) {
            const Result<llama::Model> model = load(name, banked(budget));
            REQUIRE_MESSAGE(model.ok(), model.error().text);
            const experts::ExpertLayout& layout = model.value().experts()->layout();
            CHECK(layout.device_bytes() <= budget);
            is_whole = layout.n_resident() == layout.n_experts();
            const auto n_resident = static_cast<std::size_t>(layout.n_resident());
            if (n_resident != n_before || is_whole) CHECK(answer(model.value()) == expected);
            n_before = n_resident;
            const std::size_t n_more = is_full() ? 1 : 6;
            budget += n_more * layout.tensors.front().expert_bytes * layout.layers.size();
        }
    }
}

TEST_CASE("answers are the same while experts move at random") {
    for (const std::string& name : kMixtures) {
        CAPTURE(name);
        const Result<llama::Model> plain = load(name, {});
        REQUIRE(plain.ok());
        const Tokens expected = answer(plain.value());
        const Result<llama::Model> model = load(name, banked(whole_bytes(plain.value()) / 2));
        REQUIRE_MESSAGE(model.ok(), model.error().text);
        llama::ExpertBank& bank = *model.value().experts();
        REQUIRE(bank.layout().n_resident() < bank.layout().n_experts());
        std::mt19937 random(7);
        std::size_t n_done = 0, n_copied = 0, n_expected = 0;
        const auto settle = [&] {
            const llama::ExpertBank::Settled settled = bank.settle();
            n_done += settled.n_exchanges;
            n_copied += settled.n_bytes;
        };
        const Tokens found = answer(model.value(), nullptr, [&] {
            settle();
            for (std::size_t l = 0; l < bank.layout().layers.size(); ++l) {
                const experts::LayerExperts& layer = bank.layout().layers[l];
                const auto n_places = static_cast<std::int32_t>(layer.expert_in.size());
                if (layer.free_place < 0 || bank.is_moving(l) || layer.first_host_place >= n_places) continue;
                if (random() % 3 == 0) continue;
                experts::Exchange exchange{.layer = l};
                while (exchange.comes < 0 || exchange.goes < 0) {
                    const auto place = static_cast<std::int32_t>(random() % layer.expert_in.size());
                    const std::int32_t expert = layer.expert_in[static_cast<std::size_t>(place)];
                    if (place < layer.n_device_places) exchange.goes = expert;
                    if (place >= layer.first_host_place) exchange.comes = expert;
                }
                bank.start(exchange);
                for (const std::size_t i : layer.tensors) n_expected += 2 * bank.layout().tensors[i].expert_bytes;
            }
        });
        for (int step = 0; step < 2; ++step) settle();
        CHECK(found == expected);
        CHECK(n_done > 10);
        CHECK(n_copied == n_expected);
        for (const auto& layer : bank.layout().layers) {
            for (std::size_t expert = 0; expert < layer.place_of.size(); ++expert) {
                CHECK(layer.expert_in[static_cast<std::size_t>(layer.place_of[expert])] ==
                      static_cast<std::int32_t>(expert));
            }
        }
    }
}

// Heads in the target's own file have a context of their own, and experts of the same bank.
TEST_CASE("heads draft the same wherever their experts lie") {
    llama::ModelOptions with_heads;
    with_heads.loads_heads = true;
    with_heads.n_draft_most = 4;
    const auto drafts_with = [&with_heads](const llama::PlacementOptions& placement) {
        Result<llama::Model> model = load("qwen35moe_mtp", placement, with_heads);
        REQUIRE_MESSAGE(model.ok(), model.error().text);
        llama::DraftModelOptions options;
        options.n_lanes = 1;
        options.n_most = 4;
        Result<std::unique_ptr<llama::CommonDrafts>> loaded = llama::CommonDrafts::load(options, model.value());
        REQUIRE_MESSAGE(loaded.ok(), loaded.error().text);
        llama::CommonDrafts& drafts = *loaded.value();
        Tokens text = some_tokens(100, 5);  // so many that experts are copied ahead
        drafts.begin(kFirst, text, 0);
        llama::LlamaDecoder decoder(model.value(), 1);
        const Slice slice{kFirst, 0, text, 1};
        REQUIRE(decoder.decode(std::span(&slice, 1)));
        drafts.follow(kFirst, text, 100, 100, 0);
        text.push_back(7);
        const speculation::DraftAsk ask{kFirst, text, 4};
        std::vector<speculation::Draft> found;
        REQUIRE(drafts.draft(std::span(&ask, 1), found));
        REQUIRE(found.size() == 1);
        return std::pair(found[0].tokens, found[0].confidence);
    };
    const auto expected = drafts_with({});
    REQUIRE(expected.first.size() == 4);
    std::size_t n_bytes = 0;
    {
        const Result<llama::Model> plain = load("qwen35moe_mtp", {}, with_heads);
        REQUIRE(plain.ok());
        n_bytes = whole_bytes(plain.value());
    }
    for (const std::size_t percent : {20, 50, 80}) {
        CAPTURE(percent);
        CHECK(drafts_with(banked(n_bytes * percent / 100)) == expected);
    }
}

TEST_CASE("experts that are used come onto the device, and the profile brings them there at the next start") {
    const std::string profile = "/tmp/luce-expert-profile-" + std::to_string(::getpid());
    ::unlink(profile.c_str());
    llama::PlacementOptions placement = banked(0);
    {
        const Result<llama::Model> plain = load("qwen35moe", {});
        REQUIRE(plain.ok());
        placement = banked(whole_bytes(plain.value()) / 2);
    }
    placement.expert_profile = profile;
    const auto share = [](const llama::ExpertCounts& before, const llama::ExpertCounts& after) {
        const auto n_hits = static_cast<double>(after.reads.n_hits - before.reads.n_hits);
        return n_hits / (n_hits + static_cast<double>(after.reads.n_misses - before.reads.n_misses));
    };
    Tokens expected;
    double learnt = 0;
    {
        const Result<llama::Model> model = load("qwen35moe", placement);
        REQUIRE_MESSAGE(model.ok(), model.error().text);
        llama::ExpertMover mover(model.value(), {.profile = profile});
        expected = answer(model.value(), &mover);
        const double at_first = share({}, mover.counts());
        for (int i = 0; i < (is_full() ? 40 : 20); ++i) CHECK(answer(model.value(), &mover) == expected);
        while (mover.has_idle_work()) mover.use_idle_time();
        const llama::ExpertCounts before = mover.counts();
        CHECK(before.n_exchanges > 0);
        CHECK(before.n_moved_bytes > 0);
        for (int i = 0; i < 10; ++i) CHECK(answer(model.value(), &mover) == expected);
        learnt = share(before, mover.counts());
        CHECK(learnt > at_first);
        mover.save();
    }
    const Result<llama::Model> again = load("qwen35moe", placement);
    REQUIRE_MESSAGE(again.ok(), again.error().text);
    llama::ExpertMover fixed(again.value(), {.profile = profile, .moves = false});
    for (int i = 0; i < 10; ++i) CHECK(answer(again.value(), &fixed) == expected);
    CHECK(fixed.counts().n_exchanges == 0);
    CHECK(share({}, fixed.counts()) >= learnt - 0.02);
    ::unlink(profile.c_str());
}

TEST_CASE("each lane is told of the experts that its own tokens read") {
    for (const std::string& name : kMixtures) {
        CAPTURE(name);
        const Result<llama::Model> plain = load(name, {});
        REQUIRE(plain.ok());
        llama::ModelOptions options;
        options.n_lanes = 2;
        options.n_draft_most = 2;
        const Result<llama::Model> model = load(name, banked(whole_bytes(plain.value()) / 2), options);
        REQUIRE_MESSAGE(model.ok(), model.error().text);
        llama::ExpertMover mover(model.value(), {.profile = std::nullopt, .moves = false});
        const bool has_recurrent = model.value().info().has_recurrent;
        for (const Width width : {Width{1, 1}, Width{3, 3}, Width{3, 1}}) {
            // libllama computes lanes of unequal width one after the other then.
            if (has_recurrent && width.n_tokens != 1) continue;
            CAPTURE(width.n_tokens);
            CAPTURE(width.n_logits);
            const auto before = mover.counts().reads;
            const Reads first = reads_of(model.value(), mover, {{kFirst, width}});
            const Reads second = reads_of(model.value(), mover, {{kSecond, {1, 1}}});
            const Reads both = reads_of(model.value(), mover, {{kFirst, width}, {kSecond, {1, 1}}});
            engine::ExpertReads sum;
            std::size_t n_same = 0, n_crossed = 0;
            for (std::size_t i = 0; i < both.size(); ++i) {
                for (const auto& reads : {first[i][0], second[i][0], both[i][0], both[i][1]}) sum += reads;
                // Two lanes together may round otherwise, and a token go to another expert for it.
                n_same += is_same(both[i][0], first[i][0]) && is_same(both[i][1], second[i][0]) ? 1 : 0;
                n_crossed += is_same(both[i][0], second[i][0]) && is_same(both[i][1], first[i][0]) ? 1 : 0;
            }
            CHECK(n_same >= both.size() * 3 / 4);
            CHECK(n_crossed < n_same);
            CHECK(sum.n_misses > 0);
            CHECK(mover.counts().reads.n_hits - before.n_hits == sum.n_hits);
            CHECK(mover.counts().reads.n_misses - before.n_misses == sum.n_misses);
        }
    }
}

TEST_CASE("a model's profile is found in the folder, and is no reason to refuse it there") {
    llama::PlacementOptions placement = banked(0);
    const std::string folder = "/tmp/luce-experts-" + std::to_string(::getpid());
    REQUIRE(::mkdir(folder.c_str(), 0700) == 0);
    placement.expert_profiles = folder;
    std::string file;
    const auto known = [&] {
        const Result<llama::Model> model = load("qwen3moe", placement);
        REQUIRE_MESSAGE(model.ok(), model.error().text);
        const experts::ExpertProfile& known = model.value().experts()->known();
        file = experts::profile_file(std::nullopt, placement.expert_profiles, known.identity).value();
        return known;
    };
    experts::ExpertProfile profile = known();
    ::unlink(file.c_str());
    profile.layers = {{1, std::vector<double>(8, 1), std::vector<double>(8, 2)}};
    REQUIRE(experts::write_profile(file, profile));
    CHECK(known().layers.size() == 1);
    std::ofstream(file) << "this is no profile";
    CHECK(known().layers.empty());
    placement.expert_profile = file;
    const Result<llama::Model> named = load("qwen3moe", placement);
    CHECK(!named.ok());
    ::unlink(file.c_str());
    CHECK(::rmdir(folder.c_str()) == 0);
}

TEST_CASE("what texts use is counted wherever the experts lie, and changes no answer") {
    const std::string profile = "/tmp/luce-expert-counts-" + std::to_string(::getpid());
    const auto counted = [&](const std::string& name, llama::PlacementOptions placement, const Tokens& expected) {
        ::unlink(profile.c_str());
        placement.expert_profile = profile;
        const Result<llama::Model> model = load(name, placement);
        REQUIRE_MESSAGE(model.ok(), model.error().text);
        llama::ExpertMover mover(model.value(), {.profile = profile});
        CHECK(answer(model.value(), &mover) == expected);
        CHECK_FALSE(mover.has_idle_work());
        mover.save();
        const auto read = experts::read_profile(profile, model.value().experts()->known().identity);
        REQUIRE_MESSAGE(read.ok(), read.error().text);
        ::unlink(profile.c_str());
        return read.value();
    };
    const auto sum = [](const std::vector<double>& uses) { return std::accumulate(uses.begin(), uses.end(), 0.0); };
    for (const std::string& name : kMixtures) {
        CAPTURE(name);
        const Result<llama::Model> plain = load(name, {});
        REQUIRE(plain.ok());
        const double n_used = plain.value().model()->hparams.n_expert_used_max();
        const Tokens expected = answer(plain.value());
        llama::PlacementOptions some_on_host;
        some_on_host.n_expert_layers = 2;
        llama::PlacementOptions on_host;
        on_host.keeps_experts = true;
        std::optional<experts::ExpertProfile> first;
        for (const llama::PlacementOptions& placement : {llama::PlacementOptions{}, some_on_host, on_host}) {
            const experts::ExpertProfile found = counted(name, placement, expected);
            if (!first) first = found;
            REQUIRE(found.layers.size() == first->layers.size());
            for (std::size_t l = 0; l < found.layers.size(); ++l) {
                CHECK(found.layers[l].decode == first->layers[l].decode);
                CHECK(found.layers[l].prefill == first->layers[l].prefill);
                // Of 24 tokens the first one is the prompt's, of 100 that the last layer computes for the last one
                // only.
                CHECK(sum(found.layers[l].decode) == 23 * n_used);
                CHECK(sum(found.layers[l].prefill) == (l + 1 < found.layers.size() ? 100 : 1) * n_used);
            }
        }
    }
}

TEST_CASE("what cannot be is refused with its reason") {
    const auto refusal = [](const std::string& name, const llama::PlacementOptions& placement) {
        const Result<llama::Model> model = load(name, placement);
        REQUIRE(!model.ok());
        return model.error().text;
    };
    CHECK(refusal("qwen35", banked(kDeviceBytes)).find("is no mixture of experts") != std::string::npos);
    CHECK(refusal("qwen3moe", banked(kDeviceBytes, 100)).find("the device is full") != std::string::npos);
    llama::PlacementOptions twice = banked(kDeviceBytes);
    twice.n_expert_layers = 1;
    CHECK(refusal("qwen3moe", twice).find("say otherwise where experts lie") != std::string::npos);
    llama::PlacementOptions real;
    real.expert_memory_bytes = kDeviceBytes;
    CHECK(refusal("qwen3moe", real).find("Late0 is no CUDA device") != std::string::npos);
    llama::PlacementOptions counts;
    counts.expert_profile = "/nowhere";
    CHECK(refusal("qwen35", counts).find("--expert-profile: the model is no mixture") != std::string::npos);
    counts.expert_cache_bytes = 1 << 20;
    CHECK(refusal("qwen3moe", counts).find("--moe-cache-mib looks experts up") != std::string::npos);
    llama::PlacementOptions none = banked(kDeviceBytes);
    none.devices = "none";
    CHECK(refusal("qwen3moe", none).find("all layers have to be on the GPU") != std::string::npos);
}

}  // TEST_SUITE("device")
