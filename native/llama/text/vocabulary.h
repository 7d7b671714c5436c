// Vocabulary: a model file opened for its vocabulary and metadata only. Tokenises and detokenises exactly as libllama
// does. Knows nothing of chat templates. Immutable after open(): any thread may use it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <json.h>
#include <llama.h>

namespace luce::llama {

class Vocabulary {
public:
    // Throws TextFailure(LOAD_FAILED).
    static std::shared_ptr<const Vocabulary> open(const std::string& path);

    const llama_model* model() const { return model_.get(); }
    bool has_text() const;
    int32_t n_tokens() const;

    // The vocabulary for text functions. Throws TextFailure(NO_VOCABULARY) for a model that has ids only.
    const llama_vocab* text() const;

    std::vector<llama_token> tokenize(std::string_view bytes, bool add_special, bool parse_special) const;
    std::string piece(llama_token id, bool special) const;
    std::string detokenize(const std::vector<llama_token>& ids, bool remove_special, bool unparse_special) const;

    std::vector<uint32_t> attributes() const;
    common_json info() const;

private:
    struct ModelDeleter {
        void operator()(llama_model* model) const { llama_model_free(model); }
    };

    explicit Vocabulary(llama_model* model) : model_(model) {}

    void check(llama_token id) const;

    std::unique_ptr<llama_model, ModelDeleter> model_;
};

}  // namespace luce::llama
