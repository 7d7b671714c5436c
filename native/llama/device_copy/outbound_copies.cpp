#include "llama/device_copy/outbound_copies.h"

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
    std::vector<Device> opened;
    for (const ggml_tensor* tensor : tensors) {
        Device device{DeviceCopies::device_of(tensor), nullptr, nullptr};
        const auto is_it = [&](const Device& known) { return known.device == device.device; };
        if (device.device == nullptr || std::any_of(opened.begin(), opened.end(), is_it)) continue;
        const std::string name = ggml_backend_dev_name(device.device);
        device.aside = DeviceCopies::create(device.device, n_staged_bytes);
        device.straight = DirectCopies::create(device.device);
        if (device.aside == nullptr) {
            log_warn("copies from " + name + " to the host hold the engine up: there is no room for " +
                     std::to_string(n_staged_bytes >> 20) +
                     " MiB to stage them on it, or it cannot copy beside its work");
        } else if (device.straight == nullptr) {
            log_info("pages that leave " + name + " are copied aside on it first: it cannot wait for copies by itself");
        }
        opened.push_back(std::move(device));
    }
    const std::lock_guard lock(mutex_);
    devices_ = std::move(opened);
}

void OutboundCopies::close() {
    std::vector<Device> closed;
    {
        const std::lock_guard lock(mutex_);
        closed.swap(devices_);
    }
    for (const Device& device : closed) {
        if (device.aside != nullptr) device.aside->wait();
        if (device.straight != nullptr) device.straight->wait();
    }
}

void OutboundCopies::start(std::span<const Piece> pieces, const std::shared_ptr<const void>& owner) {
    std::vector<bool> is_done(pieces.size());
    std::vector<Piece> of_device;
    for (const Device& device : devices_) {
        if (device.aside == nullptr) continue;
        const auto goes_along = [&](std::size_t i) {
            const ggml_tensor* tensor = pieces[i].tensor;
            return !is_done[i] && (tensor == nullptr || DeviceCopies::device_of(tensor) == device.device);
        };
        of_device.clear();
        for (std::size_t i = 0; i < pieces.size(); ++i) {
            if (goes_along(i)) of_device.push_back(pieces[i]);
        }
        if (of_device.empty() || !device.aside->start(of_device, owner)) continue;
        for (std::size_t i = 0; i < pieces.size(); ++i) is_done[i] = is_done[i] || goes_along(i);
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        if (!is_done[i]) copy_now(pieces[i]);
    }
}

void OutboundCopies::start_of_lasting(std::span<const Piece> pieces, const std::shared_ptr<const void>& owner) {
    std::vector<Piece> left(pieces.begin(), pieces.end());
    for (const Device& device : devices_) {
        if (device.straight == nullptr) continue;
        const std::vector<bool> is_taken = device.straight->taken(left);
        std::vector<Piece> taken;
        std::vector<Piece> others;
        for (std::size_t i = 0; i < left.size(); ++i) (is_taken[i] ? taken : others).push_back(left[i]);
        if (!taken.empty()) device.straight->start(taken, owner);
        left = std::move(others);
    }
    if (!left.empty()) start(left, owner);
}

void OutboundCopies::hold_back(ggml_backend_sched_t scheduler) {
    for (const Device& device : devices_) {
        if (device.straight == nullptr) continue;
        for (int i = 0; i < ggml_backend_sched_get_n_backends(scheduler); ++i) {
            ggml_backend_t backend = ggml_backend_sched_get_backend(scheduler, i);
            if (ggml_backend_get_device(backend) == device.device) device.straight->hold_back(backend);
        }
    }
}

std::vector<OutboundCopies::Device> OutboundCopies::devices() const {
    const std::lock_guard lock(mutex_);
    return devices_;
}

void OutboundCopies::wait() {
    for (const Device& device : devices()) {
        if (device.aside != nullptr) device.aside->wait();
        if (device.straight != nullptr) device.straight->wait();
    }
}

void OutboundCopies::wait_for(std::span<const std::uint8_t> bytes) {
    for (const Device& device : devices_) {
        if (device.aside != nullptr) device.aside->wait_for(bytes);
        if (device.straight != nullptr) device.straight->wait_for(bytes);
    }
}

}  // namespace luce::llama
