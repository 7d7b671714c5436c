#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace luce {
namespace {

std::atomic<LogLevel> g_level{LogLevel::info};

std::string_view name_of(LogLevel level) {
    switch (level) {
        case LogLevel::error: return "error";
        case LogLevel::warn: return "warn";
        case LogLevel::info: return "info";
        case LogLevel::debug: return "debug";
    }
    return "?";
}

}  // namespace

void set_log_level(LogLevel level) { g_level.store(level, std::memory_order_relaxed); }
LogLevel log_level() { return g_level.load(std::memory_order_relaxed); }

void log_line(LogLevel level, std::string_view text) {
    if (level > log_level()) return;
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
    if (text.empty()) return;
    std::string line = "luced ";
    line.append(name_of(level)).append(": ").append(text).push_back('\n');
    // A closed or full stderr must not stop the engine (main makes it one that does not block): what cannot be written
    // is lost.
    ssize_t written = 0;
    do {
        written = ::write(STDERR_FILENO, line.data(), line.size());
    } while (written < 0 && errno == EINTR);
}

}  // namespace luce
