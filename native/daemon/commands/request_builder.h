// RequestBuilder: a generating command -> the engine's request: reads the files that the command names and fills in
// what it left open. The border between the wire's words and the engine's.
#pragma once

#include <cstdint>
#include <optional>
#include <random>

#include "base/result.h"
#include "daemon/commands/image_commands.h"
#include "engine/request.h"
#include "wire/command.h"

namespace luce::daemon {

class RequestBuilder {
public:
    // `seed`: for requests that bring none; unset: a fresh random one each.
    // `images` must outlive the builder.
    RequestBuilder(std::int32_t n_ctx, std::optional<std::uint64_t> seed, const ImageCommands& images)
        : n_ctx_(n_ctx), seed_(seed), images_(images) {}

    // Errors: those of the files and images, bad_grammar. Throws std::bad_alloc.
    Result<engine::Request> build(const wire::Generate& command, engine::RequestKey key);

private:
    std::uint64_t fresh_seed();

    std::int32_t n_ctx_;
    std::optional<std::uint64_t> seed_;
    const ImageCommands& images_;
    std::random_device entropy_;
};

}  // namespace luce::daemon
