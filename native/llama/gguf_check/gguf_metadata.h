// GgufMetadata: typed access to the keys and tensor infos of one GGUF file, opened and checked against its size.
// The first thing that is wrong is kept as one line naming key and value; a reader then gets its fallback, so that
// rules read straight down without a branch after each key. Must not know which keys mean what: the rules do.
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

struct TensorInfo {
    std::string name;
    int64_t ne[4] = {1, 1, 1, 1};  // the fastest dimension first, as ggml has it
    int type = 0;                  // a ggml_type
    uint64_t n_bytes = 0;

    bool is_vector() const { return ne[1] == 1 && ne[2] == 1 && ne[3] == 1; }
};

class GgufMetadata {
public:
    // Reads the header of a regular file and makes sure that it holds all the tensor data that it announces.
    static Result<GgufMetadata> open(const std::string& path);

    // Keys that begin with a dot mean those of the model's architecture (".block_count" is "qwen3.block_count").
    void set_architecture(std::string architecture) { architecture_ = std::move(architecture); }

    bool has(std::string_view key) const;
    bool is_array(std::string_view key) const;
    // Elements of an array of any type; 0 for scalars and absent keys.
    size_t array_length(std::string_view key) const;

    // Each of these gives `fallback` where the key is absent, and refuses a wrong type or a value out of range.
    uint32_t count(std::string_view key, Range range, uint32_t fallback = 0);
    uint32_t short_count(std::string_view key, Range range, uint32_t fallback = 0);  // stored as uint16
    std::string text(std::string_view key, std::string_view fallback = {});
    // One value for each layer, stored as one for all or as an array of exactly n_layers.
    std::vector<uint32_t> per_layer(std::string_view key, Range range, size_t n_layers, uint32_t fallback = 0);
    // The strings stay in this object.
    std::vector<std::string_view> strings(std::string_view key);

    // Refuses a file without the key.
    void require(std::string_view key);
    // Refuses a scalar or array that is there with another type than gguf's `type` (of its elements, for an array).
    void require_array_of(std::string_view key, std::span<const int> types);
    // Refuses any number below the architecture's prefix that is not finite.
    void require_finite_numbers();

    void refuse(std::string text);
    const std::optional<std::string>& refusal() const { return refusal_; }

    const std::vector<TensorInfo>& tensors() const { return tensors_; }
    const TensorInfo* tensor(std::string_view name) const;

private:
    struct Free {
        void operator()(gguf_context* gguf) const;
    };

    explicit GgufMetadata(std::unique_ptr<gguf_context, Free> gguf);
    std::string full(std::string_view key) const;
    int64_t find(std::string_view key) const;
    bool is_type(int64_t id, const std::string& name, int type);
    std::optional<Error> check_data_size(const std::string& path, uint64_t file_size) const;

    std::unique_ptr<gguf_context, Free> gguf_;
    std::string architecture_;
    std::optional<std::string> refusal_;
    std::vector<TensorInfo> tensors_;
};

// A string from a file as it may stand in a one-line message: printable, and not too long.
std::string printable(std::string_view raw);

}  // namespace luce::llama
