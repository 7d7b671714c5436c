// Placement: which device holds which part of a model's weights, and how they come into memory, in llama.cpp's own
// words (`--device`, `--tensor-split`, `--cpu-moe`, `--override-tensor`, …). Chooses nothing by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <llama.h>

#include "base/result.h"
#include "llama/experts/elastic_cache.h"
#include "llama/experts/expert_bank.h"
#include "llama/experts/split_memory.h"

namespace luce::llama {

enum class SplitMode { none, layer, row, tensor };

struct PlacementOptions {
    std::optional<std::string> devices = {};           // names, comma separated; "none": no GPU
    std::optional<std::string> tensor_split = {};      // shares of the devices: "3,1"
    std::optional<std::string> tensor_overrides = {};  // PATTERN=BUFFER,…
    SplitMode split_mode = SplitMode::layer;
    std::int32_t main_gpu = 0;
    bool keeps_experts = false;          // of all layers in the host's memory
    std::int32_t n_expert_layers = 0;    // the same of so many layers, the first ones
    std::size_t expert_cache_bytes = 0;  // of devices, for experts in the host's memory that were used lately
    std::optional<std::size_t> expert_memory_bytes = {};  // of the one GPU, for experts that are used most (ExpertBank)
    // Of that, what those give up when the attention cache needs it; 0: that has all of its memory from the start.
    std::size_t expert_lendable_bytes = 0;
    std::size_t cache_step_bytes = ElasticCache::kStepBytes;  // that it gets at once
    std::optional<std::string> expert_profile = {};           // which ones these are; may not be there yet
    std::optional<std::string> expert_profiles = {};          // the folder of those that are not named
    SplitMemoryMaker open_split_memory = open_cuda_memory;
    bool maps_file = true;
    bool locks_memory = false;
};

// What llama_model_params point to: it must outlive the loading.
class Placement {
public:
    // Errors: bad_args, which name what there is.
    static Result<Placement> make(const PlacementOptions& options);

    void apply(llama_model_params& params) const;

    // Where the experts' weights are loaded to, or what counts their use where only a profile was asked for; it must
    // outlive the model. Errors: bad_args (what is missing here), as read_profile().
    Result<std::shared_ptr<ExpertBank>> make_bank(const std::string& identity, bool uses_gpu);

    // Whether a GPU may be used at all.
    bool allows_gpu() const { return !excludes_gpus_; }

private:
    Result<void> choose_devices(const std::string& names);
    Result<void> check_split_mode() const;
    Result<void> split(const std::string& shares);
    Result<void> override_tensors(const std::string& rules);
    void keep_experts(const std::string& layer);
    void end_overrides();
    std::vector<ggml_backend_dev_t> used_gpus() const;
    Result<experts::ExpertProfile> known_experts(const std::string& identity) const;

    PlacementOptions options_;
    bool excludes_gpus_ = false;
    std::vector<ggml_backend_dev_t> devices_;  // with a null at the end, if any were named
    std::vector<float> shares_;                // as many as llama_max_devices(), if any were given
    std::list<std::string> patterns_;
    std::vector<llama_model_tensor_buft_override> overrides_;  // with an empty one at the end, if there are any
};

}  // namespace luce::llama
