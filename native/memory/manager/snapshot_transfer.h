// SnapshotTransfer: turns slots into the contents of snapshot files, and contents back into slots. The files themselves
// are written and read elsewhere, off this thread.
#pragma once

#include <cstdint>
#include <optional>

#include "base/result.h"
#include "memory/manager/kv_cache_types.h"
#include "memory/snapshots/snapshot_file.h"

namespace luce::memory {

class SnapshotTransfer {
public:
    // All must outlive it. uses_scores: whether how much pages matter is of use.
    SnapshotTransfer(KvDevice& device, PrefixTree& tree, PageCache& cache, Slots& slots, EvictionPolicy& policy,
                     std::int32_t n_vocab, bool has_other_ids, bool uses_scores)
        : device_(device),
          tree_(tree),
          cache_(cache),
          slots_(slots),
          policy_(policy),
          n_vocab_(n_vocab),
          has_other_ids_(has_other_ids),
          uses_scores_(uses_scores) {}

    // Errors: bad_slot, empty_slot, unsupported, out_of_memory, internal; and bad_slot, no_room, bad_snapshot.
    Result<SnapshotContents> contents_of(std::int32_t number);
    Result<Position> adopt(std::int32_t number, const SnapshotContents& contents);
    TierLimits limits() const;

private:
    std::optional<EarlierCheckpoint> prompt_end_of(const Slot& slot) const;

    KvDevice& device_;
    PrefixTree& tree_;
    PageCache& cache_;
    Slots& slots_;
    EvictionPolicy& policy_;
    std::int32_t n_vocab_;
    bool has_other_ids_;
    bool uses_scores_;
};

}  // namespace luce::memory
