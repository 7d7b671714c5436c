// Every list is read by one loop, parse_list; what differs is how an item is read. Must not know which key a list
// belongs to.
#include "wire/list_values.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>

#include "wire/named_args.h"
#include "wire/refusal.h"
#include "wire/scalar_values.h"
#include "wire/words.h"

namespace luce::wire {

namespace {

template <typename Item>
Result<std::vector<Item>> parse_list(std::string_view text, char separator, Result<Item> (*parse)(std::string_view)) {
    std::vector<Item> items;
    ListReader reader(text, separator);
    while (const std::optional<std::string_view> piece = reader.next()) {
        Result<Item> item = parse(*piece);
        if (!item) return item.error();
        items.push_back(std::move(item).value());
    }
    return items;
}

struct Pair {
    std::string_view left;
    std::string_view right;
};

// Cut at the first colon: what follows may hold more of them.
std::optional<Pair> split_pair(std::string_view text) {
    const std::size_t colon = text.find(':');
    if (colon == std::string_view::npos) return std::nullopt;
    return Pair{text.substr(0, colon), text.substr(colon + 1)};
}

// A position or a slot.
Result<std::int32_t> parse_number(std::string_view text) {
    Result<std::int32_t> number = parse_count(text);
    if (!number) return bad_args("'" + shortened(text) + "' " + number.error().text);
    return number;
}

Result<float> parse_bias(std::string_view text) {
    if (text == "-inf") return -std::numeric_limits<float>::infinity();
    return parse_real(text, kAnyReal);
}

Result<std::pair<Token, float>> parse_biased_token(std::string_view text) {
    const std::optional<Pair> pair = split_pair(text);
    if (!pair) return bad_args("'" + shortened(text) + "' is not id:bias");
    const Result<Token> token = parse_token(pair->left);
    if (!token) return token.error();
    const Result<float> bias = parse_bias(pair->right);
    if (!bias) return bad_args("bias '" + shortened(pair->right) + "' " + bias.error().text);
    return std::pair(token.value(), bias.value());
}

std::optional<GrammarTrigger::Kind> trigger_kind(std::string_view name) {
    if (name == "word") return GrammarTrigger::Kind::word;
    if (name == "pattern") return GrammarTrigger::Kind::pattern;
    if (name == "full") return GrammarTrigger::Kind::pattern_full;
    if (name == "token") return GrammarTrigger::Kind::token;
    return std::nullopt;
}

Result<GrammarTrigger> parse_trigger(std::string_view text) {
    const std::optional<Pair> pair = split_pair(text);
    const std::optional<GrammarTrigger::Kind> kind = pair ? trigger_kind(pair->left) : std::nullopt;
    if (!kind) return bad_args("'" + shortened(text) + "' is none of word:, pattern:, full: and token:");
    GrammarTrigger trigger{.kind = *kind, .text = {}, .token = 0};
    if (*kind == GrammarTrigger::Kind::token) {
        const Result<Token> token = parse_token(pair->right);
        if (!token) return token.error();
        trigger.token = token.value();
        return trigger;
    }
    Result<std::string> decoded = parse_text(pair->right);
    if (!decoded) return decoded.error();
    if (decoded.value().empty()) return bad_args("a trigger has no text");
    trigger.text = std::move(decoded).value();
    return trigger;
}

Result<std::string> parse_item(std::string_view text) {
    if (text.empty()) return bad_args("has an empty text");
    return parse_text(text);
}

Result<SamplerKind> parse_sampler(std::string_view text) {
    const auto found = std::ranges::find(records::kSamplerKindNames, text);
    const auto index = found - std::begin(records::kSamplerKindNames);
    if (found != std::end(records::kSamplerKindNames)) return static_cast<SamplerKind>(index);
    return bad_args("'" + shortened(text) + "' is no sampler");
}

Result<std::vector<Token>> parse_alternative(std::string_view text) {
    if (text.empty()) return bad_args("has an empty alternative");
    return parse_tokens(text);
}

// Two positions or counts around a colon.
Result<PinSpan> parse_colon_numbers(std::string_view text, std::string_view shape) {
    const std::optional<Pair> pair = split_pair(text);
    if (!pair) return bad_args("'" + shortened(text) + "' is not " + std::string(shape));
    const Result<Position> left = parse_number(pair->left);
    if (!left) return left.error();
    const Result<Position> right = parse_number(pair->right);
    if (!right) return right.error();
    return PinSpan{left.value(), right.value()};
}

Result<PinSpan> parse_pin(std::string_view text) {
    Result<PinSpan> span = parse_colon_numbers(text, "begin:end");
    if (!span || span.value().begin < span.value().end) return span;
    return bad_args("'" + shortened(text) + "' must begin before it ends");
}

Result<SnapshotPoint> parse_snapshot(std::string_view text) {
    const Result<PinSpan> numbers = parse_colon_numbers(text, "pos:slot");
    if (!numbers) return numbers.error();
    return SnapshotPoint{.position = numbers.value().begin, .slot = numbers.value().end};
}

Result<ImageAt> parse_image(std::string_view text) {
    const std::optional<Pair> pair = split_pair(text);
    if (!pair) return bad_args("'" + shortened(text) + "' is not pos:path");
    const Result<Position> position = parse_number(pair->left);
    if (!position) return position.error();
    Result<std::string> path = parse_item(pair->right);
    if (!path) return path.error();
    return ImageAt{position.value(), std::move(path).value()};
}

std::optional<std::int32_t> slot_given_twice(const std::vector<SnapshotPoint>& points) {
    std::vector<std::int32_t> slots;
    slots.reserve(points.size());
    for (const SnapshotPoint& point : points) slots.push_back(point.slot);
    std::ranges::sort(slots);
    const auto twice = std::ranges::adjacent_find(slots);
    return twice == slots.end() ? std::nullopt : std::optional(*twice);
}

}  // namespace

Result<std::vector<Token>> parse_tokens(std::string_view text) { return parse_list<Token>(text, ',', parse_token); }

Result<std::vector<std::vector<Token>>> parse_token_alternatives(std::string_view text) {
    return parse_list<std::vector<Token>>(text, '|', parse_alternative);
}

Result<std::vector<std::pair<Token, float>>> parse_logit_bias(std::string_view text) {
    return parse_list<std::pair<Token, float>>(text, ',', parse_biased_token);
}

Result<std::vector<GrammarTrigger>> parse_triggers(std::string_view text) {
    return parse_list<GrammarTrigger>(text, ',', parse_trigger);
}

Result<std::vector<std::string>> parse_texts(std::string_view text) { return parse_list(text, ',', parse_item); }

Result<std::vector<SamplerKind>> parse_samplers(std::string_view text) {
    Result<std::vector<SamplerKind>> kinds = parse_list(text, ',', parse_sampler);
    if (!kinds) return kinds;
    for (auto kind = kinds.value().begin(); kind != kinds.value().end(); ++kind) {
        if (std::find(kinds.value().begin(), kind, *kind) != kind) return bad_args("names a sampler twice");
    }
    return kinds;
}

Result<std::vector<Position>> parse_marks(std::string_view text) {
    Result<std::vector<Position>> marks = parse_list<Position>(text, ',', parse_number);
    if (marks && marks.value().size() > kMaxMarks) {
        return bad_args("has more than " + std::to_string(kMaxMarks) + " positions");
    }
    return marks;
}

Result<std::vector<std::int32_t>> parse_slots(std::string_view text) {
    return parse_list<std::int32_t>(text, ',', parse_number);
}

Result<std::vector<SnapshotPoint>> parse_snapshots(std::string_view text) {
    Result<std::vector<SnapshotPoint>> points = parse_list<SnapshotPoint>(text, ',', parse_snapshot);
    if (!points) return points;
    const std::optional<std::int32_t> twice = slot_given_twice(points.value());
    if (twice) return bad_args("names slot " + std::to_string(*twice) + " twice");
    return points;
}

Result<std::vector<PinSpan>> parse_pins(std::string_view text) {
    Result<std::vector<PinSpan>> pins = parse_list<PinSpan>(text, ',', parse_pin);
    if (pins && pins.value().size() > kMaxMarks)
        return bad_args("has more than " + std::to_string(kMaxMarks) + " spans");
    return pins;
}

Result<std::vector<ImageAt>> parse_images(std::string_view text) {
    Result<std::vector<ImageAt>> images = parse_list<ImageAt>(text, ',', parse_image);
    if (!images) return images;
    if (images.value().size() > kMaxMarks) return bad_args("has more than " + std::to_string(kMaxMarks) + " images");
    const auto falls = std::ranges::adjacent_find(
        images.value(), [](const ImageAt& a, const ImageAt& b) { return a.position >= b.position; });
    if (falls != images.value().end()) return bad_args("has positions that do not rise");
    return images;
}

Result<SamplingArgs> parse_samp(std::string_view text) {
    SamplingArgs sampling;
    ListReader reader(text, ',');
    const auto read = [&reader](const char* name, auto& field, auto parse) -> Result<void> {
        const Result<void> done = store(field, parse(reader.next().value_or("")));
        if (!done) return bad_args(std::string(name) + " " + done.error().text);
        return {};
    };
    const auto real_in = [](RealRange range) {
        return [range](std::string_view word) { return parse_real(word, range); };
    };
    Result<void> done = read("temperature", sampling.temperature, real_in(kNotNegative));
    if (done) done = read("top_p", sampling.top_p, real_in(kPositiveProbability));
    if (done) done = read("top_k", sampling.top_k, parse_count);
    if (done) done = read("repeat", sampling.repeat_penalty, real_in(kPositive));
    if (done && reader.has_next()) done = read("seed", sampling.seed, parse_uint64);
    if (!done) return done.error();
    if (reader.has_next()) return bad_args("has more than temperature,top_p,top_k,repeat,seed");
    return sampling;
}

}  // namespace luce::wire
