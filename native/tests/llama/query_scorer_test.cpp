// Tests of scores by a model's own queries, on real models of each family and KV type: what is noted is what attention
// computes with, of the right lane, and noting it changes no logit.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>
#include <tuple>

#include <ggml-backend.h>
#include <ggml.h>

#include "llama/scoring/query_scorer.h"
#include "test_paths.h"
#include "tests/llama/query_scored.h"

TEST_SUITE("llama") {

using namespace luce;
using namespace luce::memory_tests;
using llama::LayerKeys;
using llama::QueryProbe;
using llama::QueryScorer;

namespace {

std::vector<Variant> variants() {
    std::vector<Variant> all;
    for (const char* type : {"f32", "f16", "bf16", "q8_0", "q4_0"}) all.push_back({LUCE_TINY_MODEL, type});
    for (const char* name : {"qwen3", "qwen3moe", "qwen35", "qwen35moe", "gemma4", "laguna"}) {
        REQUIRE_MESSAGE(std::filesystem::exists(test_model(name)),
                        "make the test models first: scripts/make_test_models.py build/test-models");
        for (const char* type : {"f16", "q8_0"}) all.push_back({test_model(name), type});
    }
    return all;
}

// A page's keys of the layer as they lie in the cache, key by key.
Logits stored_keys(const LayerKeys& keys, const Bytes& page) {
    Logits floats(kPageSize * keys.n_heads_kv * keys.head_size);
    const std::uint8_t* rows = page.data() + kPageSize * keys.bytes_before;
    const auto type = static_cast<ggml_type>(keys.type);
    if (type == GGML_TYPE_F32) {
        std::copy_n(reinterpret_cast<const float*>(rows), floats.size(), floats.begin());
    } else {
        ggml_get_type_traits(type)->to_float(rows, floats.data(), static_cast<std::int64_t>(floats.size()));
    }
    return floats;
}

// The products of queries and keys of one layer as libllama's attention computes them in steps: of one text, computed
// by itself in a single call.
class Attention {
public:
    Attention(const Variant& variant, std::int32_t layer, const Tokens& text) : name_("kq-" + std::to_string(layer)) {
        llama_model_params model_params = llama_model_default_params();
        model_params.n_gpu_layers = 0;
        const std::unique_ptr<llama_model, llama::LlamaModelDeleter> model(
            llama_model_load_from_file(variant.path.c_str(), model_params));
        llama_context_params params = llama_context_default_params();
        params.n_ctx = params.n_batch = params.n_ubatch = 512;
        params.n_threads = params.n_threads_batch = 1;
        params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
        for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0}) {
            if (variant.cache_type == ggml_type_name(type)) params.type_k = type;
        }
        params.cb_eval = on_node;
        params.cb_eval_user_data = this;
        const std::unique_ptr<llama_context, llama::LlamaContextDeleter> context(
            llama_init_from_model(model.get(), params));
        REQUIRE(context);
        Tokens tokens = text;
        REQUIRE(llama_decode(context.get(), llama_batch_get_one(tokens.data(), static_cast<int>(tokens.size()))) == 0);
        REQUIRE(!products_.empty());
    }

    // Before they are scaled. A token's cell is its position here.
    float product(std::size_t head, std::size_t query, std::size_t key) const {
        return products_[(head * n_queries_ + query) * n_keys_ + key];
    }

private:
    static bool on_node(ggml_tensor* node, bool is_question, void* user) {
        auto& self = *static_cast<Attention*>(user);
        const bool is_it = self.name_ == node->name;
        if (is_question || !is_it) return is_it;
        self.n_keys_ = static_cast<std::size_t>(node->ne[0]);
        self.n_queries_ = static_cast<std::size_t>(node->ne[1]);
        self.products_.resize(static_cast<std::size_t>(ggml_nelements(node)));
        ggml_backend_tensor_get(node, self.products_.data(), 0, ggml_nbytes(node));
        return true;
    }

    std::string name_;
    std::size_t n_keys_ = 0;
    std::size_t n_queries_ = 0;
    Logits products_;
};

