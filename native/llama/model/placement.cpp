#include "llama/model/placement.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <regex>
#include <string_view>
#include <utility>

#include <ggml-backend.h>

#include "base/log.h"
#include "common.h"

namespace luce::llama {
namespace {

Error bad_args(std::string text) { return {ErrorCode::bad_args, std::move(text)}; }

std::vector<std::string> parts_of(const std::string& text) {
    std::vector<std::string> parts;
    std::size_t begin = 0;
    for (std::size_t end = 0; end != std::string::npos; begin = end + 1) {
        end = text.find(',', begin);
        parts.push_back(text.substr(begin, end - begin));
    }
    return parts;
}

template <typename Values>
std::string names_of(const Values& values) {
    std::string names;
    for (const auto& [name, value] : values) names.append(names.empty() ? "" : ", ").append(name);
    return names.empty() ? "none" : names;
}

std::map<std::string, ggml_backend_dev_t> gpus() {
    std::map<std::string, ggml_backend_dev_t> found;
    for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        if (ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU) {
            found[ggml_backend_dev_name(device)] = device;
        }
    }
    return found;
}

std::map<std::string, ggml_backend_buffer_type_t> buffer_types() {
    std::map<std::string, ggml_backend_buffer_type_t> found;
    for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        if (ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(ggml_backend_dev_get(i))) {
            found[ggml_backend_buft_name(type)] = type;
        }
    }
    return found;
}

llama_split_mode native(SplitMode mode) {
    switch (mode) {
        case SplitMode::none: return LLAMA_SPLIT_MODE_NONE;
        case SplitMode::layer: return LLAMA_SPLIT_MODE_LAYER;
        case SplitMode::row: return LLAMA_SPLIT_MODE_ROW;
        case SplitMode::tensor: return LLAMA_SPLIT_MODE_TENSOR;
    }
    return LLAMA_SPLIT_MODE_LAYER;
}

llama_load_mode load_mode(const PlacementOptions& options) {
    if (options.locks_memory) return options.maps_file ? LLAMA_LOAD_MODE_MMAP_MLOCK : LLAMA_LOAD_MODE_MLOCK;
    return options.maps_file ? LLAMA_LOAD_MODE_AUTO : LLAMA_LOAD_MODE_NONE;
}

}  // namespace

Result<Placement> Placement::make(const PlacementOptions& options) {
    Placement placement;
    placement.options_ = options;
    if (options.devices) {
        if (Result<void> done = placement.choose_devices(*options.devices); !done) return done.error();
    }
    if (Result<void> checked = placement.check_split_mode(); !checked) return checked.error();
    if (options.tensor_split) {
        if (Result<void> done = placement.split(*options.tensor_split); !done) return done.error();
    }
    if (options.tensor_overrides) {
        if (Result<void> done = placement.override_tensors(*options.tensor_overrides); !done) return done.error();
    }
    if (options.keeps_experts) placement.keep_experts("");
    for (std::int32_t layer = 0; layer < options.n_expert_layers; ++layer) {
        placement.keep_experts("blk\\." + std::to_string(layer));
    }
    placement.end_overrides();
    return placement;
}

void Placement::apply(llama_model_params& params) const {
    if (!devices_.empty()) params.devices = const_cast<ggml_backend_dev_t*>(devices_.data());
    if (!shares_.empty()) params.tensor_split = shares_.data();
    if (!overrides_.empty()) params.tensor_buft_overrides = overrides_.data();
    params.split_mode = native(options_.split_mode);
    params.main_gpu = options_.main_gpu;
    params.load_mode = load_mode(options_);
}

void Placement::end_overrides() {
    if (!overrides_.empty()) overrides_.push_back({nullptr, nullptr});
}

std::vector<ggml_backend_dev_t> Placement::used_gpus() const {
    std::vector<ggml_backend_dev_t> all = devices_;
    std::erase(all, nullptr);
    if (!devices_.empty()) return all;
    for (const auto& [name, device] : gpus()) {
        if (ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_GPU) all.push_back(device);
    }
    return all;
}

Result<experts::ExpertProfile> Placement::known_experts(const std::string& identity) const {
    const auto file = experts::profile_file(options_.expert_profile, options_.expert_profiles, identity);
    if (!file) return experts::ExpertProfile{identity, {}};
    Result<experts::ExpertProfile> read = experts::read_profile(*file, identity);
    if (read) return read;
    if (read.error().code != ErrorCode::no_such_file) {
        if (options_.expert_profile) return read.error();
        log_warn(read.error().text);  // nobody has asked for it, so nobody has to remove it
    }
    return experts::ExpertProfile{identity, {}};
}

