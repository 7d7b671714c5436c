// A device that has no memory left for a computation, with a pool that texts may outgrow: the pool becomes smaller and
// requests go on; where that does not help they fail, and the engine says that it is of no use any more.
#include <doctest/doctest.h>

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "llama/device_tenants.h"
#include "llama/llama_sampler.h"
#include "memory/text_memory.h"
#include "tests/device/late_device.h"
#include "tests/llama_memory.h"

TEST_SUITE_BEGIN("device");

using namespace luce;
using namespace luce::memory_tests;
using luce::tests::LateDevice;

namespace {

constexpr std::int32_t kPool = 2048;
constexpr std::int32_t kLeast = 768;
constexpr std::size_t kWorkspace = std::size_t{1} << 30;
constexpr int kAnswer = 40;

// An engine on the tests' device, which lets a computation have what it needs until it is told otherwise.
struct Short : Setup {
    explicit Short(const Variant& variant, bool may_shrink = true)
        : Setup(variant, kPool),
          memory(device, nullptr, config(), clock),
          tenants(model, decoder, device, nullptr, nullptr, scoring, may_shrink ? std::optional(kLeast) : std::nullopt),
          samplers(model, decoder),
          engine(decoder, samplers, memory, clock, lanes()) {}
    ~Short() { set_free(std::nullopt); }

    static MemoryConfig config() {
        MemoryConfig config;
        config.identity = "short";
        config.host_budget = std::size_t{1} << 30;
        config.residency.emplace().n_least = least_cells(ResidencyRules{}, 256);
        return config;
    }
    EngineConfig lanes() {
        EngineConfig lanes{kPool, kLanes};
        lanes.pool_relief = {[this] { return tenants.can_shrink(); }, [this] { return tenants.shrink(); }};
        return lanes;
    }

    // So much less than a computation needs beside what is taken now.
    static void set_free(std::optional<std::size_t> n_missing) {
        LateDevice& late = LateDevice::install();
        late.set_total(n_missing ? late.n_taken() + kWorkspace - *n_missing : std::size_t{1} << 40);
        late.set_workspace(n_missing ? kWorkspace : 0);
    }

    void submit(std::uint64_t key, int n_prompt) {
        Request request;
        request.key = RequestKey{key};
        request.prompt = some_tokens(n_prompt, static_cast<int>(key));
        request.n_generate = kAnswer;
        request.ignores_eos = true;
        REQUIRE(engine.submit(std::move(request)));
    }

    // Steps until all requests have ended; before the n-th token of any of them the memory runs out.
    void run(std::optional<std::size_t> n_missing = std::nullopt, std::size_t before = 10) {
        bool is_over = false;
        while (!engine.is_idle() && !engine.is_broken()) {
            for (const Event& event : engine.step()) {
                if (const auto* token = std::get_if<TokenEvent>(&event)) {
                    CHECK(token->index == static_cast<std::int32_t>(tokens[token->key].size()));
                    tokens[token->key].push_back(token->token);
                }
                if (const auto* ended = std::get_if<FinishedEvent>(&event)) finished[ended->key] = ended->stats;
                if (const auto* failed = std::get_if<FailedEvent>(&event)) failures.push_back(failed->error);
            }
            for (const auto& [key, text] : tokens) {
                if (is_over || !n_missing || text.size() < before) continue;
                is_over = true;
                set_free(n_missing);
            }
            const std::optional<std::string> wrong = engine.check_integrity();
            CHECK_MESSAGE(!wrong, wrong.value_or(""));
        }
    }

    SteadyClock clock;
    TextMemory memory;
    llama::PageScoring scoring;
    llama::DeviceTenants tenants;
    llama::LlamaSamplerFactory samplers;
    Engine engine;
    std::map<RequestKey, Tokens> tokens;
    std::map<RequestKey, FinishedStats> finished;
    std::vector<Error> failures;
};

}  // namespace

TEST_CASE("a computation that the device has no memory for makes the pool smaller, and requests go on") {
    for (const char* name : {"qwen3", "qwen35", "gemma4"}) {
        CAPTURE(name);
        const Variant variant{test_model(name), "q8_0"};
        Short undisturbed(variant);
        undisturbed.submit(1, 300);
        undisturbed.run();
        CHECK(undisturbed.model.info().n_pool == kPool);

        Short s(variant);
        s.submit(1, 300);
        s.run(1);
        CHECK(s.failures.empty());
        CHECK(s.model.info().n_pool == 1536);
        CHECK(s.decoder.limits().n_pool == 1536);
        CHECK(s.memory.status().cache.n_resident <= 1536 / kPageSize);
        CHECK(s.tokens[RequestKey{1}].size() == kAnswer);
        CHECK(s.finished[RequestKey{1}].n_generated == kAnswer);
        // Up to there they are the same; behind it sums may be formed in another order.
        const Tokens& before = undisturbed.tokens[RequestKey{1}];
        CHECK(std::equal(before.begin(), before.begin() + 10, s.tokens[RequestKey{1}].begin()));
        if (std::string(name) == "qwen3") CHECK(s.tokens[RequestKey{1}] == before);

        s.submit(2, 1200);  // and there is room for more
        s.run();
        CHECK(s.finished[RequestKey{2}].n_generated == kAnswer);
    }
}

TEST_CASE("it becomes smaller until the computation has room, for all lanes, texts longer than it among them") {
    Short s({test_model("qwen3"), "q8_0"});
    for (std::uint64_t key = 1; key <= 4; ++key) s.submit(key, 150 * static_cast<int>(key));
    s.submit(5, 1700);
    s.run(800 * s.device.traits().row_bytes, 5);
    CHECK(s.failures.empty());
    CHECK(s.model.info().n_pool < 1536);
    CHECK(s.model.info().n_pool >= kLeast);
    for (std::uint64_t key = 1; key <= 5; ++key) CHECK(s.tokens[RequestKey{key}].size() == kAnswer);
}

TEST_CASE("where the smallest pool does not do requests fail, and nothing can be computed any more") {
    Short s({test_model("qwen3"), "q8_0"});
    s.submit(1, 300);
    s.submit(2, 200);
    s.run(kWorkspace);
    REQUIRE(s.failures.size() == 2);
    CHECK(s.failures[0].code == ErrorCode::out_of_memory);
    CHECK(s.engine.is_broken());
}

TEST_CASE("a pool that has to stay as it is fails the requests of the call alone") {
    Short s({test_model("qwen3"), "q8_0"}, false);
    s.submit(1, 300);
    s.run(1);
    REQUIRE(s.failures.size() == 1);
    CHECK(s.failures[0].code == ErrorCode::out_of_memory);
    CHECK(s.model.info().n_pool == kPool);
    CHECK(!s.engine.is_broken());
}

TEST_SUITE_END();
