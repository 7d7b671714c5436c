// luced's composition root: options -> parts -> loop. The only file that knows every folder.

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/dispatcher.h"
#include "daemon/event_loop.h"
#include "daemon/host_memory.h"
#include "daemon/options.h"
#include "daemon/output.h"
#include "daemon/request_builder.h"
#include "daemon/slot_commands.h"
#include "daemon/startup.h"
#include "engine/engine.h"
#include "llama/backend.h"
#include "llama/kv_device.h"
#include "llama/llama_decoder.h"
#include "llama/llama_sampler.h"
#include "llama/load_guard.h"
#include "llama/model.h"
#include "memory/disk_store.h"
#include "memory/io_worker.h"
#include "memory/text_memory.h"
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
using luce::llama::ModelInfo;

constexpr int kBadArguments = 64;
constexpr int kStartFailed = 2;
constexpr int kProtocolVersion = 2;
constexpr std::size_t kMaxQueuedFileBytes = std::size_t{1} << 30;  // rows that wait for the disk

int refuse_to_start(int reply_fd, const Error& error, int status) {
    luce::log_error(error.text);
    luce::daemon::write_line(
        reply_fd, luce::wire::format_reply(luce::wire::Err{std::nullopt, {luce::ErrorCode::start_failed, error.text}}));
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
    model.n_pool = options.n_pool;
    model.n_lanes = options.n_lanes;
    model.n_ubatch = options.n_ubatch;
    model.n_batch = options.n_batch.value_or(options.n_ubatch);
    model.n_threads = options.n_threads;
    model.n_gpu_layers = options.n_gpu_layers;
    model.cache_type_k = options.cache_type_k;
    model.cache_type_v = options.cache_type_v;
    model.flash_attention = to_llama(options.flash_attention);
    return model;
}

luce::wire::ReadyLine ready_line(const ModelInfo& info, const Options& options, const luce::memory::TextMemory& memory,
                                 std::uint64_t host_bytes) {
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
    add("spec", "none");
    add("pid", std::to_string(::getpid()));
    return line;
}

luce::daemon::StatusFields describe(const ModelInfo& info, const Options& options,
                                    const luce::memory::TextMemory& memory, const luce::memory::DiskStore* disk,
                                    double uptime_s) {
    const luce::memory::MemoryStatus status = memory.status();
    const luce::memory::DiskStats on_disk = disk != nullptr ? disk->stats() : luce::memory::DiskStats{};
    const auto n = [](auto number) { return std::to_string(number); };
    return {{"lanes", n(options.n_lanes)},
            {"pool", n(info.n_pool)},
            {"ctx", n(info.n_ctx)},
            {"slots_used", n(status.n_slots_used)},
            {"pages_resident", n(status.cache.n_resident)},
            {"pages_host", n(status.cache.n_host)},
            {"tails_host", n(status.cache.n_host_tails)},
            {"host_bytes", n(status.cache.host_bytes)},
            {"pinned_bytes", n(status.cache.pinned_bytes)},
            {"pages_evicted", n(status.cache.n_evicted)},
            {"pages_dropped", n(status.cache.n_dropped)},
            {"disk_files", n(on_disk.n_files)},
            {"disk_bytes", n(on_disk.n_bytes)},
            {"disk_written", n(on_disk.n_written_files)},
            {"disk_read", n(on_disk.n_read_files)},
            {"disk_corrupt", n(on_disk.n_corrupt_files)},
            {"disk_trouble", disk != nullptr && !disk->write_trouble().empty() ? disk->write_trouble() : "none"},
            {"uptime_s", n(std::llround(uptime_s))}};
}

void print_version() {
    std::printf("luced %s\nllama.cpp %s\nbuild %s\n", LUCE_VERSION, LUCE_LLAMA_BUILD, LUCE_BUILD_DESCRIPTION);
    const luce::llama::Backend backend;
    std::printf("system %s\n", backend.system_info().c_str());
    for (const luce::llama::DeviceInfo& device : backend.devices()) {
        std::printf("device kind=%s name=%s total_bytes=%zu free_bytes=%zu %s\n", device.kind.c_str(),
                    device.name.c_str(), device.total_bytes, device.free_bytes, device.description.c_str());
    }
}

// libllama and ggml abort on what they think impossible: say why and end with the status that callers know.
void on_fatal_abort(const char* message) {
    luce::log_error(std::string("fatal error of the engine: ") + message);
    ::_exit(luce::daemon::EventLoop::kEngineFailure);
}

