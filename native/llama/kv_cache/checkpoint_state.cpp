#include "llama/kv_cache/checkpoint_state.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <new>
#include <optional>
#include <string>

#include "llama-io.h"
#include "llama-kv-cache.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"
#include "llama/kv_cache/kv_rows.h"

namespace luce::llama {
namespace {

constexpr llama_state_seq_flags kPartial = LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;

// llama_context's io_magic: what a sequence's state begins with, and its reader compares.
constexpr std::uint32_t kMagic = 0xaf143cd8;

// libllama's format (llama_context::state_seq_write_data and the two memories' state_write), all integers in the
// host's order: magic, sequence; the window: streams, cells, for each cell position, sequences, ext where the cache has
// it, sequence, then four settings and for each tensor its type, row size and rows; the recurrent part: cells, for each
// position and sequences, then two settings and for each tensor the same (the PLE history without a type).
constexpr std::size_t kHeader_bytes = 2 * sizeof(std::uint32_t);
constexpr std::size_t kWindowHead_bytes = 2 * sizeof(std::uint32_t);
constexpr std::size_t kWindowCell_bytes = 3 * sizeof(std::uint32_t);
constexpr std::size_t kWindowSettings_bytes = 4 * sizeof(std::uint32_t);
constexpr std::size_t kRecurrentHead_bytes = sizeof(std::uint32_t);
constexpr std::size_t kRecurrentCell_bytes = 2 * sizeof(std::uint32_t);
constexpr std::size_t kRecurrentSettings_bytes = 2 * sizeof(std::uint32_t);
constexpr std::size_t kTensorType_bytes = sizeof(std::int32_t);
constexpr std::size_t kTensorRow_bytes = sizeof(std::uint64_t);

// Far beyond any text, far from overflowing when libllama adds to it.
constexpr Position kMaxPosition = std::numeric_limits<Position>::max() / 2;

Error internal(std::string text) { return {ErrorCode::internal, std::move(text)}; }

Error damaged(const char* what) {
    return internal(std::string("a saved state does not fit this model's memory: ") + what);
}

// Reads a value after the other; nullopt once the bytes have ended.
class Reader {
public:
    explicit Reader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

    template <typename T>
    std::optional<T> next() {
        T value;
        if (bytes_.size() < sizeof value) return std::nullopt;
        std::memcpy(&value, bytes_.data(), sizeof value);
        bytes_ = bytes_.subspan(sizeof value);
        return value;
    }

    bool skip(std::size_t n_bytes) {
        if (bytes_.size() < n_bytes) return false;
        bytes_ = bytes_.subspan(n_bytes);
        return true;
    }

    bool is_at_end() const { return bytes_.empty(); }

private:
    std::span<const std::uint8_t> bytes_;
};

// Takes down what libllama would write, so that the tensors can be copied beside the computation.
class StateWriter final : public llama_io_write_i {
public:
    void write(const void* source, std::size_t n_bytes) override {
        const auto* bytes = static_cast<const std::uint8_t*>(source);
        if (parts_.empty() || parts_.back().tensor != nullptr) parts_.push_back({nullptr, 0, 0});
        parts_.back().n_bytes += n_bytes;
        heads_.insert(heads_.end(), bytes, bytes + n_bytes);
        n_bytes_ += n_bytes;
    }

    void write_tensor(ggml_tensor* tensor, std::size_t offset, std::size_t n_bytes) override {
        parts_.push_back({tensor, offset, n_bytes});
        n_bytes_ += n_bytes;
    }

    std::size_t n_bytes() override { return n_bytes_; }

    // Makes room at the end of `state`; what has to be copied into it.
    CheckpointState::Saving place(memory::Bytes& state) {
        const std::size_t begin = state.size();
        state.resize(begin + n_bytes_);
        CheckpointState::Saving saving;
        saving.heads = std::make_shared<const std::vector<std::uint8_t>>(std::move(heads_));
        const std::uint8_t* head = saving.heads->data();
        std::uint8_t* out = state.data() + begin;
        for (const Part& part : parts_) {
            if (part.tensor == nullptr) {
                saving.pieces.push_back({.host = head, .out = out, .n_bytes = part.n_bytes});
                head += part.n_bytes;
            } else {
                saving.pieces.push_back(
                    {.tensor = part.tensor, .out = out, .offset = part.offset, .n_bytes = part.n_bytes});
            }
            out += part.n_bytes;
        }
        return saving;
    }

private:
    struct Part {
        ggml_tensor* tensor;  // null: bytes of the heads
        std::size_t offset;
        std::size_t n_bytes;
    };

