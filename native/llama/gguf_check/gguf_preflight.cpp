// preflight_gguf: opens the file and its shards and runs the rules over them. Must not know what the rules say.
#include "llama/gguf_check/gguf_preflight.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>

#include "llama-arch.h"
#include "llama.h"
#include "llama/gguf_check/gguf_metadata.h"
#include "llama/gguf_check/gguf_rules.h"

namespace luce::llama {
namespace {

// The shards' paths by llama.cpp's naming, <prefix>-00001-of-00003.gguf, or none where the first is not so named.
std::vector<std::string> shard_paths(const std::string& first, uint32_t n_shards) {
    std::vector<char> buffer(first.size() + 32);
    const int count = static_cast<int>(n_shards);
    if (llama_split_prefix(buffer.data(), buffer.size(), first.c_str(), 0, count) <= 0) {
        return {};
    }
    const std::string prefix = buffer.data();
    std::vector<std::string> paths{first};
    for (int i = 1; i < count; ++i) {
        llama_split_path(buffer.data(), buffer.size(), prefix.c_str(), i, count);
        paths.emplace_back(buffer.data());
    }
    return paths;
}

// Opens the shards after the first and adds their tensors. libllama asserts the type of split.no.
Result<void> add_shards(GgufMetadata& first, GgufFacts& facts, std::vector<TensorInfo>& tensors) {
    const uint32_t n_shards = first.short_count("split.count", {0, 10000}, 1);
    const uint32_t number = first.short_count("split.no", {0, 10000});
    if (first.refusal() || n_shards <= 1) {
        return {};
    }
    if (number != 0) {
        return start_failed("model " + facts.files[0] + " is shard " + std::to_string(number + 1) +
                            " of a split model: name the first one");
    }
    auto paths = shard_paths(facts.files[0], n_shards);
    if (paths.empty()) {
        return start_failed("model " + facts.files[0] + " is the first of " + std::to_string(n_shards) +
                            " shards, but its name does not end in -00001-of-NNNNN.gguf");
    }
    for (size_t i = 1; i < paths.size(); ++i) {
        Result<GgufMetadata> shard = GgufMetadata::open(paths[i]);
        if (!shard) {
            return shard.error();
        }
        shard.value().require("split.no");
        shard.value().short_count("split.no", {i, i});
        if (shard.value().refusal()) {
            return start_failed("model " + paths[i] + ": " + *shard.value().refusal());
        }
        std::ranges::copy(shard.value().tensors(), std::back_inserter(tensors));
    }
    facts.files = std::move(paths);
    return {};
}

void check_names_once(GgufMetadata& gguf, const std::vector<TensorInfo>& tensors) {
    std::set<std::string_view> names;
    for (const TensorInfo& tensor : tensors) {
        if (!names.insert(tensor.name).second) {
            gguf.refuse("tensor " + printable(tensor.name) + " is there twice");
        }
    }
}

// Architectures are named by the file, but what libllama does with an unknown one is an error far from its cause.
bool check_architecture(GgufMetadata& gguf, GgufFacts& facts) {
    gguf.require("general.architecture");
    facts.architecture = gguf.text("general.architecture");
    const llm_arch arch = llm_arch_from_string(facts.architecture);
    if (arch == LLM_ARCH_UNKNOWN || arch == LLM_ARCH_CLIP) {
        gguf.refuse("general.architecture is " + printable(facts.architecture) +
                    ", which llama.cpp does not generate with");
    }
    gguf.set_architecture(facts.architecture);
    return !gguf.refusal();
}

}  // namespace

Result<GgufFacts> preflight_gguf(const std::string& path, bool needs_tensors) {
    Result<GgufMetadata> opened = GgufMetadata::open(path);
    if (!opened) {
        return opened.error();
    }
    GgufMetadata& gguf = opened.value();
    GgufFacts facts;
    facts.files = {path};
    std::vector<TensorInfo> tensors = gguf.tensors();
    if (check_architecture(gguf, facts)) {
        check_vocabulary(gguf, facts);
        if (needs_tensors) {
            if (Result<void> added = add_shards(gguf, facts, tensors); !added) {
                return added.error();
            }
            check_dimensions(gguf, facts);
            check_tensors(gguf, tensors, facts);
            check_names_once(gguf, tensors);
        }
    }
    if (gguf.refusal()) {
        return start_failed("model " + path + ": " + *gguf.refusal());
    }
    return facts;
}

}  // namespace luce::llama
