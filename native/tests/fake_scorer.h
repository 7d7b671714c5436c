// A scorer whose likings are a hash of the page's first row and of how often it was asked: they change with each
// choice, so pages move all the time.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "memory/page_scorer.h"

namespace luce::tests {

class FakeScorer final : public memory::PageScorer {
public:
    explicit FakeScorer(std::size_t row_bytes) : row_bytes_(row_bytes) {}

    std::size_t keys_bytes() const override { return row_bytes_; }

    memory::PageKeys keys_of(std::span<const std::uint8_t> rows) override {
        if (rows.size() != row_bytes_ * memory::kPageSize) misuse = "keys are made of something else than a page";
        return std::make_shared<memory::Bytes>(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(row_bytes_));
    }

    void watch(LaneId lane, bool is_watched) override {
        if (watched_[lane] == is_watched) misuse = "a lane is watched twice";
        watched_[lane] = is_watched;
    }

    bool begin_scores(LaneId lane, std::vector<memory::PageKeys> pages) override {
        if (under_way_.contains(lane)) misuse = "scores of a lane are asked for twice";
        if (!watched_[lane]) return false;
        ++n_asked;
        under_way_[lane] = scores(pages);
        return true;
    }

    std::vector<float> end_scores(LaneId lane) override {
        if (!under_way_.contains(lane)) misuse = "scores are waited for that nobody asked for";
        std::vector<float> scores = std::move(under_way_[lane]);
        under_way_.erase(lane);
        return scores;
    }

    void forget(LaneId lane) override {
        watched_[lane] = false;
        under_way_.erase(lane);
    }

    std::optional<std::string> misuse;
    std::uint64_t n_asked = 0;

private:
    std::vector<float> scores(std::span<const memory::PageKeys> pages) {
        std::vector<float> scores;
        for (const memory::PageKeys& keys : pages) {
            if (keys == nullptr || keys->size() != row_bytes_) {
                misuse = "a page without keys is scored";
                return {};
            }
            std::uint64_t hash = 0;
            std::memcpy(&hash, keys->data() + row_bytes_ - sizeof hash, sizeof hash);
            hash = (hash ^ (n_asked * 0x9e3779b97f4a7c15ULL)) * 0xff51afd7ed558ccdULL;
            scores.push_back(static_cast<float>(hash >> 40));
        }
        return scores;
    }

    std::size_t row_bytes_;
    std::map<LaneId, std::vector<float>> under_way_;
    std::map<LaneId, bool> watched_;
};

}  // namespace luce::tests
