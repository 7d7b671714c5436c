// luced's composition root: options -> parts -> loop. What each part is made of is decided in app/.

#include <sys/stat.h>
#include <unistd.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/drafting.h"
#include "app/embedding.h"
#include "app/ending.h"
#include "app/experts.h"
#include "app/fitting.h"
#include "app/images.h"
#include "app/models.h"
#include "app/scoring.h"
#include "app/status_lines.h"
#include "app/text_store.h"
#include "app/workers.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/step_profile.h"
#include "base/trace_file.h"
#include "daemon/commands/dispatcher.h"
#include "daemon/commands/image_commands.h"
#include "daemon/commands/request_builder.h"
#include "daemon/commands/slot_commands.h"
#include "daemon/loop/channels.h"
#include "daemon/loop/event_loop.h"
#include "daemon/loop/output.h"
#include "daemon/setup/options.h"
#include "daemon/setup/startup.h"
#include "engine/engine.h"
#include "llama/decoding/llama_decoder.h"
#include "llama/kv_cache/device_memory.h"
#include "llama/model/backend.h"
#include "llama/model/model.h"
#include "llama/sampling/llama_sampler.h"
#include "wire/reply.h"

#ifndef LUCE_VERSION
#error "the build defines LUCE_VERSION"
#endif

namespace {

using namespace luce;
using app::refuse_to_start;
using daemon::Options;

std::string version_text(const llama::Backend& backend) {
    return "luced " LUCE_VERSION "\nllama.cpp " LUCE_LLAMA_BUILD "\nbuild " LUCE_BUILD_DESCRIPTION "\n" +
           backend.description();
}

engine::EngineConfig to_engine_config(const Options& options, std::int32_t n_ctx, llama::DeviceMemory& device_memory,
                                      llama::PromptScorer& scorer) {
    engine::EngineConfig config = {n_ctx, options.n_lanes, options.n_queue};
    config.scorer = &scorer;
    config.repairs = options.repairs_prefill;
    config.pool_relief = {[&device_memory] { return device_memory.can_shrink(app::on_fatal_abort); },
                          [&device_memory] { return device_memory.shrink(); },
                          [&device_memory] { return device_memory.take_shortage(); }};
    return config;
}

daemon::RequestDefaults to_request_defaults(const Options& options, std::int32_t n_ctx) {
    daemon::RequestDefaults defaults{n_ctx, options.seed, {}};
    switch (options.prefill) {
        case daemon::ReadingChoice::full: defaults.reading.reading = prefill::Reading::full; break;
        case daemon::ReadingChoice::automatic: defaults.reading.reading = prefill::Reading::automatic; break;
        case daemon::ReadingChoice::sparse: defaults.reading.reading = prefill::Reading::sparse; break;
    }
    defaults.reading.share = static_cast<double>(options.prefill_share);
    defaults.reading.n_from = options.n_prefill_from;
    return defaults;
}

// The parked model as it was, but with the pool that it is given.
Result<llama::Model> load_again(const Options& options, const llama::Backend& backend, const std::string& identity,
                                std::int32_t n_pool, int reply_fd) {
    Options again = options;
    if (again.n_kvflash) again.n_kvflash = n_pool;
    Result<llama::Model> loaded = app::load_model(again, backend, reply_fd);
    if (!loaded || loaded.value().info().identity == identity) return loaded;
    return Error{ErrorCode::start_failed, "the model's file has changed since the model was parked"};
}

int serve(const Options& options, app::FittedModel& fitted, const llama::Backend& backend, StepProfile& profile,
          int reply_fd) {
    llama::Model& model = fitted.model;
    llama::ModelInfo info = model.info();
    const std::string model_identity = info.identity;
    const SteadyClock clock;
    const double started_s = clock.now_s();
    llama::LlamaDecoder decoder(model, options.n_lanes);
    app::TextStore texts(model, options.n_lanes);
    const Result<app::Drafting> opened =
        app::open_drafting(options, model, std::move(fitted.draft), decoder, clock, reply_fd);
    if (!opened) return refuse_to_start(reply_fd, opened.error());
    const app::Drafting& drafting = opened.value();
    if (const auto kept = texts.open(options, model, info, decoder, drafting, clock, reply_fd); !kept) {
        return refuse_to_start(reply_fd, kept.error());
    }
    decoder.note_kv_device(&texts.target());
    const std::unique_ptr<llama::ExpertMover> experts = app::open_experts(options, model);
    decoder.note_experts(experts.get());
    const Result<app::Images> opened_images = app::open_images(options, model, reply_fd);
    if (!opened_images) return refuse_to_start(reply_fd, opened_images.error());
    const app::Images& images = opened_images.value();
    const auto opened_scorer = app::open_prompt_scorer(options, model, reply_fd);
    if (!opened_scorer) return refuse_to_start(reply_fd, opened_scorer.error());
    llama::PromptScorer& scorer = *opened_scorer.value();
    llama::LlamaSamplerFactory samplers(model, decoder);
    llama::DeviceMemory device_memory(model, decoder, texts.target(), drafting.memory, texts.combined(), texts.packed(),
                                      texts.scoring(), texts.n_least_pool());
    engine::Engine engine(decoder, samplers, texts.memory(), clock,
                          to_engine_config(options, info.n_ctx, device_memory, scorer), drafting.speculator.get());
    daemon::Output output(reply_fd, options.stream_fd,
                          options.multiplexed ? wire::Dialect::multiplexed : wire::Dialect::plain);
    daemon::ImageCommands image_commands(images.store.get());
    daemon::RequestBuilder requests(to_request_defaults(options, info.n_ctx), image_commands);
    const auto take_back = [&] {
        Result<void> back = device_memory.reload(
            [&](std::int32_t n_pool) { return load_again(options, backend, model_identity, n_pool, reply_fd); });
        if (back && images.projector) back = images.projector->reload(model);
        if (back && texts.memory().note_pool()) output.send_reply(wire::PoolSize{model.info().n_pool});
        return back;
    };
    const auto give_back = [&] {
        if (images.projector) images.projector->unload();
        scorer.free();
        device_memory.unload();
    };
    const auto free_scorer = [&] {
        scorer.free();
        return scorer.is_there();
    };
    const daemon::Parking parking = {give_back, take_back, drafting.memory != nullptr, free_scorer};
    daemon::SlotCommands slots(engine, texts.memory(), texts.files(), info.identity, parking);
    const auto describe = [&] {
        info.n_pool = model.info().n_pool;
        daemon::StatusFields fields = app::describe(info, options, texts.memory(), texts.disk(), texts.scoring(),
                                                    profile.sums(), clock.now_s() - started_s);
        app::describe(images, fields);
        app::describe(scorer, fields);
        if (experts && model.experts()) app::describe(model, *experts, fields);
        fields.insert(fields.end(), fitted.plan.begin(), fitted.plan.end());
        return fields;
    };
    const daemon::ScorerControl scorer_control = {[&] { scorer.free(); },
                                                  [&](const std::string& path) { return scorer.open(path); }};
    daemon::Dispatcher dispatcher(engine, slots, image_commands, scorer_control, output, clock, requests,
                                  static_cast<std::size_t>(options.n_queue) + 1, describe);
    std::vector<memory::IoWorker*> workers = {&texts.files()};
    if (images.store) workers.insert(workers.end(), {images.reader.get(), images.encoder.get()});
    daemon::PageReports pages(texts.memory().page_journal(), output);
    daemon::EventLoop loop(STDIN_FILENO, engine, dispatcher, pages, output, workers);
    output.send_reply(app::ready_line(info, options, texts.n_least_pool(), texts.memory(), texts.host_budget(),
                                      drafting.speculator.get(), texts.scoring().layer()));
    profile.begin();
    const int status = loop.run();
    if (experts) experts->save();
    if (status != 0) app::tell_of_memory("");
    return status;
}

// What is asked of the process itself. Errors: with bad_args where the arguments are to blame.
Result<void> prepare_process(const Options& options) {
    daemon::block_stop_signals();
    if (options.dies_with_parent) {
        if (const auto set = daemon::die_with_parent(); !set) return set.error();
    }
    if (options.stream_fd) return daemon::check_is_writable(*options.stream_fd);
    return {};
}

// Null: none is wanted.
Result<std::unique_ptr<TraceFile>> open_trace(const Options& options) {
    if (!options.trace) return std::unique_ptr<TraceFile>();
    return TraceFile::open(*options.trace);
}

int run(int argc, char** argv) {
    if (!daemon::fill_standard_fds()) {
        return refuse_to_start(STDERR_FILENO, {ErrorCode::io_error, "stdout is closed"}, app::kBadArguments);
    }
    daemon::keep_stderr_from_blocking();
    const Result<Options> parsed = daemon::parse_options({argv + 1, argv + argc});
    if (!parsed) return refuse_to_start(STDOUT_FILENO, parsed.error(), app::kBadArguments);
    Options options = parsed.value();
    set_log_level(options.log_level);
    if (options.wants_help) return app::print(daemon::help_text());
    if (options.wants_version) {
        const llama::Backend backend;
        const int refused = app::find_workers(options, STDOUT_FILENO);
        return refused != 0 ? refused : app::print(version_text(backend));
    }
    for (const std::string& note : options.notes) log_warn(note);
    if (const auto ready = prepare_process(options); !ready) return refuse_to_start(STDOUT_FILENO, ready.error());
    const auto trace = open_trace(options);
    if (!trace) return refuse_to_start(STDOUT_FILENO, trace.error());
    const SteadyClock clock;
    StepProfile profile(clock, trace.value().get());  // outlives the threads that the model's memory has
    const UniqueFd replies = daemon::take_over_stdout();
    const llama::Backend backend;
    if (options.rpc_worker) return app::lend(options, replies.get());
    if (const int refused = app::find_workers(options, replies.get()); refused != 0) return refused;
    if (options.embedding != daemon::EmbeddingPooling::none) {
        return app::serve_embeddings(options, backend, replies.get());
    }
    if (options.wants_plan) return app::print_plan(options, backend, replies.get());
    Result<app::FittedModel> fitted = app::load_fitting(options, backend, replies.get());
    if (!fitted) return refuse_to_start(replies.get(), fitted.error());
    if (options.sizes_kvflash) {
        auto sized = app::size_pool(options, fitted.value().model, replies.get());
        if (!sized) return refuse_to_start(replies.get(), sized.error());
        fitted.value().draft = std::move(sized).value();
    }
    llama::Backend::on_abort(app::on_fatal_abort);
    app::tell_of_memory_on(replies.get());
    return serve(options, fitted.value(), backend, profile, replies.get());
}

}  // namespace

int main(int argc, char** argv) {
    ::umask(S_IRWXG | S_IRWXO);  // what it writes is made of people's prompts: for their eyes only
    try {
        return run(argc, argv);
    } catch (const std::exception& e) {
        luce::app::tell_of_memory(e.what());
        luce::log_error(std::string("fatal error: ") + e.what());
        return luce::daemon::EventLoop::kEngineFailure;
    }
}
