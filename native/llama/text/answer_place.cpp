// find_place: see the header.
#include "llama/text/answer_place.h"

#include <algorithm>
#include <cctype>
#include <utility>
#include <variant>

#include <common/unicode.h>

namespace luce::llama {

namespace {

constexpr size_t kLongBytes = 128;

enum class Outcome { fail, success, need_more };

struct Reading {
    Outcome outcome;
    size_t end;
};

// Reads the input as common_peg_arena::parse does in lenient mode, without building a tree.
class Walk {
public:
    Walk(const common_peg_arena& grammar, DelimiterTries& tries, std::string_view input)
        : grammar_(grammar), tries_(tries), input_(input) {}

    AnswerPlace run() {
        const Reading reading = read(grammar_.root(), 0);
        place_.is_readable = reading.outcome != Outcome::fail;
        place_.n_ahead = input_.size() - reading.end;
        if (reading.outcome != Outcome::need_more || !place_.open || looked_to_ > input_.size()) {
            place_.open.reset();
        } else {
            place_.open->looked_to = looked_to_;
        }
        return std::move(place_);
    }

private:
    Reading read(common_peg_parser_id id, size_t at) {
        path_.push_back(id);
        const Reading reading = std::visit([&](const auto& parser) { return read(parser, at); }, grammar_.get(id));
        if (reading.outcome == Outcome::need_more && place_.path.empty()) {
            place_.path = path_;  // the innermost part is the first to say so, and nothing is read after that
        }
        path_.pop_back();
        return reading;
    }

    Reading read(const common_peg_epsilon_parser&, size_t at) { return {Outcome::success, at}; }
    Reading read(const common_peg_start_parser&, size_t at) { return {at == 0 ? Outcome::success : Outcome::fail, at}; }
    Reading read(const common_peg_end_parser&, size_t at) {
        return {is_end(at) ? Outcome::success : Outcome::fail, at};
    }

    Reading read(const common_peg_literal_parser& parser, size_t at) {
        for (size_t i = 0; i < parser.literal.size(); ++i) {
            if (is_end(at + i)) {
                return {Outcome::need_more, at + i};
            }
            if (input_[at + i] != parser.literal[i]) {
                return {Outcome::fail, at};
            }
        }
        return {Outcome::success, at + parser.literal.size()};
    }

    Reading read(const common_peg_sequence_parser& parser, size_t at) {
        Reading reading = {Outcome::success, at};
        for (const common_peg_parser_id child : parser.children) {
            reading = read(child, reading.end);
            if (reading.outcome != Outcome::success) {
                break;
            }
        }
        return reading;
    }

    Reading read(const common_peg_choice_parser& parser, size_t at) {
        for (const common_peg_parser_id child : parser.children) {
            const Reading reading = read(child, at);
            if (reading.outcome != Outcome::fail) {
                return reading;
            }
        }
        return {Outcome::fail, at};
    }

    Reading read(const common_peg_repetition_parser& parser, size_t at) {
        int n_read = 0;
        size_t first_end = at;
        size_t last_begin = at;
        while ((parser.max_count == -1 || n_read < parser.max_count) && !is_end(at)) {
            const Reading reading = read(parser.child, at);
            if (reading.outcome == Outcome::need_more) {
                note_repeated(parser, first_end, at);
                return reading;
            }
            if (reading.outcome == Outcome::fail || reading.end == at) {
                break;
            }
            first_end = n_read == 0 ? reading.end : first_end;
            last_begin = at;
            at = reading.end;
            ++n_read;
        }
        note_repeated(parser, first_end, last_begin);
        if (n_read >= parser.min_count) {
            return {Outcome::success, at};
        }
        return {is_end(at) ? Outcome::need_more : Outcome::fail, at};
    }

    void note_repeated(const common_peg_repetition_parser& parser, size_t begin, size_t end) {
        if (parser.max_count == -1 && parser.min_count <= 1) {
            note(place_.repeated, begin, end);
        }
    }

