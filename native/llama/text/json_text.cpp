// parse_json: see the header.
#include "llama/text/json_text.h"

#include <algorithm>
#include <string>

#include "llama/text/failure.h"

namespace luce::llama {

int json_depth(std::string_view text) {
    int depth = 0;
    int deepest = 0;
    bool in_string = false;
    for (size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (in_string) {
            i += c == '\\' ? 1 : 0;
            in_string = c != '"';
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            deepest = std::max(deepest, ++depth);
        } else if (c == '}' || c == ']') {
            --depth;
        }
    }
    return deepest;
}

common_json parse_json(std::string_view text, const char* what) {
    if (json_depth(text) > kMaxJsonDepth) {
        refuse(std::string(what) + " is nested more than " + std::to_string(kMaxJsonDepth) + " levels deep");
    }
    try {
        return common_json::parse(std::string(text));
    } catch (const common_json_error& e) {
        refuse(std::string(what) + " is not valid JSON: " + e.what());
    }
}

}  // namespace luce::llama
