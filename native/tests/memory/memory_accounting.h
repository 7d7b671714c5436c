// What the random player of memory_player.h expects: what a slot holds, what a request must answer, what a restore must
// say. A simple model, without pages.
#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "engine/engine.h"
#include "tests/engine/fake_model.h"

namespace luce::tests {

using namespace luce::engine;

inline constexpr std::int32_t kSlots = 6;
inline constexpr std::int32_t kMaxText = 300;

struct PlayOptions {
    bool has_state = false;
    bool fails = false;  // the device refuses now and then
    std::optional<std::filesystem::path> folder;
    std::size_t host_budget = 0;
    std::int32_t n_ctx = 0;
    std::int32_t n_pool = 0;
    std::int32_t n_lanes = 0;
    std::int32_t n_text = kMaxText;                   // of the families of texts
    std::optional<memory::ResidencyRules> residency;  // lanes need not see all of their texts
    bool has_scorer = false;
    bool needs_keys = true;  // the scorer
};

struct HeldText {
    Tokens text;
    Position begin = 0;
};

struct Live {
    Request request;
    Tokens answer;
    std::map<std::int32_t, std::uint64_t> slot_versions;  // of the slots that it names, when it was submitted
    std::multiset<std::int32_t> unreported;               // slots of snap=
    std::map<std::int32_t, HeldText> held;                // what they held
    bool was_disturbed = false;                           // the device failed while it was there
};

inline bool begins_with(const Tokens& text, const Tokens& prefix_match, std::size_t n) {
    return n <= text.size() && n <= prefix_match.size() &&
           std::equal(prefix_match.begin(), prefix_match.begin() + static_cast<std::ptrdiff_t>(n), text.begin());
}

inline Tokens expected_answer(Tokens text, int n_generate, int n_ctx) {
    Tokens answer;
    while (static_cast<int>(answer.size()) < n_generate && static_cast<int>(text.size()) < n_ctx) {
        answer.push_back(next_token(text));
        text.push_back(answer.back());
    }
    return answer;
}

// What restoring must say, as far as the slots alone decide it. Nothing: it depends on which checkpoints stand.
inline std::optional<ErrorCode> restore_refusal(const Live& live, bool has_state, bool& is_certain) {
    const Request& r = live.request;
    is_certain = true;
    const HeldText& base = live.held.at(*r.memory.restore_slot);
    if (base.begin > 0) return ErrorCode::unsupported;
    Tokens text = base.text;
    for (const std::int32_t link : r.memory.chain) {
        const HeldText& thin = live.held.at(link);
        if (thin.begin != static_cast<Position>(text.size())) return ErrorCode::prefix_mismatch;
        if (!begins_with(thin.text, text, text.size())) return ErrorCode::prefix_mismatch;
        text = thin.text;
    }
    const auto n_text = static_cast<Position>(text.size());
    const Position position = r.memory.restore_at.value_or(n_text);
    if (position > n_text) return ErrorCode::bad_args;
    if (!begins_with(r.prompt, text, static_cast<std::size_t>(position))) return ErrorCode::prefix_mismatch;
    const bool is_whole = position == static_cast<Position>(r.prompt.size()) && r.n_generate > 0;
    is_certain = !has_state || (position == n_text && !is_whole);
    return std::nullopt;
}

}  // namespace luce::tests
