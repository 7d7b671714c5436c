// Images in a prompt, as the engine sees them: runs of positions whose rows of embeddings stand in for tokens. Their
// ids in the prompt are beyond the vocabulary and made of the image's content: so memory, which compares ids, knows the
// same image again and tells others apart. Knows no file format and no projector; `llama/images` implements the two
// classes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/token.h"

namespace luce::engine {

inline constexpr std::size_t kMaxImageBytes = std::size_t{32} << 20;  // of its file

// An image's rows of embeddings. They are made beside the engine, once somebody wants them: a prompt whose pages are
// known needs none. All calls come from the one thread that runs the engine.
class ImageRows {
public:
    virtual ~ImageRows() = default;

    // Begin to make them, unless that was done. Whoever made the engine is woken when they are done.
    virtual void want() = 0;
    virtual bool is_done() const = 0;

    virtual std::size_t n_row_values() const = 0;

    // REQUIRES: is_done(). All rows, one behind the other. Errors: why there are none.
    virtual Result<std::span<const float>> rows() const = 0;
};

// Where RoPE sees a row of an image, behind where it sees the image's first: of models with positions in two dimensions
// (M-RoPE; Qwen2-VL, arXiv 2409.12191).
struct ImagePlace {
    Position time = 0;
    Position row = 0;
    Position column = 0;
};

// The places of a run's rows, and how far behind the first of them RoPE sees the text that follows.
struct ImageLayout {
    std::vector<ImagePlace> places;
    Position n_positions = 0;
};

// Positions of a prompt (or of an image's own ids) that rows stand in for.
struct ImageRun {
    Position begin = 0;
    Position end = 0;
    std::size_t first_row = 0;  // of `rows`
    bool sees_all = false;      // each position sees all of the run: what is left of it is computed in one call
    std::shared_ptr<ImageRows> rows;
    std::shared_ptr<const ImageLayout> layout = {};  // null: RoPE sees each row where it stands
};

struct Image {
    Tokens ids;                  // what stands in a prompt for it: a model's own marks around and between the runs, too
    std::vector<ImageRun> runs;  // within `ids`
};

// Whose an image is (the salt of the text that holds it): what has been made of one for others, or for none, neither
// saves time nor spares making it. Its ids are the same for all.
using ImageSalt = std::optional<std::uint64_t>;

// All calls come from the one thread that runs the engine.
class ImageSource {
public:
    virtual ~ImageSource() = default;

    // An image that may be wanted; `bytes`: its file. Errors: bad_image, unsupported, parked, out_of_memory.
    virtual Result<Image> open(std::string bytes, ImageSalt salt) = 0;

    // The same for who wants only its ids, without holding up the engine: `done` is called once, now or later.
    virtual void describe(std::string bytes, ImageSalt salt, std::function<void(Result<Image>)> done) = 0;
};

}  // namespace luce::engine
