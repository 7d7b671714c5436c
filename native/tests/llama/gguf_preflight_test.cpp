// The preflight's rules on files made by hand: each test writes a valid tiny model with one thing wrong. Needs ggml's
// writer only; loads nothing.
#include "llama/gguf_check/gguf_preflight.h"

#include <doctest/doctest.h>
#include <gguf.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "ggml.h"

#include "test_paths.h"

namespace {

using luce::ErrorCode;
using luce::Result;
using luce::llama::GgufFacts;
using luce::llama::preflight_gguf;

using Gguf = std::unique_ptr<gguf_context, decltype(&gguf_free)>;
using Change = std::function<void(gguf_context*)>;

constexpr int64_t kEmbd = 32;
constexpr int64_t kVocab = 4;

// A folder of this test's own, gone with it.
class ScratchFolder {
public:
    ScratchFolder() {
        std::string name = (std::filesystem::temp_directory_path() / "luce-preflight-XXXXXX").string();
        REQUIRE(mkdtemp(name.data()) != nullptr);
        path_ = name;
    }
    ~ScratchFolder() { std::filesystem::remove_all(path_); }
    ScratchFolder(const ScratchFolder&) = delete;
    ScratchFolder& operator=(const ScratchFolder&) = delete;

    std::string file(const std::string& name) const { return (path_ / name).string(); }

private:
    std::filesystem::path path_;
};

void set_strings(gguf_context* gguf, const char* key, std::vector<const char*> values) {
    gguf_set_arr_str(gguf, key, values.data(), values.size());
}

void set_integers(gguf_context* gguf, const char* key, const std::vector<int32_t>& values) {
    gguf_set_arr_data(gguf, key, GGUF_TYPE_INT32, values.data(), values.size());
}

void set_valid_keys(gguf_context* gguf) {
    gguf_set_val_str(gguf, "general.architecture", "qwen3");
    gguf_set_val_u32(gguf, "qwen3.block_count", 2);
    gguf_set_val_u32(gguf, "qwen3.context_length", 64);
    gguf_set_val_u32(gguf, "qwen3.embedding_length", kEmbd);
    gguf_set_val_u32(gguf, "qwen3.feed_forward_length", 64);
    gguf_set_val_u32(gguf, "qwen3.attention.head_count", 4);
    gguf_set_val_u32(gguf, "qwen3.attention.head_count_kv", 2);
    gguf_set_val_f32(gguf, "qwen3.attention.layer_norm_rms_epsilon", 1e-6F);
    gguf_set_val_str(gguf, "tokenizer.ggml.model", "gpt2");
    set_strings(gguf, "tokenizer.ggml.tokens", {"a", "b", "ab", ""});
    set_strings(gguf, "tokenizer.ggml.merges", {"a b"});
}

// Writes the valid model after `change` and gives its path.
std::string write_model(const ScratchFolder& folder, const Change& change, const char* name = "model.gguf",
                        ggml_type type = GGML_TYPE_F32, int64_t n_rows = kVocab) {
    const Gguf gguf(gguf_init_empty(), gguf_free);
    set_valid_keys(gguf.get());
    change(gguf.get());
    const std::unique_ptr<ggml_context, decltype(&ggml_free)> tensors(
        ggml_init({.mem_size = 1 << 20, .mem_buffer = nullptr, .no_alloc = false}), ggml_free);
    ggml_tensor* embedding = ggml_new_tensor_2d(tensors.get(), type, kEmbd, n_rows);
    ggml_set_name(embedding, "token_embd.weight");
    gguf_add_tensor(gguf.get(), embedding);
    const std::string path = folder.file(name);
    REQUIRE(gguf_write_to_file(gguf.get(), path.c_str(), false));
    return path;
}

// The refusal's text, or nothing where the file passes.
std::string refusal(const std::string& path) {
    const Result<GgufFacts> facts = preflight_gguf(path);
    if (facts) {
        return {};
    }
    CHECK(facts.error().code == ErrorCode::start_failed);
    CHECK(facts.error().text.find('\n') == std::string::npos);
    return facts.error().text;
}

std::string refusal_after(const Change& change) {
    const ScratchFolder folder;
    return refusal(write_model(folder, change));
}

bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_SUITE_BEGIN("llama");

TEST_CASE("preflight: a valid file passes and its facts are read") {
    const ScratchFolder folder;
    const Result<GgufFacts> facts = preflight_gguf(write_model(folder, [](gguf_context*) {}));
    REQUIRE(facts.ok());
    CHECK(facts.value().architecture == "qwen3");
    CHECK(facts.value().n_layers == 2);
    CHECK(facts.value().n_vocab == kVocab);
    CHECK(facts.value().files.size() == 1);
    CHECK_FALSE(facts.value().has_longrope);
}

TEST_CASE("preflight: the packaged model passes") {
    const Result<GgufFacts> facts = preflight_gguf(LUCE_TINY_MODEL);
    REQUIRE(facts.ok());
    CHECK(facts.value().architecture == "qwen35");
    CHECK(facts.value().n_vocab == 8192);
}

TEST_CASE("preflight: what is no model file") {
    const ScratchFolder folder;
    CHECK(mentions(refusal(folder.file("missing")), "No such file"));
    CHECK(mentions(refusal(folder.file("")), "directory"));
    CHECK(mentions(refusal("/dev/null"), "not a regular file"));
    std::ofstream(folder.file("empty")).flush();
    CHECK(mentions(refusal(folder.file("empty")), "empty"));
    std::ofstream(folder.file("text")) << "no model at all, just text";
    CHECK(mentions(refusal(folder.file("text")), "magic"));
}

TEST_CASE("preflight: a truncated file is refused at every length") {
    const ScratchFolder folder;
    const std::string path = write_model(folder, [](gguf_context*) {});
    for (auto size = std::filesystem::file_size(path); size-- > 0;) {
        std::filesystem::resize_file(path, size);
        REQUIRE_FALSE(refusal(path).empty());
    }
}

TEST_CASE("preflight: values that overflow what libllama computes from them") {
    struct Case {
        const char* named;
        Change change;
    };
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    const Case cases[] = {
        {"qwen3.block_count is 0", [](auto* g) { gguf_set_val_u32(g, "qwen3.block_count", 0); }},
        {"qwen3.block_count is 4000000000", [](auto* g) { gguf_set_val_u32(g, "qwen3.block_count", 4000000000U); }},
        {"no qwen3.block_count", [](auto* g) { gguf_remove_key(g, "qwen3.block_count"); }},
        {"has type str", [](auto* g) { gguf_set_val_str(g, "qwen3.block_count", "2"); }},
        {"embedding_length is 0", [](auto* g) { gguf_set_val_u32(g, "qwen3.embedding_length", 0); }},
        {"3 values for 2 layers", [](auto* g) { set_integers(g, "qwen3.attention.head_count_kv", {2, 2, 2}); }},
        {"head_count_kv[1] is -1", [](auto* g) { set_integers(g, "qwen3.attention.head_count_kv", {2, -1}); }},
        {"expert_count is 5000", [](auto* g) { gguf_set_val_u32(g, "qwen3.expert_count", 5000); }},
        {"freq_base is nan", [](auto* g) { gguf_set_val_f32(g, "qwen3.rope.freq_base", kNan); }},
        {"rope.dimension_count", [](auto* g) { gguf_set_val_u32(g, "qwen3.rope.dimension_count", 7); }},
        {"architecture is nonsense", [](auto* g) { gguf_set_val_str(g, "general.architecture", "nonsense"); }},
        {"full_attention_interval is 0", [](auto* g) { gguf_set_val_u32(g, "qwen3.full_attention_interval", 0); }},
    };
    for (const Case& c : cases) {
        CAPTURE(c.named);
        const std::string text = refusal_after(c.change);
        CHECK_MESSAGE(mentions(text, c.named), text);
    }
}

TEST_CASE("preflight: vocabularies that libllama would abort on") {
    CHECK(mentions(refusal_after([](auto* g) { set_strings(g, "tokenizer.ggml.tokens", {"a", "b", "a", ""}); }),
                   "tokens[2] repeats"));
    CHECK(mentions(refusal_after([](auto* g) { set_strings(g, "tokenizer.ggml.tokens", {"", "[EMPTY_0]", "a", "b"}); }),
                   "tokens[1] repeats"));
    CHECK(mentions(refusal_after([](auto* g) { set_strings(g, "tokenizer.ggml.tokens", {"a"}); }), "4 rows"));
    CHECK(mentions(refusal_after([](auto* g) { set_integers(g, "tokenizer.ggml.token_type", {1, 1}); }), "2 values"));
    CHECK(mentions(refusal_after([](auto* g) { set_integers(g, "tokenizer.ggml.merges", {1}); }), "merges"));
    CHECK(mentions(refusal_after([](auto* g) { gguf_remove_key(g, "tokenizer.ggml.model"); }), "tokenizer.ggml.model"));
    const auto no_vocab = [](uint32_t n_vocab) {
        return [n_vocab](gguf_context* g) {
            gguf_set_val_str(g, "tokenizer.ggml.model", "no_vocab");
            gguf_set_val_u32(g, "qwen3.vocab_size", n_vocab);
        };
    };
    CHECK(refusal_after(no_vocab(kVocab)).empty());
    CHECK(mentions(refusal_after(no_vocab(1000000)), "4 rows"));
    CHECK(mentions(refusal_after(no_vocab(4000000000U)), "vocab_size is 4000000000"));
}

TEST_CASE("preflight: tensors that cannot be computed with") {
    const ScratchFolder folder;
    const Change nothing = [](gguf_context*) {};
    CHECK(refusal(write_model(folder, nothing, "q8.gguf", GGML_TYPE_Q8_0)).empty());
    CHECK(mentions(refusal(write_model(folder, nothing, "i32.gguf", GGML_TYPE_I32)), "no type of weights"));
    CHECK(mentions(refusal(write_model(folder, nothing, "q8_1.gguf", GGML_TYPE_Q8_1)), "no type of weights"));
    CHECK(mentions(refusal(write_model(folder, nothing, "rows.gguf", GGML_TYPE_F32, 7)), "7 rows"));
}

TEST_CASE("preflight: shards") {
    const ScratchFolder folder;
    const auto shard = [](uint16_t number, uint16_t count) {
        return [number, count](gguf_context* g) {
            gguf_set_val_u16(g, "split.no", number);
            gguf_set_val_u16(g, "split.count", count);
        };
    };
    const std::string first = write_model(folder, shard(0, 2), "m-00001-of-00002.gguf");
    CHECK(mentions(refusal(first), "No such file"));
    const std::string second = write_model(folder, shard(1, 2), "m-00002-of-00002.gguf");
    CHECK(mentions(refusal(first), "there twice"));  // both hold the embedding
    CHECK(mentions(refusal(second), "shard 2 of a split model"));
    write_model(folder, shard(0, 2), "m-00002-of-00002.gguf");
    CHECK(mentions(refusal(first), "split.no is 0"));
    CHECK(mentions(refusal(write_model(folder, shard(0, 3), "other.gguf")), "first of 3 shards"));
    CHECK(mentions(refusal_after([](auto* g) { gguf_set_val_u32(g, "split.count", 2); }), "split.count has type u32"));
}

TEST_SUITE_END();
