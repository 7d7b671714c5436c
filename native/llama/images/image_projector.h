// ImageProjector: the file that turns an image into rows of embeddings for a model (--mmproj), through llama.cpp's
// mtmd. Any thread may use it; one image is encoded at a time. A build without images (LUCE_BUILD_IMAGES) opens none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "engine/image.h"
#include "llama/model/model.h"

namespace luce::llama {

struct ProjectorOptions {
    std::string path;
    std::int32_t n_threads = 1;
    bool uses_gpu = false;
};

// What stands in a prompt for an image, in order: the model's own tokens, or rows.
struct ImagePart {
    Tokens tokens;
    std::size_t n_rows = 0;  // 0: tokens
    bool sees_all = false;   // as in engine::ImageRun
    std::shared_ptr<const engine::ImageLayout> layout;
};

class ImageProjector {
public:
    virtual ~ImageProjector() = default;

    // Errors: start_failed (which says what the file or the model lacks).
    static Result<std::unique_ptr<ImageProjector>> open(const ProjectorOptions& options, const Model& model);

    // Equal for equal files.
    virtual const std::string& identity() const = 0;
    virtual std::size_t n_row_values() const = 0;

    // `file`: an image's. Errors: bad_image, out_of_memory, internal, parked.
    virtual Result<std::vector<ImagePart>> cut(std::string_view file) = 0;
    virtual Result<std::vector<float>> encode(std::string_view file) = 0;  // the rows of all parts

    // The model's memory is given back, and the projector's with it; and taken again. Errors: start_failed.
    virtual void unload() = 0;
    virtual Result<void> reload(const Model& model) = 0;
};

}  // namespace luce::llama
