// The one place where replies become lines. Whatever a field holds, the result is exactly one line of UTF-8: values are
// percent-encoded, texts for people are cleaned. Must not know where a reply comes from.
#include "wire/reply.h"

#include <array>
#include <charconv>
#include <cmath>
#include <concepts>

#include "wire/percent.h"
#include "wire/utf8.h"
#include "wire/words.h"

namespace luce::wire {

namespace {

constexpr std::size_t kMaxErrorTextBytes = 1000;
constexpr int kSecondsDigits = 6;
constexpr int kRateDigits = 2;
constexpr int kRatioDigits = 4;
constexpr int kLogprobDigits = 5;

std::string fixed(double value, int n_digits) {
    std::array<char, 400> buffer;  // the largest double has 309 digits before the point
    const auto [end, error] =
        std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed, n_digits);
    return std::string(buffer.data(), end);
}

// A duration, rate or ratio. A division by a duration of zero is no reason to send a line that clients cannot read.
std::string measure(double value, int n_digits) {
    return fixed(std::isfinite(value) && value > 0 ? value : 0, n_digits);
}

// Minus infinity is a token that cannot come; what is no number at all says the same.
std::string logprob(float value) { return std::isfinite(value) ? fixed(value, kLogprobDigits) : "-inf"; }

void append_field(std::string& line, std::string_view key, std::string_view encoded_value) {
    line += ' ';
    line += key;
    line += '=';
    line += encoded_value;
}

template <std::integral Number>
void append_field(std::string& line, std::string_view key, Number value) {
    append_field(line, key, std::string_view(std::to_string(value)));
}

void append_id(std::string& line, const std::optional<RequestId>& id) {
    if (id) append_field(line, "id", *id);
}

// `<start> [id=]`, and what the reply says after it.
std::string start_line(std::string_view start, const std::optional<RequestId>& id) {
    std::string line(start);
    append_id(line, id);
    return line;
}

std::string ratio(std::int64_t part, std::int64_t whole) {
    return measure(static_cast<double>(part) / static_cast<double>(whole), kRatioDigits);
}

void append_speculation_fields(std::string& line, const Speculation& speculation) {
    if (speculation.n_drafted > 0) {
        append_field(line, "accept", ratio(speculation.n_accepted, speculation.n_drafted));
    }
    append_field(line, "drafted", speculation.n_drafted);
    append_field(line, "accepted", speculation.n_accepted);
    append_field(line, "steps", speculation.n_steps);
    append_field(line, "spec_steps", speculation.n_speculated_steps);
    append_field(line, "draft_s", measure(speculation.draft_s, kSecondsDigits));
    append_field(line, "verify_s", measure(speculation.verify_s, kSecondsDigits));
}

void append_fields(std::string& line, const std::vector<std::pair<std::string, std::string>>& fields) {
    for (const auto& [key, value] : fields) append_field(line, key, percent_encode(value));
}

// One line of UTF-8 for people: control characters become spaces, malformed bytes question marks.
std::string clean_text(std::string_view text) {
    std::string clean;
    while (!text.empty() && clean.size() <= kMaxErrorTextBytes) {
        const std::size_t n_bytes = utf8_character_bytes(text);
        if (n_bytes == 0) {
            clean += '?';
        } else if (is_control(text[0])) {
            clean += ' ';
        } else {
            clean += text.substr(0, n_bytes);
        }
        text.remove_prefix(n_bytes == 0 ? 1 : n_bytes);
        if (trim(clean).empty()) clean.clear();  // leading blanks do not count
    }
    return std::string(trim(utf8_prefix(clean, kMaxErrorTextBytes)));
}

struct Formatter {
    std::string operator()(const GenerateOk& ok) const {
        std::string line = "ok";
        append_id(line, ok.id);
        append_field(line, "N", ok.n_prompt);
        append_field(line, "gen", ok.n_generated);
        append_field(line, "reused", ok.n_reused);
        append_field(line, "tier", percent_encode(ok.tier));
        append_field(line, "miss", percent_encode(ok.miss));
        if (ok.restored) append_field(line, "restored", *ok.restored);
        append_field(line, "prefill_s", measure(ok.prefill_s, kSecondsDigits));
        append_field(line, "decode_s", measure(ok.decode_s, kSecondsDigits));
        append_field(line, "decode_tok_s", measure(ok.decode_tokens_per_s, kRateDigits));
        if (ok.speculation) append_speculation_fields(line, *ok.speculation);
        if (ok.output_path) append_field(line, "out", percent_encode(*ok.output_path));
        append_field(line, "stop", name_of(ok.stop));
        return line;
    }

    std::string operator()(const Err& err) const {
        std::string line = "err ";
        line += name_of(err.error.code);
        append_id(line, err.id);
        const std::string text = clean_text(err.error.text);
        // A text that itself begins like an id is set off by a second space, so that nobody reads it as one.
        if (!err.id && text.starts_with("id=")) line += ' ';
        return text.empty() ? line : line + ' ' + text;
    }

