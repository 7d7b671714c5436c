// Tests of the pool of threads that samplers choose on.
#include <doctest/doctest.h>

#include <atomic>
#include <latch>
#include <set>
#include <thread>
#include <vector>

#include "llama/sampling/worker_pool.h"

TEST_SUITE("llama") {

using namespace luce;
using namespace luce::llama;

TEST_CASE("each piece of each run is done once, with any number of threads") {
    for (const std::size_t n_threads : {0, 1, 2, 5}) {
        WorkerPool pool(n_threads);
        for (std::size_t round = 0; round < 300; ++round) {
            std::vector<int> n_done(round % 9, 0);
            pool.run(n_done.size(), [&](std::size_t i) { ++n_done[i]; });
            CHECK(n_done == std::vector<int>(n_done.size(), 1));
        }
    }
}

TEST_CASE("pieces are done at the same time, by the caller too") {
    WorkerPool pool(3);
    std::latch all_there(3);
    std::vector<std::thread::id> ids(3);
    pool.run(3, [&](std::size_t i) {
        ids[i] = std::this_thread::get_id();
        all_there.arrive_and_wait();  // hangs unless all three are under way
    });
    CHECK(std::set(ids.begin(), ids.end()).size() == 3);
    CHECK(std::set(ids.begin(), ids.end()).contains(std::this_thread::get_id()));
}

}  // TEST_SUITE("llama")
