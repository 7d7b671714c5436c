// JSON schema to GBNF, with llama.cpp's converter.
#pragma once

#include <string>

#include <json.h>

namespace luce::llama {

// Throws TextFailure(BAD_SCHEMA).
std::string schema_to_grammar(const common_json& schema);

}  // namespace luce::llama
