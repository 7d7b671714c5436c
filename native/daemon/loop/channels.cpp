#include "daemon/loop/channels.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string>
#include <vector>

#include "base/log.h"

namespace luce::daemon {
namespace {

constexpr std::size_t kReadBytes = 1 << 16;
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

Channels::Channels(int input_fd, Output& output) : input_fd_(input_fd), output_(output) {
    const sigset_t set = stop_signals();
    signals_ = UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

Channels::Heard Channels::wait(bool reads, std::span<const int> other_fds, int longest_ms) {
    const auto interest = [](const FdWriter& writer) {
        return static_cast<short>(writer.backlog_bytes() > 0 ? POLLOUT : 0);
    };
    FdWriter* tokens = output_.tokens();
    const auto fd_of = [](const FdWriter& writer) { return writer.is_closed() ? -1 : writer.fd(); };
    enum { kInput, kSignals, kReplies, kTokens, kEntries };
    std::vector<pollfd> entries(kEntries);
    entries[kInput] = {reads && !has_ended_ ? input_fd_ : -1, POLLIN, 0};
    entries[kSignals] = {signals_.get(), POLLIN, 0};
    entries[kReplies] = {fd_of(output_.replies()), interest(output_.replies()), 0};
    entries[kTokens] = tokens != nullptr ? pollfd{fd_of(*tokens), interest(*tokens), 0} : pollfd{-1, 0, 0};
    for (const int fd : other_fds) entries.push_back({fd, POLLIN, 0});
    if (::poll(entries.data(), entries.size(), longest_ms) < 0) {
        if (errno == EINTR) return {};
        // Nothing could be heard any more, not even quit: without an end this would be a loop that never waits.
        log_error(std::string("cannot wait for commands any more: poll: ") + std::strerror(errno));
        return {.is_told_to_stop = true};
    }
    if (entries[kSignals].revents != 0) {
        // Taken out, so that only a further signal cuts the answers short that a stop leaves behind.
        signalfd_siginfo info;
        while (::read(signals_.get(), &info, sizeof info) > 0) {
        }
        log_info("told to stop by a signal");
        return {.is_told_to_stop = true};
    }
    if ((entries[kReplies].revents & kGone) != 0) output_.replies().close();
    if (tokens != nullptr && (entries[kTokens].revents & kGone) != 0) tokens->close();
    const bool is_reader_gone = output_.replies().is_closed() || (tokens != nullptr && tokens->is_closed());
    return {.is_reader_gone = is_reader_gone, .has_input = (entries[kInput].revents & (POLLIN | kGone)) != 0};
}

void Channels::read() {
    std::array<char, kReadBytes> bytes;
    const ssize_t n = ::read(input_fd_, bytes.data(), bytes.size());
    if (n > 0) {
        lines_.feed({bytes.data(), static_cast<std::size_t>(n)});
    } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
        has_ended_ = true;
        lines_.finish();
    }
}

void Channels::drain(const std::function<bool()>& is_urgent) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(kQuitGrace_s);
    output_.flush();
    while (output_.backlog_bytes() > 0) {
        std::vector<pollfd> entries;
        const std::array<const FdWriter*, 2> writers = {&output_.replies(), output_.tokens()};
        for (const FdWriter* writer : writers) {
            if (writer != nullptr && writer->backlog_bytes() > 0) entries.push_back({writer->fd(), POLLOUT, 0});
        }
        const bool is_hurried = is_urgent();
        const auto left =
            std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
        if (is_hurried && left.count() <= 0) return;
        entries.push_back({signals_.get(), POLLIN, 0});
        if (::poll(entries.data(), entries.size(), is_hurried ? static_cast<int>(left.count()) : -1) < 0) {
            if (errno == EINTR) continue;
            log_error(std::string("what is still to be read is given up: poll: ") + std::strerror(errno));
            return;
        }
        if (entries.back().revents != 0) return;
        output_.flush();
    }
}

}  // namespace luce::daemon
