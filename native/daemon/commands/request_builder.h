// RequestBuilder: a generating command -> the engine's request: reads the files that the command names and fills in
// what it left open. The border between the wire's words and the engine's.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "base/result.h"
#include "daemon/commands/image_commands.h"
#include "engine/request.h"
#include "prefill/reading_wish.h"
#include "wire/command.h"

namespace luce::daemon {

// A line whose reply has tokens before it: an answer's, or those of its prompt that would be read.
struct GeneratingCommand : wire::Generate {
    bool compresses = false;
    std::optional<std::string> scorer = std::nullopt;  // of a line that compresses, a model's file

    explicit GeneratingCommand(wire::Generate command) : wire::Generate(std::move(command)) {}
    explicit GeneratingCommand(wire::Compress command);
};

// What commands leave open.
struct RequestDefaults {
    std::int32_t n_ctx = 0;                            // of prompts that are read whole
    std::optional<std::uint64_t> seed = std::nullopt;  // unset: a fresh random one each
    prefill::ReadingWish reading = {};
};

class RequestBuilder {
public:
    // `images` must outlive the builder.
    RequestBuilder(RequestDefaults defaults, const ImageCommands& images)
        : defaults_(std::move(defaults)), images_(images) {}

    // Errors: those of the files and images, bad_grammar. Throws std::bad_alloc.
    Result<engine::Request> build(const GeneratingCommand& command, engine::RequestKey key);

private:
    std::uint64_t fresh_seed();

    RequestDefaults defaults_;
    const ImageCommands& images_;
    std::random_device entropy_;
};

}  // namespace luce::daemon
