// Why the grammar finds the same: a word that the new token completes begins at most its length before the token's end,
// and the tokens before its beginning are none that llama.cpp replays. Of several words that end in the same token it
// takes the first that was given, wherever it begins: the window holds them all.
#include "llama/sampling/trigger_window.h"

#include <algorithm>

namespace luce::llama {

using engine::Trigger;

std::optional<TriggerWindow> TriggerWindow::of(std::span<const Trigger> triggers) {
    TriggerWindow window;
    for (const Trigger& trigger : triggers) {
        if (trigger.kind == Trigger::Kind::token) {
            window.tokens_.push_back(trigger.token);
            continue;
        }
        if (trigger.kind != Trigger::Kind::word) return std::nullopt;
        window.words_.emplace_back(trigger.text.c_str());  // llama.cpp too ends it at a zero
        if (window.words_.back().empty()) return std::nullopt;
        window.n_longest_ = std::max(window.n_longest_, window.words_.back().size());
    }
    return window;
}

Tokens TriggerWindow::add(Token token, const std::string& piece) {
    if (std::find(tokens_.begin(), tokens_.end(), token) != tokens_.end()) return {token};
    pieces_.push_back({token, piece.size()});
    text_ += piece;
    if (has_word(piece.size())) {
        Tokens shown;
        for (const Piece& held : pieces_) shown.push_back(held.token);
        return shown;
    }
    std::size_t n_dropped = 0;
    while (!pieces_.empty() && text_.size() - n_dropped - pieces_.front().n_bytes + 1 >= n_longest_) {
        n_dropped += pieces_.front().n_bytes;
        pieces_.pop_front();
    }
    text_.erase(0, n_dropped);
    return {};
}

bool TriggerWindow::has_word(std::size_t n_new_bytes) const {
    return std::any_of(words_.begin(), words_.end(), [&](const std::string& word) {
        const std::size_t n_looked_at = std::min(text_.size(), n_new_bytes + word.size() - 1);
        return text_.find(word, text_.size() - n_looked_at) != std::string::npos;
    });
}

}  // namespace luce::llama
