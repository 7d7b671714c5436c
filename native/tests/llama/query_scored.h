// What the tests of scores by queries share: a model with its scorer.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "llama/scoring/query_scorer.h"
#include "tests/llama/llama_memory.h"

namespace luce::memory_tests {

using llama::QueryProbe;
using llama::QueryScorer;

struct Scored : Setup {
    explicit Scored(const Variant& variant = {}, std::int32_t n_pool = 1024) : Setup(variant, n_pool) {
        Result<std::unique_ptr<QueryScorer>> created = QueryScorer::create(model, kLanes, 2);
        REQUIRE_MESSAGE(created.ok(), (created ? "" : created.error().text));
        scorer = std::move(created).value();
        decoder.note_queries(&scorer->probe());
    }

    std::vector<PageKeys> keys_of(const Snapshot& snapshot) {
        std::vector<PageKeys> keys;
        for (const Bytes& page : snapshot.pages) {
            if (page.size() == kPageSize * device.traits().row_bytes) keys.push_back(scorer->keys_of(page));
        }
        return keys;
    }

    QueryProbe::Queries noted(LaneId lane) const { return scorer->probe().queries(lane); }

    std::unique_ptr<QueryScorer> scorer;
};

// None: no queries were noted.
inline std::vector<float> scores_of(Scored& s, LaneId lane, const std::vector<PageKeys>& pages) {
    return s.scorer->begin_scores(lane, {}, pages) ? s.scorer->end_scores(lane) : std::vector<float>{};
}

}  // namespace luce::memory_tests
