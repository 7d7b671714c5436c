// LineDecoder: bytes in, lines out. Knows framing only: `\n` ends a line, one `\r` before it is dropped, blank lines
// are skipped, and a line over the limit is reported once and swallowed up to its end.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "wire/command.h"

namespace luce::wire {

struct DecodedLine {
    std::string text;       // without its line end
    bool too_long = false;  // `text` is empty then
};

class LineDecoder {
public:
    explicit LineDecoder(std::size_t max_line_bytes = kMaxLineBytes) : max_line_bytes_(max_line_bytes) {}

    void feed(std::string_view bytes);

    // End of input: a last line without its `\n` counts as one.
    void finish();

    // The next complete line, oldest first.
    std::optional<DecodedLine> next();

    bool has_next() const { return !ready_.empty(); }

private:
    void end_line();

    std::size_t max_line_bytes_;
    std::string partial_;
    bool overflowed_ = false;
    std::deque<DecodedLine> ready_;
};

}  // namespace luce::wire
