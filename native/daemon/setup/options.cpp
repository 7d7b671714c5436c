// Which options there are is supervisor/config/options.json's: the build makes daemon/setup/option_table.inc of it.
// Here stands how a value of each kind is read.
#include "daemon/setup/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <string_view>
#include <vector>

#include "daemon/setup/option_checks.h"
#include "memory/residency/pinned_ranges.h"
#include "memory/residency/residency.h"
#include "memory/tiers/blob.h"
#include "wire/list_values.h"

namespace luce::daemon {
namespace {

// Stores a value in the options; the text says what is wrong with it, if anything.
using Setter = std::function<std::optional<std::string>(Options&, std::string_view)>;

struct OptionSpec {
    std::string_view name;
    std::string_view value;  // what the value is called; empty: a switch without one
    std::string_view help;
    Setter set;
    std::vector<std::string_view> aliases;  // older names, which go on working
};

// An option of older drivers that has no use here.
struct GoneOption {
    std::string_view name;
    std::string_view value;  // what it takes; empty: nothing
    std::string_view why;    // empty: nothing is to be said of it
};

template <typename Number>
std::optional<std::string> parse_number(std::string_view text, Number low, Number high, Number& number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || number < low || number > high) {
        return "takes a whole number from " + std::to_string(low) + " to " + std::to_string(high);
    }
    return std::nullopt;
}

// `Field` is a plain or an optional number.
template <typename Number, typename Field>
Setter number(Field Options::* field, Number low, Number high) {
    return [=](Options& options, std::string_view text) -> std::optional<std::string> {
        Number parsed{};
        if (auto wrong = parse_number(text, low, high, parsed)) return wrong;
        options.*field = parsed;
        return std::nullopt;
    };
}

Setter real(std::optional<float> Options::* field, bool is_positive) {
    return [=](Options& options, std::string_view text) -> std::optional<std::string> {
        float number = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
        const bool is_read = error == std::errc() && end == text.data() + text.size() && std::isfinite(number);
        if (!is_read || number < 0 || (is_positive && number == 0)) {
            return is_positive ? "takes a number above 0" : "takes a number from 0 on";
        }
        options.*field = number;
        return std::nullopt;
    };
}

Setter flag(bool Options::* field) {
    return [=](Options& options, std::string_view) -> std::optional<std::string> {
        options.*field = true;
        return std::nullopt;
    };
}

template <typename Field>
Setter text(Field Options::* field) {
    return [=](Options& options, std::string_view value) -> std::optional<std::string> {
        if (value.empty()) return "takes a value that is not empty";
        options.*field = std::string(value);
        return std::nullopt;
    };
}

template <typename Value, typename Field>
Setter choice(Field Options::* field, std::vector<std::pair<std::string_view, Value>> values) {
    return [field, values = std::move(values)](Options& options, std::string_view value) -> std::optional<std::string> {
        std::string known;
        for (const auto& [name, meaning] : values) {
            if (name == value) {
                options.*field = meaning;
                return std::nullopt;
            }
            known.append(known.empty() ? "" : ", ").append(name);
        }
        return "takes one of " + known;
    };
}

// Bytes, with K, M, G or T for powers of 1024.
std::optional<std::string> parse_bytes(std::string_view text, std::uint64_t& bytes) {
    constexpr std::string_view kUnits = "KMGT";
    int shift = 0;
    if (!text.empty()) {
        if (const std::size_t unit = kUnits.find(text.back()); unit != std::string_view::npos) {
            shift = 10 * static_cast<int>(unit + 1);
            text.remove_suffix(1);
        }
    }
    constexpr std::uint64_t kMost = std::uint64_t{1} << 50;
    std::uint64_t number = 0;
    if (parse_number<std::uint64_t>(text, 0, kMost >> shift, number)) {
        return "takes a number of bytes up to 1024T, with K, M, G or T behind it if you like";
    }
    bytes = number << shift;
    return std::nullopt;
}

// Tokens, with K or M for powers of 1024.
std::optional<std::string> parse_tokens(std::string_view text, std::int32_t low, std::int32_t high, std::int32_t& n) {
    const int shift = text.ends_with('K') ? 10 : text.ends_with('M') ? 20 : 0;
    if (shift > 0) text.remove_suffix(1);
    std::int64_t number = 0;
    if (parse_number<std::int64_t>(text, low >> shift, high >> shift, number) || number << shift < low) {
        return "takes a whole number of tokens from " + std::to_string(low) + " to " + std::to_string(high) +
               ", 32K for 32768 if you like";
    }
    n = static_cast<std::int32_t>(number << shift);
    return std::nullopt;
}

template <typename Field>
Setter tokens(Field Options::* field, std::int32_t low, std::int32_t high) {
    return [=](Options& options, std::string_view text) -> std::optional<std::string> {
        std::int32_t n = 0;
        if (auto wrong = parse_tokens(text, low, high, n)) return wrong;
        options.*field = n;
        return std::nullopt;
    };
}

template <typename Field>
Setter bytes(Field Options::* field) {
    return [=](Options& options, std::string_view text) -> std::optional<std::string> {
        std::uint64_t parsed = 0;
        if (auto wrong = parse_bytes(text, parsed)) return wrong;
        options.*field = parsed;
        return std::nullopt;
    };
}

std::optional<std::string> plan_gpus(Options& options, std::string_view text) {
    options.plan_gpus.clear();
    while (true) {
        const std::size_t comma = text.find(',');
        if (auto wrong = parse_bytes(text.substr(0, comma), options.plan_gpus.emplace_back())) return wrong;
        if (comma == std::string_view::npos) return std::nullopt;
        text.remove_prefix(comma + 1);
    }
}

// A flag that has lost its other value.
std::optional<std::string> draft_accept(Options&, std::string_view value) {
    if (value == "match") return std::nullopt;
    if (value == "rejection") return "rejection was removed: leave the flag out, and drafts are matched";
    return "takes one of match";
}

// Several times, and several at once: each adds to those before it. What they mean the model's loader says.
std::optional<std::string> kv_overrides(Options& options, std::string_view text) {
    while (true) {
        const std::size_t comma = text.find(',');
        const std::string_view one = text.substr(0, comma);
        if (one.empty()) return "takes KEY=TYPE:VALUE, with commas between several";
        options.kv_overrides.emplace_back(one);
        if (comma == std::string_view::npos) return std::nullopt;
        text.remove_prefix(comma + 1);
    }
}

constexpr std::int32_t kMaxLayer = 1 << 16;

std::optional<std::string> kvflash_size(Options& options, std::string_view text) {
    std::int32_t n = 0;
    options.sizes_kvflash = text == "auto";
    if (!options.sizes_kvflash) {
        if (parse_tokens(text, -kMaxCells, kMaxCells, n)) {
            return "takes a whole number of tokens, at most " + std::to_string(kMaxCells) + ", or auto";
        }
    }
    options.n_kvflash = n;
    return std::nullopt;
}

std::optional<std::string> kvflash_pins(Options& options, std::string_view text) {
    const auto pins = wire::parse_pins(text);
    if (!pins || pins.value().empty()) return "takes positions as begin:end,…, each prefix before it ends";
    options.kvflash_pins.clear();
    for (const wire::PinSpan& pin : pins.value()) options.kvflash_pins.push_back({pin.begin, pin.end});
    return std::nullopt;
}

std::optional<std::string> prefill_share(Options& options, std::string_view text) {
    float share = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), share);
    if (error != std::errc() || end != text.data() + text.size() || !(share > 0 && share <= 1)) {
        return "takes a share above 0 and up to 1: 0.25, say";
    }
    options.prefill_share = share;
    return std::nullopt;
}

