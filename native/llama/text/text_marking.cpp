// mark_text: see the header.
#include "llama/text/text_marking.h"

#include <algorithm>
#include <cctype>
#include <exception>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string_view>
#include <utility>

#include "llama/text/input_strings.h"

namespace luce::llama {

namespace {

// Two renderings of an ordinary request; the bound keeps a hostile one from costing thousands.
constexpr int kMaxRenderings = 200;

// How the spellings of one group are marked in a rendering.
enum class Marking { none, replaced, place_before, place_after };

// All occurrences of one spelling in one input string, or in all earlier answers together: there the template acts on
// each alike, and a long conversation must not cost a rendering for each answer. An empty spelling stands for the two
// ends of a string.
struct Group {
    InputOrigin origin;
    std::string spelling;
};

struct Placeholder {
    std::string original;  // what stood there
    size_t before = 0;     // bytes of text that end at the place
    size_t after = 0;      // bytes of text that begin at the place
};

struct Edit {
    size_t begin;
    size_t n_removed;
    Placeholder placeholder;
};

// Letters and digits only, so that no filter of a template changes it; its prefix occurs nowhere else in it.
std::string make_nonce(const std::string& avoided) {
    std::random_device random;
    for (;;) {
        const std::string nonce = "zq" + std::to_string(1000000000U + random() % 1000000000U) + "x";
        if (avoided.find(nonce) == std::string::npos) {
            return nonce;
        }
    }
}

class TextMarker {
public:
    TextMarker(const common_chat_templates_inputs& inputs, const std::string& prompt, const SpecialText& special,
               const RenderPrompt& render)
        : inputs_(inputs), prompt_(prompt), special_(special), render_(render), nonce_(make_nonce(prompt)) {}

    std::optional<TextMarks> run() {
        collect_groups();
        if (groups_.empty()) {
            return TextMarks{};
        }
        std::vector<size_t> all(groups_.size());
        for (size_t i = 0; i < all.size(); ++i) {
            all[i] = i;
        }
        if (!attempt(all, Marking::replaced)) {
            if (render_(inputs_) != prompt_) {
                return std::nullopt;
            }
            accept_by_halves(all);
            place_rejected();
        }
        normalise();
        return std::move(marks_);
    }

private:
    void collect_groups() {
        size_t string_index = 0;
        replace_strings(inputs_, [&](const std::string& text, InputOrigin origin) {
            const size_t index = string_index++;
            for (const ByteSpan& span : special_.structural_in(text)) {
                add_group(index, text.substr(span.begin, span.end - span.begin), origin);
            }
            if (special_.begins_open(text) || special_.ends_open(text)) {
                add_group(index, "", origin);
            }
            return text;
        });
        markings_.assign(groups_.size(), Marking::none);
    }

    static std::pair<size_t, std::string> key_of(size_t string_index, const std::string& spelling, InputOrigin origin) {
        return {origin == InputOrigin::answer ? std::numeric_limits<size_t>::max() : string_index, spelling};
    }

    void add_group(size_t string_index, const std::string& spelling, InputOrigin origin) {
        if (group_ids_.emplace(key_of(string_index, spelling, origin), groups_.size()).second) {
            groups_.push_back({origin, spelling});
        }
    }

    Marking marking_of(size_t string_index, const std::string& spelling, InputOrigin origin) const {
        const auto it = group_ids_.find(key_of(string_index, spelling, origin));
        return it == group_ids_.end() ? Marking::none : markings_[it->second];
    }

    std::vector<Edit> edits(size_t string_index, const std::string& text, InputOrigin origin) const {
        std::vector<Edit> edits;
        const bool ends = marking_of(string_index, "", origin) != Marking::none;
        const auto is_space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
        if (ends && special_.begins_open(text)) {
            const auto first = std::find_if_not(text.begin(), text.end(), is_space);
            edits.push_back({static_cast<size_t>(first - text.begin()), 0, {}});
        }
        for (const ByteSpan& span : special_.structural_in(text)) {
            const std::string spelling = text.substr(span.begin, span.end - span.begin);
            switch (marking_of(string_index, spelling, origin)) {
                case Marking::none: break;
                case Marking::replaced: edits.push_back({span.begin, spelling.size(), {spelling, 0, 0}}); break;
                case Marking::place_before: edits.push_back({span.begin, 0, {"", 0, spelling.size()}}); break;
                case Marking::place_after: edits.push_back({span.end, 0, {"", spelling.size(), 0}}); break;
            }
        }
        if (ends && special_.ends_open(text)) {
            const auto last = std::find_if_not(text.rbegin(), text.rend(), is_space);
            edits.push_back({static_cast<size_t>(last.base() - text.begin()), 0, {}});
        }
        return edits;
    }

    // Renders with the groups' markings. The marks are kept if the prompt came out the same.
    bool attempt_rendering() {
        if (n_renderings_++ >= kMaxRenderings) {
            return false;
        }
        placeholders_.clear();
        size_t string_index = 0;
        const auto marked = replace_strings(inputs_, [&](const std::string& text, InputOrigin origin) {
            std::string out;
            size_t at = 0;
            for (Edit& edit : edits(string_index, text, origin)) {
                out += text.substr(at, edit.begin - at) + nonce_ + std::to_string(placeholders_.size()) + "y";
                at = edit.begin + edit.n_removed;
                placeholders_.push_back(std::move(edit.placeholder));
            }
            ++string_index;
            return out + text.substr(at);
        });
        try {
            return restore(render_(marked));
        } catch (const std::exception&) {
            return false;  // the template or its handler refuses the placeholders: they matter to it
        }
    }

