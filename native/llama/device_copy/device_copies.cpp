#include "llama/device_copy/device_copies.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <system_error>
#include <utility>

#include "ggml.h"
#include "llama/device_copy/device_bytes.h"
#include "memory/pages/block_source.h"

namespace luce::llama {
namespace {

constexpr std::size_t kPinnedHalf_bytes = std::size_t{8} << 20;
constexpr std::size_t kGatherFrom = 8;  // runs of neighbouring rows, from which one kernel is faster than a copy each
constexpr std::size_t kMaxGathered = 4096;  // rows of one piece
constexpr std::size_t kAlignment = 256;

std::size_t aligned(std::size_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

std::size_t n_runs(std::span<const std::uint32_t> rows) {
    std::size_t n = rows.empty() ? 0 : 1;
    for (std::size_t i = 1; i < rows.size(); ++i) n += rows[i] != rows[i - 1] + 1;
    return n;
}

bool is_gathered(const DeviceCopies::Piece& piece) {
    return n_runs(piece.rows) >= kGatherFrom && piece.rows.size() <= kMaxGathered &&
           piece.row_bytes % sizeof(std::int32_t) == 0;
}

}  // namespace

ggml_backend_dev_t DeviceCopies::device_of(const ggml_tensor* tensor) {
    const ggml_backend_buffer_t buffer = buffer_of(tensor);
    if (ggml_backend_buffer_is_host(buffer)) return nullptr;
    return ggml_backend_buft_get_device(ggml_backend_buffer_get_type(buffer));
}

std::unique_ptr<DeviceCopies> DeviceCopies::create(ggml_backend_dev_t device, std::size_t n_staged_bytes) {
    ggml_backend_dev_props props;
    ggml_backend_dev_get_props(device, &props);
    const ggml_backend_buffer_type_t host_type = ggml_backend_dev_host_buffer_type(device);
    if (!props.caps.async || host_type == nullptr) return nullptr;
    BackendPtr aside(ggml_backend_dev_init(device, nullptr));
    BackendPtr over(ggml_backend_dev_init(device, nullptr));
    if (!aside || !over) return nullptr;
    BufferPtr staging(ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(device), n_staged_bytes));
    BufferPtr pinned(ggml_backend_buft_alloc_buffer(host_type, 2 * kPinnedHalf_bytes));
    if (!staging || !pinned) return nullptr;
    try {
        return std::unique_ptr<DeviceCopies>(
            new DeviceCopies(device, std::move(aside), std::move(over), std::move(staging), std::move(pinned)));
    } catch (const std::system_error&) {  // no thread
        return nullptr;
    }
}

DeviceCopies::DeviceCopies(ggml_backend_dev_t device, BackendPtr aside, BackendPtr over, BufferPtr staging,
                           BufferPtr pinned)
    : device_(device),
      aside_(std::move(aside)),
      over_(std::move(over)),
      staging_(std::move(staging)),
      pinned_(std::move(pinned)),
      thread_([this] { run(); }) {}

DeviceCopies::~DeviceCopies() {
    {
        const std::lock_guard lock(mutex_);
        is_closing_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

bool DeviceCopies::start(std::span<const Piece> pieces, std::shared_ptr<const void> owner) {
    std::size_t n_bytes = 0;
    for (const Piece& piece : pieces) n_bytes += piece.tensor == nullptr ? 0 : aligned(piece.size());
    if (n_bytes > ggml_backend_buffer_get_size(staging_.get())) return false;
    Job job;
    job.begin = reserve(n_bytes);
    job.end = job.begin + n_bytes;
    job.owner = std::move(owner);
    std::vector<Piece> gathered;
    std::vector<std::size_t> gathered_to;
    std::size_t staged = job.begin;
    for (const Piece& piece : pieces) {
        add(job.parts, piece, staged);
        if (piece.tensor == nullptr) continue;
        if (is_gathered(piece)) {
            gathered.push_back(piece);
            gathered_to.push_back(staged);
        } else {
            copy_aside(piece, staged);
        }
        staged += aligned(piece.size());
    }
    if (!gathered.empty()) gather(gathered, gathered_to);
    ggml_backend_synchronize(aside_.get());
    {
        const std::lock_guard lock(mutex_);
        jobs_.push_back(std::move(job));
        ++n_started_;
    }
    changed_.notify_all();
    return true;
}

void DeviceCopies::add(std::vector<Part>& parts, const Piece& piece, std::size_t staged) {
    if (!parts.empty() && parts.back().host == nullptr && piece.tensor != nullptr) {
        Part& last = parts.back();
        if (last.staged + last.n_bytes == staged && last.out + last.n_bytes == piece.out) {
            last.n_bytes += piece.size();
            return;
        }
    }
    parts.push_back({piece.host, staged, piece.size(), piece.out});
}

void DeviceCopies::wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, n = n_started_] { return n_arrived_ >= n; });
}

