// CheckpointState: the part of a lane's memory that cannot be cut by position (recurrent states, sliding windows), out
// and back in libllama's own format. Bytes may come from a disk: they are checked against that format first, because
// libllama asserts what it reads of a recurrent state (its number of cells) and believes the positions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "llama/device_copy/outbound_copies.h"
#include "llama/kv_cache/memory_parts.h"
#include "memory/tiers/blob.h"

namespace luce::llama {

class CheckpointState {
public:
    CheckpointState() = default;  // none
    CheckpointState(llama_context* context, const MemoryParts& parts);

    // Of a lane whose window is full; exact where there is no window. 0: the memory has no such part.
    std::size_t n_bytes() const;

    // What has to be copied where so that the lane's stands at the end of `state`; `heads` is what stands between the
    // tensors' bytes.
    struct Saving {
        std::vector<OutboundCopies::Piece> pieces;
        std::shared_ptr<const std::vector<std::uint8_t>> heads;
    };

    // Gives `state` its size; what was computed last need not have ended, and the pieces are to be copied behind it.
    // Errors: internal, out_of_memory.
    Result<Saving> save(std::int32_t sequence, memory::Bytes& state) const;
    // Errors: internal. Before libllama is asked nothing has changed; after its failure the lane has to be forgotten.
    Result<void> load(std::int32_t sequence, std::span<const std::uint8_t> state) const;

private:
    struct Window {
        std::size_t n_cells = 0;     // 0: none
        std::size_t n_full = 0;      // most cells that one lane's state has
        std::size_t row_bytes = 0;   // of one cell in all layers
        std::size_t head_bytes = 0;  // what stands before the rows of all layers
        bool has_ext = false;        // a cell's 2D position and token are saved as well
    };

    std::size_t window_bytes(std::size_t n_cells) const;
    Result<void> check(std::span<const std::uint8_t> state) const;

    llama_context* context_ = nullptr;
    Window window_;
    bool is_recurrent_ = false;
    std::size_t recurrent_bytes_ = 0;  // the lane's state with what stands before it, without its cell
    std::int32_t n_vocab_ = 0;
};

}  // namespace luce::llama
