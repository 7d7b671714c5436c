#include "tests/device/late_device.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>

#include <ggml-cpu.h>

#include "ggml-backend-impl.h"

namespace luce::tests {
namespace {

constexpr std::size_t kAlignment = 64;

struct World {
    std::mutex mutex;
    std::condition_variable let_go;
    std::thread::id engine;  // whose waiting makes copies end at once
    bool holds_others_up = false;
    std::chrono::microseconds delay_of_others{0};
    std::size_t n_total = std::numeric_limits<std::size_t>::max() / 2;
    std::size_t n_taken = 0;
    std::size_t n_workspace = 0;
    std::uint64_t n_refused = 0;
    std::uint64_t n_until_short = 0;  // computations; 0: it does not run out
    std::size_t n_workspace_then = 0;
    std::size_t n_missing_then = 0;
    std::uint64_t n_until_refusal = 0;  // computations; 0: none is refused for that
    std::uint64_t n_copies_out = 0;
};

World& world() {
    static World one;
    return one;
}

// Whether so many bytes more can be taken; none: whether a computation has what it needs.
bool has_room_for(std::size_t n_bytes) {
    World& w = world();
    const std::lock_guard lock(w.mutex);
    if (n_bytes == 0 && w.n_until_short > 0 && --w.n_until_short == 0) {
        w.n_workspace = w.n_workspace_then;
        w.n_total = w.n_taken + w.n_workspace - w.n_missing_then;
    }
    if (n_bytes == 0 && w.n_until_refusal > 0 && --w.n_until_refusal == 0) {
        ++w.n_refused;
        return false;
    }
    const std::size_t n_needed = w.n_taken + n_bytes + (n_bytes == 0 ? w.n_workspace : 0);
    if (n_needed > w.n_total) ++w.n_refused;
    return n_needed <= w.n_total;
}

ggml_backend_device& the_device();
ggml_backend_buffer_type& the_memory();
ggml_backend_buffer_type& the_pinned_memory();

// What was given to a stream and has not been done.
class Stream {
public:
    Stream() : cpu_(ggml_backend_cpu_init()) { ggml_backend_cpu_set_n_threads(cpu_, 1); }
    ~Stream() {
        do_all();
        ggml_backend_free(cpu_);
    }

    void add(std::function<void()> work) {
        const std::lock_guard lock(mutex_);
        work_.push_back(std::move(work));
        ++n_added_;
    }

    std::uint64_t n_added() {
        const std::lock_guard lock(mutex_);
        return n_added_;
    }

    // Up to the n-th. Two streams may wait for each other's past: what is done needs nobody's leave.
    void do_until(std::uint64_t n) {
        if (has_done(n)) return;
        const std::lock_guard one_at_a_time(doing_);
        for (;;) {
            std::function<void()> next;
            {
                const std::lock_guard lock(mutex_);
                if (work_.empty() || n_done_ >= n) return;
                next = std::move(work_.front());
                work_.pop_front();
            }
            next();
            const std::lock_guard lock(mutex_);
            ++n_done_;
        }
    }
    void do_all() { do_until(n_added()); }

    ggml_status compute(ggml_cgraph* graph) {
        do_all();
        if (!has_room_for(0)) return GGML_STATUS_ALLOC_FAILED;
        return ggml_backend_graph_compute(cpu_, graph);
    }

private:
    bool has_done(std::uint64_t n) {
        const std::lock_guard lock(mutex_);
        return n_done_ >= n;
    }

