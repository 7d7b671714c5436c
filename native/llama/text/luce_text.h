/* luce_text: the text side of a model as a C library. Vocabulary, chat template, JSON schema -> grammar, parsing of
 * answers; no weights, no context, no decoding. Python loads it with ctypes (supervisor/text). Knows nothing of luced,
 * of the protocol or of HTTP.
 *
 * Conventions
 *   - Each call returns a luce_text_status. On failure *error (if error is not NULL) points to a message for people and
 *     all other outputs are untouched.
 *   - Everything that comes back through a char **, int32_t **, int64_t ** or uint32_t ** belongs to the caller:
 *     luce_text_free.
 *     JSON is UTF-8 and ends in a NUL byte. Byte strings come with their length and may hold any byte.
 *   - Handles may be closed in any order: a chat keeps its model alive, a parser its chat.
 *   - A model and a chat may be used by several threads at once. A parser belongs to one thread at a time.
 *   - No C++ exception leaves the library. An abort inside ggml (a corrupt model file that the checks before loading
 *     did not recognise) cannot be caught in the process: who opens files of unknown origin does it in a child.
 */
#ifndef LUCE_TEXT_H
#define LUCE_TEXT_H

#include <stddef.h>
#include <stdint.h>

#define LUCE_TEXT_ABI_VERSION 9

#if defined(_WIN32)
#define LUCE_TEXT_API __declspec(dllexport)
#else
#define LUCE_TEXT_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum luce_text_status {
    LUCE_TEXT_OK = 0,
    LUCE_TEXT_BAD_ARGUMENT = 1,  /* the caller's data: JSON, token ids, messages, tools */
    LUCE_TEXT_LOAD_FAILED = 2,   /* no such file, or no usable model in it */
    LUCE_TEXT_NO_VOCABULARY = 3, /* the model has token ids only ("no_vocab") */
    LUCE_TEXT_BAD_TEMPLATE = 4,  /* the chat template does not parse, or refuses these messages */
    LUCE_TEXT_BAD_SCHEMA = 5,    /* the JSON schema has no grammar */
    LUCE_TEXT_INTERNAL = 6
} luce_text_status;

typedef struct luce_text_model luce_text_model;
typedef struct luce_text_message luce_text_message;
typedef struct luce_text_chat luce_text_chat;
typedef struct luce_text_parser luce_text_parser;

LUCE_TEXT_API int32_t luce_text_abi_version(void);
LUCE_TEXT_API void luce_text_free(void* memory);

/* chat_template: template text instead of the model's own, or NULL. */
LUCE_TEXT_API luce_text_status luce_text_model_open(const char* path, const char* chat_template,
                                                    luce_text_model** model, char** error);
LUCE_TEXT_API void luce_text_model_close(luce_text_model* model);

/* {"n_vocab", "has_text", "kind", "architecture", "name", "n_ctx_train", "bos", "eos", "eot", "sep", "nl", "pad",
 *  "mask", "fim_pre", "fim_suf", "fim_mid", "fim_rep", "fim_sep" (id or null), "eog": [id], "add_bos", "add_eos",
 *  "add_sep", "rerank_template" (how a reranker reads {query} and {document}, or null), "has_template", "special":
 * [{"id", "text", "kind": "control" | "user_defined" | "unknown"}]} */
LUCE_TEXT_API luce_text_status luce_text_model_info(const luce_text_model* model, char** json, char** error);

/* {"source", "capabilities": {name: bool}, "supports_thinking"}: analyses the template on first use. */
LUCE_TEXT_API luce_text_status luce_text_template_info(const luce_text_model* model, char** json, char** error);

/* The attribute bits (llama_token_attr) of every token. */
LUCE_TEXT_API luce_text_status luce_text_attributes(const luce_text_model* model, uint32_t** attributes,
                                                    size_t* n_attributes, char** error);

LUCE_TEXT_API luce_text_status luce_text_tokenize(const luce_text_model* model, const char* bytes, size_t n_bytes,
                                                  int add_special, int parse_special, int32_t** ids, size_t* n_ids,
                                                  char** error);
/* The bytes of one token, perhaps a part of a UTF-8 sequence. special = 0: control tokens are empty. */
LUCE_TEXT_API luce_text_status luce_text_piece(const luce_text_model* model, int32_t id, int special, char** bytes,
                                               size_t* n_bytes, char** error);
LUCE_TEXT_API luce_text_status luce_text_detokenize(const luce_text_model* model, const int32_t* ids, size_t n_ids,
                                                    int remove_special, int unparse_special, char** bytes,
                                                    size_t* n_bytes, char** error);

/* One message of a chat, read: for any number of requests. JSON, and behind a line's end the content as it is, if it
 * is a text. */
LUCE_TEXT_API luce_text_status luce_text_message_open(const char* bytes, size_t n_bytes, luce_text_message** message,
                                                      char** error);
LUCE_TEXT_API void luce_text_message_close(luce_text_message* message);

