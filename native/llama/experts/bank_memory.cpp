#include "llama/experts/bank_memory.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace luce::llama {
namespace {

std::size_t most(std::span<const TensorSpan> tensors, std::size_t (TensorSpan::*bytes)() const) {
    std::size_t n_bytes = 0;
    for (const TensorSpan& tensor : tensors) n_bytes = std::max(n_bytes, (tensor.*bytes)());
    return n_bytes;
}

Error no_copies() { return {ErrorCode::out_of_memory, "the driver does not copy the experts' weights"}; }

// An address without memory would end the process at the next computation, with fewer words.
[[noreturn]] void give_up(const Error& why) {
    throw std::runtime_error("the experts' memory is in pieces: " + why.text);
}

}  // namespace

std::size_t stage_bytes(std::span<const TensorSpan> tensors) {
    return most(tensors, &TensorSpan::movable_bytes) + most(tensors, &TensorSpan::host_bytes);
}

Result<void> BankMemory::map(std::span<const TensorSpan> tensors, std::size_t n_stages) {
    for (const TensorSpan& span : tensors) {
        places_.push_back({.span = span, .stage = n_stages == 0 ? 0 : places_.size() % n_stages});
    }
    if (Result<void> made = make_stages(tensors, n_stages); !made) return made;
    if (Result<void> reserved = reserve(); !reserved) return reserved;
    for (Place& place : places_) {
        if (Result<void> mapped = map(place); !mapped) return mapped;
    }
    return {};
}

Result<void> BankMemory::make_stages(std::span<const TensorSpan> tensors, std::size_t n_stages) {
    const std::size_t granularity = memory_->granularity();
    stages_.resize(n_stages);
    for (Stage& stage : stages_) {
        stage.rest_bytes = most(tensors, &TensorSpan::host_bytes);
        for (std::size_t n = most(tensors, &TensorSpan::movable_bytes) / granularity; n > 0; --n) {
            const Result<SplitMemory::Block> block = memory_->allocate(granularity, true);
            if (!block) return block.error();
            stage.movable.push_back(block.value());
        }
        if (stage.rest_bytes == 0) continue;
        const Result<SplitMemory::Block> block = memory_->allocate(stage.rest_bytes, true);
        if (!block) return block.error();
        stage.rest = block.value();
    }
    return {};
}

// All weights, then how prompts see them, then the homes.
Result<void> BankMemory::reserve() {
    const std::size_t rest_bytes = stages_.empty() ? 0 : stages_.front().rest_bytes;
    for (const Place& place : places_) {
        n_bytes_ += place.span.total + place.span.movable_bytes();
        n_bytes_ += stages_.empty() ? 0 : place.span.most_device + rest_bytes;
    }
    Result<std::byte*> reserved = memory_->reserve(n_bytes_);
    if (!reserved) return reserved.error();
    std::byte* next = base_ = reserved.value();
    for (Place& place : places_) {
        place.weight = next;
        next += place.span.total;
    }
    for (Place& place : places_) {
        place.seen = next;
        next += stages_.empty() ? 0 : place.span.most_device + rest_bytes;
    }
    for (Place& place : places_) {
        place.home = next;
        next += place.span.movable_bytes();
    }
    return {};
}

Result<void> BankMemory::map_new(std::byte* at, std::byte* again, std::size_t n_bytes, bool on_device) {
    if (n_bytes == 0) return {};
    const Result<SplitMemory::Block> block = memory_->allocate(n_bytes, on_device);
    if (!block) return block.error();
    if (Result<void> mapped = memory_->map(at, block.value()); !mapped) return mapped;
    return again == nullptr ? Result<void>() : memory_->map(again, block.value());
}

// What the host may have to take later it has from the start: then it cannot fail for want of it.
Result<void> BankMemory::map(Place& place) {
    const TensorSpan& span = place.span;
    const std::size_t granularity = memory_->granularity();
    const bool is_seen = !stages_.empty();
    Result<void> done = map_new(place.weight, is_seen ? place.seen : nullptr, span.least_device, true);
    for (std::size_t at = span.least_device; done && at < span.most_device; at += granularity) {
        const Result<SplitMemory::Block> device = memory_->allocate(granularity, true);
        if (!device) return device.error();
        const Result<SplitMemory::Block> host = memory_->allocate(granularity, false);
        if (!host) return host.error();
        place.on_device.push_back(device.value());
        place.on_host.push_back(host.value());
        done = memory_->map(place.weight + at, device.value());
        if (done && is_seen) done = memory_->map(place.seen + at, device.value());
        if (done) done = memory_->map(place.home + (at - span.least_device), host.value());
    }
    if (done) done = map_new(place.weight + span.most_device, nullptr, span.host_bytes(), false);
    if (done && is_seen && stages_[place.stage].rest) {
        done = memory_->map(place.seen + span.most_device, *stages_[place.stage].rest);
    }
    return done;
}

Result<void> BankMemory::move_border(std::size_t tensor, std::size_t from_bytes, std::size_t to_bytes) {
    Place& place = places_[tensor];
    const auto granule_at = [&](std::size_t n_bytes) {
        return (n_bytes - place.span.least_device) / memory_->granularity();
    };
    const std::size_t first = granule_at(from_bytes);
    const std::size_t last = granule_at(to_bytes);
    for (std::size_t granule = first; granule < last; ++granule) to_device(place, granule);
    for (std::size_t granule = first; granule > last; --granule) {
        Result<void> done = to_host(place, granule - 1);
        if (done) continue;
        for (; granule < first; ++granule) to_device(place, granule);
        return done;
    }
    return {};
}

Result<void> BankMemory::change(std::byte* at, SplitMemory::Block from, SplitMemory::Block to) {
    memory_->unmap(at);
    Result<void> mapped = memory_->map(at, to);
    if (!mapped && !memory_->map(at, from)) give_up(mapped.error());
    return mapped;
}

Result<void> BankMemory::to_host(Place& place, std::size_t granule) {
    const std::size_t within = granule * memory_->granularity();
    std::byte* weight = place.weight + place.span.least_device + within;
    const SplitMemory::Block device = place.on_device[granule];
    const SplitMemory::Block host = place.on_host[granule];
    if (!memory_->read(place.home + within, weight, memory_->granularity())) return no_copies();
    if (Result<void> done = change(weight, device, host); !done) return done;
    if (!stages_.empty()) {
        std::byte* seen = place.seen + place.span.least_device + within;
        Result<void> done = change(seen, device, stages_[place.stage].movable[granule]);
        if (!done && !change(weight, host, device)) give_up(done.error());
        if (!done) return done;
    }
    spare_.push_back(device);
    return {};
}

void BankMemory::to_device(Place& place, std::size_t granule) {
    const std::size_t within = granule * memory_->granularity();
    std::byte* weight = place.weight + place.span.least_device + within;
    const SplitMemory::Block device = place.on_device[granule] = spare_.back();
    spare_.pop_back();
    Result<void> done = change(weight, place.on_host[granule], device);
    if (done && !stages_.empty()) {
        std::byte* seen = place.seen + place.span.least_device + within;
        done = change(seen, stages_[place.stage].movable[granule], device);
    }
    if (done && !memory_->write(weight, place.home + within, memory_->granularity())) done = no_copies();
    if (!done) give_up(done.error());
}

}  // namespace luce::llama
