#include "llama/kv_cache/memory_parts.h"

#include <cstdlib>
#include <memory>
#include <typeinfo>

#include <cxxabi.h>

#include "llama-context.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache.h"
#include "llama-memory-hybrid-idx.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"
#include "llama/decoding/private_member.h"

namespace luce::llama {

struct TransposesV {
    friend constexpr auto member_of(TransposesV);
};
struct WindowType {
    friend constexpr auto member_of(WindowType);
};

template struct PrivateMember<TransposesV, &llama_kv_cache::v_trans>;
template struct PrivateMember<WindowType, &llama_kv_cache::swa_type>;

namespace {

std::string class_name(const llama_memory_i& memory) {
    const char* mangled = typeid(memory).name();
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(mangled, nullptr, nullptr, &status),
                                                           &std::free);
    return name ? name.get() : mangled;
}

// The most derived kinds first: a kind that adds to one of ours mirrors its cells, which must not change behind it.
MemoryParts parts_of(llama_memory_i& memory) {
    MemoryParts parts;
    if (dynamic_cast<llama_memory_hybrid_idx*>(&memory) != nullptr) {
        parts.refusal = "a sparse attention's index mirrors the cells of its attention cache";
    } else if (auto* hybrid = dynamic_cast<llama_memory_hybrid*>(&memory)) {
        parts.kind = "hybrid";
        parts.paged = hybrid->get_mem_attn();
        parts.recurrent = hybrid->get_mem_recr();
    } else if (auto* hybrid_iswa = dynamic_cast<llama_memory_hybrid_iswa*>(&memory)) {
        parts.kind = "hybrid with a sliding window";
        parts.paged = hybrid_iswa->get_mem_attn()->get_base();
        parts.window = hybrid_iswa->get_mem_attn()->get_swa();
        parts.recurrent = hybrid_iswa->get_mem_recr();
    } else if (auto* iswa = dynamic_cast<llama_kv_cache_iswa*>(&memory)) {
        parts.kind = "sliding window";
        parts.paged = iswa->get_base();
        parts.window = iswa->get_swa();
    } else if (auto* attention = dynamic_cast<llama_kv_cache*>(&memory)) {
        parts.kind = "attention";
        parts.paged = attention;
    } else if (auto* recurrent = dynamic_cast<llama_memory_recurrent*>(&memory)) {
        parts.kind = "recurrent";
        parts.recurrent = recurrent;
    } else {
        parts.refusal = "pages of this kind of memory are not known";
    }
    if (parts.refusal) parts.kind = class_name(memory);
    return parts;
}

std::optional<std::string> refusal_of(const llama_kv_cache& cache) {
    if (cache.get_n_stream() != 1) return "its lanes do not share one pool of cells";
    if (cache.*member_of(TransposesV{})) return "without flash attention a position's values are not stored together";
    if (cache.*member_of(WindowType{}) != LLAMA_SWA_TYPE_NONE) return "libllama overwrites rows outside a window";
    return std::nullopt;
}

}  // namespace

std::int32_t holder_id() { return LLAMA_MAX_SEQ - 1; }

MemoryParts memory_parts(llama_context* context, const std::string& architecture, std::int32_t n_lanes) {
    MemoryParts parts = parts_of(*llama_get_memory(context));
    if (!parts.refusal && parts.paged != nullptr) parts.refusal = refusal_of(*parts.paged);
    if (!parts.refusal && parts.window != nullptr && parts.window->get_n_stream() != 1) {
        parts.refusal = "its lanes do not share one pool of cells";
    }
    if (!parts.refusal && n_lanes > holder_id()) {
        parts.refusal = "more than " + std::to_string(holder_id()) + " lanes leave no sequence id to hold cells with";
    }
    if (parts.refusal) {
        parts.refusal =
            "the memory of architecture " + architecture + " (" + parts.kind + ") cannot be paged: " + *parts.refusal;
    }
    return parts;
}

}  // namespace luce::llama
