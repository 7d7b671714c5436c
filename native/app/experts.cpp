#include "app/experts.h"

#include <filesystem>
#include <string>
#include <system_error>

#include "llama/experts/elastic_cache.h"
#include "llama/experts/expert_bank.h"

namespace luce::app {

std::unique_ptr<llama::ExpertMover> open_experts(const daemon::Options& options, const llama::Model& model) {
    if (model.experts() == nullptr) return nullptr;
    llama::ExpertMoverOptions mover;
    const std::string& identity = model.experts()->known().identity;
    if (!options.keeps_experts_in_place) {
        mover.profile = experts::profile_file(options.expert_profile, options.expert_profiles, identity);
    }
    std::error_code failed;  // told when the profile is written
    if (options.expert_profiles) std::filesystem::create_directories(*options.expert_profiles, failed);
    mover.moves = !options.keeps_experts_in_place;
    return std::make_unique<llama::ExpertMover>(model, mover);
}

void describe(const llama::Model& model, const llama::ExpertMover& mover, daemon::StatusFields& fields) {
    const llama::ExpertBank& bank = *model.experts();
    if (!bank.is_split()) return;
    const experts::ExpertLayout& layout = bank.layout();
    const llama::ExpertCounts& counts = mover.counts();
    const auto add = [&fields](const char* name, auto value) { fields.push_back({name, std::to_string(value)}); };
    add("experts", layout.n_experts());
    add("experts_resident", layout.n_resident());
    add("experts_least", bank.least_resident());
    add("experts_most", bank.most_resident());
    add("experts_device_bytes", layout.device_bytes());
    add("experts_host_bytes", layout.host_bytes());
    add("expert_hits", counts.reads.n_hits);
    add("expert_misses", counts.reads.n_misses);
    add("expert_exchanges", counts.n_exchanges);
    add("expert_moved_bytes", counts.n_moved_bytes);
    add("expert_wait_s", counts.waited_s);
    if (const llama::ElasticCache* cache = model.elastic_cache()) {
        add("cache_cells", cache->n_cells());
        add("cache_bytes", cache->n_mapped_bytes());
    }
}

}  // namespace luce::app
