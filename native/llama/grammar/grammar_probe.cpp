// probe_grammar: llama_grammar_reject_candidates without the vocabulary, counting. Runs, because vocabularies hold long
// ones ("--------", spaces) and because all letters of a class count as one in [a-z]. A rule is probed by itself, so
// what only the rule around it makes ambiguous may pass.
#include "llama/grammar/grammar_probe.h"

#include <array>
#include <cstdint>
#include <set>
#include <vector>

namespace luce::llama {
namespace {

constexpr std::size_t kRunLength = 12;
constexpr std::size_t kMaxSteps = 200'000;         // of one rule and character; (x+)+ takes some 20,000
constexpr std::size_t kMaxStepsOfAll = 3'000'000;  // then the probing ends: a second at most
constexpr std::array<std::uint32_t, 8> kCharacters = {'a', ' ', '-', '0', 'E', '\n', '"', '='};

using Element = llama_grammar_element;
using Stack = std::vector<const Element*>;

bool is_end(const Element* e) { return e->type == LLAMA_GRETYPE_END || e->type == LLAMA_GRETYPE_ALT; }

// The element after the class that begins at e, if the character is in it.
const Element* match(const Element* e, std::uint32_t character) {
    if (e->type == LLAMA_GRETYPE_TOKEN || e->type == LLAMA_GRETYPE_TOKEN_NOT) return nullptr;
    const bool is_positive = e->type != LLAMA_GRETYPE_CHAR_NOT;
    bool found = false;
    do {
        const bool is_range = e[1].type == LLAMA_GRETYPE_CHAR_RNG_UPPER;
        if (e->type == LLAMA_GRETYPE_CHAR_ANY)
            found = true;
        else if (is_range)
            found = found || (e->value <= character && character <= e[1].value);
        else
            found = found || e->value == character;
        e += is_range ? 2 : 1;
    } while (e->type == LLAMA_GRETYPE_CHAR_ALT);
    return found == is_positive ? e : nullptr;
}

class Probe {
public:
    explicit Probe(const llama_grammar_rules& rules) : rules_(rules) {}

    // False: it takes too many steps.
    bool read_run(std::size_t rule, std::uint32_t character) {
        n_steps_ = 0;
        std::vector<Stack> begin;
        for (const Element* alternate : alternates(rule)) {
            if (!is_end(alternate)) advance({alternate}, begin);
        }
        const bool ended = read(begin, character, kRunLength);
        n_steps_of_all_ += n_steps_;
        return ended;
    }

    bool is_tired() const { return n_steps_of_all_ > kMaxStepsOfAll; }

private:
    std::vector<const Element*> alternates(std::size_t rule) const {
        const Element* e = rules_[rule].data();
        std::vector<const Element*> found = {e};
        for (; e->type != LLAMA_GRETYPE_END; ++e) {
            if (e->type == LLAMA_GRETYPE_ALT) found.push_back(e + 1);
        }
        return found;
    }

    // llama_grammar_advance_stack: all stacks that begin with a character, each once.
    void advance(Stack begin, std::vector<Stack>& ready) {
        std::vector<Stack> todo = {std::move(begin)};
        std::set<Stack> seen;
        while (!todo.empty() && n_steps_ <= kMaxSteps) {
            Stack stack = std::move(todo.back());
            todo.pop_back();
            ++n_steps_;
            if (stack.empty() || !seen.insert(stack).second) continue;
            const Element* e = stack.back();
            if (e->type != LLAMA_GRETYPE_RULE_REF) {
                ready.push_back(std::move(stack));
                continue;
            }
            stack.pop_back();
            if (!is_end(e + 1)) stack.push_back(e + 1);
            for (const Element* alternate : alternates(e->value)) {
                todo.push_back(stack);
                if (!is_end(alternate)) todo.back().push_back(alternate);
            }
        }
    }

    bool read(const std::vector<Stack>& stacks, std::uint32_t character, std::size_t n_left) {
        if (n_left == 0) return n_steps_ <= kMaxSteps;
        for (const Stack& stack : stacks) {
            if (++n_steps_ > kMaxSteps) return false;
            const Element* after = match(stack.back(), character);
            if (after == nullptr) continue;
            Stack rest(stack.begin(), stack.end() - 1);
            if (!is_end(after)) rest.push_back(after);
            std::vector<Stack> next;
            advance(std::move(rest), next);
            if (!read(next, character, n_left - 1)) return false;
        }
        return n_steps_ <= kMaxSteps;
    }

    const llama_grammar_rules& rules_;
    std::size_t n_steps_ = 0;
    std::size_t n_steps_of_all_ = 0;
};

}  // namespace

Result<void> probe_grammar(const llama_grammar_rules& rules) {
    Probe probe(rules);
    for (std::size_t rule = 0; rule < rules.size() && !probe.is_tired(); ++rule) {
        for (const std::uint32_t character : kCharacters) {
            if (probe.read_run(rule, character)) continue;
            return Error{ErrorCode::bad_grammar,
                         "the grammar is too ambiguous: it has too many ways to read the same text"};
        }
    }
    return {};
}

}  // namespace luce::llama
