// The log: lines on stderr, for people. One process-wide level, set once at the start by main. Never writes to stdout,
// which belongs to the replies. May be called from any thread: a line is one write.
#pragma once

#include <string>
#include <string_view>

namespace luce {

enum class LogLevel { error, warn, info, debug };

void set_log_level(LogLevel level);
LogLevel log_level();

void log_line(LogLevel level, std::string_view text);

inline void log_error(std::string_view text) { log_line(LogLevel::error, text); }
inline void log_warn(std::string_view text) { log_line(LogLevel::warn, text); }
inline void log_info(std::string_view text) { log_line(LogLevel::info, text); }
inline void log_debug(std::string_view text) { log_line(LogLevel::debug, text); }

}  // namespace luce
