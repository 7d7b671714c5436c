// GgufMetadata: typed access to the keys of one GGUF file. The first thing that is wrong is kept as one line naming key
// and value; a reader then gets its fallback, so that rules read straight down without a branch after each key. Must
// not know which keys mean what: the rules do.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

struct gguf_context;

namespace luce::llama {

inline Error start_failed(std::string text) { return {ErrorCode::start_failed, std::move(text)}; }

struct Range {
    uint64_t min = 0;
    uint64_t max = std::numeric_limits<uint32_t>::max();
};

class GgufMetadata {
public:
    // Reads the header of a regular file. Errors: start_failed, naming the file.
    static Result<GgufMetadata> open(const std::string& path);

    // Keys that begin with a dot mean those of the model's architecture (".block_count" is "qwen3.block_count").
    void set_architecture(std::string architecture) { architecture_ = std::move(architecture); }

    bool has(std::string_view key) const;
    // Elements of an array of any type; 0 for scalars and absent keys.
    size_t array_length(std::string_view key) const;

    // Each of these gives `fallback` where the key is absent, and refuses a wrong type or a value out of range.
    uint32_t count(std::string_view key, Range range, uint32_t fallback = 0);
    std::string text(std::string_view key, std::string_view fallback = {});
    // The strings stay in this object.
    std::vector<std::string_view> strings(std::string_view key);
    // Of 32 bits; none where the key is absent or of another type.
    std::vector<uint32_t> numbers(std::string_view key) const;

    // Refuses a file without the key.
    void require(std::string_view key);
    // Refuses a scalar or array that is there with another type than gguf's `type` (of its elements, for an array).
    void require_array_of(std::string_view key, std::span<const int> types);
    void refuse(std::string text);
    const std::optional<std::string>& refusal() const { return refusal_; }

    bool has_tensor(const std::string& name) const;

private:
    struct Free {
        void operator()(gguf_context* gguf) const;
    };

    explicit GgufMetadata(std::unique_ptr<gguf_context, Free> gguf) : gguf_(std::move(gguf)) {}
    std::string full(std::string_view key) const;
    int64_t find(std::string_view key) const;
    bool is_array(std::string_view key) const;
    bool is_type(int64_t id, const std::string& name, int type);

    std::unique_ptr<gguf_context, Free> gguf_;
    std::string architecture_;
    std::optional<std::string> refusal_;
};

}  // namespace luce::llama
