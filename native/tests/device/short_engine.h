// An engine on the tests' device, which lets computations have what they need until it is told otherwise: with nothing
// beside the model, or with what drafts for it, or with a scorer.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "llama/drafting/draft_sources.h"
#include "llama/kv_cache/combined_kv_device.h"
#include "llama/kv_cache/device_memory.h"
#include "llama/sampling/llama_sampler.h"
#include "llama/scoring/page_scoring.h"
#include "memory/manager/kv_cache_manager.h"
#include "tests/device/late_device.h"
#include "tests/llama/llama_memory.h"

namespace luce::tests {

using namespace luce::memory_tests;

constexpr std::int32_t kPool = 2048;
constexpr std::int32_t kLeast = 768;
constexpr std::int32_t kLongest = 8192;
constexpr std::size_t kWorkspace = std::size_t{1} << 30;
constexpr int kAnswer = 40;

struct ShortOptions {
    bool may_shrink = true;
    std::string draft = {};   // the file's name; none: nothing drafts
    std::string scorer = {};  // likewise
    bool asks_queries = false;
};

// Each reading is a millisecond after the one before, so that what is chosen by measured times, such as how much of a
// prompt a step reads, is the same in every run, on however busy a machine. Threads may read it beside each other.
class CountingClock final : public Clock {
public:
    double now_s() const override { return 1e-3 * static_cast<double>(++n_readings_); }

private:
    mutable std::atomic<std::int64_t> n_readings_ = 0;
};

struct Short : Setup {
    explicit Short(const Variant& variant, const ShortOptions& options = {})
        : Setup(variant, kPool),
          draft(open_draft(options, variant, model)),
          joint(open_joint(draft.memory, device)),
          scoring(open_scoring(options, model)),
          memory(joint ? static_cast<KvDevice&>(*joint) : device, nullptr, config(scoring.scorer()), clock),
          device_memory(model, decoder, device, draft.memory, joint.get(), nullptr, scoring,
                        options.may_shrink ? std::optional(kLeast) : std::nullopt),
          samplers(model, decoder),
          speculator(open_speculator(std::move(draft.source), variant, decoder, model, clock)),
          engine(decoder, samplers, memory, clock, lanes(), speculator.get()) {
        decoder.note_queries(scoring.probe());
    }
    ~Short() { set_free(std::nullopt); }

    static llama::OpenedDraft open_draft(const ShortOptions& options, const Variant& variant,
                                         const llama::Model& model) {
        if (options.draft.empty()) return {};
        llama::DraftModelOptions of_draft;
        of_draft.path = test_model("drafts/" + options.draft);
        of_draft.n_lanes = kLanes;
        of_draft.n_most = variant.n_draft_most;
        of_draft.n_tree = variant.n_tree;
        Result<llama::OpenedDraft> opened = llama::open_draft_model(of_draft, model);
        REQUIRE_MESSAGE(opened.ok(), (opened ? "" : opened.error().text));
        return std::move(opened).value();
    }
    static std::unique_ptr<llama::CombinedKvDevice> open_joint(llama::DraftMemory* draft,
                                                               llama::LlamaKvDevice& device) {
        if (draft == nullptr || !draft->has_cells()) return nullptr;
        return std::make_unique<llama::CombinedKvDevice>(device, *draft);
    }
    static llama::PageScoring open_scoring(const ShortOptions& options, const llama::Model& model) {
        if (options.scorer.empty() && !options.asks_queries) return {};
        llama::ScoringOptions of_scoring;
        of_scoring.n_lanes = kLanes;
        of_scoring.policy = options.asks_queries ? llama::ScoringPolicy::query : llama::ScoringPolicy::draft;
        if (!options.scorer.empty()) {
            of_scoring.scorer.emplace();
            of_scoring.scorer->path = test_model(options.scorer);
            of_scoring.scorer->n_lanes = kLanes;
            of_scoring.scorer->n_ctx = kLongest;
        }
        Result<llama::PageScoring> opened = llama::PageScoring::open(of_scoring, model);
        REQUIRE_MESSAGE(opened.ok(), (opened ? "" : opened.error().text));
        return std::move(opened).value();
    }
    // Without a controller: all that can be drafted is.
    static std::unique_ptr<Speculator> open_speculator(std::unique_ptr<speculation::DraftSource> source,
                                                       const Variant& variant, const llama::LlamaDecoder& decoder,
                                                       const llama::Model& model, const Clock& clock) {
        if (source == nullptr) return nullptr;
        SpeculationConfig config;
        config.sources.push_back(std::move(source));
        config.n_most = variant.n_draft_most;
        config.n_tree = variant.n_tree;
        config.n_branches = variant.n_tree > 0 ? decoder.limits().n_branches : 0;
        config.is_adaptive = false;
        config.wants_equal_widths = model.info().has_recurrent;
        return std::make_unique<Speculator>(std::move(config), kLanes, clock);
    }
    static MemoryConfig config(PageScorer* scorer) {
        MemoryConfig config;
        config.identity = "short";
        config.host_budget = std::size_t{1} << 30;
        config.residency.emplace().n_least = least_cells(ResidencyRules{}, 256);
        config.residency->scorer = scorer;
        return config;
    }
    EngineConfig lanes() {
        EngineConfig lanes{kLongest, kLanes};
        lanes.pool_relief = {[this] { return device_memory.can_shrink(); }, [this] { return device_memory.shrink(); },
                             [this] { return device_memory.take_shortage(); }};
        return lanes;
    }

