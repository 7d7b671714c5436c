// What the options make of the model and its draft: how they are loaded, and with which pool. Knows the options and
// llama/; not what is done with a model.
#pragma once

#include <string>

#include "base/result.h"
#include "daemon/setup/options.h"
#include "llama/drafting/draft_sources.h"
#include "llama/model/backend.h"
#include "llama/model/load_guard.h"
#include "llama/model/model.h"

namespace luce::app {

// `file`: what is loaded. Kept, for a line that is written when nothing may be allocated any more.
llama::LoadGuardOptions to_guard_options(const daemon::Options& options, const std::string& file, int reply_fd);

// What loading does now and then: a signal that tells to stop ends the process.
void go_on_loading(llama::LoadGuard& guard, int reply_fd);

// Tells who reads `reply_fd` how much of the weights is read.
void tell_progress(int reply_fd, std::int32_t percent);

llama::FlashAttention to_llama(daemon::FlashAttentionChoice choice);

llama::ModelOptions to_model_options(const daemon::Options& options);

// Guarded; a signal that tells to stop ends the process. Errors: those of Model::load().
Result<llama::Model> load_model(const daemon::Options& options, const llama::Backend& backend, int reply_fd);

// What --draft and --mtp name. REQUIRES: wants_draft_model(options)
Result<llama::OpenedDraft> load_draft(const daemon::Options& options, const llama::Model& model, int reply_fd);

bool wants_draft_model(const daemon::Options& options);

// `--kv-offload auto`: gives the model the pool that the devices have room for, and notes it in the options. Returns
// the draft, where one is wanted: its weights were loaded to know what it takes.
Result<llama::OpenedDraft> size_pool(daemon::Options& options, llama::Model& model, int reply_fd);

}  // namespace luce::app
