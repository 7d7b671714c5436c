#include "daemon/commands/embedding_dispatcher.h"

#include <new>
#include <optional>
#include <type_traits>
#include <variant>

#include "base/log.h"
#include "daemon/commands/prompt_file.h"
#include "daemon/commands/slot_commands.h"
#include "wire/command_parser.h"

namespace luce::daemon {
namespace {

constexpr std::size_t kMaxUnreadBytes = 64u << 20;

Error not_here() {
    return {ErrorCode::unsupported,
            "this daemon gives vectors (--embedding): it knows embed, cancel, status, ping and "
            "quit"};
}

}  // namespace

EmbeddingDispatcher::EmbeddingDispatcher(engine::Embedder& embedder, std::size_t n_queue, Output& output,
                                         std::function<StatusFields()> describe)
    : embedder_(embedder),
      limits_(embedder.limits()),
      queue_(limits_, n_queue),
      output_(output),
      describe_(std::move(describe)) {}

bool EmbeddingDispatcher::wants_lines() const { return !has_quit_ && output_.backlog_bytes() <= kMaxUnreadBytes; }

void EmbeddingDispatcher::on_line(const wire::DecodedLine& line) {
    if (line.too_long) {
        const std::string limit = std::to_string(wire::kMaxLineBytes);
        output_.send_reply(wire::Err{
            std::nullopt, {ErrorCode::line_too_long, "a line may have " + limit + " bytes; pass the text as a file"}});
        return;
    }
    auto parsed = wire::parse_command(line.text);
    if (const auto* error = std::get_if<wire::ParseError>(&parsed)) {
        if (error->generating && !output_.is_multiplexed()) output_.send_sentinel(error->id.value_or(0));
        output_.send_reply(wire::Err{error->id, error->error});
        return;
    }
    std::visit(
        [&](auto& which) {
            using T = std::decay_t<decltype(which)>;
            if constexpr (std::is_same_v<T, wire::Embed>) on_embed(std::move(which));
            if constexpr (std::is_same_v<T, wire::Generate> || std::is_same_v<T, wire::Compress>) {
                on_generating(GeneratingCommand(std::move(which)));
            }
            if constexpr (std::is_same_v<T, wire::FreeScorer>) output_.send_reply(wire::Err{std::nullopt, not_here()});
            if constexpr (std::is_same_v<T, wire::Cancel>) on_cancel(which);
            if constexpr (std::is_same_v<T, wire::Status>) on_status(which);
            if constexpr (std::is_same_v<T, wire::Ping>) output_.send_reply(wire::Pong{which.word});
            if constexpr (std::is_same_v<T, wire::Quit>) {
                quit();
                output_.send_reply(wire::PlainOk{});
            }
            if constexpr (IsSlotCommand<T>) output_.send_reply(wire::Err{which.id, not_here()});
        },
        std::get<wire::Command>(parsed));
}

// Where memory is short, one request fails and not the daemon: nothing holds a part of it yet.
void EmbeddingDispatcher::on_embed(wire::Embed command) try {
    if (command.prompt_path) {
        Result<Tokens> read = read_prompt_file(*command.prompt_path, PromptLayout::raw, limits_.n_text);
        if (!read) {
            output_.send_reply(wire::Err{command.id, read.error()});
            return;
        }
        command.prompt = std::move(read).value();
    }
    const Result<void> added = queue_.add({command.id, std::move(command.prompt)});
    if (!added) output_.send_reply(wire::Err{command.id, added.error()});
} catch (const std::bad_alloc&) {
    output_.send_reply(wire::Err{command.id, {ErrorCode::out_of_memory, "no memory for the request"}});
}

void EmbeddingDispatcher::on_generating(const GeneratingCommand& command) {
    const bool is_named = command.form == wire::Generate::Form::named;
    output_.send_sentinel(command.id);
    output_.send_reply(wire::Err{is_named ? std::optional(command.id) : std::nullopt, not_here()});
}

// What is being computed is answered as if the cancellation had come later.
void EmbeddingDispatcher::on_cancel(const wire::Cancel& command) {
    if (!queue_.remove(command.id)) {
        output_.send_reply(wire::Err{command.id, {ErrorCode::unknown_id, "no such request is waiting"}});
        return;
    }
    output_.send_reply(wire::Cancelled{command.id});
    output_.send_reply(wire::Err{command.id, {ErrorCode::cancelled, "the request was cancelled"}});
}

void EmbeddingDispatcher::on_status(const wire::Status& command) {
    wire::StatusLine line;
    const auto add = [&line](const char* key, auto value) { line.fields.emplace_back(key, std::to_string(value)); };
    if (command.id) add("id", *command.id);
    add("queued", queue_.size());
    add("texts", n_texts_);
    add("tokens_in", n_tokens_);
    add("calls", n_calls_);
    add("backlog_bytes", output_.backlog_bytes());
    for (auto& field : describe_()) line.fields.push_back(std::move(field));
    if (command.check) line.fields.emplace_back("integrity", "ok");
    output_.send_reply(line);
}

bool EmbeddingDispatcher::step() {
    const std::vector<engine::EmbeddingRequest> batch = queue_.next_batch();
    if (batch.empty()) return true;
    std::vector<Tokens> texts;
    for (const engine::EmbeddingRequest& request : batch) texts.push_back(request.tokens);
    Result<std::vector<engine::Vector>> vectors = embedder_.embed(texts);
    ++n_calls_;
    if (vectors) {
        answer(batch, std::move(vectors).value());
        return true;
    }
    for (const engine::EmbeddingRequest& request : batch) output_.send_reply(wire::Err{request.id, vectors.error()});
    if (vectors.error().code == ErrorCode::out_of_memory) return true;
    log_error("the model cannot compute any more: " + vectors.error().text);
    refuse_all(vectors.error());
    return false;
}

void EmbeddingDispatcher::answer(const std::vector<engine::EmbeddingRequest>& batch,
                                 std::vector<engine::Vector> vectors) {
    for (std::size_t i = 0; i < batch.size(); ++i) {
        if (vectors[i].empty()) {
            const Error none{ErrorCode::internal, "the model gave no vector of this text: not finite, or all zeros"};
            output_.send_reply(wire::Err{batch[i].id, none});
            continue;
        }
        const auto n_tokens = static_cast<std::int32_t>(batch[i].tokens.size());
        ++n_texts_;
        n_tokens_ += static_cast<std::uint64_t>(n_tokens);
        output_.send_reply(wire::Embedding{batch[i].id, n_tokens, std::move(vectors[i])});
    }
}

void EmbeddingDispatcher::on_reader_gone() {
    if (!output_.has_reply_reader()) refuse_all({ErrorCode::cancelled, "nobody reads the replies"});
}

void EmbeddingDispatcher::refuse_all(const Error& error) {
    while (!queue_.empty()) {
        const std::int32_t id = queue_.first_id();
        queue_.remove(id);
        output_.send_reply(wire::Err{id, error});
    }
}

void EmbeddingDispatcher::quit() {
    if (has_quit_) return;
    has_quit_ = true;
    refuse_all({ErrorCode::cancelled, "the daemon was told to stop"});
}

}  // namespace luce::daemon
