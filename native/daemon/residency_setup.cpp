#include "daemon/residency_setup.h"

#include <cstdint>
#include <string>

#include "base/log.h"
#include "daemon/host_memory.h"

namespace luce::daemon {

Result<void> bound_residency(const Options& options, std::int32_t n_ctx, const memory::DeviceTraits& traits,
                             memory::MemoryConfig& config) {
    if (!options.n_kvflash) return {};
    if (traits.refusal) return Error{ErrorCode::start_failed, "--kvflash: " + *traits.refusal};
    if (traits.row_bytes == 0) {
        return Error{ErrorCode::start_failed,
                     "--kvflash: this model (" + traits.kind + ") has no attention cache; its memory does not grow"};
    }
    memory::ResidencyConfig residency;
    residency.rules.tau = options.kvflash_tau;
    residency.n_least = memory::least_cells(residency.rules, options.n_ubatch);
    config.residency = residency;
    const std::size_t n_whole = traits.row_bytes * static_cast<std::size_t>(n_ctx);
    if (config.host_budget >= n_whole) return {};
    const std::string needed = "a text of --ctx " + std::to_string(n_ctx) + " tokens takes " + std::to_string(n_whole) +
                               " bytes of the host's memory";
    if (options.host_cache_bytes || n_whole > available_bytes() / 4 * 3) {
        return Error{ErrorCode::bad_args, "--kvflash: " + needed + "; give --host-cache as much, or a smaller --ctx"};
    }
    log_info("--host-cache is " + std::to_string(n_whole + n_whole / 4) + " bytes: " + needed);
    config.host_budget = n_whole + n_whole / 4;
    return {};
}

StatusFields describe_residency(const memory::MemoryStatus& status) {
    if (!status.residency) return {};
    const memory::ResidencyStatus& residency = *status.residency;
    const auto n = [](auto number) { return std::to_string(number); };
    std::int64_t n_out = 0;
    std::string lanes;  // lane:resident/host/disk, …
    for (const memory::LanePages& of : residency.lanes) {
        n_out += of.n_host;
        lanes += (lanes.empty() ? "" : ",") + n(static_cast<std::int32_t>(of.lane)) + ":" + n(of.n_resident) + "/" +
                 n(of.n_host) + "/" + n(of.n_disk);
    }
    return {{"pages_out", n(n_out)},
            {"lane_pages", lanes.empty() ? "none" : lanes},
            {"pages_moved_in", n(residency.n_moved_in)},
            {"pages_moved_out", n(residency.n_moved_out)},
            {"page_bytes_in", n(residency.n_bytes_in)},
            {"page_bytes_out", n(residency.n_bytes_out)},
            {"page_choices", n(residency.n_choices)},
            {"pages_wanted", n(residency.n_wanted)},
            {"pages_found", n(residency.n_found)},
            {"page_keys_bytes", n(status.cache.keys_bytes)},
            {"page_stall_s", n(residency.stall_s)}};
}

}  // namespace luce::daemon