// How far most of the second is from the first, in standard deviations of the first: the median. A near tie of two
// experts that rounding turns makes another token of a few.
double deviation(const Logits& a, const Logits& b) {
    REQUIRE(a.size() == b.size());
    REQUIRE(!a.empty());
    const double mean = std::accumulate(a.begin(), a.end(), 0.0) / static_cast<double>(a.size());
    double square = 0;
    std::vector<double> differences;
    for (std::size_t i = 0; i < a.size(); ++i) {
        square += (a[i] - mean) * (a[i] - mean) / static_cast<double>(a.size());
        differences.push_back(std::abs(static_cast<double>(a[i]) - b[i]));
    }
    std::nth_element(differences.begin(), differences.begin() + static_cast<std::ptrdiff_t>(a.size() / 2),
                     differences.end());
    return differences[a.size() / 2] / std::sqrt(square);
}

std::vector<Position> positions(Position begin, Position end) {
    std::vector<Position> all(static_cast<std::size_t>(end - begin));
    std::iota(all.begin(), all.end(), begin);
    return all;
}

}  // namespace

TEST_CASE("noting queries changes no logit, on every model and cache type") {
    const std::array<Position, 2> cuts = {64, 150};
    for (const Variant& variant : variants()) {
        CAPTURE(variant.path);
        CAPTURE(variant.cache_type);
        Setup bare(variant);
        Scored watched(variant);
        watched.scorer->watch(kFirst, true);
        const Tokens text = some_tokens(200, 3);
        CHECK(watched.compute(kFirst, text, cuts) == bare.compute(kFirst, text, cuts));
        CHECK(watched.go_on(kFirst, 200) == bare.go_on(kFirst, 200));
        CHECK(watched.scorer->probe().queries(kFirst).positions.size() == llama::kNotedQueries);
        // Graphs that are used again, with and without.
        watched.scorer->watch(kFirst, false);
        CHECK(watched.go_on(kFirst, 205) == bare.go_on(kFirst, 205));
        watched.scorer->watch(kFirst, true);
        CHECK(watched.go_on(kFirst, 210) == bare.go_on(kFirst, 210));
    }
}

TEST_CASE("what is noted are the queries that attention computes with, and the keys are those of the same layer") {
    const Tokens text = some_tokens(200, 3);
    for (const Variant& variant : variants()) {
        CAPTURE(variant.path);
        CAPTURE(variant.cache_type);
        Scored s(variant);
        s.scorer->watch(kFirst, true);
        s.compute(kFirst, text);
        const Snapshot snapshot = s.take(kFirst, text);
        const QueryProbe::Queries noted = s.noted(kFirst);
        CHECK(noted.positions == positions(168, 200));
        const LayerKeys& keys = s.scorer->keys();
        REQUIRE(noted.values.size() == noted.positions.size() * keys.n_heads * keys.head_size);
        const Attention attention(variant, keys.layer, text);

        Logits expected;
        Logits ours;
        const Logits scaled = [&] {
            Logits values = noted.values;
            for (float& value : values) value /= std::sqrt(static_cast<float>(keys.head_size));
            return values;
        }();
        for (std::size_t page = 0; page < 3; ++page) {
            const Logits stored = stored_keys(keys, snapshot.pages[page]);
            for (std::size_t query = 0; query < noted.positions.size(); ++query) {
                for (std::size_t head = 0; head < keys.n_heads; ++head) {
                    const std::size_t head_kv = head / (keys.n_heads / keys.n_heads_kv);
                    const float* q = scaled.data() + (query * keys.n_heads + head) * keys.head_size;
                    float most = std::numeric_limits<float>::lowest();
                    float theirs = most;
                    for (std::size_t key = 0; key < kPageSize; ++key) {
                        const float* k = stored.data() + (key * keys.n_heads_kv + head_kv) * keys.head_size;
                        most = std::max(most, std::inner_product(q, q + keys.head_size, k, 0.0F));
                        theirs =
                            std::max(theirs, attention.product(head, static_cast<std::size_t>(noted.positions[query]),
                                                               page * kPageSize + key));
                    }
                    ours.push_back(most);
                    expected.push_back(theirs / std::sqrt(static_cast<float>(keys.head_size)));
                }
            }
        }
        // The two ways to compute attention round differently in the layers before, and 4 bits more than others.
        CHECK(deviation(expected, ours) < (variant.cache_type == "q4_0" ? 0.3 : 0.1));
        // The measure tells another query's products.
        std::rotate(expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(3 * keys.n_heads), expected.end());
        CHECK(deviation(expected, ours) > 0.4);
    }
}