// A layer's number, or none: the one that copies best.
std::optional<std::string> set_kvflash_layer(Options& options, std::string_view text) {
    options.kvflash_layer.reset();
    if (text == "auto") return std::nullopt;
    std::int32_t layer = 0;
    if (auto wrong = parse_number<std::int32_t>(text, 0, kMaxLayer, layer)) return "takes auto, or" + wrong->substr(5);
    options.kvflash_layer = layer;
    return std::nullopt;
}

#include "daemon/setup/option_table.inc"

const std::vector<OptionSpec>& specs() {
    static const std::vector<OptionSpec> all = all_specs();
    return all;
}

const OptionSpec* find(std::string_view name) {
    for (const OptionSpec& spec : specs()) {
        if (spec.name == name || std::ranges::find(spec.aliases, name) != spec.aliases.end()) return &spec;
    }
    return nullptr;
}

// Whether the option at `i` is one that does nothing any more; `i` is then at its value, if it takes one.
bool pass_gone(std::span<char* const> arguments, std::size_t& i, std::string_view name, bool has_value,
               Options& options) {
    const auto* gone = std::ranges::find(kGone, name, &GoneOption::name);
    if (gone == std::end(kGone) || (has_value && gone->value.empty())) return false;
    if (!gone->value.empty() && !has_value && i + 1 < arguments.size()) ++i;
    if (!gone->why.empty()) {
        options.notes.push_back(std::string(name) + " does nothing any more: " + std::string(gone->why));
    }
    return true;
}

