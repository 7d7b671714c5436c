// Tests of when threads spin where they wait for each other, and of what makes them sleep.
#include <doctest/doctest.h>

#include <filesystem>
#include <iterator>
#include <thread>

#include "llama/decoding/contention_monitor.h"

using luce::llama::ContentionDetector;
using luce::llama::ContentionMonitor;

namespace {

constexpr double kWindow = 0.25;

// Windows of two threads that waited for a core in this share of their time, until the detector changes its mind.
int windows_until_change(ContentionDetector& detector, double share, int n_most) {
    const bool before = detector.is_contended();
    for (int i = 1; i <= n_most; ++i) {
        if (detector.update(kWindow, share * kWindow * 2, 2) != before) return i;
    }
    return 0;
}

[[maybe_unused]] std::size_t n_threads_here() {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}));
}

}  // namespace

TEST_SUITE("llama") {
TEST_CASE("threads spin while they have their cores, and what a server takes from them does not count") {
    ContentionDetector detector;
    CHECK_FALSE(detector.is_contended());
    CHECK(windows_until_change(detector, 0.0, 1000) == 0);
    CHECK(windows_until_change(detector, 0.1, 1000) == 0);
}

TEST_CASE("threads sleep from the first window on in which others took their cores, for as long as they do") {
    ContentionDetector detector;
    CHECK(windows_until_change(detector, 0.3, 1) == 1);
    CHECK(detector.is_contended());
    CHECK(windows_until_change(detector, 0.3, 1000) == 0);
    CHECK(windows_until_change(detector, 0.1, 1000) == 0);
}

TEST_CASE("they spin again after a calm window, and after more of them in a row each time it was too early") {
    ContentionDetector detector;
    CHECK(windows_until_change(detector, 0.3, 1) == 1);
    CHECK(windows_until_change(detector, 0.01, 1000) == 1);
    CHECK(windows_until_change(detector, 0.3, 1) == 1);
    CHECK(windows_until_change(detector, 0.01, 1) == 0);
    CHECK(windows_until_change(detector, 0.3, 1) == 0);  // not in a row
    CHECK(windows_until_change(detector, 0.01, 1000) == 2);
    for (int n_calm = 4; n_calm <= 128; n_calm *= 2) {
        CHECK(windows_until_change(detector, 0.3, 1) == 1);
        CHECK(windows_until_change(detector, 0.01, 1000) == n_calm);
    }
    CHECK(windows_until_change(detector, 0.3, 1) == 1);
    CHECK(windows_until_change(detector, 0.01, 1000) == 128);
    CHECK(windows_until_change(detector, 0.0, 100) == 0);  // spinning was right for long
    CHECK(windows_until_change(detector, 0.3, 1) == 1);
    CHECK(windows_until_change(detector, 0.01, 1000) == 1);
}

TEST_CASE("sleeping without need is found out sooner than contention") {
    ContentionDetector detector;
    const double spinning_s = detector.window_s();
    detector.update(kWindow, 0.3 * kWindow * 2, 2);
    CHECK(detector.window_s() < spinning_s);
}

TEST_CASE("more threads are judged by the share of each") {
    ContentionDetector detector;
    CHECK_FALSE(detector.update(kWindow, 0.1 * kWindow * 16, 16));
    CHECK(detector.update(kWindow, 0.2 * kWindow * 16, 16));
}

#ifdef LUCE_HAS_LIBGOMP
TEST_CASE("while threads are to sleep there are more of them than cores, which is what libgomp goes by") {
    ContentionMonitor monitor(1);
    const std::size_t n_before = n_threads_here();
    CHECK_FALSE(monitor.sleeps());
    monitor.set_sleeps(true);
    CHECK(monitor.sleeps());
    CHECK(n_threads_here() >= n_before + std::thread::hardware_concurrency());
    monitor.set_sleeps(true);
    monitor.set_sleeps(false);
    CHECK_FALSE(monitor.sleeps());
}

#endif

TEST_CASE("a thread that computes alone waits for nobody, whatever others do") {
    ContentionMonitor single(1);
    for (int i = 0; i < 1000; ++i) single.note(1e-9);
    CHECK_FALSE(single.sleeps());
    CHECK_FALSE(single.met_contention());
}
}  // TEST_SUITE("llama")