TEST_CASE("the dimensions that are compared are the ones that are not rotated by position") {
    const auto dimensions = [](const Variant& variant) {
        const LayerKeys keys = Scored(variant).scorer->keys();
        REQUIRE(std::is_sorted(keys.dimensions.begin(), keys.dimensions.end()));
        return std::array<std::size_t, 3>{keys.dimensions.front(), keys.dimensions.size(), keys.head_size};
    };
    for (const char* type : {"bf16", "q8_0"}) {
        CHECK(dimensions({LUCE_TINY_MODEL, type}) == std::array<std::size_t, 3>{16, 48, 64});
        for (const char* name : {"qwen35", "qwen35moe"}) {
            const auto [first, n, size] = dimensions({test_model(name), type});
            CHECK(first == size / 4);
            CHECK(n == size - size / 4);
        }
        const auto [first, n, size] = dimensions({test_model("laguna"), type});
        CHECK(first == size / 2);
        CHECK(n == size / 2);
        for (const char* name : {"qwen3", "qwen3moe", "gemma4"}) {
            const auto [none, all, head] = dimensions({test_model(name), type});
            CHECK(none == 0);
            CHECK(all == head);
        }
    }
}

TEST_CASE("a quantised cache's mixing of dimensions is undone") {
    const Tokens text = some_tokens(64, 3);
    const auto compared = [&](const std::string& type) {
        Scored s({LUCE_TINY_MODEL, type});
        s.compute(kFirst, text);
        const LayerKeys& keys = s.scorer->keys();
        CHECK((keys.mixed_block != 0) == (type == "q8_0"));
        Logits stored = stored_keys(keys, s.take(kFirst, text).pages[0]);
        Logits out(keys.dimensions.size());
        Logits all;
        for (std::size_t i = 0; i < stored.size(); i += keys.head_size) {
            keys.take_dimensions(std::span(stored).subspan(i, keys.head_size), out);
            all.insert(all.end(), out.begin(), out.end());
        }
        return all;
    };
    CHECK(deviation(compared("f32"), compared("q8_0")) < 0.1);
}

TEST_CASE("queries are the right lane's where several compute in one call, of different lengths") {
    for (const char* name : {"qwen3", "qwen3moe", "qwen35", "qwen35moe", "gemma4", "laguna"}) {
        CAPTURE(name);
        const Variant variant{test_model(name), "bf16"};
        const Tokens first = some_tokens(40, 1);
        const Tokens second = some_tokens(7, 77);
        const Tokens third = some_tokens(100, 150);
        const Token more = 42;
        const auto alone = [&](const Tokens& text) {
            Scored s(variant);
            s.scorer->watch(kSecond, true);
            s.compute(kSecond, text);
            s.decode(kSecond, static_cast<Position>(text.size()), std::span(&more, 1));
            return s.noted(kSecond);
        };
        Scored s(variant);
        s.scorer->watch(kFirst, true);
        s.scorer->watch(kThird, true);
        const std::array<Slice, 3> begins = {Slice{kSecond, 0, second, true}, Slice{kThird, 0, third, true},
                                             Slice{kFirst, 0, first, true}};
        s.decode(begins);
        const std::array<Slice, 3> goes_on = {Slice{kFirst, 40, std::span(&more, 1), true},
                                              Slice{kSecond, 7, std::span(&more, 1), true},
                                              Slice{kThird, 100, std::span(&more, 1), true}};
        s.decode(goes_on);
        CHECK(s.noted(kSecond).positions.empty());
        CHECK(s.noted(kFirst).positions == positions(9, 41));
        CHECK(s.noted(kThird).positions == positions(69, 101));
        CHECK(deviation(alone(first).values, s.noted(kFirst).values) < 0.1);
        CHECK(deviation(alone(third).values, s.noted(kThird).values) < 0.1);
        CHECK(deviation(alone(first).values, s.noted(kThird).values) > 0.5);
    }
}

