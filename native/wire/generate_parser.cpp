// One table says which keys `gen` has, another what may follow a positional command; the rest is how the forms differ.
// Checks that need no model are made here, ids against the vocabulary and lengths against the context are not.
#include "wire/generate_parser.h"

#include <optional>

#include "wire/list_values.h"
#include "wire/named_args.h"
#include "wire/refusal.h"
#include "wire/scalar_values.h"
#include "wire/words.h"

namespace luce::wire {

namespace {

using Value = std::string_view;

// A value that begins with a plain `@` names a file; `%40` begins a text.
Result<void> read_path(std::optional<std::string>& path, Value value) {
    if (value.size() == 1) return bad_args("has no path after the @");
    return store(path, parse_text(value.substr(1)));
}

Result<void> read_prompt(Generate& command, Value value) {
    if (value.empty()) return Error{ErrorCode::empty_prompt, "a prompt needs at least one token"};
    if (value.starts_with('@')) return read_path(command.prompt_path, value);
    return store(command.prompt, parse_tokens(value));
}

Result<void> read_grammar(Generate& command, Value value) {
    if (value.empty()) return bad_args("is empty: leave it out for no grammar");
    if (value.starts_with('@')) return read_path(command.constraint.grammar_path, value);
    return store(command.constraint.grammar, parse_text(value));
}

template <std::int32_t max>
Result<std::int32_t> count(Value value) {
    return parse_int32(value, 0, max);
}

constexpr auto any_count = count<kMaxInt32>;

constexpr NamedKey<Generate> kNamedKeys[] = {
    {"id", true, [](Generate& g, Value v) { return store(g.id, any_count(v)); }},
    {"n", true, [](Generate& g, Value v) { return store(g.n_generate, any_count(v)); }},
    {"prompt", true, read_prompt},
    {"temp", false, [](Generate& g, Value v) { return store(g.sampling.temperature, parse_real(v, kNotNegative)); }},
    {"top_k", false, [](Generate& g, Value v) { return store(g.sampling.top_k, any_count(v)); }},
    {"top_p", false, [](Generate& g, Value v) { return store(g.sampling.top_p, parse_real(v, kPositiveProbability)); }},
    {"min_p", false, [](Generate& g, Value v) { return store(g.sampling.min_p, parse_real(v, kProbability)); }},
    {"repeat", false, [](Generate& g, Value v) { return store(g.sampling.repeat_penalty, parse_real(v, kPositive)); }},
    {"presence", false,
     [](Generate& g, Value v) { return store(g.sampling.presence_penalty, parse_real(v, kAnyReal)); }},
    {"frequency", false,
     [](Generate& g, Value v) { return store(g.sampling.frequency_penalty, parse_real(v, kAnyReal)); }},
    {"seed", false, [](Generate& g, Value v) { return store(g.sampling.seed, parse_uint64(v)); }},
    {"logit_bias", false, [](Generate& g, Value v) { return store(g.sampling.logit_bias, parse_logit_bias(v)); }},
    {"stop", false, [](Generate& g, Value v) { return store(g.stop_tokens, parse_tokens(v)); }},
    {"ignore_eos", false, [](Generate& g, Value v) { return store(g.ignore_eos, parse_flag(v)); }},
    {"logprobs", false, [](Generate& g, Value v) { return store(g.n_logprobs, count<kMaxLogprobs>(v)); }},
    {"grammar", false, read_grammar},
    {"grammar_lazy", false, [](Generate& g, Value v) { return store(g.constraint.grammar_lazy, parse_flag(v)); }},
    {"triggers", false, [](Generate& g, Value v) { return store(g.constraint.triggers, parse_triggers(v)); }},
    {"preserved", false, [](Generate& g, Value v) { return store(g.constraint.preserved, parse_tokens(v)); }},
    {"gen_prompt", false, [](Generate& g, Value v) { return store(g.constraint.generation_prompt, parse_text(v)); }},
    {"think_budget", false, [](Generate& g, Value v) { return store(g.constraint.think_budget, any_count(v)); }},
    {"think_start", false, [](Generate& g, Value v) { return store(g.constraint.think_start, parse_tokens(v)); }},
    {"think_end", false,
     [](Generate& g, Value v) { return store(g.constraint.think_end, parse_token_alternatives(v)); }},
    {"think_message", false, [](Generate& g, Value v) { return store(g.constraint.think_message, parse_tokens(v)); }},
    {"restore", false, [](Generate& g, Value v) { return store(g.memory.restore_slot, any_count(v)); }},
    {"restore_at", false, [](Generate& g, Value v) { return store(g.memory.restore_at, any_count(v)); }},
    {"chain", false, [](Generate& g, Value v) { return store(g.memory.chain, parse_slots(v)); }},
    {"reuse", false, [](Generate& g, Value v) { return store(g.memory.reuse, parse_flag(v)); }},
    {"snap", false, [](Generate& g, Value v) { return store(g.memory.snapshots, parse_snapshots(v)); }},
    {"marks", false, [](Generate& g, Value v) { return store(g.memory.marks, parse_marks(v)); }},
    {"pin", false, [](Generate& g, Value v) { return store(g.memory.pins, parse_pins(v)); }},
    {"generated", false, [](Generate& g, Value v) { return store(g.n_generated_before, any_count(v)); }},
    {"priority", false,
     [](Generate& g, Value v) { return store(g.priority, parse_int32(v, -kMaxInt32 - 1, kMaxInt32)); }},
};

constexpr NamedKey<Generate> kPositionalKeys[] = {
    {"samp", false, [](Generate& g, Value v) { return store(g.sampling, parse_samp(v)); }},
    {"snap", false, [](Generate& g, Value v) { return store(g.memory.snapshots, parse_snapshots(v)); }},
};

Result<void> check_constraint(const ConstraintArgs& constraint) {
    const bool has_grammar = constraint.grammar || constraint.grammar_path;
    if (constraint.grammar_lazy && (!has_grammar || constraint.triggers.empty())) {
        return bad_args("grammar_lazy=1 needs grammar= and triggers=");
    }
    if (constraint.think_budget && (constraint.think_start.empty() || constraint.think_end.empty())) {
        return bad_args("think_budget= needs think_start= and think_end=");
    }
    return {};
}

Result<void> check_memory(const MemoryArgs& memory) {
    if (memory.restore_at && !memory.restore_slot) return bad_args("restore_at= needs restore=");
    if (!memory.chain.empty() && !memory.restore_slot) return bad_args("chain= needs restore=");
    return {};
}

bool is_positional_option(std::string_view word) { return word.starts_with("samp=") || word.starts_with("snap="); }

// The line up to its last word that is no trailing option. The first word always stays.
std::string_view without_options(std::string_view line) {
    LastWord last = split_last_word(line);
    while (!last.head.empty() && is_positional_option(last.word)) {
        line = last.head;
        last = split_last_word(line);
    }
    return line;
}

Result<std::int32_t> parse_n_generate(std::string_view word) { return parse_placed_count("n_gen", word); }

Result<std::int32_t> read_slot(WordReader& words) {
    const std::optional<std::string_view> word = words.next();
    if (!word) return bad_args("slot is missing");
    return parse_placed_count("slot", *word);
}

}  // namespace

bool is_positional_generate(std::string_view line) {
    const std::string_view first = WordReader(line).next().value_or("");
    if (first.find('/') != std::string_view::npos) return true;
    const LastWord last = split_last_word(without_options(trim(line)));
    return !last.head.empty() && looks_like_integer(last.word);
}

Result<Generate> parse_positional_generate(std::string_view line) {
    line = trim(line);
    const std::string_view path_and_count = without_options(line);
    Result<Generate> options =
        read_named_args<Generate>(line.substr(path_and_count.size()), std::span(kPositionalKeys));
    if (!options) return options;
    const LastWord last = split_last_word(path_and_count);
    if (last.head.empty()) return bad_args("a path and n_gen are needed");
    const Result<std::int32_t> n_generate = parse_n_generate(last.word);
    if (!n_generate) return n_generate.error();
    Generate command = std::move(options).value();
    command.form = Generate::Form::positional;
    command.prompt_path = std::string(last.head);
    command.n_generate = n_generate.value();
    return command;
}

Result<Generate> parse_restore(std::string_view arguments) {
    WordReader words(arguments);
    const Result<std::int32_t> slot = read_slot(words);
    if (!slot) return slot.error();
    Result<Generate> command = parse_positional_generate(words.rest());
    if (command) command.value().memory.restore_slot = slot.value();
    return command;
}

Result<Generate> parse_restore_chain(std::string_view arguments) {
    WordReader words(arguments);
    const Result<std::int32_t> base = read_slot(words);
    if (!base) return base.error();
    const std::optional<std::string_view> thin_slots = words.next();
    if (!thin_slots) return bad_args("the thin slots are missing");
    Result<std::vector<std::int32_t>> chain = parse_slots(*thin_slots);
    if (!chain) return bad_args("thin slot " + chain.error().text);
    Result<Generate> command = parse_positional_generate(words.rest());
    if (!command) return command;
    command.value().memory.restore_slot = base.value();
    command.value().memory.chain = std::move(chain).value();
    return command;
}

Result<Generate> parse_file_generate(std::string_view arguments) {
    WordReader words(arguments);
    const std::optional<std::string_view> in = words.next();
    const std::optional<std::string_view> n_gen = words.next();
    const std::optional<std::string_view> out = words.next();
    if (!out || words.next()) return bad_args("generate needs <in> <n_gen> <out>, paths without spaces");
    const Result<std::int32_t> n_generate = parse_n_generate(*n_gen);
    if (!n_generate) return n_generate.error();
    Generate command;
    command.form = Generate::Form::file;
    command.prompt_path = std::string(*in);
    command.output_path = std::string(*out);
    command.n_generate = n_generate.value();
    return command;
}

Result<Generate> parse_named_generate(std::string_view arguments) {
    Result<Generate> command = read_named_args<Generate>(arguments, std::span(kNamedKeys));
    if (!command) return command;
    Result<void> checked = check_constraint(command.value().constraint);
    if (checked) checked = check_memory(command.value().memory);
    if (!checked) return checked.error();
    command.value().form = Generate::Form::named;
    return command;
}

}  // namespace luce::wire
