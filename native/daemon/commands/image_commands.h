// ImageCommands: what commands say of images, for the engine: `image` asks for an image's ids, `images=` names the
// files of those that a prompt holds. Without a source (no --mmproj) both are refused.
#pragma once

#include <functional>
#include <span>

#include "engine/image.h"
#include "engine/request.h"
#include "wire/command.h"
#include "wire/reply.h"

namespace luce::daemon {

class ImageCommands {
public:
    // null: none. It must outlive this, and so must what `done` uses.
    explicit ImageCommands(engine::ImageSource* source) : source_(source) {}

    // Calls `done` once, with the command's final reply, now or later.
    void describe(const wire::DescribeImage& command, std::function<void(const wire::Reply&)> done);

    // The runs of the request's prompt that are images, of its salt. Errors: unsupported, bad_args (what stands there
    // is not the image), those of the file and of ImageSource::open().
    Result<void> place(std::span<const wire::ImageAt> images, engine::Request& request) const;

    int n_pending() const { return n_pending_; }

private:
    engine::ImageSource* source_;
    int n_pending_ = 0;
};

}  // namespace luce::daemon
