#include "app/ending.h"

#include <unistd.h>

#include <optional>
#include <string>

#include "base/log.h"
#include "daemon/loop/event_loop.h"
#include "daemon/setup/startup.h"
#include "wire/reply.h"

namespace luce::app {

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

void on_fatal_abort(const char* message) {
    log_error(std::string("fatal error of the engine: ") + message);
    ::_exit(daemon::EventLoop::kEngineFailure);
}

}  // namespace luce::app
