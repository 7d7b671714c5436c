// Vocabulary: see the header.
#include "llama/text/vocabulary.h"

#include <charconv>
#include <exception>
#include <limits>
#include <mutex>

#include <log.h>

#include "llama/text/failure.h"

namespace luce::llama {

namespace {

// The first error that libllama logged on this thread: the only place where it says why a load failed.
thread_local std::string first_error_line;

void keep_errors(ggml_log_level level, const char* text, void* /*user_data*/) {
    if (level == GGML_LOG_LEVEL_ERROR && first_error_line.empty()) {
        first_error_line = text;
        while (!first_error_line.empty() && first_error_line.back() == '\n') {
            first_error_line.pop_back();
        }
    }
}

// A library must not talk on its host's stderr: errors come back as values, the rest is dropped.
void quiet_logs() {
    static std::once_flag once;
    std::call_once(once, [] {
        llama_log_set(keep_errors, nullptr);
        common_log_set_verbosity_thold(-1);
    });
}

const char* name_of(enum llama_vocab_type type) {
    switch (type) {
        case LLAMA_VOCAB_TYPE_NONE: return "none";
        case LLAMA_VOCAB_TYPE_SPM: return "spm";
        case LLAMA_VOCAB_TYPE_BPE: return "bpe";
        case LLAMA_VOCAB_TYPE_WPM: return "wpm";
        case LLAMA_VOCAB_TYPE_UGM: return "ugm";
        case LLAMA_VOCAB_TYPE_RWKV: return "rwkv";
        default: return "other";
    }
}

std::string metadata(const llama_model* model, const char* key) {
    const int32_t n = llama_model_meta_val_str(model, key, nullptr, 0);
    if (n < 0) {
        return "";
    }
    std::string value(static_cast<size_t>(n) + 1, '\0');
    llama_model_meta_val_str(model, key, value.data(), value.size());
    value.resize(static_cast<size_t>(n));
    return value;
}

// A model that is loaded for its vocabulary alone has none of its other numbers in its parameters. 0: the file does not
// say it.
int64_t trained_context(const llama_model* model) {
    const std::string text = metadata(model, (metadata(model, "general.architecture") + ".context_length").c_str());
    int64_t n = 0;
    std::from_chars(text.data(), text.data() + text.size(), n);
    return n;
}

common_json id_or_null(llama_token id) { return id == LLAMA_TOKEN_NULL ? common_json(nullptr) : common_json(id); }

common_json text_or_null(const char* text) { return text == nullptr ? common_json(nullptr) : common_json(text); }

}  // namespace

std::shared_ptr<const Vocabulary> Vocabulary::open(const std::string& path) {
    quiet_logs();
    // No device is named, so that a vocabulary never starts a GPU driver.
    ggml_backend_dev_t no_devices[] = {nullptr};
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    params.devices = no_devices;
    params.n_gpu_layers = 0;
    first_error_line.clear();
    llama_model* model = llama_model_load_from_file(path.c_str(), params);
    if (model == nullptr) {
        const std::string reason = first_error_line.empty() ? "not a model that libllama loads" : first_error_line;
        throw TextFailure(LUCE_TEXT_LOAD_FAILED, path + ": " + reason);
    }
    return std::shared_ptr<const Vocabulary>(new Vocabulary(model));
}

bool Vocabulary::has_text() const {
    return llama_vocab_type(llama_model_get_vocab(model_.get())) != LLAMA_VOCAB_TYPE_NONE;
}

int32_t Vocabulary::n_tokens() const { return llama_vocab_n_tokens(llama_model_get_vocab(model_.get())); }

const llama_vocab* Vocabulary::text() const {
    if (!has_text()) {
        throw TextFailure(LUCE_TEXT_NO_VOCABULARY, "this model has no vocabulary: it takes and gives token ids only");
    }
    return llama_model_get_vocab(model_.get());
}

void Vocabulary::check(llama_token id) const {
    if (id < 0 || id >= n_tokens()) {
        throw TextFailure(LUCE_TEXT_BAD_ARGUMENT, "token id " + std::to_string(id) + " is outside the vocabulary of " +
                                                      std::to_string(n_tokens()) + " tokens");
    }
}

std::vector<llama_token> Vocabulary::tokenize(std::string_view bytes, bool add_special, bool parse_special) const {
    const llama_vocab* vocab = text();
    if (bytes.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max()) / 2) {
        throw TextFailure(LUCE_TEXT_BAD_ARGUMENT, "the text is too long to tokenise (1 GiB at most)");
    }
    // At most one token a byte, and what is added around the text.
    std::vector<llama_token> ids(bytes.size() + 4);
    const auto run = [&] {
        return llama_tokenize(vocab, bytes.data(), static_cast<int32_t>(bytes.size()), ids.data(),
                              static_cast<int32_t>(ids.size()), add_special, parse_special);
    };
    int32_t n = 0;
    try {
        n = run();
        if (n < 0 && n != std::numeric_limits<int32_t>::min()) {
            ids.resize(static_cast<size_t>(-n));
            n = run();
        }
    } catch (const std::exception& e) {
        // Bytes that are no UTF-8, or characters that a vocabulary without bytes cannot spell.
        throw TextFailure(LUCE_TEXT_BAD_ARGUMENT, std::string("the text cannot be tokenised: ") + e.what());
    }
    if (n < 0) {
        throw TextFailure(LUCE_TEXT_INTERNAL, "the text cannot be tokenised");
    }
    ids.resize(static_cast<size_t>(n));
    return ids;
}

