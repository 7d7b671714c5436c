#include "llama/images/image_projector.h"

#include <exception>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <utility>

#include <llama.h>
#include <mtmd.h>

#include "llama-model.h"
#include "llama/images/image_pixels.h"
#include "llama/model/device_beside.h"
#include "llama/model/model_identity.h"

namespace luce::llama {
namespace {

Error failed_to_start(std::string text) { return {ErrorCode::start_failed, std::move(text)}; }

Result<mtmd::context_ptr> open_context(const ProjectorOptions& options, const Model& model) {
    mtmd_context_params params = mtmd_context_params_default();
    params.use_gpu = options.uses_gpu;
    params.device = DeviceBeside(*model.model()).device();
    params.print_timings = false;
    params.n_threads = options.n_threads;
    params.warmup = false;
    ggml_log_callback log = nullptr;  // libllama's: Backend has set it
    void* log_data = nullptr;
    llama_log_get(&log, &log_data);
    mtmd_log_set(log, log_data);
    mtmd::context_ptr context(mtmd_init_from_file(options.path.c_str(), model.model(), params));
    if (context == nullptr) {
        return failed_to_start("--mmproj " + options.path +
                               " cannot be loaded, or is not this model's (the log says more)");
    }
    if (!mtmd_support_vision(context.get())) return failed_to_start("--mmproj " + options.path + " reads no images");
    if (mtmd_decode_use_mrope(context.get()) && model.model()->hparams.rope_sections[3] != 0) {
        return failed_to_start(
            "--mmproj: this model gives the rows of an image positions in four parts (as HunyuanVL does), of which "
            "there are three here; leave it out to serve the model with text");
    }
    return context;
}

// Null: the model's positions have one part.
std::shared_ptr<const engine::ImageLayout> layout_of(const mtmd_context* context, const mtmd_input_chunk* chunk) {
    if (!mtmd_decode_use_mrope(context)) return nullptr;
    const mtmd_image_tokens* image = mtmd_input_chunk_get_tokens_image(chunk);
    auto layout = std::make_shared<engine::ImageLayout>();
    layout->n_positions = mtmd_input_chunk_get_n_pos(chunk);
    for (std::size_t i = 0; i < mtmd_input_chunk_get_n_tokens(chunk); ++i) {
        const mtmd_decoder_pos place = mtmd_image_tokens_get_decoder_pos(image, 0, i);
        layout->places.push_back(
            {static_cast<Position>(place.t), static_cast<Position>(place.y), static_cast<Position>(place.x)});
    }
    return layout;
}

class MtmdProjector final : public ImageProjector {
public:
    MtmdProjector(ProjectorOptions options, std::string identity, mtmd::context_ptr context, std::size_t n_values)
        : options_(std::move(options)),
          identity_(std::move(identity)),
          n_values_(n_values),
          context_(std::move(context)) {}

    const std::string& identity() const override { return identity_; }
    std::size_t n_row_values() const override { return n_values_; }

    Result<std::vector<ImagePart>> cut(std::string_view file) override {
        const std::shared_lock lock(loading_);
        const Result<mtmd::input_chunks_ptr> chunks = chunks_of(file);
        if (!chunks) return chunks.error();
        std::vector<ImagePart> parts;
        for (std::size_t i = 0; i < mtmd_input_chunks_size(chunks.value().get()); ++i) {
            const mtmd_input_chunk* chunk = mtmd_input_chunks_get(chunks.value().get(), i);
            ImagePart part;
            if (mtmd_input_chunk_get_type(chunk) == MTMD_INPUT_CHUNK_TYPE_TEXT) {
                std::size_t n_tokens = 0;
                const llama_token* tokens = mtmd_input_chunk_get_tokens_text(chunk, &n_tokens);
                part.tokens.assign(tokens, tokens + n_tokens);
            } else {
                part.n_rows = mtmd_input_chunk_get_n_tokens(chunk);
                part.sees_all = mtmd_decode_use_non_causal(context_.get(), chunk);
                part.layout = layout_of(context_.get(), chunk);
            }
            parts.push_back(std::move(part));
        }
        return parts;
    }

