#include "llama/device_copy/direct_copies.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "llama/device_copy/device_bytes.h"
#include "llama/device_copy/device_lines.h"
#include "memory/pages/block_source.h"

namespace luce::llama {
namespace {

constexpr std::size_t kMostRuns = 8;  // of neighbouring rows; from then on one kernel gathers them faster

struct Run {
    std::size_t first = 0;  // index into the rows
    std::size_t n = 0;
};

std::vector<Run> runs_of(std::span<const std::uint32_t> rows) {
    std::vector<Run> runs;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        if (i == 0 || rows[i] != rows[i - 1] + 1) runs.push_back({i, 0});
        ++runs.back().n;
    }
    return runs;
}

bool has_same_rows(const DeviceCopies::Piece& a, const DeviceCopies::Piece& b) {
    return a.rows.data() == b.rows.data() && a.rows.size() == b.rows.size();
}

}  // namespace

std::unique_ptr<DirectCopies> DirectCopies::create(ggml_backend_dev_t device) {
    ggml_backend_dev_props props;
    ggml_backend_dev_get_props(device, &props);
    if (!props.caps.async || !props.caps.events) return nullptr;
    BackendPtr stream(ggml_backend_dev_init(device, nullptr));
    EventPtr first(ggml_backend_event_new(device));
    if (!stream || !first) return nullptr;
    try {
        return std::unique_ptr<DirectCopies>(new DirectCopies(device, std::move(stream), std::move(first)));
    } catch (const std::system_error&) {  // no thread
        return nullptr;
    }
}

DirectCopies::DirectCopies(ggml_backend_dev_t device, BackendPtr stream, EventPtr first)
    : device_(device), stream_(std::move(stream)) {
    idle_events_.push_back(std::move(first));
    thread_ = std::thread([this] { run(); });
}

DirectCopies::~DirectCopies() {
    {
        const std::lock_guard lock(mutex_);
        is_closing_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

std::vector<bool> DirectCopies::taken(std::span<const Piece> pieces) const {
    std::vector<bool> all(pieces.size());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        const Piece& piece = pieces[i];
        if (piece.tensor == nullptr || DeviceCopies::device_of(piece.tensor) != device_) continue;
        // Another kind of memory on the device takes no copies of a stream.
        if (ggml_backend_buffer_get_type(buffer_of(piece.tensor)) != ggml_backend_dev_buffer_type(device_)) continue;
        // A job's bytes lie in one block: what follows upon such a piece lies there too.
        const bool follows = i > 0 && piece.out == pieces[i - 1].out + pieces[i - 1].size();
        if (follows && all[i - 1] && has_same_rows(piece, pieces[i - 1])) {
            all[i] = true;
        } else {
            all[i] = runs_of(piece.rows).size() < kMostRuns && memory::lies_in_block(piece.out);
        }
    }
    return all;
}

void DirectCopies::start(std::span<const Piece> pieces, std::shared_ptr<const void> owner) {
    Job job;
    job.owner = std::move(owner);
    for (const Piece& piece : pieces) {
        const std::span<const std::uint8_t> out(piece.out, piece.size());
        if (!job.out.empty() && job.out.back().data() + job.out.back().size() == piece.out) {
            job.out.back() = {job.out.back().data(), job.out.back().size() + out.size()};
        } else {
            job.out.push_back(out);
        }
    }
    send(pieces);
    job.read = take_event();
    if (job.read == nullptr) return ggml_backend_synchronize(stream_.get());  // no event: then it waits here
    ggml_backend_event_record(job.read.get(), stream_.get());
    {
        const std::lock_guard lock(mutex_);
        jobs_.push_back(std::move(job));
        ++n_started_;
    }
    changed_.notify_all();
}

DirectCopies::EventPtr DirectCopies::take_event() {
    {
        const std::lock_guard lock(mutex_);
        if (!idle_events_.empty()) {
            EventPtr event = std::move(idle_events_.back());
            idle_events_.pop_back();
            return event;
        }
    }
    return EventPtr(ggml_backend_event_new(device_));
}

// Run by run, in each tensor by tensor: so the lines of a run lie at equal distances.
void DirectCopies::send(std::span<const Piece> pieces) {
    std::vector<DeviceLine> lines;
    for (std::size_t begin = 0, end = 0; begin < pieces.size(); begin = end) {
        for (end = begin + 1; end < pieces.size() && has_same_rows(pieces[end], pieces[begin]); ++end) {
        }
        const std::vector<Run> runs = runs_of(pieces[begin].rows);
        for (std::size_t i = 0; i < std::max<std::size_t>(1, runs.size()); ++i) {
            for (const Piece& piece : pieces.subspan(begin, end - begin)) {
                DeviceLine line{buffer_of(piece.tensor), data_of(piece.tensor) + piece.offset, piece.out,
                                piece.n_bytes};
                if (!runs.empty()) {
                    line.there = data_of(piece.tensor) + piece.rows[runs[i].first] * piece.row_bytes;
                    line.here = piece.out + runs[i].first * piece.row_bytes;
                    line.n_bytes = runs[i].n * piece.row_bytes;
                }
                lines.push_back(line);
            }
        }
    }
    for (const LineGroup& group : group_lines(lines)) {
        const DeviceLine& first = lines[group.begin];
        const ggml_tensor source =
            bytes_at(first.buffer, first.there, (group.n - 1) * group.stride_there + first.n_bytes);
        ggml_backend_tensor_get_2d_async(stream_.get(), &source, const_cast<std::uint8_t*>(first.here), 0,
                                         first.n_bytes, group.n, group.stride_there, group.stride_here);
    }
}

// One stream does its work in order, so the last event stands for all.
void DirectCopies::hold_back(ggml_backend_t stream) {
    const std::lock_guard lock(mutex_);
    if (!jobs_.empty()) ggml_backend_event_wait(stream, jobs_.back().read.get());
}

void DirectCopies::wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, n = n_started_] { return n_arrived_ >= n; });
}

void DirectCopies::wait_for(std::span<const std::uint8_t> bytes) {
    const auto overlaps = [bytes](std::span<const std::uint8_t> out) {
        return out.data() < bytes.data() + bytes.size() && bytes.data() < out.data() + out.size();
    };
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
        return std::none_of(jobs_.begin(), jobs_.end(),
                            [&](const Job& job) { return std::any_of(job.out.begin(), job.out.end(), overlaps); });
    });
}

void DirectCopies::run() {
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return is_closing_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        ggml_backend_event_t read = jobs_.front().read.get();  // stays: others are only put behind it
        lock.unlock();
        ggml_backend_event_synchronize(read);
        lock.lock();
        std::shared_ptr<const void> owner = std::move(jobs_.front().owner);
        idle_events_.push_back(std::move(jobs_.front().read));
        jobs_.pop_front();
        ++n_arrived_;
        lock.unlock();
        changed_.notify_all();
        owner.reset();  // perhaps the last who holds them
        lock.lock();
    }
}

}  // namespace luce::llama