Result<luce::llama::Model> load_model(const Options& options, const luce::llama::Backend& backend, int reply_fd) {
    luce::llama::LoadGuardOptions guard_options;
    guard_options.seconds = options.load_timeout_s;
    guard_options.reply_fd = reply_fd;
    guard_options.exit_status = kStartFailed;
    luce::llama::LoadGuard guard(guard_options);
    const auto on_progress = [&guard, reply_fd] {
        guard.progress();
        if (!luce::daemon::is_stop_pending()) return;
        ::_exit(refuse_to_start(reply_fd, {luce::ErrorCode::start_failed, "told to stop while loading"}, kStartFailed));
    };
    return luce::llama::Model::load(to_model_options(options), backend.has_gpu(), on_progress);
}

// The disk cache, if one was asked for and the model's memory can be cut into pages.
Result<std::unique_ptr<luce::memory::DiskStore>> open_disk(const Options& options, const ModelInfo& info,
                                                           const luce::memory::DeviceTraits& traits,
                                                           luce::memory::IoWorker& files, const luce::Clock& clock) {
    if (!options.disk_cache || traits.refusal) return std::unique_ptr<luce::memory::DiskStore>();
    luce::memory::DiskOptions disk;
    disk.directory = *options.disk_cache;
    disk.budget_bytes = options.disk_budget_bytes;
    disk.identity = info.identity;
    disk.limits = {traits.row_bytes, traits.max_state_bytes(), info.n_vocab};
    return luce::memory::DiskStore::open(std::move(disk), files, clock);
}

int serve(const Options& options, luce::llama::Model& model, const luce::llama::Backend& backend, int reply_fd) {
    const ModelInfo info = model.info();
    const luce::SteadyClock clock;
    const double started_s = clock.now_s();
    luce::llama::LlamaDecoder decoder(model, options.n_lanes);
    luce::llama::LlamaKvDevice device(model, options.n_lanes);
    if (device.traits().refusal) luce::log_warn("texts are not kept: " + *device.traits().refusal);

    const auto files = luce::memory::IoWorker::start(kMaxQueuedFileBytes);
    if (!files) return refuse_to_start(reply_fd, files.error(), kStartFailed);
    const auto disk = open_disk(options, info, device.traits(), *files.value(), clock);
    if (!disk) return refuse_to_start(reply_fd, disk.error(), kStartFailed);
    luce::memory::MemoryConfig config;
    config.identity = info.identity;
    config.host_budget = options.host_cache_bytes.value_or(luce::daemon::default_host_cache_bytes());
    config.n_slots = options.n_slots;
    config.n_vocab = info.n_vocab;
    config.reuses = options.reuses_prefixes;
    luce::memory::TextMemory memory(device, disk.value().get(), config, clock);

    luce::llama::LlamaSamplerFactory samplers(model, decoder);
    luce::engine::Engine engine(decoder, samplers, memory, clock, {info.n_ctx, options.n_lanes, options.n_queue});
    luce::daemon::Output output(reply_fd, options.stream_fd,
                                options.multiplexed ? luce::wire::Dialect::multiplexed : luce::wire::Dialect::plain);
    luce::daemon::RequestBuilder requests(info.n_ctx, options.seed);
    const luce::daemon::Parking parking = {
        [&]() -> Result<void> {
            device.unbind();
            model.unload();
            return {};
        },
        [&]() -> Result<void> {
            Result<luce::llama::Model> loaded = load_model(options, backend, reply_fd);
            if (!loaded) return loaded.error();
            if (loaded.value().info().identity != info.identity) {
                return Error{luce::ErrorCode::start_failed, "the model's file has changed since the model was parked"};
            }
            model = std::move(loaded).value();
            device.rebind();
            return {};
        }};
    luce::daemon::SlotCommands slots(engine, memory, *files.value(), info.identity, parking);
    luce::daemon::Dispatcher dispatcher(
        engine, slots, output, clock, requests, static_cast<std::size_t>(options.n_queue) + 1,
        [&] { return describe(info, options, memory, disk.value().get(), clock.now_s() - started_s); });
    luce::daemon::EventLoop loop(STDIN_FILENO, engine, dispatcher, output, *files.value());
    output.send_reply(ready_line(info, options, memory, config.host_budget));
    return loop.run();
}

int run(int argc, char** argv) {
    if (!luce::daemon::fill_standard_fds()) {
        return refuse_to_start(STDERR_FILENO, {luce::ErrorCode::io_error, "stdout is closed"}, kBadArguments);
    }
    luce::daemon::keep_stderr_from_blocking();
    const Result<Options> parsed = luce::daemon::parse_options({argv + 1, argv + argc});
    if (!parsed) return refuse_to_start(STDOUT_FILENO, parsed.error(), kBadArguments);
    const Options& options = parsed.value();
    luce::set_log_level(options.log_level);
    if (options.wants_help) {
        std::fputs(luce::daemon::help_text().c_str(), stdout);
        return 0;
    }
    if (options.wants_version) {
        print_version();
        return 0;
    }
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
