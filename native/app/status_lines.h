// What luced says of itself: the ready line and the fields of `status`. Reads what other parts know; decides nothing.
#pragma once

#include <cstdint>
#include <optional>

#include "base/step_profile.h"
#include "daemon/commands/memory_fields.h"
#include "daemon/setup/options.h"
#include "engine/speculator.h"
#include "llama/model/model.h"
#include "llama/scoring/page_scoring.h"
#include "memory/manager/kv_cache_manager.h"
#include "memory/tiers/disk_store.h"
#include "wire/reply.h"

namespace luce::app {

inline constexpr int kProtocolVersion = 2;

// `n_least_pool`: tokens of the smallest pool that works, where texts may outgrow it.
wire::ReadyLine ready_line(const llama::ModelInfo& info, const daemon::Options& options,
                           std::optional<std::int32_t> n_least_pool, const memory::KvCacheManager& memory,
                           std::uint64_t host_bytes, const engine::Speculator* speculator,
                           const std::optional<llama::LayerChoice>& layer);

daemon::StatusFields describe(const llama::ModelInfo& info, const daemon::Options& options,
                              const memory::KvCacheManager& memory, const memory::DiskStore* disk,
                              const llama::PageScoring& scoring, const StepProfile::Sums& profile, double uptime_s);

}  // namespace luce::app
