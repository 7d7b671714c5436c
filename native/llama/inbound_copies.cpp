#include "llama/inbound_copies.h"

#include <string>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "llama/device_bytes.h"
#include "llama/device_copies.h"

namespace luce::llama {
namespace {

constexpr std::ptrdiff_t kMaxDistance = std::ptrdiff_t{1} << 30;  // CUDA takes no lines that lie 2 GiB apart

}  // namespace

void InboundCopies::open(std::span<ggml_tensor* const> tensors) {
    close();
    for (const ggml_tensor* tensor : tensors) {
        const ggml_backend_dev_t device = DeviceCopies::device_of(tensor);
        if (device == nullptr || streams_.contains(device)) continue;
        // Another kind of memory on it takes no copies of a stream.
        if (ggml_backend_buffer_get_type(tensor->buffer) != ggml_backend_dev_buffer_type(device)) continue;
        ggml_backend_dev_props props;
        ggml_backend_dev_get_props(device, &props);
        streams_[device].reset(props.caps.async ? ggml_backend_dev_init(device, nullptr) : nullptr);
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
    const ggml_backend_dev_t device = DeviceCopies::device_of(tensor);
    const auto found = streams_.find(device);
    if (found == streams_.end()) return nullptr;
    const bool is_plain = ggml_backend_buffer_get_type(tensor->buffer) == ggml_backend_dev_buffer_type(device);
    return is_plain ? found->second.get() : nullptr;
}

void InboundCopies::start(std::span<const Piece> pieces, std::shared_ptr<const void> owner) {
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
        for (std::size_t i = 0; i < n; ++i) {
            const Job& job = jobs_[i];  // stays where it is: others are only put behind it
            lock.unlock();
            send(job);
            lock.lock();
        }
        lock.unlock();
        for (const auto& [device, stream] : streams_) ggml_backend_synchronize(stream.get());
        lock.lock();
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

// A page's pieces lie at equal distances, layer by layer: one copy of so many lines is as fast as the bus, one copy
// each half as fast.
void InboundCopies::send(const Job& job) const {
    for (std::size_t begin = 0, end = 0; begin < job.pieces.size(); begin = end) {
        const Piece& first = job.pieces[begin];
        std::uint8_t* const to = data_of(first.tensor) + first.offset;
        std::ptrdiff_t distance = 0;
        for (end = begin + 1; end < job.pieces.size(); ++end) {
            const Piece& before = job.pieces[end - 1];
            const Piece& piece = job.pieces[end];
            const std::ptrdiff_t step = data_of(piece.tensor) + piece.offset - (data_of(before.tensor) + before.offset);
            if (end == begin + 1) distance = step;
            const bool goes_on = step == distance && step >= static_cast<std::ptrdiff_t>(first.n_bytes) &&
                                 step <= kMaxDistance && piece.n_bytes == first.n_bytes &&
                                 piece.from == before.from + before.n_bytes &&
                                 buffer_of(piece.tensor) == buffer_of(first.tensor);
            if (!goes_on) break;
        }
        const std::size_t n = end - begin;
        const auto stride = n > 1 ? static_cast<std::size_t>(distance) : first.n_bytes;
        ggml_tensor lines = bytes_at(buffer_of(first.tensor), to, (n - 1) * stride + first.n_bytes);
        ggml_backend_tensor_set_2d_async(stream_of(first.tensor), &lines, first.from, 0, first.n_bytes, n, stride,
                                         first.n_bytes);
    }
}

}  // namespace luce::llama
