#include "daemon/loop/event_loop.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/step_profile.h"

namespace luce::daemon {
namespace {

constexpr std::size_t kReadBytes = 1 << 16;
// Lines served between two steps: enough that none waits long, few enough that a flood of them stalls no stream.
constexpr int kLinesPerTurn = 64;
constexpr int kIdleWorkEvery_ms = 1;  // copies that it has sent take about as long
// After quit, how long readers may take to fetch what was written for them.
constexpr std::chrono::seconds kQuitGrace{5};
constexpr short kGone = POLLERR | POLLHUP | POLLNVAL;

sigset_t stop_signals() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    return set;
}

}  // namespace

void block_stop_signals() {
    const sigset_t set = stop_signals();
    sigprocmask(SIG_BLOCK, &set, nullptr);
    // A reader that has gone is an error of write(), not the end of the daemon.
    signal(SIGPIPE, SIG_IGN);
    // And so is a limit on the size of files: a trace or the disk cache ends there, not the requests.
    signal(SIGXFSZ, SIG_IGN);
}

bool is_stop_pending() {
    sigset_t pending;
    if (sigpending(&pending) != 0) return false;
    return sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1;
}

EventLoop::EventLoop(int input_fd, engine::Engine& engine, Dispatcher& dispatcher, Output& output,
                     std::vector<memory::IoWorker*> workers)
    : input_fd_(input_fd), engine_(engine), dispatcher_(dispatcher), output_(output), workers_(std::move(workers)) {
    const sigset_t set = stop_signals();
    signals_ = UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

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
    std::vector<engine::Event> events = engine_.compute_step();
    {
        const Span span(Part::output);
        dispatcher_.on_events(std::move(events));
        output_.flush();
    }
    engine_.release_ended();
    const Span span(Part::output);
    dispatcher_.take_turns();
    output_.flush();
}

// What was promised is answered; what is being written behind gets a moment more.
void EventLoop::finish_files() {
    if (engine_.is_idle()) engine_.copy_owed();
    workers_.front()->drain(std::chrono::duration_cast<std::chrono::milliseconds>(kQuitGrace));
}

bool EventLoop::is_done() const {
    if (dispatcher_.has_quit() || output_.is_deserted()) return true;
    return has_ended_ && !lines_.has_next() && dispatcher_.is_idle();
}

void EventLoop::wait() {
    const bool reads = !has_ended_ && !lines_.has_next() && dispatcher_.wants_lines();
    const auto interest = [](const FdWriter& writer) {
        return static_cast<short>(writer.backlog_bytes() > 0 ? POLLOUT : 0);
    };
    FdWriter* tokens = output_.tokens();
    const auto fd_of = [](const FdWriter& writer) { return writer.is_closed() ? -1 : writer.fd(); };
    enum { kInput, kSignals, kReplies, kTokens, kEntries };
    std::vector<pollfd> entries(kEntries);
    entries[kInput] = {reads ? input_fd_ : -1, POLLIN, 0};
    entries[kSignals] = {signals_.get(), POLLIN, 0};
    entries[kReplies] = {fd_of(output_.replies()), interest(output_.replies()), 0};
    entries[kTokens] = tokens != nullptr ? pollfd{fd_of(*tokens), interest(*tokens), 0} : pollfd{-1, 0, 0};
    for (const memory::IoWorker* worker : workers_) entries.push_back({worker->fd(), POLLIN, 0});
    const bool has_work = engine_.wants_step() || (lines_.has_next() && dispatcher_.wants_lines());
    const int longest_ms = has_work ? 0 : engine_.has_idle_work() ? kIdleWorkEvery_ms : -1;
    Span span(has_work ? Part::commands : Part::idle);
    const int n_ready = ::poll(entries.data(), entries.size(), longest_ms);
    span.end();
    if (n_ready < 0) {
        if (errno == EINTR) return;
        // Nothing could be heard any more, not even quit: without an end this would be a loop that never waits.
        log_error(std::string("cannot wait for commands any more: poll: ") + std::strerror(errno));
        dispatcher_.quit();
        return;
    }
    if (entries[kSignals].revents != 0) {
        // Taken out, so that only a further signal cuts the answers short that quit() leaves behind.
        signalfd_siginfo info;
        while (::read(signals_.get(), &info, sizeof info) > 0) {
        }
        log_info("told to stop by a signal");
        dispatcher_.quit();
        return;
    }
    if ((entries[kReplies].revents & kGone) != 0) output_.replies().close();
    if (tokens != nullptr && (entries[kTokens].revents & kGone) != 0) tokens->close();
    if (output_.replies().is_closed() || (tokens != nullptr && tokens->is_closed())) dispatcher_.on_reader_gone();
    if ((entries[kInput].revents & (POLLIN | kGone)) != 0) read_input();
}

void EventLoop::read_input() {
    std::array<char, kReadBytes> bytes;
    const ssize_t n = ::read(input_fd_, bytes.data(), bytes.size());
    if (n > 0) {
        lines_.feed({bytes.data(), static_cast<std::size_t>(n)});
    } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
        has_ended_ = true;
        lines_.finish();
    }
}

void EventLoop::serve() {
    const Span span(Part::commands);
    for (memory::IoWorker* worker : workers_) worker->run_completions();
    for (int i = 0; i < kLinesPerTurn && lines_.has_next() && dispatcher_.wants_lines(); ++i) {
        dispatcher_.on_line(*lines_.next());
    }
}

// What was written for the readers goes out first: for as long as they read at the end of input, for a moment after
// quit, whose sender wants an end.
void EventLoop::drain() {
    const auto deadline = std::chrono::steady_clock::now() + kQuitGrace;
    output_.flush();
    while (output_.backlog_bytes() > 0) {
        std::vector<pollfd> entries;
        const std::array<const FdWriter*, 2> writers = {&output_.replies(), output_.tokens()};
        for (const FdWriter* writer : writers) {
            if (writer != nullptr && writer->backlog_bytes() > 0) entries.push_back({writer->fd(), POLLOUT, 0});
        }
        const bool is_urgent = dispatcher_.has_quit();
        const auto left =
            std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
        if (is_urgent && left.count() <= 0) return;
        entries.push_back({signals_.get(), POLLIN, 0});
        if (::poll(entries.data(), entries.size(), is_urgent ? static_cast<int>(left.count()) : -1) < 0) {
            if (errno == EINTR) continue;
            log_error(std::string("what is still to be read is given up: poll: ") + std::strerror(errno));
            return;
        }
        if (entries.back().revents != 0) return;
        output_.flush();
    }
}

}  // namespace luce::daemon