void DeviceCopies::wait_for(std::span<const std::uint8_t> bytes) {
    const auto goes_there = [bytes](const Part& part) {
        return part.out < bytes.data() + bytes.size() && bytes.data() < part.out + part.n_bytes;
    };
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
        return std::none_of(jobs_.begin(), jobs_.end(), [&](const Job& job) {
            return std::any_of(job.parts.begin(), job.parts.end(), goes_there);
        });
    });
}

// Jobs leave in the order in which they came, so that what is occupied is one stretch of the ring.
std::size_t DeviceCopies::reserve(std::size_t n_bytes) {
    const std::size_t n_all = ggml_backend_buffer_get_size(staging_.get());
    std::unique_lock lock(mutex_);
    std::size_t begin = 0;
    changed_.wait(lock, [&] {
        if (jobs_.empty()) {
            begin = 0;
            return true;
        }
        const std::size_t first = jobs_.front().begin;
        if (next_ > first) {  // free: behind the last job, and before the first one
            begin = next_ + n_bytes <= n_all ? next_ : 0;
            return begin == next_ || n_bytes < first;
        }
        begin = next_;
        return next_ + n_bytes < first;
    });
    next_ = begin + n_bytes;
    return begin;
}

void DeviceCopies::copy_aside(const Piece& piece, std::size_t staged) {
    const auto copy = [&](std::size_t from, std::size_t to, std::size_t n_bytes) {
        ggml_tensor source = bytes_at(buffer_of(piece.tensor), data_of(piece.tensor) + from, n_bytes);
        ggml_tensor target = bytes_at(staging_.get(), data_of(staging_.get()) + to, n_bytes);
        ggml_backend_tensor_copy_async(aside_.get(), aside_.get(), &source, &target);
    };
    if (piece.rows.empty()) return copy(piece.offset, staged, piece.n_bytes);
    for (std::size_t begin = 0, end = 0; begin < piece.rows.size(); begin = end) {
        end = begin + 1;
        while (end < piece.rows.size() && piece.rows[end] == piece.rows[end - 1] + 1) ++end;
        copy(piece.rows[begin] * piece.row_bytes, staged + begin * piece.row_bytes, (end - begin) * piece.row_bytes);
    }
}

