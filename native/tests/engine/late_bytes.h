// LateBytes: copies whose bytes come when somebody waits for them, on whatever thread, and are garbage before.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace luce::tests {

class LateBytes {
public:
    // `owner` has `out`, and lives until then.
    void send(std::vector<std::uint8_t> bytes, std::span<std::uint8_t> out, std::shared_ptr<const void> owner) {
        std::fill(out.begin(), out.end(), std::uint8_t{0xa5});
        const std::lock_guard lock(mutex_);
        copies_.push_back({std::move(bytes), out.data(), std::move(owner)});
    }

    void settle() {
        const std::lock_guard lock(mutex_);
        for (const Copy& copy : copies_) std::copy(copy.bytes.begin(), copy.bytes.end(), copy.out);
        copies_.clear();
    }

private:
    struct Copy {
        std::vector<std::uint8_t> bytes;
        std::uint8_t* out;
        std::shared_ptr<const void> owner;
    };

    std::mutex mutex_;
    std::vector<Copy> copies_;
};

}  // namespace luce::tests
