// Tests of the helper thread: order, bounds, what happens to a job that throws and to those that are dropped.
#include <doctest/doctest.h>

#include <poll.h>

#include <future>
#include <stdexcept>
#include <string>

#include "memory/tiers/io_worker.h"

TEST_SUITE("memory") {

using namespace luce;
using namespace luce::memory;

namespace {

constexpr std::chrono::seconds kLong{60};

std::unique_ptr<IoWorker> started(std::size_t max_queued_bytes) {
    Result<std::unique_ptr<IoWorker>> worker = IoWorker::start(max_queued_bytes);
    REQUIRE(worker);
    return std::move(worker).value();
}

bool is_readable(int fd, int timeout_ms) {
    pollfd entry = {fd, POLLIN, 0};
    return ::poll(&entry, 1, timeout_ms) == 1;
}

// A job that holds the worker until it is opened.
struct Gate {
    IoWorker::Job job() {
        return [opened = opened.get_future().share()] {
            opened.wait();
            return IoWorker::Completion();
        };
    }
    void open() { opened.set_value(); }
    std::promise<void> opened;
};

}  // namespace

TEST_CASE("a job runs on the helper's thread, its completion on ours, when the descriptor says so") {
    const auto worker = started(0);
    CHECK(!is_readable(worker->fd(), 0));
    std::thread::id job_thread;
    std::thread::id completion_thread;
    REQUIRE(worker->post(
        [&] {
            const std::thread::id here = std::this_thread::get_id();
            return [&, here] {
                job_thread = here;
                completion_thread = std::this_thread::get_id();
            };
        },
        0));
    REQUIRE(is_readable(worker->fd(), 60000));
    CHECK(completion_thread == std::thread::id());
    worker->run_completions();
    CHECK(completion_thread == std::this_thread::get_id());
    CHECK(job_thread != std::thread::id());
    CHECK(job_thread != completion_thread);
    CHECK(!is_readable(worker->fd(), 0));
    CHECK(worker->drain(kLong));
}

TEST_CASE("jobs keep their order, urgent ones go first") {
    const auto worker = started(100);
    Gate gate;
    std::string order;
    const auto job = [&order](char name) {
        return [&order, name] { return [&order, name] { order.push_back(name); }; };
    };
    REQUIRE(worker->post(gate.job(), 0));
    CHECK(worker->post(job('c'), 10));
    CHECK(worker->post(job('d'), 10));
    worker->post_urgent(job('a'));
    worker->post_urgent(job('b'));
    gate.open();
    REQUIRE(worker->drain(kLong));
    CHECK(order == "abcd");
}

TEST_CASE("what waits is bounded by its bytes; one large job is taken when nothing waits") {
    const auto worker = started(100);
    Gate gate;
    const auto nothing = [] { return IoWorker::Completion(); };
    CHECK(worker->has_room(1000));
    REQUIRE(worker->post(gate.job(), 60));
    CHECK(!worker->post(nothing, 41));
    CHECK(!worker->has_room(41));
    CHECK(worker->post(nothing, 40));
    CHECK(!worker->post(nothing, 1));
    CHECK(worker->post(nothing, 0));
    gate.open();
    REQUIRE(worker->drain(kLong));
    CHECK(worker->has_room(1000));
}

TEST_CASE("jobs and completions that throw are contained") {
    const auto worker = started(100);
    bool ran = false;
    REQUIRE(worker->post([]() -> IoWorker::Completion { throw std::runtime_error("a test's job"); }, 10));
    worker->complete([] { throw 1; });
    REQUIRE(worker->post([&ran] { return [&ran] { ran = true; }; }, 10));
    REQUIRE(worker->drain(kLong));
    CHECK(ran);
}

TEST_CASE("a drain runs what completions post, and gives up in time") {
    const auto worker = started(100);
    int n = 0;
    std::function<void()> again = [&] {
        if (++n < 5) worker->post_urgent([&] { return again; });
    };
    worker->complete(again);
    REQUIRE(worker->drain(kLong));
    CHECK(n == 5);
    Gate gate;
    REQUIRE(worker->post(gate.job(), 0));
    CHECK(!worker->drain(std::chrono::milliseconds(1)));
    gate.open();
    CHECK(worker->drain(kLong));
}

TEST_CASE("a worker that goes lets go of everything and runs no completion") {
    const auto held = std::make_shared<int>(0);
    bool ran = false;
    {
        const auto worker = started(1000);
        for (int i = 0; i < 50; ++i) {
            REQUIRE(worker->post([held, &ran] { return [held, &ran] { ran = true; }; }, 1));
        }
    }
    CHECK(!ran);
    CHECK(held.use_count() == 1);
}

}  // TEST_SUITE("memory")
