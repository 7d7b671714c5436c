// The one place where replies become lines. Whatever a field holds, the result is exactly one line of UTF-8: values are
// percent-encoded, texts for people are cleaned. Must not know where a reply comes from.
#include "wire/reply.h"

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <concepts>
#include <type_traits>

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

using Entries = std::vector<std::pair<Token, float>>;

std::string with_entries(std::string line, const Entries& entries) {
    char separator = ' ';
    for (const auto& [token, value] : entries) {
        line += separator + std::to_string(token) + ':' + logprob(value);
        separator = ',';
    }
    return line;
}

std::string seconds(double value) { return measure(value, kSecondsDigits); }

std::string ratio(std::int64_t part, std::int64_t whole) {
    return measure(static_cast<double>(part) / static_cast<double>(whole), kRatioDigits);
}

// Texts are taken as they are: whoever has one that may hold anything encodes it.
void append_field(std::string& line, std::string_view key, std::string_view value) {
    line += ' ';
    line += key;
    line += '=';
    line += value;
}

template <std::integral Number>
void append_field(std::string& line, std::string_view key, Number value) {
    append_field(line, key, std::string_view(std::to_string(value)));
}

template <typename Value>
void append_field(std::string& line, std::string_view key, const std::optional<Value>& value) {
    if (value) append_field(line, key, *value);
}

void append_fields(std::string&) {}

// ` key=value …`, keys and values in turn; an optional that is unset is left out.
template <typename Value, typename... More>
void append_fields(std::string& line, std::string_view key, const Value& value, const More&... more) {
    append_field(line, key, value);
    append_fields(line, more...);
}

template <typename... Fields>
std::string line_of(std::string_view start, const Fields&... fields) {
    std::string line(start);
    append_fields(line, fields...);
    return line;
}

std::string joined(const std::vector<std::string>& items) {
    std::string list;
    for (const std::string& item : items) {
        if (!list.empty()) list += ',';
        list += item;
    }
    return list;
}

std::string line_of_pairs(std::string_view start, const std::vector<std::pair<std::string, std::string>>& fields) {
    std::string line(start);
    for (const auto& [key, value] : fields) append_field(line, key, percent_encode(value));
    return line;
}

void append_stat(std::string& line, const records::Field& field, double value) {
    append_field(line, field.key, field.value == "rate" ? measure(value, kRateDigits) : seconds(value));
}
template <std::integral Count>
void append_stat(std::string& line, const records::Field& field, Count value) {
    append_field(line, field.key, value);
}
void append_stat(std::string& line, const records::Field& field, const std::string& text) {
    append_field(line, field.key, percent_encode(text));
}
void append_stat(std::string& line, const records::Field& field, StopReason reason) {
    append_field(line, field.key, name_of(reason));
}
template <typename Value>
void append_stat(std::string& line, const records::Field& field, const std::optional<Value>& value) {
    if (!value) return;
    if constexpr (std::is_same_v<Value, Speculation>) {
        if (value->n_drafted > 0) append_field(line, "accept", ratio(value->n_accepted, value->n_drafted));
    }
    if constexpr (std::is_class_v<Value>) {
        visit_fields(*value, [&line](const records::Field& inner, const auto& one) { append_stat(line, inner, one); });
    } else {
        append_stat(line, field, *value);
    }
}

