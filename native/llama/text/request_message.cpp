// RequestMessage: see the header.
#include "llama/text/request_message.h"

#include <exception>
#include <string>
#include <utility>

#include "llama/text/failure.h"
#include "llama/text/json_text.h"
#include "llama/text/text_marking.h"

namespace luce::llama {

namespace {

void check(const common_json& message) {
    if (!message.is_object() || !message.contains("role") || !message.at("role").is_string()) {
        refuse("each message must be an object with a role");
    }
    for (const char* key : {"reasoning_content", "name", "tool_call_id"}) {
        if (message.contains(key) && !message.at(key).is_string()) {
            refuse(std::string("a message's ") + key + " must be a string");
        }
    }
    if (message.contains("tool_calls") && !message.at("tool_calls").is_array()) {
        refuse("a message's tool_calls must be an array");
    }
}

// Some clients write null where they have nothing to say.
common_json without_nulls(const common_json& message) {
    common_json copy = common_json::object();
    for (const auto& [key, value] : message.items()) {
        if (!value.is_null() || key == "content") {
            copy[key] = value;
        }
    }
    return copy;
}

}  // namespace

RequestMessage::RequestMessage(const common_json& message) {
    check(message);
    common_json list = common_json::array();
    list.push_back(without_nulls(message));
    try {
        message_ = std::move(common_chat_msgs_parse_oaicompat(list).front());
    } catch (const std::exception& e) {
        refuse(e.what());
    }
    for (const common_chat_tool_call& call : message_.tool_calls) {
        if (json_depth(call.arguments) > kMaxJsonDepth) {
            refuse("a tool call's arguments are nested too deeply");
        }
    }
}

bool RequestMessage::is_plain(const SpecialText& special) const {
    if (plain_for_ == special.serial()) {
        return true;
    }
    if (!::luce::llama::is_plain(message_, special)) {
        return false;
    }
    plain_for_ = special.serial();
    return true;
}

RequestMessagePtr read_message(std::string_view encoded) {
    const size_t end = encoded.find('\n');
    common_json message = parse_json(encoded.substr(0, end), "a message");
    if (end != std::string_view::npos && message.is_object()) {
        message["content"] = encoded.substr(end + 1);
    }
    return std::make_shared<const RequestMessage>(message);
}

}  // namespace luce::llama
