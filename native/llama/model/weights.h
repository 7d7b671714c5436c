// read_weights: a model file by libllama, looked at before and after, so that whatever is wrong with it is one line.
// Must not know what the model is for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "llama/model/model.h"

struct llama_model_params;

namespace luce::llama {

struct Weights {
    std::unique_ptr<llama_model, LlamaModelDeleter> model;
    std::vector<std::string> files;  // all shards, the first first
};

// Errors: start_failed, naming the file.
Result<Weights> read_weights(const std::string& path, const llama_model_params& params);

}  // namespace luce::llama
