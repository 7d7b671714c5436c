// EmbeddingDispatcher: the commands of a daemon that gives vectors: each gets exactly one final reply, and here is
// where. What such a daemon cannot do is refused. Computes nothing itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/commands/request_builder.h"
#include "daemon/loop/output.h"
#include "engine/embedding/embedder.h"
#include "engine/embedding/embedding_queue.h"
#include "wire/command.h"
#include "wire/line_decoder.h"

namespace luce::daemon {

class EmbeddingDispatcher {
public:
    using StatusFields = std::vector<std::pair<std::string, std::string>>;

    // `describe` adds what is not known here to a status reply. All must outlive the dispatcher.
    EmbeddingDispatcher(engine::Embedder& embedder, std::size_t n_queue, Output& output,
                        std::function<StatusFields()> describe);

    void on_line(const wire::DecodedLine& line);

    // Computes and answers the next texts together, if any wait. False: nothing can be computed any more.
    bool step();

    // Nobody reads the replies any more.
    void on_reader_gone();

    // Whether more lines may come: not while too much output waits for its readers.
    bool wants_lines() const;

    // Ends everything, each command with its reply; for quit and for signals.
    void quit();
    bool has_quit() const { return has_quit_; }

    bool is_idle() const { return queue_.empty(); }

private:
    void on_embed(wire::Embed command);
    void on_generating(const GeneratingCommand& command);
    void on_cancel(const wire::Cancel& command);
    void on_status(const wire::Status& command);
    void answer(const std::vector<engine::EmbeddingRequest>& batch, std::vector<engine::Vector> vectors);
    void refuse_all(const Error& error);

    engine::Embedder& embedder_;
    engine::EmbedderLimits limits_;
    engine::EmbeddingQueue queue_;
    Output& output_;
    std::function<StatusFields()> describe_;
    std::uint64_t n_texts_ = 0;
    std::uint64_t n_tokens_ = 0;
    std::uint64_t n_calls_ = 0;
    bool has_quit_ = false;
};

}  // namespace luce::daemon
