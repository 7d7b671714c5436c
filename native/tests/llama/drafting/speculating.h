// A target with what drafts for it, and llama.cpp's own driver beside that on the same target: what the tests of both
// of our sources compare.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <llama.h>

// llama.cpp's own driver: beside its vendor/, which tests see.
#include <../common/common.h>
#include <../common/speculative.h>

#include "llama/drafting/draft_context.h"
#include "speculation/draft_source.h"
#include "tests/llama/llama_memory.h"

namespace luce::draft_tests {

using namespace luce::memory_tests;
using speculation::Draft;
using speculation::DraftAsk;

inline constexpr std::int32_t kMost = 4;

struct Pair {
    std::string target;
    std::string draft;
    const char* llama_type;  // what to compare with; none: there is nothing
};

inline std::string text_of(const Tokens& tokens) {
    std::string text;
    for (const Token token : tokens) text += (text.empty() ? "" : " ") + std::to_string(token);
    return text;
}

inline std::string draft_path(const std::string& name) { return test_model("drafts/" + name); }

inline llama::Model load_target(const std::string& name) {
    static const llama::Backend backend;
    REQUIRE_MESSAGE(std::filesystem::exists(draft_path("simple-qwen3")),
                    "make the test models first: scripts/make_test_models.py build/test-models");
    llama::ModelOptions options;
    options.path = test_model(name);
    options.n_ctx = 1024;
    options.n_lanes = kLanes;
    options.n_threads = 1;
    options.n_batch = 256;
    options.n_draft_most = kMost;
    options.rollback_bytes = std::size_t{1} << 30;
    Result<llama::Model> model = llama::Model::load(options, false, [] {});
    REQUIRE_MESSAGE(model.ok(), name);
    return std::move(model).value();
}

inline llama::DraftModelOptions draft_options(const std::string& path) {
    llama::DraftModelOptions options;
    options.path = path;
    options.n_lanes = kLanes;
    options.n_most = kMost;
    return options;
}

// A target with what drafts for it. Lanes' texts end with a token that the target has not computed.
template <typename Drafts>
struct Speculating {
    explicit Speculating(const std::string& target, const std::string& draft)
        : model(load_target(target)), batch(std::make_unique<common_batch>(model.context())) {
        Result<std::unique_ptr<Drafts>> loaded =
            Drafts::load(draft_options(draft.empty() ? "" : draft_path(draft)), model);
        REQUIRE_MESSAGE(loaded.ok(), (loaded ? "" : loaded.error().text));
        drafts = std::move(loaded).value();
    }

    Token best(std::int32_t row) const {
        const float* logits = llama_get_logits_ith(model.context(), row);
        REQUIRE(logits != nullptr);
        return static_cast<Token>(std::max_element(logits, logits + model.info().n_vocab) - logits);
    }

    // Computes text.size() - n_known tokens of the lane and tells the drafts.
    void read(LaneId lane, const Tokens& text, std::int32_t n_known) {
        batch->clear();
        for (auto i = static_cast<std::size_t>(n_known); i < text.size(); ++i) {
            batch->add(text[i], static_cast<Position>(i), static_cast<llama_seq_id>(lane), i + 1 == text.size());
        }
        REQUIRE(llama_process(model.context(), LLAMA_PROCESS_TYPE_DECODE, batch->get()) == 0);
        const auto n = static_cast<std::int32_t>(text.size());
        drafts->follow(lane, text, n, n - n_known, 0);
    }

    // From nothing, in two parts if `cut` is inside; the text goes on with what the target finds best.
    void start(LaneId lane, Tokens text, std::int32_t cut = 0) {
        drafts->begin(lane, text, 0);
        if (cut > 0) read(lane, Tokens(text.begin(), text.begin() + cut), 0);
        read(lane, text, cut);
        text.push_back(best(batch->size() - 1));
        texts[static_cast<std::size_t>(lane)] = std::move(text);
    }

    const Tokens& text(LaneId lane) const { return texts[static_cast<std::size_t>(lane)]; }

    std::vector<Draft> draft(const std::vector<LaneId>& lanes, std::int32_t n_most = kMost) {
        std::vector<DraftAsk> asks;
        for (const LaneId lane : lanes) asks.push_back({lane, text(lane), n_most});
        std::vector<Draft> found;
        const Result<void> drafted = drafts->draft(asks, found);
        REQUIRE_MESSAGE(drafted.ok(), (drafted ? "" : drafted.error().text));
        REQUIRE(found.size() == lanes.size());
        for (const Draft& draft : found) {
            CHECK(draft.tokens.size() == draft.confidence.size());
            for (const float confidence : draft.confidence) CHECK((confidence > 0.0F && confidence <= 1.0F));
        }
        return found;
    }

