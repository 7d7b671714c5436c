// RowPacker: rows of the attention cache in fewer bits, for where they lie outside the device. Knows each tensor's type
// and width; what it gives is of the same layout, tensor by tensor, the rows of each one behind the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ggml.h>

#include "base/result.h"
#include "memory/tiers/blob.h"

class llama_kv_cache;

namespace luce::llama {

// "tq3" (three_bits.h), "q8_0", "q5_1", "q5_0", "q4_1" or "q4_0". Errors: bad_args, naming these.
Result<void> check_packed_type(const std::string& name);

class RowPacker {
public:
    RowPacker() = default;  // packs nothing

    // REQUIRES: check_packed_type(type). Tensors that it would not make smaller stay as they are, as do those whose
    // rows its blocks do not divide.
    RowPacker(const llama_kv_cache& cache, const std::string& type);

    std::size_t raw_row_bytes() const { return raw_bytes_; }
    std::size_t row_bytes() const { return packed_bytes_; }
    std::size_t n_tensors() const { return columns_.size(); }

    // Of one tensor; different ones may be done at once. raw: n_rows * raw_row_bytes(), packed: n_rows * row_bytes().
    void pack(std::size_t tensor, const std::uint8_t* raw, std::size_t n_rows, std::uint8_t* packed) const;
    void unpack(std::size_t tensor, const std::uint8_t* packed, std::size_t n_rows, std::uint8_t* raw) const;

    // The first n of n_rows packed rows are appended to `out`.
    void append_first(std::span<const std::uint8_t> packed, std::size_t n_rows, std::size_t n,
                      memory::Bytes& out) const;

private:
    struct Column {
        ggml_type type = GGML_TYPE_F16;
        std::size_t n_numbers = 0;  // of a row
        bool is_packed = false;
        bool is_rotated = false;  // in the cache
        std::size_t raw_bytes = 0;
        std::size_t packed_bytes = 0;
        std::size_t raw_offset = 0;  // of one row, in tensors before
        std::size_t packed_offset = 0;
    };

    void add(const ggml_tensor* tensor, bool is_rotated);
    std::size_t packed_bytes(std::size_t n_numbers) const;

    bool has_three_bits_ = false;
    ggml_type type_ = GGML_TYPE_COUNT;
    std::vector<Column> columns_;
    std::size_t raw_bytes_ = 0;
    std::size_t packed_bytes_ = 0;
};

}  // namespace luce::llama
