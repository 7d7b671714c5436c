#include "daemon/commands/reply_builder.h"

namespace luce::daemon {
namespace {

wire::StopReason to_wire(engine::Finish reason) {
    switch (reason) {
        case engine::Finish::eos: return wire::StopReason::eos;
        case engine::Finish::limit: return wire::StopReason::limit;
        case engine::Finish::stop: return wire::StopReason::stop;
        case engine::Finish::cancel: return wire::StopReason::cancel;
    }
    return wire::StopReason::limit;
}

}  // namespace

std::vector<std::pair<Token, float>> to_wire(const std::vector<engine::TokenLogprob>& logprobs) {
    std::vector<std::pair<Token, float>> entries;
    for (const engine::TokenLogprob& entry : logprobs) entries.emplace_back(entry.token, entry.logprob);
    return entries;
}

wire::Speculation to_wire(const engine::SpeculationStats& stats) {
    return {stats.n_drafted, stats.n_accepted, stats.n_steps, stats.n_speculated_steps, stats.draft_s, stats.verify_s};
}

wire::GenerateOk to_wire(const engine::FinishedStats& stats) {
    wire::GenerateOk ok;
    ok.n_prompt = stats.n_prompt;
    ok.n_read = stats.n_read;
    ok.n_generated = stats.n_generated;
    ok.n_reused = stats.n_reused;
    ok.tier = memory::to_string(stats.tier);
    ok.miss = memory::to_string(stats.miss);
    ok.restored = stats.restored;
    ok.prefill_s = stats.prefill_s;
    ok.decode_s = stats.decode_s;
    ok.decode_tokens_per_s = stats.decode_tokens_per_s();
    if (stats.speculation) ok.speculation = to_wire(*stats.speculation);
    if (stats.experts) ok.experts = {stats.experts->n_hits, stats.experts->n_misses};
    ok.stop = to_wire(stats.reason);
    return ok;
}

}  // namespace luce::daemon
