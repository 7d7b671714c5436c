// TextStore: where texts are kept: the device's cells with the draft's beside them, pages in the host, files. Puts the
// parts of memory/ and llama/ together by the options. Not to be moved: its parts point to each other.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "app/drafting.h"
#include "base/clock.h"
#include "base/result.h"
#include "daemon/setup/options.h"
#include "llama/decoding/llama_decoder.h"
#include "llama/device_copy/pinned_memory.h"
#include "llama/kv_cache/combined_kv_device.h"
#include "llama/kv_cache/kv_device.h"
#include "llama/kv_cache/packed_kv_device.h"
#include "llama/model/model.h"
#include "llama/scoring/page_scoring.h"
#include "memory/manager/kv_cache_manager.h"
#include "memory/tiers/disk_store.h"
#include "memory/tiers/io_worker.h"

namespace luce::app {

class TextStore {
public:
    TextStore(const llama::Model& model, std::int32_t n_lanes);
    TextStore(const TextStore&) = delete;
    TextStore& operator=(const TextStore&) = delete;

    // Once, before anything else is asked for. `info` gets the identity of what is kept.
    Result<void> open(const daemon::Options& options, const llama::Model& model, llama::ModelInfo& info,
                      llama::LlamaDecoder& decoder, const Drafting& drafting, const Clock& clock, int reply_fd);

    memory::KvCacheManager& memory() { return *memory_; }
    memory::IoWorker& files() { return *files_; }
    memory::DiskStore* disk() { return disk_.get(); }  // null: none was asked for
    llama::PageScoring& scoring() { return scoring_; }
    std::optional<std::int32_t> n_least_pool() const { return n_least_pool_; }  // of `--kv-offload`
    llama::LlamaKvDevice& target() { return target_; }
    llama::CombinedKvDevice* combined() { return combined_ ? &*combined_ : nullptr; }
    llama::PackedKvDevice* packed() { return packed_ ? &*packed_ : nullptr; }
    std::size_t host_budget() const { return host_budget_; }

private:
    memory::KvDevice& join(const daemon::Options& options, const Drafting& drafting, llama::ModelInfo& info);
    memory::KvDevice& pack(const std::string& type, memory::KvDevice& device, llama::ModelInfo& info);
    Result<void> open_files(const daemon::Options& options, const llama::ModelInfo& info, memory::KvDevice& device,
                            const Clock& clock);

    std::unique_ptr<llama::PinnedMemory> pinned_;  // outlives whatever holds rows
    llama::LlamaKvDevice target_;
    std::optional<llama::CombinedKvDevice> combined_;  // the target's and the draft's
    std::optional<llama::PackedKvDevice> packed_;      // either, with fewer bits outside
    std::unique_ptr<memory::IoWorker> files_;
    std::unique_ptr<memory::DiskStore> disk_;
    std::size_t host_budget_ = 0;
    std::optional<std::int32_t> n_least_pool_;
    llama::PageScoring scoring_;
    std::optional<memory::KvCacheManager> memory_;
};

}  // namespace luce::app
