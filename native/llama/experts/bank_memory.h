// BankMemory: what lies behind the addresses of a bank's weights. Of each tensor the first part is the device's memory
// and the last the host's; between them are granules that can be either and change in place, at the addresses at which
// graphs know them. Where prompts are streamed (expert_stream.h), the weights are seen at other addresses once more,
// with a stage in place of what the host has. Knows bytes, no experts.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "llama/experts/split_memory.h"

namespace luce::llama {

// Of one tensor, in bytes; multiples of the granularity.
struct TensorSpan {
    std::size_t least_device = 0;  // always on the device
    std::size_t most_device = 0;   // to begin with
    std::size_t total = 0;

    std::size_t host_bytes() const { return total - most_device; }  // always there
    std::size_t movable_bytes() const { return most_device - least_device; }
};

// Of a stage that can hold the host's part of each of them.
std::size_t stage_bytes(std::span<const TensorSpan> tensors);

class BankMemory {
public:
    explicit BankMemory(std::shared_ptr<SplitMemory> memory) : memory_(std::move(memory)) {}

    // Once. `n_stages`: 0 where nothing is streamed. Errors: out_of_memory.
    Result<void> map(std::span<const TensorSpan> tensors, std::size_t n_stages);

    std::byte* base() const { return base_; }
    std::size_t n_bytes() const { return n_bytes_; }  // of addresses
    std::byte* weight(std::size_t tensor) const { return places_[tensor].weight; }
    std::byte* seen(std::size_t tensor) const { return places_[tensor].seen; }  // REQUIRES: stages
    std::size_t stage(std::size_t tensor) const { return places_[tensor].stage; }
    const TensorSpan& span(std::size_t tensor) const { return places_[tensor].span; }
    const std::shared_ptr<SplitMemory>& memory() const { return memory_; }

    // Granules of the device that nothing is mapped to.
    std::vector<SplitMemory::Block>& spare() { return spare_; }
    std::size_t n_spare() const { return spare_.size(); }

    // The tensor's border moves: the granules on the way change their kind, with their bytes; the device's come from
    // the spare ones, or become such. Nothing may be running. REQUIRES: they can move, and as many are spare as it
    // takes. Errors: out_of_memory (nothing has changed). Throws where an address is left with nothing behind it.
    Result<void> move_border(std::size_t tensor, std::size_t from_bytes, std::size_t to_bytes);

private:
    struct Place {
        TensorSpan span;
        std::byte* weight = nullptr;
        std::byte* seen = nullptr;
        std::byte* home = nullptr;  // of the host's blocks of what can move, whether they are in use or not
        std::size_t stage = 0;
        std::vector<SplitMemory::Block> on_host = {};
        std::vector<SplitMemory::Block> on_device = {};  // while they are in use
    };

    // A block for each granule that can move, and one for all that the host always has.
    struct Stage {
        std::vector<SplitMemory::Block> movable;
        std::optional<SplitMemory::Block> rest;
        std::size_t rest_bytes = 0;
    };

    Result<void> make_stages(std::span<const TensorSpan> tensors, std::size_t n_stages);
    Result<void> reserve();
    Result<void> map(Place& place);
    Result<void> map_new(std::byte* at, std::byte* again, std::size_t n_bytes, bool on_device);
    Result<void> to_host(Place& place, std::size_t granule);
    void to_device(Place& place, std::size_t granule);
    Result<void> change(std::byte* at, SplitMemory::Block from, SplitMemory::Block to);

    std::shared_ptr<SplitMemory> memory_;
    std::byte* base_ = nullptr;
    std::size_t n_bytes_ = 0;
    std::vector<Place> places_;
    std::vector<Stage> stages_;
    std::vector<SplitMemory::Block> spare_;
};

}  // namespace luce::llama
