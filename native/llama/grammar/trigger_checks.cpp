// check_triggers: one walk over a pattern that knows ECMAScript's brackets, classes and quantifiers, and bounds the
// ways in which std::regex can match it: no repeated group that has a choice inside (exponential), a bounded product of
// choices elsewhere, and a bounded number of repetitions (each is a power of the text's length).
#include "llama/grammar/trigger_checks.h"

#include <algorithm>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

namespace luce::llama {
namespace {

using engine::Trigger;

constexpr std::size_t kMaxTriggers = 64;
constexpr std::size_t kMaxTriggerBytes = 1024;
constexpr std::size_t kMaxGroups = 16;
constexpr int kMaxPower = 3;      // of the text's length, the search for a prefix included
constexpr int kMaxChoices = 256;  // product over the groups' alternatives and the optional parts

Error bad_trigger(const std::string& text) { return {ErrorCode::bad_grammar, "a trigger " + text}; }

class PatternScan {
public:
    PatternScan(std::string_view pattern, bool is_anchored) : text_(pattern), is_anchored_(is_anchored) {}

    Result<void> run() {
        groups_.emplace_back();
        while (i_ < text_.size()) {
            if (Result<void> step = next(); !step) return step;
        }
        const Group& whole = groups_.front();
        const bool begins_anchored = (is_anchored_ || text_.starts_with('^')) && whole.n_alternatives == 1;
        if (n_repetitions_ + (begins_anchored ? 0 : 1) > kMaxPower) {
            return bad_trigger("pattern repeats too many parts (at most 2, or 3 after a ^)");
        }
        n_choices_ *= whole.n_alternatives;
        if (n_choices_ > kMaxChoices) return bad_trigger("pattern has too many alternatives");
        return {};
    }

private:
    struct Group {
        int n_alternatives = 1;
        bool has_quantifier = false;
        bool has_choice = false;
        bool is_space = false;  // an atom that is \s
    };

    char at(std::size_t ahead = 0) const { return i_ + ahead < text_.size() ? text_[i_ + ahead] : '\0'; }

    Result<void> next() {
        switch (at()) {
            case '\\': {
                const bool is_space = at(1) == 's';
                take_atom(2);
                atom_.is_space = is_space;
                return {};
            }
            case '[': skip_class(); return {};
            case '(': return open();
            case ')': return close();
            case '|':
                ++i_;
                ++groups_.back().n_alternatives;
                groups_.back().has_choice = true;
                return {};
            case '*': ++i_; return quantify(0, kUnlimited);
            case '+': ++i_; return quantify(1, kUnlimited);
            case '?': ++i_; return quantify(0, 1);
            case '{': return counted();
            default: take_atom(1); return {};
        }
    }

    void take_atom(std::size_t n_bytes) {
        i_ += n_bytes;
        atom_ = Group{};
    }

    // In ECMAScript a ] right after the [ closes the class. [: [. and [= begin a named part of it.
    void skip_class() {
        ++i_;
        while (i_ < text_.size() && at() != ']') {
            if (at() == '[' && (at(1) == ':' || at(1) == '.' || at(1) == '=')) {
                const std::size_t end = text_.find(std::string{at(1), ']'}, i_ + 2);
                if (end != std::string_view::npos) i_ = end + 1;
            }
            i_ += at() == '\\' ? 2 : 1;
        }
        take_atom(1);
    }

    Result<void> open() {
        if (groups_.size() > kMaxGroups) return bad_trigger("pattern nests more than 16 brackets");
        i_ += at(1) == '?' ? 3 : 1;
        groups_.emplace_back();
        return {};
    }

    Result<void> close() {
        ++i_;
        if (groups_.size() == 1) return bad_trigger("pattern closes a bracket that it has not opened");
        atom_ = groups_.back();
        groups_.pop_back();
        groups_.back().has_quantifier |= atom_.has_quantifier;
        groups_.back().has_choice |= atom_.has_choice;
        return choose(atom_.n_alternatives);
    }

    Result<void> choose(int n_ways) {
        n_choices_ *= n_ways;
        if (n_choices_ > kMaxChoices) return bad_trigger("pattern has too many alternatives");
        return {};
    }

    int number() {
        int value = 0;
        for (; '0' <= at() && at() <= '9'; ++i_) value = std::min(value * 10 + (at() - '0'), kUnlimited);
        return value;
    }

    Result<void> counted() {
        ++i_;
        const int min = number();
        int max = min;
        if (at() == ',') {
            ++i_;
            max = at() == '}' ? kUnlimited : number();
        }
        if (at() == '}') ++i_;
        return quantify(min, max);
    }

    Result<void> quantify(int min, int max) {
        if (at() == '?') ++i_;  // lazy: the order of the same ways
        if (max > 1 && (atom_.has_quantifier || atom_.has_choice)) {
            return bad_trigger("pattern repeats a group that holds a quantifier or alternatives");
        }
        groups_.back().has_quantifier = true;
        if (max > 1 && max > min && !ends_at_letter()) ++n_repetitions_;
        return max == 1 && min == 0 ? choose(2) : Result<void>{};
    }

    // Spaces up to a letter that must follow end in one place only: no power of the text's length.
    bool ends_at_letter() const {
        const bool is_letter = ('a' <= at() && at() <= 'z') || ('A' <= at() && at() <= 'Z');
        const bool is_optional = at(1) == '?' || at(1) == '*' || at(1) == '{';
        return atom_.is_space && is_letter && !is_optional;
    }

    static constexpr int kUnlimited = 100'000;

    std::string_view text_;
    bool is_anchored_;
    std::size_t i_ = 0;
    std::vector<Group> groups_;  // that are open; the first is the whole pattern
    Group atom_;                 // what a quantifier would repeat
    int n_repetitions_ = 0;
    int n_choices_ = 1;
};

Result<void> check_pattern(const Trigger& trigger) {
    if (Result<void> shape = PatternScan(trigger.text, trigger.kind == Trigger::Kind::pattern_full).run(); !shape) {
        return shape;
    }
    try {
        static_cast<void>(std::regex(trigger.text));
    } catch (const std::regex_error& e) {
        return bad_trigger(std::string("pattern is no regular expression: ") + e.what());
    }
    return {};
}

}  // namespace

Result<void> check_triggers(std::span<const Trigger> triggers) {
    if (triggers.size() > kMaxTriggers) return bad_trigger("list has more than 64 entries");
    for (const Trigger& trigger : triggers) {
        if (trigger.text.size() > kMaxTriggerBytes) return bad_trigger("has more than 1 KiB");
        if (trigger.kind != Trigger::Kind::pattern && trigger.kind != Trigger::Kind::pattern_full) continue;
        if (Result<void> pattern = check_pattern(trigger); !pattern) return pattern;
    }
    return {};
}

}  // namespace luce::llama
