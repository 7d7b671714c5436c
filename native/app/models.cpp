#include "app/models.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "app/ending.h"
#include "base/log.h"
#include "daemon/loop/channels.h"
#include "daemon/setup/draft_widths.h"
#include "daemon/setup/host_memory.h"
#include "daemon/setup/residency_setup.h"
#include "daemon/setup/startup.h"
#include "llama/drafting/draft_context.h"
#include "llama/kv_cache/kv_device.h"
#include "llama/kv_cache/pool_memory.h"
#include "memory/residency/pool_size.h"
#include "wire/reply.h"

namespace luce::app {

namespace {

using daemon::Options;
using llama::ModelInfo;

// For recurrent states that a rollback may need: with a draft model more, since it is asked for speed.
constexpr auto kRollback = std::uint64_t{256} << 20, kDraftRollback = std::uint64_t{2} << 30;

llama::SplitMode split_mode_of(daemon::SplitModeChoice choice) {
    switch (choice) {
        case daemon::SplitModeChoice::none: return llama::SplitMode::none;
        case daemon::SplitModeChoice::layer: return llama::SplitMode::layer;
        case daemon::SplitModeChoice::row: return llama::SplitMode::row;
        case daemon::SplitModeChoice::tensor: return llama::SplitMode::tensor;
    }
    return llama::SplitMode::layer;
}

std::optional<llama::RopeScaling> to_llama(std::optional<daemon::RopeScalingChoice> choice) {
    if (!choice) return std::nullopt;
    switch (*choice) {
        case daemon::RopeScalingChoice::none: return llama::RopeScaling::none;
        case daemon::RopeScalingChoice::linear: return llama::RopeScaling::linear;
        case daemon::RopeScalingChoice::yarn: return llama::RopeScaling::yarn;
    }
    return std::nullopt;
}

llama::RopeOptions to_rope(const Options& options) {
    llama::RopeOptions rope;
    rope.scaling = to_llama(options.rope_scaling);
    rope.freq_base = options.rope_freq_base;
    rope.freq_scale = options.rope_scale ? std::optional(1.0F / *options.rope_scale) : options.rope_freq_scale;
    if (options.yarn_orig_ctx) rope.yarn_orig_ctx = static_cast<std::uint32_t>(*options.yarn_orig_ctx);
    rope.yarn_ext_factor = options.yarn_ext_factor;
    rope.yarn_attn_factor = options.yarn_attn_factor;
    rope.yarn_beta_slow = options.yarn_beta_slow;
    rope.yarn_beta_fast = options.yarn_beta_fast;
    return rope;
}

llama::PlacementOptions to_placement(const Options& options) {
    llama::PlacementOptions placement;
    placement.devices = options.devices;
    placement.tensor_split = options.tensor_split;
    placement.tensor_overrides = options.tensor_overrides;
    placement.split_mode = split_mode_of(options.split_mode);
    placement.main_gpu = options.main_gpu;
    placement.keeps_experts = options.cpu_moe;
    placement.n_expert_layers = options.n_cpu_moe;
    placement.expert_cache_bytes = static_cast<std::size_t>(options.moe_cache_mib) << 20;
    placement.expert_memory_bytes = options.expert_memory_bytes;
    placement.expert_lendable_bytes = options.expert_lendable_bytes;
    placement.expert_profile = options.expert_profile;
    placement.expert_profiles = options.expert_profiles;
    placement.maps_file = !options.no_mmap;
    placement.locks_memory = options.mlock;
    return placement;
}

}  // namespace

llama::ModelOptions to_model_options(const Options& options) {
    llama::ModelOptions model;
    model.path = options.model;
    model.n_ctx = options.n_ctx;
    model.n_pool = options.n_kvflash ? options.n_kvflash : options.n_pool;
    model.outgrows_pool = options.n_kvflash.has_value();
    model.host_bytes = daemon::available_bytes();
    model.n_lanes = options.n_lanes;
    model.n_ubatch = options.ubatch();
    model.n_batch = options.n_batch.value_or(options.ubatch());
    model.may_widen =
        !options.n_ubatch && !options.n_batch && !options.n_kvflash && !wants_draft_model(options) && !options.mmproj;
    model.n_threads = options.n_threads;
    model.n_gpu_layers = options.n_gpu_layers;
    model.placement = to_placement(options);
    model.cache_type_k = options.cache_type_k;
    model.cache_type_v = options.cache_type_v;
    if (options.draft) model.captured_layers = llama::captured_layers(*options.draft);
    model.flash_attention = to_llama(options.flash_attention);
    model.rope = to_rope(options);
    model.kv_overrides = options.kv_overrides;
    model.n_draft_most = n_draft_most(options);
    model.n_tree = n_draft_tree(options);
    model.loads_heads = options.mtp && !options.draft;
    model.rollback_bytes =
        options.spec_memory_bytes.value_or(options.draft || options.mtp ? kDraftRollback : kRollback);
    return model;
}

namespace {

llama::DraftModelOptions to_draft_options(const Options& options, const ModelInfo& info) {
    llama::DraftModelOptions draft;
    draft.path = options.draft.value_or("");  // with --mtp the model's own heads
    draft.wants_heads = options.mtp;
    draft.n_lanes = options.n_lanes;
    draft.n_most = n_draft_most(options);
    draft.n_tree = info.n_tree;
    draft.n_threads = options.n_draft_threads.value_or(info.n_threads);
    draft.n_gpu_layers = options.n_draft_gpu_layers;
    draft.cache_type_k = options.draft_cache_type_k;
    draft.cache_type_v = options.draft_cache_type_v;
    return draft;
}

}  // namespace

llama::LoadGuardOptions to_guard_options(const Options& options, const std::string& file, int reply_fd) {
    static std::string prefix;
    prefix = "err start_failed " + file + ": ";
    llama::LoadGuardOptions guard;
    guard.prefix = prefix;
    guard.seconds = options.load_timeout_s;
    guard.reply_fd = reply_fd;
    guard.exit_status = kStartFailed;
    return guard;
}

llama::FlashAttention to_llama(daemon::FlashAttentionChoice choice) {
    switch (choice) {
        case daemon::FlashAttentionChoice::on: return llama::FlashAttention::on;
        case daemon::FlashAttentionChoice::off: return llama::FlashAttention::off;
        case daemon::FlashAttentionChoice::automatic: break;
    }
    return llama::FlashAttention::automatic;
}

void go_on_loading(llama::LoadGuard& guard, int reply_fd) {
    guard.progress();
    if (!daemon::is_stop_pending()) return;
    ::_exit(refuse_to_start(reply_fd, {ErrorCode::start_failed, "told to stop while loading"}, kStartFailed));
}

void tell_progress(int reply_fd, std::int32_t percent) {
    (void)daemon::write_text(reply_fd, wire::format_reply(wire::LoadProgress{percent}));
}

Result<llama::Model> load_model(const Options& options, const llama::Backend& backend, int reply_fd) {
    llama::LoadGuard guard(to_guard_options(options, options.model, reply_fd));
    const auto on_progress = [&guard, reply_fd] { go_on_loading(guard, reply_fd); };
    llama::ModelOptions model = to_model_options(options);
    // In the plain dialect the ready line is the first one, as programs expect that know no other.
    if (options.multiplexed) model.on_percent = [reply_fd](std::int32_t percent) { tell_progress(reply_fd, percent); };
    return llama::Model::load(model, backend.has_gpu(), on_progress);
}

bool wants_draft_model(const Options& options) { return (options.draft || options.mtp) && n_draft_most(options) > 0; }

Result<llama::OpenedDraft> load_draft(const Options& options, const llama::Model& model, int reply_fd) {
    const llama::LoadGuard guard(to_guard_options(options, options.draft.value_or(options.model), reply_fd));
    return llama::open_draft_model(to_draft_options(options, model.info()), model);
}

namespace {

// Tokens of the smallest pool that works for the model and the draft that is beside it.
std::int32_t least_pool(const Options& options, const llama::Model& model, llama::DraftMemory* draft) {
    std::int32_t n_window = llama::LlamaKvDevice(model, options.n_lanes).traits().n_window;
    if (draft != nullptr && draft->has_cells()) n_window = std::max(n_window, draft->device().traits().n_window);
    return static_cast<std::int32_t>(n_least_pool(options, n_window));
}

// The draft's cells go and come back, as many as the pool's.
Result<void> resize_pool(llama::Model& model, llama::DraftMemory* draft, std::int32_t n_pool) {
    if (draft != nullptr) draft->unload(/*keeps_weights*/ true);
    Result<void> resized = model.resize_pool(n_pool);
    if (resized && draft != nullptr) resized = draft->reload();
    return resized;
}

}  // namespace

// `--kv-offload auto`: a context with the pool that the devices have room for, measured with the smallest one and the
// draft in place.
Result<llama::OpenedDraft> size_pool(Options& options, llama::Model& model, int reply_fd) {
    const memory::DeviceTraits traits = llama::LlamaKvDevice(model, options.n_lanes).traits();
    llama::OpenedDraft draft;
    if (traits.refusal || traits.row_bytes == 0) return draft;  // refused where the memory is set up
    if (wants_draft_model(options)) {
        auto opened = load_draft(options, model, reply_fd);
        if (!opened) return opened.error();
        draft = std::move(opened).value();
    }
    const std::int32_t n_least = least_pool(options, model, draft.memory);
    if (n_least > model.info().n_pool) {
        if (Result<void> resized = resize_pool(model, draft.memory, n_least); !resized) return resized.error();
    }
    const Result<std::int32_t> chosen = daemon::size_pool(options, model.info().n_ctx, n_least,
                                                          llama::pool_devices(model, options.n_lanes, draft.memory),
                                                          llama::weights_read_a_token(model, draft.memory));
    if (!chosen) return chosen.error();
    options.n_kvflash = chosen.value();
    for (;;) {
        Result<void> resized = resize_pool(model, draft.memory, *options.n_kvflash);
        if (resized) return draft;
        if (*options.n_kvflash == n_least) return resized.error();
        log_warn("--kv-offload auto: a smaller pool is tried: " + resized.error().text);
        options.n_kvflash = memory::smaller_pool(*options.n_kvflash, n_least);
    }
}

}  // namespace luce::app