TEST_CASE("only what a lane computes while it is watched is noted; scores and forgetting leave nothing") {
    Scored s;
    const Tokens text = some_tokens(200, 3);
    s.compute(kFirst, text);
    const std::vector<PageKeys> pages = s.keys_of(s.take(kFirst, text));
    REQUIRE(pages.size() == 3);
    for (const PageKeys& page : pages) CHECK(page->size() == s.scorer->keys_bytes());
    CHECK(scores_of(s, kFirst, pages).empty());

    s.scorer->watch(kFirst, true);
    CHECK(scores_of(s, kFirst, pages).empty());
    s.go_on(kFirst, 200);
    CHECK(s.noted(kFirst).positions == positions(200, 205));
    const std::vector<float> scores = scores_of(s, kFirst, pages);
    REQUIRE(scores.size() == pages.size());
    for (const float score : scores) CHECK(std::isfinite(score));
    CHECK(*std::max_element(scores.begin(), scores.end()) > 0.5F);
    CHECK(scores_of(s, kFirst, pages).empty());

    // What was noted stays when the lane is watched no more, until it is asked for.
    s.go_on(kFirst, 205);
    s.scorer->watch(kFirst, false);
    s.go_on(kFirst, 210);
    CHECK(s.noted(kFirst).positions == positions(205, 210));
    s.scorer->forget(kFirst);
    CHECK(scores_of(s, kFirst, pages).empty());
    s.go_on(kFirst, 215);
    CHECK(s.noted(kFirst).positions.empty());
}

TEST_CASE("tokens that were drafted and taken back are not asked by") {
    Scored s({test_model("qwen3"), "q8_0"});
    s.compute(kFirst, some_tokens(50, 1));
    s.scorer->watch(kFirst, true);
    const Tokens drafted = some_tokens(6, 77);
    const Slice slice{kFirst, 50, drafted, kLanes};
    REQUIRE(s.decoder.decode(std::span(&slice, 1)));
    CHECK(s.noted(kFirst).positions == positions(50, 56));
    REQUIRE(s.device.drop(kFirst, 52));
    const Token right = 42;
    s.decode(kFirst, 52, std::span(&right, 1));
    CHECK(s.noted(kFirst).positions == positions(50, 53));
}