    ggml_backend_t cpu_;
    std::mutex doing_;
    std::mutex mutex_;
    std::deque<std::function<void()>> work_;
    std::uint64_t n_added_ = 0;
    std::uint64_t n_done_ = 0;
};

struct Event {
    std::shared_ptr<Stream> stream;
    std::uint64_t n = 0;
};

void wait_until_allowed() {
    World& w = world();
    std::unique_lock lock(w.mutex);
    if (w.engine == std::this_thread::get_id()) return;
    w.let_go.wait(lock, [&] { return !w.holds_others_up; });
    const std::chrono::microseconds delay = w.delay_of_others;
    lock.unlock();
    std::this_thread::sleep_for(delay);
}

// A stream stays for as long as an event stands for a part of it.
std::shared_ptr<Stream>& owner_of(ggml_backend_t backend) {
    return *static_cast<std::shared_ptr<Stream>*>(backend->context);
}
Stream& stream_of(ggml_backend_t backend) { return *owner_of(backend); }
std::uint8_t* data_of(const ggml_tensor* tensor) { return static_cast<std::uint8_t*>(tensor->data); }

// Memory.

struct Memory {
    void* data = nullptr;
    std::size_t n_bytes = 0;
};

void free_memory(ggml_backend_buffer_t buffer) {
    auto* memory = static_cast<Memory*>(buffer->context);
    std::free(memory->data);
    {
        const std::lock_guard lock(world().mutex);
        world().n_taken -= memory->n_bytes;
    }
    delete memory;
}

const ggml_backend_buffer_i kMemory = {
    .free_buffer = free_memory,
    .get_base = [](ggml_backend_buffer_t buffer) { return static_cast<Memory*>(buffer->context)->data; },
    .init_tensor = nullptr,
    .memset_tensor = [](ggml_backend_buffer_t, ggml_tensor* tensor, std::uint8_t value, std::size_t offset,
                        std::size_t n) { std::memset(data_of(tensor) + offset, value, n); },
    .set_tensor = [](ggml_backend_buffer_t, ggml_tensor* tensor, const void* from, std::size_t offset,
                     std::size_t n) { std::memcpy(data_of(tensor) + offset, from, n); },
    .get_tensor = [](ggml_backend_buffer_t, const ggml_tensor* tensor, void* to, std::size_t offset,
                     std::size_t n) { std::memcpy(to, data_of(tensor) + offset, n); },
    .set_tensor_2d = nullptr,
    .get_tensor_2d = nullptr,
    .cpy_tensor = nullptr,
    .clear =
        [](ggml_backend_buffer_t buffer, std::uint8_t value) {
            const auto* memory = static_cast<Memory*>(buffer->context);
            std::memset(memory->data, value, memory->n_bytes);
        },
    .reset = nullptr,
};

ggml_backend_buffer_t take_memory(ggml_backend_buffer_type_t type, std::size_t n_bytes) {
    if (!has_room_for(n_bytes)) return nullptr;
    {
        const std::lock_guard lock(world().mutex);
        world().n_taken += n_bytes;
    }
    void* data = std::aligned_alloc(kAlignment, (n_bytes + kAlignment) / kAlignment * kAlignment);
    return ggml_backend_buffer_init(type, kMemory, new Memory{data, n_bytes}, n_bytes);
}

ggml_backend_buffer_t take_pinned(ggml_backend_buffer_type_t type, std::size_t n_bytes) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), n_bytes);
    if (buffer != nullptr) buffer->buft = type;
    return buffer;
}

ggml_backend_buffer_type& the_memory() {
    static ggml_backend_buffer_type type = {
        .iface = {.get_name = [](ggml_backend_buffer_type_t) { return "Late"; },
                  .alloc_buffer = take_memory,
                  .alloc_buffer_n = nullptr,
                  .get_alignment = [](ggml_backend_buffer_type_t) { return kAlignment; },
                  .get_max_size = nullptr,
                  .get_alloc_size = nullptr,
                  .get_alloc_size_n = nullptr,
                  .is_host = nullptr},
        .device = &the_device(),
        .context = nullptr,
    };
    return type;
}

ggml_backend_buffer_type& the_pinned_memory() {
    static ggml_backend_buffer_type type = {
        .iface = {.get_name = [](ggml_backend_buffer_type_t) { return "Late_Host"; },
                  .alloc_buffer = take_pinned,
                  .alloc_buffer_n = nullptr,
                  .get_alignment = [](ggml_backend_buffer_type_t) { return kAlignment; },
                  .get_max_size = nullptr,
                  .get_alloc_size = nullptr,
                  .get_alloc_size_n = nullptr,
                  .is_host = [](ggml_backend_buffer_type_t) { return true; }},
        .device = &the_device(),
        .context = nullptr,
    };
    return type;
}

// Streams. Tensors are told by value: a caller's may be gone when it is done.

