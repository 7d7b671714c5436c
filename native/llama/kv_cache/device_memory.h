// DeviceMemory: all that lies in the devices' memory beside each other, the model with its pool, the draft and the
// scorer: given back and taken again together, or taken with a smaller pool where there is not enough of it. Knows the
// order; must not know what texts are.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "base/result.h"
#include "llama/decoding/llama_decoder.h"
#include "llama/drafting/draft_memory.h"
#include "llama/kv_cache/combined_kv_device.h"
#include "llama/kv_cache/kv_device.h"
#include "llama/kv_cache/packed_kv_device.h"
#include "llama/model/model.h"
#include "llama/scoring/page_scoring.h"

namespace luce::llama {

class DeviceMemory {
public:
    // All must outlive it; `draft`, `joint` and `packed` may be null. `n_least`: tokens of the smallest pool that
    // works; unset: the pool stays as large as it is.
    DeviceMemory(Model& model, LlamaDecoder& decoder, LlamaKvDevice& device, DraftMemory* draft,
                 CombinedKvDevice* joint, PackedKvDevice* packed, PageScoring& scoring,
                 std::optional<std::int32_t> n_least);

    // Nothing may be kept in the pool. Afterwards only reload() may be called.
    void unload();

    // `load` gives the model, as it was, with a pool of so many tokens; where there is no memory for that, with a
    // smaller one, which is said in the log. Errors: start_failed, unsupported; then it may be tried again.
    using Load = std::function<Result<Model>(std::int32_t n_pool)>;
    Result<void> reload(const Load& load);

    // Whether shrink() can do anything. Where it could if the contexts might be let go (MemoryRefusals),
    // `give_up` is told so; it does not return.
    bool can_shrink() const { return n_least_ && model_.info().n_pool > *n_least_; }
    bool can_shrink(void (*give_up)(const char* why)) const;

    // What was refused memory since the last time, beside the target's own computations, which say so themselves.
    std::optional<Error> take_shortage();

    // Takes a quarter of the pool away, and more where that does not do, in favour of what computing needs. Nothing may
    // be kept in the pool. Errors: start_failed, unsupported (not even with the smallest one; nothing is left then).
    Result<void> shrink();

private:
    bool is_torn() const;
    void release_contexts();
    Result<void> open_others();

    Model& model_;
    LlamaDecoder& decoder_;
    LlamaKvDevice& device_;
    DraftMemory* draft_;
    CombinedKvDevice* joint_;
    PackedKvDevice* packed_;
    PageScoring& scoring_;
    std::optional<std::int32_t> n_least_;
};

}  // namespace luce::llama
