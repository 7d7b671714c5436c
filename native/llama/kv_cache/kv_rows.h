// KvRows: the rows of K and V behind the cells of an attention cache, in and out. Knows tensors and which cells lie
// side by side; must not know who sees them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "llama/device_copy/copies_within.h"
#include "llama/device_copy/inbound_copies.h"
#include "llama/device_copy/outbound_copies.h"
#include "memory/manager/kv_device.h"

class llama_kv_cache;
struct ggml_tensor;

namespace luce::llama {

class KvRows {
public:
    KvRows() = default;  // none
    explicit KvRows(llama_kv_cache& cache);

    std::size_t row_bytes() const { return row_bytes_; }
    std::size_t n_tensors() const { return columns_.size(); }
    bool is_host_memory() const;

    // What has to be copied to `out`: tensor by tensor, and in each the cells in the order given. `cells` is looked at
    // later.
    std::vector<OutboundCopies::Piece> pieces(std::span<const memory::Cell> cells, std::uint8_t* out) const;
    std::vector<ggml_tensor*> tensors() const;
    // The first n of n_rows rows of such a copy, as if only they had been read.
    memory::Bytes first(std::span<const std::uint8_t> rows, std::size_t n_rows, std::size_t n) const;
    // The first cells.size() of n_rows rows of such a copy.
    void write(std::span<const memory::Cell> cells, const std::uint8_t* rows, std::size_t n_rows) const;
    // The same as it is done later: which bytes go where. `rows` are looked at then.
    std::vector<InboundCopies::Piece> inbound_pieces(std::span<const memory::Cell> cells,
                                                     const std::uint8_t* rows) const;
    // From cell to cell; where both have neighbours, with them. REQUIRES: rows go to cells that none come from.
    void move(std::span<const memory::Cell> from, std::span<const memory::Cell> to, CopiesWithin& copies) const;

private:
    struct Column {
        ggml_tensor* tensor;
        std::size_t row_bytes;
    };

    void add(ggml_tensor* tensor);

    std::vector<Column> columns_;
    std::size_t row_bytes_ = 0;
};

}  // namespace luce::llama
