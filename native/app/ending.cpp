#include "app/ending.h"

#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/loop/event_loop.h"
#include "daemon/setup/startup.h"
#include "llama/model/memory_shortage.h"
#include "wire/reply.h"

namespace luce::app {

namespace {

int g_reply_fd = -1;  // handlers take no argument: it has to be global

// An exception that nobody caught: a backend's, or one of a thread that is not ours.
[[noreturn]] void on_terminate() {
    std::string what = "no exception";
    try {
        if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
    } catch (const std::exception& e) {
        what = e.what();
    } catch (...) {
        what = "an exception that is none of the standard library's";
    }
    tell_of_memory(what);
    log_error("terminated: " + what);
    std::abort();
}

}  // namespace

int refuse_to_start(int reply_fd, const Error& error, int status) {
    log_error(error.text);
    const wire::Err reply{std::nullopt, {ErrorCode::start_failed, error.text}};
    // Who cannot be told sees the status and the log.
    (void)daemon::write_text(reply_fd, wire::format_reply(reply));
    return status;
}

int refuse_to_start(int reply_fd, const Error& error) {
    return refuse_to_start(reply_fd, error, error.code == ErrorCode::bad_args ? kBadArguments : kStartFailed);
}

int print(std::string_view text) {
    const Result<void> printed = daemon::write_text(STDOUT_FILENO, text);
    if (printed) return 0;
    log_error(printed.error().text);
    return kOutputFailed;
}

void tell_of_memory(std::string_view reason) {
    const std::string noted = llama::log_shortage().recent(SteadyClock().now_s());
    const std::string_view why = noted.empty() && llama::tells_of_memory(reason) ? reason : noted;
    if (why.empty() || g_reply_fd < 0) return;
    (void)daemon::write_text(g_reply_fd, wire::format_reply(wire::OutOfMemory{std::string(why)}));
}

void tell_of_memory_on(int reply_fd) {
    g_reply_fd = reply_fd;
    std::set_terminate(on_terminate);
}

void on_fatal_abort(const char* message) {
    tell_of_memory(message);
    if (std::string_view(message).find("Remote RPC server") != std::string_view::npos) {
        log_error("an RPC worker is gone, or has answered what it should not (--rpc)");
        ::_exit(kTryLater);
    }
    log_error(std::string("fatal error of the engine: ") + message);
    ::_exit(daemon::EventLoop::kEngineFailure);
}

}  // namespace luce::app
