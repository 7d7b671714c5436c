// The sequence that libllama knows a lane by.
#pragma once

#include <cstdint>

#include "base/token.h"

namespace luce::llama {

constexpr std::int32_t sequence(LaneId lane) { return static_cast<std::int32_t>(lane); }  // a llama_seq_id

}  // namespace luce::llama
