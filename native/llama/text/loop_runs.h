// LoopRuns: what the first turns of a loop wrote together, so that the next prompt of a conversation gets it in one
// piece and the template's engine none of it: a mark goes through the engine in its place. For loops whose text goes
// into the prompt as it is. Exact, as single turns are: turns that find what others found, from the first on, do as
// they did.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <jinja/runtime.h>

#include "llama/text/loop_turn.h"

namespace luce::llama {

// Turns of a loop from the first item on. Immutable.
struct LoopRun {
    const jinja::for_statement* loop;
    std::vector<std::shared_ptr<const LoopTurn>> turns;
    std::shared_ptr<const std::string> text;  // has what they wrote, one behind the other
    size_t begin;                             // where that is in it
    std::vector<size_t> ends;                 // and where each turn's ends
};

// The latest of one template. Any thread may use it.
class LoopRuns {
public:
    explicit LoopRuns(size_t max_bytes) : max_bytes_(max_bytes) {}

    // Those that begin with the first item, and how many they have of the others; the longest first.
    std::vector<std::pair<size_t, std::shared_ptr<const LoopRun>>> find(const jinja::for_statement& loop,
                                                                        const std::vector<jinja::value>& items) const;
    // `before`: the one that it goes on from, and takes the place of if it has most of it.
    void keep(std::shared_ptr<const LoopRun> run, const std::shared_ptr<const LoopRun>& before, size_t n_of_before);

private:
    const size_t max_bytes_;
    mutable std::mutex mutex_;
    std::list<std::shared_ptr<const LoopRun>> runs_;  // the latest first
    size_t n_bytes_ = 0;
};

// One request's renderings of them.
class RunningLoops {
public:
    explicit RunningLoops(LoopRuns& runs) : runs_(runs) {}

    // Marks may stand in the template's text from now on, which `restored` takes out.
    void allow() { is_allowed_ = true; }

    // A loop begins: how many of its turns are known to do as they did. Their changes of the scope are made.
    size_t begin(const jinja::for_statement& loop, const LoopPlan& plan, const std::vector<jinja::value>& items,
                 jinja::context& scope);
    // What one of these turns gives to the template's engine.
    jinja::value text(size_t i) const;
    // A further turn is known.
    void note(const jinja::for_statement& loop, size_t i, const std::shared_ptr<const LoopTurn>& turn);

    // The prompt as it is, of what the template's engine made, and what was noted is kept; null if a mark hides what
    // others would have looked at.
    std::shared_ptr<const std::string> restored(std::string prompt);

private:
    struct Running {
        const LoopPlan* plan;
        std::shared_ptr<const LoopRun> known = nullptr;
        size_t n_known = 0;  // of its turns
        size_t n_shown = 0;  // of these, those whose text the engine gets
        std::vector<std::shared_ptr<const LoopTurn>> turns = {};
        std::string mark = {};  // for the others; empty: none was given
        size_t begin = 0;       // of the turns' text in the prompt
    };

    void look_up(Running& running, const jinja::for_statement& loop, const std::vector<jinja::value>& items,
                 const jinja::context& scope) const;

    LoopRuns& runs_;
    bool is_allowed_ = false;
    bool is_consistent_ = true;  // each rendering had the same marks
    std::map<const jinja::for_statement*, Running> loops_;
    const Running* latest_ = nullptr;
};

}  // namespace luce::llama
