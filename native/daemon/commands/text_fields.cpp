#include "daemon/commands/text_fields.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "memory/pages/page_name.h"

namespace luce::daemon {
namespace {

constexpr std::int32_t kMaxTexts = 256;  // in one line

std::string describe(const memory::TextRun& run) {
    std::string text = to_hex(run.name) + ':' + (run.parent ? to_hex(*run.parent) : "");
    for (const std::int32_t number :
         {run.begin, run.end, run.n_device, run.n_host, run.n_disk, run.n_pinned, run.n_checkpoints, run.n_lanes}) {
        text += ':' + std::to_string(number);
    }
    text += run.is_held ? ":1:" : ":0:";
    if (run.age_s) text += std::to_string(std::llround(*run.age_s));
    char separator = ':';
    for (const Token token : run.first_tokens) {
        text += separator + std::to_string(token);
        separator = '+';
    }
    return text;
}

}  // namespace

wire::TextsLine describe_texts(const wire::ListTexts& command, memory::TextBoard& texts) {
    const std::int32_t n_most = std::min(command.n_most.value_or(kMaxTexts), kMaxTexts);
    const memory::TextListing listing = texts.list(command.first, n_most);
    std::string runs;
    for (const memory::TextRun& run : listing.runs) runs += (runs.empty() ? "" : ",") + describe(run);
    return {{{"id", std::to_string(command.id.value_or(0))},
             {"total", std::to_string(listing.n_runs)},
             {"short", std::to_string(listing.n_short)},
             {"from", std::to_string(command.first)},
             {"texts", runs}}};
}

Error no_page_name() { return {ErrorCode::bad_args, "page= must be 32 hexadecimal digits, as texts tells them"}; }

}  // namespace luce::daemon
