// Tests of the kept graphs: calls of shapes that take turns use them again and compute what they would have computed
// without, on every kind of memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <llama.h>
#include <unistd.h>

#include "llama/decoding/graph_cache.h"
#include "test_paths.h"
#include "tests/llama/llama_memory.h"
#include "tests/support/volume.h"

TEST_SUITE("llama") {

using namespace luce;
using namespace luce::memory_tests;
using llama::GraphCache;

namespace {

// Calls of one sequence on a bare context, with or without kept graphs.
class Caller {
public:
    Caller(const std::string& path, std::size_t n_kept, std::uint32_t n_batch = 512) {
        static const luce::llama::Backend backend;
        llama_model_params model_params = llama_model_default_params();
        model_params.n_gpu_layers = 0;
        model_.reset(llama_model_load_from_file(path.c_str(), model_params));
        REQUIRE_MESSAGE(model_, path << ": make the test models first: scripts/make_test_models.py build/test-models");
        llama_context_params params = llama_context_default_params();
        params.n_ctx = std::max<std::uint32_t>(1024, n_batch);
        params.n_batch = params.n_ubatch = n_batch;
        params.n_threads = params.n_threads_batch = 1;
        params.kv_unified = true;
        context_.reset(llama_init_from_model(model_.get(), params));
        REQUIRE(context_);
        graphs_ = std::make_unique<GraphCache>(*context_, n_kept);
    }

    // The logits of all of them.
    Logits call(Tokens tokens) {
        const auto n = static_cast<std::int32_t>(tokens.size());
        llama_batch batch = llama_batch_init(n, 0, 1);
        batch.n_tokens = n;
        for (std::int32_t i = 0; i < n; ++i) {
            batch.token[i] = tokens[static_cast<std::size_t>(i)];
            batch.pos[i] = n_past_++;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = 1;
        }
        {
            const GraphCache::Lease lease = graphs_->lease({n, n, 1, 0});
            CHECK(llama_decode(context_.get(), batch) == 0);
            llama_synchronize(context_.get());
        }
        llama_batch_free(batch);
        Logits logits;
        const auto n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model_.get()));
        for (std::int32_t i = 0; i < n; ++i) {
            const float* row = llama_get_logits_ith(context_.get(), i);
            logits.insert(logits.end(), row, row + n_vocab);
        }
        return logits;
    }

    // Adds to what goes from layer to layer.
    void steer() {
        const int n_embd = llama_model_n_embd(model_.get());
        const std::vector<float> more(static_cast<std::size_t>(n_embd), 0.5F);
        REQUIRE(llama_set_adapter_cvec(context_.get(), more.data(), more.size(), n_embd, 1, 1) == 0);
    }

    int n_reused() const { return llama_perf_context(context_.get()).n_reused; }

private:
    std::unique_ptr<llama_model, luce::llama::LlamaModelDeleter> model_;
    std::unique_ptr<llama_context, luce::llama::LlamaContextDeleter> context_;
    std::unique_ptr<GraphCache> graphs_;  // goes before the context
    llama_pos n_past_ = 0;
};

// Bytes of this process that are in memory.
std::size_t resident_bytes() {
    std::size_t n_all = 0, n_resident = 0;
    std::ifstream("/proc/self/statm") >> n_all >> n_resident;
    return n_resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

bool is_finite(const Logits& logits) {
    return std::all_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); });
}

}  // namespace

TEST_CASE("calls of shapes that take turns give what they give without kept graphs, on every kind of memory") {
    for (const std::string& path :
         {std::string(LUCE_TINY_MODEL), test_model("qwen3"), test_model("gemma4"), test_model("qwen35moe")}) {
        INFO(path);
        Caller kept(path, 3), bare(path, 0);
        // More shapes than are kept, some too large to be, and 256 cells are passed: graphs have to grow.
        const int n_turns = luce::tests::is_full() ? 60 : 36;
        for (int turn = 0; turn < n_turns; ++turn) {
            for (const int n : {1, 4, 1, turn % 5 == 0 ? 140 : 2, 3 + turn % 4}) {
                if (turn > 4 && n == 140) continue;
                const Tokens tokens = some_tokens(n, turn);
                const Logits logits = kept.call(tokens);
                REQUIRE(is_finite(logits));
                REQUIRE(logits == bare.call(tokens));
            }
            // A setting that changes graphs: what was kept must not be used any longer.
            if (turn == n_turns / 2) {
                for (Caller* caller : {&kept, &bare}) caller->steer();
            }
        }
    }
}

TEST_CASE("graphs of shapes that take turns are used again") {
    constexpr int kTurns = 50;
    Caller kept(LUCE_TINY_MODEL, 3), bare(LUCE_TINY_MODEL, 0);
    for (int turn = 0; turn < kTurns; ++turn) {
        for (const int n : {1, 3}) {
            kept.call(some_tokens(n, turn));
            bare.call(some_tokens(n, turn));
        }
    }
    CHECK(bare.n_reused() == 0);
    CHECK(kept.n_reused() >= 2 * kTurns - 10);  // the first of each shape, and as the text grows
}

TEST_CASE("shapes that come by once, and more in turn than fit, displace nothing") {
    Caller caller(LUCE_TINY_MODEL, 1);
    for (int i = 0; i < 4; ++i) caller.call(some_tokens(2, i));
    const int before = caller.n_reused();
    // 2 is kept. All others come by, each once between two calls of it.
    for (int i = 0; i < 6; ++i) {
        caller.call(some_tokens(3 + i, i));
        caller.call(some_tokens(2, i));
    }
    CHECK(caller.n_reused() == before + 6);
    // Two calls of another one without one of 2 in between: it takes its place.
    for (int i = 0; i < 4; ++i) caller.call(some_tokens(5, i));
    const int after = caller.n_reused();
    caller.call(some_tokens(5, 9));
    CHECK(caller.n_reused() == after + 1);
}

TEST_CASE("a kept graph is as large as its call needs, however wide batches may be") {
    Caller caller(LUCE_TINY_MODEL, 3, 4096);
    for (int i = 0; i < 3; ++i) caller.call(some_tokens(2, i));  // what all calls share is there now
    const std::size_t before = resident_bytes();
    for (int i = 0; i < 3; ++i) caller.call(some_tokens(4, i));
    CHECK(resident_bytes() < before + (std::size_t{16} << 20));
}

TEST_CASE("a decoder's plain and speculative steps use their graphs again") {
    Setup setup;
    const Tokens prompt = some_tokens(20, 1);
    setup.decode(kFirst, 0, prompt);
    Position place = 20;
    llama_context* context = setup.model.context();
    const auto step = [&](int n) {
        const Tokens tokens = some_tokens(n, place);
        const Slice slice{kFirst, place, tokens, n};
        REQUIRE(setup.decoder.decode(std::span(&slice, 1)));
        place += n;
    };
    // Made for the first one, made to be kept for the second: neither says what such a step takes.
    for (int i = 0; i < 3; ++i) {
        step(1);
        CHECK(setup.decoder.was_first() == (i < 2));
        step(3);
        CHECK(setup.decoder.was_first() == (i < 2));
    }
    const int before = llama_perf_context(context).n_reused;
    for (int i = 0; i < 10; ++i) {
        step(1);
        step(3);
        CHECK_FALSE(setup.decoder.was_first());
    }
    CHECK(llama_perf_context(context).n_reused == before + 20);
}

}  // TEST_SUITE("llama")
