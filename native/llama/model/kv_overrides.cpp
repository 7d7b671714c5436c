#include "llama/model/kv_overrides.h"

#include <llama.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "llama/gguf_check/error_line.h"

namespace luce::llama {
namespace {

Error bad_override(const std::string& text) { return {ErrorCode::bad_args, "--override-kv " + text}; }

template <typename Number>
bool read_number(std::string_view text, Number& number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end == text.data() + text.size();
}

// Why a key is not to be overridden; none: it is.
std::optional<std::string> why_not(std::string_view key) {
    if (key.starts_with("tokenizer.")) return "the vocabulary is read elsewhere too, where nothing is overridden";
    if (key.starts_with("general.") || key.starts_with("split.")) return "that would make it another kind of file";
    return std::nullopt;
}

bool set_value(llama_model_kv_override& one, std::string_view type, std::string_view value) {
    if (type == "int") {
        one.tag = LLAMA_KV_OVERRIDE_TYPE_INT;
        return read_number(value, one.val_i64);
    }
    if (type == "float") {
        one.tag = LLAMA_KV_OVERRIDE_TYPE_FLOAT;
        return read_number(value, one.val_f64) && std::isfinite(one.val_f64);
    }
    if (type == "bool") {
        one.tag = LLAMA_KV_OVERRIDE_TYPE_BOOL;
        one.val_bool = value == "true";
        return value == "true" || value == "false";
    }
    one.tag = LLAMA_KV_OVERRIDE_TYPE_STR;
    const bool fits = type == "str" && value.size() < sizeof one.val_str;
    if (fits) std::copy(value.begin(), value.end(), one.val_str);
    return fits;
}

Result<llama_model_kv_override> parse_one(std::string_view text) {
    const std::size_t equals = text.find('=');
    const std::size_t colon = text.find(':', equals);
    llama_model_kv_override one{};
    const std::string_view key = text.substr(0, equals);
    if (colon == std::string_view::npos || key.empty() || key.size() >= sizeof one.key) {
        return bad_override("takes KEY=TYPE:VALUE, qwen3moe.expert_used_count=int:4 say, not " + printable(text));
    }
    if (const auto reason = why_not(key)) return bad_override(printable(key) + ": " + *reason);
    std::copy(key.begin(), key.end(), one.key);
    if (!set_value(one, text.substr(equals + 1, colon - equals - 1), text.substr(colon + 1))) {
        return bad_override(printable(text) +
                            ": TYPE:VALUE is int: and a whole number, float: and a finite one, bool:true, "
                            "bool:false, or str: and at most 127 bytes");
    }
    return one;
}

}  // namespace

KvOverrides::KvOverrides() = default;
KvOverrides::KvOverrides(KvOverrides&&) noexcept = default;
KvOverrides& KvOverrides::operator=(KvOverrides&&) noexcept = default;
KvOverrides::~KvOverrides() = default;

Result<KvOverrides> KvOverrides::parse(std::span<const std::string> texts) {
    KvOverrides overrides;
    std::vector<std::string> sorted(texts.begin(), texts.end());
    std::ranges::sort(sorted);
    std::set<std::string> keys;
    for (const std::string& text : sorted) {
        Result<llama_model_kv_override> one = parse_one(text);
        if (!one) return one.error();
        if (!keys.insert(one.value().key).second) return bad_override("gives " + printable(one.value().key) + " twice");
        overrides.all_.push_back(one.value());
        overrides.text_ += (overrides.text_.empty() ? "" : ",") + text;
    }
    if (!overrides.all_.empty()) overrides.all_.emplace_back();
    return overrides;
}

void KvOverrides::apply(llama_model_params& params) const {
    if (!all_.empty()) params.kv_overrides = all_.data();
}

struct KvOverrides::Watch::State {
    explicit State(const KvOverrides& of) : overrides(of) {}

    const KvOverrides& overrides;
    ggml_log_callback callback = nullptr;
    void* user_data = nullptr;
    std::set<std::string> read;
    std::string wrong_type;  // the first line that says so

    static void look(ggml_log_level level, const char* text, void* self) {
        auto& state = *static_cast<State*>(self);
        const std::string_view line = text;
        for (const llama_model_kv_override& one : state.overrides.all_) {
            if (one.key[0] == '\0' || line.find("'" + std::string(one.key) + "'") == std::string_view::npos) continue;
            if (line.find("Using metadata override") != std::string_view::npos) state.read.insert(one.key);
            const std::size_t wrong = line.find("Bad metadata override type");
            if (wrong != std::string_view::npos && state.wrong_type.empty()) state.wrong_type = line.substr(wrong);
        }
        if (state.callback != nullptr) state.callback(level, text, state.user_data);
    }
};

KvOverrides::Watch::Watch(const KvOverrides& overrides) : state_(std::make_unique<State>(overrides)) {
    llama_log_get(&state_->callback, &state_->user_data);
    llama_log_set(State::look, state_.get());
}

KvOverrides::Watch::~Watch() { llama_log_set(state_->callback, state_->user_data); }

Result<void> KvOverrides::Watch::check() const {
    if (!state_->wrong_type.empty()) return bad_override("llama.cpp says: " + printable(state_->wrong_type));
    for (const llama_model_kv_override& one : state_->overrides.all_) {
        if (one.key[0] == '\0' || state_->read.contains(one.key)) continue;
        return bad_override(printable(one.key) + ": llama.cpp reads no such key of this model, or not as one value");
    }
    return {};
}

Result<Weights> read_overridden(const std::string& path, llama_model_params params, const KvOverrides& overrides) {
    overrides.apply(params);
    const KvOverrides::Watch watch(overrides);
    Result<Weights> weights = read_weights(path, params);
    if (!weights) return weights;
    if (Result<void> checked = watch.check(); !checked) return checked.error();
    return weights;
}

}  // namespace luce::llama
