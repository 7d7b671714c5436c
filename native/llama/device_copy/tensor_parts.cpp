#include "llama/device_copy/tensor_parts.h"

#include <algorithm>

#include "ggml-backend-impl.h"

namespace luce::llama {
namespace {

using Piece = DeviceCopies::Piece;

bool has_whole_rows(const RowPart& part) { return part.from == 0 && part.n_bytes == part.tensor->nb[1]; }

// Of rows: one piece a part, whose lines do not follow one another at `out`.
bool add_rows(std::vector<Piece>& cut, const Piece& piece, std::span<const RowPart> parts) {
    if (piece.row_bytes != piece.tensor->nb[1] || !std::all_of(parts.begin(), parts.end(), has_whole_rows)) {
        return false;
    }
    for (const RowPart& part : parts) {
        cut.push_back({.tensor = part.tensor,
                       .out = piece.out + part.at,
                       .row_bytes = part.n_bytes,
                       .out_stride = piece.row_bytes,
                       .rows = piece.rows});
    }
    return true;
}

// Of bytes that are whole rows.
bool add_run(std::vector<Piece>& cut, const Piece& piece, std::span<const RowPart> parts) {
    const std::size_t row_bytes = piece.tensor->nb[1];
    if (piece.offset % row_bytes != 0 || piece.n_bytes % row_bytes != 0) return false;
    for (std::size_t i = 0; i < piece.n_bytes / row_bytes; ++i) {
        const std::size_t row = piece.offset / row_bytes + i;
        for (const RowPart& part : parts) {
            cut.push_back({.tensor = part.tensor,
                           .out = piece.out + i * row_bytes + part.at,
                           .offset = row * part.tensor->nb[1] + part.from,
                           .n_bytes = part.n_bytes});
        }
    }
    return true;
}

}  // namespace

std::vector<ggml_tensor*> tensors_with_rows_of(const ggml_tensor* tensor) {
    ggml_backend_buffer_t buffer = tensor->buffer;
    if (!ggml_backend_buffer_is_meta(buffer) || !ggml_is_contiguous(tensor) || ggml_nrows(tensor) != tensor->ne[1]) {
        return {};
    }
    const ggml_backend_meta_split_axis axis = ggml_backend_meta_get_split_state(tensor, false).axis;
    if (axis != GGML_BACKEND_SPLIT_AXIS_0 && axis != GGML_BACKEND_SPLIT_AXIS_MIRRORED) return {};
    std::vector<ggml_tensor*> tensors;
    for (std::size_t i = 0; i < ggml_backend_meta_buffer_n_bufs(buffer); ++i) {
        tensors.push_back(ggml_backend_meta_buffer_simple_tensor(tensor, i));
    }
    return tensors;
}

std::vector<RowPart> parts_of_rows(const ggml_tensor* tensor) {
    const std::vector<ggml_tensor*> on_device = tensors_with_rows_of(tensor);
    if (on_device.empty()) return {};
    const auto split = ggml_backend_meta_get_split_state(tensor, false);
    if (split.axis == GGML_BACKEND_SPLIT_AXIS_MIRRORED) return {{on_device[0], 0, 0, tensor->nb[1]}};
    const bool is_in_segments = split.n_segments != 1 || split.nr[0] != 1;
    std::vector<RowPart> parts;
    std::vector<std::size_t> from(on_device.size());
    std::size_t at = 0;
    for (std::size_t segment = 0; segment < split.n_segments; ++segment) {
        for (std::uint32_t repeat = 0; repeat < split.nr[segment]; ++repeat) {
            for (std::size_t i = 0; i < on_device.size(); ++i) {
                const std::int64_t n = split.ne[segment * on_device.size() + i];
                const std::size_t n_bytes = is_in_segments ? ggml_row_size(tensor->type, n) : on_device[i]->nb[1];
                if (n_bytes > 0) parts.push_back({on_device[i], from[i], at, n_bytes});
                from[i] += n_bytes;
                at += n_bytes;
            }
        }
    }
    if (at != tensor->nb[1]) parts.clear();
    return parts;
}

ggml_backend_t stream_of(ggml_backend_sched_t scheduler, ggml_backend_dev_t device) {
    const auto is_of_device = [device](ggml_backend_t backend) { return ggml_backend_get_device(backend) == device; };
    for (int i = 0; i < ggml_backend_sched_get_n_backends(scheduler); ++i) {
        ggml_backend_t backend = ggml_backend_sched_get_backend(scheduler, i);
        if (is_of_device(backend)) return backend;
        const std::size_t n_parts = ggml_backend_is_meta(backend) ? ggml_backend_meta_n_backends(backend) : 0;
        for (std::size_t part = 0; part < n_parts; ++part) {
            ggml_backend_t of_part = ggml_backend_meta_simple_backend(backend, part);
            if (is_of_device(of_part)) return of_part;
        }
    }
    return nullptr;
}

std::vector<Piece> cut_into_parts(std::span<const Piece> pieces) {
    std::vector<Piece> cut;
    for (const Piece& piece : pieces) {
        std::vector<RowPart> parts;
        if (piece.tensor != nullptr) parts = parts_of_rows(piece.tensor);
        const bool is_cut =
            !parts.empty() && (piece.rows.empty() ? add_run(cut, piece, parts) : add_rows(cut, piece, parts));
        if (!is_cut) cut.push_back(piece);
    }
    return cut;
}

}  // namespace luce::llama
