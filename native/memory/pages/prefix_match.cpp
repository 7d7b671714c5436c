#include "memory/pages/prefix_match.h"

#include <algorithm>

namespace luce::memory {
namespace {

// How many of the known pages are in memory, from the first on.
std::size_t n_kept_pages(const std::vector<Page*>& pages) {
    const auto gone = std::find_if(pages.begin(), pages.end(), [](const Page* page) { return !page->is_kept(); });
    return static_cast<std::size_t>(gone - pages.begin());
}

Page& page_before(const std::vector<Page*>& pages, std::size_t n, Page& root) { return n == 0 ? root : *pages[n - 1]; }

// The best rows for the positions behind `page`: from a checkpoint behind it or the prefix of a page beside.
void add_rest(PrefixMatch& prefix_match, Page& page, Page* beside, std::span<const Token> rest) {
    if (beside != nullptr && beside->is_kept()) {
        prefix_match.n_rest = n_common(beside->tokens, rest);
        prefix_match.beside = beside;
    }
    for (Checkpoint& checkpoint : page.checkpoints) {
        const Position n = n_common(checkpoint.rest, rest);
        const bool is_whole = n == static_cast<std::int32_t>(checkpoint.rest.size());
        const bool adds_logits = n == prefix_match.n_rest && is_whole && !checkpoint.data->logits.empty();
        if (n < prefix_match.n_rest || (n == prefix_match.n_rest && !adds_logits)) continue;
        prefix_match.n_rest = n;
        prefix_match.checkpoint = &checkpoint;
        prefix_match.beside = nullptr;
        prefix_match.has_logits = is_whole && !checkpoint.data->logits.empty();
    }
}

PrefixMatch choose_rows(const Known& known, Page& root, std::span<const Token> text, const PrefixMatchLimits& limits) {
    const auto n_whole = static_cast<Position>(n_kept_pages(known.pages));
    const auto best_at = [&](Position n_pages, Position n_most) {
        PrefixMatch prefix_match;
        prefix_match.pages.assign(known.pages.begin(), known.pages.begin() + n_pages);
        Page& page = page_before(known.pages, static_cast<std::size_t>(n_pages), root);
        Page* beside = n_pages < n_whole ? known.pages[static_cast<std::size_t>(n_pages)] : known.beside;
        if (beside != nullptr && beside->parent != &page) beside = nullptr;
        const Position begin = n_pages * kPageSize;
        add_rest(prefix_match, page, beside,
                 text.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(n_most - begin)));
        prefix_match.n = begin + prefix_match.n_rest;
        return prefix_match;
    };
    const auto n_text = static_cast<Position>(text.size());
    if (n_text <= limits.n_most) {
        PrefixMatch whole = best_at(std::min(n_whole, n_text / kPageSize), n_text);
        if (whole.n < n_text || whole.has_logits || !limits.needs_logits) return whole;
    }
    const Position n_most = std::min(limits.n_most, limits.needs_logits ? n_text - 1 : n_text);
    PrefixMatch part = best_at(std::min(n_whole, n_most / kPageSize), n_most);
    part.has_logits = false;
    return part;
}

PrefixMatch choose_checkpoint(const Known& known, Page& root, std::span<const Token> text,
                              const PrefixMatchLimits& limits) {
    const auto n_text = static_cast<Position>(text.size());
    PrefixMatch prefix_match;
    for (std::size_t n = n_kept_pages(known.pages) + 1; n-- > 0;) {
        Page& page = page_before(known.pages, n, root);
        for (Checkpoint& checkpoint : page.checkpoints) {
            const Position at = checkpoint.position();
            if (at > limits.n_most || at > n_text || at <= prefix_match.n) continue;
            if (at == n_text && limits.needs_logits && checkpoint.data->logits.empty()) continue;
            const auto rest = text.subspan(static_cast<std::size_t>(page.end()), checkpoint.rest.size());
            if (!std::equal(rest.begin(), rest.end(), checkpoint.rest.begin())) continue;
            prefix_match.n = at;
            prefix_match.checkpoint = &checkpoint;
        }
        if (prefix_match.checkpoint == nullptr) continue;
        prefix_match.pages.assign(known.pages.begin(), known.pages.begin() + static_cast<std::ptrdiff_t>(n));
        prefix_match.n_rest = static_cast<std::int32_t>(prefix_match.checkpoint->rest.size());
        prefix_match.has_logits = !prefix_match.checkpoint->data->logits.empty();
        break;
    }
    return prefix_match;
}

Tier tier_of(const PrefixMatch& prefix_match) {
    if (prefix_match.n == 0) return Tier::none;
    const bool all_resident = std::all_of(prefix_match.pages.begin(), prefix_match.pages.end(),
                                          [](const Page* page) { return page->is_resident(); });
    return all_resident ? Tier::resident : Tier::host;
}

// Whether some known text goes on differently where this one departs.
bool departs(const Known& known, Page& root, std::span<const Token> text) {
    Page& last = page_before(known.pages, known.pages.size(), root);
    if (static_cast<std::size_t>(known.n_matched) == text.size()) return false;
    if (!last.children.empty()) return true;
    const Position n_rest = known.n_matched - last.end();
    return std::any_of(last.checkpoints.begin(), last.checkpoints.end(), [n_rest](const Checkpoint& checkpoint) {
        return static_cast<Position>(checkpoint.rest.size()) > n_rest;
    });
}

// Of two reasons the one that costs more tokens: a text that departs early is not said to lack a checkpoint there.
Miss why_not_more(const PrefixMatch& chosen, const Known& known, Page& root, std::span<const Token> text) {
    const auto n_text = static_cast<Position>(text.size());
    if (chosen.n >= n_text - 1) return {};
    const Position n_not_taken = std::max<Position>(std::min(known.n_matched, n_text - 1) - chosen.n, 0);
    if (n_text - known.n_matched > n_not_taken && departs(known, root, text)) {
        return {Miss::Reason::differs, known.n_matched};
    }
    if (n_not_taken == 0) return {};
    const auto n_kept = static_cast<Position>(n_kept_pages(known.pages)) * kPageSize;
    const auto n_pages = static_cast<Position>(known.pages.size()) * kPageSize;
    return {n_kept < n_pages ? Miss::Reason::evicted : Miss::Reason::no_tail, 0};
}

}  // namespace

