#include "llama/kv_cache/kv_rows.h"

#include <algorithm>

#include "ggml-backend.h"
#include "llama-kv-cache.h"
#include "llama/decoding/private_member.h"

namespace luce::llama {

struct Layers {
    friend constexpr auto member_of(Layers);
};

template struct PrivateMember<Layers, &llama_kv_cache::layers>;

using memory::Cell;

// One entry a storage: layers that share another one's rows have none of their own. MLA keeps no V.
KvRows::KvRows(llama_kv_cache& cache) {
    for (const auto& layer : cache.*member_of(Layers{})) {
        add(layer.k);
        if (layer.v != nullptr) add(layer.v);
    }
}

void KvRows::add(ggml_tensor* tensor) {
    columns_.push_back({tensor, tensor->nb[1]});
    row_bytes_ += tensor->nb[1];
}

bool KvRows::is_host_memory() const {
    return std::all_of(columns_.begin(), columns_.end(),
                       [](const Column& column) { return ggml_backend_buffer_is_host(column.tensor->buffer); });
}

std::vector<OutboundCopies::Piece> KvRows::pieces(std::span<const Cell> cells, std::uint8_t* out) const {
    std::vector<OutboundCopies::Piece> pieces;
    for (const Column& column : columns_) {
        pieces.push_back({.tensor = column.tensor, .out = out, .row_bytes = column.row_bytes, .rows = cells});
        out += cells.size() * column.row_bytes;
    }
    return pieces;
}

std::vector<ggml_tensor*> KvRows::tensors() const {
    std::vector<ggml_tensor*> tensors;
    for (const Column& column : columns_) tensors.push_back(column.tensor);
    return tensors;
}

// Run by run, in each tensor by tensor: so the lines of a run lie at equal distances (device_lines.h).
std::vector<InboundCopies::Piece> KvRows::inbound_pieces(std::span<const Cell> cells, const std::uint8_t* rows) const {
    std::vector<InboundCopies::Piece> pieces;
    for_each_run(cells, [&](std::size_t first, std::size_t n) {
        const std::uint8_t* of_column = rows;
        for (const Column& column : columns_) {
            pieces.push_back({column.tensor, cells[first] * column.row_bytes, of_column + first * column.row_bytes,
                              n * column.row_bytes});
            of_column += cells.size() * column.row_bytes;
        }
    });
    return pieces;
}

memory::Bytes KvRows::first(std::span<const std::uint8_t> rows, std::size_t n_rows, std::size_t n) const {
    memory::Bytes out;
    out.reserve(n * row_bytes_);
    for (const Column& column : columns_) {
        const auto kept = rows.first(n * column.row_bytes);
        out.insert(out.end(), kept.begin(), kept.end());
        rows = rows.subspan(n_rows * column.row_bytes);
    }
    return out;
}

void KvRows::write(std::span<const Cell> cells, const std::uint8_t* rows, std::size_t n_rows) const {
    for (const Column& column : columns_) {
        for_each_run(cells, [&](std::size_t first, std::size_t n) {
            ggml_backend_tensor_set(column.tensor, rows + first * column.row_bytes, cells[first] * column.row_bytes,
                                    n * column.row_bytes);
        });
        rows += n_rows * column.row_bytes;
    }
}

void KvRows::move(std::span<const Cell> from, std::span<const Cell> to, CopiesWithin& copies) const {
    for (std::size_t begin = 0, end = 0; begin < from.size(); begin = end) {
        end = begin + 1;
        while (end < from.size() && from[end] == from[end - 1] + 1 && to[end] == to[end - 1] + 1) ++end;
        if (from[begin] == to[begin]) continue;
        for (const Column& column : columns_) {
            copies.copy(column.tensor, from[begin] * column.row_bytes, to[begin] * column.row_bytes,
                        (end - begin) * column.row_bytes);
        }
    }
}

}  // namespace luce::llama
