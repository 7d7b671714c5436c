// How luced ends before or instead of serving: what it answers, what it logs, with which status. Knows nothing of
// models.
#pragma once

#include <string_view>

#include "base/result.h"

namespace luce::app {

inline constexpr int kOutputFailed = 1;
inline constexpr int kStartFailed = 2;
inline constexpr int kBadArguments = 64;
inline constexpr int kTryLater = 75;  // what is missing is another machine's

// Answers `err start_failed`, logs why, and gives `status` back.
int refuse_to_start(int reply_fd, const Error& error, int status);

// The same with the status that says whose fault it is: bad arguments, or a start that failed.
int refuse_to_start(int reply_fd, const Error& error);

// All that was asked for is this text: a program that takes a status of 0 for it must have got it. The status.
int print(std::string_view text);

// From here on who reads `reply_fd` is told when the engine ends because memory ran out: also where a library ends the
// process by itself.
void tell_of_memory_on(int reply_fd);

// Says so, if memory ran out just now; `reason` is what is known besides the log.
void tell_of_memory(std::string_view reason);

// libllama and ggml abort on what they think impossible: says why and ends with the status that callers know.
[[noreturn]] void on_fatal_abort(const char* message);

}  // namespace luce::app
