// Reply: what the daemon says on stdout, as data, and its one way to become a line. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "wire/command.h"

namespace luce::wire {

enum class StopReason { eos, limit, stop, cancel };
std::string_view name_of(StopReason reason);

// `ok N= gen= reused= tier= miss= prefill_s= decode_s= decode_tok_s= [accept=] [out=] stop=`
struct GenerateOk {
    std::optional<RequestId> id;
    std::int32_t n_prompt = 0;
    std::int32_t n_generated = 0;
    std::int32_t n_reused = 0;
    std::string tier = "none";
    std::string miss = "off";
    double prefill_s = 0;
    double decode_s = 0;
    double decode_tokens_per_s = 0;
    std::optional<double> acceptance;
    std::optional<std::string> output_path;  // percent-encoded on the wire
    StopReason stop = StopReason::limit;
};

// `err <code> [id=<id>] <text>`; control characters in the text become spaces.
struct Err {
    std::optional<RequestId> id;
    Error error;
};

struct Pong {
    std::string word;
};

// `ok` with nothing else: `quit`.
struct PlainOk {};

struct Cancelled {
    RequestId id = 0;
};

struct PrefillProgress {
    std::optional<RequestId> id;
    std::int32_t n_done = 0;
    std::int32_t n_total = 0;
};

// `[lp] [id=] i=<n> tok:logprob,…`: the chosen token first, then the likeliest ones in falling order.
struct Logprobs {
    std::optional<RequestId> id;
    std::int32_t index = 0;  // of the generated token, from 0
    std::vector<std::pair<Token, float>> entries;
};

// `[status] key=value …`, `[daemon] ready key=value …`: values are percent-encoded.
struct StatusLine {
    std::vector<std::pair<std::string, std::string>> fields;
};
struct ReadyLine {
    std::vector<std::pair<std::string, std::string>> fields;
};

using Reply = std::variant<GenerateOk, Err, Pong, PlainOk, Cancelled, PrefillProgress, Logprobs, StatusLine, ReadyLine>;

// The line with its `\n`.
std::string format_reply(const Reply& reply);

}  // namespace luce::wire
