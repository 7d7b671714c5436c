// Which command a line is, and the small ones' arguments. What a line was meant to be is found out before its text is
// judged, so that also the refusal of a broken line can say which request it was for.
#include "wire/command_parser.h"

#include <algorithm>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "wire/generate_parser.h"
#include "wire/memory_parser.h"
#include "wire/named_args.h"
#include "wire/refusal.h"
#include "wire/scalar_values.h"
#include "wire/utf8.h"
#include "wire/words.h"

namespace luce::wire {

namespace {

enum class Form {
    gen,
    generate,
    cancel,
    status,
    ping,
    quit,
    restore,
    restore_chain,
    memory,
    memory_words,         // the same in capitals: words by their place, and no id
    reserved_generating,  // in the protocol, not in this build; it would generate
    positional,
    unknown,
};

struct Verb {
    std::string_view name;
    Form form;
};

constexpr Verb kVerbs[] = {
    {"gen", Form::gen},
    {"generate", Form::generate},
    {"cancel", Form::cancel},
    {"status", Form::status},
    {"ping", Form::ping},
    {"quit", Form::quit},
    {"exit", Form::quit},
    {"RESTORE", Form::restore},
    {"RESTORE_CHAIN", Form::restore_chain},
    {"compress", Form::reserved_generating},
};

struct Line {
    Form form;
    std::string_view text;
    std::string_view verb;
    std::string_view arguments;          // what follows the verb
    const MemoryVerb* memory = nullptr;  // of the memory forms
};

Line classify(std::string_view text) {
    WordReader words(text);
    const std::string_view verb = words.next().value_or("");
    Line line{Form::unknown, text, verb, words.rest()};
    for (const Verb& known : kVerbs) {
        if (known.name == verb) {
            line.form = known.form;
            return line;
        }
    }
    line.memory = find_memory_verb(verb);
    if (line.memory != nullptr) {
        line.form = line.memory->carries_id ? Form::memory : Form::memory_words;
    } else if (is_positional_generate(text)) {
        line.form = Form::positional;
    }
    return line;
}

bool is_generating(Form form) {
    switch (form) {
        case Form::gen:
        case Form::generate:
        case Form::restore:
        case Form::restore_chain:
        case Form::positional:
        case Form::reserved_generating: return true;
        default: return false;
    }
}

// In these a word that begins with id= is a piece of a path, or the word to echo.
bool carries_no_id(Form form) {
    switch (form) {
        case Form::generate:
        case Form::ping:
        case Form::restore:
        case Form::restore_chain:
        case Form::memory_words:
        case Form::positional: return true;
        default: return false;
    }
}

// The first readable id= of a line that may carry one.
std::optional<RequestId> id_in(const Line& line) {
    if (carries_no_id(line.form)) return std::nullopt;
    WordReader words(line.arguments);
    while (const std::optional<std::string_view> word = words.next()) {
        if (!word->starts_with("id=")) continue;
        const Result<RequestId> id = parse_int32(word->substr(3), 0, kMaxInt32);
        if (id) return id.value();
    }
    return std::nullopt;
}

template <typename T>
Result<Command> as_command(Result<T> command) {
    if (!command) return command.error();
    return Command(std::move(command).value());
}

Result<Cancel> parse_cancel(std::string_view arguments) {
    constexpr NamedKey<Cancel> kKeys[] = {
        {"id", true, [](Cancel& c, std::string_view v) { return store(c.id, parse_int32(v, 0, kMaxInt32)); }},
    };
    return read_named_args<Cancel>(arguments, std::span(kKeys));
}

Result<Status> parse_status(std::string_view arguments) {
    constexpr NamedKey<Status> kKeys[] = {
        {"id", false, [](Status& s, std::string_view v) { return store(s.id, parse_int32(v, 0, kMaxInt32)); }},
        {"check", false, [](Status& s, std::string_view v) { return store(s.check, parse_flag(v)); }},
    };
    return read_named_args<Status>(arguments, std::span(kKeys));
}

Result<Ping> parse_ping(std::string_view arguments) {
    WordReader words(arguments);
    const std::string_view word = words.next().value_or("");
    if (words.next()) return bad_args("ping takes one word at most");
    if (std::ranges::any_of(word, is_control)) return bad_args("ping's word holds a control character");
    return Ping{std::string(word)};
}

Result<Quit> parse_quit(const Line& line) {
    if (!is_blank(line.arguments)) return bad_args(std::string(line.verb) + " takes no arguments");
    return Quit{};
}

Result<Command> parse_classified(const Line& line) {
    switch (line.form) {
        case Form::gen: return as_command(parse_named_generate(line.arguments));
        case Form::generate: return as_command(parse_file_generate(line.arguments));
        case Form::positional: return as_command(parse_positional_generate(line.text));
        case Form::cancel: return as_command(parse_cancel(line.arguments));
        case Form::status: return as_command(parse_status(line.arguments));
        case Form::ping: return as_command(parse_ping(line.arguments));
        case Form::quit: return as_command(parse_quit(line));
        case Form::restore: return as_command(parse_restore(line.arguments));
        case Form::restore_chain: return as_command(parse_restore_chain(line.arguments));
        case Form::memory:
        case Form::memory_words: return line.memory->parse(line.arguments);
        case Form::reserved_generating: return not_yet(line.verb);
        case Form::unknown: break;
    }
    return Error{ErrorCode::unknown_command, "there is no command '" + shortened(line.verb) + "'"};
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
    return ParseError{command.error(), id_in(line), is_generating(line.form)};
}

}  // namespace luce::wire
