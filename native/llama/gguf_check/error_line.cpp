#include "llama/gguf_check/error_line.h"

#include "llama.h"

namespace luce::llama {
namespace {

constexpr size_t kMaxQuoted = 160;

}  // namespace

std::string printable(std::string_view raw) {
    std::string text(raw.substr(0, kMaxQuoted));
    while (!text.empty() && text.back() == '\n') {
        text.pop_back();
    }
    for (char& c : text) {
        c = c < ' ' || c > '~' ? '?' : c;
    }
    if (text.size() == kMaxQuoted) {
        text += "...";
    }
    return text;
}

FirstErrorLine::FirstErrorLine(bool is_told) : is_told_(is_told) {
    is_told ? llama_log_get(&callback_, &user_data_) : ggml_log_get(&callback_, &user_data_);
    is_told ? llama_log_set(keep, this) : ggml_log_set(keep, this);
}

FirstErrorLine::~FirstErrorLine() {
    is_told_ ? llama_log_set(callback_, user_data_) : ggml_log_set(callback_, user_data_);
}

std::string FirstErrorLine::text() const {
    const size_t colon = line_.find(": ");
    return printable(colon == std::string::npos ? line_ : line_.substr(colon + 2));
}

void FirstErrorLine::keep(ggml_log_level level, const char* text, void* self) {
    auto& kept = *static_cast<FirstErrorLine*>(self);
    if (level == GGML_LOG_LEVEL_ERROR && kept.line_.empty()) kept.line_ = text;
    if (kept.is_told_ && kept.callback_ != nullptr) kept.callback_(level, text, kept.user_data_);
}

}  // namespace luce::llama
