#include "llama/scoring/read_text.h"

#include <algorithm>
#include <cassert>

namespace luce::llama {
void ReadText::forget_others() {
    const Tokens& tokens = text_.tokens();
    const auto [own, other] = std::mismatch(read_.begin(), read_.end(), tokens.begin(), tokens.end());
    if (own != read_.end()) go_back(static_cast<std::size_t>(own - read_.begin()));
}

// A page before the place may end with a token that reaches beyond it, and is read anew with the page behind: it is the
// same token, so that page stays.
void ReadText::go_back(std::size_t n) {
    if (n >= read_.size()) return;
    std::size_t rest = n;
    while (!pages_.empty() && pages_.back().end > n) {
        rest = std::min(rest, pages_.back().first);
        first_open_ = rest;
        pages_.pop_back();
    }
    read_.resize(rest);
    open_keys_.resize((rest - first_open_) * key_size_);
}

void ReadText::add(std::span<const float> keys, const KeyIndex& index) {
    key_size_ = index.shape().n_heads_kv * index.shape().n_dims;
    assert(keys.size() % key_size_ == 0);
    const std::size_t n = keys.size() / key_size_;
    const Tokens& tokens = text_.tokens();
    const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(read_.size());
    read_.insert(read_.end(), first, first + static_cast<std::ptrdiff_t>(n));
    open_keys_.insert(open_keys_.end(), keys.begin(), keys.end());
    while (seal_next(index)) {
    }
}

// Put the keys of the next page away, once all tokens that reach into it have been read.
bool ReadText::seal_next(const KeyIndex& index) {
    const std::size_t page = pages_.size();
    if ((page + 1) * memory::kPageSize > text_.text().size() || read_.empty()) return false;
    const std::uint64_t page_begin = page == 0 ? 0 : text_.end_of_page(page - 1);
    const std::uint64_t page_end = text_.end_of_page(page);
    if (text_.end_of(read_.size() - 1) < page_end) return false;
    std::size_t first = first_open_;
    while (first < read_.size() && text_.end_of(first) <= page_begin) ++first;
    std::size_t end = first;
    while (end < read_.size() && text_.begin_of(end) < page_end) ++end;
    Page sealed{first, end, {}};
    for (std::size_t begin = first; begin < end; begin += memory::kPageSize) {
        const std::size_t n = std::min<std::size_t>(memory::kPageSize, end - begin);
        const auto keys = open_keys_.begin() + static_cast<std::ptrdiff_t>((begin - first_open_) * key_size_);
        std::vector<float> block(keys, keys + static_cast<std::ptrdiff_t>(n * key_size_));
        // A block is full: where there are no more keys, the last one once more changes no maximum.
        while (block.size() < memory::kPageSize * key_size_) {
            block.insert(block.end(), block.end() - static_cast<std::ptrdiff_t>(key_size_), block.end());
        }
        sealed.blocks.push_back(index.encode(block));
    }
    // A page that says nothing matters as much as the one before it.
    if (first == end && page > 0) sealed.blocks = pages_.back().blocks;
    if (sealed.blocks.empty()) sealed.blocks.push_back(index.encode(std::vector<float>(memory::kPageSize * key_size_)));
    pages_.push_back(std::move(sealed));
    std::size_t first_open = end;
    while (first_open > first && text_.end_of(first_open - 1) > page_end) --first_open;
    open_keys_.erase(open_keys_.begin(),
                     open_keys_.begin() + static_cast<std::ptrdiff_t>((first_open - first_open_) * key_size_));
    first_open_ = first_open;
    return true;
}

ReadText::Keys ReadText::first_pages(std::size_t n) const {
    Keys keys;
    for (std::size_t i = 0; i < std::min(n, pages_.size()); ++i) {
        keys.blocks.insert(keys.blocks.end(), pages_[i].blocks.begin(), pages_[i].blocks.end());
        keys.ends.push_back(keys.blocks.size());
    }
    return keys;
}

std::size_t ReadText::n_bytes() const {
    std::size_t n = (text_.text().size() + 2 * read_.size()) * sizeof(Token);
    for (const Page& page : pages_) {
        for (const memory::PageKeys& block : page.blocks) n += block->size();
    }
    return n;
}

}  // namespace luce::llama