    // So much less than a computation needs beside what is taken now.
    static void set_free(std::optional<std::size_t> n_missing) {
        LateDevice& late = LateDevice::install();
        late.set_total(n_missing ? late.n_taken() + kWorkspace - *n_missing : std::size_t{1} << 40);
        late.set_workspace(n_missing ? kWorkspace : 0);
    }

    void submit(std::uint64_t key, int n_prompt, int n_answer = kAnswer) {
        Request request;
        request.key = RequestKey{key};
        request.prompt = some_tokens(n_prompt, static_cast<int>(key));
        request.n_generate = n_answer;
        request.ignores_eos = true;
        REQUIRE(engine.submit(std::move(request)));
    }

    // One step, and what comes of it.
    void step() {
        for (const Event& event : engine.step()) {
            if (const auto* token = std::get_if<TokenEvent>(&event)) {
                CHECK(token->index == static_cast<std::int32_t>(tokens[token->key].size()));
                tokens[token->key].push_back(token->token);
            }
            if (const auto* ended = std::get_if<FinishedEvent>(&event)) finished[ended->key] = ended->stats;
            if (const auto* failed = std::get_if<FailedEvent>(&event)) failures.push_back(failed->error);
        }
        const std::optional<std::string> wrong = engine.check_integrity();
        CHECK_MESSAGE(!wrong, wrong.value_or(""));
    }

    // Until all requests have ended; before the n-th token of any of them the memory runs out.
    void run(std::optional<std::size_t> n_missing = std::nullopt, std::size_t before = 10) {
        bool is_over = false;
        while (!engine.is_idle() && !engine.is_broken()) {
            step();
            for (const auto& [key, text] : tokens) {
                if (is_over || !n_missing || text.size() < before) continue;
                is_over = true;
                set_free(n_missing);
            }
        }
    }

    CountingClock clock;
    llama::OpenedDraft draft;
    std::unique_ptr<llama::CombinedKvDevice> joint;  // null: the draft has no cells of its own, or there is none
    llama::PageScoring scoring;
    KvCacheManager memory;
    llama::DeviceMemory device_memory;
    llama::LlamaSamplerFactory samplers;
    std::unique_ptr<Speculator> speculator;
    Engine engine;
    std::map<RequestKey, Tokens> tokens;
    std::map<RequestKey, GenerationStats> finished;
    std::vector<Error> failures;
};

}  // namespace luce::tests
