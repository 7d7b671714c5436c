// Option checks: which options of luced fit together. Reads options alone; knows no model and no machine.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "daemon/setup/options.h"

namespace luce::daemon {

inline Error bad_args(std::string text) { return {ErrorCode::bad_args, std::move(text)}; }

// `given`: the names of the options that were given. Errors: bad_args, naming the option and what it takes.
Result<void> check_together(const Options& options, std::span<const std::string_view> given);

}  // namespace luce::daemon
