// AnswerDelta: see the header.
#include "llama/text/answer_delta.h"

#include <utility>

namespace luce::llama {

namespace {

// What `now` adds to `shown`; nothing if it does not continue it.
std::string grow(std::string& shown, const std::string& now) {
    if (now.size() <= shown.size() || now.compare(0, shown.size(), shown) != 0) {
        return "";
    }
    std::string added = now.substr(shown.size());
    shown = now;
    return added;
}

void advance_tool(std::vector<common_chat_tool_call>& shown, size_t index, const common_chat_tool_call& now,
                  std::vector<AnswerDelta>& deltas) {
    AnswerDelta delta;
    delta.kind = AnswerDelta::Kind::tool_call;
    delta.tool_index = index;
    if (index == shown.size()) {
        shown.push_back({now.name, "", now.id});
        delta.tool_name = now.name;
        delta.tool_id = now.id;
    } else {
        common_chat_tool_call& before = shown[index];
        if (before.name != now.name && now.name.compare(0, before.name.size(), before.name) == 0) {
            before.name = delta.tool_name = now.name;
        }
        if (before.id != now.id && now.id.compare(0, before.id.size(), before.id) == 0) {
            before.id = delta.tool_id = now.id;
        }
    }
    delta.text = grow(shown[index].arguments, now.arguments);
    if (!delta.text.empty() || !delta.tool_name.empty() || !delta.tool_id.empty()) {
        deltas.push_back(std::move(delta));
    }
}

}  // namespace

std::vector<AnswerDelta> advance(common_chat_msg& shown, const common_chat_msg& now,
                                 const std::vector<size_t>& content_before) {
    std::vector<AnswerDelta> deltas;
    const auto add = [&](AnswerDelta::Kind kind, const std::string& text) {
        std::string added = grow(shown.*field_of(kind), text);
        if (!added.empty()) {
            deltas.push_back({kind, std::move(added), 0, "", ""});
        }
    };
    add(AnswerDelta::Kind::reasoning, now.reasoning_content);
    for (size_t i = 0; i < now.tool_calls.size(); ++i) {
        if (i >= shown.tool_calls.size()) {
            add(AnswerDelta::Kind::content, now.content.substr(0, content_before[i]));
        }
        advance_tool(shown.tool_calls, i, now.tool_calls[i], deltas);
    }
    add(AnswerDelta::Kind::content, now.content);
    return deltas;
}

void add_deltas(std::vector<AnswerDelta>& deltas, std::vector<AnswerDelta> more) {
    for (AnswerDelta& delta : more) {
        const bool goes_on = !deltas.empty() && delta.tool_name.empty() && delta.tool_id.empty() &&
                             deltas.back().kind == delta.kind && deltas.back().tool_index == delta.tool_index;
        if (goes_on) {
            deltas.back().text += delta.text;
        } else {
            deltas.push_back(std::move(delta));
        }
    }
}

common_json to_json(const std::vector<AnswerDelta>& deltas) {
    common_json list = common_json::array();
    for (const AnswerDelta& delta : deltas) {
        if (delta.kind == AnswerDelta::Kind::reasoning) {
            list.push_back({{"reasoning", delta.text}});
        } else if (delta.kind == AnswerDelta::Kind::content) {
            list.push_back({{"content", delta.text}});
        } else {
            const common_json call = {{"index", delta.tool_index},
                                      {"id", delta.tool_id},
                                      {"name", delta.tool_name},
                                      {"arguments", delta.text}};
            list.push_back({{"tool_call", call}});
        }
    }
    return list;
}

common_json message_json(const common_chat_msg& message) {
    common_json calls = common_json::array();
    for (const common_chat_tool_call& call : message.tool_calls) {
        calls.push_back({{"id", call.id}, {"name", call.name}, {"arguments", call.arguments}});
    }
    return common_json{{"role", "assistant"},
                       {"content", message.content},
                       {"reasoning_content", message.reasoning_content},
                       {"tool_calls", calls}};
}

std::string common_chat_msg::* field_of(AnswerDelta::Kind kind) {
    return kind == AnswerDelta::Kind::reasoning ? &common_chat_msg::reasoning_content : &common_chat_msg::content;
}

bool same_answer(const common_chat_msg& a, const common_chat_msg& b) {
    return a.content == b.content && a.reasoning_content == b.reasoning_content && a.tool_calls == b.tool_calls;
}

}  // namespace luce::llama