void copy_in(ggml_backend_t backend, ggml_tensor* tensor, const void* from, std::size_t offset, std::size_t n,
             std::size_t n_lines, std::size_t stride_there, std::size_t stride_here) {
    stream_of(backend).add([to = data_of(tensor) + offset, from = static_cast<const std::uint8_t*>(from), n, n_lines,
                            stride_there, stride_here] {
        for (std::size_t i = 0; i < n_lines; ++i) std::memcpy(to + i * stride_there, from + i * stride_here, n);
    });
}

void copy_out(ggml_backend_t backend, const ggml_tensor* tensor, void* to, std::size_t offset, std::size_t n,
              std::size_t n_lines, std::size_t stride_there, std::size_t stride_here) {
    {
        const std::lock_guard lock(world().mutex);
        ++world().n_copies_out;
    }
    stream_of(backend).add(
        [from = data_of(tensor) + offset, to = static_cast<std::uint8_t*>(to), n, n_lines, stride_there, stride_here] {
            for (std::size_t i = 0; i < n_lines; ++i) std::memcpy(to + i * stride_here, from + i * stride_there, n);
        });
}

bool copy_within(ggml_backend_t from, ggml_backend_t to, const ggml_tensor* source, ggml_tensor* target) {
    if (from != to || source->buffer->buft != &the_memory() || target->buffer->buft != &the_memory()) return false;
    stream_of(to).add([source = data_of(source), target = data_of(target), n = ggml_nbytes(source)] {
        std::memcpy(target, source, n);
    });
    return true;
}

const ggml_backend_i kStream = {
    .get_name = [](ggml_backend_t) { return "Late"; },
    .free =
        [](ggml_backend_t backend) {
            stream_of(backend).do_all();
            delete &owner_of(backend);
            delete backend;
        },
    .set_tensor_async = [](ggml_backend_t backend, ggml_tensor* tensor, const void* from, std::size_t offset,
                           std::size_t n) { copy_in(backend, tensor, from, offset, n, 1, n, n); },
    .get_tensor_async = [](ggml_backend_t backend, const ggml_tensor* tensor, void* to, std::size_t offset,
                           std::size_t n) { copy_out(backend, tensor, to, offset, n, 1, n, n); },
    .set_tensor_2d_async = copy_in,
    .get_tensor_2d_async = copy_out,
    .cpy_tensor_async = copy_within,
    .synchronize =
        [](ggml_backend_t backend) {
            wait_until_allowed();
            stream_of(backend).do_all();
        },
    .graph_plan_create = nullptr,
    .graph_plan_free = nullptr,
    .graph_plan_update = nullptr,
    .graph_plan_compute = nullptr,
    .graph_compute = [](ggml_backend_t backend, ggml_cgraph* graph) { return stream_of(backend).compute(graph); },
    .event_record =
        [](ggml_backend_t backend, ggml_backend_event_t event) {
            *static_cast<Event*>(event->context) = {owner_of(backend), stream_of(backend).n_added()};
        },
    .event_wait =
        [](ggml_backend_t backend, ggml_backend_event_t event) {
            stream_of(backend).add([until = *static_cast<Event*>(event->context)] { until.stream->do_until(until.n); });
        },
    .graph_optimize = nullptr,
};

// The device.

ggml_backend_t open_stream(ggml_backend_dev_t device, const char*) {
    static ggml_guid guid = {'l', 'u', 'c', 'e', ' ', 'l', 'a', 't', 'e'};
    return new ggml_backend{
        .guid = &guid, .iface = kStream, .device = device, .context = new std::shared_ptr(std::make_shared<Stream>())};
}

void tell_memory(ggml_backend_dev_t, std::size_t* free, std::size_t* total) {
    const std::lock_guard lock(world().mutex);
    *total = world().n_total;
    *free = world().n_total - std::min(world().n_total, world().n_taken);
}

void tell_properties(ggml_backend_dev_t device, ggml_backend_dev_props* told) {
    told->name = device->iface.get_name(device);
    told->description = device->iface.get_description(device);
    told->type = device->iface.get_type(device);
    told->device_id = nullptr;
    tell_memory(device, &told->memory_free, &told->memory_total);
    told->caps = {
        .async = true, .host_buffer = true, .buffer_from_host_ptr = false, .events = true, .mmap_support = true};
}

