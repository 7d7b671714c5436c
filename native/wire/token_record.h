// TokenRecord: the token fd's bytes. Plain dialect: bare little-endian int32, -1 ends a command. Multiplexed: every
// record is two int32, request id then value. Pure.
#pragma once

#include <string>

#include "base/token.h"
#include "wire/command.h"

namespace luce::wire {

inline constexpr std::int32_t kSentinel = -1;

enum class Dialect { plain, multiplexed };

// Append the record of `value` (a token or kSentinel) to `out`. `id` is not written in the plain dialect.
void append_record(std::string& out, Dialect dialect, RequestId id, std::int32_t value);

}  // namespace luce::wire
