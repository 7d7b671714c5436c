// LoadGuard in a child process: each way to die inside a load becomes one line on the reply fd and an exit status, and
// a guard that is gone leaves everything as it was.
#include "llama/model/load_guard.h"

#include <doctest/doctest.h>
#include <ggml.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <thread>

namespace {

using luce::llama::LoadGuard;
using luce::llama::LoadGuardOptions;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kFaultsAreCaught = false;
#else
constexpr bool kFaultsAreCaught = true;
#endif

struct Death {
    std::string said;
    int status = -1;  // exit status; -1 where a signal ended it
};

// Runs `load` in a child under a guard (made by the child) whose replies come back here.
Death run_in_child(int seconds, const std::function<void(LoadGuard&)>& load) {
    int fds[2];
    REQUIRE(pipe(fds) == 0);
    const pid_t child = fork();
    if (child == 0) {
        LoadGuard guard(LoadGuardOptions{.seconds = seconds, .reply_fd = fds[1]});
        load(guard);
        _exit(0);
    }
    close(fds[1]);
    Death death;
    char buffer[512];
    for (ssize_t n; (n = read(fds[0], buffer, sizeof buffer)) > 0;) {
        death.said.append(buffer, static_cast<size_t>(n));
    }
    close(fds[0]);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    death.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return death;
}

bool is_one_error_line(const std::string& said) {
    return said.starts_with("err start_failed ") && said.find('\n') == said.size() - 1;
}

void dies_in_order(const std::function<void()>& load, const std::string& reason) {
    const Death death = run_in_child(0, [&](LoadGuard&) { load(); });
    CAPTURE(death.said);
    CHECK(death.status == 2);
    CHECK(is_one_error_line(death.said));
    CHECK(death.said.find(reason) != std::string::npos);
}

}  // namespace

TEST_SUITE("llama") {

TEST_CASE("load guard: an assertion of the library, without the folders of its sources") {
    dies_in_order([] { ggml_abort("/some/where/model.cpp", 7, "n_layer %d\nis bad", 0); },
                  "refused the model: model.cpp:7: n_layer 0 is bad");
}

TEST_CASE("load guard: abort and an exception that nobody catches") {
    dies_in_order([] { std::abort(); }, "aborted");
    dies_in_order([] { std::thread([] { throw 1; }).join(); }, "did not handle");
}

TEST_CASE("load guard: faults") {
    if (kFaultsAreCaught) {
        dies_in_order([] { raise(SIGSEGV); }, "invalid memory access");
        dies_in_order([] { raise(SIGFPE); }, "division by zero");
        dies_in_order([] { raise(SIGBUS); }, "bus error");
        dies_in_order([] { std::thread([] { raise(SIGILL); }).join(); }, "illegal instruction");
    }
}

TEST_CASE("load guard: a load without progress ends, one with progress does not") {
    const Death hung = run_in_child(1, [](LoadGuard&) { std::this_thread::sleep_for(std::chrono::seconds(20)); });
    CHECK(hung.status == 2);
    CHECK(hung.said.find("time limit") != std::string::npos);
    // Three seconds to spare, for a machine that is busy with others.
    const Death slow = run_in_child(4, [](LoadGuard& guard) {
        for (int i = 0; i < 6; ++i) {
            std::this_thread::sleep_for(std::chrono::seconds(1));
            guard.progress();
        }
    });
    CHECK(slow.status == 0);
    CHECK(slow.said.empty());
}

TEST_CASE("load guard: leaves everything as it was") {
    struct sigaction before{};
    sigaction(SIGABRT, nullptr, &before);
    const auto terminate = std::get_terminate();
    const auto on_abort = ggml_set_abort_callback(nullptr);
    {
        const LoadGuard guard(LoadGuardOptions{.seconds = 5});
        CHECK((std::get_terminate() != terminate));
    }
    struct sigaction after{};
    sigaction(SIGABRT, nullptr, &after);
    CHECK((after.sa_handler == before.sa_handler));
    CHECK((std::get_terminate() == terminate));
    CHECK((ggml_set_abort_callback(on_abort) == nullptr));
}

}  // TEST_SUITE("llama")