    static void note(std::vector<Stretch>& stretches, size_t begin, size_t end) {
        if (end >= begin + kLongBytes) {
            stretches.push_back({begin, end});
        }
    }

    // What is only looked at is no part of the message.
    Reading read(const common_peg_and_parser& parser, size_t at) {
        const Reading reading = read(parser.child, at);
        forget_open();
        return {reading.outcome, at};
    }

    Reading read(const common_peg_not_parser& parser, size_t at) {
        const Reading reading = read(parser.child, at);
        forget_open();
        switch (reading.outcome) {
            case Outcome::success: return {Outcome::fail, at};
            case Outcome::need_more: return {Outcome::need_more, at};
            case Outcome::fail: break;
        }
        return {Outcome::success, at};
    }

    Reading read(const common_peg_any_parser&, size_t at) {
        const utf8_parse_result character = character_at(at);
        if (character.status == utf8_parse_result::SUCCESS) {
            return {Outcome::success, at + character.bytes_consumed};
        }
        return {character.status == utf8_parse_result::INCOMPLETE ? Outcome::need_more : Outcome::fail, at};
    }

    Reading read(const common_peg_space_parser&, size_t at) {
        while (!is_end(at) && std::isspace(static_cast<unsigned char>(input_[at])) != 0) {
            ++at;
        }
        return {Outcome::success, at};
    }

    Reading read(const common_peg_chars_parser& parser, size_t at) {
        int n_read = 0;
        bool is_incomplete = false;
        while (parser.max_count == -1 || n_read < parser.max_count) {
            const utf8_parse_result character = character_at(at);
            is_incomplete = character.status == utf8_parse_result::INCOMPLETE;
            if (character.status != utf8_parse_result::SUCCESS || !is_one_of(parser, character.codepoint)) {
                break;
            }
            at += character.bytes_consumed;
            ++n_read;
        }
        if (n_read >= parser.min_count) {
            return {Outcome::success, at};
        }
        return {is_incomplete ? Outcome::need_more : Outcome::fail, at};
    }

    static bool is_one_of(const common_peg_chars_parser& parser, uint32_t codepoint) {
        const bool is_listed = std::any_of(parser.ranges.begin(), parser.ranges.end(),
                                           [&](const auto& range) { return range.contains(codepoint); });
        return is_listed != parser.negated;
    }

    Reading read(const common_peg_string_parser& parser, size_t at) {
        const size_t begin = at;
        const size_t looked_to = looked_to_;
        while (at < input_.size()) {
            if (input_[at] == parser.delimiter) {
                look(at + 1);
                note(place_.texts, begin, at);
                return {Outcome::success, at};
            }
            const Reading character =
                input_[at] == '\\' ? read_escape(parser.delimiter, at) : read(common_peg_any_parser{}, at);
            if (character.outcome != Outcome::success) {
                return character;
            }
            at = character.end;
        }
        looked_to_ = looked_to;  // into the text itself only
        remember_open({nullptr, &parser, begin, 0, {}});
        return {Outcome::need_more, at};
    }

    Reading read_escape(char delimiter, size_t at) {
        if (is_end(at + 1)) {
            return {Outcome::need_more, at};
        }
        const char kind = input_[at + 1];
        if (kind == delimiter || std::string_view("\\/bfnrt").find(kind) != std::string_view::npos) {
            return {Outcome::success, at + 2};
        }
        if (kind != 'u') {
            return {Outcome::fail, at};
        }
        for (size_t i = at + 2; i < at + 6; ++i) {
            if (is_end(i)) {
                return {Outcome::need_more, at};
            }
            if (std::isxdigit(static_cast<unsigned char>(input_[i])) == 0) {
                return {Outcome::fail, at};
            }
        }
        return {Outcome::success, at + 6};
    }