    Result<std::vector<float>> encode(std::string_view file) override {
        const std::shared_lock lock(loading_);
        const Result<mtmd::input_chunks_ptr> chunks = chunks_of(file);
        if (!chunks) return chunks.error();
        const std::lock_guard one_at_a_time(encoding_);
        try {
            return encode(*chunks.value());
        } catch (const std::bad_alloc&) {
            return Error{ErrorCode::out_of_memory, "no memory to encode an image"};
        } catch (const std::exception& e) {
            return Error{ErrorCode::internal, std::string("an image could not be encoded: ") + e.what()};
        }
    }

    void unload() override {
        const std::unique_lock lock(loading_);
        context_.reset();
    }

    Result<void> reload(const Model& model) override {
        const std::unique_lock lock(loading_);
        Result<mtmd::context_ptr> context = open_context(options_, model);
        if (!context) return context.error();
        context_ = std::move(context).value();
        return {};
    }

private:
    Result<std::vector<float>> encode(const mtmd_input_chunks& chunks) {
        std::vector<float> rows;
        for (std::size_t i = 0; i < mtmd_input_chunks_size(&chunks); ++i) {
            const mtmd_input_chunk* chunk = mtmd_input_chunks_get(&chunks, i);
            if (mtmd_input_chunk_get_type(chunk) == MTMD_INPUT_CHUNK_TYPE_TEXT) continue;
            if (mtmd_encode_chunk(context_.get(), chunk) != 0) {
                return Error{ErrorCode::internal, "an image could not be encoded (the log says more)"};
            }
            const float* made = mtmd_get_output_embd(context_.get());
            rows.insert(rows.end(), made, made + mtmd_input_chunk_get_n_tokens(chunk) * n_values_);
        }
        return rows;
    }

    // REQUIRES: loading_ is held.
    Result<mtmd::input_chunks_ptr> chunks_of(std::string_view file) const {
        if (context_ == nullptr) return Error{ErrorCode::parked, "the model's memory was given back (park)"};
        const Result<ImagePixels> pixels = read_pixels(file);
        if (!pixels) return pixels.error();
        try {
            const mtmd::bitmap bitmap(static_cast<std::uint32_t>(pixels.value().width),
                                      static_cast<std::uint32_t>(pixels.value().height), pixels.value().rgb.data());
            const mtmd_input_part part{nullptr, bitmap.ptr.get()};
            const mtmd_input_part* parts = &part;
            mtmd::input_chunks_ptr chunks(mtmd_input_chunks_init());
            if (mtmd_tokenize_from_parts(context_.get(), chunks.get(), &parts, 1, false) == 0) return chunks;
        } catch (const std::bad_alloc&) {
            return Error{ErrorCode::out_of_memory, "no memory for an image"};
        } catch (const std::exception& e) {
            return Error{ErrorCode::bad_image, std::string("the model's projector cannot take the image: ") + e.what()};
        }
        return Error{ErrorCode::bad_image, "the model's projector cannot take the image (the log says more)"};
    }

    const ProjectorOptions options_;
    const std::string identity_;
    const std::size_t n_values_;
    std::shared_mutex loading_;  // held alone while the context comes or goes
    std::mutex encoding_;
    mtmd::context_ptr context_;  // null: unloaded
};

}  // namespace

Result<std::unique_ptr<ImageProjector>> ImageProjector::open(const ProjectorOptions& options, const Model& model) {
    Result<mtmd::context_ptr> context = open_context(options, model);
    if (!context) return context.error();
    const Result<std::string> identity = memory_identity({options.path}, ModelInfo{});
    if (!identity) return identity.error();
    const auto n_values = static_cast<std::size_t>(llama_model_n_embd_inp(model.model()));
    return std::unique_ptr<ImageProjector>(
        std::make_unique<MtmdProjector>(options, identity.value(), std::move(context).value(), n_values));
}

}  // namespace luce::llama