Result<std::shared_ptr<ExpertBank>> Placement::make_bank(const std::string& identity, bool uses_gpu) {
    Result<experts::ExpertProfile> known = known_experts(identity);
    if (!known) return known.error();
    const std::vector<ggml_backend_dev_t> all = used_gpus();
    if (!options_.expert_memory_bytes) {
        if (options_.expert_cache_bytes > 0) {
            return bad_args("--expert-profile: --moe-cache-mib looks experts up in its own way; leave one of them out");
        }
        ggml_backend_dev_t device =
            uses_gpu && !all.empty() ? all.front() : ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
        return std::make_shared<ExpertBank>(device, std::move(known).value());
    }
    const auto refused = [](const std::string& why) { return bad_args("--expert-memory: " + why); };
    if (!overrides_.empty() || options_.expert_cache_bytes > 0) {
        return refused("--cpu-moe, --n-cpu-moe, --moe-cache-mib and --override-tensor say otherwise where experts lie");
    }
    if (all.size() != 1) return refused("there are " + std::to_string(all.size()) + " GPUs; name one with --device");
    Result<std::unique_ptr<SplitMemory>> memory = options_.open_split_memory(all.front());
    if (!memory) return refused(memory.error().text);
    const ExpertBudget budget{*options_.expert_memory_bytes, options_.expert_lendable_bytes};
    auto bank = std::make_shared<ExpertBank>(all.front(), std::move(memory).value(), budget, std::move(known).value());
    overrides_.push_back({kBankedTensors, bank->buffer_type()});
    end_overrides();
    return bank;
}

Result<void> Placement::choose_devices(const std::string& names) {
    excludes_gpus_ = names == "none";
    if (!excludes_gpus_) {
        const auto known = gpus();
        for (const std::string& name : parts_of(names)) {
            const auto device = known.find(name);
            if (device == known.end()) {
                return bad_args("--device: there is no '" + name + "' (there are: " + names_of(known) +
                                "; none keeps all on the CPU)");
            }
            devices_.push_back(device->second);
        }
    }
    devices_.push_back(nullptr);
    return {};
}

// Where libllama would throw, or find no device, once it has read half of the file.
Result<void> Placement::check_split_mode() const {
    const std::vector<ggml_backend_dev_t> all = used_gpus();
    if (options_.split_mode == SplitMode::tensor && all.empty()) {
        return bad_args("--split-mode tensor: there is no GPU to split tensors over; leave it out");
    }
    if (options_.split_mode != SplitMode::row) return {};
    for (ggml_backend_dev_t device : all) {
        if (ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "ggml_backend_split_buffer_type")) {
            continue;
        }
        return bad_args("--split-mode row: " + std::string(ggml_backend_dev_name(device)) +
                        " cannot hold some rows of a tensor (llama.cpp has that for SYCL alone); use layer or tensor");
    }
    return {};
}

Result<void> Placement::split(const std::string& shares) {
    shares_.assign(std::max<std::size_t>(llama_max_devices(), 1), 0.0F);
    const std::vector<std::string> parts = parts_of(shares);
    if (parts.size() > shares_.size()) {
        return bad_args("--tensor-split: " + std::to_string(parts.size()) + " shares for at most " +
                        std::to_string(shares_.size()) + " devices");
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const char* end = parts[i].data() + parts[i].size();
        const auto [at, error] = std::from_chars(parts[i].data(), end, shares_[i]);
        if (error != std::errc() || at != end || !(shares_[i] >= 0) || shares_[i] > 1e6F) {
            return bad_args("--tensor-split takes numbers from 0 to 1000000, as 3,1, not '" + parts[i] + "'");
        }
    }
    return {};
}

Result<void> Placement::override_tensors(const std::string& rules) {
    const auto known = buffer_types();
    for (const std::string& rule : parts_of(rules)) {
        const std::size_t equals = rule.rfind('=');
        if (equals == std::string::npos || equals == 0) {
            return bad_args("--override-tensor takes PATTERN=BUFFER,…, not '" + rule + "'");
        }
        const auto type = known.find(rule.substr(equals + 1));
        if (type == known.end()) {
            return bad_args("--override-tensor: there is no buffer '" + rule.substr(equals + 1) +
                            "' (there are: " + names_of(known) + ")");
        }
        std::string pattern = rule.substr(0, equals);
        try {
            static_cast<void>(std::regex(pattern));  // as llama.cpp will read it
        } catch (const std::regex_error&) {
            return bad_args("--override-tensor: '" + pattern + "' is no regular expression");
        }
        overrides_.push_back({patterns_.emplace_back(std::move(pattern)).c_str(), type->second});
    }
    return {};
}

void Placement::keep_experts(const std::string& layer) {
    overrides_.push_back({patterns_.emplace_back(layer + LLM_FFN_EXPS_REGEX).c_str(), ggml_backend_cpu_buffer_type()});
}

}  // namespace luce::llama
