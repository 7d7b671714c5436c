#include "llama/device_copy/inbound_copies.h"

#include <string>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/step_profile.h"
#include "llama/device_copy/device_lines.h"

namespace luce::llama {
namespace {

std::size_t n_bytes_of(std::span<const InboundCopies::Piece> pieces) {
    std::size_t n_bytes = 0;
    for (const InboundCopies::Piece& piece : pieces) n_bytes += piece.n_bytes;
    return n_bytes;
}

}  // namespace

void InboundCopies::open(std::span<ggml_tensor* const> tensors) {
    close();
    for (const ggml_tensor* tensor : tensors) {
        const ggml_backend_dev_t device = device_holding(tensor);
        if (device == nullptr || streams_.contains(device)) continue;
        if (!is_plain_memory(tensor, device)) continue;
        streams_[device].reset(can_stream(device) ? ggml_backend_dev_init(device, nullptr) : nullptr);
        if (streams_[device] == nullptr) {
            log_warn("copies from the host to " + std::string(ggml_backend_dev_name(device)) +
                     " hold the engine up: it cannot copy beside its work");
        }
    }
    std::erase_if(streams_, [](const auto& stream) { return stream.second == nullptr; });
    if (streams_.empty()) return;
    try {
        thread_ = std::thread([this] { run(); });
    } catch (const std::system_error&) {
        log_warn("copies to the device hold the engine up: the system has no thread for them");
        streams_.clear();
    }
}

void InboundCopies::close() {
    if (thread_.joinable()) {
        {
            const std::lock_guard lock(mutex_);
            is_closing_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }
    is_closing_ = false;
    streams_.clear();
}

ggml_backend_t InboundCopies::stream_of(const ggml_tensor* tensor) const {
    const ggml_backend_dev_t device = device_holding(tensor);
    const auto found = streams_.find(device);
    if (found == streams_.end()) return nullptr;
    return is_plain_memory(tensor, device) ? found->second.get() : nullptr;
}

void InboundCopies::start(std::span<const Piece> pieces, std::shared_ptr<const void> owner) {
    const Span span(Part::copy, {static_cast<std::int64_t>(n_bytes_of(pieces))});
    Job job;
    for (const Piece& piece : pieces) {
        if (stream_of(piece.tensor) != nullptr) {
            job.pieces.push_back(piece);
        } else {
            ggml_backend_tensor_set(piece.tensor, piece.from, piece.offset, piece.n_bytes);
        }
    }
    if (job.pieces.empty()) return;
    job.owner = std::move(owner);
    {
        const std::lock_guard lock(mutex_);
        jobs_.push_back(std::move(job));
    }
    changed_.notify_all();
}

void InboundCopies::wait() {
    if (!thread_.joinable()) return;
    const Span span(Part::copy_wait);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return jobs_.empty(); });
}

// All that waits is sent before anybody waits for it to arrive.
void InboundCopies::run() {
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return is_closing_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        const std::size_t n = jobs_.size();
        send_first(n, lock);
        std::vector<std::shared_ptr<const void>> owners;
        for (std::size_t i = 0; i < n; ++i) {
            owners.push_back(std::move(jobs_.front().owner));
            jobs_.pop_front();
        }
        lock.unlock();
        changed_.notify_all();
        owners.clear();  // perhaps the last who hold them
        lock.lock();
    }
}

// Returns when they have arrived.
void InboundCopies::send_first(std::size_t n, std::unique_lock<std::mutex>& lock) {
    std::size_t n_bytes = 0;
    for (std::size_t i = 0; i < n; ++i) n_bytes += n_bytes_of(jobs_[i].pieces);
    const BackgroundSpan span(Part::copies_in, static_cast<std::int64_t>(n_bytes));
    for (std::size_t i = 0; i < n; ++i) {
        const Job& job = jobs_[i];  // stays where it is: others are only put behind it
        lock.unlock();
        send(job);
        lock.lock();
    }
    lock.unlock();
    for (const auto& [device, stream] : streams_) ggml_backend_synchronize(stream.get());
    lock.lock();
}

void InboundCopies::send(const Job& job) const {
    std::vector<DeviceLine> lines;
    for (const Piece& piece : job.pieces) {
        lines.push_back({buffer_of(piece.tensor), data_of(piece.tensor) + piece.offset, piece.from, piece.n_bytes});
    }
    for (const LineGroup& group : group_lines(lines)) {
        const DeviceLine& first = lines[group.begin];
        ggml_tensor target = bytes_at(first.buffer, first.there, (group.n - 1) * group.stride_there + first.n_bytes);
        ggml_backend_tensor_set_2d_async(stream_of(job.pieces[group.begin].tensor), &target, first.here, 0,
                                         first.n_bytes, group.n, group.stride_there, group.stride_here);
    }
}

}  // namespace luce::llama
