#include "daemon/setup/options.h"

#include <algorithm>
#include <charconv>
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

template <typename Value>
Setter choice(Value Options::* field, std::vector<std::pair<std::string_view, Value>> values) {
    return [=](Options& options, std::string_view value) -> std::optional<std::string> {
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

template <typename Field>
Setter bytes(Field Options::* field) {
    return [=](Options& options, std::string_view text) -> std::optional<std::string> {
        std::uint64_t parsed = 0;
        if (auto wrong = parse_bytes(text, parsed)) return wrong;
        options.*field = parsed;
        return std::nullopt;
    };
}

// A flag that has lost its other value.
std::optional<std::string> draft_accept(Options&, std::string_view value) {
    if (value == "match") return std::nullopt;
    if (value == "rejection") return "rejection was removed: leave the flag out, and drafts are matched";
    return "takes one of match";
}

constexpr std::int32_t kMaxInt = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t kMaxThreads = 512;  // as many as ggml is built for
constexpr std::int32_t kMaxDraft = 64;     // a step that verifies more pays on no machine
constexpr std::int32_t kMaxTree = 256;
constexpr std::int32_t kMaxTau = 1 << 16;
constexpr std::int32_t kMaxLayer = 1 << 16;

std::vector<OptionSpec> model_specs() {
    return {
        {"--model", "FILE", "the model, a GGUF file (of a split model: its first part)", text(&Options::model)},
        {"--ctx", "N",
         "longest text of one lane in tokens, prompt included (default: the model's, at most 32768 and --pool; with "
         "--kvflash all of it)",
         number<std::int32_t>(&Options::n_ctx, 1, kMaxCells)},
        {"--pool", "N",
         "cells of KV cache that all lanes share, at least --ctx (default: --ctx); when running lanes "
         "outgrow it, the youngest pauses",
         number<std::int32_t>(&Options::n_pool, 1, kMaxCells)},
        {"--lanes", "N", "requests that run at once (default 4)", number<std::int32_t>(&Options::n_lanes, 1, 256)},
        {"--queue", "N", "requests that may wait beyond those that have a lane (default 256)",
         number<std::int32_t>(&Options::n_queue, 0, 1 << 20)},
        {"--batch", "N", "most tokens of one call to the model (default: --ubatch)",
         number<std::int32_t>(&Options::n_batch, 1, 1 << 20)},
        {"--ubatch", "N", "most tokens of one pass over the weights, and so of a prefill slice (default 512)",
         number<std::int32_t>(&Options::n_ubatch, 1, 1 << 20)},
        {"--threads", "N", "CPU threads (default: one a physical core)",
         number<std::int32_t>(&Options::n_threads, 1, kMaxThreads)},
        {"--gpu-layers", "N", "layers on the GPU; 0: none (default: all, where there is a GPU)",
         number<std::int32_t>(&Options::n_gpu_layers, 0, kMaxInt)},
        {"--cache-type-k", "TYPE",
         "type of the cached keys: f16, bf16, q8_0, q4_0, … (default: q8_0 on CPU, or bf16 "
         "where the head size does not fit; f16 on GPU)",
         text(&Options::cache_type_k)},
        {"--cache-type-v", "TYPE", "type of the cached values (default: same rule)", text(&Options::cache_type_v)},
        {"--flash-attn", "on|off|auto", "flash attention (default auto: on where the backend has it)",
         choice<FlashAttentionChoice>(&Options::flash_attention, {{"auto", FlashAttentionChoice::automatic},
                                                                  {"on", FlashAttentionChoice::on},
                                                                  {"off", FlashAttentionChoice::off}})},
    };
}

std::vector<OptionSpec> memory_specs() {
    return {
        {"--slots", "N", "numbered snapshots (default 256); they live within --host-cache",
         number<std::int32_t>(&Options::n_slots, 0, 1 << 20)},
        {"--host-cache", "BYTES",
         "memory of the host for what texts leave behind: pages that left the pool, checkpoints, slots (default: a "
         "quarter "
         "of "
         "what is free, at most 8G)",
         bytes(&Options::host_cache_bytes)},
        {"--disk-cache", "DIR",
         "keep pages and checkpoints in files there, found again after a restart (default: nowhere)",
         text(&Options::disk_cache)},
        {"--disk-budget", "BYTES", "most bytes of all files below --disk-cache (default 32G)",
         bytes(&Options::disk_budget_bytes)},
        {"--prefix-cache", "on|off",
         "look for known prefix_matches of prompts, so that they need not be read again (default on)",
         choice<bool>(&Options::reuses_prefixes, {{"on", true}, {"off", false}})},
    };
}

std::optional<std::string> kvflash_size(Options& options, std::string_view text) {
    std::int32_t n = 0;
    options.sizes_kvflash = text == "auto";
    if (!options.sizes_kvflash) {
        if (auto wrong = parse_number(text, -kMaxCells, kMaxCells, n)) {
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

// A layer's number, or none: to be found out.
std::optional<std::string> set_kvflash_layer(Options& options, std::string_view text) {
    options.kvflash_layer.reset();
    if (text == "auto") return std::nullopt;
    std::int32_t layer = 0;
    if (auto wrong = parse_number<std::int32_t>(text, 0, kMaxLayer, layer)) return "takes auto, or" + wrong->substr(5);
    options.kvflash_layer = layer;
    return std::nullopt;
}

std::vector<OptionSpec> residency_specs() {
    return {
        {"--kvflash", "N|auto",
         "tokens of KV cache on the device, for texts of any length up to --ctx: what does not fit lies in the host "
         "(--host-cache) and comes back when it matters; a multiple of 64, and costs nothing while texts fit; auto: as "
         "many as the free memory holds and decoding stays fast with, and the log tells the sum (default: off, and "
         "texts have to fit --pool)",
         kvflash_size},
        {"--kvflash-tau", "N", "tokens of an answer after which it is looked anew at what matters (default 64)",
         number<std::int32_t>(&Options::kvflash_tau, 1, kMaxTau)},
        {"--kvflash-policy", "auto|query|draft|lru",
         "what stays: query: what the model's own attention asks for, and the newest; draft: what a small model's "
         "attention asks for (--kvflash-scorer), and the newest; lru: the newest; auto: query where the model allows "
         "it, else draft where there is a scorer, else lru (default auto)",
         choice<KvflashPolicy>(&Options::kvflash_policy, {{"auto", KvflashPolicy::automatic},
                                                          {"query", KvflashPolicy::query},
                                                          {"draft", KvflashPolicy::draft},
                                                          {"lru", KvflashPolicy::lru}})},
        {"--kvflash-scorer", "FILE",
         "the small model of --kvflash-policy draft, a GGUF file: one with attention in all layers and any "
         "vocabulary; --draft-threads and --draft-gpu-layers are for it as well",
         text(&Options::kvflash_scorer)},
        {"--kvflash-scorer-cache-type", "TYPE",
         "type of its cached keys and values (default: as the daemon would choose)",
         text(&Options::kvflash_scorer_cache_type)},
        {"--kvflash-pin", "A:B,…",
         "positions of every text that stay on the device, from A up to before B, in whole pages of 64 (a system "
         "prompt, say); each lane needs room for them (default: none but the first page)",
         kvflash_pins},
        {"--kvflash-layer", "N|auto",
         "the layer whose attention query goes by; auto: the one that finds best what a text holds, found out at the "
         "first start with a model and kept below $XDG_CACHE_HOME or ~/.cache (default auto)",
         set_kvflash_layer},
    };
}

std::vector<OptionSpec> draft_specs() {
    return {
        {"--draft", "FILE",
         "a draft model, a GGUF file: it proposes tokens that the model checks several at a time; the text stays the "
         "same",
         text(&Options::draft)},
        {"--mtp", "", "draft with the model's own multi-token heads, or with those that --draft names",
         flag(&Options::mtp)},
        {"--draft-max", "N",
         "most tokens drafted at once, up to 64; 0: never speculate (default: up to 15, as many as the gate "
         "finds worth it)",
         number<std::int32_t>(&Options::n_draft_most, 0, kMaxDraft)},
        {"--draft-gate", "on|off",
         "measure what a draft costs and brings, up to 0.6 s before ready and ever after, and draft only as far as it "
         "pays; off: always as far as it goes (default on)",
         choice<bool>(&Options::draft_gate, {{"on", true}, {"off", false}})},
        {"--draft-accept", "match",
         "does nothing: a drafted token is kept if it is the one that would have come without drafts. Accepted for one "
         "more version, since `rejection` is gone",
         draft_accept},
        {"--draft-ngram", "on|off",
         "draft what followed the same words earlier in the text, which needs no model (default on)",
         choice<bool>(&Options::draft_ngram, {{"on", true}, {"off", false}})},
        {"--draft-tree", "BUDGET",
         "draft a tree of at most so many tokens a step, up to 256, where the draft model names several tokens a place "
         "(DFlash) and the model has no recurrent state; elsewhere, and with 0, a chain (default 0)",
         number<std::int32_t>(&Options::draft_tree, 0, kMaxTree)},
        {"--spec-memory", "BYTES",
         "most memory for the states that a recurrent model goes back to when a draft was wrong, one a token, lane and "
         "step; longer drafts cost a copy of the state and computing again what was right (default 2 GiB with a draft "
         "model, else 256 MiB)",
         bytes(&Options::spec_memory_bytes)},
        {"--draft-cache-type-k", "TYPE", "type of the draft model's cached keys (default: as the daemon would choose)",
         text(&Options::draft_cache_type_k)},
        {"--draft-cache-type-v", "TYPE", "type of its cached values (default: as the daemon would choose)",
         text(&Options::draft_cache_type_v)},
        {"--draft-gpu-layers", "N",
         "layers of the draft model on the GPU; 0: none (default: all, where there is a GPU)",
         number<std::int32_t>(&Options::n_draft_gpu_layers, 0, kMaxInt)},
        {"--draft-threads", "N", "CPU threads of the draft model (default: --threads)",
         number<std::int32_t>(&Options::n_draft_threads, 1, kMaxThreads)},
    };
}

std::vector<OptionSpec> process_specs() {
    return {
        {"--stream-fd", "FD", "open file descriptor that tokens are written to, as int32 little endian",
         number<int>(&Options::stream_fd, 3, 1 << 20)},
        {"--mux", "", "multiplexed dialect: token records carry their request's id, requests run side by side",
         flag(&Options::multiplexed)},
        {"--seed", "N", "seed of requests that bring none (default: a random one each)",
         number<std::uint64_t>(&Options::seed, 0, std::numeric_limits<std::uint64_t>::max())},
        {"--log-level", "LEVEL", "error, warn, info or debug; debug holds llama.cpp's own messages (default info)",
         choice<LogLevel>(&Options::log_level, {{"error", LogLevel::error},
                                                {"warn", LogLevel::warn},
                                                {"info", LogLevel::info},
                                                {"debug", LogLevel::debug}})},
        {"--load-timeout", "S", "give up loading after S seconds without progress; 0: never (default 120)",
         number<std::int32_t>(&Options::load_timeout_s, 0, 1 << 20)},
        {"--die-with-parent", "", "end when the process that started luced ends, however it does",
         flag(&Options::dies_with_parent)},
        {"--version", "", "print version, build and devices, and exit", flag(&Options::wants_version)},
        {"--help", "", "print this text and exit", flag(&Options::wants_help)},
    };
}

const std::vector<OptionSpec>& specs() {
    static const std::vector<OptionSpec> all = [] {
        std::vector<OptionSpec> joined;
        for (const auto& part : {model_specs(), memory_specs(), residency_specs(), draft_specs(), process_specs()}) {
            joined.insert(joined.end(), part.begin(), part.end());
        }
        return joined;
    }();
    return all;
}

const OptionSpec* find(std::string_view name) {
    for (const OptionSpec& spec : specs()) {
        if (spec.name == name) return &spec;
    }
    return nullptr;
}

Error bad_args(std::string text) { return {ErrorCode::bad_args, std::move(text)}; }

}  // namespace

Result<Options> parse_options(std::span<char* const> arguments) {
    Options options;
    std::vector<std::string_view> given;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        const std::string_view word = arguments[i];
        const std::size_t equals = word.starts_with("--") ? word.find('=') : std::string_view::npos;
        const std::string_view name = word.substr(0, equals);
        const OptionSpec* spec = find(name);
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
    if (Result<void> checked = check_together(options, given); !checked) return checked.error();
    if (options.sizes_kvflash) options.n_kvflash = static_cast<std::int32_t>(n_least_pool(options));
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
