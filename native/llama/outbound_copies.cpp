#include "llama/outbound_copies.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/log.h"

namespace luce::llama {
namespace {

void copy_now(const OutboundCopies::Piece& piece) {
    if (piece.tensor == nullptr) {
        std::memcpy(piece.out, piece.host, piece.n_bytes);
        return;
    }
    if (piece.rows.empty()) return ggml_backend_tensor_get(piece.tensor, piece.out, piece.offset, piece.n_bytes);
    for (std::size_t begin = 0, end = 0; begin < piece.rows.size(); begin = end) {
        end = begin + 1;
        while (end < piece.rows.size() && piece.rows[end] == piece.rows[end - 1] + 1) ++end;
        ggml_backend_tensor_get(piece.tensor, piece.out + begin * piece.row_bytes, piece.rows[begin] * piece.row_bytes,
                                (end - begin) * piece.row_bytes);
    }
}

}  // namespace

void OutboundCopies::open(std::span<ggml_tensor* const> tensors, std::size_t n_staged_bytes) {
    std::vector<ggml_backend_dev_t> known;
    for (const ggml_tensor* tensor : tensors) {
        const ggml_backend_dev_t device = DeviceCopies::device_of(tensor);
        if (device == nullptr || std::find(known.begin(), known.end(), device) != known.end()) continue;
        known.push_back(device);
        if (std::shared_ptr<DeviceCopies> copies = DeviceCopies::create(device, n_staged_bytes)) {
            const std::lock_guard lock(mutex_);
            devices_.push_back(std::move(copies));
        } else {
            log_warn("copies from " + std::string(ggml_backend_dev_name(device)) +
                     " to the host hold the engine up: there is no room for " + std::to_string(n_staged_bytes >> 20) +
                     " MiB to stage them on it, or it cannot copy beside its work");
        }
    }
}

void OutboundCopies::close() {
    std::vector<std::shared_ptr<DeviceCopies>> closed;
    {
        const std::lock_guard lock(mutex_);
        closed.swap(devices_);
    }
    for (const auto& device : closed) device->wait();
}

void OutboundCopies::start(std::span<const Piece> pieces, const std::shared_ptr<const void>& owner) {
    std::vector<bool> is_done(pieces.size());
    std::vector<Piece> of_device;
    for (const auto& copies : devices_) {
        const auto goes_along = [&](std::size_t i) {
            const ggml_tensor* tensor = pieces[i].tensor;
            return !is_done[i] && (tensor == nullptr || DeviceCopies::device_of(tensor) == copies->device());
        };
        of_device.clear();
        for (std::size_t i = 0; i < pieces.size(); ++i) {
            if (goes_along(i)) of_device.push_back(pieces[i]);
        }
        if (of_device.empty() || !copies->start(of_device, owner)) continue;
        for (std::size_t i = 0; i < pieces.size(); ++i) is_done[i] = is_done[i] || goes_along(i);
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        if (!is_done[i]) copy_now(pieces[i]);
    }
}

void OutboundCopies::wait() {
    std::vector<std::shared_ptr<DeviceCopies>> devices;
    {
        const std::lock_guard lock(mutex_);
        devices = devices_;
    }
    for (const auto& device : devices) device->wait();
}

void OutboundCopies::wait_for(std::span<const std::uint8_t> bytes) {
    for (const auto& device : devices_) device->wait_for(bytes);
}

}  // namespace luce::llama
