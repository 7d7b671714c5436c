// LoopRuns: see the header.
#include "llama/text/loop_runs.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <random>
#include <string_view>

namespace luce::llama {

namespace {

constexpr size_t kMaxRuns = 32;
// At a prompt's ends llama.cpp looks for special tokens and the like, which are shorter.
constexpr size_t kVisibleBytes = 32;

const std::vector<jinja::string_part>& parts_of(const LoopTurn& turn) { return turn.text->val_str.parts; }

size_t length_of(const LoopTurn& turn) { return turn.text->val_str.length(); }

bool stands_at(const LoopTurn& turn, std::string_view text, size_t at) {
    return at <= text.size() && std::ranges::all_of(parts_of(turn), [&](const jinja::string_part& part) {
               const bool is_here = text.substr(at, part.val.size()) == part.val;
               at += part.val.size();
               return is_here;
           });
}

size_t n_bytes_of(const LoopRun& run) {
    size_t n = run.text->size();
    for (const auto& turn : run.turns) n += turn->n_bytes;
    return n;
}

size_t n_common(const LoopRun& run, const std::vector<jinja::value>& items) {
    size_t n = 0;
    while (n < run.turns.size() && n < items.size() && run.turns[n]->item == items[n]) ++n;
    return n;
}

// No text of a client's: it is drawn anew for each process.
const std::string& begin_of_marks() {
    static const std::string drawn = [] {
        std::random_device device;
        std::string begin = "\x1f";
        for (int n = 0; n < 4; ++n) begin += std::to_string(device()) + ".";
        return begin;
    }();
    return drawn;
}

std::string new_mark() {
    static std::atomic<uint64_t> n_given = 0;
    return begin_of_marks() + std::to_string(++n_given) + "\x1f";
}

size_t n_marks_in(std::string_view text) {
    size_t n = 0;
    for (size_t at = 0; (at = text.find(begin_of_marks(), at)) != std::string_view::npos; ++at) ++n;
    return n;
}

// The turns of a known run, `n_common` of whose items are the loop's, that would all find the same.
size_t n_holding(const LoopRun& run, size_t n_common, const LoopPlan& plan, const std::vector<jinja::value>& items,
                 const jinja::context& scope) {
    if (n_common < 2 || !holds(*run.turns.front(), plan, scope, items, 0)) return 0;
    // A turn may look at the item behind its own, and whether it is the last.
    for (size_t n = 1; n < n_common - 1; ++n) {
        const auto& elements = run.turns[n]->elements;
        if (!std::ranges::all_of(elements, [&](const auto& element) { return holds(element, plan, scope); })) return n;
    }
    return n_common - 1;
}

// The turns as a run whose text is the prompt's from `begin` on; null if it is not. The first `n_known` are those of
// `known`, and there.
std::optional<LoopRun> in_prompt(const std::shared_ptr<const std::string>& prompt, size_t begin, const LoopRun& known,
                                 size_t n_known, const std::vector<std::shared_ptr<const LoopTurn>>& turns) {
    LoopRun run = {known.loop, turns, prompt, begin, {}};
    for (size_t n = 0; n < n_known; ++n) run.ends.push_back(known.ends[n] - known.begin + begin);
    for (size_t n = n_known; n < turns.size(); ++n) {
        if (!stands_at(*turns[n], *prompt, run.ends.back())) return std::nullopt;
        run.ends.push_back(run.ends.back() + length_of(*turns[n]));
    }
    return run;
}

LoopRun by_itself(const jinja::for_statement& loop, std::vector<std::shared_ptr<const LoopTurn>> turns) {
    std::string text;
    std::vector<size_t> ends;
    for (const auto& turn : turns) {
        for (const jinja::string_part& part : parts_of(*turn)) text += part.val;
        ends.push_back(text.size());
    }
    return {&loop, std::move(turns), std::make_shared<const std::string>(std::move(text)), 0, std::move(ends)};
}

}  // namespace

std::vector<std::pair<size_t, std::shared_ptr<const LoopRun>>> LoopRuns::find(
    const jinja::for_statement& loop, const std::vector<jinja::value>& items) const {
    std::vector<std::pair<size_t, std::shared_ptr<const LoopRun>>> found;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (const auto& run : runs_) {
            if (run->loop == &loop && run->turns.front()->item == items.front()) found.emplace_back(0, run);
        }
    }
    for (auto& [n, run] : found) n = n_common(*run, items);
    std::ranges::stable_sort(found, [](const auto& a, const auto& b) { return a.first > b.first; });
    return found;
}

