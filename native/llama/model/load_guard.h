// LoadGuard: while it lives, a process that dies inside libllama says so in one line and exits in order. libllama
// asserts where a model file is at odds with itself; that must reach whoever started us as an error reply, not as a
// signal. Active only during model load and context creation. Must not know what is being loaded.
#pragma once

#include <string_view>

namespace luce::llama {

struct LoadGuardOptions {
    int seconds = 0;      // time without progress() after which loading counts as hung; 0: no limit
    int reply_fd = 1;     // where the line goes
    int exit_status = 2;  // what the process exits with
    // What the line says: before the reason, before ggml's own words, and at the time limit. They must outlive the
    // guard.
    std::string_view prefix = "err start_failed ";
    std::string_view refusal = "the model library refused the model: ";
    std::string_view lateness = "loading the model makes no progress: time limit reached";
};

// One at a time: signal handlers and ggml's abort callback belong to the process.
class LoadGuard {
public:
    explicit LoadGuard(const LoadGuardOptions& options);
    ~LoadGuard();
    LoadGuard(const LoadGuard&) = delete;
    LoadGuard& operator=(const LoadGuard&) = delete;

    // Starts the time limit anew. Call it from libllama's progress callback: reading a large model may take as long
    // as it takes while it goes forward. May be called from any thread.
    void progress();
};

}  // namespace luce::llama
