#include "llama/experts/expert_mover.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "base/log.h"
#include "llama/experts/expert_bank.h"

namespace luce::llama {
namespace {

constexpr std::int32_t kMostDecoded = ExpertTable::kSmallCall;  // tokens of a call that counts as writing answers
constexpr std::size_t kMovesBesideACall = 2;  // of 2 MB each way: 2 % of a step's time over a link of 50 GB/s
constexpr std::size_t kMovesWhenIdle = 16;
constexpr std::uint64_t kSaveEvery = 20'000;  // calls

}  // namespace

ExpertMover::ExpertMover(const Model& model, ExpertMoverOptions options)
    : model_(model), options_(std::move(options)), usage_(bank().layout(), bank().known(), bank().is_split()) {}

void ExpertMover::after_call(std::int32_t n_tokens, std::span<const std::int32_t> outputs) {
    reads_.clear();
    if (bank().table() == nullptr) return;
    count(n_tokens, outputs);
    const auto begun = std::chrono::steady_clock::now();
    settle();
    counts_.waited_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    if (n_tokens <= kMostDecoded) start(kMovesBesideACall);
}

engine::ExpertReads ExpertMover::reads(std::size_t first_token, std::size_t n_tokens) const {
    engine::ExpertReads all;
    const std::size_t end = std::min(first_token + n_tokens, reads_.size());
    for (std::size_t i = first_token; i < end; ++i) all += reads_[i];
    return all;
}

void ExpertMover::count(std::int32_t n_tokens, std::span<const std::int32_t> outputs) {
    const bool is_prefill = n_tokens > kMostDecoded;
    if (!is_prefill) reads_.resize(static_cast<std::size_t>(n_tokens));
    usage_.begin_call(n_tokens, is_prefill);
    ExpertTable& table = *bank().table();
    const auto n_used = static_cast<std::size_t>(table.n_used());
    const std::int32_t n_most = bank().is_split() ? ExpertTable::kMostSeen : n_tokens;
    const auto& used = table.read(n_tokens, static_cast<std::int32_t>(outputs.size()), n_most);
    const auto& layers = bank().layout().layers;
    std::vector<std::int32_t> experts;
    for (std::size_t l = 0; l < layers.size(); ++l) {
        if (layers[l].is_whole()) continue;
        experts.clear();
        for (std::size_t i = 0; i < used[l].size(); ++i) {
            const std::int32_t place = used[l][i];
            if (place < 0 || place >= static_cast<std::int32_t>(layers[l].expert_in.size())) continue;
            if (!is_prefill) {
                const std::size_t row = i / n_used;
                engine::ExpertReads& of_token =
                    reads_[table.is_cropped(l) ? static_cast<std::size_t>(outputs[row]) : row];
                ++(place < layers[l].n_device_places ? of_token.n_hits : of_token.n_misses);
            }
            const std::int32_t expert = layers[l].expert_in[static_cast<std::size_t>(place)];
            if (expert != experts::kNoExpert) experts.push_back(expert);
        }
        usage_.count(l, experts);
    }
    if (!bank().is_split()) reads_.clear();  // nobody waits for any
    counts_.reads += reads(0, reads_.size());
    ++n_unsaved_;
    may_gain_ = options_.moves && bank().is_split();
}

// The best ones of all layers that have none under way.
std::size_t ExpertMover::start(std::size_t n_most) {
    if (!may_gain_) return 0;
    const experts::ExpertLayout& layout = bank().layout();
    std::vector<experts::Exchange> all;
    for (std::size_t l = 0; l < layout.layers.size(); ++l) {
        if (bank().is_moving(l)) continue;
        if (const experts::Exchange best = usage_.best(layout, l); best.gain > 0) all.push_back(best);
    }
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.gain > b.gain; });
    if (all.size() > n_most) all.resize(n_most);
    for (const experts::Exchange& exchange : all) bank().start(exchange);
    may_gain_ = !all.empty();
    return all.size();
}

void ExpertMover::settle() {
    const ExpertBank::Settled settled = bank().settle();
    counts_.n_exchanges += settled.n_exchanges;
    counts_.n_moved_bytes += settled.n_bytes;
}

bool ExpertMover::has_idle_work() const {
    if (model_.experts() == nullptr || bank().table() == nullptr) return false;  // parked, or whole
    return may_gain_ || (options_.profile && n_unsaved_ >= kSaveEvery);
}

void ExpertMover::use_idle_time() {
    if (!may_gain_) return save();
    start(kMovesWhenIdle);
    for (int step = 0; step < 2; ++step) settle();
}

void ExpertMover::save() {
    if (!options_.profile || n_unsaved_ == 0) return;
    n_unsaved_ = 0;
    if (model_.experts() == nullptr) return;
    const experts::ExpertProfile now = usage_.profile(bank().known().identity);
    if (Result<void> written = experts::write_profile(*options_.profile, now); !written) {
        log_warn("the profile of the experts is not kept: " + written.error().text);
        options_.profile.reset();
    }
}

}  // namespace luce::llama
