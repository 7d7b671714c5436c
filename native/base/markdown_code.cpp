// MarkdownCode: see the header.
#include "base/markdown_code.h"

#include <algorithm>
#include <cstddef>

namespace luce {

namespace {

constexpr size_t kMaxIndent = 3;
constexpr size_t kMinFence = 3;

size_t run_of(std::string_view text, char c) { return std::min(text.find_first_not_of(c), text.size()); }

// The fence that a line is or begins with; empty if none.
std::string_view fence_of(std::string_view line) {
    const size_t indent = run_of(line, ' ');
    if (indent > kMaxIndent || indent == line.size() || (line[indent] != '`' && line[indent] != '~')) {
        return {};
    }
    line.remove_prefix(indent);
    const size_t n = run_of(line, line.front());
    const bool is_inline = line.front() == '`' && line.find('`', n) != std::string_view::npos;
    return n < kMinFence || is_inline ? std::string_view() : line.substr(0, n);
}

bool closes(std::string_view line, std::string_view fence) {
    const std::string_view own = fence_of(line);
    return own.size() >= fence.size() && own.front() == fence.front() &&
           line.find_first_not_of(" \t\r", line.find(own) + own.size()) == std::string_view::npos;
}

bool ends_in_backticks(std::string_view line) {
    size_t open = 0;  // length of the run that has opened a span
    for (size_t at = line.find('`'); at < line.size(); at = line.find('`', at)) {
        const size_t n = run_of(line.substr(at), '`');
        open = open == 0 ? n : open == n ? 0 : open;
        at += n;
    }
    return open > 0;
}

}  // namespace

void MarkdownCode::add(std::string_view text) {
    for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
        line_ += text.substr(0, end);
        if (fence_.empty()) {
            fence_ = fence_of(line_);
        } else if (closes(line_, fence_)) {
            fence_.clear();
        }
        line_.clear();
        text.remove_prefix(end + 1);
    }
    line_ += text;
}

bool MarkdownCode::is_open() const { return !fence_.empty() || ends_in_backticks(line_); }

bool ends_in_code(std::string_view text) {
    MarkdownCode code;
    code.add(text);
    return code.is_open();
}

}  // namespace luce
