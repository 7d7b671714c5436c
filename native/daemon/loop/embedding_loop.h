// EmbeddingLoop: the one thread of a daemon that gives vectors. Looks at stdin, the outputs and signals between two
// calls of the model, and sleeps while no text waits.
#pragma once

#include "daemon/commands/embedding_dispatcher.h"
#include "daemon/loop/channels.h"
#include "daemon/loop/output.h"

namespace luce::daemon {

class EmbeddingLoop {
public:
    // REQUIRES: as Channels.
    EmbeddingLoop(int input_fd, EmbeddingDispatcher& dispatcher, Output& output)
        : channels_(input_fd, output), dispatcher_(dispatcher), output_(output) {}

    // Until quit, the end of input or the readers' end. False: the model cannot compute any more.
    bool run();

private:
    bool is_done() const;
    void listen();

    Channels channels_;
    EmbeddingDispatcher& dispatcher_;
    Output& output_;
};

}  // namespace luce::daemon
