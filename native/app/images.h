// What the options make of images: the projector, its helper threads and the store over them.
#pragma once

#include <memory>

#include "daemon/commands/dispatcher.h"
#include "daemon/setup/options.h"
#include "llama/images/image_store.h"
#include "llama/model/model.h"
#include "memory/tiers/io_worker.h"

namespace luce::app {

// None of it without --mmproj.
struct Images {
    std::unique_ptr<llama::ImageProjector> projector;
    std::unique_ptr<memory::IoWorker> reader;
    std::unique_ptr<memory::IoWorker> encoder;
    std::unique_ptr<llama::ImageStore> store;
};

// Errors: start_failed.
Result<Images> open_images(const daemon::Options& options, const llama::Model& model, int reply_fd);

// Adds to a status line what images have cost.
void describe(const Images& images, daemon::StatusFields& fields);

}  // namespace luce::app
