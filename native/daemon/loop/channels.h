// Channels: what a loop of the daemon listens to: command lines, signals that tell it to stop, readers that go away.
// Waits for them, cuts the input into lines, and delivers what is left at the end. Knows no command.
#pragma once

#include <functional>
#include <span>

#include "base/unique_fd.h"
#include "daemon/loop/output.h"
#include "wire/line_decoder.h"

namespace luce::daemon {

class Channels {
public:
    // REQUIRES: SIGTERM and SIGINT are blocked in every thread, so that they arrive here (block_stop_signals).
    Channels(int input_fd, Output& output);

    struct Heard {
        bool is_told_to_stop = false;
        bool is_reader_gone = false;
        bool has_input = false;  // read() does not wait
    };

    // Until something comes, or for `longest_ms` (-1: as long as it takes). `reads`: whether input is wanted now;
    // `other_fds`: what else ends the waiting.
    Heard wait(bool reads, std::span<const int> other_fds, int longest_ms);

    void read();

    wire::LineDecoder& lines() { return lines_; }
    const wire::LineDecoder& lines() const { return lines_; }
    bool has_ended() const { return has_ended_; }

    // What was written for the readers goes out first: for as long as they read, or, if it is urgent, for a moment.
    void drain(const std::function<bool()>& is_urgent);

private:
    int input_fd_;
    Output& output_;
    wire::LineDecoder lines_;
    UniqueFd signals_;
    bool has_ended_ = false;  // the input
};

// To be called before any thread is started.
void block_stop_signals();

// Whether one of them has come in and waits to be fetched.
bool is_stop_pending();

// After quit, how long readers may take to fetch what was written for them.
inline constexpr int kQuitGrace_s = 5;

}  // namespace luce::daemon
