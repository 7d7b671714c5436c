// LoadGuard by ggml's abort callback, a terminate handler, signal handlers and a POSIX timer. Everything that runs in
// a handler is async-signal-safe: fixed buffers, write, _exit. Must not know what is being loaded.
#include "llama/model/load_guard.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cassert>
#include <cstring>
#include <exception>

#include "ggml.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LUCE_SANITIZER_OWNS_FAULTS
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LUCE_SANITIZER_OWNS_FAULTS
#endif

namespace luce::llama {
namespace {

struct Caught {
    int signal;
    const char* reason;  // null: LoadGuardOptions::lateness
};

#ifdef LUCE_SANITIZER_OWNS_FAULTS
// A fault is a finding: the sanitizer's own handler reports it, on its own stack.
constexpr bool kUsesOwnStack = false;
constexpr std::array kCaught{Caught{SIGABRT, "the model library aborted while loading"}, Caught{SIGALRM, nullptr}};
#else
constexpr bool kUsesOwnStack = true;
constexpr std::array kCaught{Caught{SIGABRT, "the model library aborted while loading"},
                             Caught{SIGSEGV, "the model library crashed (invalid memory access) while loading"},
                             Caught{SIGFPE, "the model library crashed (division by zero) while loading"},
                             Caught{SIGBUS, "the model file could not be read while loading (bus error)"},
                             Caught{SIGILL, "the model library crashed (illegal instruction) while loading"},
                             Caught{SIGALRM, nullptr}};
#endif

constexpr size_t kMaxReason = 400;
constexpr size_t kStackBytes = 64 * 1024;  // for a handler that runs because the stack is used up

struct State {
    LoadGuardOptions options;
    std::array<struct sigaction, kCaught.size()> old_actions{};
    ggml_abort_callback_t old_abort = nullptr;
    std::terminate_handler old_terminate = nullptr;
    stack_t old_stack{};
    timer_t timer{};
    bool has_timer = false;
    alignas(64) std::array<char, kStackBytes> stack;
};

State g_state;  // handlers take no argument: it has to be global
std::atomic<bool> g_active{false};
std::atomic_flag g_reporting;

// Writes the line and ends the process. A second thread that fails meanwhile waits for that end.
[[noreturn]] void report(std::string_view reason) {
    if (g_reporting.test_and_set()) {
        for (;;) {
            pause();
        }
    }
    char line[kMaxReason + 128];
    size_t length = 0;
    const auto append = [&](std::string_view text) {
        for (const char c : text) {
            if (length < sizeof(line) - 1) {
                line[length++] = c < ' ' || c > '~' ? ' ' : c;
            }
        }
    };
    append(g_state.options.prefix);
    append(reason.substr(0, kMaxReason));
    line[length++] = '\n';
    for (size_t written = 0; written < length;) {
        const ssize_t n = write(g_state.options.reply_fd, line + written, length - written);
        if (n <= 0) {
            break;  // nobody reads: the exit status has to say it
        }
        written += static_cast<size_t>(n);
    }
    _exit(g_state.options.exit_status);
}

// ggml's message begins with the path of a source file: the folders are of no use to a user.
void on_ggml_abort(const char* message) {
    const char* end = std::strstr(message, ": ");
    const char* start = message;
    for (const char* c = message; end != nullptr && c < end; ++c) {
        start = *c == '/' ? c + 1 : start;
    }
    std::array<char, kMaxReason> reason{};
    const std::string_view refusal = g_state.options.refusal;
    refusal.copy(reason.data(), reason.size() - 1);
    std::strncat(reason.data(), start, reason.size() - std::strlen(reason.data()) - 1);
    report(reason.data());
}

void on_terminate() { report("the model library threw an error that it did not handle while loading"); }

void on_signal(int signal) {
    for (const Caught& caught : kCaught) {
        if (caught.signal == signal) {
            report(caught.reason != nullptr ? std::string_view(caught.reason) : g_state.options.lateness);
        }
    }
}

void arm() {
    if (g_state.has_timer) {
        itimerspec limit{};
        limit.it_value.tv_sec = g_state.options.seconds;
        timer_settime(g_state.timer, 0, &limit, nullptr);
    }
}

}  // namespace

LoadGuard::LoadGuard(const LoadGuardOptions& options) {
    const bool was_active = g_active.exchange(true);
    assert(!was_active);
    (void)was_active;
    g_state.options = options;
    g_reporting.clear();

    if (kUsesOwnStack) {
        stack_t stack{};
        stack.ss_sp = g_state.stack.data();
        stack.ss_size = g_state.stack.size();
        sigaltstack(&stack, &g_state.old_stack);
    }

    struct sigaction action{};
    action.sa_handler = on_signal;
    action.sa_flags = SA_ONSTACK;
    sigfillset(&action.sa_mask);
    for (size_t i = 0; i < kCaught.size(); ++i) {
        sigaction(kCaught[i].signal, &action, &g_state.old_actions[i]);
    }
    g_state.old_abort = ggml_set_abort_callback(on_ggml_abort);
    g_state.old_terminate = std::set_terminate(on_terminate);

    sigevent event{};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGALRM;
    g_state.has_timer = options.seconds > 0 && timer_create(CLOCK_MONOTONIC, &event, &g_state.timer) == 0;
    arm();
}

LoadGuard::~LoadGuard() {
    if (g_state.has_timer) {
        timer_delete(g_state.timer);
        g_state.has_timer = false;
    }
    std::set_terminate(g_state.old_terminate);
    ggml_set_abort_callback(g_state.old_abort);
    for (size_t i = 0; i < kCaught.size(); ++i) {
        sigaction(kCaught[i].signal, &g_state.old_actions[i], nullptr);
    }
    if (kUsesOwnStack) {
        sigaltstack(&g_state.old_stack, nullptr);
    }
    g_active.store(false);
}

void LoadGuard::progress() { arm(); }

}  // namespace luce::llama
