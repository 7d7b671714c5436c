#include "llama/device_copy/outbound_copies.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

#include "base/log.h"
#include "base/step_profile.h"
#include "llama/device_copy/tensor_parts.h"

namespace luce::llama {
namespace {

void copy_now(const OutboundCopies::Piece& piece) {
    if (piece.tensor == nullptr) {
        std::memcpy(piece.out, piece.host, piece.n_bytes);
        return;
    }
    if (piece.rows.empty()) return ggml_backend_tensor_get(piece.tensor, piece.out, piece.offset, piece.n_bytes);
    for_each_run(piece.rows, [&](std::size_t begin, std::size_t n) {
        const std::size_t from = piece.rows[begin] * piece.row_bytes;
        if (piece.out_stride == 0) {
            ggml_backend_tensor_get(piece.tensor, piece.out + begin * piece.row_bytes, from, n * piece.row_bytes);
        } else {
            ggml_backend_tensor_get_2d(piece.tensor, piece.out + begin * piece.out_stride, from, piece.row_bytes, n,
                                       piece.row_bytes, piece.out_stride);
        }
    });
}

SpanCounts bytes_of(std::span<const OutboundCopies::Piece> pieces) {
    std::size_t n_bytes = 0;
    for (const OutboundCopies::Piece& piece : pieces) n_bytes += piece.size();
    return {static_cast<std::int64_t>(n_bytes)};
}

}  // namespace

void OutboundCopies::open(std::span<ggml_tensor* const> tensors, std::size_t n_staged_bytes) {
    Devices opened;
    std::set<ggml_backend_dev_t> known{nullptr};
    std::vector<ggml_backend_dev_t> devices;
    for (const ggml_tensor* tensor : tensors) {
        const std::vector<RowPart> parts = parts_of_rows(tensor);
        for (const RowPart& part : parts) devices.push_back(device_holding(part.tensor));
        if (parts.empty()) devices.push_back(device_holding(tensor));
    }
    for (ggml_backend_dev_t device : devices) {
        if (!known.insert(device).second) continue;
        const std::string name = ggml_backend_dev_name(device);
        std::shared_ptr<DeviceCopies> copies = DeviceCopies::create(device, n_staged_bytes);
        if (copies == nullptr || !copies->can_stage()) {
            log_warn("copies from " + name + " to the host hold the engine up: there is no room for " +
                     std::to_string(n_staged_bytes >> 20) +
                     " MiB to stage them on it, or it cannot copy beside its work");
        } else if (!copies->can_hold_back()) {
            log_info("pages that leave " + name + " are copied aside on it first: it cannot wait for copies by itself");
        }
        if (copies != nullptr) opened.push_back(std::move(copies));
    }
    const std::lock_guard lock(mutex_);
    devices_ = std::move(opened);
}

void OutboundCopies::close() {
    Devices closed;
    {
        const std::lock_guard lock(mutex_);
        closed.swap(devices_);
    }
    for (const auto& device : closed) device->wait();
}

void OutboundCopies::start(std::span<const Piece> asked, const std::shared_ptr<const void>& owner) {
    const std::vector<Piece> pieces = cut_into_parts(asked);
    const Span span(Part::copy, bytes_of(pieces));
    std::vector<bool> is_done(pieces.size());
    std::vector<Piece> of_device;
    for (const auto& device : devices_) {
        const auto goes_along = [&](std::size_t i) {
            const ggml_tensor* tensor = pieces[i].tensor;
            return !is_done[i] && (tensor == nullptr || device_holding(tensor) == device->device());
        };
        of_device.clear();
        for (std::size_t i = 0; i < pieces.size(); ++i) {
            if (goes_along(i)) of_device.push_back(pieces[i]);
        }
        if (of_device.empty() || !device->start(of_device, owner)) continue;
        for (std::size_t i = 0; i < pieces.size(); ++i) is_done[i] = is_done[i] || goes_along(i);
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        if (!is_done[i]) copy_now(pieces[i]);
    }
}

// Each device gets its own pieces, the first one also those of the host.
bool OutboundCopies::start_behind(ggml_backend_sched_t scheduler, std::span<const Piece> asked,
                                  const std::shared_ptr<const void>& owner) {
    const std::vector<Piece> pieces = cut_into_parts(asked);
    std::vector<std::vector<Piece>> of_device(devices_.size());
    for (const Piece& piece : pieces) {
        const auto found = std::find_if(devices_.begin(), devices_.end(), [&](const auto& device) {
            return piece.tensor == nullptr || (device_holding(piece.tensor) == device->device() &&
                                               is_plain_memory(piece.tensor, device->device()));
        });
        if (found == devices_.end()) return false;
        of_device[static_cast<std::size_t>(found - devices_.begin())].push_back(piece);
    }
    for (std::size_t i = 0; i < devices_.size(); ++i) {
        if (!of_device[i].empty() && stream_of(scheduler, devices_[i]->device()) == nullptr) return false;
    }
    const Span span(Part::copy, bytes_of(pieces));
    bool has_started = false;
    for (std::size_t i = 0; i < devices_.size(); ++i) {
        if (of_device[i].empty()) continue;
        ggml_backend_t stream = stream_of(scheduler, devices_[i]->device());
        if (devices_[i]->start_behind(stream, of_device[i], owner)) {
            has_started = true;
        } else if (!has_started) {
            return false;
        } else {
            ggml_backend_synchronize(stream);
            start(of_device[i], owner);
        }
    }
    return true;
}

void OutboundCopies::start_lasting(std::span<const Piece> pieces, const std::shared_ptr<const void>& owner) {
    Span span(Part::copy);
    std::vector<Piece> left = cut_into_parts(pieces);
    for (const auto& device : devices_) {
        const std::vector<bool> is_taken = device->goes_straight(left);
        std::vector<Piece> taken;
        std::vector<Piece> others;
        for (std::size_t i = 0; i < left.size(); ++i) (is_taken[i] ? taken : others).push_back(left[i]);
        if (!taken.empty()) device->start_lasting(taken, owner);
        left = std::move(others);
    }
    span.count({bytes_of(pieces)[0] - bytes_of(left)[0]});
    if (!left.empty()) start(left, owner);
}

void OutboundCopies::hold_back(ggml_backend_sched_t scheduler) {
    for (const auto& device : devices_) {
        if (ggml_backend_t stream = stream_of(scheduler, device->device())) device->hold_back(stream);
    }
}

OutboundCopies::Devices OutboundCopies::devices() const {
    const std::lock_guard lock(mutex_);
    return devices_;
}

void OutboundCopies::wait() {
    const Span span(Part::copy_wait);
    for (const auto& device : devices()) device->wait();
}

std::size_t OutboundCopies::n_bytes_under_way() const {
    std::size_t n_bytes = 0;
    for (const auto& device : devices()) n_bytes += device->n_bytes_under_way();
    return n_bytes;
}

void OutboundCopies::wait_for(std::span<const std::uint8_t> bytes) {
    const Span span(Part::copy_wait);
    for (const auto& device : devices_) device->wait_for(bytes);
}

}  // namespace luce::llama