// One kernel a piece, or a copy for each run of rows where the device has no memory for that. Rows are taken as 32-bit
// integers, which ggml copies as they are whatever they stand for.
void DeviceCopies::gather(std::span<const Piece> pieces, std::span<const std::size_t> staged) {
    const auto copy_all_aside = [&] {
        for (std::size_t i = 0; i < pieces.size(); ++i) copy_aside(pieces[i], staged[i]);
    };
    if (!indices_) {
        indices_.reset(
            ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(device_), kMaxGathered * sizeof(std::int32_t)));
        if (!indices_) return copy_all_aside();
    }
    const std::size_t n_nodes = 4 * pieces.size() + 16;
    const ggml_init_params params{n_nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_nodes, false),
                                  nullptr, true};
    const std::unique_ptr<ggml_context, decltype(&ggml_free)> context(ggml_init(params), ggml_free);
    ggml_cgraph* graph = ggml_new_graph_custom(context.get(), n_nodes, false);
    std::span<const std::uint32_t> uploaded;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        const Piece& piece = pieces[i];
        const auto n_rows = static_cast<std::int64_t>(piece.rows.size());
        const auto n_columns = static_cast<std::int64_t>(piece.row_bytes / sizeof(std::int32_t));
        ggml_tensor* source = ggml_new_tensor_2d(context.get(), GGML_TYPE_I32, n_columns, piece.tensor->ne[1]);
        source->data = piece.tensor->data;
        source->buffer = buffer_of(piece.tensor);
        ggml_tensor* rows = ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, n_rows);
        rows->data = data_of(indices_.get());
        rows->buffer = indices_.get();
        // All pieces of a page have the same rows.
        if (piece.rows.data() != uploaded.data() || piece.rows.size() != uploaded.size()) {
            if (!uploaded.empty()) {
                copy_aside(piece, staged[i]);
                continue;
            }
            ggml_backend_tensor_set_async(aside_.get(), rows, piece.rows.data(), 0, piece.rows.size_bytes());
            uploaded = piece.rows;
        }
        ggml_tensor* target = ggml_get_rows(context.get(), source, rows);
        target->data = data_of(staging_.get()) + staged[i];
        target->buffer = staging_.get();
        ggml_build_forward_expand(graph, target);
    }
    const ggml_status status = ggml_backend_graph_compute_async(aside_.get(), graph);
    ggml_backend_synchronize(aside_.get());  // before the graph and the rows go
    if (status != GGML_STATUS_SUCCESS) copy_all_aside();
}

void DeviceCopies::run() {
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return is_closing_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        const Job& job = jobs_.front();  // stays where it is: others are only put behind it
        lock.unlock();
        bring_over(job);
        lock.lock();
        std::shared_ptr<const void> owner = std::move(jobs_.front().owner);
        jobs_.pop_front();
        ++n_arrived_;
        lock.unlock();
        changed_.notify_all();
        owner.reset();  // perhaps the last who holds them
        lock.lock();
    }
}

void DeviceCopies::bring_over(const Job& job) {
    struct Chunk {
        std::size_t staged, n_bytes;
        std::uint8_t* out;
    };
    std::vector<Chunk> chunks;
    for (const Part& part : job.parts) {
        if (part.host != nullptr) {
            std::memcpy(part.out, part.host, part.n_bytes);
            continue;
        }
        if (memory::lies_in_block(part.out)) {  // pinned: the device brings it there by itself
            ggml_tensor source = bytes_at(staging_.get(), data_of(staging_.get()) + part.staged, part.n_bytes);
            ggml_backend_tensor_get_async(over_.get(), &source, part.out, 0, part.n_bytes);
            continue;
        }
        for (std::size_t at = 0; at < part.n_bytes; at += kPinnedHalf_bytes) {
            const std::size_t n = std::min(kPinnedHalf_bytes, part.n_bytes - at);
            chunks.push_back({part.staged + at, n, part.out + at});
        }
    }
    const auto fetch = [&](std::size_t i) {
        ggml_tensor source = bytes_at(staging_.get(), data_of(staging_.get()) + chunks[i].staged, chunks[i].n_bytes);
        ggml_backend_tensor_get_async(over_.get(), &source, data_of(pinned_.get()) + i % 2 * kPinnedHalf_bytes, 0,
                                      chunks[i].n_bytes);
    };
    if (!chunks.empty()) fetch(0);
    if (chunks.empty()) ggml_backend_synchronize(over_.get());
    for (std::size_t i = 0; i < chunks.size(); ++i) {
        ggml_backend_synchronize(over_.get());
        if (i + 1 < chunks.size()) fetch(i + 1);
        std::memcpy(chunks[i].out, data_of(pinned_.get()) + i % 2 * kPinnedHalf_bytes, chunks[i].n_bytes);
    }
}

}  // namespace luce::llama
