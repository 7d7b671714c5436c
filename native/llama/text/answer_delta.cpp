// advance, extend: see the header.
#include "llama/text/answer_delta.h"

#include <algorithm>
#include <string_view>

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

// What unfinished JSON is inside of at its end.
struct JsonPlace {
    std::string open_brackets;
    bool in_string = false;
    bool is_escaped = false;

    bool operator==(const JsonPlace&) const = default;
};

JsonPlace json_place(std::string_view json) {
    JsonPlace place;
    for (const char c : json) {
        if (place.is_escaped) {
            place.is_escaped = false;
        } else if (c == '\\' && place.in_string) {
            place.is_escaped = true;
        } else if (c == '"') {
            place.in_string = !place.in_string;
        } else if (!place.in_string && (c == '{' || c == '[')) {
            place.open_brackets += c;
        } else if (!place.in_string && (c == '}' || c == ']') && !place.open_brackets.empty()) {
            place.open_brackets.pop_back();
        }
    }
    return place;
}

}  // namespace

std::vector<AnswerDelta> advance(common_chat_msg& shown, const common_chat_msg& now) {
    std::vector<AnswerDelta> deltas;
    std::string added = grow(shown.reasoning_content, now.reasoning_content);
    if (!added.empty()) {
        deltas.push_back({AnswerDelta::Kind::reasoning, std::move(added), 0, "", ""});
    }
    added = grow(shown.content, now.content);
    if (!added.empty()) {
        deltas.push_back({AnswerDelta::Kind::content, std::move(added), 0, "", ""});
    }
    for (size_t i = 0; i < now.tool_calls.size(); ++i) {
        advance_tool(shown.tool_calls, i, now.tool_calls[i], deltas);
    }
    return deltas;
}

void extend(common_chat_msg& message, const std::vector<AnswerDelta>& deltas) {
    for (const AnswerDelta& delta : deltas) {
        if (delta.kind == AnswerDelta::Kind::reasoning) {
            message.reasoning_content += delta.text;
        } else if (delta.kind == AnswerDelta::Kind::content) {
            message.content += delta.text;
        } else {
            if (delta.tool_index >= message.tool_calls.size()) {
                message.tool_calls.resize(delta.tool_index + 1);
            }
            common_chat_tool_call& call = message.tool_calls[delta.tool_index];
            call.name = delta.tool_name.empty() ? call.name : delta.tool_name;
            call.id = delta.tool_id.empty() ? call.id : delta.tool_id;
            call.arguments += delta.text;
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

bool continues(const common_chat_msg& shown, const common_chat_msg& now) {
    const auto goes_on = [](const common_chat_tool_call& before, const common_chat_tool_call& after) {
        return after.name.starts_with(before.name) && after.id.starts_with(before.id) &&
               after.arguments.starts_with(before.arguments);
    };
    return now.content.starts_with(shown.content) && now.reasoning_content.starts_with(shown.reasoning_content) &&
           now.tool_calls.size() >= shown.tool_calls.size() &&
           std::equal(shown.tool_calls.begin(), shown.tool_calls.end(), now.tool_calls.begin(), goes_on);
}

std::string& text_of(common_chat_msg& message, const AnswerField& field) {
    switch (field.kind) {
        case AnswerDelta::Kind::reasoning: return message.reasoning_content;
        case AnswerDelta::Kind::content: return message.content;
        case AnswerDelta::Kind::tool_call: break;
    }
    return message.tool_calls[field.tool_index].arguments;
}

std::optional<LeftOut> left_out(const common_chat_msg& longer, const common_chat_msg& shorter) {
    std::vector<AnswerField> fields = {{AnswerDelta::Kind::reasoning, 0}, {AnswerDelta::Kind::content, 0}};
    for (size_t i = 0; i < longer.tool_calls.size(); ++i) {
        fields.push_back({AnswerDelta::Kind::tool_call, i});
    }
    if (longer.tool_calls.size() != shorter.tool_calls.size()) {
        return std::nullopt;
    }
    common_chat_msg a = longer;
    common_chat_msg b = shorter;
    for (const AnswerField& field : fields) {
        std::string& before = text_of(a, field);
        std::string& after = text_of(b, field);
        if (before == after) {
            continue;
        }
        const auto parted = std::mismatch(after.begin(), after.end(), before.begin(), before.end());
        const auto begin = static_cast<size_t>(parted.first - after.begin());
        const size_t n_bytes = before.size() - std::min(before.size(), after.size());
        const bool is_one = n_bytes > 0 && std::string_view(before).ends_with(std::string_view(after).substr(begin));
        const bool is_alike = field.kind != AnswerDelta::Kind::tool_call || json_place(before) == json_place(after);
        before = after;
        return is_one && is_alike && same_answer(a, b) ? std::optional(LeftOut{field, begin, n_bytes}) : std::nullopt;
    }
    return std::nullopt;
}

bool same_answer(const common_chat_msg& a, const common_chat_msg& b) {
    return a.content == b.content && a.reasoning_content == b.reasoning_content && a.tool_calls == b.tool_calls;
}

}  // namespace luce::llama
