// PromptMemory: see the header.
#include "llama/text/prompt_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace luce::llama {

namespace {

constexpr size_t kMaxPrompts = 32;
constexpr size_t kBlock = 4096;

size_t n_bytes_of(const KnownPrompt& prompt) {
    return prompt.text->size() + prompt.tokens.ids.size() * sizeof(llama_token) +
           prompt.tokens.anchors.size() * sizeof(TokenAnchor);
}

size_t n_common(std::string_view a, std::string_view b) {
    const size_t size = std::min(a.size(), b.size());
    size_t at = 0;
    while (at + kBlock <= size && std::memcmp(a.data() + at, b.data() + at, kBlock) == 0) at += kBlock;
    return static_cast<size_t>(std::mismatch(a.begin() + static_cast<std::ptrdiff_t>(at),
                                             a.begin() + static_cast<std::ptrdiff_t>(size),
                                             b.begin() + static_cast<std::ptrdiff_t>(at))
                                   .first -
                               a.begin());
}

}  // namespace

PromptMemory::Beginning PromptMemory::find(std::string_view salt, uint64_t special, std::string_view text,
                                           size_t n_ahead) const {
    std::vector<std::shared_ptr<const KnownPrompt>> prompts;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        prompts.assign(prompts_.begin(), prompts_.end());
    }
    Beginning best;
    size_t best_byte = 0;
    for (auto& prompt : prompts) {
        if (prompt->special != special || prompt->salt != salt) continue;
        const size_t n_same = n_common(*prompt->text, text);
        const auto& anchors = prompt->tokens.anchors;
        for (size_t n = anchors.size(); n-- > 0;) {
            if (!anchors[n].stands_alone || anchors[n].byte + n_ahead > n_same) continue;
            if (anchors[n].byte > best_byte) {
                best_byte = anchors[n].byte;
                best = {std::move(prompt), n};
            }
            break;
        }
    }
    return best;
}

void PromptMemory::keep(std::shared_ptr<const KnownPrompt> prompt, const Beginning& before) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto drop = [this](std::list<std::shared_ptr<const KnownPrompt>>::iterator entry) {
        n_bytes_ -= n_bytes_of(**entry);
        prompts_.erase(entry);
    };
    // The next turn of a conversation takes the place of the one before; another one beside it does not.
    if (before.known != nullptr && before.n_anchors > before.known->tokens.anchors.size() / 2) {
        const auto replaced = std::ranges::find(prompts_, before.known);
        if (replaced != prompts_.end()) drop(replaced);
    }
    n_bytes_ += n_bytes_of(*prompt);
    prompts_.push_front(std::move(prompt));
    while (n_bytes_ > max_bytes_ || prompts_.size() > kMaxPrompts) drop(std::prev(prompts_.end()));
}

}  // namespace luce::llama
