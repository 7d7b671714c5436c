// RequestTools: see the header.
#include "llama/text/request_tools.h"

#include <exception>

#include "llama/text/failure.h"
#include "llama/text/json_text.h"
#include "llama/text/text_marking.h"

namespace luce::llama {

RequestTools::RequestTools(const common_json& tools) {
    if (!tools.is_null()) {
        try {
            tools_ = common_chat_tools_parse_oaicompat(tools);
            for (size_t i = 0; i < tools_.size(); ++i) {
                const common_json& function = tools.at(i).at("function");
                if (function.contains("enforced")) {
                    enforced_.emplace(tools_[i].parameters, function.at("enforced"));
                }
            }
        } catch (const std::exception& e) {
            refuse(e.what());
        }
    }
    for (const common_chat_tool& tool : tools_) {
        n_bytes_ += sizeof(tool) + tool.name.size() + tool.description.size() + tool.parameters.size();
    }
}

const common_json* RequestTools::enforced(const std::string& shown) const {
    const auto found = enforced_.find(shown);
    return found == enforced_.end() ? nullptr : &found->second;
}

bool RequestTools::is_plain(const SpecialText& special) const {
    if (plain_for_ == special.serial()) {
        return true;
    }
    common_chat_templates_inputs inputs;
    inputs.tools = tools_;
    if (!is_plain_but_for_messages(inputs, special)) {
        return false;
    }
    plain_for_ = special.serial();
    return true;
}

RequestToolsPtr read_request_tools(std::string_view encoded) {
    return std::make_shared<const RequestTools>(parse_json(encoded, "the tools"));
}

}  // namespace luce::llama
