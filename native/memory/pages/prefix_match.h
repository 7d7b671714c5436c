// PrefixMatch: the longest prefix of a text that need not be computed again, and why it is not longer. Chosen here,
// carried out by KvCacheManager.
//
// On pure attention any number of rows of a known text will do. Where there is state besides rows (recurrent, sliding
// window), only a checkpoint will: a prefix ends where one stands.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "memory/pages/page_cache.h"
#include "memory/pages/prefix_tree.h"

namespace luce::memory {

enum class Tier : std::uint8_t { none, resident, host, disk };  // rising distance

struct Miss {
    enum class Reason : std::uint8_t { none, no_tail, evicted, differs, identity, off };
    Reason reason = Reason::none;
    Position at = 0;  // differs: where the text departs from the known ones
};

// none, no_tail, evicted, differs_at:<pos>, identity, off.
std::string to_string(const Miss& miss);
std::string_view to_string(Tier tier);

struct PrefixMatch {
    Position n = 0;                    // positions that need not be computed
    Position n_known = 0;              // up to which some known text agrees
    std::vector<Page*> pages;          // the full pages of them
    std::vector<bool> seen;            // which of those the lane is to see; empty: all
    Checkpoint* checkpoint = nullptr;  // where the rest, the state and the logits are taken from
    CheckpointBlob data;               // the checkpoint's, which may have to make way while the prefix is put in place
    Page* beside = nullptr;            // or: the page whose first rows are the rest (pure attention)
    std::int32_t n_rest = 0;           // positions behind the full pages
    bool has_logits = false;           // of position n - 1, in the checkpoint: the next token can be chosen at once
    Miss miss;
    Tier tier = Tier::none;  // the furthest that a page has to come from

    bool sees(std::size_t page) const { return seen.empty() || seen[page]; }
};

struct PrefixMatchLimits {
    Position n_most = 0;       // no further than this
    bool needs_logits = true;  // a prefix that is the whole text is of use only with logits
    bool has_state = false;    // the model has state besides rows
};

// `known`: what the tree knows of the text; its pages may be evicted entries.
PrefixMatch match_prefix(const Known& known, Page& root, std::span<const Token> text, const PrefixMatchLimits& limits);

// The whole pages and the rows behind them up to exactly `position`, from `pages` (the path) and a checkpoint if
// needed; none if that cannot be put together.
std::optional<PrefixMatch> prefix_match_at(const std::vector<Page*>& path, Page& root, Position position,
                                           std::span<const Token> text, bool has_state);

}  // namespace luce::memory
