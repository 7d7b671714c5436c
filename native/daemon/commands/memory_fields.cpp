#include "daemon/commands/memory_fields.h"

#include <cstdint>
#include <string>

#include "memory/tiers/disk_store.h"

namespace luce::daemon {
namespace {

template <typename Number>
std::string n(Number number) {
    return std::to_string(number);
}

StatusFields describe_residency(const memory::ResidencyStatus& residency, std::size_t keys_bytes,
                                std::size_t model_bytes) {
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
            {"page_choices_cut", n(residency.n_unmade)},
            {"pages_wanted", n(residency.n_wanted)},
            {"pages_found", n(residency.n_found)},
            {"page_keys_bytes", n(keys_bytes)},
            {"scorer_bytes", n(model_bytes)},
            {"page_stall_s", n(residency.stall_s)}};
}

}  // namespace

StatusFields describe_memory(const memory::MemoryStatus& status, const memory::DiskStore* disk, ScorerBytes scorer) {
    const memory::DiskStats on_disk = disk != nullptr ? disk->stats() : memory::DiskStats{};
    StatusFields fields = {
        {"slots_used", n(status.n_slots_used)},
        {"pages_resident", n(status.cache.n_resident)},
        {"pages_host", n(status.cache.n_host)},
        {"tails_host", n(status.cache.n_host_checkpoints)},
        {"host_bytes", n(status.cache.host_bytes)},
        {"pinned_bytes", n(status.cache.pinned_bytes)},
        {"pages_evicted", n(status.cache.n_evicted)},
        {"pages_dropped", n(status.cache.n_dropped)},
        {"disk_files", n(on_disk.n_files)},
        {"disk_bytes", n(on_disk.n_bytes)},
        {"disk_written", n(on_disk.n_written_files)},
        {"disk_read", n(on_disk.n_read_files)},
        {"disk_adopted", n(on_disk.n_adopted_files)},
        {"disk_corrupt", n(on_disk.n_corrupt_files)},
        {"pages_aside", n(status.n_aside_pages)},
        {"cells_spanned", n(status.n_spanned_cells)},
        {"disk_trouble", disk != nullptr && !disk->write_trouble().empty() ? disk->write_trouble() : "none"}};
    if (status.residency) {
        const StatusFields more =
            describe_residency(*status.residency, status.cache.keys_bytes + scorer.keys, scorer.model);
        fields.insert(fields.end(), more.begin(), more.end());
    }
    return fields;
}

}  // namespace luce::daemon
