// The C functions of luce_text.h: each catches whatever is thrown beneath it and hands out plain memory. No logic.
#include "llama/text/luce_text.h"

#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llama/gguf_check/gguf_preflight.h"
#include "llama/text/answer_parser.h"
#include "llama/text/chat_renderer.h"
#include "llama/text/failure.h"
#include "llama/text/json_text.h"
#include "llama/text/request_message.h"
#include "llama/text/schema_grammar.h"

using namespace luce::llama;

struct luce_text_model {
    std::shared_ptr<const Vocabulary> vocabulary;
    std::string template_override;

    // Analysing a template takes a while, and who only tokenises needs none.
    std::shared_ptr<const ChatTemplate> chat_template() const {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!chat_template_) {
            chat_template_ = std::make_shared<const ChatTemplate>(vocabulary, template_override);
        }
        return chat_template_;
    }

private:
    mutable std::mutex mutex_;
    mutable std::shared_ptr<const ChatTemplate> chat_template_;
};

struct luce_text_message {
    RequestMessagePtr message;
};

struct luce_text_chat {
    std::shared_ptr<const RenderedChat> chat;
};

struct luce_text_parser {
    explicit luce_text_parser(std::shared_ptr<const RenderedChat> chat, bool by_grammar)
        : parser(std::move(chat), by_grammar) {}

    AnswerParser parser;
};

namespace {

template <typename T>
T* copy_out(const T* from, size_t n) {
    // One more, so that an empty result is memory too and text ends in a zero.
    T* memory = static_cast<T*>(std::calloc(n + 1, sizeof(T)));
    if (memory == nullptr) {
        throw std::bad_alloc();
    }
    if (n > 0) {
        std::memcpy(memory, from, n * sizeof(T));
    }
    return memory;
}

char* copy_out(const std::string& text) { return copy_out(text.data(), text.size()); }

void report(char** error, const char* message) noexcept {
    if (error != nullptr) {
        const size_t n = std::strlen(message);
        *error = static_cast<char*>(std::calloc(n + 1, 1));
        if (*error != nullptr) {
            std::memcpy(*error, message, n);
        }
    }
}

template <typename Body>
luce_text_status guarded(char** error, const Body& body) noexcept {
    try {
        body();
        return LUCE_TEXT_OK;
    } catch (const TextFailure& e) {
        report(error, e.what());
        return e.status();
    } catch (const std::exception& e) {
        report(error, e.what());
    } catch (...) {
        report(error, "unknown error");
    }
    return LUCE_TEXT_INTERNAL;
}

// A null where a handle or a result belongs is an error of the caller's program, and yet no reason to crash it.
template <typename... Pointers>
void require(const Pointers*... pointers) {
    if (((pointers == nullptr) || ...)) {
        throw TextFailure(LUCE_TEXT_BAD_ARGUMENT, "a null pointer where a handle, a text or a result belongs");
    }
}

std::string_view view(const char* bytes, size_t n) {
    if (bytes == nullptr && n > 0) {
        throw TextFailure(LUCE_TEXT_BAD_ARGUMENT, "a null pointer where a text belongs");
    }
    return {bytes == nullptr ? "" : bytes, n};
}

void check_before_loading(const std::string& path) {
    const auto checked = preflight_gguf(path);
    if (!checked) {
        throw TextFailure(LUCE_TEXT_LOAD_FAILED, path + ": " + checked.error().text);
    }
}

}  // namespace

