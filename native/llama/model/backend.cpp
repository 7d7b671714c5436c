#include "llama/model/backend.h"

#include <ggml-backend.h>
#include <ggml.h>
#include <llama.h>

#include <algorithm>
#include <string_view>

#include "base/clock.h"
#include "base/log.h"
#include "llama/model/memory_shortage.h"

namespace luce::llama {
namespace {

// What llama.cpp calls a warning and nobody can act on: it has mended the model's file by itself. And the pool's size,
// which is a context's: a text that goes beyond the training is warned of where --ctx is read.
constexpr std::string_view kNotes[] = {
    "control-looking token",     "dummy tokens",    "attribute to USER_DEFINED",
    "removing it from EOG list", "special_eog_ids", "possible training context overflow",
};

bool is_note(std::string_view text) {
    return std::ranges::any_of(kNotes, [&](std::string_view note) { return text.find(note) != text.npos; });
}

// llama.cpp tells its whole life at "info": that is our "debug". A continuation goes with the line before it.
LogLevel level_of(ggml_log_level level, std::string_view text) {
    static LogLevel last = LogLevel::debug;
    switch (level) {
        case GGML_LOG_LEVEL_ERROR: return last = LogLevel::error;
        case GGML_LOG_LEVEL_WARN: return last = is_note(text) ? LogLevel::debug : LogLevel::warn;
        case GGML_LOG_LEVEL_CONT: return last;
        default: return last = LogLevel::debug;
    }
}

void forward_log(ggml_log_level level, const char* text, void*) {
    if (text == nullptr) return;
    log_shortage().note(text, SteadyClock().now_s());
    log_line(level_of(level, text), text);
}

std::string kind_of(ggml_backend_dev_t device) {
    switch (ggml_backend_dev_type(device)) {
        case GGML_BACKEND_DEVICE_TYPE_CPU: return "cpu";
        case GGML_BACKEND_DEVICE_TYPE_GPU: return "gpu";
        case GGML_BACKEND_DEVICE_TYPE_IGPU: return "igpu";
        default: return "accel";
    }
}

}  // namespace

Backend::Backend() {
    llama_log_set(forward_log, nullptr);
    ggml_backend_load_all();
    llama_backend_init();
}

Backend::~Backend() { llama_backend_free(); }

void Backend::on_abort(void (*handler)(const char* message)) { ggml_set_abort_callback(handler); }

std::vector<DeviceInfo> Backend::devices() const {
    std::vector<DeviceInfo> all;
    for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        DeviceInfo info{ggml_backend_dev_name(device), ggml_backend_dev_description(device), kind_of(device), 0, 0};
        ggml_backend_dev_memory(device, &info.free_bytes, &info.total_bytes);
        all.push_back(std::move(info));
    }
    return all;
}

bool Backend::has_gpu() const {
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU) != nullptr ||
           ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_IGPU) != nullptr;
}

std::string Backend::system_info() const { return llama_print_system_info(); }

std::string Backend::description() const {
    std::string text = "system " + system_info() + "\n";
    for (const DeviceInfo& device : devices()) {
        text += "device kind=" + device.kind + " name=" + device.name;
        text += " total_bytes=" + std::to_string(device.total_bytes) +
                " free_bytes=" + std::to_string(device.free_bytes) + " " + device.description + "\n";
    }
    return text;
}

}  // namespace luce::llama
