#include "app/status_lines.h"

#include <unistd.h>

#include <cmath>
#include <string>
#include <utility>

#include "daemon/commands/profile_fields.h"

namespace luce::app {

namespace {

using daemon::Options;
using llama::LayerChoice;
using llama::ModelInfo;

daemon::StatusFields layer_fields(const std::optional<LayerChoice>& layer) {
    if (!layer) return {};
    std::string layers;
    for (const std::int32_t id : layer->layers) layers += (layers.empty() ? "" : ",") + std::to_string(id);
    return {{"kvflash_layer", std::to_string(layer->layer)}, {"kvflash_layers", layers}};
}

}  // namespace

wire::ReadyLine ready_line(const ModelInfo& info, const Options& options, std::optional<std::int32_t> n_least_pool,
                           const memory::KvCacheManager& memory, std::uint64_t host_bytes,
                           const engine::Speculator* speculator, const std::optional<LayerChoice>& layer) {
    const bool has_pages = !memory.refusal();
    const memory::MemoryStatus status = memory.status();
    wire::ReadyLine line;
    const auto add = [&line](const char* key, std::string value) { line.fields.emplace_back(key, std::move(value)); };
    add("proto", std::to_string(kProtocolVersion));
    add("model", info.file_name);
    add("identity", info.identity);
    add("arch", info.architecture);
    add("vocab", std::to_string(info.n_vocab));
    add("ctx", std::to_string(info.n_ctx));
    add("pool", std::to_string(info.n_pool));
    const bool is_bounded = n_least_pool && has_pages;
    add("kvflash", is_bounded ? std::to_string(*options.n_kvflash) : "off");
    if (is_bounded) add("kvflash_least", std::to_string(*n_least_pool));
    for (auto& [key, value] : layer_fields(layer)) add(key.c_str(), value);
    add("page", std::to_string(memory::kPageSize));
    add("kv", info.cache_type_k + "/" + info.cache_type_v);
    if (!info.cache_type_outside.empty()) add("kv_outside", info.cache_type_outside);
    add("lanes", std::to_string(options.n_lanes));
    add("slots", std::to_string(has_pages ? options.n_slots : 0));
    add("host", std::to_string(has_pages ? host_bytes : 0));
    add("disk", std::to_string(has_pages && options.disk_cache ? options.disk_budget_bytes : 0));
    if (has_pages) {
        add("page_bytes", std::to_string(status.page_bytes));
        add("tail_bytes", std::to_string(status.tail_bytes));
        add("prefix_cache", options.reuses_prefixes ? "on" : "off");
    }
    if (options.mmproj) add("images", "1");
    add("spec", speculator == nullptr ? "none" : speculator->description());
    add("pid", std::to_string(::getpid()));
    return line;
}

daemon::StatusFields describe(const ModelInfo& info, const Options& options, const memory::KvCacheManager& memory,
                              const memory::DiskStore* disk, const llama::PageScoring& scoring,
                              const StepProfile::Sums& profile, double uptime_s) {
    daemon::StatusFields fields = {{"lanes", std::to_string(options.n_lanes)},
                                   {"pool", std::to_string(info.n_pool)},
                                   {"ctx", std::to_string(info.n_ctx)},
                                   {"uptime_s", std::to_string(std::llround(uptime_s))}};
    for (auto& field : layer_fields(scoring.layer())) fields.push_back(std::move(field));
    const llama::ScorerUsage scorer = scoring.usage();
    const daemon::ScorerBytes of_scorer = {scorer.keys, scorer.weights + scorer.cells};
    const daemon::StatusFields of_memory = daemon::describe_memory(memory.status(), disk, of_scorer);
    fields.insert(fields.end(), of_memory.begin(), of_memory.end());
    const daemon::StatusFields of_time = daemon::describe_profile(profile);
    fields.insert(fields.end(), of_time.begin(), of_time.end());
    return fields;
}

}  // namespace luce::app
