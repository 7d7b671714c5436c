// Tests of images on libllama: what is computed of a prompt with one is what llama.cpp's own helper computes; and of
// the store and of what reads files: the same image again, others, and files that are not what they say.
#include <doctest/doctest.h>
#include <mtmd-helper.h>
#include <mtmd.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/generation.h"
#include "llama/decoding/llama_decoder.h"
#include "llama/images/image_pixels.h"
#include "llama/images/image_store.h"
#include "llama/model/backend.h"
#include "llama/model/model.h"
#include "test_paths.h"

TEST_SUITE("llama") {

using namespace luce;
using namespace luce::engine;
using namespace std::string_literals;

namespace {

constexpr LaneId kLane{0};
constexpr std::int32_t kUbatch = 512;
constexpr std::size_t kPlenty = std::size_t{64} << 20;

llama::Model load(const std::string& path) {
    static const llama::Backend backend;
    llama::ModelOptions options;
    options.path = path;
    options.n_ctx = 512;
    options.n_lanes = 1;
    options.n_threads = 1;
    options.n_ubatch = options.n_batch = kUbatch;
    Result<llama::Model> model = llama::Model::load(options, false, [] {});
    REQUIRE_MESSAGE(model.ok(), path);
    return std::move(model).value();
}

// A BMP file, which needs no packing: 24 bits a pixel, rows padded to four bytes.
std::string picture(std::int32_t width, std::int32_t height, int seed) {
    const std::int32_t row = (3 * width + 3) / 4 * 4;
    std::string file = "BM";
    const auto number = [&file](std::int64_t value, int n_bytes) {
        for (int i = 0; i < n_bytes; ++i) file.push_back(static_cast<char>(value >> (8 * i)));
    };
    number(54 + std::int64_t{row} * height, 4);
    number(0, 4);
    number(54, 4);
    number(40, 4);
    number(width, 4);
    number(height, 4);
    number(1, 2);
    number(24, 2);
    for (int i = 0; i < 6; ++i) number(0, 4);
    for (std::int32_t i = 0; i < row * height; ++i) file.push_back(static_cast<char>((i * 37 + seed * 101) % 251));
    return file;
}

std::unique_ptr<llama::ImageProjector> open_projector(const llama::Model& model, const std::string& name) {
    const std::string path = std::string(LUCE_TEST_MODELS_DIR "/mmproj/") + name + ".gguf";
    Result<std::unique_ptr<llama::ImageProjector>> projector = llama::ImageProjector::open({path, 1, false}, model);
    REQUIRE_MESSAGE(projector.ok(), path);
    return std::move(projector).value();
}

struct Store {
    Store(const llama::Model& model, const std::string& name, llama::ImageStore::Limits limits = {16, kPlenty})
        : projector(open_projector(model, name)),
          reader(std::move(memory::IoWorker::start(kPlenty)).value()),
          encoder(std::move(memory::IoWorker::start(kPlenty)).value()),
          store(*projector, *reader, *encoder, model.info().n_vocab, limits) {}

    void make_rows(const Image& image) {
        for (const ImageRun& run : image.runs) run.rows->want();
        REQUIRE(encoder->drain(std::chrono::minutes(1)));
    }

    std::unique_ptr<llama::ImageProjector> projector;
    std::unique_ptr<memory::IoWorker> reader;
    std::unique_ptr<memory::IoWorker> encoder;
    llama::ImageStore store;
};

Tokens some_tokens(int n, int first) {
    Tokens tokens;
    for (int i = 0; i < n; ++i) tokens.push_back(10 + (first + 37 * i) % 200);
    return tokens;
}

Token best(std::span<const float> logits) {
    return static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Greedy tokens behind a text with images, each with some text behind it, as the engine hands them to the decoder: in
// slices of at most n_slice tokens where an image's rows do not see each other.
Tokens decode_slices(const std::string& path, const std::string& projector, const std::vector<std::string>& files,
                     std::int32_t n, std::int32_t n_slice) {
    const llama::Model model = load(path);
    Store store(model, projector);
    llama::LlamaDecoder decoder(model, 1);
    engine::Request request;
    request.prompt = some_tokens(20, 1);
    for (const std::string& file : files) {
        const Image image = store.store.open(file, {}).value();
        store.make_rows(image);
        const auto begin = static_cast<Position>(request.prompt.size());
        for (ImageRun run : image.runs) {
            run.begin += begin;
            run.end += begin;
            request.images.push_back(run);
        }
        request.prompt.insert(request.prompt.end(), image.ids.begin(), image.ids.end());
        const Tokens text = some_tokens(10, 5);
        request.prompt.insert(request.prompt.end(), text.begin(), text.end());
    }
    engine::Generation generation(std::move(request), nullptr, 0, 0);
    const auto decode = [&] {
        const ImageRun* image = generation.image_at(generation.n_computed());
        std::int32_t n_most = std::min(n_slice, generation.n_pending());
        if (image == nullptr) {
            n_most = std::min(n_most, generation.n_until_image(generation.n_computed()));
        } else {
            const std::int32_t n_left = image->end - generation.n_computed();
            n_most = image->sees_all ? n_left : std::min(n_most, n_left);
        }
        const Slice slice = generation.next_slice(kLane, n_most, n_most == generation.n_pending() ? 1 : 0);
        REQUIRE(decoder.decode(std::span(&slice, 1)));
        generation.mark_computed(n_most);
    };
    Tokens answer;
    while (static_cast<std::int32_t>(answer.size()) < n) {
        while (generation.n_pending() > 0) decode();
        answer.push_back(best(decoder.logits(0)));
        generation.append(answer.back(), 0);
    }
    return answer;
}

// The same by libllama and mtmd's helpers alone.
Tokens decode_with_helpers(const std::string& path, const std::string& projector, const std::vector<std::string>& files,
                           std::int32_t n) {
    const llama::Model model = load(path);
    llama_context* context = model.context();
    mtmd_context_params params = mtmd_context_params_default();
    params.use_gpu = false;
    params.n_threads = 1;
    params.warmup = false;
    const std::string projector_path = std::string(LUCE_TEST_MODELS_DIR "/mmproj/") + projector + ".gguf";
    const mtmd::context_ptr mtmd(mtmd_init_from_file(projector_path.c_str(), model.model(), params));
    REQUIRE(mtmd != nullptr);
    llama_pos n_past = 0;
    const auto decode = [&](Tokens tokens) {
        llama_batch batch = llama_batch_get_one(tokens.data(), static_cast<std::int32_t>(tokens.size()));
        std::vector<llama_pos> positions(tokens.size());
        std::iota(positions.begin(), positions.end(), n_past);
        batch.pos = positions.data();
        REQUIRE(llama_decode(context, batch) == 0);
        n_past += batch.n_tokens;
    };
    decode(some_tokens(20, 1));
    for (const std::string& file : files) {
        const auto bitmap =
            mtmd_helper_bitmap_init_from_buf(mtmd.get(), reinterpret_cast<const unsigned char*>(file.data()),
                                             file.size(), false, mtmd_helper_init_opt_default());
        const mtmd::bitmap owner(bitmap.bitmap);
        const mtmd_input_part part{nullptr, bitmap.bitmap};
        const mtmd_input_part* parts = &part;
        const mtmd::input_chunks_ptr chunks(mtmd_input_chunks_init());
        REQUIRE(mtmd_tokenize_from_parts(mtmd.get(), chunks.get(), &parts, 1, false) == 0);
        REQUIRE(mtmd_helper_eval_chunks(mtmd.get(), context, chunks.get(), n_past, 0, kUbatch, false, &n_past) == 0);
        decode(some_tokens(10, 5));
    }
    Tokens answer;
    for (std::int32_t i = 0; i < n; ++i) {
        const float* logits = llama_get_logits_ith(context, -1);
        answer.push_back(best({logits, static_cast<std::size_t>(model.info().n_vocab)}));
        decode({answer.back()});
    }
    return answer;
}

// A chunk of a PNG file. Nobody reads the checksum.
std::string chunk(const std::string& type, const std::string& data) {
    std::string made;
    for (int shift = 24; shift >= 0; shift -= 8) made.push_back(static_cast<char>(data.size() >> shift));
    return made + type + data + "\0\0\0\0"s;
}

}  // namespace

TEST_CASE("a prompt with an image is computed as llama.cpp's helpers compute it") {
    // LLaVA's rows are read like tokens; Gemma's see each other, and its text has a sliding window; Qwen's are seen in
    // two dimensions.
    for (const auto& [model, projector] :
         {std::pair{"qwen3", "llava"}, {"qwen3", "gemma3"}, {"gemma4", "gemma3"}, {"qwen35", "qwen3vl"}}) {
        CAPTURE(model);
        CAPTURE(projector);
        const std::string path = std::string(LUCE_TEST_MODELS_DIR "/") + model + ".gguf";
        for (const int seed : {1, 3}) {
            const std::vector<std::string> files = {picture(40, 30, seed), picture(30, 60, seed + 1)};
            const Tokens expected = decode_with_helpers(path, projector, files, 12);
            for (const std::int32_t n_slice : {512, 7})
                CHECK(decode_slices(path, projector, files, 12, n_slice) == expected);
        }
    }
}

TEST_CASE("an image is known again by its content, and another is not it") {
    const llama::Model model = load(LUCE_TEST_MODELS_DIR "/qwen3.gguf");
    Store store(model, "llava");
    const Image first = store.store.open(picture(40, 30, 1), {}).value();
    const Image again = store.store.open(picture(40, 30, 1), {}).value();
    const Image other = store.store.open(picture(40, 30, 2), {}).value();
    CHECK(first.ids == again.ids);
    REQUIRE(first.runs.size() == 1);
    CHECK(first.runs[0].rows == again.runs[0].rows);
    CHECK(first.ids.size() == other.ids.size());
    for (std::size_t i = 0; i < first.ids.size(); ++i) {
        CHECK(first.ids[i] >= model.info().n_vocab);
        CHECK(first.ids[i] != other.ids[i]);
    }
    Store after_restart(model, "llava");
    CHECK(after_restart.store.open(picture(40, 30, 1), {}).value().ids == first.ids);
    Store other_projector(model, "gemma3");
    const Image by_other = other_projector.store.open(picture(40, 30, 1), {}).value();
    CHECK(std::find(by_other.ids.begin(), by_other.ids.end(), first.ids[0]) == by_other.ids.end());
}

TEST_CASE("rows are made once, kept within the budget, and made again when they have left") {
    const llama::Model model = load(LUCE_TEST_MODELS_DIR "/qwen3.gguf");
    const std::size_t of_one = 100 * 128 * sizeof(float);
    Store store(model, "llava", {16, 2 * of_one});
    for (const int seed : {1, 1, 2, 2, 1}) {
        store.make_rows(store.store.open(picture(40, 30, seed), {}).value());
        CHECK(store.store.rows_bytes() <= 2 * of_one);
    }
    CHECK(store.store.n_encoded() == 2);
    store.make_rows(store.store.open(picture(40, 30, 3), {}).value());  // 2 was used longest ago
    store.make_rows(store.store.open(picture(40, 30, 1), {}).value());
    CHECK(store.store.n_encoded() == 3);
    store.make_rows(store.store.open(picture(40, 30, 2), {}).value());
    CHECK(store.store.n_encoded() == 4);
    CHECK(store.store.rows_bytes() == 2 * of_one);
}

TEST_CASE("what was made of an image for one salt is made again for another, and its ids are the same") {
    const llama::Model model = load(LUCE_TEST_MODELS_DIR "/qwen3.gguf");
    Store store(model, "llava");
    const Image plain = store.store.open(picture(40, 30, 1), {}).value();
    for (const ImageSalt salt : {ImageSalt(), ImageSalt(1), ImageSalt(0), ImageSalt(1), ImageSalt()}) {
        const Image image = store.store.open(picture(40, 30, 1), salt).value();
        CHECK(image.ids == plain.ids);
        store.make_rows(image);
    }
    CHECK(store.store.n_encoded() == 3);
    CHECK(store.store.rows_bytes() == 3 * 100 * 128 * sizeof(float));
    // Who only wants the ids waits as long as the first one did: the file is cut on the reader's thread again.
    bool is_done = false;
    store.store.describe(picture(40, 30, 1), 2, [&](const Result<Image>& image) {
        is_done = true;
        CHECK(image.value().ids == plain.ids);
    });
    CHECK(!is_done);
    REQUIRE(store.reader->drain(std::chrono::minutes(1)));
    CHECK(is_done);
}

TEST_CASE("rows that nobody waits for any more are not made") {
    const llama::Model model = load(LUCE_TEST_MODELS_DIR "/qwen3.gguf");
    Store store(model, "llava");
    std::optional<Image> image = store.store.open(picture(40, 30, 1), {}).value();
    std::promise<void> gone;
    store.encoder->post_urgent([&gone]() -> memory::IoWorker::Completion {
        gone.get_future().wait();
        return {};
    });
    image->runs[0].rows->want();
    image.reset();
    gone.set_value();
    REQUIRE(store.encoder->drain(std::chrono::minutes(1)));
    CHECK(store.store.n_encoded() == 0);
}

TEST_CASE("files that are no images, or not what they say, are refused before they cost memory") {
    const auto refused = [](const std::string& file) {
        const Result<llama::ImagePixels> pixels = llama::read_pixels(file);
        REQUIRE(!pixels.ok());
        CHECK(pixels.error().code == ErrorCode::bad_image);
        return pixels.error().text;
    };
    const std::string good = picture(8, 8, 1);
    REQUIRE(llama::read_pixels(good).ok());
    CHECK(llama::read_pixels(good).value().rgb.size() == 8 * 8 * 3);
    refused("");
    refused("a text, and no image at all");
    refused("\xff\xfb\x90\x44 sound");
    refused("RIFF\x10\0\0\0WEBPVP8 "s);
    refused(good.substr(0, 2));
    refused(picture(0, 8, 1));
    CHECK(refused(picture(30000, 1, 1).replace(22, 4, "\x30\x75\0\0"s)).find("30000x30000") != std::string::npos);

    const std::string magic = "\x89PNG\r\n\x1a\n"s;
    const std::string header = "\0\0\0\x04\0\0\0\x04\x08\x02\0\0\0"s;  // 4x4, RGB
    const std::string cut_off = magic + chunk("IHDR", header);
    refused(cut_off);
    refused(cut_off + chunk("IDAT", "no zlib") + chunk("IEND", ""));
    // A stored block of zeros, far more than 4x4 pixels have.
    const std::string zeros(60000, '\0');
    const std::string stored = "\x78\x01\x01\x60\xea\x9f\x15"s + zeros + "\0\0\0\0"s;
    CHECK(refused(cut_off + chunk("IDAT", stored) + chunk("IEND", "")).find("more than its size") != std::string::npos);
    const std::string rows(4 * 13, '\0');
    const std::string fitting = "\x78\x01\x01\x34\x00\xcb\xff"s + rows + "\0\0\0\0"s;
    CHECK(llama::read_pixels(cut_off + chunk("IDAT", fitting) + chunk("IEND", "")).ok());
}

}  // TEST_SUITE("llama")
