// Bytes of a page's size lie in the blocks that were asked for, as long as there are some; others do not.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "memory/pages/block_source.h"
#include "memory/tiers/blob.h"

TEST_SUITE("memory") {

using namespace luce::memory;

namespace {

class FewBlocks final : public BlockSource {
public:
    explicit FewBlocks(std::size_t n) : blocks_(n, std::vector<std::uint8_t>(kBytes)) {
        for (auto& block : blocks_) free_.insert(block.data());
        use_blocks_of(this);
    }
    ~FewBlocks() override { use_blocks_of(nullptr); }

    static constexpr std::size_t kBytes = 4096;

    std::size_t block_bytes() const override { return kBytes; }
    void* take() override {
        const std::lock_guard lock(mutex_);
        if (free_.empty()) return nullptr;
        void* block = *free_.begin();
        free_.erase(block);
        return block;
    }
    bool owns(const void* pointer) const override {
        for (const auto& block : blocks_) {
            if (pointer >= block.data() && pointer < block.data() + kBytes) return true;
        }
        return false;
    }
    bool is_ready() override { return true; }
    void give_back(void* block) override {
        const std::lock_guard lock(mutex_);
        if (!free_.insert(block).second) is_misused = true;
    }

    std::size_t n_free() const { return free_.size(); }
    bool is_misused = false;

private:
    std::vector<std::vector<std::uint8_t>> blocks_;
    std::mutex mutex_;
    std::set<void*> free_;
};

}  // namespace

TEST_CASE("bytes of a block's size come from the source until it has none, and go back to it") {
    FewBlocks source(2);
    {
        Bytes first(FewBlocks::kBytes);
        const Bytes second(FewBlocks::kBytes);
        const Bytes third(FewBlocks::kBytes);
        const Bytes other(FewBlocks::kBytes + 1);
        CHECK(lies_in_block(first.data()));
        CHECK(lies_in_block(second.data() + FewBlocks::kBytes - 1));
        CHECK_FALSE(lies_in_block(third.data()));
        CHECK_FALSE(lies_in_block(other.data()));
        CHECK(source.n_free() == 0);
        first[FewBlocks::kBytes - 1] = 7;
        const Bytes moved = std::move(first);
        CHECK(moved[FewBlocks::kBytes - 1] == 7);
    }
    CHECK(source.n_free() == 2);
    CHECK_FALSE(source.is_misused);
}

TEST_CASE("without a source nothing lies in a block") {
    const Bytes bytes(FewBlocks::kBytes);
    CHECK_FALSE(lies_in_block(bytes.data()));
}

TEST_CASE("blobs that end on several threads give their blocks back") {
    FewBlocks source(8);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([i] {
            for (int round = 0; round < 500; ++round) {
                Bytes bytes(FewBlocks::kBytes);
                bytes[0] = static_cast<std::uint8_t>(i);
                const auto blob = std::make_shared<const Bytes>(std::move(bytes));
                if ((*blob)[0] != i) std::abort();
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(source.n_free() == 8);
    CHECK_FALSE(source.is_misused);
}

}  // TEST_SUITE("memory")
