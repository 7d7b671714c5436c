// One table says which verbs there are; the forms by name are tables of keys, those in capitals are words by their
// place. Whether a slot exists, or holds something, is the daemon's to say.
#include "wire/memory_parser.h"

#include <array>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "wire/named_args.h"
#include "wire/refusal.h"
#include "wire/scalar_values.h"
#include "wire/words.h"

namespace luce::wire {

namespace {

using Value = std::string_view;

Result<std::int32_t> count(Value value) { return parse_int32(value, 0, kMaxInt32); }

// Forms by name

Result<std::string> parse_path(Value value) {
    if (value.empty()) return bad_args("has no path");
    return parse_text(value);
}

Result<Park::What> parse_what(Value value) {
    if (value == "target") return Park::What::target;
    if (value == "draft") return Park::What::draft;
    return bad_args("must be target or draft");
}

template <typename T>
constexpr NamedKey<T> kId{"id", true, [](T& c, Value v) { return store(c.id, count(v)); }};
template <typename T>
constexpr NamedKey<T> kSlot{"slot", true, [](T& c, Value v) { return store(c.slot, count(v)); }};
template <typename T>
constexpr NamedKey<T> kOf{"of", false, [](T& c, Value v) { return store(c.of, count(v)); }};
template <typename T>
constexpr NamedKey<T> kPath{"path", true, [](T& c, Value v) { return store(c.path, parse_path(v)); }};
template <typename T>
constexpr NamedKey<T> kWhat{"what", false, [](T& c, Value v) { return store(c.what, parse_what(v)); }};

Result<void> check_range(const ThinSnapshot& thin) {
    if (thin.begin >= thin.end) return bad_args("from must be before to");
    return {};
}

Result<Snapshot> parse_snapshot(Value arguments) {
    constexpr NamedKey<Snapshot> kKeys[] = {kId<Snapshot>, kSlot<Snapshot>, kOf<Snapshot>};
    return read_named_args<Snapshot>(arguments, std::span(kKeys));
}

Result<ThinSnapshot> parse_thin(Value arguments) {
    constexpr NamedKey<ThinSnapshot> kKeys[] = {
        kId<ThinSnapshot>,
        kSlot<ThinSnapshot>,
        {"from", true, [](ThinSnapshot& t, Value v) { return store(t.begin, count(v)); }},
        {"to", true, [](ThinSnapshot& t, Value v) { return store(t.end, count(v)); }},
        kOf<ThinSnapshot>,
    };
    Result<ThinSnapshot> thin = read_named_args<ThinSnapshot>(arguments, std::span(kKeys));
    if (!thin) return thin;
    if (const Result<void> checked = check_range(thin.value()); !checked) return checked.error();
    return thin;
}

Result<FreeSlot> parse_free(Value arguments) {
    if (WordReader(arguments).next() == "drafter") return not_yet("free drafter");
    constexpr NamedKey<FreeSlot> kKeys[] = {kId<FreeSlot>, kSlot<FreeSlot>};
    return read_named_args<FreeSlot>(arguments, std::span(kKeys));
}

Result<ListSlots> parse_list(Value arguments) {
    constexpr NamedKey<ListSlots> kKeys[] = {kId<ListSlots>};
    return read_named_args<ListSlots>(arguments, std::span(kKeys));
}

// SaveSlot, LoadSlot
template <typename T>
Result<T> parse_file_transfer(Value arguments) {
    constexpr NamedKey<T> kKeys[] = {kId<T>, kSlot<T>, kPath<T>};
    return read_named_args<T>(arguments, std::span(kKeys));
}

Result<Clear> parse_clear(Value arguments) {
    constexpr NamedKey<Clear> kKeys[] = {
        kId<Clear>,
        {"disk", false, [](Clear& c, Value v) { return store(c.disk, parse_flag(v)); }},
    };
    return read_named_args<Clear>(arguments, std::span(kKeys));
}

// Park, Unpark: the one verb has both forms. Its first word tells which.
template <typename T>
Result<T> parse_park(Value arguments) {
    WordReader words(arguments);
    const std::optional<Value> word = words.next();
    if (word && word->find('=') != Value::npos) {
        constexpr NamedKey<T> kKeys[] = {kId<T>, kWhat<T>};
        return read_named_args<T>(arguments, std::span(kKeys));
    }
    T command;
    if (!word) return command;
    const Result<Park::What> what = parse_what(*word);
    if (!what) return bad_args("'" + shortened(*word) + "' " + what.error().text);
    if (words.next()) return bad_args("one of target and draft, and nothing more");
    command.what = what.value();
    return command;
}

// Forms in capitals

// Numbers by their place, all of them needed and nothing after them.
template <std::size_t n>
Result<std::array<std::int32_t, n>> read_numbers(Value arguments, const std::array<std::string_view, n>& names) {
    std::array<std::int32_t, n> numbers{};
    WordReader words(arguments);
    for (std::size_t i = 0; i < n; ++i) {
        const std::optional<Value> word = words.next();
        if (!word) return bad_args(std::string(names[i]) + " is missing");
        const Result<std::int32_t> number = parse_placed_count(names[i], *word);
        if (!number) return number.error();
        numbers[i] = number.value();
    }
    if (const std::optional<Value> more = words.next())
        return bad_args("'" + shortened(*more) + "' is one word too many");
    return numbers;
}

// Snapshot, FreeSlot
template <typename T>
Result<T> parse_slot_words(Value arguments) {
    const auto numbers = read_numbers<1>(arguments, {"slot"});
    if (!numbers) return numbers.error();
    T command;
    command.slot = numbers.value()[0];
    return command;
}

Result<ThinSnapshot> parse_thin_words(Value arguments) {
    const auto numbers = read_numbers<3>(arguments, {"slot", "from", "to"});
    if (!numbers) return numbers.error();
    ThinSnapshot thin;
    thin.slot = numbers.value()[0];
    thin.begin = numbers.value()[1];
    thin.end = numbers.value()[2];
    if (const Result<void> checked = check_range(thin); !checked) return checked.error();
    return thin;
}

Result<ListSlots> parse_list_words(Value arguments) {
    if (!is_blank(arguments)) return bad_args("LIST_SLOTS takes no arguments");
    return ListSlots{};
}

// SaveSlot, LoadSlot: the path is what follows the slot, exactly as it is written.
template <typename T>
Result<T> parse_transfer_words(Value arguments) {
    WordReader words(arguments);
    const std::optional<Value> word = words.next();
    if (!word) return bad_args("slot is missing");
    const Result<std::int32_t> slot = parse_placed_count("slot", *word);
    if (!slot) return slot.error();
    const Value path = trim(words.rest());
    if (path.empty()) return bad_args("path is missing");
    T command;
    command.slot = slot.value();
    command.path = std::string(path);
    return command;
}

Result<Clear> parse_clear_words(Value arguments) {
    const Value what = trim(arguments);
    if (!what.empty() && what != "disk") return bad_args("CLEAR takes nothing but disk");
    Clear clear;
    clear.disk = !what.empty();
    return clear;
}

template <auto parse>
Result<Command> command_of(Value arguments) {
    auto command = parse(arguments);
    if (!command) return command.error();
    return Command(std::move(command).value());
}

constexpr MemoryVerb kMemoryVerbs[] = {
    {"SNAPSHOT", false, command_of<parse_slot_words<Snapshot>>},
    {"SNAPSHOT_THIN", false, command_of<parse_thin_words>},
    {"FREE_SNAPSHOT", false, command_of<parse_slot_words<FreeSlot>>},
    {"LIST_SLOTS", false, command_of<parse_list_words>},
    {"SAVE", false, command_of<parse_transfer_words<SaveSlot>>},
    {"LOAD", false, command_of<parse_transfer_words<LoadSlot>>},
    {"CLEAR", false, command_of<parse_clear_words>},
    {"snapshot", true, command_of<parse_snapshot>},
    {"thin", true, command_of<parse_thin>},
    {"free", true, command_of<parse_free>},
    {"list", true, command_of<parse_list>},
    {"save", true, command_of<parse_file_transfer<SaveSlot>>},
    {"load", true, command_of<parse_file_transfer<LoadSlot>>},
    {"clear", true, command_of<parse_clear>},
    {"park", true, command_of<parse_park<Park>>},
    {"unpark", true, command_of<parse_park<Unpark>>},
};

}  // namespace

const MemoryVerb* find_memory_verb(std::string_view verb) {
    for (const MemoryVerb& known : kMemoryVerbs) {
        if (known.name == verb) return &known;
    }
    return nullptr;
}

}  // namespace luce::wire
