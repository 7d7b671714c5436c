// EventLoop: the daemon's one thread. Looks at stdin, the outputs and signals between two steps of the engine, and
// sleeps in poll when there is nothing to compute.
#pragma once

#include "daemon/commands/dispatcher.h"
#include "daemon/loop/channels.h"
#include "daemon/loop/output.h"
#include "daemon/loop/page_reports.h"
#include "engine/engine.h"
#include "memory/tiers/io_worker.h"

namespace luce::daemon {

class EventLoop {
public:
    // `workers`: whose completions are run here; the first one writes files, which the end waits for.
    // REQUIRES: SIGTERM and SIGINT are blocked in every thread, so that they arrive here (block_stop_signals).
    EventLoop(int input_fd, engine::Engine& engine, Dispatcher& dispatcher, PageReports& pages, Output& output,
              std::vector<memory::IoWorker*> workers);

    // Until quit, the end of input or the readers' end; the exit status. kEngineFailure when the engine is broken.
    int run();

    static constexpr int kEngineFailure = 70;

private:
    void wait();
    void serve();
    void step();
    bool is_done() const;
    void finish_files();
    void drain();

    Channels channels_;
    engine::Engine& engine_;
    Dispatcher& dispatcher_;
    PageReports& pages_;
    Output& output_;
    std::vector<memory::IoWorker*> workers_;
};

}  // namespace luce::daemon