    Reading read(const common_peg_until_parser& parser, size_t at) {
        const common_trie& delimiters = tries_.of(parser);
        const size_t begin = at;
        while (at < input_.size()) {
            const utf8_parse_result character = common_parse_utf8_codepoint(input_, at);
            if (character.status == utf8_parse_result::INCOMPLETE) {
                look(input_.size() + 1);
                return {Outcome::need_more, at};
            }
            if (character.status == utf8_parse_result::SUCCESS) {
                const auto match = delimiters.check_at(input_, at);
                if (match != common_trie::NO_MATCH) {
                    // A delimiter that has only begun ends the text too, and may turn out to be none.
                    look(match == common_trie::PARTIAL_MATCH ? input_.size() + 1 : longest_end(parser, at));
                    note(place_.texts, begin, at);
                    return {Outcome::success, at};
                }
            }
            at += character.bytes_consumed;
        }
        remember_open({&parser, nullptr, begin, 0, {}});
        return {Outcome::need_more, at};
    }

    // No delimiter that stands at this place reaches further.
    size_t longest_end(const common_peg_until_parser& parser, size_t at) const {
        size_t n_bytes = 0;
        for (const std::string& delimiter : parser.delimiters) {
            n_bytes = std::max(n_bytes, delimiter.size());
        }
        return std::min(at + n_bytes, input_.size());
    }

    Reading read(const common_peg_tag_parser& parser, size_t at) {
        tags_.emplace_back(parser.tag);
        const Reading reading = read(parser.child, at);
        tags_.pop_back();
        return reading;
    }

    // Shows nothing of itself before it is complete.
    Reading read(const common_peg_atomic_parser& parser, size_t at) {
        const Reading reading = read(parser.child, at);
        forget_open();
        return reading;
    }

    Reading read(const common_peg_schema_parser& parser, size_t at) { return read(parser.child, at); }
    Reading read(const common_peg_rule_parser& parser, size_t at) { return read(parser.child, at); }
    Reading read(const common_peg_gbnf_parser& parser, size_t at) { return read(parser.child, at); }
    Reading read(const common_peg_ac_parser& parser, size_t at) { return read(parser.child, at); }
    Reading read(const common_peg_ref_parser& parser, size_t at) { return read(grammar_.get_rule(parser.name), at); }

    void look(size_t end) { looked_to_ = std::max(looked_to_, end); }

    // The input's end is looked at as one byte more than it has.
    bool is_end(size_t at) {
        look(std::min(at, input_.size()) + 1);
        return at >= input_.size();
    }

    utf8_parse_result character_at(size_t at) {
        const utf8_parse_result character = common_parse_utf8_codepoint(input_, at);
        const bool is_incomplete = character.status == utf8_parse_result::INCOMPLETE;
        // An invalid sequence is known by the byte after it.
        look(is_incomplete ? input_.size() + 1 : std::min(at + character.bytes_consumed + 1, input_.size()));
        return character;
    }

    // The walk ends right after a text that is open: nothing is read behind what needs more input.
    void remember_open(OpenText open) {
        open.tags = tags_;
        place_.open = std::move(open);
    }

    void forget_open() {
        if (place_.open) {
            look(input_.size() + 1);
            place_.open.reset();
        }
    }

    const common_peg_arena& grammar_;
    DelimiterTries& tries_;
    std::string_view input_;
    size_t looked_to_ = 0;
    std::vector<common_peg_parser_id> path_;
    std::vector<std::string_view> tags_;
    AnswerPlace place_;
};

}  // namespace

const common_trie& DelimiterTries::of(const common_peg_until_parser& text) {
    const auto found = tries_.find(&text);
    return found != tries_.end() ? found->second : tries_.emplace(&text, common_trie(text.delimiters)).first->second;
}

AnswerPlace find_place(const common_peg_arena& grammar, DelimiterTries& tries, std::string_view input) {
    return grammar.empty() ? AnswerPlace() : Walk(grammar, tries, input).run();
}

}  // namespace luce::llama
