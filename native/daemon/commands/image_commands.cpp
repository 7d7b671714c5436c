#include "daemon/commands/image_commands.h"

#include <algorithm>
#include <string>
#include <utility>

#include "daemon/commands/prompt_file.h"

namespace luce::daemon {
namespace {

Error no_images() { return {ErrorCode::unsupported, "images need the model's projector: start with --mmproj FILE"}; }

}  // namespace

void ImageCommands::describe(const wire::DescribeImage& command, std::function<void(const wire::Reply&)> done) {
    if (source_ == nullptr) {
        done(wire::Err{command.id, no_images()});
        return;
    }
    Result<std::string> file = read_text_file(command.path, engine::kMaxImageBytes);
    if (!file) {
        done(wire::Err{command.id, file.error()});
        return;
    }
    ++n_pending_;
    source_->describe(std::move(file).value(), command.salt,
                      [this, id = command.id, done = std::move(done)](auto image) {
                          --n_pending_;
                          if (image) {
                              done(wire::ImageDescribed{id, std::move(image).value().ids});
                          } else {
                              done(wire::Err{id, image.error()});
                          }
                      });
}

Result<void> ImageCommands::place(std::span<const wire::ImageAt> images, engine::Request& request) const {
    if (images.empty()) return {};
    if (source_ == nullptr) return no_images();
    const engine::ImageSalt salt = request.memory.salt ? engine::ImageSalt(request.memory.salt->value) : std::nullopt;
    std::size_t end = 0;
    for (const wire::ImageAt& at : images) {
        Result<std::string> file = read_text_file(at.path, engine::kMaxImageBytes);
        if (!file) return file.error();
        const Result<engine::Image> image = source_->open(std::move(file).value(), salt);
        if (!image) return image.error();
        const auto begin = static_cast<std::size_t>(at.position);
        const Tokens& ids = image.value().ids;
        const bool is_there = begin >= end && begin <= request.prompt.size() &&
                              ids.size() <= request.prompt.size() - begin &&
                              std::equal(ids.begin(), ids.end(), request.prompt.begin() + at.position);
        if (!is_there) {
            return Error{ErrorCode::bad_args, "images=: at position " + std::to_string(at.position) +
                                                  " of the prompt do not stand the image's ids, as `image` gives them"};
        }
        end = begin + ids.size();
        for (engine::ImageRun run : image.value().runs) {
            run.begin += at.position;
            run.end += at.position;
            request.images.push_back(std::move(run));
        }
    }
    return {};
}

}  // namespace luce::daemon
