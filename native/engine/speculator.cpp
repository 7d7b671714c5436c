#include "engine/speculator.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/step_profile.h"

namespace luce::engine {
namespace {

using speculation::Choice;
using speculation::Draft;
using speculation::DraftAsk;
using speculation::LaneState;
using speculation::SourceIndex;

// A warmed_up draft is made so often, or once if it takes longer: the first two make the graph, and keep it.
constexpr int kWarmUpDrafts = 3;
constexpr double kLongDraft_s = 0.05;
constexpr std::int32_t kMostOfStep = 16;  // positions that a step may have added to a lane
constexpr int kMaxFailures = 3;           // in a row; then a source is left alone for a while
constexpr int kChainsInARow = 64;         // of steps with trees, of which branches were worth nothing
constexpr double kPause_s = 60;           // what it failed for may have passed by then

std::vector<LaneState> situations_of(std::span<const Speculator::Candidate> lanes, bool has_trees) {
    std::vector<LaneState> situations;
    situations.reserve(lanes.size());
    for (const Speculator::Candidate& lane : lanes) {
        const std::int32_t n_tree = lane.n_deepest > 0 ? lane.n_most : 0;
        situations.push_back({lane.lane, static_cast<std::int32_t>(lane.text.size()),
                              has_trees ? n_tree : std::min(lane.n_most, lane.n_deepest)});
    }
    return situations;
}

// What is verified of a tree, after the token that comes before it. Chosen so that it has no branches: no parents.
void take_nodes(const Draft& draft, std::span<const std::size_t> nodes, Tokens& tokens,
                std::vector<std::int32_t>& parents) {
    std::vector<std::int32_t> places(draft.tokens.size() + 1);  // in `tokens`, by the index in the draft + 1
    parents.assign(1, -1);
    bool has_branches = false;
    for (const std::size_t node : nodes) {
        const auto place = static_cast<std::int32_t>(tokens.size());
        const std::int32_t parent = places[static_cast<std::size_t>(draft.parents[node] + 1)];
        has_branches = has_branches || parent + 1 != place;
        places[node + 1] = place;
        tokens.push_back(draft.tokens[node]);
        parents.push_back(parent);
    }
    if (!has_branches) parents.clear();
}

// A chain is verified no further than to where the request would end. The token that ends it comes by itself, from the
// row before it.
void cut_at_end(Draft& draft, const Speculator::Candidate& lane) {
    if (!lane.ends_with || !draft.parents.empty()) return;
    const auto end = std::find_if(draft.tokens.begin(), draft.tokens.end(), lane.ends_with);
    if (end == draft.tokens.end()) return;
    const auto n_kept = static_cast<std::size_t>(end - draft.tokens.begin());
    draft.tokens.resize(n_kept);
    draft.confidence.resize(n_kept);
}

speculation::ControllerConfig controller_config(const SpeculationConfig& config, std::int32_t n_lanes) {
    speculation::ControllerConfig controller;
    controller.n_lanes = n_lanes;
    controller.n_most = std::max(config.n_most, config.n_tree);
    controller.is_adaptive = config.is_adaptive;
    controller.wants_equal_widths = config.wants_equal_widths && n_lanes > 1;
    for (const auto& drafts : config.sources) controller.sources.push_back(drafts->traits());
    return controller;
}

const Speculator::Candidate& candidate_of(std::span<const Speculator::Candidate> lanes, LaneId lane) {
    return *std::find_if(lanes.begin(), lanes.end(), [&](const auto& candidate) { return candidate.lane == lane; });
}

}  // namespace

Speculator::Speculator(SpeculationConfig config, std::int32_t n_lanes, const Clock& clock)
    : clock_(clock),
      n_most_(config.n_most),
      n_tree_(config.n_tree),
      n_branches_(config.n_branches),
      wants_equal_widths_(config.wants_equal_widths && n_lanes > 1),
      controller_(controller_config(config, n_lanes)),
      plans_(static_cast<std::size_t>(n_lanes)) {
    for (auto& drafts : config.sources) {
        const std::vector<bool> none(static_cast<std::size_t>(n_lanes));
        sources_.push_back({std::move(drafts), 0, 0, true, none, none});
    }
}

Speculator::~Speculator() = default;

std::string Speculator::description() const {
    std::string names;
    for (const Source& source : sources_) names += (names.empty() ? "" : "+") + source.drafts->traits().name;
    return names;
}

void Speculator::withdraw() {
    drafts_.clear();
    proposals_.clear();
    for (Plan& plan : plans_) {
        plan.tokens.clear();
        plan.parents.clear();
        plan.width = 0;
        plan.proposal.reset();
        plan.draft_s = 0;
    }
}

bool Speculator::has_models() const {
    return std::any_of(sources_.begin(), sources_.end(),
                       [](const Source& source) { return !source.drafts->traits().is_free; });
}

void Speculator::propose(std::span<const Candidate> lanes) {
    withdraw();
    if (n_most_ == 0) return;
    const std::vector<LaneState> situations = situations_of(lanes, n_tree_ > 0);
    if (std::all_of(situations.begin(), situations.end(), [](const auto& lane) { return lane.n_most == 0; })) return;
    bool can_any = false;
    for (SourceIndex i = 0; i < sources_.size(); ++i) {
        sources_[i].can_pay = controller_.can_pay(situations, i);
        can_any = can_any || sources_[i].can_pay;
    }
    if (!can_any) return;
    for (SourceIndex i = 0; i < sources_.size(); ++i) {
        if (!sources_[i].drafts->traits().is_free || !sources_[i].can_pay) continue;
        std::vector<DraftAsk> asks;
        for (const Candidate& lane : lanes) {
            const DraftAsk of_lane = ask_for(lane, i, std::max(n_most_, n_tree_), lanes.size());
            if (of_lane.n_most > 0) asks.push_back(of_lane);
        }
        if (!asks.empty()) ask(i, asks, lanes);
    }
    const std::vector<speculation::DraftRequest> wanted = controller_.requests(situations, proposals_);
    for (SourceIndex i = 0; i < sources_.size(); ++i) {
        std::vector<DraftAsk> of_source;
        for (const speculation::DraftRequest& want : wanted) {
            if (want.source != i) continue;
            of_source.push_back(ask_for(candidate_of(lanes, want.lane), i, want.n_tokens, lanes.size()));
        }
        if (!of_source.empty()) ask(i, of_source, lanes);
    }
    choose(lanes);
    if (wants_equal_widths_) pad(lanes);
}

// Of a source that has no alternatives a chain is wanted.
DraftAsk Speculator::ask_for(const Candidate& lane, SourceIndex source, std::int32_t n_tokens,
                             std::size_t n_lanes) const {
    const std::int32_t n_deepest = std::min(lane.n_deepest, n_most_);
    const bool is_tree = n_tree_ > 0 && sources_[source].drafts->traits().can_branch && n_deepest > 0;
    if (!is_tree) return {lane.lane, lane.text, std::min({n_tokens, lane.n_most, n_deepest})};
    const std::int32_t n_leaves = 1 + n_branches_ / static_cast<std::int32_t>(n_lanes);
    return {lane.lane, lane.text, std::min({n_tokens, lane.n_most, n_tree_}), n_leaves, n_deepest};
}

// Adds to drafts_ and proposals_; a source that fails proposes nothing.
void Speculator::ask(SourceIndex i, std::span<const DraftAsk> asks, std::span<const Candidate> lanes) {
    Source& source = sources_[i];
    if (source.n_failures >= kMaxFailures && clock_.now_s() < source.out_until_s) return;
    Span span(Part::draft);
    for (const DraftAsk& ask : asks) source.was_asked[static_cast<std::size_t>(ask.lane)] = true;
    const double started_s = clock_.now_s();
    std::vector<Draft> drafts;
    const Result<std::int32_t> n_put_off = source.drafts->prepare(asks);
    const double prepared_s = clock_.now_s();
    const Result<void> drafted = n_put_off ? source.drafts->draft(asks, drafts) : n_put_off.error();
    if (!drafted) {
        fail(source, drafted.error(), clock_.now_s() - started_s, asks);
        return;
    }
    if (std::exchange(source.n_failures, 0) >= kMaxFailures) log_info(source.drafts->traits().name + " drafts again");
    const double seconds = clock_.now_s() - started_s;
    std::int32_t n_tokens = 0;
    for (const Draft& draft : drafts) {
        n_tokens += static_cast<std::int32_t>(draft.tokens.size());
        at(draft.lane).draft_s += seconds / static_cast<double>(drafts.size());
    }
    span.count({static_cast<std::int64_t>(asks.size()), n_tokens});
    if (!source.drafts->traits().is_free) {
        // What was put off for longer than since the last step would have had to be done without this draft.
        const bool is_backlog = n_put_off.value() > kMostOfStep * static_cast<std::int32_t>(asks.size());
        const double put_off_s = is_backlog ? prepared_s - started_s : 0;
        controller_.observe_draft(i, static_cast<std::int32_t>(asks.size()), n_tokens, seconds - put_off_s, put_off_s);
    }
    for (Draft& draft : drafts) {
        cut_at_end(draft, candidate_of(lanes, draft.lane));
        if (draft.tokens.empty()) continue;
        drafts_.push_back(std::move(draft));
        proposals_.push_back({drafts_.back().lane, i, {}});
    }
    // The drafts may have moved; their confidences are looked at where they lie now.
    for (std::size_t k = 0; k < drafts_.size(); ++k) {
        proposals_[k].confidence = drafts_[k].confidence;
        proposals_[k].parents = drafts_[k].parents;
    }
}

// What it took is gone all the same.
void Speculator::fail(Source& source, const Error& error, double seconds, std::span<const DraftAsk> asks) {
    const std::string& name = source.drafts->traits().name;
    controller_.observe_failed_draft(seconds);
    for (const DraftAsk& ask : asks) at(ask.lane).draft_s += seconds / static_cast<double>(asks.size());
    if (source.n_failures++ == 0) log_warn("no drafts from " + name + ": " + error.text);
    if (source.n_failures == kMaxFailures) {
        log_warn(name + " has failed three times in a row: it is tried again once a minute");
    }
    source.out_until_s = clock_.now_s() + kPause_s;
}

void Speculator::choose(std::span<const Candidate> lanes) {
    const std::vector<Choice> choices = controller_.choose(situations_of(lanes, n_tree_ > 0), proposals_);
    note_branches();
    for (std::size_t i = 0; i < choices.size(); ++i) {
        const Choice& choice = choices[i];
        if (choice.width == 0) continue;
        const Draft& draft = drafts_[choice.proposal];
        Plan& plan = at(choice.lane);
        plan.tokens.assign(1, lanes[i].text.back());
        if (draft.parents.empty()) {
            plan.tokens.insert(plan.tokens.end(), draft.tokens.begin(), draft.tokens.begin() + choice.width);
        } else {
            std::vector<std::size_t> nodes = choice.nodes;
            for (std::size_t n = 0; choice.nodes.empty() && n < static_cast<std::size_t>(choice.width); ++n) {
                nodes.push_back(n);
            }
            take_nodes(draft, nodes, plan.tokens, plan.parents);
        }
        plan.width = choice.width;
        plan.proposal = choice.proposal;
    }
}

// Said once, when it has been so for a while: the controller finds out now and then whether it still is.
void Speculator::note_branches() {
    const auto is_tree = [](const Draft& draft) { return !draft.parents.empty(); };
    if (has_noted_branches_ || std::none_of(drafts_.begin(), drafts_.end(), is_tree)) return;
    n_without_branches_ = controller_.takes_trees() ? 0 : n_without_branches_ + 1;
    if (n_without_branches_ < kChainsInARow) return;
    has_noted_branches_ = true;
    log_info("--draft-tree: branches cost more here than they bring, so chains are verified until that changes");
}

// All lanes as long as the longest, by tokens that nobody expects: cheaper than another pass over the weights.
void Speculator::pad(std::span<const Candidate> lanes) {
    std::size_t n_longest = 0;
    for (const Candidate& lane : lanes) n_longest = std::max(n_longest, at(lane.lane).tokens.size());
    if (n_longest < 2) return;
    for (const Candidate& lane : lanes) {
        Plan& plan = at(lane.lane);
        if (static_cast<std::size_t>(std::min(lane.n_most, lane.n_deepest)) + 1 < n_longest) continue;
        if (plan.tokens.empty()) plan.tokens.assign(1, lane.text.back());
        plan.tokens.resize(n_longest, lane.text.back());
    }
}

std::span<const Token> Speculator::proposed(LaneId lane) const { return plans_[static_cast<std::size_t>(lane)].tokens; }

std::span<const std::int32_t> Speculator::parents(LaneId lane) const {
    return plans_[static_cast<std::size_t>(lane)].parents;
}

Speculation Speculator::judged(LaneId lane, std::span<const Token> got, std::int32_t n_matched, std::int32_t n_seen,
                               double seconds) {
    const Span span(Part::speculate);
    Plan& plan = at(lane);
    Speculation stats;
    stats.n_steps = 1;
    stats.draft_s = std::exchange(plan.draft_s, 0.0);
    judge_unused(lane, got);
    const std::int32_t width = std::min(plan.width, n_seen);
    if (width == 0 && n_matched == 0) return stats;
    stats.n_speculated_steps = 1;
    stats.n_drafted = std::max(width, n_matched);  // what only fills the lane up may be right by chance
    stats.n_accepted = n_matched;
    stats.verify_s = seconds;
    if (width == 0) return stats;
    if (proposals_[*plan.proposal].parents.empty()) {
        controller_.observe_verdict(proposals_[*plan.proposal], width, std::min(n_matched, width));
    } else {
        judge(*plan.proposal, got);
    }
    return stats;
}

// What came says of every part of a draft whether it would have been right, verified or not.
void Speculator::judge(std::size_t proposal, std::span<const Token> got) {
    const Draft& draft = drafts_[proposal];
    if (!draft.parents.empty()) {
        controller_.observe_verdicts(proposals_[proposal], speculation::verdicts_of(draft.tokens, draft.parents, got));
        return;
    }
    const Tokens& drafted = draft.tokens;
    const std::size_t width = std::min(drafted.size(), got.size());
    const auto end = std::mismatch(drafted.begin(), drafted.begin() + static_cast<std::ptrdiff_t>(width), got.begin());
    const auto n_right = static_cast<std::int32_t>(end.first - drafted.begin());
    if (width > 0) controller_.observe_verdict(proposals_[proposal], static_cast<std::int32_t>(width), n_right);
}

// A draft that was not verified can be held against what came instead: so it is noticed when a source becomes right.
void Speculator::judge_unused(LaneId lane, std::span<const Token> got) {
    const Plan& plan = at(lane);
    for (std::size_t i = 0; i < proposals_.size(); ++i) {
        if (proposals_[i].lane != lane || (plan.width > 0 && plan.proposal == i)) continue;
        judge(i, got);
    }
}

void Speculator::follow(LaneId lane, std::span<const Token> text, std::int32_t n_computed, std::int32_t n_new,
                        speculation::BatchRows rows, bool is_answer) {
    const Span span(Part::draft);  // a drafter may read the text with it
    for (SourceIndex i = 0; i < sources_.size(); ++i) {
        Source& source = sources_[i];
        if ((is_answer && !source.can_pay) || source.is_unread[static_cast<std::size_t>(lane)]) {
            source.drafts->skip(lane, text, n_computed, n_new, rows);
            continue;
        }
        const double started_s = clock_.now_s();
        source.drafts->follow(lane, text, n_computed, n_new, rows);
        if (!is_answer) controller_.observe_reading(i, n_new, clock_.now_s() - started_s);
    }
}

// The shortest counts. What is believed too dear at first may never be asked for, and so never be known better.
double Speculator::warm_up_drafts(std::span<const Candidate> lanes) {
    double all_s = 0;
    for (SourceIndex i = 0; i < sources_.size(); ++i) {
        if (sources_[i].drafts->traits().is_free) continue;
        std::vector<DraftAsk> asks;
        for (const Candidate& lane : lanes) {
            asks.push_back(ask_for(lane, i, sources_[i].drafts->traits().n_most, lanes.size()));
        }
        std::optional<double> shortest_s;
        std::int32_t n_tokens = 0;
        for (int turn = 0; turn < kWarmUpDrafts; ++turn) {
            const double started_s = clock_.now_s();
            std::vector<Draft> drafts;
            if (!sources_[i].drafts->draft(asks, drafts)) break;  // it will be said when a draft is wanted
            const double seconds = clock_.now_s() - started_s;
            shortest_s = std::min(shortest_s.value_or(seconds), seconds);
            n_tokens = 0;
            for (const Draft& draft : drafts) n_tokens += static_cast<std::int32_t>(draft.tokens.size());
            if (seconds >= kLongDraft_s) break;
        }
        if (!shortest_s) continue;
        controller_.observe_warmup_draft(i, static_cast<std::int32_t>(asks.size()), n_tokens, *shortest_s);
        all_s += *shortest_s;
    }
    return all_s;
}

void Speculator::overlapped() {
    const Span span(Part::draft);
    for (Source& source : sources_) source.drafts->overlapped();
}

void Speculator::begin(LaneId lane, std::span<const Token> text, std::int32_t n_computed) {
    controller_.begin(lane);
    for (SourceIndex i = 0; i < sources_.size(); ++i) {
        Source& source = sources_[i];
        const auto n_new = static_cast<std::int32_t>(text.size()) - n_computed;
        source.was_asked[static_cast<std::size_t>(lane)] = false;
        source.is_unread[static_cast<std::size_t>(lane)] =
            source.drafts->can_skip() && !controller_.should_read(lane, i, n_new);
        source.drafts->begin(lane, text, n_computed);
    }
}

void Speculator::end(LaneId lane, std::span<const Token> text, std::int32_t n_computed, std::int32_t n_answer) {
    controller_.observe_answer(n_answer);
    for (Source& source : sources_) {
        source.drafts->answered(text, n_computed - n_answer);
        if (!source.was_asked[static_cast<std::size_t>(lane)])
            source.drafts->leave_out(lane, text, n_computed, n_answer);
    }
}

void Speculator::forget(LaneId lane) {
    at(lane) = {};
    for (Source& source : sources_) source.drafts->forget(lane);
}

}  // namespace luce::engine