std::string to_string(const Miss& miss) {
    switch (miss.reason) {
        case Miss::Reason::none: return "none";
        case Miss::Reason::no_tail: return "no_tail";
        case Miss::Reason::evicted: return "evicted";
        case Miss::Reason::differs: return "differs_at:" + std::to_string(miss.at);
        case Miss::Reason::identity: return "identity";
        case Miss::Reason::off: return "off";
    }
    return "none";
}

std::string_view to_string(Tier tier) {
    switch (tier) {
        case Tier::none: return "none";
        case Tier::resident: return "resident";
        case Tier::host: return "host";
        case Tier::disk: return "disk";
    }
    return "none";
}

PrefixMatch match_prefix(const Known& known, Page& root, std::span<const Token> text, const PrefixMatchLimits& limits) {
    PrefixMatch chosen =
        limits.has_state ? choose_checkpoint(known, root, text, limits) : choose_rows(known, root, text, limits);
    chosen.n_known = known.n_matched;
    chosen.miss = why_not_more(chosen, known, root, text);
    chosen.tier = tier_of(chosen);
    return chosen;
}

std::optional<PrefixMatch> prefix_match_at(const std::vector<Page*>& path, Page& root, Position position,
                                           std::span<const Token> text, bool has_state) {
    const auto n_pages = static_cast<std::size_t>(position / kPageSize);
    if (n_pages > n_kept_pages(path)) return std::nullopt;
    PrefixMatch prefix_match;
    prefix_match.n = position;
    prefix_match.pages.assign(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(n_pages));
    prefix_match.n_rest = position % kPageSize;
    Page& page = page_before(path, n_pages, root);
    const auto rest = text.subspan(static_cast<std::size_t>(page.end()), static_cast<std::size_t>(prefix_match.n_rest));
    for (Checkpoint& checkpoint : page.checkpoints) {
        if (!std::equal(rest.begin(), rest.end(), checkpoint.rest.begin(), checkpoint.rest.end())) continue;
        prefix_match.checkpoint = &checkpoint;
        prefix_match.has_logits = !checkpoint.data->logits.empty();
        prefix_match.tier = tier_of(prefix_match);
        return prefix_match;
    }
    if (has_state) return std::nullopt;
    prefix_match.tier = tier_of(prefix_match);
    if (prefix_match.n_rest == 0) return prefix_match;
    // Rows of a longer checkpoint or of the page that goes on from here do as well.
    Page* beside = n_pages < path.size() ? path[n_pages] : nullptr;
    prefix_match.n_rest = 0;
    add_rest(prefix_match, page, beside, rest);
    prefix_match.has_logits = false;
    if (prefix_match.n_rest != static_cast<std::int32_t>(rest.size())) return std::nullopt;
    return prefix_match;
}

}  // namespace luce::memory
