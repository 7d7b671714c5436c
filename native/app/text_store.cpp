#include "app/text_store.h"

#include <algorithm>
#include <string>
#include <utility>

#include "app/scoring.h"
#include "base/log.h"
#include "daemon/setup/host_memory.h"
#include "daemon/setup/residency_setup.h"
#include "llama/model/model_identity.h"

namespace luce::app {

namespace {

using daemon::Options;
using llama::ModelInfo;

constexpr std::size_t kMaxQueuedFileBytes = std::size_t{1} << 30;  // rows that wait for the disk
constexpr std::uint64_t kPinnedPart = 4;  // of the free memory, for pages that a device fetches: lost to all others

bool has_other_ids(const Options& options) { return options.mmproj || options.prefill_scorer; }

// The disk cache, if one was asked for and the model's memory can be cut into pages.
Result<std::unique_ptr<memory::DiskStore>> open_disk(const Options& options, const ModelInfo& info,
                                                     memory::KvDevice& device, memory::IoWorker& files,
                                                     const Clock& clock) {
    const memory::DeviceTraits& traits = device.traits();
    if (!options.disk_cache || traits.refusal) return std::unique_ptr<memory::DiskStore>();
    memory::DiskOptions disk;
    disk.directory = *options.disk_cache;
    disk.budget_bytes = options.disk_budget_bytes;
    disk.identity = info.identity;
    disk.limits = {traits.row_bytes, traits.max_state_bytes(), info.n_vocab, has_other_ids(options)};
    disk.settle = [&device] { device.settle(); };
    return memory::DiskStore::open(std::move(disk), files, clock);
}

// Where a device fetches pages by itself. Null: it has no use for that.
std::unique_ptr<llama::PinnedMemory> pin_pages(ggml_backend_dev_t device, const memory::DeviceTraits& traits,
                                               std::size_t host_budget) {
    const std::size_t page_bytes = memory::kPageSize * traits.row_bytes;
    const std::size_t limit = std::min(host_budget, daemon::available_bytes() / kPinnedPart);
    return llama::PinnedMemory::create(device, page_bytes, limit);
}

memory::MemoryConfig to_memory_config(const Options& options, const ModelInfo& info) {
    memory::MemoryConfig config;
    config.identity = info.identity;
    config.host_budget = options.host_cache_bytes.value_or(daemon::default_host_cache_bytes());
    config.n_slots = options.n_slots;
    config.n_vocab = info.n_vocab;
    config.has_other_ids = has_other_ids(options);
    config.reuses = options.reuses_prefixes;
    return config;
}

}  // namespace

TextStore::TextStore(const llama::Model& model, std::int32_t n_lanes) : target_(model, n_lanes) {
    if (const auto& refusal = target_.traits().refusal) log_warn("texts are not kept: " + *refusal);
}

Result<void> TextStore::open(const Options& options, const llama::Model& model, ModelInfo& info,
                             llama::LlamaDecoder& decoder, const Drafting& drafting, const Clock& clock, int reply_fd) {
    if (options.host_cache_type) {
        if (const auto known = llama::check_packed_type(*options.host_cache_type); !known) return known.error();
    }
    memory::KvDevice& device = join(options, drafting, info);
    if (const auto opened = open_files(options, info, device, clock); !opened) return opened.error();
    memory::MemoryConfig config = to_memory_config(options, info);
    if (const auto bounded = daemon::bound_residency(options, info.n_ctx, device.traits(), config); !bounded) {
        return bounded.error();
    }
    host_budget_ = config.host_budget;
    n_least_pool_ = daemon::least_pool(options, device.traits());
    if (!packed_) pinned_ = pin_pages(target_.device(), device.traits(), config.host_budget);
    Result<llama::PageScoring> scoring = open_scoring(options, model, reply_fd);
    if (!scoring) return scoring.error();
    scoring_ = std::move(scoring).value();
    decoder.note_queries(scoring_.probe());
    if (config.residency) config.residency->scorer = scoring_.scorer();
    memory_.emplace(device, disk_.get(), config, clock);
    return {};
}

// The device that pages are cut from, and under whose name they are known.
memory::KvDevice& TextStore::join(const Options& options, const Drafting& drafting, ModelInfo& info) {
    if (drafting.memory != nullptr && drafting.memory->has_cells() && !target_.traits().refusal) {
        combined_.emplace(target_, *drafting.memory);
        info.identity = llama::joint_identity(info.identity, drafting.memory->identity());
    }
    // What was computed without seeing all of a text is not what others may go on from.
    if (options.n_kvflash) info.identity = llama::joint_identity(info.identity, "bounded residency");
    memory::KvDevice& device = combined_ ? static_cast<memory::KvDevice&>(*combined_) : target_;
    return options.host_cache_type ? pack(*options.host_cache_type, device, info) : device;
}

// What had fewer bits in between is not what others may go on from who want them all.
memory::KvDevice& TextStore::pack(const std::string& type, memory::KvDevice& device, ModelInfo& info) {
    llama::RowPacker packer = target_.packer(type);
    if (packer.row_bytes() == packer.raw_row_bytes()) {
        log_warn("--host-cache-type " + type + " is not used: it is not smaller than what the cache has");
        return device;
    }
    info.identity = llama::joint_identity(info.identity, "packed as " + type);
    info.cache_type_outside = type;
    return packed_.emplace(device, std::move(packer), static_cast<std::size_t>(info.n_threads));
}

Result<void> TextStore::open_files(const Options& options, const ModelInfo& info, memory::KvDevice& device,
                                   const Clock& clock) {
    auto files = memory::IoWorker::start(kMaxQueuedFileBytes);
    if (!files) return files.error();
    files_ = std::move(files).value();
    auto disk = open_disk(options, info, device, *files_, clock);
    if (!disk) return disk.error();
    disk_ = std::move(disk).value();
    return {};
}

}  // namespace luce::app
