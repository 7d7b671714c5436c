// DraftMemory: what a drafter remembers of the lanes' texts: it is paged, kept and put back together with the target's
// (joint_kv_device.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "llama/model/memory_refusals.h"

namespace luce::llama {

class ContextOwner;
class LlamaKvDevice;

class DraftMemory {
public:
    virtual ~DraftMemory() = default;

    // Its cells: a row for each position of a lane's text that the target has computed, once it has caught up. A draft
    // that reads the target's cells has none. REQUIRES: has_cells().
    virtual bool has_cells() const { return true; }
    virtual LlamaKvDevice& device() = 0;

    // Whose context drafts. REQUIRES: not unloaded.
    virtual const ContextOwner& owner() const = 0;

    // Compute what is still missing of the lane's text. Errors: internal, out_of_memory.
    virtual Result<void> catch_up(LaneId lane) = 0;

    // What it carries over from a lane's last token to the next one beside its cells: always of state_bytes(). Errors
    // of saving: as catch_up(); of putting it back: internal (not such a state).
    virtual std::size_t state_bytes() const { return 0; }
    virtual Result<std::vector<std::uint8_t>> save_state(LaneId) { return std::vector<std::uint8_t>(); }
    virtual Result<void> load_state(LaneId, std::span<const std::uint8_t>) { return {}; }

    // Of weights and cache types: memory with another drafter is other memory.
    virtual const std::string& identity() const = 0;

    // Whether its computations were refused memory.
    virtual MemoryRefusals& refusals() = 0;

    // Give the device's memory back, and take it again: with as many cells as the target's pool has then.
    // `keeps_weights`: all of it but the weights. Errors: start_failed.
    virtual void unload(bool keeps_weights) = 0;
    void unload() { unload(false); }
    virtual Result<void> reload() = 0;
};

}  // namespace luce::llama