void LoopRuns::keep(std::shared_ptr<const LoopRun> run, const std::shared_ptr<const LoopRun>& before,
                    size_t n_of_before) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto drop = [this](std::list<std::shared_ptr<const LoopRun>>::iterator entry) {
        n_bytes_ -= n_bytes_of(**entry);
        runs_.erase(entry);
    };
    if (before != nullptr && n_of_before > before->turns.size() / 2) {
        const auto replaced = std::ranges::find(runs_, before);
        if (replaced != runs_.end()) drop(replaced);
    }
    n_bytes_ += n_bytes_of(*run);
    runs_.push_front(std::move(run));
    while (n_bytes_ > max_bytes_ || runs_.size() > kMaxRuns) drop(std::prev(runs_.end()));
}

void RunningLoops::look_up(Running& running, const jinja::for_statement& loop, const std::vector<jinja::value>& items,
                           const jinja::context& scope) const {
    for (const auto& [n_common, run] : runs_.find(loop, items)) {
        size_t n_known = n_holding(*run, n_common, *running.plan, items, scope);
        while (n_known > 0 && run->ends[n_common - 1] - run->ends[n_known - 1] < kVisibleBytes) --n_known;
        if (n_known == 0) continue;
        size_t n_shown = 1;
        while (n_shown < n_known && run->ends[n_shown - 1] - run->begin < kVisibleBytes) ++n_shown;
        if (run->ends[n_known - 1] > run->ends[n_shown - 1]) running.mark = new_mark();
        running.known = run;
        running.n_known = n_known;
        running.n_shown = n_shown;
        return;
    }
}

size_t RunningLoops::begin(const jinja::for_statement& loop, const LoopPlan& plan,
                           const std::vector<jinja::value>& items, jinja::context& scope) {
    if (!is_allowed_ || !plan.allows_runs) return 0;
    const auto [entry, is_first] = loops_.try_emplace(&loop, Running{&plan});
    Running& running = entry->second;
    if (is_first) {
        look_up(running, loop, items, scope);
    } else if (running.n_known > 0 &&
               n_holding(*running.known, n_common(*running.known, items), plan, items, scope) < running.n_known) {
        // Another rendering of the request, which finds something else: so would those of each request.
        plan.allows_runs = is_consistent_ = false;
        return 0;
    }
    latest_ = &running;
    running.turns.clear();
    if (running.n_known > 0) {
        const auto& turns = running.known->turns;
        running.turns.assign(turns.begin(), turns.begin() + static_cast<std::ptrdiff_t>(running.n_known));
        apply_changes(turns.data(), running.n_known, plan, scope);
    }
    return running.n_known;
}

jinja::value RunningLoops::text(size_t i) const {
    static const jinja::value nothing = jinja::mk_val<jinja::value_string>("");
    if (i < latest_->n_shown) return latest_->turns[i]->text;
    return i == latest_->n_shown && !latest_->mark.empty() ? jinja::mk_val<jinja::value_string>(latest_->mark)
                                                           : nothing;
}

void RunningLoops::note(const jinja::for_statement& loop, size_t i, const std::shared_ptr<const LoopTurn>& turn) {
    const auto here = loops_.find(&loop);
    if (here != loops_.end() && here->second.turns.size() == i) here->second.turns.push_back(turn);
}

std::shared_ptr<const std::string> RunningLoops::restored(std::string prompt) {
    const auto n_given = std::ranges::count_if(loops_, [](const auto& loop) { return !loop.second.mark.empty(); });
    if (!is_consistent_) return nullptr;
    if (n_marks_in(prompt) != static_cast<size_t>(n_given)) {
        for (auto& [loop, running] : loops_) running.plan->allows_runs = false;
        return nullptr;
    }
    for (auto& [loop, running] : loops_) {
        if (running.mark.empty()) continue;
        const size_t at = prompt.find(running.mark);
        if (at == std::string::npos || at < kVisibleBytes || prompt.size() - at - running.mark.size() < kVisibleBytes)
            return nullptr;
        const LoopRun& known = *running.known;
        const size_t hidden = known.ends[running.n_shown - 1];
        const size_t n_hidden = known.ends[running.n_known - 1] - hidden;
        prompt.replace(at, running.mark.size(), *known.text, hidden, n_hidden);
        for (auto& [other_loop, other] : loops_) {
            if (other.begin > at) other.begin += n_hidden - running.mark.size();
        }
        running.begin = at - (hidden - known.begin);
    }
    const auto whole = std::make_shared<const std::string>(std::move(prompt));
    for (auto& [loop, running] : loops_) {
        if (running.turns.size() < 2) continue;
        std::optional<LoopRun> run;
        if (!running.mark.empty()) {
            run = in_prompt(whole, running.begin, *running.known, running.n_known, running.turns);
        }
        if (!run) run = by_itself(*loop, running.turns);
        runs_.keep(std::make_shared<const LoopRun>(std::move(*run)), running.known, running.n_known);
    }
    return whole;
}

}  // namespace luce::llama
