// parse_chat_request: see the header.
#include "llama/text/chat_request.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "llama/text/failure.h"
#include "llama/text/json_text.h"

namespace luce::llama {

namespace {

bool flag(const common_json& body, const char* key, bool otherwise) {
    if (!body.contains(key) || body.at(key).is_null()) {
        return otherwise;
    }
    if (!body.at(key).is_boolean()) {
        refuse(std::string(key) + " must be true or false");
    }
    return body.at(key).get<bool>();
}

std::string text(const common_json& body, const char* key, const std::string& otherwise) {
    if (!body.contains(key) || body.at(key).is_null()) {
        return otherwise;
    }
    if (!body.at(key).is_string()) {
        refuse(std::string(key) + " must be a string");
    }
    return body.at(key).get<std::string>();
}

std::vector<RequestMessagePtr> read_listed(const common_json& messages) {
    std::vector<RequestMessagePtr> read;
    for (const common_json& message : messages.is_array() ? messages : common_json::array()) {
        read.push_back(std::make_shared<const RequestMessage>(message));
    }
    return read;
}

// The next text of those that stand beside the request.
std::string_view take_text(const common_json& size, std::string_view& texts) {
    const int64_t n_bytes = size.is_number_integer() ? size.get<int64_t>() : -1;
    if (n_bytes < 0 || static_cast<uint64_t>(n_bytes) > texts.size()) {
        refuse("tools_bytes and message_bytes must be numbers whose sum is the length of tools and messages");
    }
    const std::string_view text = texts.substr(0, static_cast<size_t>(n_bytes));
    texts.remove_prefix(text.size());
    return text;
}

std::vector<RequestMessagePtr> read_encoded(const common_json& sizes, std::string_view texts) {
    std::vector<RequestMessagePtr> read;
    for (const common_json& size : sizes.is_array() ? sizes : common_json::array()) {
        read.push_back(read_message(take_text(size, texts)));
    }
    return read;
}

void read_messages(const common_json& body, std::string_view texts, ChatRequest& request) {
    std::vector<RequestMessagePtr> read;
    if (body.contains("message_bytes")) {
        read = read_encoded(body.at("message_bytes"), texts);
    } else if (body.contains("messages")) {
        read = read_listed(body.at("messages"));
    }
    request.read.insert(request.read.end(), read.begin(), read.end());
    if (request.read.empty()) {
        refuse("messages must be an array of at least one message");
    }
}

// {"type": "function", "function": {"name": ...}}: that tool is required.
std::string read_chosen_tool(const common_json& choice, const common_chat_templates_inputs& inputs) {
    if (!choice.contains("function") || !choice.at("function").is_object() || !choice.at("function").contains("name")) {
        refuse("tool_choice must be auto, none, required or name a function");
    }
    const std::string name = choice.at("function").at("name");
    if (std::ranges::none_of(inputs.tools, [&](const common_chat_tool& tool) { return tool.name == name; })) {
        refuse("tool_choice names a tool that is not offered: " + name);
    }
    return name;
}

RequestToolsPtr read_offered(const common_json& body, std::string_view& texts, const ToolsCache::Salted& known) {
    if (body.contains("tools_bytes")) {
        return known.get(take_text(body.at("tools_bytes"), texts));
    }
    return std::make_shared<const RequestTools>(body.contains("tools") ? body.at("tools") : common_json());
}

void read_tools(const common_json& body, ChatRequest& request) {
    request.tools = request.offered->tools();
    request.parallel_tool_calls = flag(body, "parallel_tool_calls", true);
    if (body.contains("tool_choice") && body.at("tool_choice").is_object()) {
        request.chosen_tool = read_chosen_tool(body.at("tool_choice"), request);
        request.tool_choice = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
    } else {
        request.tool_choice = common_chat_tool_choice_parse_oaicompat(text(body, "tool_choice", "auto"));
    }
    if (request.tools.empty() && request.tool_choice == COMMON_CHAT_TOOL_CHOICE_REQUIRED) {
        refuse("tool_choice requires a tool, but tools is empty");
    }
}

void read_constraints(const common_json& body, common_chat_templates_inputs& inputs) {
    inputs.grammar = text(body, "grammar", "");
    if (body.contains("json_schema") && !body.at("json_schema").is_null()) {
        common_json schema = body.at("json_schema");
        if (!schema.is_object()) {
            refuse("json_schema must be an object");
        }
        if (schema.empty()) {
            schema["type"] = "object";
        }
        inputs.json_schema = schema.dump();
    }
    if (!inputs.grammar.empty() && !inputs.json_schema.empty()) {
        refuse("grammar and json_schema exclude each other");
    }
    const bool calls_tools = !inputs.tools.empty() && inputs.tool_choice != COMMON_CHAT_TOOL_CHOICE_NONE;
    if (!inputs.grammar.empty() && calls_tools) {
        refuse("grammar and tools exclude each other");
    }
}

void read_reasoning(const common_json& body, common_chat_templates_inputs& inputs) {
    inputs.enable_thinking = flag(body, "enable_thinking", true);
    inputs.reasoning_format = common_reasoning_format_from_name(text(body, "reasoning_format", "auto"));
    if (!body.contains("chat_template_kwargs") || body.at("chat_template_kwargs").is_null()) {
        return;
    }
    const common_json& kwargs = body.at("chat_template_kwargs");
    if (!kwargs.is_object()) {
        refuse("chat_template_kwargs must be an object");
    }
    for (const auto& [key, value] : kwargs.items()) {
        inputs.chat_template_kwargs[key] = value.dump();
    }
    inputs.enable_thinking = flag(kwargs, "enable_thinking", inputs.enable_thinking);
}

void read_markers(const common_json& body, ImageMarkers& markers) {
    if (!body.contains("image_markers") || body.at("image_markers").is_null()) {
        return;
    }
    const common_json& asked = body.at("image_markers");
    if (!asked.is_object() || !asked.contains("bytes") || !asked.at("bytes").is_number_integer()) {
        refuse("image_markers must be an object with prefix and bytes");
    }
    markers.prefix = text(asked, "prefix", "");
    const auto n_bytes = asked.at("bytes").get<int64_t>();
    markers.n_bytes = n_bytes < 0 ? 0 : static_cast<size_t>(n_bytes);
    if (markers.prefix.empty() || markers.n_bytes < markers.prefix.size()) {
        refuse("image_markers have a prefix, which is no longer than they are");
    }
}

void read_ending(const common_json& body, ChatRequest& inputs) {
    if (body.contains("continue_final_message")) {
        inputs.continue_final_message = common_chat_continuation_parse(body.at("continue_final_message"));
    }
    const bool continues = inputs.continue_final_message != COMMON_CHAT_CONTINUATION_NONE;
    inputs.add_generation_prompt = flag(body, "add_generation_prompt", !continues);
    if (!continues) {
        return;
    }
    if (inputs.add_generation_prompt) {
        refuse("continue_final_message and add_generation_prompt exclude each other");
    }
    const common_chat_msg& last = inputs.read.back()->chat_msg();
    if (last.role != "assistant" || !last.tool_calls.empty()) {
        refuse("continue_final_message needs a last message of the assistant, without tool calls");
    }
}

}  // namespace

ChatRequest parse_chat_request(std::vector<RequestMessagePtr> first, std::string_view json, std::string_view texts,
                               ToolsCache& known_tools) {
    const common_json body = parse_json(json, "the chat request");
    if (!body.is_object()) {
        refuse("the chat request must be an object with messages");
    }
    ChatRequest request;
    request.read = std::move(first);
    request.cache_salt = text(body, "cache_salt", "");
    request.offered = read_offered(body, texts, {known_tools, request.cache_salt});
    read_messages(body, texts, request);
    try {
        read_markers(body, request.markers);
        read_tools(body, request);
        read_constraints(body, request);
        read_reasoning(body, request);
        read_ending(body, request);
    } catch (const TextFailure&) {
        throw;
    } catch (const std::exception& e) {
        refuse(e.what());
    }
    return request;
}

}  // namespace luce::llama
