// What `status` says of the time of the engine's thread and of the threads that copy beside it. Knows no engine.
#pragma once

#include "base/step_profile.h"
#include "daemon/commands/dispatcher.h"

namespace luce::daemon {

StatusFields describe_profile(const StepProfile::Sums& sums);

}  // namespace luce::daemon
