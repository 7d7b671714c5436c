// Framing only: must not know what a line says. A line's length counts every byte before its `\n`, so that the verdict
// is the same however the bytes arrive.
#include "wire/line_decoder.h"

#include <utility>

#include "wire/words.h"

namespace luce::wire {

void LineDecoder::feed(std::string_view bytes) {
    while (!bytes.empty()) {
        const std::size_t end = bytes.find('\n');
        const std::string_view piece = bytes.substr(0, end);
        if (!overflowed_ && piece.size() > max_line_bytes_ - partial_.size()) {
            overflowed_ = true;
            partial_ = std::string();  // gives the memory back: the line may go on for ever
        }
        if (!overflowed_) partial_ += piece;
        if (end == std::string_view::npos) return;
        end_line();
        bytes.remove_prefix(end + 1);
    }
}

void LineDecoder::finish() {
    if (overflowed_ || !partial_.empty()) end_line();
}

std::optional<DecodedLine> LineDecoder::next() {
    if (ready_.empty()) return std::nullopt;
    DecodedLine line = std::move(ready_.front());
    ready_.pop_front();
    return line;
}

void LineDecoder::end_line() {
    std::string text = std::exchange(partial_, {});
    if (std::exchange(overflowed_, false)) {
        ready_.push_back({.text = {}, .too_long = true});
        return;
    }
    if (text.ends_with('\r')) text.pop_back();
    if (!is_blank(text)) ready_.push_back({.text = std::move(text), .too_long = false});
}

}  // namespace luce::wire