    bool restore(const std::string& rendered) {
        std::string restored;
        std::vector<ByteSpan> spans;
        size_t at = 0;
        for (size_t found; (found = rendered.find(nonce_, at)) != std::string::npos;) {
            restored.append(rendered, at, found - at);
            size_t digits = found + nonce_.size();
            size_t index = 0;
            while (digits < rendered.size() && std::isdigit(static_cast<unsigned char>(rendered[digits]))) {
                index = index * 10 + static_cast<size_t>(rendered[digits++] - '0');
            }
            if (index >= placeholders_.size() || digits >= rendered.size() || rendered[digits] != 'y') {
                return false;
            }
            const Placeholder& placeholder = placeholders_[index];
            const size_t place = restored.size();
            restored += placeholder.original;
            if (place < placeholder.before) {
                return false;
            }
            spans.push_back({place - placeholder.before, restored.size() + placeholder.after});
            at = digits + 1;
        }
        restored.append(rendered, at);
        if (restored != prompt_) {
            return false;
        }
        latest_ = std::move(spans);
        return true;
    }

    // Marks the groups in addition to what is marked already; takes it back if the prompt does not stay the same.
    bool attempt(const std::vector<size_t>& groups, Marking marking) {
        for (const size_t group : groups) {
            markings_[group] = marking;
        }
        if (attempt_rendering()) {
            // Beside a place the spelling may be gone: the template has taken it out.
            std::copy_if(latest_.begin(), latest_.end(), std::back_inserter(marks_.spans), [&](const ByteSpan& span) {
                const auto text = std::string_view(prompt_).substr(span.begin, span.end - span.begin);
                return text.empty() || special_.structural_in(text).size() == 1;
            });
            return true;
        }
        for (const size_t group : groups) {
            markings_[group] = Marking::none;
        }
        return false;
    }

    void accept_by_halves(const std::vector<size_t>& groups) {
        if (groups.size() == 1) {
            rejected_.push_back(groups[0]);
            return;
        }
        const auto middle = groups.begin() + static_cast<std::ptrdiff_t>(groups.size() / 2);
        const std::vector<size_t> first(groups.begin(), middle);
        const std::vector<size_t> second(middle, groups.end());
        for (const auto& half : {first, second}) {
            if (!attempt(half, Marking::replaced)) {
                accept_by_halves(half);
            }
        }
    }

    // Spellings that the template acts on. In an earlier answer they are the model's own markers and stay what they
    // are. Elsewhere (Qwen3 looks whether a user's message begins with <tool_response>) they are left standing, with a
    // place marked beside them.
    void place_rejected() {
        for (const size_t group : rejected_) {
            if (groups_[group].origin == InputOrigin::answer || groups_[group].spelling.empty()) {
                continue;
            }
            if (!attempt({group}, Marking::place_after)) {
                attempt({group}, Marking::place_before);  // else it stays a special token, as in llama.cpp
            }
        }
    }

    void normalise() {
        auto& spans = marks_.spans;
        std::sort(spans.begin(), spans.end(), [](const ByteSpan& a, const ByteSpan& b) {
            return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
        });
        std::vector<ByteSpan> kept;
        for (const ByteSpan& span : spans) {
            const bool is_place = span.begin == span.end;
            const bool covered =
                !kept.empty() && (span.begin < kept.back().end || (is_place && span.begin <= kept.back().end));
            if (!covered) {
                kept.push_back(span);
            }
        }
        spans = std::move(kept);
    }

    const common_chat_templates_inputs& inputs_;
    const std::string& prompt_;
    const SpecialText& special_;
    const RenderPrompt& render_;
    const std::string nonce_;

    std::map<std::pair<size_t, std::string>, size_t> group_ids_;
    std::vector<Group> groups_;
    std::vector<Marking> markings_;  // by group
    std::vector<size_t> rejected_;
    std::vector<Placeholder> placeholders_;
    std::vector<ByteSpan> latest_;
    TextMarks marks_;
    int n_renderings_ = 0;
};

// Clears `is_plain` at a string that is not.
VisitString plainness(const SpecialText& special, bool& is_plain) {
    return [&](const std::string& text, InputOrigin) {
        is_plain =
            is_plain && special.structural_in(text).empty() && !special.begins_open(text) && !special.ends_open(text);
        return text;
    };
}

}  // namespace

bool is_plain(common_chat_msg message, const SpecialText& special) {
    bool is_plain = true;
    replace_strings(message, plainness(special, is_plain));
    return is_plain;
}

bool is_plain_but_for_messages(const common_chat_templates_inputs& inputs, const SpecialText& special) {
    common_chat_templates_inputs others;
    others.tools = inputs.tools;
    others.chat_template_kwargs = inputs.chat_template_kwargs;
    others.json_schema = inputs.json_schema;
    bool is_plain = true;
    replace_strings(others, plainness(special, is_plain));
    return is_plain;
}

std::optional<TextMarks> mark_text(const common_chat_templates_inputs& inputs, const std::string& prompt,
                                   const SpecialText& special, const RenderPrompt& render) {
    return TextMarker(inputs, prompt, special, render).run();
}

}  // namespace luce::llama
