// luced's composition root: options -> parts -> loop. The only file that knows every folder.

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/commands/dispatcher.h"
#include "daemon/commands/memory_fields.h"
#include "daemon/commands/request_builder.h"
#include "daemon/commands/slot_commands.h"
#include "daemon/loop/event_loop.h"
#include "daemon/loop/output.h"
#include "daemon/setup/draft_widths.h"
#include "daemon/setup/host_memory.h"
#include "daemon/setup/options.h"
#include "daemon/setup/residency_setup.h"
#include "daemon/setup/startup.h"
#include "engine/engine.h"
#include "engine/rehearsal.h"
#include "engine/speculator.h"
#include "llama/decoding/llama_decoder.h"
#include "llama/device_copy/pinned_memory.h"
#include "llama/drafting/draft_sources.h"
#include "llama/kv_cache/combined_kv_device.h"
#include "llama/kv_cache/device_memory.h"
#include "llama/kv_cache/kv_device.h"
#include "llama/kv_cache/pool_memory.h"
#include "llama/model/backend.h"
#include "llama/model/load_guard.h"
#include "llama/model/model.h"
#include "llama/model/model_identity.h"
#include "llama/sampling/llama_sampler.h"
#include "llama/scoring/layer_choice.h"
#include "llama/scoring/page_scoring.h"
#include "memory/manager/kv_cache_manager.h"
#include "memory/residency/pool_size.h"
#include "memory/tiers/disk_store.h"
#include "memory/tiers/io_worker.h"
#include "speculation/ngram_lookup.h"
#include "wire/reply.h"

#ifndef LUCE_VERSION
#error "the build defines LUCE_VERSION"
#endif

