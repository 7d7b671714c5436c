#include "app/embedding.h"

#include <unistd.h>

#include <cmath>
#include <string>
#include <utility>

#include "app/ending.h"
#include "app/models.h"
#include "app/status_lines.h"
#include "base/clock.h"
#include "daemon/commands/embedding_dispatcher.h"
#include "daemon/loop/channels.h"
#include "daemon/loop/embedding_loop.h"
#include "daemon/loop/event_loop.h"
#include "daemon/loop/output.h"
#include "daemon/setup/host_memory.h"
#include "daemon/setup/startup.h"
#include "llama/embedding/embedding_model.h"
#include "llama/model/load_guard.h"
#include "wire/reply.h"

namespace luce::app {
namespace {

using daemon::EmbeddingPooling;
using daemon::Options;
using llama::EmbeddingInfo;
using llama::EmbeddingModel;

llama::Pooling pooling_of(EmbeddingPooling pooling) {
    switch (pooling) {
        case EmbeddingPooling::mean: return llama::Pooling::mean;
        case EmbeddingPooling::cls: return llama::Pooling::cls;
        case EmbeddingPooling::last: return llama::Pooling::last;
        case EmbeddingPooling::rank: return llama::Pooling::rank;
        case EmbeddingPooling::automatic:
        case EmbeddingPooling::none: break;
    }
    return llama::Pooling::from_file;
}

Result<EmbeddingModel> load_embedding_model(const Options& options, const llama::Backend& backend, int reply_fd) {
    llama::LoadGuard guard(to_guard_options(options, options.model, reply_fd));
    llama::EmbeddingOptions model;
    model.path = options.model;
    model.pooling = pooling_of(options.embedding);
    model.n_ctx = options.n_ctx;
    model.n_ubatch = options.n_ubatch;
    model.n_threads = options.n_threads;
    model.n_gpu_layers = options.n_gpu_layers;
    model.flash_attention = to_llama(options.flash_attention);
    model.host_bytes = daemon::available_bytes();
    if (options.multiplexed) model.on_percent = [reply_fd](std::int32_t percent) { tell_progress(reply_fd, percent); };
    return EmbeddingModel::load(model, backend.has_gpu(), [&] { go_on_loading(guard, reply_fd); });
}

wire::ReadyLine embedding_ready_line(const EmbeddingInfo& info, const engine::EmbedderLimits& limits) {
    wire::ReadyLine line;
    const auto add = [&line](const char* key, std::string value) { line.fields.emplace_back(key, std::move(value)); };
    add("proto", std::to_string(kProtocolVersion));
    add("model", info.file_name);
    add("arch", info.architecture);
    add("vocab", std::to_string(info.n_vocab));
    add("ctx", std::to_string(info.n_ctx));
    add("embedding", std::to_string(info.n_values));
    add("pooling", info.pooling);
    if (info.pooling == "rank") add("scores", info.has_probabilities ? "probability" : "logit");
    add("texts", std::to_string(limits.n_texts));
    add("pid", std::to_string(::getpid()));
    return line;
}

}  // namespace

int serve_embeddings(const Options& options, const llama::Backend& backend, int reply_fd) {
    Result<EmbeddingModel> loaded = load_embedding_model(options, backend, reply_fd);
    if (!loaded) return refuse_to_start(reply_fd, loaded.error());
    llama::Backend::on_abort(on_fatal_abort);
    tell_of_memory_on(reply_fd);
    EmbeddingModel& model = loaded.value();
    const SteadyClock clock;
    const double started_s = clock.now_s();
    daemon::Output output(reply_fd, options.stream_fd,
                          options.multiplexed ? wire::Dialect::multiplexed : wire::Dialect::plain);
    const auto describe = [&] {
        return daemon::EmbeddingDispatcher::StatusFields{
            {"ctx", std::to_string(model.info().n_ctx)},
            {"uptime_s", std::to_string(std::llround(clock.now_s() - started_s))}};
    };
    daemon::EmbeddingDispatcher dispatcher(model, static_cast<std::size_t>(options.n_queue), output, describe);
    daemon::EmbeddingLoop loop(STDIN_FILENO, dispatcher, output);
    output.send_reply(embedding_ready_line(model.info(), model.limits()));
    if (loop.run()) return 0;
    tell_of_memory("");
    return daemon::EventLoop::kEngineFailure;
}

}  // namespace luce::app
