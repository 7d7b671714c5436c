// Where a tensor's rows lie if several devices have a part of each (--split-mode tensor): each part is a tensor of its
// own on one device, which has a stream of its own. Knows rows; must not know what they mean.
#pragma once

#include <span>
#include <vector>

#include "llama/device_copy/device_copies.h"

namespace luce::llama {

// A run of bytes of each row.
struct RowPart {
    ggml_tensor* tensor;  // on its device
    std::size_t from;     // in that tensor's row
    std::size_t at;       // in the whole row
    std::size_t n_bytes;
};

// In rising order of `at`; of what each device has a copy the first one's. None: the tensor lies on one device, or is
// not cut within its rows.
std::vector<RowPart> parts_of_rows(const ggml_tensor* tensor);

// The tensors that have a part, or a copy, of each row, one a device. None: as above.
std::vector<ggml_tensor*> tensors_with_rows_of(const ggml_tensor* tensor);

// The same bytes, tensors in parts as pieces of their parts. What cannot be said so stays as it is.
std::vector<DeviceCopies::Piece> cut_into_parts(std::span<const DeviceCopies::Piece> pieces);

// The stream on which the scheduler computes on that device, also as one of several that compute each tensor together;
// null: on none.
ggml_backend_t stream_of(ggml_backend_sched_t scheduler, ggml_backend_dev_t device);

}  // namespace luce::llama
