// WarmUp: measures what calls and drafts cost here before anything is served, so that the controller knows and need not
// find out in the first answers. Computes texts that are nobody's in lanes that are still empty, and leaves them empty;
// knows neither requests nor what is kept of texts.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "engine/decoder.h"
#include "engine/speculator.h"

namespace luce::engine {

// For one lane, all of them, and half as many each time between; plain calls first, then the widest drafts and half as
// wide each time. Takes 0.6 seconds, 0.15 where no model drafts, but what is begun is ended; what does not fit in is
// found out later. Where other programs took the processor meanwhile it is done again, twice at most; after that
// everything is found out later. Says in the log (debug) what it found.
void warm_up(Decoder& decoder, Speculator& speculator, std::int32_t n_lanes, const Clock& clock);

}  // namespace luce::engine
