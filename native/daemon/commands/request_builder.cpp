#include "daemon/commands/request_builder.h"

#include <utility>

#include "daemon/commands/prompt_file.h"

namespace luce::daemon {
namespace {

constexpr std::size_t kMaxGrammarBytes = 8u << 20;

engine::SamplingParams to_sampling(const wire::SamplingArgs& args, std::uint64_t default_seed) {
    const engine::SamplingParams off;
    engine::SamplingParams params;
    params.temperature = args.temperature.value_or(off.temperature);
    params.top_p = args.top_p.value_or(off.top_p);
    params.top_k = args.top_k.value_or(off.top_k);
    params.min_p = args.min_p.value_or(off.min_p);
    params.repeat_penalty = args.repeat_penalty.value_or(off.repeat_penalty);
    params.presence_penalty = args.presence_penalty.value_or(off.presence_penalty);
    params.frequency_penalty = args.frequency_penalty.value_or(off.frequency_penalty);
    params.seed = args.seed.value_or(default_seed);
    params.logit_bias = args.logit_bias;
    return params;
}

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
    for (const wire::PinSpan& pin : args.pins) request.pins.push_back({pin.begin, pin.end});
    request.reuse = args.reuse;
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

}  // namespace

std::uint64_t RequestBuilder::fresh_seed() { return std::uint64_t{entropy_()} << 32 | entropy_(); }

Result<engine::Request> RequestBuilder::build(const wire::Generate& command, engine::RequestKey key) {
    engine::Request request;
    request.key = key;
    request.prompt = command.prompt;
    if (command.prompt_path) {
        const bool counted = command.form == wire::Generate::Form::file;
        Result<Tokens> prompt =
            read_prompt_file(*command.prompt_path, counted ? PromptLayout::counted : PromptLayout::raw, n_ctx_);
        if (!prompt) return prompt.error();
        request.prompt = std::move(prompt).value();
    }
    Result<engine::ConstraintParams> constraint = to_constraint(command.constraint);
    if (!constraint) return constraint.error();
    request.constraint = std::move(constraint).value();
    request.n_generate = command.n_generate;
    request.sampling = to_sampling(command.sampling, seed_ ? *seed_ : fresh_seed());
    request.stop_tokens = command.stop_tokens;
    request.ignores_eos = command.ignore_eos;
    request.n_logprobs = command.n_logprobs;
    request.n_generated_before = command.n_generated_before;
    request.priority = command.priority;
    request.memory = to_memory(command.memory);
    return request;
}

}  // namespace luce::daemon