// What --draft-method says in one word, as the options that it stands for.
Result<void> apply_draft_method(Options& options) {
    switch (options.draft_method) {
        case DraftMethod::automatic: break;
        case DraftMethod::none:
            if (options.mtp || options.n_draft_most.value_or(0) > 0) {
                return bad_args("--draft-method none drafts nothing: leave --mtp and --draft-max out");
            }
            options.n_draft_most = 0;
            break;
        case DraftMethod::dflash:
            if (options.mtp) return bad_args("--draft-method dflash and --mtp name two sources: give one of them");
            if (!options.draft) return bad_args("--draft-method dflash needs a drafter: give --draft FILE");
            break;
        case DraftMethod::mtp: options.mtp = true; break;
    }
    return {};
}

}  // namespace

Result<Options> parse_options(std::span<char* const> arguments) {
    Options options;
    std::vector<std::string_view> given;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        const std::string_view word = arguments[i];
        const std::size_t equals = word.starts_with("--") ? word.find('=') : std::string_view::npos;
        const std::string_view name = word.substr(0, equals);
        const OptionSpec* spec = find(name);
        if (spec == nullptr && pass_gone(arguments, i, name, equals != std::string_view::npos, options)) continue;
        if (spec == nullptr) return bad_args("unknown option '" + std::string(name) + "'; luced --help lists them");
        given.push_back(spec->name);
        std::string_view value;
        if (spec->value.empty()) {
            if (equals != std::string_view::npos) return bad_args(std::string(name) + " takes no value");
        } else if (equals != std::string_view::npos) {
            value = word.substr(equals + 1);
        } else if (i + 1 < arguments.size()) {
            value = arguments[++i];
        } else {
            return bad_args(std::string(name) + " needs a value: " + std::string(spec->value));
        }
        if (const auto wrong = spec->set(options, value)) {
            return bad_args(std::string(name) + " " + *wrong + ", not '" + std::string(value) + "'");
        }
    }
    if (Result<void> applied = apply_draft_method(options); !applied) return applied.error();
    if (Result<void> checked = check_together(options, given); !checked) return checked.error();
    if (options.sizes_kvflash) options.n_kvflash = static_cast<std::int32_t>(n_least_pool(options, 0));
    return options;
}

std::string help_text() {
    std::string text =
        "luced: runs one model and talks over pipes: command lines on stdin, replies on stdout, tokens on a file\n"
        "descriptor, the log on stderr. The contract is protocol/PROTOCOL.md; luce-daemon and luce are its front "
        "ends.\n\n"
        "usage: luced --model FILE [--stream-fd FD] [option …]\n\n";
    for (const OptionSpec& spec : specs()) {
        std::string left = "  " + std::string(spec.name) + " " + std::string(spec.value);
        left.resize(std::max<std::size_t>(left.size() + 1, 26), ' ');
        text.append(left).append(spec.help).push_back('\n');
    }
    text +=
        "\nExit status: 0 after quit or the end of input, 1 if this text or the version could not be written, 2 if it\n"
        "could not start, 64 for bad arguments, 70 after a fatal error of the engine.\n";
    return text;
}

}  // namespace luce::daemon
