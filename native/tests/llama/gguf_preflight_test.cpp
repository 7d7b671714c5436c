// What is wrong with a model file becomes one line: by the preflight, by libllama's own refusal, or by LoadGuard where
// libllama dies. Files made by hand, each a valid tiny model with one thing wrong.
#include "llama/gguf_check/gguf_preflight.h"

#include <doctest/doctest.h>
#include <gguf.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "ggml.h"
#include "llama.h"
#include "llama/model/weights.h"

#include "test_paths.h"

namespace {

using luce::ErrorCode;
using luce::Result;
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
    gguf_set_val_u32(gguf, "qwen3.block_count", 1);
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
    const auto add = [&](const char* tensor_name, ggml_type of_type, int64_t n_columns, int64_t n) {
        ggml_tensor* tensor = ggml_new_tensor_2d(tensors.get(), of_type, n_columns, n);
        ggml_set_name(tensor, tensor_name);
        gguf_add_tensor(gguf.get(), tensor);
    };
    add("token_embd.weight", type, kEmbd, n_rows);
    for (const char* norm : {"output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"}) {
        add((std::string(norm) + ".weight").c_str(), GGML_TYPE_F32, kEmbd, 1);
    }
    for (const char* norm : {"blk.0.attn_q_norm.weight", "blk.0.attn_k_norm.weight"}) add(norm, GGML_TYPE_F32, 8, 1);
    for (const char* square : {"blk.0.attn_q.weight", "blk.0.attn_output.weight"}) {
        add(square, GGML_TYPE_F32, kEmbd, kEmbd);
    }
    for (const char* half : {"blk.0.attn_k.weight", "blk.0.attn_v.weight"}) add(half, GGML_TYPE_F32, kEmbd, 16);
    for (const char* wide : {"blk.0.ffn_gate.weight", "blk.0.ffn_up.weight"}) add(wide, GGML_TYPE_F32, kEmbd, 64);
    add("blk.0.ffn_down.weight", GGML_TYPE_F32, 64, kEmbd);
    const std::string path = folder.file(name);
    REQUIRE(gguf_write_to_file(gguf.get(), path.c_str(), false));
    return path;
}

// The refusal's text, or nothing where the file passes.
std::string refusal(const std::string& path) {
    const Result<void> checked = preflight_gguf(path);
    if (checked) return {};
    CHECK(checked.error().code == ErrorCode::start_failed);
    CHECK(checked.error().text.find('\n') == std::string::npos);
    return checked.error().text;
}

std::string refusal_after(const Change& change) {
    const ScratchFolder folder;
    return refusal(write_model(folder, change));
}

// The same of the whole load, as the daemon does it.
std::string load_refusal(const std::string& path) {
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    const auto loaded = luce::llama::read_weights(path, params);
    if (loaded) return {};
    CHECK(loaded.error().code == ErrorCode::start_failed);
    CHECK(loaded.error().text.find('\n') == std::string::npos);
    return loaded.error().text;
}

// Ids only: libllama asks more of texts than these few tokens have.
void without_texts(gguf_context* gguf) {
    gguf_set_val_str(gguf, "tokenizer.ggml.model", "no_vocab");
    gguf_set_val_u32(gguf, "qwen3.vocab_size", static_cast<uint32_t>(kVocab));
}

bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_SUITE("llama") {

TEST_CASE("preflight: valid files pass") {
    CHECK(refusal_after([](gguf_context*) {}).empty());
    CHECK(refusal(LUCE_TINY_MODEL).empty());
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

TEST_CASE("a truncated file is refused at any length, by the preflight or by libllama") {
    const ScratchFolder folder;
    const std::string path = write_model(folder, without_texts);
    CHECK(load_refusal(path).empty());
    for (auto size = std::filesystem::file_size(path); size > 0;) {
        size -= std::min<std::uintmax_t>(size, 61);
        std::filesystem::resize_file(path, size);
        REQUIRE(mentions(load_refusal(path), path));
    }
}

TEST_CASE("preflight: architectures and vocabularies that libllama would abort on") {
    CHECK(mentions(refusal_after([](auto* g) { gguf_set_val_str(g, "general.architecture", "nonsense"); }),
                   "architecture is nonsense"));
    CHECK(mentions(refusal_after([](auto* g) { gguf_set_val_u32(g, "tokenizer.ggml.model", 2); }), "has type u32"));
    CHECK(mentions(refusal_after([](auto* g) { set_strings(g, "tokenizer.ggml.tokens", {"a", "b", "a", ""}); }),
                   "tokens[2] repeats"));
    CHECK(mentions(refusal_after([](auto* g) { set_strings(g, "tokenizer.ggml.tokens", {"", "[EMPTY_0]", "a", "b"}); }),
                   "tokens[1] repeats"));
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
    CHECK(mentions(refusal_after(no_vocab(4000000000U)), "vocab_size is 4000000000"));
}

TEST_CASE("what libllama refuses is told with what it said, and what cannot be computed with by name") {
    const auto after = [](const Change& change, ggml_type type = GGML_TYPE_F32, int64_t n_rows = kVocab) {
        const ScratchFolder folder;
        return load_refusal(write_model(folder, change, "model.gguf", type, n_rows));
    };
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    CHECK(after(without_texts).empty());
    CHECK(mentions(after(without_texts, GGML_TYPE_F32, 7), "token_embd.weight"));
    CHECK(mentions(after(without_texts, GGML_TYPE_Q8_1), "no type of weights"));
    const auto with = [](const char* key, auto value) {
        return [key, value](gguf_context* g) {
            without_texts(g);
            if constexpr (std::is_same_v<decltype(value), float>) {
                gguf_set_val_f32(g, key, value);
            } else if constexpr (std::is_same_v<decltype(value), const char*>) {
                gguf_set_val_str(g, key, value);
            } else {
                gguf_set_val_u32(g, key, value);
            }
        };
    };
    CHECK(mentions(after(with("qwen3.block_count", 2U)), "'blk.1.attn_norm.weight' not found"));
    CHECK(mentions(after(with("qwen3.block_count", "2")), "wrong type str"));
    CHECK(mentions(after(with("qwen3.rope.freq_base", kNan)), "freq_base is nan"));
    CHECK(mentions(after(with("qwen3.rope.dimension_count", 7U)), "rope.dimension_count 7"));
    CHECK(mentions(after(with("qwen3.rope.dimension_count", 0U)), "rope.dimension_count 0"));
}

TEST_CASE("shards: all are named, and libllama says which is missing") {
    const ScratchFolder folder;
    const auto shard = [](uint16_t number, uint16_t count) {
        return [number, count](gguf_context* g) {
            without_texts(g);
            gguf_set_val_u16(g, "split.no", number);
            gguf_set_val_u16(g, "split.count", count);
        };
    };
    const std::string first = write_model(folder, shard(0, 2), "m-00001-of-00002.gguf");
    CHECK(mentions(load_refusal(first), "m-00002-of-00002.gguf"));
    const std::string second = write_model(folder, shard(1, 2), "m-00002-of-00002.gguf");
    CHECK(mentions(load_refusal(first), "duplicated"));  // both hold the embedding
    CHECK(mentions(load_refusal(second), "must be loaded with the first split"));
    CHECK(mentions(load_refusal(write_model(folder, shard(0, 3), "other.gguf")), "other.gguf"));
}

}  // TEST_SUITE("llama")
