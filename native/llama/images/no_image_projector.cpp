// ImageProjector of a build without images.
#include "llama/images/image_projector.h"

namespace luce::llama {

Result<std::unique_ptr<ImageProjector>> ImageProjector::open(const ProjectorOptions&, const Model&) {
    return Error{ErrorCode::start_failed,
                 "this luced was built without images: build it with LUCE_BUILD_IMAGES=ON (scripts/build does)"};
}

}  // namespace luce::llama
