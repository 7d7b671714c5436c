// schema_to_grammar: see the header.
#include "llama/text/schema_grammar.h"

#include <exception>

#include <json-schema-to-grammar.h>

#include "llama/text/failure.h"

namespace luce::llama {

std::string schema_to_grammar(const common_json& schema) {
    if (!schema.is_object() && !schema.is_boolean()) {
        throw TextFailure(LUCE_TEXT_BAD_SCHEMA, "a JSON schema must be an object");
    }
    try {
        return json_schema_to_grammar(schema);
    } catch (const std::exception& e) {
        throw TextFailure(LUCE_TEXT_BAD_SCHEMA, std::string("the JSON schema has no grammar: ") + e.what());
    }
}

}  // namespace luce::llama
