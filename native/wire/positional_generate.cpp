// Words are taken from both ends of the line, so that what lies between is the path, exactly as it was written.
#include "wire/positional_generate.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "wire/list_values.h"
#include "wire/named_args.h"
#include "wire/refusal.h"
#include "wire/scalar_values.h"
#include "wire/words.h"

namespace luce::wire {

namespace {

constexpr NamedKey<Generate> kOptions[] = {
    {"samp", false, [](Generate& g, std::string_view v) { return store(g.sampling, parse_samp(v)); }},
    {"snap", false, [](Generate& g, std::string_view v) { return store(g.memory.snapshots, parse_snapshots(v)); }},
};

bool is_option(std::string_view word) { return word.starts_with("samp=") || word.starts_with("snap="); }

// The line up to its last word that is no trailing option. The first word always stays.
std::string_view without_options(std::string_view line) {
    LastWord last = split_last_word(line);
    while (!last.head.empty() && is_option(last.word)) {
        line = last.head;
        last = split_last_word(line);
    }
    return line;
}

Result<Generate> parse_line(std::string_view line) {
    line = trim(line);
    const std::string_view path_and_count = without_options(line);
    Result<Generate> options = read_named_args<Generate>(line.substr(path_and_count.size()), std::span(kOptions));
    if (!options) return options;
    const LastWord last = split_last_word(path_and_count);
    if (last.head.empty()) return bad_args("a path and n_gen are needed");
    const Result<std::int32_t> n_generate = parse_placed_count("n_gen", last.word);
    if (!n_generate) return n_generate.error();
    options.value().prompt_path = std::string(last.head);
    options.value().n_generate = n_generate.value();
    return options;
}

Result<Command> as_command(Result<Generate> command) {
    if (!command) return command.error();
    return Command(std::move(command).value());
}

}  // namespace

bool is_positional_generate(std::string_view line) {
    const std::string_view first = WordReader(line).next().value_or("");
    if (first.find('/') != std::string_view::npos) return true;
    const LastWord last = split_last_word(without_options(trim(line)));
    return !last.head.empty() && looks_like_integer(last.word);
}

Result<Command> parse_positional_generate(std::string_view line) { return as_command(parse_line(line)); }

Result<Command> parse_restore(std::string_view arguments) {
    WordReader words(arguments);
    const Result<std::int32_t> slot = parse_placed_count("slot", words.next());
    if (!slot) return slot.error();
    Result<Generate> command = parse_line(words.rest());
    if (command) command.value().memory.restore_slot = slot.value();
    return as_command(std::move(command));
}

Result<Command> parse_restore_chain(std::string_view arguments) {
    WordReader words(arguments);
    const Result<std::int32_t> base = parse_placed_count("slot", words.next());
    if (!base) return base.error();
    const std::optional<std::string_view> thin_slots = words.next();
    if (!thin_slots) return bad_args("the thin slots are missing");
    Result<std::vector<std::int32_t>> chain = parse_slots(*thin_slots);
    if (!chain) return bad_args("thin slot " + chain.error().text);
    Result<Generate> command = parse_line(words.rest());
    if (!command) return command.error();
    command.value().memory.restore_slot = base.value();
    command.value().memory.chain = std::move(chain).value();
    return as_command(std::move(command));
}

Result<Command> parse_generate(std::string_view arguments) {
    WordReader words(arguments);
    const std::optional<std::string_view> in = words.next();
    const std::optional<std::string_view> n_gen = words.next();
    const std::optional<std::string_view> out = words.next();
    if (!out || words.next()) return bad_args("generate needs <in> <n_gen> <out>, paths without spaces");
    const Result<std::int32_t> n_generate = parse_placed_count("n_gen", n_gen);
    if (!n_generate) return n_generate.error();
    Generate command;
    command.form = Generate::Form::file;
    command.prompt_path = std::string(*in);
    command.output_path = std::string(*out);
    command.n_generate = n_generate.value();
    return Command(std::move(command));
}

Result<Command> parse_positional_compress(std::string_view arguments) {
    WordReader words(arguments);
    const std::optional<std::string_view> path = words.next();
    if (!path) return bad_args("path is missing");
    const std::optional<std::string_view> kept = words.next();
    if (!kept) return bad_args("keep_x1000 is missing");
    const Result<std::int32_t> keep_x1000 = parse_int32(*kept, 1, 1000);
    if (!keep_x1000) return bad_args("keep_x1000 '" + shortened(*kept) + "' " + keep_x1000.error().text);
    Compress command;
    command.prompt_path = std::string(*path);
    command.share = static_cast<float>(keep_x1000.value() / 1000.0);  // as share= is rounded
    std::optional<std::string_view> word = words.next();
    if (word && *word != "nopark") {
        command.scorer = std::string(*word);
        word = words.next();
    }
    // Other daemons parked the target meanwhile. This one never does, so that `nopark` means nothing.
    if ((word && *word != "nopark") || words.next()) return bad_args("nothing but nopark may follow the scorer");
    return Command(std::move(command));
}

}  // namespace luce::wire
