#include "daemon/loop/event_loop.h"

#include <chrono>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/step_profile.h"

namespace luce::daemon {
namespace {

// Lines served between two steps: enough that none waits long, few enough that a flood of them stalls no stream.
constexpr int kLinesPerTurn = 64;
constexpr int kLastWrites_s = 120;
constexpr std::chrono::milliseconds kLookForSignals{100};
constexpr int kIdleWorkEvery_ms = 1;  // copies that it has sent take about as long

}  // namespace

EventLoop::EventLoop(int input_fd, engine::Engine& engine, Dispatcher& dispatcher, PageReports& pages, Output& output,
                     std::vector<memory::IoWorker*> workers)
    : channels_(input_fd, output),
      engine_(engine),
      dispatcher_(dispatcher),
      pages_(pages),
      output_(output),
      workers_(std::move(workers)) {}

int EventLoop::run() {
    output_.flush();
    while (!is_done()) {
        wait();
        serve();
        if (engine_.wants_step()) {
            step();
        } else {
            output_.flush();
            if (engine_.has_idle_work()) engine_.use_idle_time();
        }
        pages_.send();
        if (engine_.is_broken()) {
            log_error("the engine cannot compute any more; giving up");
            dispatcher_.give_up({ErrorCode::internal, "the engine cannot compute any more"});
            drain();
            return kEngineFailure;
        }
    }
    finish_files();
    dispatcher_.take_leave();
    drain();
    return 0;
}

// What has come goes out before what has ended is let go of: with a long text that takes longer than a token. What
// follows an end, the next turn of the plain dialect, comes after both.
void EventLoop::step() {
    const std::vector<engine::Event> events = engine_.compute_step();
    {
        const Span span(Part::output);
        dispatcher_.on_events(events);
        output_.flush();
    }
    engine_.release_ended();
    const Span span(Part::output);
    dispatcher_.take_turns();
    output_.flush();
}

// What was promised is answered, and what the disk is owed is written, as much at once as the worker takes: until it is
// done, or whoever ends us has had enough of it.
void EventLoop::finish_files() {
    const int longest_s = output_.is_deserted() ? kQuitGrace_s : kLastWrites_s;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(longest_s);
    while (std::chrono::steady_clock::now() < end && !is_stop_pending()) {
        if (!workers_.front()->drain(kLookForSignals)) continue;
        if (!engine_.is_idle() || engine_.copy_owed() == 0) return;
    }
}

bool EventLoop::is_done() const {
    if (dispatcher_.has_quit() || output_.is_deserted()) return true;
    return channels_.has_ended() && !channels_.lines().has_next() && dispatcher_.is_idle();
}

void EventLoop::wait() {
    const bool has_lines = channels_.lines().has_next();
    const bool wants_lines = dispatcher_.wants_lines();
    const bool has_work = engine_.wants_step() || (has_lines && wants_lines);
    const int longest_ms = has_work ? 0 : engine_.has_idle_work() ? kIdleWorkEvery_ms : -1;
    Span span(has_work ? Part::commands : Part::idle);
    std::vector<int> worker_fds;
    for (const memory::IoWorker* worker : workers_) worker_fds.push_back(worker->fd());
    const Channels::Heard heard = channels_.wait(!has_lines && wants_lines, worker_fds, longest_ms);
    span.end();
    if (heard.is_told_to_stop) {
        dispatcher_.quit();
        return;
    }
    if (heard.is_reader_gone) dispatcher_.on_reader_gone();
    if (heard.has_input) channels_.read();
}

void EventLoop::serve() {
    const Span span(Part::commands);
    for (memory::IoWorker* worker : workers_) worker->run_completions();
    for (int i = 0; i < kLinesPerTurn && channels_.lines().has_next() && dispatcher_.wants_lines(); ++i) {
        dispatcher_.on_line(*channels_.lines().next());
    }
}

void EventLoop::drain() {
    channels_.drain([this] { return dispatcher_.has_quit(); });
}

}  // namespace luce::daemon
