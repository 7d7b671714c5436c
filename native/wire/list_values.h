// List values of a command line: ids, biases, triggers, snapshot points, spans. Items are cut first and percent-decoded
// afterwards, so that an encoded separator is text. An empty value is an empty list. Knows no key and no command.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "wire/command.h"

namespace luce::wire {

// `1,2,3`
Result<std::vector<Token>> parse_tokens(std::string_view text);

// `1,2|3`: alternatives, none of them empty
Result<std::vector<std::vector<Token>>> parse_token_alternatives(std::string_view text);

// `id:bias,…`; a bias may be `-inf`
Result<std::vector<std::pair<Token, float>>> parse_logit_bias(std::string_view text);

// `word:<text>,pattern:<text>,full:<text>,token:<id>`
Result<std::vector<GrammarTrigger>> parse_triggers(std::string_view text);

// Texts, none of them empty
Result<std::vector<std::string>> parse_texts(std::string_view text);

// `top_k,temperature`, each at most once
Result<std::vector<SamplerKind>> parse_samplers(std::string_view text);

// `64,128`, at most kMaxMarks
Result<std::vector<Position>> parse_marks(std::string_view text);

// `0,3`
Result<std::vector<std::int32_t>> parse_slots(std::string_view text);

// `pos:slot,…`, no slot twice
Result<std::vector<SnapshotPoint>> parse_snapshots(std::string_view text);

// `begin:end,…`, each prefix before it ends, at most kMaxMarks
Result<std::vector<PinSpan>> parse_pins(std::string_view text);

// `pos:<path>,…`, positions rise, at most kMaxMarks
Result<std::vector<ImageAt>> parse_images(std::string_view text);

// `temperature,top_p,top_k,repeat[,seed]`
Result<SamplingArgs> parse_samp(std::string_view text);

}  // namespace luce::wire