// Binary32, little endian, in base64 (RFC 4648).
std::string base64(const std::vector<float>& values) {
    constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string bytes;
    bytes.reserve(values.size() * 4 + 2);
    for (const float value : values) {
        const auto bits = std::bit_cast<std::uint32_t>(value);
        for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(bits >> shift & 0xFF);
    }
    const std::size_t n_bytes = bytes.size();
    bytes.append((3 - n_bytes % 3) % 3, '\0');
    std::string text;
    text.reserve(bytes.size() / 3 * 4);
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
        const auto byte = [&](std::size_t k) { return std::uint32_t{static_cast<unsigned char>(bytes[i + k])}; };
        const std::uint32_t group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for (int shift = 18; shift >= 0; shift -= 6) text += kDigits[group >> shift & 63];
    }
    for (std::size_t i = n_bytes; i < bytes.size(); ++i) text[text.size() - (bytes.size() - i)] = '=';
    return text;
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
        std::string line = line_of("ok", "id", ok.id);
        visit_fields(ok.stats, [&](const records::Field& field, const auto& value) {
            if (field.name == "stop" && ok.output_path) append_field(line, "out", percent_encode(*ok.output_path));
            append_stat(line, field, value);
        });
        return line;
    }
    std::string operator()(const CompressOk& r) const {
        std::string parts;
        for (const PinSpan& part : r.parts) {
            parts += (parts.empty() ? "" : ",") + std::to_string(part.begin) + ':' + std::to_string(part.end);
        }
        return line_of("ok", "id", r.id, "in", r.n_in, "out", r.n_out, "parts", parts);
    }
    std::string operator()(const Err& err) const {
        const std::string line = line_of("err " + std::string(name_of(err.error.code)), "id", err.id);
        const std::string text = clean_text(err.error.text);
        // A text that itself begins like an id is set off by a second space, so that nobody reads it as one.
        const bool looks_like_id = !err.id && text.starts_with("id=");
        return text.empty() ? line : line + (looks_like_id ? "  " : " ") + text;
    }
    std::string operator()(const Pong& pong) const { return pong.word.empty() ? "pong" : "pong " + pong.word; }
    std::string operator()(const PlainOk& ok) const { return line_of("ok", "id", ok.id); }
    std::string operator()(const Parked& r) const {
        return line_of("ok", "id", r.id) + " park " + std::string(name_of(r.what));
    }
    std::string operator()(const Unparked& r) const {
        return line_of("ok", "id", r.id) + " unpark " + std::string(name_of(r.what));
    }
    std::string operator()(const Embedding& r) const {
        return line_of("[embedding]", "id", r.id, "N", r.n_tokens, "values", base64(r.values));
    }
    std::string operator()(const Cancelled& r) const { return line_of("[cancel]", "id", r.id); }
    std::string operator()(const PrefillProgress& r) const {
        return line_of("[prefill]", "id", r.id, "done", r.n_done, "total", r.n_total);
    }
    std::string operator()(const Logprobs& r) const {
        return with_entries(line_of("[lp]", "id", r.id, "i", r.index), r.entries);
    }
    std::string operator()(const PromptLogprobs& r) const {
        return with_entries(line_of("[plp]", "id", r.id, "at", r.position), r.entries);
    }
    std::string operator()(const SnapshotTaken& r) const {
        return line_of("[snap]", "id", r.id, "slot", r.slot, "cur_pos", r.cur_pos);
    }
    std::string operator()(const ThinTaken& r) const {
        return line_of("[snap]", "id", r.id, "slot", r.slot, "from", r.begin, "to", r.end);
    }
    std::string operator()(const SlotFreed& r) const {
        return line_of("[snap]", "id", r.id) + line_of(" freed", "slot", r.slot);
    }
    std::string operator()(const SlotList& r) const {
        std::string slots;
        for (const std::int32_t slot : r.slots) slots += (slots.empty() ? "" : ",") + std::to_string(slot);
        return line_of("[snap]", "id", r.id, "slots", slots);
    }
    std::string operator()(const SlotSaved& r) const {
        return line_of("[snap]", "id", r.id) + line_of(" saved", "slot", r.slot, "bytes", r.bytes);
    }
    std::string operator()(const ImageDescribed& r) const {
        std::string ids;
        for (const Token id : r.ids) ids += (ids.empty() ? "" : ",") + std::to_string(id);
        return line_of("[image]", "id", r.id, "ids", ids);
    }
    std::string operator()(const InlineSnapshot& r) const {
        return line_of("[snap] inline", "id", r.id, "slot", r.slot, "cur_pos", r.cur_pos);
    }
    std::string operator()(const InlineSnapshotFailed& r) const {
        return line_of("[snap] failed", "id", r.id, "slot", r.slot) + ' ' + std::string(luce::name_of(r.code));
    }
    std::string operator()(const StatusLine& status) const { return line_of_pairs("[status]", status.fields); }
    std::string operator()(const TextsLine& texts) const { return line_of_pairs("[texts]", texts.fields); }
    std::string operator()(const PagesLine& line) const {
        return line_of(line.begins_anew ? "[pages] anew=1" : "[pages]", "pages", joined(line.pages));
    }
    std::string operator()(const FilesLine& r) const {
        return line_of("[files]", "id", r.id, "next", r.next, "files", joined(r.files));
    }
    std::string operator()(const Adopted& r) const {
        return line_of("[adopted]", "id", r.id, "new", r.n_new, "known", r.n_known, "missing", r.n_missing);
    }
    std::string operator()(const Probed& r) const {
        return line_of("[probe]", "id", r.id, "N", r.n_tokens, "known", r.n_known, "pages", r.n_pages);
    }
    std::string operator()(const ReadyLine& ready) const { return line_of_pairs("[daemon] ready", ready.fields); }
    std::string operator()(const LoadProgress& r) const { return line_of("[daemon] loading", "percent", r.percent); }
    std::string operator()(const OutOfMemory& r) const {
        return line_of("[daemon] out_of_memory", "reason", percent_encode(clean_text(r.reason)));
    }
    std::string operator()(const PoolSize& pool) const { return line_of("[pool]", "tokens", pool.n_tokens); }
};

}  // namespace

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
    add("spec_draft_s", seconds(speculation.draft_s));
    add("spec_verify_s", seconds(speculation.verify_s));
}

std::string format_reply(const Reply& reply) { return std::visit(Formatter{}, reply) + '\n'; }

}  // namespace luce::wire
