#include "daemon/loop/embedding_loop.h"

namespace luce::daemon {

bool EmbeddingLoop::run() {
    bool is_alive = true;
    output_.flush();
    while (is_alive && !is_done()) {
        listen();
        output_.flush();
        is_alive = dispatcher_.step();
        output_.flush();
    }
    channels_.drain([this] { return dispatcher_.has_quit(); });
    return is_alive;
}

bool EmbeddingLoop::is_done() const {
    if (dispatcher_.has_quit() || !output_.has_reply_reader()) return true;
    return channels_.has_ended() && !channels_.lines().has_next() && dispatcher_.is_idle();
}

// All lines that are there: what comes together is computed together.
void EmbeddingLoop::listen() {
    const bool wants_lines = dispatcher_.wants_lines();
    const bool has_work = !dispatcher_.is_idle() || (channels_.lines().has_next() && wants_lines);
    const Channels::Heard heard = channels_.wait(wants_lines, {}, has_work ? 0 : -1);
    if (heard.is_told_to_stop) {
        dispatcher_.quit();
        return;
    }
    if (heard.is_reader_gone) dispatcher_.on_reader_gone();
    if (heard.has_input) channels_.read();
    while (channels_.lines().has_next() && dispatcher_.wants_lines()) dispatcher_.on_line(*channels_.lines().next());
}

}  // namespace luce::daemon
