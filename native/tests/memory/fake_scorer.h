// A scorer whose likings are a hash of the page's first row and of how often it was asked: they change with each
// choice, so pages move all the time. One that needs no keys hashes the page's last token instead, and says what it was
// given to read.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "memory/residency/page_scorer.h"

namespace luce::tests {

class FakeScorer final : public memory::PageScorer {
public:
    // Without rows of which keys could be made it needs none.
    explicit FakeScorer(std::size_t row_bytes) : row_bytes_(row_bytes) {}

    bool needs_keys() const override { return row_bytes_ > 0; }

    memory::PageKeys keys_of(std::span<const std::uint8_t> rows) override {
        if (!needs_keys()) misuse = "keys are made for a scorer that needs none";
        if (rows.size() != row_bytes_ * memory::kPageSize) misuse = "keys are made of something else than a page";
        return std::make_shared<memory::Bytes>(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(row_bytes_));
    }

    void watch(LaneId lane, bool is_watched) override {
        if (watched_[lane] == is_watched) misuse = "a lane is watched twice";
        watched_[lane] = is_watched;
    }

    void read(LaneId lane, std::span<const Token> text) override { note(lane, text); }

    bool begin_scores(LaneId lane, std::span<const Token> text, std::vector<memory::PageKeys> pages) override {
        note(lane, text);
        if (text.size() < pages.size() * memory::kPageSize) misuse = "pages are scored that the text does not have";
        if (under_way_.contains(lane)) misuse = "scores of a lane are asked for twice";
        if (!watched_[lane]) return false;
        ++n_asked;
        under_way_[lane] = scores(text, pages);
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
        texts_.erase(lane);
    }

    std::optional<std::string> misuse;
    std::uint64_t n_asked = 0;

private:
    // Until it is forgotten a lane's text only grows.
    void note(LaneId lane, std::span<const Token> text) {
        Tokens& known = texts_[lane];
        const std::size_t n_both = std::min(known.size(), text.size());
        if (!std::equal(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(n_both), known.begin())) {
            misuse = "a lane's text is another one without having been forgotten";
        }
        if (text.size() > n_both) known.assign(text.begin(), text.end());
    }

    std::vector<float> scores(std::span<const Token> text, std::span<const memory::PageKeys> pages) {
        std::vector<float> scores;
        for (std::size_t i = 0; i < pages.size(); ++i) {
            const memory::PageKeys& keys = pages[i];
            if ((keys != nullptr) != needs_keys() || (keys != nullptr && keys->size() != row_bytes_)) {
                misuse = "a page is scored without the keys that are needed, or with others";
                return {};
            }
            std::uint64_t hash = static_cast<std::uint64_t>(text[(i + 1) * memory::kPageSize - 1]) + i;
            if (keys != nullptr) std::memcpy(&hash, keys->data() + row_bytes_ - sizeof hash, sizeof hash);
            hash = (hash ^ (n_asked * 0x9e3779b97f4a7c15ULL)) * 0xff51afd7ed558ccdULL;
            scores.push_back(static_cast<float>(hash >> 40));
        }
        return scores;
    }

    std::size_t row_bytes_;
    std::map<LaneId, std::vector<float>> under_way_;
    std::map<LaneId, bool> watched_;
    std::map<LaneId, Tokens> texts_;
};

}  // namespace luce::tests