namespace {

using luce::Error;
using luce::Result;
using luce::daemon::FlashAttentionChoice;
using luce::daemon::Options;
using luce::llama::FlashAttention;
using luce::llama::LayerChoice;
using luce::llama::ModelInfo;

constexpr int kOutputFailed = 1;
constexpr int kBadArguments = 64;
constexpr int kStartFailed = 2;
constexpr int kProtocolVersion = 2;
constexpr std::size_t kMaxQueuedFileBytes = std::size_t{1} << 30;  // rows that wait for the disk
constexpr std::uint64_t kPinnedPart = 4;  // of the free memory, for pages that a device fetches: lost to all others

// For recurrent states that a rollback may need: with a draft model more, since it is asked for speed.
constexpr auto kRollback = std::uint64_t{256} << 20, kDraftRollback = std::uint64_t{2} << 30;

int refuse_to_start(int reply_fd, const Error& error, int status) {
    luce::log_error(error.text);
    const luce::wire::Err reply{std::nullopt, {luce::ErrorCode::start_failed, error.text}};
    // Who cannot be told sees the status and the log.
    (void)luce::daemon::write_text(reply_fd, luce::wire::format_reply(reply));
    return status;
}

int exit_status_of(const Error& error) {
    return error.code == luce::ErrorCode::bad_args ? kBadArguments : kStartFailed;
}

FlashAttention to_llama(FlashAttentionChoice choice) {
    switch (choice) {
        case FlashAttentionChoice::on: return FlashAttention::on;
        case FlashAttentionChoice::off: return FlashAttention::off;
        case FlashAttentionChoice::automatic: break;
    }
    return FlashAttention::automatic;
}

luce::llama::ModelOptions to_model_options(const Options& options) {
    luce::llama::ModelOptions model;
    model.path = options.model;
    model.n_ctx = options.n_ctx;
    model.n_pool = options.n_kvflash ? options.n_kvflash : options.n_pool;
    model.outgrows_pool = options.n_kvflash.has_value();
    model.host_bytes = luce::daemon::available_bytes();
    model.n_lanes = options.n_lanes;
    model.n_ubatch = options.n_ubatch;
    model.n_batch = options.n_batch.value_or(options.n_ubatch);
    model.n_threads = options.n_threads;
    model.n_gpu_layers = options.n_gpu_layers;
    model.cache_type_k = options.cache_type_k;
    model.cache_type_v = options.cache_type_v;
    model.flash_attention = to_llama(options.flash_attention);
    model.n_draft_most = n_draft_most(options);
    model.n_tree = n_draft_tree(options);
    model.loads_heads = options.mtp && !options.draft;
    model.rollback_bytes =
        options.spec_memory_bytes.value_or(options.draft || options.mtp ? kDraftRollback : kRollback);
    return model;
}

luce::llama::DraftModelOptions to_draft_options(const Options& options, const ModelInfo& info) {
    luce::llama::DraftModelOptions draft;
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

luce::daemon::StatusFields layer_fields(const std::optional<LayerChoice>& layer) {
    if (!layer) return {};
    std::string layers;
    for (const std::int32_t id : layer->layers) layers += (layers.empty() ? "" : ",") + std::to_string(id);
    return {{"kvflash_layer", std::to_string(layer->layer)}, {"kvflash_layers", layers}};
}

luce::wire::ReadyLine ready_line(const ModelInfo& info, const Options& options,
                                 const luce::memory::KvCacheManager& memory, std::uint64_t host_bytes,
                                 const luce::engine::Speculator* speculator, const std::optional<LayerChoice>& layer) {
    const bool has_pages = !memory.refusal();
    const luce::memory::MemoryStatus status = memory.status();
    luce::wire::ReadyLine line;
    const auto add = [&line](const char* key, std::string value) { line.fields.emplace_back(key, std::move(value)); };
    add("proto", std::to_string(kProtocolVersion));
    add("model", info.file_name);
    add("identity", info.identity);
    add("arch", info.architecture);
    add("vocab", std::to_string(info.n_vocab));
    add("ctx", std::to_string(info.n_ctx));
    add("pool", std::to_string(info.n_pool));
    const bool is_bounded = options.n_kvflash && has_pages;
    add("kvflash", is_bounded ? std::to_string(*options.n_kvflash) : "off");
    if (is_bounded) add("kvflash_least", std::to_string(n_least_pool(options)));
    for (auto& [key, value] : layer_fields(layer)) add(key.c_str(), value);
    add("page", std::to_string(luce::memory::kPageSize));
    add("kv", info.cache_type_k + "/" + info.cache_type_v);
    add("lanes", std::to_string(options.n_lanes));
    add("slots", std::to_string(has_pages ? options.n_slots : 0));
    add("host", std::to_string(has_pages ? host_bytes : 0));
    add("disk", std::to_string(has_pages && options.disk_cache ? options.disk_budget_bytes : 0));
    if (has_pages) {
        add("page_bytes", std::to_string(status.page_bytes));
        add("tail_bytes", std::to_string(status.tail_bytes));
        add("prefix_cache", options.reuses_prefixes ? "on" : "off");
    }
    add("spec", speculator == nullptr ? "none" : speculator->description());
    add("pid", std::to_string(::getpid()));
    return line;
}

luce::daemon::StatusFields describe(const ModelInfo& info, const Options& options,
                                    const luce::memory::KvCacheManager& memory, const luce::memory::DiskStore* disk,
                                    const luce::llama::PageScoring& scoring, double uptime_s) {
    luce::daemon::StatusFields fields = {{"lanes", std::to_string(options.n_lanes)},
                                         {"pool", std::to_string(info.n_pool)},
                                         {"ctx", std::to_string(info.n_ctx)},
                                         {"uptime_s", std::to_string(std::llround(uptime_s))}};
    for (auto& field : layer_fields(scoring.layer())) fields.push_back(std::move(field));
    const luce::llama::ScorerUsage scorer = scoring.usage();
    const luce::daemon::ScorerBytes of_scorer = {scorer.keys, scorer.weights + scorer.cells};
    const luce::daemon::StatusFields of_memory = luce::daemon::describe_memory(memory.status(), disk, of_scorer);
    fields.insert(fields.end(), of_memory.begin(), of_memory.end());
    return fields;
}

std::string version_text() {
    return "luced " LUCE_VERSION "\nllama.cpp " LUCE_LLAMA_BUILD "\nbuild " LUCE_BUILD_DESCRIPTION "\n" +
           luce::llama::Backend().description();
}

// All that was asked for is this text: a program that takes a status of 0 for it must have got it.
int print(std::string_view text) {
    const Result<void> printed = luce::daemon::write_text(STDOUT_FILENO, text);
    if (printed) return 0;
    luce::log_error(printed.error().text);
    return kOutputFailed;
}

// libllama and ggml abort on what they think impossible: say why and end with the status that callers know.
void on_fatal_abort(const char* message) {
    luce::log_error(std::string("fatal error of the engine: ") + message);
    ::_exit(luce::daemon::EventLoop::kEngineFailure);
}

// `file`: what is loaded. Kept, for a line that is written when nothing may be allocated any more.
luce::llama::LoadGuardOptions to_guard_options(const Options& options, const std::string& file, int reply_fd) {
    static std::string prefix;
    prefix = "err start_failed " + file + ": ";
    luce::llama::LoadGuardOptions guard;
    guard.prefix = prefix;
    guard.seconds = options.load_timeout_s;
    guard.reply_fd = reply_fd;
    guard.exit_status = kStartFailed;
    return guard;
}

Result<luce::llama::Model> load_model(const Options& options, const luce::llama::Backend& backend, int reply_fd) {
    luce::llama::LoadGuard guard(to_guard_options(options, options.model, reply_fd));
    const auto on_progress = [&guard, reply_fd] {
        guard.progress();
        if (!luce::daemon::is_stop_pending()) return;
        ::_exit(refuse_to_start(reply_fd, {luce::ErrorCode::start_failed, "told to stop while loading"}, kStartFailed));
    };
    return luce::llama::Model::load(to_model_options(options), backend.has_gpu(), on_progress);
}

// The disk cache, if one was asked for and the model's memory can be cut into pages.
Result<std::unique_ptr<luce::memory::DiskStore>> open_disk(const Options& options, const ModelInfo& info,
                                                           luce::memory::KvDevice& device,
                                                           luce::memory::IoWorker& files, const luce::Clock& clock) {
    const luce::memory::DeviceTraits& traits = device.traits();
    if (!options.disk_cache || traits.refusal) return std::unique_ptr<luce::memory::DiskStore>();
    luce::memory::DiskOptions disk;
    disk.directory = *options.disk_cache;
    disk.budget_bytes = options.disk_budget_bytes;
    disk.identity = info.identity;
    disk.limits = {traits.row_bytes, traits.max_state_bytes(), info.n_vocab};
    disk.settle = [&device] { device.settle(); };
    return luce::memory::DiskStore::open(std::move(disk), files, clock);
}

// Who drafts, cheapest first, and what the draft model remembers: null without one.
struct Drafting {
    std::unique_ptr<luce::engine::Speculator> speculator;  // null: each token is decoded alone
    luce::llama::DraftMemory* memory = nullptr;            // the speculator's
};

// Why drafts are chains although trees were asked for.
std::optional<std::string> why_chains(const Options& options, const ModelInfo& info,
                                      const luce::engine::DecoderLimits& limits,
                                      const luce::engine::SpeculationConfig& config) {
    if (options.draft_tree.value_or(0) == 0) return std::nullopt;
    if (info.tree_refusal) return "this model (" + info.architecture + ") takes no branches: " + *info.tree_refusal;
    bool can_branch = false;
    std::string names;
    for (const auto& source : config.sources) {
        can_branch = can_branch || source->traits().can_branch;
        names += (names.empty() ? "" : "+") + source->traits().name;
    }
    if (!can_branch) return "what drafts (" + names + ") names one token a place; DFlash drafts name several";
    if (limits.n_branches == 0) return "a tree of one token has no branches, or no sequences are left for them";
    return std::nullopt;
}

Result<Drafting> open_drafting(const Options& options, const luce::llama::Model& model, luce::engine::Decoder& decoder,
                               const luce::Clock& clock, int reply_fd) {
    luce::engine::SpeculationConfig config;
    config.n_most = n_draft_most(options);
    config.has_gate = options.draft_gate;
    config.wants_equal_widths = model.info().has_recurrent;
    Drafting drafting;
    if (config.n_most == 0) {
        if (options.draft || options.mtp) luce::log_warn("--draft-max 0: nothing is drafted, and no draft is loaded");
        return drafting;
    }
    if (options.draft_ngram) {
        config.sources.push_back(std::make_unique<luce::speculation::NgramLookup>(config.n_most));
    }
    if (options.draft || options.mtp) {
        const luce::llama::LoadGuard guard(to_guard_options(options, options.draft.value_or(options.model), reply_fd));
        Result<luce::llama::OpenedDraft> opened =
            luce::llama::open_draft_model(to_draft_options(options, model.info()), model);
        if (!opened) return opened.error();
        drafting.memory = opened.value().memory;
        config.sources.push_back(std::move(opened.value().source));
    }
    if (const auto reason = why_chains(options, model.info(), decoder.limits(), config)) {
        luce::log_warn("--draft-tree: drafts are chains: " + *reason);
    } else {
        config.n_tree = model.info().n_tree;
        config.n_branches = decoder.limits().n_branches;
    }
    drafting.speculator = std::make_unique<luce::engine::Speculator>(std::move(config), options.n_lanes, clock);
    if (options.draft_gate) luce::engine::rehearse(decoder, *drafting.speculator, options.n_lanes, clock);
    return drafting;
}

// `--kvflash auto`: a context with the pool that the devices have room for, measured with the smallest one and the
// draft in place. The draft goes again: its cells are as many as the pool's.
Result<void> size_pool(Options& options, luce::llama::Model& model, int reply_fd) {
    const luce::memory::DeviceTraits traits = luce::llama::LlamaKvDevice(model, options.n_lanes).traits();
    if (traits.refusal || traits.row_bytes == 0) return {};  // refused where the memory is set up
    luce::llama::OpenedDraft draft;
    if ((options.draft || options.mtp) && n_draft_most(options) > 0) {
        const luce::llama::LoadGuard guard(to_guard_options(options, options.draft.value_or(options.model), reply_fd));
        auto opened = luce::llama::open_draft_model(to_draft_options(options, model.info()), model);
        if (!opened) return opened.error();
        draft = std::move(opened).value();
    }
    const Result<std::int32_t> chosen = luce::daemon::size_pool(
        options, model.info().n_ctx, luce::llama::pool_devices(model, options.n_lanes, draft.memory),
        luce::llama::weights_read_a_token(model, draft.memory));
    if (!chosen) return chosen.error();
    draft = {};
    const std::int32_t n_least = *options.n_kvflash;
    options.n_kvflash = chosen.value();
    for (;;) {
        Result<void> resized = model.resize_pool(*options.n_kvflash);
        if (resized || *options.n_kvflash == n_least) return resized;
        luce::log_warn("--kvflash auto: a smaller pool is tried: " + resized.error().text);
        options.n_kvflash = luce::memory::smaller_pool(*options.n_kvflash, n_least);
    }
}

// Null: the newest pages stay.
Result<luce::llama::PageScoring> open_scoring(const Options& options, const luce::llama::Model& model, int reply_fd) {
    using luce::daemon::KvflashPolicy;
    using luce::llama::ScoringPolicy;
    if (!options.n_kvflash || options.kvflash_policy == KvflashPolicy::lru) return luce::llama::PageScoring();
    luce::llama::ScoringOptions scoring;
    scoring.n_lanes = options.n_lanes;
    scoring.layer = options.kvflash_layer;
    if (options.kvflash_policy == KvflashPolicy::query) scoring.policy = ScoringPolicy::query;
    if (options.kvflash_policy == KvflashPolicy::draft) scoring.policy = ScoringPolicy::draft;
    if (options.kvflash_scorer) {
        scoring.scorer =
            luce::llama::ScorerOptions{.path = *options.kvflash_scorer,
                                       .n_lanes = options.n_lanes,
                                       .n_ctx = model.info().n_ctx,
                                       .n_threads = options.n_draft_threads.value_or(model.info().n_threads),
                                       .n_gpu_layers = options.n_draft_gpu_layers,
                                       .cache_type = options.kvflash_scorer_cache_type,
                                       .layer = std::nullopt};
    }
    const luce::llama::LoadGuard guard(
        to_guard_options(options, options.kvflash_scorer.value_or(options.model), reply_fd));
    return luce::llama::PageScoring::open(scoring, model);
}

// Where a device fetches pages by itself. Null: it has no use for that.
std::unique_ptr<luce::llama::PinnedMemory> pin_pages(ggml_backend_dev_t device,
                                                     const luce::memory::DeviceTraits& traits,
                                                     std::size_t host_budget) {
    const std::size_t page_bytes = luce::memory::kPageSize * traits.row_bytes;
    const std::size_t limit = std::min(host_budget, luce::daemon::available_bytes() / kPinnedPart);
    return luce::llama::PinnedMemory::create(device, page_bytes, limit);
}

int serve(const Options& options, luce::llama::Model& model, const luce::llama::Backend& backend, int reply_fd) {
    ModelInfo info = model.info();
    const std::string model_identity = info.identity;
    const luce::SteadyClock clock;
    const double started_s = clock.now_s();
    std::unique_ptr<luce::llama::PinnedMemory> pinned;  // outlives whatever holds rows
    luce::llama::LlamaDecoder decoder(model, options.n_lanes);
    luce::llama::LlamaKvDevice target_device(model, options.n_lanes);
    if (const auto& refusal = target_device.traits().refusal) luce::log_warn("texts are not kept: " + *refusal);
    Result<Drafting> opened = open_drafting(options, model, decoder, clock, reply_fd);
    if (!opened) return refuse_to_start(reply_fd, opened.error(), exit_status_of(opened.error()));
    const Drafting drafting = std::move(opened).value();
    std::optional<luce::llama::CombinedKvDevice> joint_device;
    if (drafting.memory != nullptr && drafting.memory->has_cells() && !target_device.traits().refusal) {
        joint_device.emplace(target_device, *drafting.memory);
        info.identity = luce::llama::joint_identity(model_identity, drafting.memory->identity());
    }
    // What was computed without seeing all of a text is not what others may go on from.
    if (options.n_kvflash) info.identity = luce::llama::joint_identity(info.identity, "bounded residency");
    luce::memory::KvDevice& device = joint_device ? static_cast<luce::memory::KvDevice&>(*joint_device) : target_device;

    const auto files = luce::memory::IoWorker::start(kMaxQueuedFileBytes);
    if (!files) return refuse_to_start(reply_fd, files.error(), kStartFailed);
    const auto disk = open_disk(options, info, device, *files.value(), clock);
    if (!disk) return refuse_to_start(reply_fd, disk.error(), kStartFailed);
    luce::memory::MemoryConfig config;
    config.identity = info.identity;
    config.host_budget = options.host_cache_bytes.value_or(luce::daemon::default_host_cache_bytes());
    config.n_slots = options.n_slots;
    config.n_vocab = info.n_vocab;
    config.reuses = options.reuses_prefixes;
    if (const auto bounded = luce::daemon::bound_residency(options, info.n_ctx, device.traits(), config); !bounded) {
        return refuse_to_start(reply_fd, bounded.error(), exit_status_of(bounded.error()));
    }
    pinned = pin_pages(target_device.device(), device.traits(), config.host_budget);
    Result<luce::llama::PageScoring> scoring = open_scoring(options, model, reply_fd);
    if (!scoring) return refuse_to_start(reply_fd, scoring.error(), exit_status_of(scoring.error()));
    decoder.note_queries(scoring.value().probe());
    if (config.residency) config.residency->scorer = scoring.value().scorer();
    luce::memory::KvCacheManager memory(device, disk.value().get(), config, clock);

    luce::llama::LlamaSamplerFactory samplers(model, decoder);
    luce::llama::DeviceMemory tenants(model, decoder, target_device, drafting.memory,
                                      joint_device ? &*joint_device : nullptr, scoring.value(),
                                      luce::daemon::least_pool(options));
    luce::engine::EngineConfig lanes = {info.n_ctx, options.n_lanes, options.n_queue};
    const auto can_shrink = [&] { return tenants.can_shrink(on_fatal_abort); };
    lanes.pool_relief = {can_shrink, [&] { return tenants.shrink(); }, [&] { return tenants.take_shortage(); }};
    luce::engine::Engine engine(decoder, samplers, memory, clock, lanes, drafting.speculator.get());
    luce::daemon::Output output(reply_fd, options.stream_fd,
                                options.multiplexed ? luce::wire::Dialect::multiplexed : luce::wire::Dialect::plain);
    luce::daemon::RequestBuilder requests(info.n_ctx, options.seed);
    const auto load_again = [&](std::int32_t n_pool) -> Result<luce::llama::Model> {
        Options again = options;
        if (again.n_kvflash) again.n_kvflash = n_pool;
        Result<luce::llama::Model> loaded = load_model(again, backend, reply_fd);
        if (!loaded || loaded.value().info().identity == model_identity) return loaded;
        return Error{luce::ErrorCode::start_failed, "the model's file has changed since the model was parked"};
    };
    const auto take_back = [&] {
        Result<void> back = tenants.reload(load_again);
        if (back && memory.note_pool()) output.send_reply(luce::wire::PoolSize{model.info().n_pool});
        return back;
    };
    const luce::daemon::Parking parking = {[&] { tenants.unload(); }, take_back, drafting.memory != nullptr};
    luce::daemon::SlotCommands slots(engine, memory, *files.value(), info.identity, parking);
    luce::daemon::Dispatcher dispatcher(
        engine, slots, output, clock, requests, static_cast<std::size_t>(options.n_queue) + 1, [&] {
            info.n_pool = model.info().n_pool;
            return describe(info, options, memory, disk.value().get(), scoring.value(), clock.now_s() - started_s);
        });
    luce::daemon::EventLoop loop(STDIN_FILENO, engine, dispatcher, output, *files.value());
    output.send_reply(
        ready_line(info, options, memory, config.host_budget, drafting.speculator.get(), scoring.value().layer()));
    return loop.run();
}

int run(int argc, char** argv) {
    if (!luce::daemon::fill_standard_fds()) {
        return refuse_to_start(STDERR_FILENO, {luce::ErrorCode::io_error, "stdout is closed"}, kBadArguments);
    }
    luce::daemon::keep_stderr_from_blocking();
    const Result<Options> parsed = luce::daemon::parse_options({argv + 1, argv + argc});
    if (!parsed) return refuse_to_start(STDOUT_FILENO, parsed.error(), kBadArguments);
    Options options = parsed.value();
    luce::set_log_level(options.log_level);
    if (options.wants_help) return print(luce::daemon::help_text());
    if (options.wants_version) return print(version_text());
    luce::daemon::block_stop_signals();
    if (options.dies_with_parent) {
        if (const auto set = luce::daemon::die_with_parent(); !set) {
            return refuse_to_start(STDOUT_FILENO, set.error(), kStartFailed);
        }
    }
    if (options.stream_fd) {
        if (const auto checked = luce::daemon::check_is_writable(*options.stream_fd); !checked) {
            return refuse_to_start(STDOUT_FILENO, checked.error(), kBadArguments);
        }
    }
    const luce::UniqueFd replies = luce::daemon::take_over_stdout();
    const luce::llama::Backend backend;
    Result<luce::llama::Model> model = load_model(options, backend, replies.get());
    if (!model) return refuse_to_start(replies.get(), model.error(), exit_status_of(model.error()));
    if (options.sizes_kvflash) {
        const auto sized = size_pool(options, model.value(), replies.get());
        if (!sized) return refuse_to_start(replies.get(), sized.error(), exit_status_of(sized.error()));
    }
    luce::llama::Backend::on_abort(on_fatal_abort);
    return serve(options, model.value(), backend, replies.get());
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception& e) {
        luce::log_error(std::string("fatal error: ") + e.what());
        return luce::daemon::EventLoop::kEngineFailure;
    }
}
