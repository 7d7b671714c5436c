// render_chat: see the header.
#include "llama/text/chat_renderer.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include <json-schema.h>
#include <sampling.h>

#include "llama/text/answer_format.h"
#include "llama/text/chat_request.h"
#include "llama/text/failure.h"
#include "llama/text/grammar_choice.h"
#include "llama/text/json_text.h"
#include "llama/text/lenient_calls.h"
#include "llama/text/message_marks.h"
#include "llama/text/schema_grammar.h"

namespace luce::llama {

namespace {

common_chat_templates_inputs with_messages(common_chat_templates_inputs inputs, const ChatRequest& request) {
    for (const RequestMessagePtr& message : request.read) {
        inputs.messages.push_back(message->chat_msg());
    }
    return inputs;
}

// While it lives, this thread's grammars and parsers are made of other schemas than the template shows.
class EnforcedSchemas {
public:
    explicit EnforcedSchemas(common_chat_schema_lookup lookup) { common_chat_schema_enforced = std::move(lookup); }
    ~EnforcedSchemas() { common_chat_schema_enforced = nullptr; }
    EnforcedSchemas(const EnforcedSchemas&) = delete;
    EnforcedSchemas& operator=(const EnforcedSchemas&) = delete;
};

// `inputs`: what the template sees of the request, without the messages.
common_chat_params apply(const ChatTemplate& chat_template, const ChatRequest& request,
                         const common_chat_templates_inputs& inputs) {
    const EnforcedSchemas enforced([&](const common_json& shown) { return request.offered->enforced(shown.dump()); });
    try {
        return common_chat_templates_apply(chat_template.templates(), with_messages(inputs, request));
    } catch (const std::exception& e) {
        throw TextFailure(LUCE_TEXT_BAD_TEMPLATE, std::string("the chat template refuses the request: ") + e.what());
    }
}

std::shared_ptr<const SpecialText> special_text(const ChatTemplate& chat_template, const common_chat_params& params) {
    std::vector<std::string> frame = {chat_template.source(), params.thinking_start_tag};
    frame.push_back(common_chat_templates_source(chat_template.templates(), "tool_use"));
    frame.insert(frame.end(), params.thinking_end_tags.begin(), params.thinking_end_tags.end());
    frame.insert(frame.end(), params.preserved_tokens.begin(), params.preserved_tokens.end());
    return chat_template.special_text(frame);
}

bool is_plain(const ChatRequest& request, const SpecialText& special) {
    common_chat_templates_inputs others;
    others.chat_template_kwargs = request.chat_template_kwargs;
    others.json_schema = request.json_schema;
    return std::ranges::all_of(request.read, [&](const auto& message) { return message->is_plain(special); }) &&
           request.offered->is_plain(special) && is_plain_but_for_messages(others, special);
}

// `inputs`: what the template sees of the request, without the messages.
void tokenize(const ChatRequest& request, const common_chat_templates_inputs& inputs, RenderedChat& chat) {
    const ChatTemplate& chat_template = *chat.chat_template;
    const RenderPrompt render = [&](const common_chat_templates_inputs& other) {
        static const common_json kAnyObject = {{"type", "object"}};  // only the prompt counts
        const EnforcedSchemas enforced([](const common_json&) { return &kAnyObject; });
        return common_chat_templates_apply(chat_template.templates(), other).prompt;
    };
    // The text changes under us only when the template prints the time and a second or a day has just ended.
    for (int attempts_left = 3;; --attempts_left) {
        chat.params = apply(chat_template, request, inputs);
        const std::shared_ptr<const SpecialText> special = special_text(chat_template, chat.params);
        auto marks = is_plain(request, *special)
                         ? TextMarks()
                         : mark_text(with_messages(inputs, request), chat.params.prompt, *special, render);
        if (!marks && attempts_left > 0) {
            continue;
        }
        if (!marks) {
            throw TextFailure(LUCE_TEXT_BAD_TEMPLATE, "the chat template gives another prompt each time");
        }
        chat.text = std::move(*marks);
        chat.prompt = std::move(chat.params.prompt);
        chat.tokens = tokenize_prompt(chat_template.vocabulary(), {chat_template.texts(), request.cache_salt}, *special,
                                      chat.prompt, chat.text.spans, request.markers);
        chat.marks = find_message_marks(chat_template.vocabulary(), *special, chat.prompt, chat.tokens,
                                        chat.params.message_delimiters);
        return;
    }
}

// The grammar of the request's own constraint; empty without one. Also the check that there is one.
std::string own_grammar(const common_chat_templates_inputs& inputs) {
    if (inputs.json_schema.empty()) {
        return inputs.grammar;
    }
    return schema_to_grammar(parse_json(inputs.json_schema, "json_schema"));
}

common_chat_parser_params parser_of(const common_chat_params& params, const Vocabulary& vocabulary) {
    common_chat_parser_params parser(params);
    parser.generation_prompt = common_chat_input_tokenize(vocabulary.text(), params.generation_prompt);
    parser.parser = params.parser;
    return parser;
}

// `inputs` has tools and a schema. llama.cpp's handlers take notice of one of the two: so the grammars of both are put
// together, and an answer is read as one or the other. `own` is the schema's grammar without anything around it.
void constrain_to_call_or_schema(const ChatRequest& inputs, const std::string& own, RenderedChat& chat) {
    common_chat_templates_inputs calling = inputs;
    calling.json_schema.clear();
    calling.tool_choice = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
    common_chat_templates_inputs answering = inputs;
    answering.tool_choice = COMMON_CHAT_TOOL_CHOICE_NONE;
    const std::string calls = apply(*chat.chat_template, inputs, calling).grammar;
    const common_chat_params answer = apply(*chat.chat_template, inputs, answering);
    std::string by_schema = answer.grammar;
    if (by_schema.empty()) {
        by_schema = grammar_after(chat.params.generation_prompt, own);
    } else {
        chat.by_schema = parser_of(answer, chat.chat_template->vocabulary());
    }
    chat.params.grammar = calls.empty() ? by_schema : grammar_choice(calls, by_schema);
    chat.params.grammar_lazy = false;
}

// The prompt shows all tools, so that it stays the one in memory whatever has to be called; the answer can be no other
// call than this one, once: what the model wrote behind it would be in memory and in no further prompt.
void constrain_to_tool(const ChatRequest& request, common_chat_templates_inputs inputs, RenderedChat& chat) {
    std::erase_if(inputs.tools, [&](const common_chat_tool& tool) { return tool.name != request.chosen_tool; });
    inputs.parallel_tool_calls = false;
    chat.params = apply(*chat.chat_template, request, inputs);
}

void resolve_sampling(RenderedChat& chat) {
    const llama_vocab* vocab = chat.chat_template->vocabulary().text();
    common_params_sampling sampling;
    sampling.grammar_lazy = chat.params.grammar_lazy;
    common_sampling_add_preserved_tokens(sampling, vocab, chat.params.preserved_tokens);
    common_sampling_add_grammar_triggers(sampling, vocab, chat.params.grammar_triggers);
    chat.preserved = std::move(sampling.preserved_tokens);
    chat.triggers = std::move(sampling.grammar_triggers);
}

const char* name_of(common_grammar_trigger_type type) {
    switch (type) {
        case COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN: return "token";
        case COMMON_GRAMMAR_TRIGGER_TYPE_WORD: return "word";
        case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN: return "pattern";
        case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL: return "full";
    }
    return "word";
}

common_json thinking_json(const RenderedChat& chat) {
    const Vocabulary& vocabulary = chat.chat_template->vocabulary();
    common_json ends_tokens = common_json::array();
    for (const std::string& end : chat.params.thinking_end_tags) {
        ends_tokens.push_back(vocabulary.tokenize(end, false, true));
    }
    return common_json{
        {"supported", chat.params.supports_thinking},
        {"start", chat.params.thinking_start_tag},
        {"ends", chat.params.thinking_end_tags},
        {"start_tokens", vocabulary.tokenize(chat.params.thinking_start_tag, false, true)},
        {"ends_tokens", ends_tokens},
    };
}

common_json delimiters_json(const RenderedChat& chat) {
    common_json delimiters = common_json::array();
    for (const common_chat_msg_delimiter& delimiter : chat.params.message_delimiters.delimiters) {
        delimiters.push_back({{"role", common_chat_role_to_string(delimiter.role)},
                              {"text", delimiter.delimiter},
                              {"tokens", chat.chat_template->vocabulary().tokenize(delimiter.delimiter, false, true)}});
    }
    return delimiters;
}

}  // namespace

std::shared_ptr<const RenderedChat> render_chat(std::shared_ptr<const ChatTemplate> chat_template,
                                                std::vector<RequestMessagePtr> first, std::string_view request_json,
                                                std::string_view texts) {
    const ChatRequest inputs = parse_chat_request(std::move(first), request_json, texts, chat_template->tools());
    const std::string constraint = own_grammar(inputs);
    const bool may_call = !inputs.tools.empty() && inputs.tool_choice != COMMON_CHAT_TOOL_CHOICE_NONE;
    const bool must_call = may_call && inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_REQUIRED;
    common_chat_templates_inputs rendered = inputs;
    if (may_call) {
        rendered.json_schema.clear();
    }
    auto chat = std::make_shared<RenderedChat>();
    chat->chat_template = std::move(chat_template);
    tokenize(inputs, rendered, *chat);
    if (!inputs.chosen_tool.empty()) constrain_to_tool(inputs, rendered, *chat);
    if (may_call && !must_call && !inputs.json_schema.empty()) {
        constrain_to_call_or_schema(inputs, constraint, *chat);
    } else if (chat->params.grammar.empty() && !constraint.empty()) {
        // llama.cpp's handlers leave a grammar, and some of them a schema, to the caller.
        chat->params.grammar = constraint;
        chat->params.grammar_lazy = false;
    }
    resolve_sampling(*chat);
    chat->parser = parser_of(chat->params, chat->chat_template->vocabulary());
    open_grammar(chat->parser.parser);
    take_lenient_calls(chat->parser.parser);
    chat->continues = inputs.continue_final_message != COMMON_CHAT_CONTINUATION_NONE;
    return chat;
}

common_json to_json(const RenderedChat& chat) {
    common_json triggers = common_json::array();
    for (const common_grammar_trigger& trigger : chat.triggers) {
        triggers.push_back({{"type", name_of(trigger.type)}, {"value", trigger.value}, {"token", trigger.token}});
    }
    common_json spans = common_json::array();
    for (const ByteSpan& span : chat.text.spans) {
        spans.push_back(common_json::array({span.begin, span.end}));
    }
    return common_json{
        {"format", common_chat_format_name(chat.params.format)},
        {"grammar", chat.params.grammar},
        {"grammar_lazy", chat.params.grammar_lazy},
        {"triggers", triggers},
        {"preserved", std::vector<llama_token>(chat.preserved.begin(), chat.preserved.end())},
        {"generation_prompt", chat.params.generation_prompt},
        {"additional_stops", chat.params.additional_stops},
        {"thinking", thinking_json(chat)},
        {"delimiters", delimiters_json(chat)},
        {"text_spans", spans},
    };
}

}  // namespace luce::llama