ggml_backend_reg& the_reg() {
    static ggml_backend_reg reg = {
        .api_version = GGML_BACKEND_API_VERSION,
        .iface = {.get_name = [](ggml_backend_reg_t) { return "Late"; },
                  .get_device_count = [](ggml_backend_reg_t) { return std::size_t{1}; },
                  .get_device = [](ggml_backend_reg_t, std::size_t) { return &the_device(); },
                  .get_proc_address = nullptr},
        .context = nullptr,
    };
    return reg;
}

ggml_backend_device& the_device() {
    static ggml_backend_device device = {
        .iface = {
            .get_name = [](ggml_backend_dev_t) { return "Late0"; },
            .get_description = [](ggml_backend_dev_t) { return "the tests' device"; },
            .get_memory = tell_memory,
            .get_type = [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; },
            .get_props = tell_properties,
            .init_backend = open_stream,
            .get_buffer_type = [](ggml_backend_dev_t) { return &the_memory(); },
            .get_host_buffer_type = [](ggml_backend_dev_t) { return &the_pinned_memory(); },
            .buffer_from_host_ptr = nullptr,
            .supports_op =
                [](ggml_backend_dev_t, const ggml_tensor* op) {
                    static ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
                    return ggml_backend_dev_supports_op(cpu, op);
                },
            .supports_buft = [](ggml_backend_dev_t, ggml_backend_buffer_type_t type) { return type == &the_memory(); },
            .offload_op = nullptr,
            .event_new =
                [](ggml_backend_dev_t device) {
                    return new ggml_backend_event{.device = device, .context = new Event()};
                },
            .event_free =
                [](ggml_backend_dev_t, ggml_backend_event_t event) {
                    delete static_cast<Event*>(event->context);
                    delete event;
                },
            .event_synchronize =
                [](ggml_backend_dev_t, ggml_backend_event_t event) {
                    wait_until_allowed();
                    const Event until = *static_cast<Event*>(event->context);
                    if (until.stream != nullptr) until.stream->do_until(until.n);
                }},
        .reg = &the_reg(),
        .context = nullptr,
    };
    return device;
}

}  // namespace

LateDevice& LateDevice::install() {
    static LateDevice one;
    static const bool is_known = [] {
        ggml_backend_register(&the_reg());
        return true;
    }();
    (void)is_known;
    return one;
}

ggml_backend_dev_t LateDevice::device() { return &the_device(); }

void LateDevice::hold_others_up() {
    const std::lock_guard lock(world().mutex);
    world().engine = std::this_thread::get_id();
    world().holds_others_up = true;
}

void LateDevice::delay_others(std::chrono::microseconds delay) {
    const std::lock_guard lock(world().mutex);
    world().engine = std::this_thread::get_id();
    world().delay_of_others = delay;
}

void LateDevice::let_go() {
    {
        const std::lock_guard lock(world().mutex);
        world().holds_others_up = false;
    }
    world().let_go.notify_all();
}

void LateDevice::set_total(std::size_t n_bytes) {
    const std::lock_guard lock(world().mutex);
    world().n_total = n_bytes;
    world().n_until_short = 0;
}

void LateDevice::run_out_at(std::uint64_t n, std::size_t n_bytes, std::size_t n_missing) {
    const std::lock_guard lock(world().mutex);
    world().n_until_short = n;
    world().n_workspace_then = n_bytes;
    world().n_missing_then = n_missing;
}

void LateDevice::set_workspace(std::size_t n_bytes) {
    const std::lock_guard lock(world().mutex);
    world().n_workspace = n_bytes;
}

void LateDevice::refuse_once_at(std::uint64_t n) {
    const std::lock_guard lock(world().mutex);
    world().n_until_refusal = n;
}

std::size_t LateDevice::n_taken() const {
    const std::lock_guard lock(world().mutex);
    return world().n_taken;
}

std::uint64_t LateDevice::n_refused() const {
    const std::lock_guard lock(world().mutex);
    return world().n_refused;
}

std::uint64_t LateDevice::n_copies_out() const {
    const std::lock_guard lock(world().mutex);
    return world().n_copies_out;
}

}  // namespace luce::tests
