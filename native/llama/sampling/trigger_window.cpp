// Why the grammar finds the same: a word that the new token completes begins at most its length before the token's end,
// and the tokens before its beginning are none that llama.cpp replays. Of several words that end in the same token it
// takes the first that was given, wherever it begins: the window holds them all.
#include "llama/sampling/trigger_window.h"

#include <algorithm>
#include <string_view>

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
    const bool is_trigger = std::find(tokens_.begin(), tokens_.end(), token) != tokens_.end();
    if (is_trigger && !is_in_code(text_.size())) return {token};
    pieces_.push_back({token, piece.size()});
    text_ += piece;
    if (const std::size_t at = find_word(piece.size()); at != std::string::npos) return shown_from(at);
    std::size_t n_dropped = 0;
    while (!pieces_.empty() && text_.size() - n_dropped - pieces_.front().n_bytes + 1 >= n_longest_) {
        n_dropped += pieces_.front().n_bytes;
        pieces_.pop_front();
    }
    dropped_.add(std::string_view(text_).substr(0, n_dropped));
    text_.erase(0, n_dropped);
    return {};
}

bool TriggerWindow::is_in_code(std::size_t at) const {
    MarkdownCode before = dropped_;
    before.add(std::string_view(text_).substr(0, at));
    return before.is_open();
}

// The beginning of the earliest word that the last bytes complete; npos if there is none.
std::size_t TriggerWindow::find_word(std::size_t n_new_bytes) const {
    std::size_t first = std::string::npos;
    for (const std::string& word : words_) {
        const std::size_t n_looked_at = std::min(text_.size(), n_new_bytes + word.size() - 1);
        std::size_t at = text_.find(word, text_.size() - n_looked_at);
        while (at < first && is_in_code(at)) at = text_.find(word, at + 1);
        first = std::min(first, at);
    }
    return first;
}

// Quoted words before it may be in what is left of the text: the grammar is not to find them.
Tokens TriggerWindow::shown_from(std::size_t at) const {
    Tokens shown;
    std::size_t end = 0;
    for (const Piece& piece : pieces_) {
        end += piece.n_bytes;
        if (end > at) shown.push_back(piece.token);
    }
    return shown;
}

}  // namespace luce::llama
