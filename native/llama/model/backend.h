// Backend: llama.cpp as a whole: its start and end, its log, its devices. One object for the life of the process.
#pragma once

#include <string>
#include <vector>

namespace luce::llama {

struct DeviceInfo {
    std::string name;
    std::string description;
    std::string kind;  // "cpu", "gpu", "igpu" or "accel"
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
};

class Backend {
public:
    // Sends llama.cpp's and ggml's messages to our log and loads the loadable backends: those beside the program and,
    // if GGML_BACKEND_PATH names one, that file.
    Backend();
    ~Backend();
    Backend(const Backend&) = delete;
    Backend& operator=(const Backend&) = delete;

    // `handler` is told why, before libllama or ggml end the process over what they think impossible.
    static void on_abort(void (*handler)(const char* message));

    std::vector<DeviceInfo> devices() const;
    bool has_gpu() const;

    // "CPU : AVX2 = 1 | …", as llama.cpp says it.
    std::string system_info() const;

    // That and all devices, a line each, as --version prints them.
    std::string description() const;
};

}  // namespace luce::llama
