#include "daemon/commands/request_builder.h"

#include <algorithm>
#include <utility>

#include "daemon/commands/prompt_file.h"

namespace luce::daemon {
namespace {

constexpr std::size_t kMaxGrammarBytes = 8u << 20;

engine::Trigger to_trigger(const wire::GrammarTrigger& trigger) {
    using To = engine::Trigger::Kind;
    using From = wire::GrammarTrigger::Kind;
    engine::Trigger result{To::word, trigger.text, trigger.token};
    switch (trigger.kind) {
        case From::word: result.kind = To::word; break;
        case From::pattern: result.kind = To::pattern; break;
        case From::pattern_full: result.kind = To::pattern_full; break;
        case From::token: result.kind = To::token; break;
    }
    return result;
}

memory::MemoryRequest to_memory(const wire::MemoryArgs& args) {
    memory::MemoryRequest request;
    request.restore_slot = args.restore_slot;
    request.restore_at = args.restore_at;
    request.chain = args.chain;
    for (const wire::SnapshotPoint& point : args.snapshots) request.snapshots.push_back({point.position, point.slot});
    request.marks = args.marks;
    request.turn = args.turn;
    for (const wire::PinSpan& pin : args.pins) request.pins.push_back({pin.begin, pin.end});
    request.reuse = args.reuse;
    if (args.salt) request.salt = memory::TextSalt{*args.salt, args.salt_from.value_or(0)};
    return request;
}

Result<engine::ConstraintParams> to_constraint(const wire::ConstraintArgs& args) {
    engine::ConstraintParams params;
    params.grammar = args.grammar.value_or("");
    if (args.grammar_path) {
        Result<std::string> text = read_text_file(*args.grammar_path, kMaxGrammarBytes);
        if (!text) return text.error();
        params.grammar = std::move(text).value();
    }
    if ((args.grammar || args.grammar_path) && params.grammar.empty()) {
        return Error{ErrorCode::bad_grammar, "the grammar is empty"};
    }
    params.grammar_is_lazy = args.grammar_lazy;
    for (const wire::GrammarTrigger& trigger : args.triggers) params.triggers.push_back(to_trigger(trigger));
    params.preserved = args.preserved;
    params.generation_prompt = args.generation_prompt.value_or("");
    params.think_budget = args.think_budget;
    params.think_start = args.think_start;
    params.think_end = args.think_end;
    params.think_message = args.think_message;
    return params;
}

std::vector<PositionSpan> to_spans(const std::vector<wire::PinSpan>& pins) {
    std::vector<PositionSpan> spans;
    for (const wire::PinSpan& pin : pins) spans.push_back({pin.begin, pin.end});
    return spans;
}

// Who does not ask for it is not refused for what does not go with it.
prefill::ReadingWish to_reading(const GeneratingCommand& command, const prefill::ReadingWish& defaults) {
    prefill::ReadingWish wish = defaults;
    const wire::ReadingArgs& args = command.reading;
    if (args.prefill) {
        switch (*args.prefill) {
            case wire::Reading::full: wish.reading = prefill::Reading::full; break;
            case wire::Reading::sparse: wish.reading = prefill::Reading::sparse; break;
            case wire::Reading::automatic: wish.reading = prefill::Reading::automatic; break;
        }
    } else if (!command.images.empty() || command.memory.restore_slot || !command.memory.snapshots.empty() ||
               command.n_prompt_logprobs) {
        wish.reading = prefill::Reading::full;
    }
    wish.share = args.share.value_or(wish.share);
    wish.n_from = args.n_from.value_or(wish.n_from);
    wish.keep = to_spans(args.keep);
    wish.blocks = to_spans(args.blocks);
    return wish;
}

}  // namespace

GeneratingCommand::GeneratingCommand(wire::Compress command) : compresses(true), scorer(std::move(command.scorer)) {
    if (command.id) {
        form = Form::named;
        id = *command.id;
    }
    prompt = std::move(command.prompt);
    prompt_path = std::move(command.prompt_path);
    reading.share = command.share;
    reading.keep = std::move(command.keep);
    reading.blocks = std::move(command.blocks);
}

std::uint64_t RequestBuilder::fresh_seed() { return std::uint64_t{entropy_()} << 32 | entropy_(); }

Result<engine::Request> RequestBuilder::build(const GeneratingCommand& command, engine::RequestKey key) {
    engine::Request request;
    request.key = key;
    request.reading = to_reading(command, defaults_.reading);
    request.compresses = command.compresses;
    request.prompt = command.prompt;
    if (command.prompt_path) {
        const bool counted = command.form == wire::Generate::Form::file;
        const bool is_long = command.compresses || request.reading.reading != prefill::Reading::full;
        const std::int32_t n_most = is_long ? std::max(engine::kMaxSparsePrompt, defaults_.n_ctx) : defaults_.n_ctx;
        Result<Tokens> prompt =
            read_prompt_file(*command.prompt_path, counted ? PromptLayout::counted : PromptLayout::raw, n_most);
        if (!prompt) return prompt.error();
        request.prompt = std::move(prompt).value();
    }
    request.memory = to_memory(command.memory);
    if (Result<void> placed = images_.place(command.images, request); !placed) return placed.error();
    Result<engine::ConstraintParams> constraint = to_constraint(command.constraint);
    if (!constraint) return constraint.error();
    request.constraint = std::move(constraint).value();
    request.n_generate = command.n_generate;
    request.sampling = command.sampling;
    if (!request.sampling.seed) request.sampling.seed = defaults_.seed ? *defaults_.seed : fresh_seed();
    request.stop_tokens = command.stop_tokens;
    request.n_least = command.n_least;
    request.ignores_eos = command.ignore_eos;
    request.n_logprobs = command.n_logprobs;
    request.n_prompt_logprobs = command.n_prompt_logprobs;
    request.prompt_logprobs_from = command.prompt_logprobs_from;
    request.n_generated_before = command.n_generated_before;
    request.priority = command.priority;
    return request;
}

}  // namespace luce::daemon