std::string Vocabulary::piece(llama_token id, bool special) const {
    const llama_vocab* vocab = text();
    check(id);
    std::string bytes(32, '\0');
    int32_t n = llama_token_to_piece(vocab, id, bytes.data(), static_cast<int32_t>(bytes.size()), 0, special);
    if (n < 0) {
        bytes.resize(static_cast<size_t>(-n));
        n = llama_token_to_piece(vocab, id, bytes.data(), static_cast<int32_t>(bytes.size()), 0, special);
    }
    bytes.resize(static_cast<size_t>(n < 0 ? 0 : n));
    return bytes;
}

std::string Vocabulary::detokenize(const std::vector<llama_token>& ids, bool remove_special,
                                   bool unparse_special) const {
    const llama_vocab* vocab = text();
    for (const llama_token id : ids) {
        check(id);
    }
    std::string bytes(ids.size() * 4 + 16, '\0');
    const auto n_ids = static_cast<int32_t>(ids.size());
    int32_t n = llama_detokenize(vocab, ids.data(), n_ids, bytes.data(), static_cast<int32_t>(bytes.size()),
                                 remove_special, unparse_special);
    if (n < 0) {
        bytes.resize(static_cast<size_t>(-n));
        n = llama_detokenize(vocab, ids.data(), n_ids, bytes.data(), static_cast<int32_t>(bytes.size()), remove_special,
                             unparse_special);
    }
    bytes.resize(static_cast<size_t>(n < 0 ? 0 : n));
    return bytes;
}

std::vector<uint32_t> Vocabulary::attributes() const {
    const llama_vocab* vocab = text();
    std::vector<uint32_t> attributes(static_cast<size_t>(n_tokens()));
    for (int32_t id = 0; id < n_tokens(); ++id) {
        attributes[static_cast<size_t>(id)] = static_cast<uint32_t>(llama_vocab_get_attr(vocab, id));
    }
    return attributes;
}

common_json Vocabulary::info() const {
    const llama_vocab* vocab = llama_model_get_vocab(model_.get());
    common_json eog = common_json::array();
    common_json special = common_json::array();
    for (int32_t id = 0; has_text() && id < n_tokens(); ++id) {
        if (llama_vocab_is_eog(vocab, id)) {
            eog.push_back(id);
        }
        const auto attr = llama_vocab_get_attr(vocab, id);
        const char* kind = (attr & LLAMA_TOKEN_ATTR_CONTROL)        ? "control"
                           : (attr & LLAMA_TOKEN_ATTR_USER_DEFINED) ? "user_defined"
                           : (attr & LLAMA_TOKEN_ATTR_UNKNOWN)      ? "unknown"
                                                                    : nullptr;
        if (kind != nullptr) {
            special.push_back({{"id", id}, {"text", std::string(llama_vocab_get_text(vocab, id))}, {"kind", kind}});
        }
    }
    return common_json{
        {"n_vocab", n_tokens()},
        {"has_text", has_text()},
        {"kind", name_of(llama_vocab_type(vocab))},
        {"architecture", metadata(model_.get(), "general.architecture")},
        {"name", metadata(model_.get(), "general.name")},
        {"n_ctx_train", trained_context(model_.get())},
        {"bos", id_or_null(llama_vocab_bos(vocab))},
        {"eos", id_or_null(llama_vocab_eos(vocab))},
        {"eot", id_or_null(llama_vocab_eot(vocab))},
        {"sep", id_or_null(llama_vocab_sep(vocab))},
        {"nl", id_or_null(llama_vocab_nl(vocab))},
        {"pad", id_or_null(llama_vocab_pad(vocab))},
        {"mask", id_or_null(llama_vocab_mask(vocab))},
        {"fim_pre", id_or_null(llama_vocab_fim_pre(vocab))},
        {"fim_suf", id_or_null(llama_vocab_fim_suf(vocab))},
        {"fim_mid", id_or_null(llama_vocab_fim_mid(vocab))},
        {"fim_rep", id_or_null(llama_vocab_fim_rep(vocab))},
        {"fim_sep", id_or_null(llama_vocab_fim_sep(vocab))},
        {"eog", eog},
        {"add_bos", has_text() && llama_vocab_get_add_bos(vocab)},
        {"add_eos", has_text() && llama_vocab_get_add_eos(vocab)},
        {"add_sep", has_text() && llama_vocab_get_add_sep(vocab)},
        {"rerank_template", text_or_null(llama_model_chat_template(model_.get(), "rerank"))},
        {"has_template", llama_model_chat_template(model_.get(), nullptr) != nullptr},
        {"special", special},
    };
}

}  // namespace luce::llama
