// check_grammar: bounds on the parsed rules. llama.cpp looks for left recursion without remembering what it has seen,
// and keeps a stack for each leftmost path (a way from a position to the next character), comparing each with each; so
// the number of those paths is what its time depends on. It is counted here by dynamic programming over the rules in
// the order in which they begin with each other. Must not know requests or sampling.
#include "llama/grammar/grammar_limits.h"

#include <algorithm>
#include <new>
#include <vector>

#include "llama-grammar.h"
#include "llama/grammar/grammar_probe.h"

namespace luce::llama {
namespace {

constexpr std::size_t kMaxChain = 2000;    // llama.cpp recurses once a rule that begins with a rule
constexpr double kMaxPaths = 10'000;       // leftmost paths from one position
constexpr double kMaxElementVisits = 1e8;  // of llama.cpp's search for left recursion
constexpr double kMaxComparisons = 1e8;    // paths of two characters x paths of one: the cost of one token's check

bool is_end(const llama_grammar_element& e) { return e.type == LLAMA_GRETYPE_END || e.type == LLAMA_GRETYPE_ALT; }

// The later parts of a character class; its first element stands for the class.
bool is_class_checkpoint(const llama_grammar_element& e) {
    return e.type == LLAMA_GRETYPE_CHAR_ALT || e.type == LLAMA_GRETYPE_CHAR_RNG_UPPER;
}

// What follows from a position of an alternate, or from a whole rule. Paths are counted within the rule.
struct Follow {
    bool is_nullable = false;
    bool is_loop = false;    // it begins with the rule that it ends: nothing that the rule does not begin with already
    double n_paths = 0;      // to a first character
    double n_two_paths = 0;  // to a first character and from there to a second
    double n_single = 0;     // ways to match one character and be at the end
    double n_visits = 0;     // elements that a search for left recursion looks at
};

class RuleAnalysis {
public:
    explicit RuleAnalysis(const llama_grammar_rules& rules)
        : rules_(rules), whole_(rules.size()), component_(rules.size(), kNoComponent) {}

    Result<void> run() {
        find_nullable();
        order_rules();
        if (Result<void> recursion = check_recursion(); !recursion) return recursion;
        // Two-character paths need the final counts of rules that stand further right, hence the second round.
        for (int round = 0; round < 2; ++round) {
            for (const std::size_t rule : order_) sum_rule(rule);
        }
        return check_counts();
    }

private:
    static constexpr std::size_t kNoComponent = static_cast<std::size_t>(-1);

    const Follow& whole(const llama_grammar_element& ref) const { return whole_[ref.value]; }

    // A rule is nullable if all of an alternate's elements are. Each alternate counts what it still waits for.
    void find_nullable() {
        struct Alternate {
            std::size_t rule;
            std::size_t n_waiting;
        };
        std::vector<Alternate> alternates;
        std::vector<std::vector<std::size_t>> users(rules_.size());  // the alternates that refer to a rule
        std::vector<std::size_t> ready;
        const auto mark = [&](std::size_t rule) {
            if (whole_[rule].is_nullable) return;
            whole_[rule].is_nullable = true;
            ready.push_back(rule);
        };
        for (std::size_t rule = 0; rule < rules_.size(); ++rule) {
            std::size_t begin = 0;
            for (std::size_t i = 0; i < rules_[rule].size(); ++i) {
                if (!is_end(rules_[rule][i])) continue;
                const auto first = rules_[rule].begin() + static_cast<std::ptrdiff_t>(begin);
                const auto last = rules_[rule].begin() + static_cast<std::ptrdiff_t>(i);
                const bool only_rules =
                    std::all_of(first, last, [](const auto& e) { return e.type == LLAMA_GRETYPE_RULE_REF; });
                if (only_rules) {
                    alternates.push_back({rule, i - begin});
                    std::for_each(first, last, [&](const auto& e) { users[e.value].push_back(alternates.size() - 1); });
                    if (i == begin) mark(rule);
                }
                begin = i + 1;
            }
        }
        while (!ready.empty()) {
            const std::size_t rule = ready.back();
            ready.pop_back();
            for (const std::size_t user : users[rule]) {
                if (--alternates[user].n_waiting == 0) mark(alternates[user].rule);
            }
        }
    }