TEST_CASE("a tree's tokens are noted on whichever branch they are") {
    static const llama::Backend backend;
    llama::ModelOptions options;
    options.path = test_model("qwen3");
    options.n_ctx = 1024;
    options.n_lanes = kLanes;
    options.n_threads = 1;
    options.n_draft_most = options.n_tree = 8;
    const Result<llama::Model> model = llama::Model::load(options, false, [] {});
    REQUIRE(model.ok());
    llama::LlamaDecoder decoder(model.value(), kLanes);
    const auto scorer = QueryScorer::create(model.value(), kLanes, 1);
    REQUIRE(scorer.ok());
    QueryProbe& probe = scorer.value()->probe();
    decoder.note_queries(&probe);
    const Tokens text = some_tokens(50, 1);
    const Slice begin{kFirst, 0, text, 1};
    REQUIRE(decoder.decode(std::span(&begin, 1)));

    scorer.value()->watch(kFirst, true);
    const Tokens tokens = {20, 30, 40, 50};
    const std::vector<std::int32_t> parents = {0, 0, 0, 1};
    const std::array<Slice, 2> slices = {Slice{kSecond, 0, text, 1}, Slice{kFirst, 50, tokens, 4, parents}};
    REQUIRE(decoder.decode(slices));
    CHECK(probe.queries(kFirst).positions == std::vector<Position>{50, 51, 51, 52});
    CHECK(probe.queries(kSecond).positions.empty());
    REQUIRE(decoder.keep(kFirst, std::vector<std::int32_t>{0, 2}));
    const Slice next{kFirst, 52, std::span(tokens).first(1), 1};
    REQUIRE(decoder.decode(std::span(&next, 1)));
    CHECK(probe.queries(kFirst).positions == std::vector<Position>{50, 51, 51, 52});
}

TEST_CASE("a model that was loaded anew scores by the keys of before") {
    Scored s;
    const Tokens text = some_tokens(300, 3);
    s.compute(kFirst, text, std::array<Position, 1>{150});
    const Snapshot snapshot = s.take(kFirst, text);
    const std::vector<PageKeys> pages = s.keys_of(snapshot);
    s.scorer->watch(kFirst, true);
    s.go_on(kFirst, 300);
    const std::vector<float> before = scores_of(s, kFirst, pages);

    s.scorer->unbind();
    s.model = Setup::load({}, 1024, llama::FlashAttention::automatic);
    s.device.rebind();
    s.compute(kSecond, some_tokens(30, 9));  // of a lane that is not watched, before it is bound
    REQUIRE(s.scorer->rebind());
    s.write(kFirst, snapshot);
    s.load_state(kFirst, snapshot);
    s.go_on(kFirst, 300);
    const std::vector<float> after = scores_of(s, kFirst, pages);
    REQUIRE(after.size() == before.size());
    for (std::size_t i = 0; i < after.size(); ++i) CHECK(after[i] == doctest::Approx(before[i]).epsilon(0.1));

    // Another model in its place.
    s.scorer->unbind();
    s.model = Setup::load({test_model("qwen3"), "q8_0"}, 1024, llama::FlashAttention::automatic);
    const Result<void> bound = s.scorer->rebind();
    REQUIRE(!bound);
    CHECK(bound.error().code == ErrorCode::unsupported);
    s.compute(kFirst, some_tokens(30, 9));
    CHECK(scores_of(s, kFirst, pages).empty());
}

TEST_CASE("a layer can be chosen; what cannot be scored says why") {
    Setup s;
    for (const std::int32_t layer : {3, 7, 11}) {
        const auto scorer = QueryScorer::create(s.model, kLanes, 1, layer);
        REQUIRE(scorer.ok());
        CHECK(scorer.value()->keys().layer == layer);
    }
    CHECK(QueryScorer::create(s.model, kLanes, 1).value()->keys().layer == 11);
    const auto none = QueryScorer::create(s.model, kLanes, 1, 4);
    REQUIRE(!none.ok());
    CHECK(none.error().code == ErrorCode::unsupported);
    CHECK(none.error().text.find("layer 4") != std::string::npos);
    CHECK(none.error().text.find("3, 7, 11") != std::string::npos);
    CHECK(QueryScorer::layers(s.model, kLanes).value() == std::vector<std::int32_t>{3, 7, 11});

    const llama::Model model = Setup::load({}, 256, llama::FlashAttention::off);
    const auto refused = QueryScorer::create(model, kLanes, 1);
    REQUIRE(!refused.ok());
    CHECK(refused.error().text.find("flash attention") != std::string::npos);
    const auto no_layers = QueryScorer::layers(model, kLanes);
    REQUIRE(!no_layers.ok());
    CHECK(no_layers.error().text == refused.error().text);
}

}  // TEST_SUITE("llama")
