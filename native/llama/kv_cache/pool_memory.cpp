#include "llama/kv_cache/pool_memory.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include <ggml-backend.h>
#include <llama.h>

#include "llama-ext.h"
#include "llama-kv-cache.h"
#include "llama-model.h"
#include "llama/kv_cache/kv_device.h"
#include "llama/kv_cache/kv_rows.h"
#include "llama/kv_cache/memory_parts.h"

namespace luce::llama {
namespace {

using memory::PoolDevice;

constexpr std::uint64_t kWindowStep = 256;  // libllama has a window's cells by as many

// A null pointer stands for the host. Ordered, so that the table is the same each time.
using Devices = std::map<ggml_backend_dev_t, PoolDevice>;

ggml_backend_dev_t device_of(ggml_backend_buffer_type_t type) {
    return ggml_backend_buft_is_host(type) ? nullptr : ggml_backend_buft_get_device(type);
}

ggml_backend_dev_t device_of(const ggml_tensor* tensor) {
    return device_of(ggml_backend_buffer_get_type(tensor->buffer));
}

bool is_mapped(ggml_backend_buffer_type_t type) {
    return std::string_view(ggml_backend_buft_name(type)).find("Mapped") != std::string_view::npos;
}

void describe(ggml_backend_dev_t device, PoolDevice& described) {
    described.is_host = device == nullptr;
    described.name = device == nullptr ? "host" : ggml_backend_dev_name(device);
    if (device == nullptr) device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (device == nullptr) return;
    described.shares_host = ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_IGPU;
    std::size_t free = 0;
    std::size_t total = 0;
    ggml_backend_dev_memory(device, &free, &total);
    described.free = free;
    described.total = total;
}

// Rows of a token of the pool; where a kernel unpacks them first, also one layer's unpacked.
void add_rows(llama_kv_cache& paged, Devices& devices) {
    std::map<ggml_backend_dev_t, std::uint64_t> unpacked;
    for (const ggml_tensor* tensor : KvRows(paged).tensors()) {
        PoolDevice& device = devices[device_of(tensor)];
        device.a_token += tensor->nb[1];
        if (!ggml_is_quantized(tensor->type) || device_of(tensor) == nullptr) continue;
        std::uint64_t& most = unpacked[device_of(tensor)];
        most = std::max<std::uint64_t>(most, 2 * sizeof(ggml_fp16_t) * static_cast<std::uint64_t>(tensor->ne[0]));
    }
    for (const auto& [device, bytes] : unpacked) devices[device].beside_token += bytes;
}

// A small pool bounds the windows' size too: in a larger one they have what their lanes need.
void add_windows(llama_kv_cache& window, const llama_context* context, std::uint64_t n_lanes, Devices& devices) {
    const auto n_window = static_cast<std::uint64_t>(llama_model_n_swa(llama_get_model(context)));
    const std::uint64_t n_whole = n_window * n_lanes + llama_n_ubatch(context);
    const std::uint64_t n_cells = (n_whole + kWindowStep - 1) / kWindowStep * kWindowStep;
    if (n_cells <= window.get_size()) return;
    for (const ggml_tensor* tensor : KvRows(window).tensors()) {
        devices[device_of(tensor)].later += (n_cells - window.get_size()) * tensor->nb[1];
    }
}

void add_growth(const ContextOwner& owner, std::int32_t n_lanes, Devices& devices) {
    const MemoryParts parts = memory_parts(owner.context(), owner.architecture(), n_lanes);
    if (parts.refusal) return;
    if (parts.window != nullptr) {
        add_windows(*parts.window, owner.context(), static_cast<std::uint64_t>(n_lanes), devices);
    }
    if (parts.paged == nullptr) return;
    Devices of_rows;
    add_rows(*parts.paged, of_rows);
    // Which cells a token of a call sees, as numbers and once more as the kernels take them.
    const std::uint64_t mask_bytes = llama_n_ubatch(owner.context()) * (sizeof(float) + sizeof(ggml_fp16_t));
    for (const auto& [key, rows] : of_rows) {
        PoolDevice& device = devices[key];
        device.a_token += rows.a_token;
        device.beside_token += rows.beside_token + mask_bytes;
    }
}

std::uint64_t read_a_token(const llama_model& weights) {
    const bool is_tied = weights.output == nullptr || weights.tok_embd == nullptr ||
                         std::string_view(weights.output->name) == weights.tok_embd->name;
    const std::uint64_t n_experts = weights.hparams.n_expert;
    const std::uint64_t n_used = weights.hparams.n_expert_used_max();
    std::set<std::string_view> seen;
    std::uint64_t n_bytes = 0;
    for (const auto& [name, tensor] : weights.tensors_by_name) {
        const bool is_table = tensor == weights.per_layer_tok_embd || (tensor == weights.tok_embd && !is_tied);
        if (is_table || !seen.insert(name).second) continue;
        const bool is_of_experts = n_experts > 0 && name.find("_exps") != std::string::npos;
        n_bytes += is_of_experts ? ggml_nbytes(tensor) / n_experts * n_used : ggml_nbytes(tensor);
    }
    return n_bytes;
}

}  // namespace

std::vector<PoolDevice> pool_devices(const Model& model, std::int32_t n_lanes, DraftMemory* draft) {
    Devices devices;
    for (const auto& [type, taken] : llama_get_memory_breakdown(model.context())) {
        PoolDevice& device = devices[device_of(type)];
        device.weights += taken.model;
        device.mapped += is_mapped(type) ? taken.model : 0;
        device.caches += taken.context;
        device.compute += taken.compute;
    }
    add_growth(model, n_lanes, devices);
    if (draft != nullptr) {
        const llama_context* context = draft->owner().context();
        const bool has_weights = llama_get_model(context) != model.model();
        for (const auto& [type, taken] : llama_get_memory_breakdown(context)) {
            PoolDevice& device = devices[device_of(type)];
            device.drafts += taken.compute + (draft->has_cells() ? taken.context : 0) + (has_weights ? taken.model : 0);
            device.mapped += has_weights && is_mapped(type) ? taken.model : 0;
        }
        if (draft->has_cells()) add_growth(draft->owner(), n_lanes, devices);
    }
    std::vector<PoolDevice> all;
    for (auto& [key, device] : devices) {
        describe(key, device);
        all.push_back(std::move(device));
    }
    return all;
}

std::uint64_t weights_read_a_token(const Model& model, DraftMemory* draft) {
    const llama_model* of_draft = draft != nullptr ? llama_get_model(draft->owner().context()) : model.model();
    return read_a_token(*model.model()) + (of_draft != model.model() ? read_a_token(*of_draft) : 0);
}

}  // namespace luce::llama