    std::vector<Part> parts_;
    std::vector<std::uint8_t> heads_;
    std::size_t n_bytes_ = 0;
};

bool is_position(std::optional<Position> position) { return position && *position >= 0 && *position <= kMaxPosition; }

bool is_text_ext(std::optional<llama_kv_cell_ext> ext, Position position, std::int32_t n_vocab) {
    const bool has_2d = ext && (ext->x != 0 || ext->y != 0);
    return ext && ext->tok >= 0 && ext->tok < n_vocab && (!has_2d || (ext->x == position && ext->y == position));
}

// Every position between the first and the last once, as libllama keeps them; answers the last.
std::optional<Position> last_of_consecutive(std::vector<Position> positions) {
    std::sort(positions.begin(), positions.end());
    for (std::size_t i = 1; i < positions.size(); ++i) {
        if (positions[i] != positions[i - 1] + 1) return std::nullopt;
    }
    return positions.back();
}

std::size_t recurrent_tensor_bytes(const llama_memory_recurrent& memory) {
    std::size_t n_bytes = 0;
    const auto add = [&](const std::vector<ggml_tensor*>& tensors, std::size_t head_bytes) {
        for (const ggml_tensor* tensor : tensors) n_bytes += tensor == nullptr ? 0 : head_bytes + tensor->nb[1];
    };
    add(memory.r_l, kTensorType_bytes + kTensorRow_bytes);
    add(memory.s_l, kTensorType_bytes + kTensorRow_bytes);
    add(memory.p_l, kTensorRow_bytes);
    return n_bytes;
}

}  // namespace

CheckpointState::CheckpointState(llama_context* context, const MemoryParts& parts) : context_(context) {
    const llama_model* model = llama_get_model(context);
    n_vocab_ = llama_vocab_n_tokens(llama_model_get_vocab(model));
    if (parts.window != nullptr) {
        const KvRows rows(*parts.window);
        window_.n_cells = parts.window->get_size();
        window_.n_full = std::min<std::size_t>(static_cast<std::size_t>(llama_model_n_swa(model)), window_.n_cells);
        window_.row_bytes = rows.row_bytes();
        window_.head_bytes = kWindowSettings_bytes + rows.n_tensors() * (kTensorType_bytes + kTensorRow_bytes);
        window_.has_ext = parts.window->has_cell_ext();
    }
    if (parts.recurrent != nullptr) {
        is_recurrent_ = true;
        recurrent_bytes_ = kRecurrentSettings_bytes + recurrent_tensor_bytes(*parts.recurrent);
    }
}

std::size_t CheckpointState::window_bytes(std::size_t n_cells) const {
    const std::size_t cell_bytes = kWindowCell_bytes + (window_.has_ext ? sizeof(llama_kv_cell_ext) : 0);
    return kWindowHead_bytes + window_.head_bytes + n_cells * (cell_bytes + window_.row_bytes);
}

std::size_t CheckpointState::n_bytes() const {
    if (window_.n_cells == 0 && !is_recurrent_) return 0;
    std::size_t n_bytes = kHeader_bytes;
    if (window_.n_cells > 0) n_bytes += window_bytes(window_.n_full);
    if (is_recurrent_) n_bytes += kRecurrentHead_bytes + kRecurrentCell_bytes + recurrent_bytes_;
    return n_bytes;
}

Result<CheckpointState::Saving> CheckpointState::save(std::int32_t sequence, memory::Bytes& state) const {
    StateWriter writer;
    try {
        writer.write(&kMagic, sizeof kMagic);
        writer.write(&sequence, sizeof sequence);
        llama_get_memory(context_)->state_write(writer, sequence, kPartial);
        return writer.place(state);
    } catch (const std::bad_alloc&) {
        return Error{ErrorCode::out_of_memory,
                     "no memory for a lane's state of " + std::to_string(writer.n_bytes()) + " bytes"};
    } catch (const std::exception& e) {
        return internal(std::string("a lane's state could not be saved: ") + e.what());
    }
}

Result<void> CheckpointState::load(std::int32_t sequence, std::span<const std::uint8_t> state) const {
    try {
        if (Result<void> checked = check(state); !checked) return checked;
        // libllama answers 0 for what it does not take.
        const std::size_t n_taken =
            llama_state_seq_set_data_ext(context_, state.data(), state.size(), sequence, kPartial);
        if (n_taken != state.size()) return internal("libllama did not take a saved state back");
    } catch (const std::exception& e) {
        return internal(std::string("a lane's state could not be put back: ") + e.what());
    }
    return {};
}

// Counts, positions and the size in all. Magic, types and row sizes are libllama's to compare; the values in the rows
// are anybody's.
Result<void> CheckpointState::check(std::span<const std::uint8_t> state) const {
    Reader reader(state);
    if (!reader.skip(kHeader_bytes)) return damaged("it is too short");
    std::optional<Position> last;
    if (window_.n_cells > 0) {
        if (reader.next<std::uint32_t>() != 1U) return damaged("more than one stream");
        const std::optional<std::uint32_t> n_cells = reader.next<std::uint32_t>();
        if (!n_cells || *n_cells == 0 || *n_cells > window_.n_cells) return damaged("the window's number of cells");
        std::vector<Position> positions;
        for (std::uint32_t i = 0; i < *n_cells; ++i) {
            const std::optional<Position> position = reader.next<Position>();
            if (!is_position(position)) return damaged("a position in the window");
            if (reader.next<std::uint32_t>() != 1U) return damaged("a cell's number of sequences");
            if (window_.has_ext && !is_text_ext(reader.next<llama_kv_cell_ext>(), *position, n_vocab_)) {
                return damaged("a cell's token or place");
            }
            if (!reader.skip(sizeof(llama_seq_id))) return damaged("it is too short");
            positions.push_back(*position);
        }
        last = last_of_consecutive(std::move(positions));
        if (!last) return damaged("the window's positions have gaps");
        if (!reader.skip(window_.head_bytes + *n_cells * window_.row_bytes)) return damaged("it is too short");
    }
    if (is_recurrent_) {
        if (reader.next<std::uint32_t>() != 1U) return damaged("the number of recurrent states");
        const std::optional<Position> position = reader.next<Position>();
        if (!is_position(position) || (last && last != position)) return damaged("the recurrent state's position");
        if (reader.next<std::uint32_t>() != 0U) return damaged("the recurrent state's sequences");
        if (!reader.skip(recurrent_bytes_)) return damaged("it is too short");
    }
    if (!reader.is_at_end()) return damaged("it is too long");
    return {};
}

}  // namespace luce::llama