    // One call for all lanes' drafts, of which the first n_accepted are taken to be right: what the target would say is
    // as good a text as any.
    void verify(const std::vector<Draft>& found, std::int32_t n_accepted, std::int32_t* n_right = nullptr) {
        batch->clear();
        std::vector<std::int32_t> rows;
        for (const Draft& draft : found) {
            const Tokens& text = texts[static_cast<std::size_t>(draft.lane)];
            rows.push_back(batch->size());
            auto position = static_cast<Position>(text.size()) - 1;
            batch->add(text.back(), position++, static_cast<llama_seq_id>(draft.lane), true);
            for (const Token token : draft.tokens) {
                batch->add(token, position++, static_cast<llama_seq_id>(draft.lane), true);
            }
        }
        REQUIRE(llama_process(model.context(), LLAMA_PROCESS_TYPE_DECODE, batch->get()) == 0);
        for (std::size_t i = 0; i < found.size(); ++i) {
            for (std::size_t j = 0; j < found[i].tokens.size() && n_right != nullptr; ++j) {
                *n_right += best(rows[i] + static_cast<std::int32_t>(j)) == found[i].tokens[j] ? 1 : 0;
            }
            Tokens& text = texts[static_cast<std::size_t>(found[i].lane)];
            const auto n = std::min<std::int32_t>(n_accepted, static_cast<std::int32_t>(found[i].tokens.size()));
            text.insert(text.end(), found[i].tokens.begin(), found[i].tokens.begin() + n);
            const auto n_computed = static_cast<std::int32_t>(text.size());
            REQUIRE(llama_memory_seq_rm(llama_get_memory(model.context()), static_cast<llama_seq_id>(found[i].lane),
                                        n_computed, -1));
            text.push_back(best(rows[i] + n));
            drafts->follow(found[i].lane, text, n_computed, n + 1, rows[i]);
        }
    }

    llama::Model model;
    std::unique_ptr<common_batch> batch;
    std::unique_ptr<Drafts> drafts;
    std::vector<Tokens> texts = std::vector<Tokens>(kLanes);
};

// llama.cpp's driver beside ours, on the same target.
struct Reference {
    Reference(llama_context* of, const Pair& pair) : target(of) {
        llama_model_params model_params = llama_model_default_params();
        model_params.n_gpu_layers = 0;
        model_params.load_mtp = true;
        model.reset(llama_model_load_from_file(draft_path(pair.draft).c_str(), model_params));
        REQUIRE(model != nullptr);
        llama_context_params params = llama_context_default_params();
        params.n_ctx = llama_n_ctx(target);
        params.n_batch = params.n_ubatch = llama_n_batch(target);
        params.n_seq_max = kLanes;
        params.n_threads = params.n_threads_batch = 1;
        params.type_k = params.type_v = GGML_TYPE_Q8_0;
        params.kv_unified = true;
        params.swa_full = false;
        params.ctx_other = target;
        if (std::string(pair.llama_type) == "draft-mtp") params.ctx_type = LLAMA_CONTEXT_TYPE_MTP;
        context.reset(llama_init_from_model(model.get(), params));
        REQUIRE(context != nullptr);
        common_params_speculative speculative;
        speculative.types = {common_speculative_type_from_name(pair.llama_type)};
        speculative.draft.n_max = kMost;
        speculative.draft.n_min = 0;
        speculative.draft.p_min = 0.0F;
        speculative.draft.backend_sampling = false;
        speculative.draft.ctx_tgt = target;
        speculative.draft.ctx_dft = context.get();
        driver.reset(common_speculative_init(speculative, kLanes));
        REQUIRE(driver != nullptr);
    }

    // After the target has computed its batch, before anything of that is taken back.
    void follow(const common_batch& batch) { REQUIRE(common_speculative_process(driver.get(), batch)); }

    Tokens draft(LaneId lane, const Tokens& text) {
        Tokens result;
        const llama_tokens prompt(text.begin(), text.end() - 1);
        const auto last = static_cast<llama_pos>(prompt.size());
        auto& params = common_speculative_get_draft_params(driver.get(), static_cast<llama_seq_id>(lane));
        params = {true, -1, last, text.back(), &prompt, &result};
        common_speculative_draft(driver.get());
        llama_memory_seq_rm(llama_get_memory(context.get()), static_cast<llama_seq_id>(lane), last, -1);
        return result;
    }

    void accept(LaneId lane, std::int32_t n_accepted, std::size_t n_text) {
        common_speculative_accept(driver.get(), static_cast<llama_seq_id>(lane),
                                  static_cast<std::uint16_t>(n_accepted));
        llama_memory_seq_rm(llama_get_memory(context.get()), static_cast<llama_seq_id>(lane),
                            static_cast<llama_pos>(n_text), -1);
    }

    llama_context* target;
    llama_model_ptr model;
    llama_context_ptr context;
    common_speculative_ptr driver;
};

// Of drafts of ours and of the reference's, step by step, with each number of them accepted in turn.
template <typename Drafts>
void check_same_drafts(const Pair& pair, std::int32_t n_steps) {
    CAPTURE(pair.draft);
    Speculating<Drafts> ours(pair.target, pair.draft);
    Reference reference(ours.model.context(), pair);
    ours.start(kSecond, some_tokens(70, 11));
    reference.follow(*ours.batch);
    for (std::int32_t step = 0; step < n_steps; ++step) {
        CAPTURE(step);
        const std::vector<Draft> found = ours.draft({kSecond});
        REQUIRE(found[0].tokens.size() == kMost);
        CHECK(text_of(found[0].tokens) == text_of(reference.draft(kSecond, ours.text(kSecond))));
        const std::int32_t n_accepted = step % (kMost + 1);
        ours.verify(found, n_accepted);
        reference.follow(*ours.batch);
        reference.accept(kSecond, n_accepted, ours.text(kSecond).size() - 1);
    }
}

}  // namespace luce::draft_tests
