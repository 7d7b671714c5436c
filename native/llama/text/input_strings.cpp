// replace_strings: see the header.
#include "llama/text/input_strings.h"

namespace luce::llama {

namespace {

common_json replace_in(const common_json& value, const VisitString& visit, InputOrigin origin) {
    if (value.is_string()) {
        return common_json(visit(value.get<std::string>(), origin));
    }
    if (value.is_array()) {
        common_json copy = common_json::array();
        for (const common_json& item : value) {
            copy.push_back(replace_in(item, visit, origin));
        }
        return copy;
    }
    if (value.is_object()) {
        common_json copy = common_json::object();
        for (const auto& [key, item] : value.items()) {
            copy[visit(key, origin)] = replace_in(item, visit, origin);
        }
        return copy;
    }
    return value;
}

// JSON text is written anew only when something in it changed, so that its spacing stays.
std::string replace_in_json(const std::string& text, const VisitString& visit, InputOrigin origin) {
    const common_json value = common_json::parse_no_throw(text);
    if (value.is_discarded()) {
        return text;
    }
    bool changed = false;
    const VisitString watch = [&](const std::string& before, InputOrigin of) {
        std::string after = visit(before, of);
        changed = changed || after != before;
        return after;
    };
    const common_json replaced = replace_in(value, watch, origin);
    return changed ? replaced.dump() : text;
}

}  // namespace

void replace_strings(common_chat_msg& message, const VisitString& visit) {
    const InputOrigin origin = message.role == "assistant" ? InputOrigin::answer : InputOrigin::other;
    message.role = visit(message.role, InputOrigin::other);
    message.content = visit(message.content, origin);
    for (common_chat_msg_content_part& part : message.content_parts) {
        part.text = visit(part.text, origin);
    }
    message.reasoning_content = visit(message.reasoning_content, origin);
    message.tool_name = visit(message.tool_name, InputOrigin::other);
    message.tool_call_id = visit(message.tool_call_id, InputOrigin::other);
    for (common_chat_tool_call& call : message.tool_calls) {
        call.name = visit(call.name, InputOrigin::other);
        call.id = visit(call.id, InputOrigin::other);
        // As text first, which keeps the spelling of the JSON; then inside it, where escapes can hide something.
        call.arguments = visit(call.arguments, InputOrigin::other);
        if (call.arguments.find('\\') != std::string::npos) {
            call.arguments = replace_in_json(call.arguments, visit, InputOrigin::other);
        }
    }
}

common_chat_templates_inputs replace_strings(const common_chat_templates_inputs& inputs, const VisitString& visit) {
    common_chat_templates_inputs copy = inputs;
    for (common_chat_msg& message : copy.messages) {
        replace_strings(message, visit);
    }
    for (common_chat_tool& tool : copy.tools) {
        tool.name = visit(tool.name, InputOrigin::other);
        tool.description = visit(tool.description, InputOrigin::other);
        tool.parameters = replace_in_json(tool.parameters, visit, InputOrigin::other);
    }
    for (auto& [key, value] : copy.chat_template_kwargs) {
        value = replace_in_json(value, visit, InputOrigin::other);
    }
    if (!copy.json_schema.empty()) {
        copy.json_schema = replace_in_json(copy.json_schema, visit, InputOrigin::other);
    }
    return copy;
}

}  // namespace luce::llama
