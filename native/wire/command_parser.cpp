// Which command a line is, and how its words are read. Which verbs and keys there are is protocol/commands.json's: the
// build makes wire/command_table.inc of it. What a line was meant to be is found out before its text is judged, so that
// also the refusal of a broken line can say which request it was for. Whether a slot exists, an id is in the vocabulary
// or a text fits is not known here.
#include "wire/command_parser.h"

#include <algorithm>
#include <array>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "wire/list_values.h"
#include "wire/named_args.h"
#include "wire/positional_generate.h"
#include "wire/refusal.h"
#include "wire/scalar_values.h"
#include "wire/utf8.h"
#include "wire/words.h"

namespace luce::wire {

namespace {

struct Verb {
    std::string_view name;
    Result<Command> (*parse)(std::string_view arguments);
    bool generates;
    bool carries_id;
};

template <typename T>
constexpr std::array<NamedKey<T>, 0> kKeys{};
template <typename T>
constexpr std::array<std::string_view, 0> kPlaces{};

// Values that only commands have

Result<std::string> parse_path(std::string_view value) {
    if (value.empty()) return bad_args("has no path");
    return parse_text(value);
}

// A value that begins with a plain `@` names a file; `%40` begins a text.
Result<std::string> parse_file(std::string_view value) {
    if (value.size() == 1) return bad_args("has no path after the @");
    return parse_text(value.substr(1));
}

Result<std::vector<Token>> parse_prompt(std::string_view value) {
    if (value.empty()) return Error{ErrorCode::empty_prompt, "a prompt needs at least one token"};
    return parse_tokens(value);
}

Result<std::string> parse_grammar(std::string_view value) {
    if (value.empty()) return bad_args("is empty: leave it out for no grammar");
    return parse_text(value);
}

Result<Park::What> parse_weights(std::string_view value) {
    if (value == "target") return Park::What::target;
    if (value == "draft") return Park::What::draft;
    return bad_args("must be target or draft");
}

Result<Reading> parse_reading(std::string_view value) {
    if (value == "full") return Reading::full;
    if (value == "sparse") return Reading::sparse;
    if (value == "auto") return Reading::automatic;
    return bad_args("must be full, sparse or auto");
}

// What no single value shows

Result<void> check(const Generate& command) {
    const ConstraintArgs& constraint = command.constraint;
    const bool has_grammar = constraint.grammar || constraint.grammar_path;
    if (constraint.grammar_lazy && (!has_grammar || constraint.triggers.empty())) {
        return bad_args("grammar_lazy=1 needs grammar= and triggers=");
    }
    if (constraint.think_budget && (constraint.think_start.empty() || constraint.think_end.empty())) {
        return bad_args("think_budget= needs think_start= and think_end=");
    }
    const MemoryArgs& memory = command.memory;
    if (command.prompt_logprobs_from > 0 && !command.n_prompt_logprobs) {
        return bad_args("prompt_logprobs_from= needs prompt_logprobs=");
    }
    if (command.n_prompt_logprobs && memory.restore_slot) return bad_args("prompt_logprobs= is not for restore=");
    if (memory.restore_at && !memory.restore_slot) return bad_args("restore_at= needs restore=");
    if (memory.salt_from && !memory.salt) return bad_args("salt_from= needs salt=");
    if (!memory.chain.empty() && !memory.restore_slot) return bad_args("chain= needs restore=");
    return {};
}

Result<void> check(const ThinSnapshot& thin) {
    if (thin.begin >= thin.end) return bad_args("from must be before to");
    return {};
}

Result<void> check(const ProbeText& probe) {
    if (probe.salt_from && !probe.salt) return bad_args("salt_from= needs salt=");
    return {};
}

template <typename T>
Result<void> check(const T&) {
    return {};
}

template <typename T>
Result<Command> checked(T command, Result<void> read) {
    if (read) read = check(command);
    if (!read) return read.error();
    return Command(std::move(command));
}

// The forms

template <typename T>
Result<Command> by_name(std::string_view arguments) {
    Result<T> command = read_named_args<T>(arguments, std::span<const NamedKey<T>>(kKeys<T>));
    if (!command) return command.error();
    if constexpr (std::is_same_v<T, Generate>) command.value().form = Generate::Form::named;
    return checked(std::move(command).value(), {});
}

// What follows the numbers: a path exactly as it is written, the one word `disk`, or nothing.
template <typename T>
Result<void> read_rest(T& command, std::string_view rest) {
    rest = trim(rest);
    if constexpr (requires { command.path; }) {
        if (rest.empty()) return bad_args("path is missing");
        command.path = std::string(rest);
    } else if constexpr (std::is_same_v<T, Clear>) {
        if (!rest.empty() && rest != "disk") return bad_args("CLEAR takes nothing but disk");
        command.disk = !rest.empty();
    } else if constexpr (std::is_same_v<T, ListSlots>) {
        if (!rest.empty()) return bad_args("LIST_SLOTS takes no arguments");
    } else if (!rest.empty()) {
        return bad_args("'" + shortened(rest) + "' is too much");
    }
    return {};
}

template <typename T>
Result<Command> by_place(std::string_view arguments) {
    T command;
    WordReader words(arguments);
    for (const std::string_view place : kPlaces<T>) {
        const std::optional<std::string_view> word = words.next();
        if (!word) return bad_args(std::string(place) + " is missing");
        const auto key = std::ranges::find(kKeys<T>, place, &NamedKey<T>::name);
        const Result<void> done = key->read(command, *word);
        if (!done) return bad_args(std::string(place) + " '" + shortened(*word) + "' " + done.error().text);
    }
    const Result<void> done = read_rest(command, words.rest());
    return checked(std::move(command), done);
}

// Park, Unpark: one of two words, or nothing.
template <typename T>
Result<Command> parse_weights_word(std::string_view arguments) {
    T command;
    WordReader words(arguments);
    const std::optional<std::string_view> word = words.next();
    if (!word) return Command(command);
    const Result<void> done = store(command.what, parse_weights(*word));
    if (!done) return bad_args("'" + shortened(*word) + "' " + done.error().text);
    if (words.next()) return bad_args("one of target and draft, and nothing more");
    return Command(command);
}

// Park, Unpark, Compress: the one verb has both forms. Its first word tells which.
template <typename T>
Result<Command> by_first_word(std::string_view arguments) {
    const std::string_view word = WordReader(arguments).next().value_or("");
    if (word.find('=') != std::string_view::npos) return by_name<T>(arguments);
    if constexpr (std::is_same_v<T, Compress>) {
        return parse_positional_compress(arguments);
    } else {
        return parse_weights_word<T>(arguments);
    }
}

Result<Command> parse_ping(std::string_view arguments) {
    WordReader words(arguments);
    const std::string_view word = words.next().value_or("");
    if (words.next()) return bad_args("ping takes one word at most");
    if (std::ranges::any_of(word, is_control)) return bad_args("ping's word holds a control character");
    return Command(Ping{std::string(word)});
}

Result<Command> parse_quit(std::string_view arguments) {
    if (!is_blank(arguments)) return bad_args("quit and exit take no arguments");
    return Command(Quit{});
}

// The one form of `free` that names no slot.
Result<Command> parse_free_drafter(std::string_view arguments) {
    if (trim(arguments) != "drafter") return bad_args("free drafter takes no arguments");
    return Command(FreeScorer{});
}

#include "wire/command_table.inc"

struct Line {
    std::string_view text;
    std::string_view verb;
    std::string_view arguments;  // what follows the verb
    const Verb* known = nullptr;
    bool is_positional = false;  // its first word is no verb, but a path