/* `first`: messages that come before those of the request.
 * In: {"messages", "tools", "tool_choice", "parallel_tool_calls", "json_schema", "grammar", "enable_thinking",
 *      "chat_template_kwargs", "add_generation_prompt", "continue_final_message", "reasoning_format"}, as OpenAI's
 *      chat completions spell them; only "messages" is required. Besides "image_markers": {"prefix": text, "bytes": n}:
 *      what begins with the prefix and is so long stands for an image; number k of them is the id n_vocab + k. And in
 *      place of "messages" "message_bytes": [n]: the messages stand in `texts`, one behind the other, so long each:
 * JSON, and behind a line's end the content as it is, if it is a text. In place of "tools" "tools_bytes": n: they stand
 * before the messages there, as JSON. Such tools are not read again, nor texts of the prompt tokenised again, if they
 * came before with the same "cache_salt" (a text): who takes longer over what others have sent learns that they have.
 * Out:
 * {"format", "grammar", "grammar_lazy", "triggers": [{"type": "word" | "pattern" | "full" | "token", "value",
 * "token"}], "preserved": [id], "generation_prompt", "additional_stops": [text], "thinking": {"supported", "start",
 * "ends": [text], "start_tokens": [id], "ends_tokens": [[id]]}, "delimiters": [{"role", "text", "tokens"}],
 * "text_spans":
 * [[begin, end]] (bytes of the prompt that spell a special token but came from a message)} */
LUCE_TEXT_API luce_text_status luce_text_render(const luce_text_model* model, const luce_text_message* const* first,
                                                size_t n_first, const char* json, size_t n_json, const char* texts,
                                                size_t n_texts, luce_text_chat** chat, char** rendered, char** error);
/* The prompt and its ids: they belong to the chat. */
LUCE_TEXT_API luce_text_status luce_text_chat_prompt(const luce_text_chat* chat, const char** bytes, size_t* n_bytes,
                                                     char** error);
LUCE_TEXT_API luce_text_status luce_text_chat_tokens(const luce_text_chat* chat, const int32_t** ids, size_t* n_ids,
                                                     char** error);
/* Where messages begin in it, three numbers each: a place in its ids, in its bytes, and the role (0: unknown, 1:
 * system, 2: developer, 3: user, 4: assistant, 5: tool). */
LUCE_TEXT_API luce_text_status luce_text_chat_marks(const luce_text_chat* chat, int64_t** numbers, size_t* n_numbers,
                                                    char** error);
LUCE_TEXT_API void luce_text_chat_close(luce_text_chat* chat);

LUCE_TEXT_API luce_text_status luce_text_schema_to_grammar(const char* json, size_t n_json, char** grammar,
                                                           char** error);

/* Feeding returns the new deltas only: [{"reasoning": text} | {"content": text} |
 *   {"tool_call": {"index", "id", "name", "arguments"}}], where a tool call's first delta has its name.
 * Finishing returns {"deltas": [...], "message": {"role", "content", "reasoning_content", "tool_calls": [{"id", "name",
 *   "arguments"}]}, "consistent": whether the deltas add up to the message, "mended": places of content that the format
 *   has none for, "unaccounted": bytes that are in no field and no marks}. by_grammar: the output follows a grammar
 * from its beginning. truncated: the answer was cut off by a limit, so an incomplete tool call stays one. */
LUCE_TEXT_API luce_text_status luce_text_parser_open(const luce_text_chat* chat, int by_grammar,
                                                     luce_text_parser** parser, char** error);
LUCE_TEXT_API luce_text_status luce_text_parser_feed_token(luce_text_parser* parser, int32_t id, char** deltas,
                                                           char** error);
/* Several tokens: [{"n": number of tokens, "deltas": [...]}]. Tokens that only go on with the field that those before
 * them belonged to are one step, parsed once; any others are a step each. */
LUCE_TEXT_API luce_text_status luce_text_parser_feed_tokens(luce_text_parser* parser, const int32_t* ids, size_t n_ids,
                                                            char** steps, char** error);
LUCE_TEXT_API luce_text_status luce_text_parser_feed_text(luce_text_parser* parser, const char* bytes, size_t n_bytes,
                                                          char** deltas, char** error);
LUCE_TEXT_API luce_text_status luce_text_parser_message(const luce_text_parser* parser, char** message, char** error);
LUCE_TEXT_API luce_text_status luce_text_parser_finish(luce_text_parser* parser, int truncated, char** result,
                                                       char** error);
/* Work done so far: bytes that came in, and bytes that the grammar's parser went over. */
LUCE_TEXT_API luce_text_status luce_text_parser_work(const luce_text_parser* parser, uint64_t* n_bytes_fed,
                                                     uint64_t* n_bytes_parsed, char** error);
LUCE_TEXT_API void luce_text_parser_close(luce_text_parser* parser);

#ifdef __cplusplus
}
#endif

#endif
