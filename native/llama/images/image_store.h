// ImageStore: the engine's source of images, by their content and whose they are. An image's place in a prompt is
// remembered for many; the rows that the projector makes of it, which are large and dear, for as many as fit the budget
// and for all that a request holds. Two helper threads: one reads files for those who want to know an image's ids, one
// encodes.
//
// An id that stands for a row is made of the projector's file, the image's content and the row's number by SHA-256: it
// is the same after a restart, so that pages on disk are found again, and two images do not have the same by accident
// or intent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/sha256.h"
#include "engine/image.h"
#include "llama/images/image_projector.h"
#include "memory/tiers/io_worker.h"

namespace luce::llama {

class ImageStore final : public engine::ImageSource {
public:
    struct Limits {
        std::size_t n_known = 4096;
        std::size_t rows_bytes = std::size_t{256} << 20;
    };

    // All must outlive the store; what the workers do ends with them.
    ImageStore(ImageProjector& projector, memory::IoWorker& reader, memory::IoWorker& encoder, std::int32_t n_vocab,
               Limits limits);

    Result<engine::Image> open(std::string bytes, engine::ImageSalt salt) override;
    void describe(std::string bytes, engine::ImageSalt salt, std::function<void(Result<engine::Image>)> done) override;

    // Since the start, for the status line.
    std::uint64_t n_encoded() const { return n_encoded_; }
    std::size_t rows_bytes() const { return rows_bytes_; }

private:
    class Rows;
    struct Name {
        std::string content;  // SHA-256 of the file
        engine::ImageSalt salt;
        bool operator==(const Name&) const = default;
    };
    struct NameHash {
        std::size_t operator()(const Name& name) const;
    };
    struct Known {
        Name name;
        std::vector<ImagePart> parts;
        std::weak_ptr<Rows> in_use;
        std::shared_ptr<Rows> kept;
    };

    static Name name_of(std::string_view bytes, engine::ImageSalt salt);
    Known* find(const Name& name);
    Known& add(Name name, std::vector<ImagePart> parts);
    engine::Image image_of(const Known& known, const std::shared_ptr<Rows>& rows) const;
    Tokens row_ids(const std::string& content, std::size_t first, std::size_t n) const;
    void keep(const Name& name, const std::shared_ptr<Rows>& rows);

    ImageProjector& projector_;
    memory::IoWorker& reader_;
    memory::IoWorker& encoder_;
    const std::int32_t n_vocab_;
    const Limits limits_;
    std::list<Known> known_;  // the latest used first
    std::unordered_map<Name, std::list<Known>::iterator, NameHash> by_name_;
    std::size_t rows_bytes_ = 0;  // of those that are kept
    std::uint64_t n_encoded_ = 0;
};

}  // namespace luce::llama