    // A reference that an alternate can begin with. A checkpoint has nothing after it.
    struct PrefixMatch {
        std::size_t at;
        std::size_t rule;
        bool is_checkpoint;
    };

    std::vector<PrefixMatch> prefix_matches(std::size_t rule) const {
        std::vector<PrefixMatch> found;
        const llama_grammar_rule& elements = rules_[rule];
        bool is_leftmost = true;
        for (std::size_t i = 0; i < elements.size(); ++i) {
            if (is_end(elements[i])) {
                is_leftmost = true;
            } else if (is_leftmost && elements[i].type == LLAMA_GRETYPE_RULE_REF) {
                found.push_back({i, elements[i].value, is_end(elements[i + 1])});
                is_leftmost = whole(elements[i]).is_nullable;
            } else {
                is_leftmost = false;
            }
        }
        return found;
    }

    // Tarjan's strongly connected components, without recursion. order_ gets each rule after those that it can begin
    // with, but for those of its own component.
    void order_rules() {
        struct Visit {
            std::size_t rule;
            std::vector<PrefixMatch> next;
        };
        std::vector<std::size_t> low(rules_.size());
        std::vector<std::size_t> number(rules_.size(), 0);
        std::vector<std::size_t> open;
        std::vector<Visit> path;
        std::size_t n_numbered = 0;
        const auto enter = [&](std::size_t rule) {
            low[rule] = number[rule] = ++n_numbered;
            open.push_back(rule);
            path.push_back({rule, prefix_matches(rule)});
        };
        const auto leave = [&](std::size_t rule) {
            order_.push_back(rule);
            path.pop_back();
            if (!path.empty()) low[path.back().rule] = std::min(low[path.back().rule], low[rule]);
            if (low[rule] != number[rule]) return;
            for (bool is_last = false; !is_last; open.pop_back()) {
                is_last = open.back() == rule;
                component_[open.back()] = n_components_;
            }
            ++n_components_;
        };
        for (std::size_t root = 0; root < rules_.size(); ++root) {
            if (number[root] == 0) enter(root);
            while (!path.empty()) {
                const std::size_t rule = path.back().rule;
                if (path.back().next.empty()) {
                    leave(rule);
                    continue;
                }
                const std::size_t child = path.back().next.back().rule;
                path.back().next.pop_back();
                if (number[child] == 0)
                    enter(child);
                else if (component_[child] == kNoComponent)
                    low[rule] = std::min(low[rule], number[child]);
            }
        }
    }

    // llama.cpp's stacks grow without end on a way from a rule to itself on which something is left to come after it.
    // Where nothing is, as in (x?)*, they stay the same, which it notices.
    Result<void> check_recursion() const {
        std::vector<std::size_t> n_rules(n_components_, 0);  // of a component and of what it can begin with
        std::vector<std::vector<std::size_t>> members(n_components_);
        for (std::size_t rule = 0; rule < rules_.size(); ++rule) {
            ++n_rules[component_[rule]];
            members[component_[rule]].push_back(rule);
        }
        for (std::size_t component = 0; component < n_components_; ++component) {
            std::size_t n_longest = 0;
            for (const std::size_t rule : members[component]) {
                for (const PrefixMatch& prefix_match : prefix_matches(rule)) {
                    const std::size_t other = component_[prefix_match.rule];
                    if (other == component && !prefix_match.is_checkpoint)
                        return bad_grammar("the grammar is left-recursive");
                    if (other != component) n_longest = std::max(n_longest, n_rules[other]);
                }
            }
            n_rules[component] += n_longest;
            if (n_rules[component] > kMaxChain) {
                return bad_grammar("the grammar has a chain of more than 2000 rules that begin with each other");
            }
        }
        return {};
    }

