#include "app/images.h"

#include <string>
#include <utility>

#include "app/models.h"

namespace luce::app {
namespace {

constexpr std::size_t kQueuedImageBytes = std::size_t{1} << 30;

}  // namespace

Result<Images> open_images(const daemon::Options& options, const llama::Model& model, int reply_fd) {
    Images images;
    if (!options.mmproj) return images;
    const llama::LoadGuard guard(to_guard_options(options, *options.mmproj, reply_fd));
    const llama::ModelInfo& info = model.info();
    auto projector = llama::ImageProjector::open({*options.mmproj, info.n_threads, info.n_gpu_layers != 0}, model);
    if (!projector) return projector.error();
    images.projector = std::move(projector).value();
    for (std::unique_ptr<memory::IoWorker>* worker : {&images.reader, &images.encoder}) {
        auto started = memory::IoWorker::start(kQueuedImageBytes);
        if (!started) return started.error();
        *worker = std::move(started).value();
    }
    images.store = std::make_unique<llama::ImageStore>(*images.projector, *images.reader, *images.encoder, info.n_vocab,
                                                       llama::ImageStore::Limits{});
    return images;
}

void describe(const Images& images, daemon::StatusFields& fields) {
    if (!images.store) return;
    fields.emplace_back("images_encoded", std::to_string(images.store->n_encoded()));
    fields.emplace_back("image_bytes", std::to_string(images.store->rows_bytes()));
}

}  // namespace luce::app
