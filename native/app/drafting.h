// Who drafts tokens, and what the log says where the options ask for what cannot be. Knows options, llama/ and engine/.
#pragma once

#include <memory>

#include "base/clock.h"
#include "base/result.h"
#include "daemon/setup/options.h"
#include "engine/decoder.h"
#include "engine/speculator.h"
#include "llama/drafting/draft_sources.h"
#include "llama/model/model.h"

namespace luce::app {

// Who drafts, cheapest first, and what the draft model remembers: null without one.
struct Drafting {
    std::unique_ptr<engine::Speculator> speculator;  // null: each token is decoded alone
    llama::DraftMemory* memory = nullptr;            // the speculator's
};

// `opened`: the draft, if it is open already.
Result<Drafting> open_drafting(const daemon::Options& options, const llama::Model& model, llama::OpenedDraft opened,
                               engine::Decoder& decoder, const Clock& clock, int reply_fd);

}  // namespace luce::app
