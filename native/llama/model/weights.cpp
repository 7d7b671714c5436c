#include "llama/model/weights.h"

#include <llama.h>

#include <cstdlib>
#include <exception>

#include "llama/gguf_check/error_line.h"
#include "llama/gguf_check/gguf_preflight.h"
#include "llama/gguf_check/model_check.h"

namespace luce::llama {
namespace {

// By libllama's naming, <prefix>-00001-of-00003.gguf, which it has found all of.
std::vector<std::string> shard_paths(const std::string& first, const llama_model* model) {
    char text[16] = {};
    llama_model_meta_val_str(model, "split.count", text, sizeof text);
    const int n_shards = static_cast<int>(std::strtol(text, nullptr, 10));
    std::vector<std::string> paths{first};
    std::vector<char> buffer(first.size() + 32);
    if (n_shards <= 1 || llama_split_prefix(buffer.data(), buffer.size(), first.c_str(), 0, n_shards) <= 0) {
        return paths;
    }
    const std::string prefix = buffer.data();
    for (int i = 1; i < n_shards; ++i) {
        llama_split_path(buffer.data(), buffer.size(), prefix.c_str(), i, n_shards);
        paths.emplace_back(buffer.data());
    }
    return paths;
}

}  // namespace

Result<Weights> read_weights(const std::string& path, const llama_model_params& params) {
    if (Result<void> checked = preflight_gguf(path); !checked) return checked.error();
    const auto refused = [&path](const std::string& why) {
        return Error{ErrorCode::start_failed, "model " + path + ": " + why};
    };
    Weights weights;
    const FirstErrorLine error(true);
    try {
        weights.model.reset(llama_model_load_from_file(path.c_str(), params));
    } catch (const std::exception& e) {
        return refused(e.what());
    }
    if (!weights.model) return refused("llama.cpp cannot load it: " + error.text());
    if (Result<void> checked = check_computable(weights.model.get()); !checked) return refused(checked.error().text);
    weights.files = shard_paths(path, weights.model.get());
    return weights;
}

}  // namespace luce::llama
