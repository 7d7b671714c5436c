#include "daemon/loop/page_reports.h"

#include <string>

#include "memory/pages/page_name.h"

namespace luce::daemon {
namespace {

constexpr std::size_t kMaxPages = 64;  // in one line
constexpr std::size_t kMaxBacklogBytes = std::size_t{1} << 18;

std::string describe(const memory::PageChange& change) {
    std::string text = to_hex(change.name) + ':';
    if (change.tiers.is_resident) text += 'r';
    if (change.tiers.is_on_host) text += 'h';
    if (change.tiers.is_on_disk) text += 'd';
    if (!change.text) return text;
    text += ':' + (change.text->parent ? to_hex(*change.text->parent) : "");
    char separator = ':';
    for (const Token token : change.text->tokens) {
        text += separator + std::to_string(token);
        separator = '+';
    }
    return text;
}

}  // namespace

void PageReports::send() {
    while (journal_.has_news() && output_.has_reply_reader() && output_.backlog_bytes() < kMaxBacklogBytes) {
        const memory::PageChanges changes = journal_.take(kMaxPages);
        if (changes.changes.empty() && !changes.begins_anew) continue;
        wire::PagesLine line{changes.begins_anew, {}};
        for (const memory::PageChange& change : changes.changes) line.pages.push_back(describe(change));
        output_.send_reply(line);
        output_.flush();
    }
}

}  // namespace luce::daemon
