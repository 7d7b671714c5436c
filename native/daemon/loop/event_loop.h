// EventLoop: the daemon's one thread. Looks at stdin, the outputs and signals between two steps of the engine, and
// sleeps in poll when there is nothing to compute.
#pragma once

#include <csignal>

#include "base/unique_fd.h"
#include "daemon/commands/dispatcher.h"
#include "daemon/loop/output.h"
#include "engine/engine.h"
#include "memory/tiers/io_worker.h"
#include "wire/line_decoder.h"

namespace luce::daemon {

class EventLoop {
public:
    // `workers`: whose completions are run here; the first one writes files, which the end waits for.
    // REQUIRES: SIGTERM and SIGINT are blocked in every thread, so that they arrive here (block_stop_signals).
    EventLoop(int input_fd, engine::Engine& engine, Dispatcher& dispatcher, Output& output,
              std::vector<memory::IoWorker*> workers);

    // Until quit, the end of input or the readers' end; the exit status. kEngineFailure when the engine is broken.
    int run();

    static constexpr int kEngineFailure = 70;

private:
    void wait();
    void read_input();
    void serve();
    void step();
    bool is_done() const;
    void finish_files();
    void drain();

    int input_fd_;
    engine::Engine& engine_;
    Dispatcher& dispatcher_;
    Output& output_;
    std::vector<memory::IoWorker*> workers_;
    wire::LineDecoder lines_;
    UniqueFd signals_;
    bool has_ended_ = false;  // stdin
};

// To be called before any thread is started.
void block_stop_signals();

// Whether one of them has come in and waits to be fetched.
bool is_stop_pending();

}  // namespace luce::daemon
