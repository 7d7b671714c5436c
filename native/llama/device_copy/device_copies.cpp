#include "llama/device_copy/device_copies.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/step_profile.h"
#include "llama/device_copy/device_lines.h"
#include "memory/pages/block_source.h"

namespace luce::llama {
namespace {

// Each half is one copy over the bus: a step's own, of its logits, waits for one of them at most.
constexpr std::size_t kPinnedHalf_bytes = std::size_t{2} << 20;
constexpr std::size_t kGatherFrom = 8;  // runs of neighbouring rows, from which one kernel is faster than a copy each
constexpr std::size_t kMaxGathered = 4096;  // rows of one piece
constexpr std::size_t kAlignment = 256;

std::size_t aligned(std::size_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

std::size_t n_runs(std::span<const std::uint32_t> rows) {
    std::size_t n = 0;
    for_each_run(rows, [&](std::size_t, std::size_t) { ++n; });
    return n;
}

bool is_gathered(const DeviceCopies::Piece& piece) {
    return n_runs(piece.rows) >= kGatherFrom && piece.rows.size() <= kMaxGathered &&
           piece.row_bytes % sizeof(std::int32_t) == 0;
}

bool has_same_rows(const DeviceCopies::Piece& a, const DeviceCopies::Piece& b) {
    return a.rows.data() == b.rows.data() && a.rows.size() == b.rows.size();
}

}  // namespace

std::unique_ptr<DeviceCopies> DeviceCopies::create(ggml_backend_dev_t device, std::size_t n_staged_bytes) {
    if (!can_stream(device)) return nullptr;
    try {
        return std::unique_ptr<DeviceCopies>(new DeviceCopies(device, n_staged_bytes));
    } catch (const std::system_error&) {  // no thread
        return nullptr;
    }
}

DeviceCopies::DeviceCopies(ggml_backend_dev_t device, std::size_t n_staged_bytes) : device_(device) {
    open_staging(n_staged_bytes);
    ggml_backend_dev_props props;
    ggml_backend_dev_get_props(device, &props);
    if (props.caps.events) {
        straight_.reset(ggml_backend_dev_init(device, nullptr));
        EventPtr first(ggml_backend_event_new(device));
        if (first == nullptr) straight_.reset();
        if (first != nullptr) idle_events_.push_back(std::move(first));
    }
    thread_ = std::thread([this] { run(); });
}

void DeviceCopies::open_staging(std::size_t n_bytes) {
    const ggml_backend_buffer_type_t host_type = ggml_backend_dev_host_buffer_type(device_);
    if (host_type == nullptr) return;
    aside_.reset(ggml_backend_dev_init(device_, nullptr));
    over_.reset(ggml_backend_dev_init(device_, nullptr));
    pinned_.reset(ggml_backend_buft_alloc_buffer(host_type, 2 * kPinnedHalf_bytes));
    if (!aside_ || !over_ || !pinned_) return;
    staging_.reset(ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(device_), n_bytes));
    if (!staging_) pinned_.reset();
}

DeviceCopies::~DeviceCopies() {
    {
        const std::lock_guard lock(mutex_);
        is_closing_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

std::size_t DeviceCopies::Job::n_bytes() const {
    std::size_t n = 0;
    for (const Part& part : parts) n += part.n_bytes;
    return n;
}

std::size_t DeviceCopies::n_bytes_under_way() const {
    const std::lock_guard lock(mutex_);
    return n_bytes_;
}

void DeviceCopies::add(Job job) {
    {
        const std::lock_guard lock(mutex_);
        n_bytes_ += job.n_bytes();
        jobs_.push_back(std::move(job));
        ++n_started_;
    }
    changed_.notify_all();
}

// A job with room in the staging buffer for all its pieces, one after the other; none: it is too small.
std::optional<DeviceCopies::Job> DeviceCopies::stage(std::span<const Piece> pieces, std::shared_ptr<const void> owner) {
    std::size_t n_bytes = 0;
    for (const Piece& piece : pieces) n_bytes += piece.tensor == nullptr ? 0 : aligned(piece.size());
    if (!can_stage() || n_bytes > ggml_backend_buffer_get_size(staging_.get())) return std::nullopt;
    Job job;
    job.begin = reserve(n_bytes);
    job.end = job.begin + n_bytes;
    job.owner = std::move(owner);
    std::size_t staged = job.begin;
    for (const Piece& piece : pieces) {
        add_part(job.parts, piece, staged);
        if (piece.tensor != nullptr) staged += aligned(piece.size());
    }
    return job;
}

bool DeviceCopies::start(std::span<const Piece> pieces, std::shared_ptr<const void> owner) {
    std::optional<Job> job = stage(pieces, std::move(owner));
    if (!job) return false;
    std::vector<Piece> gathered;
    std::vector<std::size_t> gathered_to;
    std::size_t staged = job->begin;
    for (const Piece& piece : pieces) {
        if (piece.tensor == nullptr) continue;
        if (is_gathered(piece)) {
            gathered.push_back(piece);
            gathered_to.push_back(staged);
        } else {
            copy_aside(aside_.get(), piece, staged);
        }
        staged += aligned(piece.size());
    }
    if (!gathered.empty()) gather(gathered, gathered_to);
    ggml_backend_synchronize(aside_.get());
    add(std::move(*job));
    return true;
}

bool DeviceCopies::start_behind(ggml_backend_t stream, std::span<const Piece> pieces,
                                std::shared_ptr<const void> owner) {
    EventPtr event = can_hold_back() ? take_event() : nullptr;
    if (event == nullptr) return false;
    std::optional<Job> job = stage(pieces, std::move(owner));
    if (!job) {
        give_back(std::move(event));
        return false;
    }
    std::size_t staged = job->begin;
    for (const Piece& piece : pieces) {
        if (piece.tensor == nullptr) continue;
        copy_aside(stream, piece, staged);
        staged += aligned(piece.size());
    }
    ggml_backend_event_record(event.get(), stream);
    job->staged = std::move(event);
    add(std::move(*job));
    return true;
}

void DeviceCopies::add_part(std::vector<Part>& parts, const Piece& piece, std::size_t staged) {
    if (piece.out_stride != 0) {
        parts.push_back({nullptr, staged, piece.size(), piece.out, piece.row_bytes, piece.out_stride});
        return;
    }
    if (!parts.empty() && parts.back().is_run() && parts.back().host == nullptr && piece.tensor != nullptr) {
        Part& last = parts.back();
        if (last.staged + last.n_bytes == staged && last.out + last.n_bytes == piece.out) {
            last.n_bytes += piece.size();
            return;
        }
    }
    parts.push_back({piece.host, staged, piece.size(), piece.out});
}

// Jobs leave in the order in which they came, so that what is occupied is one stretch of the ring.
std::size_t DeviceCopies::reserve(std::size_t n_bytes) {
    const std::size_t n_all = ggml_backend_buffer_get_size(staging_.get());
    std::unique_lock lock(mutex_);
    std::size_t begin = 0;
    changed_.wait(lock, [&] {
        const auto is_staged = [](const Job& job) { return job.read == nullptr; };
        const auto front = std::find_if(jobs_.begin(), jobs_.end(), is_staged);
        if (front == jobs_.end()) {
            begin = 0;
            return true;
        }
        const std::size_t first = front->begin;
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

void DeviceCopies::copy_aside(ggml_backend_t stream, const Piece& piece, std::size_t staged) {
    const auto copy = [&](std::size_t from, std::size_t to, std::size_t n_bytes) {
        ggml_tensor source = bytes_at(buffer_of(piece.tensor), data_of(piece.tensor) + from, n_bytes);
        ggml_tensor target = bytes_at(staging_.get(), data_of(staging_.get()) + to, n_bytes);
        ggml_backend_tensor_copy_async(stream, stream, &source, &target);
    };
    if (piece.rows.empty()) return copy(piece.offset, staged, piece.n_bytes);
    for_each_run(piece.rows, [&](std::size_t begin, std::size_t n) {
        copy(piece.rows[begin] * piece.row_bytes, staged + begin * piece.row_bytes, n * piece.row_bytes);
    });
}

// One kernel a piece, or a copy for each run of rows where the device has no memory for that. Rows are taken as 32-bit
// integers, which ggml copies as they are whatever they stand for.
void DeviceCopies::gather(std::span<const Piece> pieces, std::span<const std::size_t> staged) {
    const auto copy_all_aside = [&] {
        for (std::size_t i = 0; i < pieces.size(); ++i) copy_aside(aside_.get(), pieces[i], staged[i]);
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
                copy_aside(aside_.get(), piece, staged[i]);
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

std::vector<bool> DeviceCopies::goes_straight(std::span<const Piece> pieces) const {
    std::vector<bool> all(pieces.size());
    for (std::size_t i = 0; straight_ != nullptr && i < pieces.size(); ++i) {
        const Piece& piece = pieces[i];
        if (piece.tensor == nullptr || piece.out_stride != 0 || device_holding(piece.tensor) != device_) continue;
        if (!is_plain_memory(piece.tensor, device_)) continue;
        // A job's bytes lie in one block: what follows upon such a piece lies there too.
        const bool follows = i > 0 && piece.out == pieces[i - 1].out + pieces[i - 1].size();
        if (follows && all[i - 1] && has_same_rows(piece, pieces[i - 1])) {
            all[i] = true;
        } else {
            all[i] = n_runs(piece.rows) < kGatherFrom && memory::lies_in_block(piece.out);
        }
    }
    return all;
}

void DeviceCopies::start_lasting(std::span<const Piece> pieces, std::shared_ptr<const void> owner) {
    Job job;
    job.owner = std::move(owner);
    for (const Piece& piece : pieces) {
        if (!job.parts.empty() && job.parts.back().out + job.parts.back().n_bytes == piece.out) {
            job.parts.back().n_bytes += piece.size();
        } else {
            job.parts.push_back({nullptr, 0, piece.size(), piece.out});
        }
    }
    send(pieces);
    job.read = take_event();
    if (job.read == nullptr) return ggml_backend_synchronize(straight_.get());  // no event: then it waits here
    ggml_backend_event_record(job.read.get(), straight_.get());
    add(std::move(job));
}

EventPtr DeviceCopies::take_event() {
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

void DeviceCopies::give_back(EventPtr event) {
    const std::lock_guard lock(mutex_);
    idle_events_.push_back(std::move(event));
}

// Run by run, in each tensor by tensor: so the lines of a run lie at equal distances.
void DeviceCopies::send(std::span<const Piece> pieces) {
    std::vector<DeviceLine> lines;
    for (std::size_t begin = 0, end = 0; begin < pieces.size(); begin = end) {
        for (end = begin + 1; end < pieces.size() && has_same_rows(pieces[end], pieces[begin]); ++end) {
        }
        const auto of_same_rows = pieces.subspan(begin, end - begin);
        for_each_run(pieces[begin].rows, [&](std::size_t first, std::size_t n) {
            for (const Piece& piece : of_same_rows) {
                lines.push_back({buffer_of(piece.tensor), data_of(piece.tensor) + piece.rows[first] * piece.row_bytes,
                                 piece.out + first * piece.row_bytes, n * piece.row_bytes});
            }
        });
        if (!pieces[begin].rows.empty()) continue;
        for (const Piece& piece : of_same_rows) {
            lines.push_back({buffer_of(piece.tensor), data_of(piece.tensor) + piece.offset, piece.out, piece.n_bytes});
        }
    }
    for (const LineGroup& group : group_lines(lines)) {
        const DeviceLine& first = lines[group.begin];
        const ggml_tensor source =
            bytes_at(first.buffer, first.there, (group.n - 1) * group.stride_there + first.n_bytes);
        ggml_backend_tensor_get_2d_async(straight_.get(), &source, const_cast<std::uint8_t*>(first.here), 0,
                                         first.n_bytes, group.n, group.stride_there, group.stride_here);
    }
}

// One stream does its work in order, so the last event stands for all.
void DeviceCopies::hold_back(ggml_backend_t stream) {
    const std::lock_guard lock(mutex_);
    const auto last = std::find_if(jobs_.rbegin(), jobs_.rend(), [](const Job& job) { return job.read != nullptr; });
    if (last != jobs_.rend()) ggml_backend_event_wait(stream, last->read.get());
}

void DeviceCopies::wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, n = n_started_] { return n_arrived_ >= n; });
}

// What goes straight is waited for on the device: the helper may be busy with what lies aside, and that takes longer.
void DeviceCopies::wait_for(std::span<const std::uint8_t> bytes) {
    const auto goes_there = [bytes](const Job& job) {
        return std::any_of(job.parts.begin(), job.parts.end(), [&](const Part& part) { return part.goes_to(bytes); });
    };
    std::unique_lock lock(mutex_);
    ggml_backend_event_t last = nullptr;  // stays one of ours, and only this thread records it again
    for (const Job& job : jobs_) {
        if (job.read != nullptr && goes_there(job)) last = job.read.get();
    }
    if (last != nullptr) {
        lock.unlock();
        ggml_backend_event_synchronize(last);
        lock.lock();
    }
    changed_.wait(lock, [&] {
        return std::none_of(jobs_.begin(), jobs_.end(),
                            [&](const Job& job) { return job.read == nullptr && goes_there(job); });
    });
}

void DeviceCopies::run() {
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return is_closing_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        const Job& job = jobs_.front();  // stays where it is: others are only put behind it
        lock.unlock();
        complete(job);
        lock.lock();
        std::shared_ptr<const void> owner = std::move(jobs_.front().owner);
        for (EventPtr* event : {&jobs_.front().read, &jobs_.front().staged}) {
            if (*event != nullptr) idle_events_.push_back(std::move(*event));
        }
        n_bytes_ -= jobs_.front().n_bytes();
        jobs_.pop_front();
        ++n_arrived_;
        lock.unlock();
        changed_.notify_all();
        owner.reset();  // perhaps the last who holds them
        lock.lock();
    }
}

void DeviceCopies::complete(const Job& job) {
    const BackgroundSpan span(luce::Part::copies_out, static_cast<std::int64_t>(job.n_bytes()));
    if (job.read != nullptr) {
        ggml_backend_event_synchronize(job.read.get());
    } else {
        if (job.staged != nullptr) ggml_backend_event_synchronize(job.staged.get());
        bring_over(job);
    }
}

void DeviceCopies::bring_straight(const Part& part) {
    const ggml_tensor source = bytes_at(staging_.get(), data_of(staging_.get()) + part.staged, part.n_bytes);
    if (part.is_run()) {
        return ggml_backend_tensor_get_async(over_.get(), &source, part.out, 0, part.n_bytes);
    }
    ggml_backend_tensor_get_2d_async(over_.get(), &source, part.out, 0, part.line_bytes, part.n_bytes / part.line_bytes,
                                     part.line_bytes, part.out_stride);
}

void DeviceCopies::bring_over(const Job& job) {
    std::vector<Part> chunks;
    for (const Part& part : job.parts) {
        if (part.host != nullptr) {
            std::memcpy(part.out, part.host, part.n_bytes);
            continue;
        }
        if (memory::lies_in_block(part.out)) {  // pinned: the device brings it there by itself
            bring_straight(part);
            continue;
        }
        const std::size_t n_most = kPinnedHalf_bytes - kPinnedHalf_bytes % part.line_bytes;
        for (std::size_t at = 0; at < part.n_bytes; at += n_most) {
            const std::size_t n = std::min(n_most, part.n_bytes - at);
            chunks.push_back({nullptr, part.staged + at, n, part.out_of(at), part.line_bytes, part.out_stride});
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
        const std::uint8_t* brought = data_of(pinned_.get()) + i % 2 * kPinnedHalf_bytes;
        const std::size_t n_line = chunks[i].is_run() ? chunks[i].n_bytes : chunks[i].line_bytes;
        for (std::size_t at = 0; at < chunks[i].n_bytes; at += n_line) {
            std::memcpy(chunks[i].out_of(at), brought + at, n_line);
        }
    }
}

}  // namespace luce::llama