    std::string operator()(const PoolSize& pool) const {
        std::string line = "[pool]";
        append_field(line, "tokens", pool.n_tokens);
        return line;
    }

    std::string operator()(const Pong& pong) const { return pong.word.empty() ? "pong" : "pong " + pong.word; }

    std::string operator()(const PlainOk& ok) const { return start_line("ok", ok.id); }

    std::string operator()(const Parked& parked) const {
        return start_line("ok", parked.id) + " park " + std::string(name_of(parked.what));
    }

    std::string operator()(const Unparked& unparked) const {
        return start_line("ok", unparked.id) + " unpark " + std::string(name_of(unparked.what));
    }

    std::string operator()(const Cancelled& cancelled) const {
        std::string line = "[cancel]";
        append_field(line, "id", cancelled.id);
        return line;
    }

    std::string operator()(const PrefillProgress& progress) const {
        std::string line = "[prefill]";
        append_id(line, progress.id);
        append_field(line, "done", progress.n_done);
        append_field(line, "total", progress.n_total);
        return line;
    }

    std::string operator()(const Logprobs& logprobs) const {
        std::string line = "[lp]";
        append_id(line, logprobs.id);
        append_field(line, "i", logprobs.index);
        char separator = ' ';
        for (const auto& [token, value] : logprobs.entries) {
            line += separator;
            line += std::to_string(token) + ':' + logprob(value);
            separator = ',';
        }
        return line;
    }

    std::string operator()(const SnapshotTaken& taken) const {
        std::string line = start_line("[snap]", taken.id);
        append_field(line, "slot", taken.slot);
        append_field(line, "cur_pos", taken.cur_pos);
        return line;
    }

    std::string operator()(const ThinTaken& taken) const {
        std::string line = start_line("[snap]", taken.id);
        append_field(line, "slot", taken.slot);
        append_field(line, "from", taken.begin);
        append_field(line, "to", taken.end);
        return line;
    }

    std::string operator()(const SlotFreed& freed) const {
        std::string line = start_line("[snap]", freed.id) + " freed";
        append_field(line, "slot", freed.slot);
        return line;
    }

    std::string operator()(const SlotList& list) const {
        std::string slots;
        for (const std::int32_t slot : list.slots) slots += (slots.empty() ? "" : ",") + std::to_string(slot);
        std::string line = start_line("[snap]", list.id);
        append_field(line, "slots", slots);
        return line;
    }

    std::string operator()(const SlotSaved& saved) const {
        std::string line = start_line("[snap]", saved.id) + " saved";
        append_field(line, "slot", saved.slot);
        append_field(line, "bytes", saved.bytes);
        return line;
    }

    std::string operator()(const InlineSnapshot& taken) const {
        std::string line = start_line("[snap] inline", taken.id);
        append_field(line, "slot", taken.slot);
        append_field(line, "cur_pos", taken.cur_pos);
        return line;
    }

    std::string operator()(const InlineSnapshotFailed& failed) const {
        std::string line = start_line("[snap] failed", failed.id);
        append_field(line, "slot", failed.slot);
        line += ' ';
        line += luce::name_of(failed.code);
        return line;
    }

    std::string operator()(const StatusLine& status) const {
        std::string line = "[status]";
        append_fields(line, status.fields);
        return line;
    }

    std::string operator()(const ReadyLine& ready) const {
        std::string line = "[daemon] ready";
        append_fields(line, ready.fields);
        return line;
    }
};

}  // namespace

std::string_view name_of(StopReason reason) {
    switch (reason) {
        case StopReason::eos: return "eos";
        case StopReason::limit: return "limit";
        case StopReason::stop: return "stop";
        case StopReason::cancel: return "cancel";
    }
    return "stop";
}

std::string_view name_of(Park::What what) { return what == Park::What::draft ? "draft" : "target"; }

void append_speculation(StatusLine& line, const Speculation& speculation) {
    const auto add = [&line](const char* key, std::string value) { line.fields.emplace_back(key, std::move(value)); };
    add("spec_drafted", std::to_string(speculation.n_drafted));
    add("spec_accepted", std::to_string(speculation.n_accepted));
    add("spec_steps", std::to_string(speculation.n_steps));
    if (speculation.n_steps > 0) {
        // Each step gives one token of the model's own besides those that it accepts.
        add("spec_share", ratio(speculation.n_speculated_steps, speculation.n_steps));
        add("spec_tokens_per_step", ratio(speculation.n_steps + speculation.n_accepted, speculation.n_steps));
    }
    add("spec_draft_s", measure(speculation.draft_s, kSecondsDigits));
    add("spec_verify_s", measure(speculation.verify_s, kSecondsDigits));
}

std::string format_reply(const Reply& reply) { return std::visit(Formatter{}, reply) + '\n'; }

}  // namespace luce::wire
