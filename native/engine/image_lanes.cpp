// The part of Engine that images have: which requests may have them, which lanes wait for one to be encoded, and where
// their slices end. A slice is of text or of one image, because libllama takes tokens or rows in one call.
#include <algorithm>
#include <string>

#include "engine/engine.h"

namespace luce::engine {

// Ids beyond the vocabulary are images', whose runs lie within the prompt, in order.
Result<void> Engine::check_prompt(const Request& request) const {
    const std::int32_t n_vocab = decoder_.limits().n_vocab;
    auto run = request.images.begin();
    for (Position at = 0; at < static_cast<Position>(request.prompt.size()); ++at) {
        if (run != request.images.end() && at >= run->end) ++run;
        if (run != request.images.end() && at >= run->begin) continue;
        const Token token = request.prompt[static_cast<std::size_t>(at)];
        if (token >= 0 && token < n_vocab) continue;
        return Error{ErrorCode::token_out_of_range, "prompt token " + std::to_string(token) + " at position " +
                                                        std::to_string(at) + " is outside the vocabulary of " +
                                                        std::to_string(n_vocab)};
    }
    for (const ImageRun& image : request.images) {
        const std::int32_t n_tokens = image.end - image.begin;
        const std::int32_t n_most = std::min(decoder_.limits().n_ubatch, decoder_.limits().n_batch);
        if (!image.sees_all || n_tokens <= n_most) continue;
        return Error{ErrorCode::unsupported, "an image of " + std::to_string(n_tokens) +
                                                 " tokens, each of which sees all the others, needs --ubatch and "
                                                 "--batch of at least that"};
    }
    return {};
}

// Those behind what the lane holds; the others' pages are known.
void Engine::want_images(LaneId lane) {
    const Generation& g = *at(lane);
    for (const ImageRun& image : g.request().images) {
        if (image.end > g.n_computed()) image.rows->want();
    }
}

bool Engine::is_waiting(const Generation& g) {
    const ImageRun* image = g.image_at(g.n_computed());
    return image != nullptr && !image->rows->is_done();
}

bool Engine::has_work() const {
    return std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane && !is_waiting(*lane); });
}

void Engine::fail_images(std::vector<Event>& events) {
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
        if (!lanes_[i]) continue;
        const ImageRun* image = lanes_[i]->image_at(lanes_[i]->n_computed());
        if (image == nullptr) continue;
        image->rows->want();  // a text that had to be read again may need one that it did not need before
        if (!image->rows->is_done()) continue;
        if (const auto rows = image->rows->rows(); !rows) fail(static_cast<LaneId>(i), rows.error(), events);
    }
}

// Most that the lane's next slice may have. What an image's positions see goes on behind a checkpoint's place within
// it: no checkpoint is taken there.
std::int32_t Engine::n_slice_most(LaneId lane) const {
    const Generation& g = *lanes_[static_cast<std::size_t>(lane)];
    const std::int32_t n_until_cut = std::min(memory_.n_until_cut(lane, g.n_computed()), n_until_rows_end(g));
    const ImageRun* image = g.image_at(g.n_computed());
    if (image == nullptr) return std::min(n_until_cut, g.n_until_image(g.n_computed()));
    const std::int32_t n_left = image->end - g.n_computed();
    return image->sees_all ? n_left : std::min(n_until_cut, n_left);
}

}  // namespace luce::engine
