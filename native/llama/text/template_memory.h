// TemplateMemory: what renderings of a chat template leave to later ones, so that a conversation's next prompt costs
// what is new in it. Kept are the turns of loops over messages: what the template wrote for one, with all that it
// looked at and all that it changed. A turn that would find the same does not run again. That is exact whatever the
// template does: one that looks at what changes from prompt to prompt runs, as before.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <chat.h>

#include "llama/text/loop_runs.h"
#include "llama/text/loop_source.h"
#include "llama/text/loop_turn.h"
#include "llama/text/template_values.h"
#include "llama/text/text_cache.h"

namespace luce::llama {

// A loop over arrays and the item that the turn is for, which is frozen.
using TurnKey = std::pair<const jinja::for_statement*, const jinja::value_t*>;

inline size_t bytes_of_value(const jinja::value&) { return 0; }

// Of one template. Any thread may use it.
class TemplateMemory {
public:
    explicit TemplateMemory(size_t max_bytes);

    // Not for a template that changes what it is given.
    bool is_in_use() const { return is_in_use_; }
    void give_up(const std::string& why);
    // Why it is not in use; empty while it is.
    std::string given_up_for() const;
    uint64_t n_kept() const { return n_kept_; }
    uint64_t n_reused() const { return n_reused_; }
    uint64_t n_in_runs() const { return n_in_runs_; }
    void count_reused() { ++n_reused_; }
    void count_run(size_t n) {
        n_reused_ += n;
        n_in_runs_ += n;
    }

    jinja::value input(const common_json& json);
    std::shared_ptr<const LoopPlan> plan(const jinja::for_statement& loop, const jinja::program& program);
    std::vector<std::shared_ptr<const LoopTurn>> turns(const TurnKey& key);
    void keep(const TurnKey& key, std::shared_ptr<const LoopTurn> turn);
    LoopRuns& runs() { return runs_; }

private:
    using Entry = std::pair<TurnKey, std::shared_ptr<const LoopTurn>>;

    const size_t max_bytes_;
    std::atomic<bool> is_in_use_ = true;
    std::atomic<uint64_t> n_kept_ = 0;  // turns, ever
    std::atomic<uint64_t> n_reused_ = 0;
    std::atomic<uint64_t> n_in_runs_ = 0;  // of these
    mutable std::mutex mutex_;
    std::string given_up_for_;
    std::map<const jinja::program*, MacroSource> macros_;
    std::map<const jinja::for_statement*, std::shared_ptr<const LoopPlan>> plans_;
    std::list<Entry> turns_;  // the latest used first
    std::map<TurnKey, std::vector<std::list<Entry>::iterator>> by_key_;
    size_t n_bytes_ = 0;
    LoopRuns runs_;
    TextCache<jinja::value, bytes_of_value> inputs_;
};

// The memory as one request's renderings see it.
class RenderingMemory : public common_chat_memory {
public:
    explicit RenderingMemory(TemplateMemory& memory) : memory_(memory), loops_(memory.runs()) {}

    RunningLoops& loops() { return loops_; }

    void set_inputs(jinja::context& context, const jinja::program& program, const common_json& inputs) override;
    jinja::value turn(const jinja::for_statement& loop, const std::vector<jinja::value>& items, size_t i,
                      jinja::context& scope) override;
    void ran(jinja::context& scope, const jinja::value_array& result, size_t begin) override;
    void read_element(const jinja::value& array, int64_t index, const jinja::value& element) override;
    void set_member(const jinja::value& object, const std::string& name) override;
    void changed_array(const jinja::value& array) override;

private:
    // The turn that runs.
    struct Running {
        Running(const jinja::context* s, TurnKey k, size_t n, std::shared_ptr<const LoopPlan> p)
            : scope(s), key(k), i(n), plan(std::move(p)) {}

        const jinja::context* scope;
        TurnKey key;
        size_t i;
        std::shared_ptr<const LoopPlan> plan;
        LoopTurn turn;
        // What stood before it and may change: `before` but for arrays of which single elements are read and objects of
        // which members are, by the plan; null where there is none.
        Changeable before;
        std::vector<const jinja::value_t*> arrays;
        std::vector<const jinja::value_t*> objects;
    };

    std::shared_ptr<const LoopPlan> plan(const jinja::for_statement& loop);
    static bool watch(Running& running, const std::vector<jinja::value>& items, size_t i);
    static bool keep_changes(Running& running);

    TemplateMemory& memory_;
    const jinja::program* program_ = nullptr;
    const jinja::for_statement* latest_loop_ = nullptr;
    std::shared_ptr<const LoopPlan> latest_plan_;
    size_t n_watched_ = 0;  // of the latest loop
    RunningLoops loops_;
    const jinja::for_statement* run_loop_ = nullptr;
    size_t n_run_ = 0;  // turns of this loop that are known together
    std::optional<Running> running_;
};

}  // namespace luce::llama
