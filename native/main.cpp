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
#include "daemon/options.h"
#include "daemon/output.h"
#include "daemon/request_builder.h"
#include "daemon/startup.h"
#include "engine/engine.h"
#include "llama/backend.h"
#include "llama/llama_decoder.h"
#include "llama/llama_sampler.h"
#include "llama/load_guard.h"
#include "llama/model.h"
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
constexpr int kPageSize = 64;

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

luce::wire::ReadyLine ready_line(const ModelInfo& info, const Options& options) {
    luce::wire::ReadyLine line;
    const auto add = [&line](const char* key, std::string value) { line.fields.emplace_back(key, std::move(value)); };
    add("proto", std::to_string(kProtocolVersion));
    add("model", info.file_name);
    add("identity", info.identity);
    add("arch", info.architecture);
    add("vocab", std::to_string(info.n_vocab));
    add("ctx", std::to_string(info.n_ctx));
    add("pool", std::to_string(info.n_pool));
    add("page", std::to_string(kPageSize));
    add("kv", info.cache_type_k + "/" + info.cache_type_v);
    add("lanes", std::to_string(options.n_lanes));
    add("slots", "0");
    add("host", "0");
    add("disk", "0");
    add("spec", "none");
    add("pid", std::to_string(::getpid()));
    return line;
}

luce::daemon::StatusFields describe(const ModelInfo& info, const Options& options, double uptime_s) {
    return {{"lanes", std::to_string(options.n_lanes)},
            {"pool", std::to_string(info.n_pool)},
            {"ctx", std::to_string(info.n_ctx)},
            {"slots_used", "0"},
            {"pages_resident", "0"},
            {"pages_host", "0"},
            {"pages_disk", "0"},
            {"uptime_s", std::to_string(std::llround(uptime_s))}};
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

int serve(const Options& options, const luce::llama::Model& model, int reply_fd) {
    const ModelInfo& info = model.info();
    const luce::SteadyClock clock;
    const double started_s = clock.now_s();
    luce::llama::LlamaDecoder decoder(model, options.n_lanes);
    luce::llama::LlamaSamplerFactory samplers(model, decoder);
    luce::engine::Engine engine(decoder, samplers, clock, {info.n_ctx, options.n_lanes, options.n_queue});
    luce::daemon::Output output(reply_fd, options.stream_fd,
                                options.multiplexed ? luce::wire::Dialect::multiplexed : luce::wire::Dialect::plain);
    luce::daemon::RequestBuilder requests(info.n_ctx, options.seed);
    luce::daemon::Dispatcher dispatcher(engine, output, clock, requests, static_cast<std::size_t>(options.n_queue) + 1,
                                        [&] { return describe(info, options, clock.now_s() - started_s); });
    luce::daemon::EventLoop loop(STDIN_FILENO, engine, dispatcher, output);
    output.send_reply(ready_line(info, options));
    return loop.run();
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
    const Result<luce::llama::Model> model = load_model(options, backend, replies.get());
    if (!model) return refuse_to_start(replies.get(), model.error(), exit_status_of(model.error()));
    luce::llama::Backend::on_abort(on_fatal_abort);
    return serve(options, model.value(), replies.get());
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
