// MemoryParts: which of libllama's memory objects a context has, and what each is for us. Knows libllama's kinds of
// memory by name; must not know pages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

class llama_kv_cache;
class llama_memory_recurrent;
struct llama_context;

namespace luce::llama {

struct MemoryParts {
    llama_kv_cache* paged = nullptr;              // rows of all positions: can be cut by position
    llama_kv_cache* window = nullptr;             // rows of the last positions only, which libllama overwrites itself
    llama_memory_recurrent* recurrent = nullptr;  // one state a lane
    std::string kind;                             // for people
    std::optional<std::string> refusal;           // why it cannot be paged
};

// The cells' sequence id that stands for "held": the last one that libllama's cells have room for, above any lane.
std::int32_t holder_id();

MemoryParts memory_parts(llama_context* context, const std::string& architecture, std::int32_t n_lanes);

}  // namespace luce::llama