extern "C" {

int32_t luce_text_abi_version(void) { return LUCE_TEXT_ABI_VERSION; }

void luce_text_free(void* memory) { std::free(memory); }

luce_text_status luce_text_model_open(const char* path, const char* chat_template, luce_text_model** model,
                                      char** error) {
    return guarded(error, [&] {
        require(path, model);
        check_before_loading(path);
        auto opened = std::make_unique<luce_text_model>();
        opened->vocabulary = Vocabulary::open(path);
        if (chat_template != nullptr && *chat_template != '\0') {
            opened->template_override = chat_template;
            opened->chat_template();  // who names a template wants to know now that it is bad
        }
        *model = opened.release();
    });
}

void luce_text_model_close(luce_text_model* model) { delete model; }

luce_text_status luce_text_model_info(const luce_text_model* model, char** json, char** error) {
    return guarded(error, [&] {
        require(model, json);
        *json = copy_out(model->vocabulary->info().dump_safe());
    });
}

luce_text_status luce_text_template_info(const luce_text_model* model, char** json, char** error) {
    return guarded(error, [&] {
        require(model, json);
        *json = copy_out(model->chat_template()->info().dump_safe());
    });
}

luce_text_status luce_text_attributes(const luce_text_model* model, uint32_t** attributes, size_t* n_attributes,
                                      char** error) {
    return guarded(error, [&] {
        require(model, attributes, n_attributes);
        const std::vector<uint32_t> found = model->vocabulary->attributes();
        *attributes = copy_out(found.data(), found.size());
        *n_attributes = found.size();
    });
}

luce_text_status luce_text_tokenize(const luce_text_model* model, const char* bytes, size_t n_bytes, int add_special,
                                    int parse_special, int32_t** ids, size_t* n_ids, char** error) {
    return guarded(error, [&] {
        require(model, ids, n_ids);
        const auto found = model->vocabulary->tokenize(view(bytes, n_bytes), add_special != 0, parse_special != 0);
        *ids = copy_out(found.data(), found.size());
        *n_ids = found.size();
    });
}

luce_text_status luce_text_piece(const luce_text_model* model, int32_t id, int special, char** bytes, size_t* n_bytes,
                                 char** error) {
    return guarded(error, [&] {
        require(model, bytes, n_bytes);
        const std::string piece = model->vocabulary->piece(id, special != 0);
        *bytes = copy_out(piece);
        *n_bytes = piece.size();
    });
}

luce_text_status luce_text_detokenize(const luce_text_model* model, const int32_t* ids, size_t n_ids,
                                      int remove_special, int unparse_special, char** bytes, size_t* n_bytes,
                                      char** error) {
    return guarded(error, [&] {
        require(model, bytes, n_bytes);
        if (n_ids > 0) {
            require(ids);
        }
        const std::string text = model->vocabulary->detokenize(std::vector<llama_token>(ids, ids + n_ids),
                                                               remove_special != 0, unparse_special != 0);
        *bytes = copy_out(text);
        *n_bytes = text.size();
    });
}

luce_text_status luce_text_message_open(const char* bytes, size_t n_bytes, luce_text_message** message, char** error) {
    return guarded(error, [&] {
        require(message);
        *message = new luce_text_message{read_message(view(bytes, n_bytes))};
    });
}

void luce_text_message_close(luce_text_message* message) { delete message; }

luce_text_status luce_text_render(const luce_text_model* model, const luce_text_message* const* first, size_t n_first,
                                  const char* json, size_t n_json, const char* texts, size_t n_texts,
                                  luce_text_chat** chat, char** rendered, char** error) {
    return guarded(error, [&] {
        require(model, chat, rendered);
        std::vector<RequestMessagePtr> messages;
        messages.reserve(n_first);
        for (size_t n = 0; n < n_first; ++n) {
            require(first, first[n]);
            messages.push_back(first[n]->message);
        }
        auto result = std::make_unique<luce_text_chat>();
        result->chat =
            render_chat(model->chat_template(), std::move(messages), view(json, n_json), view(texts, n_texts));
        *rendered = copy_out(to_json(*result->chat).dump_safe());
        *chat = result.release();
    });
}

luce_text_status luce_text_chat_prompt(const luce_text_chat* chat, const char** bytes, size_t* n_bytes, char** error) {
    return guarded(error, [&] {
        require(chat, bytes, n_bytes);
        *bytes = chat->chat->prompt.data();
        *n_bytes = chat->chat->prompt.size();
    });
}

luce_text_status luce_text_chat_tokens(const luce_text_chat* chat, const int32_t** ids, size_t* n_ids, char** error) {
    return guarded(error, [&] {
        require(chat, ids, n_ids);
        *ids = chat->chat->tokens.ids.data();
        *n_ids = chat->chat->tokens.ids.size();
    });
}

luce_text_status luce_text_chat_marks(const luce_text_chat* chat, int64_t** numbers, size_t* n_numbers, char** error) {
    return guarded(error, [&] {
        require(chat, numbers, n_numbers);
        std::vector<int64_t> flat;
        for (const MessageMark& mark : chat->chat->marks) {
            flat.insert(flat.end(), {static_cast<int64_t>(mark.token), static_cast<int64_t>(mark.byte),
                                     static_cast<int64_t>(mark.role)});
        }
        *numbers = copy_out(flat.data(), flat.size());
        *n_numbers = flat.size();
    });
}

void luce_text_chat_close(luce_text_chat* chat) { delete chat; }

luce_text_status luce_text_schema_to_grammar(const char* json, size_t n_json, char** grammar, char** error) {
    return guarded(error, [&] {
        require(grammar);
        *grammar = copy_out(schema_to_grammar(parse_json(view(json, n_json), "the JSON schema")));
    });
}

luce_text_status luce_text_parser_open(const luce_text_chat* chat, int by_grammar, luce_text_parser** parser,
                                       char** error) {
    return guarded(error, [&] {
        require(chat, parser);
        *parser = new luce_text_parser(chat->chat, by_grammar != 0);
    });
}

luce_text_status luce_text_parser_feed_token(luce_text_parser* parser, int32_t id, char** deltas, char** error) {
    return guarded(error, [&] {
        require(parser, deltas);
        *deltas = copy_out(to_json(parser->parser.feed(id)).dump_safe());
    });
}

luce_text_status luce_text_parser_feed_tokens(luce_text_parser* parser, const int32_t* ids, size_t n_ids, char** steps,
                                              char** error) {
    return guarded(error, [&] {
        require(parser, steps);
        if (n_ids > 0) {
            require(ids);
        }
        common_json list = common_json::array();
        for (const AnswerStep& step : parser->parser.feed(std::vector<llama_token>(ids, ids + n_ids))) {
            list.push_back(common_json{{"n", step.n_tokens}, {"deltas", to_json(step.deltas)}});
        }
        *steps = copy_out(list.dump_safe());
    });
}

luce_text_status luce_text_parser_feed_text(luce_text_parser* parser, const char* bytes, size_t n_bytes, char** deltas,
                                            char** error) {
    return guarded(error, [&] {
        require(parser, deltas);
        *deltas = copy_out(to_json(parser->parser.feed(view(bytes, n_bytes))).dump_safe());
    });
}

luce_text_status luce_text_parser_message(const luce_text_parser* parser, char** message, char** error) {
    return guarded(error, [&] {
        require(parser, message);
        *message = copy_out(message_json(parser->parser.message()).dump_safe());
    });
}

luce_text_status luce_text_parser_finish(luce_text_parser* parser, int truncated, char** result, char** error) {
    return guarded(error, [&] {
        require(parser, result);
        const FinishedAnswer answer = parser->parser.finish(truncated != 0);
        const common_json json = {{"deltas", to_json(answer.deltas)},
                                  {"message", message_json(answer.message)},
                                  {"consistent", answer.is_consistent},
                                  {"mended", answer.n_mended},
                                  {"unaccounted", answer.n_unaccounted}};
        *result = copy_out(json.dump_safe());
    });
}

luce_text_status luce_text_parser_work(const luce_text_parser* parser, uint64_t* n_bytes_fed, uint64_t* n_bytes_parsed,
                                       char** error) {
    return guarded(error, [&] {
        require(parser, n_bytes_fed, n_bytes_parsed);
        *n_bytes_fed = parser->parser.n_bytes_fed();
        *n_bytes_parsed = parser->parser.n_bytes_parsed();
    });
}

void luce_text_parser_close(luce_text_parser* parser) { delete parser; }

}  // extern "C"
