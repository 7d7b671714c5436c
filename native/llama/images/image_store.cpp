#include "llama/images/image_store.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

namespace luce::llama {
// REQUIRES: the store outlives it; requests do not outlive the engine's loop.
class ImageStore::Rows final : public engine::ImageRows, public std::enable_shared_from_this<ImageStore::Rows> {
public:
    Rows(ImageStore& store, Name name, std::string bytes)
        : store_(store), name_(std::move(name)), bytes_(std::make_shared<const std::string>(std::move(bytes))) {}

    void want() override {
        if (is_wanted_) return;
        is_wanted_ = true;
        store_.encoder_.post_urgent([&projector = store_.projector_, bytes = std::exchange(bytes_, nullptr),
                                     weak = weak_from_this()]() -> memory::IoWorker::Completion {
            if (weak.expired()) return {};  // whoever wanted it is gone
            auto made = std::make_shared<Result<std::vector<float>>>(projector.encode(*bytes));
            return [weak, made] {
                if (const std::shared_ptr<Rows> rows = weak.lock()) rows->take(std::move(*made));
            };
        });
    }

    bool is_done() const override { return rows_.has_value(); }
    std::size_t n_row_values() const override { return store_.projector_.n_row_values(); }

    Result<std::span<const float>> rows() const override {
        if (!*rows_) return rows_->error();
        return std::span<const float>(rows_->value());
    }

    std::size_t n_bytes() const { return rows_ && *rows_ ? rows_->value().size() * sizeof(float) : 0; }

private:
    void take(Result<std::vector<float>> made) {
        rows_ = std::move(made);
        if (!*rows_) return;
        ++store_.n_encoded_;
        store_.keep(name_, shared_from_this());
    }

    ImageStore& store_;
    const Name name_;
    std::shared_ptr<const std::string> bytes_;  // the file, until they are wanted
    bool is_wanted_ = false;
    std::optional<Result<std::vector<float>>> rows_;
};

ImageStore::ImageStore(ImageProjector& projector, memory::IoWorker& reader, memory::IoWorker& encoder,
                       std::int32_t n_vocab, Limits limits)
    : projector_(projector), reader_(reader), encoder_(encoder), n_vocab_(n_vocab), limits_(limits) {}

std::size_t ImageStore::NameHash::operator()(const Name& name) const {
    return std::hash<std::string>()(name.content) ^ std::hash<engine::ImageSalt>()(name.salt);
}

ImageStore::Name ImageStore::name_of(std::string_view bytes, engine::ImageSalt salt) {
    Sha256 hash;
    hash.update(bytes);
    return {to_hex(hash.finish()), salt};
}

Result<engine::Image> ImageStore::open(std::string bytes, engine::ImageSalt salt) {
    const Name name = name_of(bytes, salt);
    Known* known = find(name);
    if (known == nullptr) {
        // Only of an image that nobody has asked for before, in the life of this process.
        Result<std::vector<ImagePart>> parts = projector_.cut(bytes);
        if (!parts) return parts.error();
        known = &add(name, std::move(parts).value());
    }
    std::shared_ptr<Rows> rows = known->in_use.lock();
    if (rows == nullptr || (rows->is_done() && !rows->rows())) {
        rows = std::make_shared<Rows>(*this, name, std::move(bytes));
        known->in_use = rows;
    }
    return image_of(*known, rows);
}

void ImageStore::describe(std::string bytes, engine::ImageSalt salt, std::function<void(Result<engine::Image>)> done) {
    Name name = name_of(bytes, salt);
    if (const Known* known = find(name)) {
        done(image_of(*known, nullptr));
        return;
    }
    reader_.post_urgent([this, &projector = projector_, name = std::move(name), bytes = std::move(bytes),
                         done = std::move(done)]() mutable -> memory::IoWorker::Completion {
        auto parts = std::make_shared<Result<std::vector<ImagePart>>>(projector.cut(bytes));
        return [this, name = std::move(name), parts, done = std::move(done)] {
            if (!*parts) {
                done(parts->error());
                return;
            }
            const Known* known = find(name);
            done(image_of(known != nullptr ? *known : add(name, std::move(*parts).value()), nullptr));
        };
    });
}

ImageStore::Known* ImageStore::find(const Name& name) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return nullptr;
    known_.splice(known_.begin(), known_, found->second);
    return &known_.front();
}

ImageStore::Known& ImageStore::add(Name name, std::vector<ImagePart> parts) {
    while (known_.size() >= std::max<std::size_t>(limits_.n_known, 1)) {
        if (known_.back().kept) rows_bytes_ -= known_.back().kept->n_bytes();
        by_name_.erase(known_.back().name);
        known_.pop_back();
    }
    known_.push_front({std::move(name), std::move(parts), {}, nullptr});
    by_name_[known_.front().name] = known_.begin();
    return known_.front();
}

engine::Image ImageStore::image_of(const Known& known, const std::shared_ptr<Rows>& rows) const {
    engine::Image image;
    std::size_t n_rows = 0;
    for (const ImagePart& part : known.parts) {
        const auto begin = static_cast<Position>(image.ids.size());
        if (part.n_rows == 0) {
            image.ids.insert(image.ids.end(), part.tokens.begin(), part.tokens.end());
            continue;
        }
        const Tokens ids = row_ids(known.name.content, n_rows, part.n_rows);
        image.ids.insert(image.ids.end(), ids.begin(), ids.end());
        image.runs.push_back(
            {begin, static_cast<Position>(image.ids.size()), n_rows, part.sees_all, rows, part.layout});
        n_rows += part.n_rows;
    }
    return image;
}

// Eight of each block, in counter mode.
Tokens ImageStore::row_ids(const std::string& content, std::size_t first, std::size_t n) const {
    constexpr std::size_t kIdsPerBlock = sizeof(Sha256::Digest) / sizeof(std::uint32_t);
    const auto n_ids = static_cast<std::uint32_t>(std::numeric_limits<Token>::max() - n_vocab_);
    Tokens ids;
    Sha256::Digest block{};
    for (std::size_t row = first; row < first + n; ++row) {
        const std::size_t word = row % kIdsPerBlock;
        if (word == 0 || ids.empty()) {
            Sha256 hash;
            hash.update(projector_.identity() + " " + content + " " + std::to_string(row / kIdsPerBlock));
            block = hash.finish();
        }
        std::uint32_t value = 0;
        for (std::size_t i = 0; i < sizeof value; ++i) value = value << 8 | block[word * sizeof value + i];
        ids.push_back(n_vocab_ + static_cast<Token>(value % n_ids));
    }
    return ids;
}

// Those that were used longest ago are given up for them; requests that hold those go on.
void ImageStore::keep(const Name& name, const std::shared_ptr<Rows>& rows) {
    Known* known = find(name);
    if (known == nullptr || known->kept == rows || rows->n_bytes() > limits_.rows_bytes) return;
    if (known->kept) rows_bytes_ -= known->kept->n_bytes();
    known->kept = rows;
    rows_bytes_ += rows->n_bytes();
    for (auto at = known_.rbegin(); at != known_.rend() && rows_bytes_ > limits_.rows_bytes; ++at) {
        if (!at->kept || at->kept == rows) continue;
        rows_bytes_ -= at->kept->n_bytes();
        at->kept.reset();
    }
}

}  // namespace luce::llama
