// The rules: what libllama's vocabulary loader asserts (each text once) or reads without looking. Must not know how
// text is tokenised.
#include "llama/gguf_check/gguf_preflight.h"

#include <array>
#include <string>
#include <string_view>
#include <unordered_set>

#include "gguf.h"
#include "llama-arch.h"
#include "llama/gguf_check/error_line.h"
#include "llama/gguf_check/gguf_metadata.h"

namespace luce::llama {
namespace {

constexpr uint32_t kMaxTokens = 1U << 24;
constexpr size_t kMaxTokenBytes = 1U << 16;  // libllama sizes buffers by the longest one

constexpr std::array kSpecialIds{"bos_token_id",     "eos_token_id",       "eot_token_id",     "eom_token_id",
                                 "unknown_token_id", "seperator_token_id", "padding_token_id", "mask_token_id",
                                 "fim_pre_token_id", "fim_suf_token_id",   "fim_mid_token_id", "fim_pad_token_id",
                                 "fim_rep_token_id", "fim_sep_token_id"};

// libllama gives an empty token such a name and asserts that all names are different.
std::string name_of_token(std::string_view text, size_t id) {
    return text.empty() ? "[EMPTY_" + std::to_string(id) + "]" : std::string(text);
}

void check_tokens(GgufMetadata& gguf, const std::vector<std::string_view>& tokens) {
    std::unordered_set<std::string> seen;
    seen.reserve(tokens.size());
    for (size_t id = 0; id < tokens.size(); ++id) {
        if (tokens[id].size() > kMaxTokenBytes) {
            gguf.refuse("tokenizer.ggml.tokens[" + std::to_string(id) + "] has " + std::to_string(tokens[id].size()) +
                        " bytes, at most " + std::to_string(kMaxTokenBytes) + " are supported");
            return;
        }
        if (!seen.insert(name_of_token(tokens[id], id)).second) {
            gguf.refuse("tokenizer.ggml.tokens[" + std::to_string(id) +
                        "] repeats an earlier token: " + printable(tokens[id]));
            return;
        }
    }
}

void check_parallel_array(GgufMetadata& gguf, const std::string& key, std::span<const int> types, size_t n_tokens) {
    if (!gguf.has(key)) {
        return;
    }
    gguf.require_array_of(key, types);
    if (gguf.array_length(key) != n_tokens) {
        gguf.refuse(key + " has " + std::to_string(gguf.array_length(key)) + " values for " + std::to_string(n_tokens) +
                    " tokens");
    }
}

void check_special_ids(GgufMetadata& gguf, uint32_t n_tokens) {
    for (const char* name : kSpecialIds) {
        // libllama ignores ids out of the vocabulary with a warning, and files with such ids exist (-1 for "none").
        gguf.count(std::string("tokenizer.ggml.") + name, {});
    }
    gguf.count("tokenizer.ggml.token_type_count", {0, n_tokens});
}

void check_vocabulary(GgufMetadata& gguf) {
    gguf.require("tokenizer.ggml.model");
    const std::string model = gguf.text("tokenizer.ggml.model");
    gguf.text("tokenizer.ggml.pre");
    if (model == "no_vocab" || model == "none") {
        gguf.count(".vocab_size", {0, kMaxTokens});
        return;
    }
    gguf.require("tokenizer.ggml.tokens");
    const auto tokens = gguf.strings("tokenizer.ggml.tokens");
    if (tokens.empty() || tokens.size() > kMaxTokens) {
        gguf.refuse("tokenizer.ggml.tokens has " + std::to_string(tokens.size()) + " tokens, must have 1 to " +
                    std::to_string(kMaxTokens));
        return;
    }
    check_tokens(gguf, tokens);
    constexpr std::array<int, 2> kScores{GGUF_TYPE_FLOAT32, GGUF_TYPE_INT32};
    constexpr std::array<int, 1> kIntegers{GGUF_TYPE_INT32};
    constexpr std::array<int, 1> kStrings{GGUF_TYPE_STRING};
    constexpr std::array<int, 2> kBytes{GGUF_TYPE_UINT8, GGUF_TYPE_INT8};
    check_parallel_array(gguf, "tokenizer.ggml.scores", kScores, tokens.size());
    check_parallel_array(gguf, "tokenizer.ggml.token_type", kIntegers, tokens.size());
    gguf.require_array_of("tokenizer.ggml.merges", kStrings);
    gguf.require_array_of("tokenizer.ggml.suppress_tokens", kIntegers);
    gguf.require_array_of("tokenizer.ggml.precompiled_charsmap", kBytes);
    check_special_ids(gguf, static_cast<uint32_t>(tokens.size()));
}

// Architectures are named by the file, but what libllama does with an unknown one is an error far from its cause.
bool check_architecture(GgufMetadata& gguf) {
    gguf.require("general.architecture");
    const std::string architecture = gguf.text("general.architecture");
    const llm_arch arch = llm_arch_from_string(architecture);
    if (arch == LLM_ARCH_UNKNOWN || arch == LLM_ARCH_CLIP) {
        gguf.refuse("general.architecture is " + printable(architecture) + ", which llama.cpp does not generate with");
    }
    gguf.set_architecture(architecture);
    return !gguf.refusal();
}

}  // namespace

Result<void> preflight_gguf(const std::string& path) {
    Result<GgufMetadata> opened = GgufMetadata::open(path);
    if (!opened) return opened.error();
    GgufMetadata& gguf = opened.value();
    if (check_architecture(gguf)) check_vocabulary(gguf);
    if (gguf.refusal()) return Error{ErrorCode::start_failed, "model " + path + ": " + *gguf.refusal()};
    return {};
}

}  // namespace luce::llama
