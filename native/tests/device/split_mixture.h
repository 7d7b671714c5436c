// A mixture of the tests' models whose experts lie in two memories of the tests' device.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "llama-model.h"
#include "llama/experts/expert_mover.h"
#include "llama/experts/split_memory.h"
#include "llama/model/backend.h"
#include "llama/model/model.h"
#include "tests/device/greedy_answer.h"
#include "tests/device/late_device.h"
#include "tests/llama/llama_memory.h"

namespace luce::tests {

inline constexpr std::size_t kGranularity = 4096;
inline constexpr std::size_t kDeviceBytes = std::size_t{1} << 30;

// What a driver may do.
struct Refusals {
    std::size_t n_maps_left = 0;  // the one that makes it zero is refused
};

// The tests' device computes with the processor, so all its addresses are the processor's; blocks are files in memory,
// which can be mapped more than once.
class PlainMemory final : public llama::SplitMemory {
public:
    PlainMemory(std::size_t n_most_on_device, Refusals& refuses) : refuses_(refuses), n_left_(n_most_on_device) {}
    PlainMemory(const PlainMemory&) = delete;
    PlainMemory& operator=(const PlainMemory&) = delete;
    ~PlainMemory() override {
        for (const Allocated& block : blocks_) ::close(block.fd);
        for (const auto& [begin, n_bytes] : ranges_) ::munmap(begin, n_bytes);
    }

    std::size_t granularity() const override { return kGranularity; }
    Result<std::byte*> reserve(std::size_t n_bytes) override {
        void* at = ::mmap(nullptr, n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        REQUIRE(at != MAP_FAILED);
        ranges_.emplace_back(static_cast<std::byte*>(at), n_bytes);
        return ranges_.back().first;
    }
    Result<Block> allocate(std::size_t n_bytes, bool on_device) override {
        CHECK(n_bytes % kGranularity == 0);
        if (on_device && n_bytes > n_left_) return Error{ErrorCode::out_of_memory, "the device is full"};
        if (on_device) n_left_ -= n_bytes;
        const int fd = ::memfd_create("experts", 0);
        REQUIRE(fd >= 0);
        REQUIRE(::ftruncate(fd, static_cast<off_t>(n_bytes)) == 0);
        blocks_.push_back({fd, n_bytes, on_device});
        return blocks_.size() - 1;
    }
    Result<void> map(std::byte* at, Block index) override {
        if (refuses_.n_maps_left > 0 && --refuses_.n_maps_left == 0) return Error{ErrorCode::out_of_memory, "refused"};
        const Allocated& block = blocks_[index];
        CHECK(!mapped_.contains(at));
        CHECK(is_within(at, block.n_bytes));
        place(at, block.n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, block.fd);
        mapped_[at] = index;
        return {};
    }
    void unmap(std::byte* at) override {
        REQUIRE(mapped_.contains(at));
        place(at, blocks_[mapped_[at]].n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1);
        mapped_.erase(at);
    }
    void wait() override {}
    bool clear(std::byte* at, std::size_t n_bytes) override {
        std::memset(at, 0, n_bytes);
        return true;
    }

    // Of the device, in all blocks that there are.
    std::size_t n_on_device() const {
        std::size_t n_bytes = 0;
        for (const Allocated& block : blocks_) n_bytes += block.on_device ? block.n_bytes : 0;
        return n_bytes;
    }

    bool write(std::byte* to, const void* from, std::size_t n_bytes) override {
        std::memcpy(to, from, n_bytes);
        return true;
    }
    bool read(void* to, const std::byte* from, std::size_t n_bytes) override {
        std::memcpy(to, from, n_bytes);
        return true;
    }

private:
    struct Allocated {
        int fd = -1;
        std::size_t n_bytes = 0;
        bool on_device = false;
    };

    bool is_within(const std::byte* at, std::size_t n_bytes) const {
        return std::ranges::any_of(ranges_, [&](const auto& range) {
            return at >= range.first && at + n_bytes <= range.first + range.second &&
                   static_cast<std::size_t>(at - range.first) % kGranularity == 0;
        });
    }
    static void place(std::byte* at, std::size_t n_bytes, int access, int flags, int fd) {
        void* placed = ::mmap(at, n_bytes, access, flags, fd, 0);
        REQUIRE(placed != MAP_FAILED);
    }

    std::vector<Allocated> blocks_;
    std::vector<std::pair<std::byte*, std::size_t>> ranges_;
    std::map<std::byte*, Block> mapped_;
    Refusals& refuses_;
    std::size_t n_left_;
};

inline Refusals& refusals() {
    static Refusals all;
    return all;
}

inline llama::PlacementOptions banked(std::size_t budget, std::size_t n_on_device = kDeviceBytes) {
    llama::PlacementOptions placement;
    placement.expert_memory_bytes = budget;
    placement.open_split_memory = [n_on_device](ggml_backend_dev_t) -> Result<std::unique_ptr<llama::SplitMemory>> {
        return std::unique_ptr<llama::SplitMemory>(std::make_unique<PlainMemory>(n_on_device, refusals()));
    };
    return placement;
}

inline Result<llama::Model> load(const std::string& name, const llama::PlacementOptions& placement,
                                 llama::ModelOptions options = {}) {
    static const llama::Backend backend;
    LateDevice::install();
    options.path = memory_tests::test_model(name.c_str());
    if (!options.n_ctx) options.n_ctx = 256;
    options.n_threads = 1;
    options.placement = placement;
    return llama::Model::load(options, true, [] {});
}

inline Tokens answer(const llama::Model& model, llama::ExpertMover* mover = nullptr,
                     const std::function<void()>& between = {}) {
    return greedy_answer(model, 24, mover, between);
}

inline std::size_t whole_bytes(const llama::Model& model) {
    std::size_t n_bytes = 0;
    for (const auto& [name, tensor] : model.model()->tensors_by_name) {
        if (name.find("_exps.weight") != std::string::npos) n_bytes += ggml_nbytes(tensor);
    }
    return n_bytes;
}

}  // namespace luce::tests
