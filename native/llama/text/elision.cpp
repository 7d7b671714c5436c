// find_elision: see the header.
#include "llama/text/elision.h"

#include <cstdint>
#include <cstdio>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace luce::llama {

namespace {

// Longer than any template's marker: what stays on either side is enough to recognise one that has begun.
constexpr size_t kTailBytes = 160;
constexpr size_t kHeadBytes = 64;
constexpr size_t kProbeBytes = 48;
constexpr size_t kLeastBytes = 256;

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// As JSON writers spell one byte of a string; those of a UTF-8 sequence stay.
std::string spelled(char c, FieldSpelling spelling) {
    if (spelling == FieldSpelling::plain) {
        return std::string(1, c);
    }
    switch (c) {
        case '"': return "\\\"";
        case '\\': return "\\\\";
        case '\n': return "\\n";
        case '\r': return "\\r";
        case '\t': return "\\t";
        case '\b': return "\\b";
        case '\f': return "\\f";
        default: break;
    }
    if (static_cast<unsigned char>(c) >= 0x20) {
        return std::string(1, c);
    }
    char code[8];
    std::snprintf(code, sizeof(code), "\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(c)));
    return code;
}

// Places in JSON text between which everything may be left out: those of one string, those after a comma of one
// container. The longest such stretch within [low, high].
class NeutralStretch {
public:
    NeutralStretch(size_t low, size_t high) : low_(low), high_(high) {}

    std::optional<std::pair<size_t, size_t>> find(std::string_view json) {
        containers_.push_back(next_id_++);
        for (size_t i = 0; i < json.size() && i <= high_; ++i) {
            if (in_string_) {
                step_in_string(json, i);
            } else {
                step_outside(json[i], i);
            }
        }
        return best_;
    }

private:
    void step_in_string(std::string_view json, size_t& i) {
        if (json[i] == '\\') {
            i += i + 1 < json.size() && json[i + 1] == 'u' ? 5 : 1;
        } else if (json[i] == '"') {
            in_string_ = false;
        } else if (!is_continuation(json[i])) {
            note(string_id_, i);
        }
    }

    void step_outside(char c, size_t i) {
        if (c == '"') {
            in_string_ = true;
            string_id_ = next_id_++;
        } else if (c == '{' || c == '[') {
            containers_.push_back(next_id_++);
        } else if ((c == '}' || c == ']') && containers_.size() > 1) {
            containers_.pop_back();
        } else if (c == ',') {
            note(containers_.back(), i + 1);
        }
    }

    void note(uint64_t id, size_t place) {
        if (place < low_ || place > high_) {
            return;
        }
        const size_t first = first_.emplace(id, place).first->second;
        if (!best_ || place - first > best_->second - best_->first) {
            best_ = {first, place};
        }
    }

    size_t low_;
    size_t high_;
    bool in_string_ = false;
    uint64_t next_id_ = 0;
    uint64_t string_id_ = 0;
    std::vector<uint64_t> containers_;
    std::unordered_map<uint64_t, size_t> first_;
    std::optional<std::pair<size_t, size_t>> best_;
};

// The longest stretch of the input that ends a tail's length before its end and stands in the field as well.
std::optional<Elision> common_stretch(std::string_view input, std::string_view field, FieldSpelling spelling) {
    size_t input_end = input.size() - kTailBytes;
    while (is_continuation(input[input_end])) {
        --input_end;
    }
    std::string probe;
    for (size_t i = input_end - kProbeBytes; i < input_end; ++i) {
        probe += spelled(input[i], spelling);
    }
    const size_t found = field.rfind(probe);
    if (found == std::string_view::npos) {
        return std::nullopt;
    }
    Elision elision = {input_end, input_end, found + probe.size(), found + probe.size()};
    while (elision.input_begin > 0) {
        const std::string byte = spelled(input[elision.input_begin - 1], spelling);
        if (elision.field_begin < byte.size() ||
            field.compare(elision.field_begin - byte.size(), byte.size(), byte) != 0) {
            break;
        }
        elision.input_begin -= 1;
        elision.field_begin -= byte.size();
    }
    return elision;
}

}  // namespace

std::optional<Elision> find_elision(std::string_view input, std::string_view field, FieldSpelling spelling,
                                    bool field_is_json) {
    if (input.size() < kTailBytes + kHeadBytes + kLeastBytes) {
        return std::nullopt;
    }
    auto elision = common_stretch(input, field, spelling);
    if (!elision) {
        return std::nullopt;
    }
    for (size_t kept = 0; (kept < kHeadBytes || is_continuation(input[elision->input_begin])) &&
                          elision->input_begin < elision->input_end;
         ++kept) {
        elision->field_begin += spelled(input[elision->input_begin++], spelling).size();
    }
    if (field_is_json) {
        const auto neutral = NeutralStretch(elision->field_begin, elision->field_end).find(field);
        if (!neutral) {
            return std::nullopt;
        }
        // Escaped bytes do not map one to one: there, all or nothing.
        const bool whole = neutral->first == elision->field_begin && neutral->second == elision->field_end;
        if (spelling == FieldSpelling::json_escaped && !whole) {
            return std::nullopt;
        }
        elision->input_end -= elision->field_end - neutral->second;
        elision->input_begin += neutral->first - elision->field_begin;
        elision->field_begin = neutral->first;
        elision->field_end = neutral->second;
    }
    if (elision->input_end < elision->input_begin + kLeastBytes) {
        return std::nullopt;
    }
    return elision;
}

}  // namespace luce::llama
