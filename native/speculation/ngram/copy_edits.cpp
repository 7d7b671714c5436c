#include "speculation/ngram/copy_edits.h"

#include <algorithm>

namespace luce::speculation {
namespace {

bool stands_at(std::span<const Token> text, std::size_t place, const Tokens& tokens) {
    return place + tokens.size() <= text.size() &&
           std::equal(tokens.begin(), tokens.end(), text.begin() + static_cast<std::ptrdiff_t>(place));
}

}  // namespace

// Known edits are passed over, so that a new one is found by itself between what is equal before and behind it.
void CopyEdits::learn(std::span<const Token> text, std::size_t n_text, std::size_t place, std::size_t place_now) {
    std::size_t at = n_text, from = place;
    while (at < text.size() && from < at) {
        CopyEdit* known = known_at(text, from);
        if (known != nullptr && text[from] != text[at] && stands_at(text, at, known->after)) {
            ++known->n_made;
            from += known->before.size();
            at += known->after.size();
            continue;
        }
        if (text[from] != text[at]) break;
        if (known != nullptr) ++known->n_not_made;
        ++from;
        ++at;
    }
    if (at == text.size()) return;  // nothing was changed
    std::size_t end = text.size(), source_end = place_now;
    while (end > at && source_end > from && text[end - 1] == text[source_end - 1]) --end, --source_end;
    if (source_end <= from || end < at) return;
    if (source_end - from > kMostTokens || end - at > kMostTokens) return;
    add(text.subspan(from, source_end - from), text.subspan(at, end - at));
}

void CopyEdits::add(std::span<const Token> before, std::span<const Token> after) {
    if (edits_.size() == kMostEdits) edits_.erase(edits_.begin());
    edits_.push_back({Tokens(before.begin(), before.end()), Tokens(after.begin(), after.end()), 1, 0});
}

// The latest: what was changed otherwise before is not any more.
CopyEdit* CopyEdits::known_at(std::span<const Token> text, std::size_t place) {
    const auto known = std::find_if(edits_.rbegin(), edits_.rend(),
                                    [&](const CopyEdit& edit) { return stands_at(text, place, edit.before); });
    return known == edits_.rend() ? nullptr : &*known;
}

const CopyEdit* CopyEdits::expected(std::span<const Token> text, std::size_t place) const {
    const CopyEdit* known = const_cast<CopyEdits*>(this)->known_at(text, place);
    return known != nullptr && known->n_made > known->n_not_made ? known : nullptr;
}

}  // namespace luce::speculation
