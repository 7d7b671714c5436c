// ChatTemplate: see the header.
#include "llama/text/chat_template.h"

#include <algorithm>
#include <exception>
#include <string>
#include <string_view>

#include <jinja/lexer.h>
#include <jinja/parser.h>

#include "llama/text/failure.h"

namespace luce::llama {

namespace {

// llama.cpp parses and runs templates by recursion. A file of unknown origin must not be able to exhaust the stack
// with its template, so what nests is bounded: brackets and blocks by their depth, chains of operators by the size of
// the tag that they stand in. The largest published templates stay under a half of each.
constexpr size_t kMaxTemplateBytes = size_t{1} << 20;
constexpr size_t kMaxTagCodeBytes = 16384;
constexpr int kMaxTemplateDepth = 100;
constexpr int kMaxElifs = 1000;

// Some dozens of long conversations.
constexpr size_t kMaxCachedBytes = size_t{64} << 20;

// One {{ }} or {% %}: what of it is not inside string literals.
std::string code_of(std::string_view tag) {
    std::string code;
    char quote = 0;
    for (size_t i = 0; i < tag.size(); ++i) {
        if (quote != 0) {
            i += tag[i] == '\\' ? 1 : 0;
            quote = i < tag.size() && tag[i] == quote ? 0 : quote;
        } else {
            quote = tag[i] == '"' || tag[i] == '\'' ? tag[i] : 0;
            code += tag[i];
        }
    }
    return code;
}

// How far a tag changes the nesting of blocks.
int block_step(std::string_view code) {
    code.remove_prefix(std::min(code.find_first_not_of("-+ \t\r\n"), code.size()));
    for (const std::string_view opening : {"if ", "if(", "for ", "macro ", "call", "filter "}) {
        if (code.substr(0, opening.size()) == opening) {
            return 1;
        }
    }
    return code.substr(0, 3) == "end" ? -1 : 0;
}

int bracket_depth_of(std::string_view code) {
    int depth = 0;
    int deepest = 0;
    for (const char c : code) {
        depth += (c == '(' || c == '[' || c == '{') ? 1 : (c == ')' || c == ']' || c == '}') ? -1 : 0;
        deepest = std::max(deepest, depth);
    }
    return deepest;
}

bool is_moderate(std::string_view source) {
    int blocks = 0;
    int n_elifs = 0;  // each nests in the one before
    size_t at = 0;
    while (source.size() <= kMaxTemplateBytes && (at = source.find('{', at)) < source.size()) {
        const char kind = at + 1 < source.size() ? source[at + 1] : '\0';
        if (kind != '{' && kind != '%') {
            ++at;
            continue;
        }
        const size_t end = std::min(source.find(kind == '%' ? "%}" : "}}", at + 2), source.size());
        const std::string code = code_of(source.substr(at + 2, end - at - 2));
        blocks = kind == '%' ? std::max(0, blocks + block_step(code)) : blocks;
        n_elifs += code.find("elif") < code.size() ? 1 : 0;
        const bool is_deep = n_elifs > kMaxElifs || bracket_depth_of(code) + blocks > kMaxTemplateDepth;
        if (is_deep || code.size() > kMaxTagCodeBytes) {
            return false;
        }
        at = end;
    }
    return source.size() <= kMaxTemplateBytes;
}

// llama.cpp logs why a template does not parse and throws something without the reason: parse it here first.
void check_parses(const char* source) {
    if (source == nullptr) {
        return;
    }
    if (!is_moderate(source)) {
        throw TextFailure(LUCE_TEXT_BAD_TEMPLATE, "the chat template is too long or too deeply nested");
    }
    try {
        jinja::lexer lexer;
        const auto tokens = lexer.tokenize(source);
        jinja::parse_from_tokens(tokens);
    } catch (const std::exception& e) {
        throw TextFailure(LUCE_TEXT_BAD_TEMPLATE, std::string("the chat template does not parse: ") + e.what());
    }
}

}  // namespace

ChatTemplate::ChatTemplate(std::shared_ptr<const Vocabulary> vocabulary, const std::string& override_source)
    : vocabulary_(std::move(vocabulary)),
      texts_([this](std::string_view text) { return vocabulary_->tokenize(text, false, false); }, kMaxCachedBytes),
      tools_(read_request_tools, kMaxCachedBytes) {
    vocabulary_->text();
    if (override_source.empty()) {
        check_parses(llama_model_chat_template(vocabulary_->model(), nullptr));
        check_parses(llama_model_chat_template(vocabulary_->model(), "tool_use"));
    } else {
        check_parses(override_source.c_str());
    }
    try {
        templates_ = common_chat_templates_init(vocabulary_->model(), override_source);
    } catch (const std::exception& e) {
        throw TextFailure(LUCE_TEXT_BAD_TEMPLATE, std::string("the chat template cannot be used: ") + e.what());
    }
}

std::string ChatTemplate::source() const { return common_chat_templates_source(templates_.get()); }

std::shared_ptr<const SpecialText> ChatTemplate::special_text(const std::vector<std::string>& frame) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!special_text_ || frame != frame_) {
        special_text_ = std::make_shared<const SpecialText>(*vocabulary_, frame);
        frame_ = frame;
    }
    return special_text_;
}

common_json ChatTemplate::info() const {
    common_json capabilities = common_json::object();
    for (const auto& [name, has] : common_chat_templates_get_caps(templates_.get())) {
        capabilities[name] = has;
    }
    bool supports_thinking = false;
    try {
        supports_thinking = common_chat_templates_support_enable_thinking(templates_.get());
    } catch (const std::exception&) {
        // A template may refuse the one-line conversation that this is asked with; it says nothing about thinking.
        supports_thinking = false;
    }
    return common_json{{"source", source()}, {"capabilities", capabilities}, {"supports_thinking", supports_thinking}};
}

}  // namespace luce::llama
