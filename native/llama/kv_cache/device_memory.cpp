#include "llama/kv_cache/device_memory.h"

#include <string>
#include <utility>

#include "base/log.h"
#include "memory/residency/pool_size.h"

namespace luce::llama {

DeviceMemory::DeviceMemory(Model& model, LlamaDecoder& decoder, LlamaKvDevice& device, DraftMemory* draft,
                           CombinedKvDevice* joint, PackedKvDevice* packed, PageScoring& scoring,
                           std::optional<std::int32_t> n_least)
    : model_(model),
      decoder_(decoder),
      device_(device),
      draft_(draft),
      joint_(joint),
      packed_(packed),
      scoring_(scoring),
      n_least_(n_least) {}

bool DeviceMemory::can_shrink(void (*give_up)(const char* why)) const {
    if (can_shrink() && is_torn()) give_up("out of memory for the computation's buffers");
    return can_shrink();
}

bool DeviceMemory::is_torn() const {
    return decoder_.is_torn() || (draft_ != nullptr && draft_->refusals().is_torn()) ||
           (scoring_.refusals() != nullptr && scoring_.refusals()->is_torn());
}

std::optional<Error> DeviceMemory::take_shortage() {
    const bool lacks_draft = draft_ != nullptr && draft_->refusals().take();
    const bool lacks_scorer = scoring_.refusals() != nullptr && scoring_.refusals()->take();
    if (lacks_draft) return Error{ErrorCode::out_of_memory, "no memory for the draft model's computation"};
    if (lacks_scorer) return Error{ErrorCode::out_of_memory, "no memory for the scorer's computation"};
    return std::nullopt;
}

void DeviceMemory::release_contexts() {
    if (draft_ != nullptr) draft_->unload();
    device_.unbind();
    scoring_.unload();
}

void DeviceMemory::unload() {
    release_contexts();
    model_.unload();
}

// What works with the target's context, which is a new one.
Result<void> DeviceMemory::open_others() {
    device_.rebind();
    if (draft_ != nullptr) {
        if (Result<void> back = draft_->reload(); !back) return back;
    }
    if (joint_ != nullptr) joint_->refresh();
    if (packed_ != nullptr) packed_->refresh();
    if (Result<void> back = scoring_.reload(); !back) return back;
    decoder_.note_pool();
    return {};
}

Result<void> DeviceMemory::reload(const Load& load) {
    const std::int32_t n_before = model_.info().n_pool;
    std::int32_t n_pool = n_before;
    for (;;) {
        Result<Model> loaded = load(n_pool);
        if (loaded) {
            model_ = std::move(loaded).value();
            break;
        }
        if (!n_least_ || n_pool <= *n_least_) return loaded.error();
        n_pool = memory::quarter_less(n_pool, *n_least_);
        log_warn("a pool of " + std::to_string(n_pool) + " tokens is tried: " + loaded.error().text);
    }
    Result<void> opened = open_others();
    if (!opened && can_shrink()) {
        log_warn("a smaller pool is tried: " + opened.error().text);
        opened = shrink();
    }
    if (!opened) {
        unload();
    } else if (model_.info().n_pool < n_before) {
        log_warn("the devices have less memory than before: the pool is " + std::to_string(model_.info().n_pool) +
                 " tokens now, not " + std::to_string(n_before));
    }
    return opened;
}

Result<void> DeviceMemory::shrink() {
    for (;;) {
        release_contexts();
        Result<void> opened = model_.resize_pool(memory::quarter_less(model_.info().n_pool, *n_least_));
        if (opened) opened = open_others();
        if (opened || !can_shrink()) return opened;
    }
}

}  // namespace luce::llama