    // What follows from element e, given what follows from the one after it.
    Follow before(const llama_grammar_element& e, const Follow& rest) const {
        if (is_class_checkpoint(e)) return rest;
        if (e.type != LLAMA_GRETYPE_RULE_REF) {
            return {false, false, 1, 1 + rest.n_paths, rest.is_nullable ? 1.0 : 0.0, 1};
        }
        const Follow& rule = whole(e);
        const double skipped = rule.is_nullable && !rest.is_loop ? 1 : 0;
        Follow here;
        here.is_nullable = rule.is_nullable && rest.is_nullable;
        here.n_paths = rule.n_paths + skipped * rest.n_paths;
        here.n_two_paths = rule.n_two_paths + rule.n_single * rest.n_paths + skipped * rest.n_two_paths;
        here.n_single = (rest.is_nullable ? rule.n_single : 0) + skipped * rest.n_single;
        here.n_visits = rule.n_visits + skipped * rest.n_visits;
        return here;
    }

    // Calls visit(what follows, is it the alternate's first element) for each position, from right to left. Sums stay
    // finite, so that zero times them is zero.
    template <typename Visit>
    void for_each_position(std::size_t rule, Visit visit) const {
        const llama_grammar_rule& elements = rules_[rule];
        std::vector<PrefixMatch> loops = prefix_matches(rule);
        std::erase_if(loops, [&](const PrefixMatch& b) { return component_[b.rule] != component_[rule]; });
        const Follow nothing = {true};
        Follow rest = nothing;
        for (std::size_t i = elements.size(); i-- > 0;) {
            if (is_end(elements[i])) {
                rest = nothing;
                continue;
            }
            rest = before(elements[i], rest);
            for (double* n : {&rest.n_paths, &rest.n_two_paths, &rest.n_single, &rest.n_visits}) {
                *n = std::min(*n, 1e50);
            }
            if (!loops.empty() && loops.back().at == i) {
                rest.is_loop = true;
                loops.pop_back();
            }
            visit(rest, i == 0 || is_end(elements[i - 1]));
        }
    }

    void sum_rule(std::size_t rule) {
        Follow sum;
        sum.is_nullable = whole_[rule].is_nullable;
        sum.n_visits = static_cast<double>(rules_[rule].size());
        for_each_position(rule, [&](const Follow& follow, bool is_first) {
            if (!is_first || follow.is_loop) return;
            sum.n_paths += follow.n_paths;
            sum.n_two_paths += follow.n_two_paths;
            sum.n_single += follow.n_single;
            sum.n_visits += follow.n_visits;
        });
        whole_[rule] = sum;
    }

    Result<void> check_counts() const {
        Follow most;
        double n_visits = 0;
        const auto keep = [&](const Follow& follow) {
            most.n_paths = std::max(most.n_paths, follow.n_paths);
            most.n_two_paths = std::max(most.n_two_paths, follow.n_two_paths);
        };
        for (std::size_t rule = 0; rule < rules_.size(); ++rule) {
            keep(whole_[rule]);
            n_visits += whole_[rule].n_visits;
            for_each_position(rule, [&](const Follow& follow, bool) { keep(follow); });
        }
        if (n_visits > kMaxElementVisits || most.n_paths > kMaxPaths ||
            most.n_paths * most.n_two_paths > kMaxComparisons) {
            return bad_grammar("the grammar is too ambiguous: it leaves too many ways to go on at one place");
        }
        return {};
    }

    const llama_grammar_rules& rules_;
    std::vector<Follow> whole_;  // by rule
    std::vector<std::size_t> order_;
    std::vector<std::size_t> component_;  // by rule: those that can begin with each other
    std::size_t n_components_ = 0;
};

}  // namespace

Result<void> check_grammar(const std::string& grammar, const llama_vocab* vocab) try {
    if (Result<void> text = check_grammar_text(grammar); !text) return text;
    llama_grammar_parser parser(vocab);
    if (!parser.parse(grammar.c_str()) || parser.rules.empty()) {
        return bad_grammar("failed to parse grammar (the log on stderr says where)");
    }
    if (!parser.symbol_ids.contains("root")) return bad_grammar("the grammar has no rule named root");
    if (Result<void> counted = RuleAnalysis(parser.rules).run(); !counted) return counted;
    return probe_grammar(parser.rules);
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "no memory for the grammar"};
}

}  // namespace luce::llama