    bool generates() const { return is_positional || (known != nullptr && known->generates); }
    bool may_carry_id() const { return !is_positional && (known == nullptr || known->carries_id); }
};

Line classify(std::string_view text) {
    WordReader words(text);
    const std::string_view verb = words.next().value_or("");
    const auto known = std::ranges::find(kVerbs, verb, &Verb::name);
    Line line{.text = text, .verb = verb, .arguments = words.rest()};
    if (known != std::end(kVerbs)) {
        line.known = &*known;
    } else {
        line.is_positional = is_positional_generate(text);
    }
    return line;
}

// The first readable id= of a line that may carry one.
std::optional<RequestId> id_in(const Line& line) {
    if (!line.may_carry_id()) return std::nullopt;
    WordReader words(line.arguments);
    while (const std::optional<std::string_view> word = words.next()) {
        if (!word->starts_with("id=")) continue;
        const Result<RequestId> id = parse_count(word->substr(3));
        if (id) return id.value();
    }
    return std::nullopt;
}

Result<Command> parse_classified(const Line& line) {
    if (line.is_positional) return parse_positional_generate(line.text);
    if (line.known == nullptr) {
        return Error{ErrorCode::unknown_command, "there is no command '" + shortened(line.verb) + "'"};
    }
    if (line.verb == "free" && WordReader(line.arguments).next() == "drafter") {
        return parse_free_drafter(line.arguments);
    }
    return line.known->parse(line.arguments);
}

Result<Command> parse_checked(const Line& line) try {
    if (line.text.find('\0') != std::string_view::npos) return bad_args("the line holds a NUL byte");
    if (!is_utf8(line.text)) return bad_args("the line is not UTF-8");
    if (is_blank(line.text)) return bad_args("the line is empty");
    return parse_classified(line);
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "no memory for what the line holds"};
}

}  // namespace

std::variant<Command, ParseError> parse_command(std::string_view text) {
    const Line line = classify(text);
    Result<Command> command = parse_checked(line);
    if (command) return std::move(command).value();
    return ParseError{command.error(), id_in(line), line.generates()};
}

}  // namespace luce::wire
