// Tests of what may happen to the disk store's folder: its writer is killed at any moment, and files get damaged in any
// way. LUCE_TEST_KILLS and LUCE_TEST_CORRUPTIONS say how often.
#include <doctest/doctest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "base/log.h"
#include "base/unique_fd.h"
#include "memory/tiers/disk_store.h"
#include "tests/memory/disk_samples.h"

TEST_SUITE("memory") {

using namespace luce;
using namespace luce::memory;
using namespace luce::memory::samples;

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kPlenty = 1 << 30;
constexpr int kRest = 3;

// Rows large enough that a kill finds a file half written now and then.
TierLimits large_limits() { return {.row_bytes = 8192, .max_state_bytes = 1 << 20, .n_vocab = 300}; }

struct Store {
    Store(const fs::path& folder, const TierLimits& of, std::uint64_t budget_bytes = kPlenty) {
        worker = std::move(IoWorker::start(kPlenty)).value();
        disk = std::move(DiskStore::open({folder.string(), budget_bytes, kIdentity, of}, *worker, clock)).value();
    }
    void wait() { REQUIRE(worker->drain(std::chrono::seconds(120))); }

    SteadyClock clock;
    std::unique_ptr<IoWorker> worker;
    std::unique_ptr<DiskStore> disk;  // goes before the worker
};

// The n-th page and the checkpoint behind it, the same in every process.
PageFile nth_page(std::uint64_t n, const TierLimits& of) {
    Random random(n);
    return random_page(random, root_name(kIdentity), of);
}

CheckpointFile nth_checkpoint(std::uint64_t n, const TierLimits& of) {
    Random random(n);
    const PageFile page = random_page(random, root_name(kIdentity), of);
    return random_checkpoint(random, page.name, kRest, 100000, true, of, n % 3);
}

// Writes without end and tells the pipe of every file that it believes to be on disk.
[[noreturn]] void write_until_killed(const fs::path& folder, std::uint64_t first, int told) {
    Store store(folder, large_limits());
    for (std::uint64_t n = first;; ++n) {
        const auto tell = [told](bool ok) {
            const char byte = ok ? 1 : 0;
            if (::write(told, &byte, 1) != 1) ::_exit(1);
        };
        const PageFile page = nth_page(n, large_limits());
        const CheckpointFile checkpoint = nth_checkpoint(n, large_limits());
        store.disk->write_page(page.name, page.parent, as_page(page.tokens), page.rows, tell);
        store.disk->write_checkpoint(checkpoint.page, checkpoint.rest, {checkpoint.checkpoint, checkpoint.scores},
                                     tell);
        if (!store.worker->drain(std::chrono::seconds(60))) ::_exit(1);
    }
}

// Lets a child write, kills it at a random moment and says how many files it was sure of.
int killed_writer(const fs::path& folder, std::uint64_t first, Random& random) {
    std::array<int, 2> ends{};
    REQUIRE(::pipe(ends.data()) == 0);
    UniqueFd told(ends[0]);
    UniqueFd telling(ends[1]);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) write_until_killed(folder, first, telling.get());
    telling.reset();
    int n_sure = 0;
    char byte = 0;
    const int n_awaited = static_cast<int>(below(random, 6));
    while (n_sure < n_awaited && ::read(told.get(), &byte, 1) == 1) n_sure += byte;
    ::usleep(static_cast<useconds_t>(below(random, 4000)));  // the random moment itself; nothing is waited for
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    while (::read(told.get(), &byte, 1) == 1) n_sure += byte;
    return n_sure;
}

struct Counts {
    int n_good = 0;
    int n_missing = 0;
    int n_refused = 0;
    int n_wrong = 0;
};

void count_page(Store& store, const PageFile& page, Counts& counts) {
    store.disk->read_page(page.name, page.parent, as_page(page.tokens), [&](const Result<Blob>& read) {
        if (read) {
            ++(*read.value() == *page.rows ? counts.n_good : counts.n_wrong);
        } else {
            ++(read.error().code == ErrorCode::no_such_file ? counts.n_missing : counts.n_refused);
        }
    });
    store.wait();
}

void count_checkpoint(Store& store, const CheckpointFile& checkpoint, Counts& counts) {
    store.disk->read_checkpoint(
        checkpoint.page, checkpoint.scores.size(), checkpoint.rest, [&](const Result<ScoredCheckpoint>& read) {
            if (read) {
                const bool is_right =
                    same(*read.value().checkpoint, *checkpoint.checkpoint) && read.value().scores == checkpoint.scores;
                ++(is_right ? counts.n_good : counts.n_wrong);
            } else {
                ++(read.error().code == ErrorCode::no_such_file ? counts.n_missing : counts.n_refused);
            }
        });
    store.wait();
}

struct Quiet {
    Quiet() { set_log_level(LogLevel::error); }
    ~Quiet() { set_log_level(LogLevel::info); }
};

}  // namespace

TEST_CASE("a writer that is killed at any moment leaves whole files only, and all it was sure of") {
    const TemporaryFolder folder;
    Random random(1);
    for (int kill = 0; kill < times("LUCE_TEST_KILLS", 20); ++kill) {
        const std::uint64_t first = static_cast<std::uint64_t>(kill) * 1000;
        const int n_sure = killed_writer(folder.path, first, random);
        Store store(folder.path, large_limits());
        const int n_files = static_cast<int>(store.disk->stats().n_files);
        CHECK(n_files >= n_sure);
        CHECK(files_below(folder.path).size() == static_cast<std::size_t>(n_files));  // nothing is left over
        Counts counts;
        for (std::uint64_t n = first; counts.n_missing < 2; ++n) {
            count_page(store, nth_page(n, large_limits()), counts);
            count_checkpoint(store, nth_checkpoint(n, large_limits()), counts);
        }
        CHECK(counts.n_good == n_files);
        CHECK(counts.n_refused == 0);
        CHECK(counts.n_wrong == 0);
        store.disk->clear();
        store.wait();
    }
}

TEST_CASE("damaged files are refused, counted and removed, and none is used") {
    const Quiet quiet;
    const TemporaryFolder folder;
    Random random(2);
    static constexpr std::size_t kPages = 20;
    std::vector<PageFile> pages;
    std::vector<CheckpointFile> checkpoints;
    {
        Store store(folder.path, limits());
        for (std::size_t n = 0; n < kPages; ++n) {
            pages.push_back(nth_page(n, limits()));
            Random of_checkpoint(n);
            checkpoints.push_back(
                random_checkpoint(of_checkpoint, pages.back().name, n, 10 * n, n % 2 == 0, limits(), n % 4 * 9));
            store.disk->write_page(pages[n].name, pages[n].parent, as_page(pages[n].tokens), pages[n].rows,
                                   [](bool) {});
            store.disk->write_checkpoint(checkpoints[n].page, checkpoints[n].rest,
                                         {checkpoints[n].checkpoint, checkpoints[n].scores}, [](bool) {});
        }
        store.wait();
    }
    std::map<fs::path, Bytes> good;
    for (const fs::path& path : files_below(folder.path)) good[path] = content_of(path);
    REQUIRE(good.size() == 2 * kPages);
    const int n_damaged = times("LUCE_TEST_CORRUPTIONS", 1000);
    for (int n_done = 0; n_done < n_damaged;) {
        for (const auto& [path, bytes] : good) {
            const Bytes& other = std::next(good.begin(), static_cast<long>(below(random, good.size())))->second;
            switch (below(random, 4)) {
                case 0: put(path, with_edited_header(random, bytes, 112)); break;
                case 1: put(path, other == bytes ? Bytes() : other); break;
                default: put(path, damaged(random, bytes)); break;
            }
        }
        Store store(folder.path, limits());
        REQUIRE(store.disk->stats().n_files == good.size());
        Counts counts;
        for (const PageFile& page : pages) count_page(store, page, counts);
        for (const CheckpointFile& checkpoint : checkpoints) count_checkpoint(store, checkpoint, counts);
        n_done += counts.n_refused;
        CHECK(counts.n_refused == static_cast<int>(good.size()));
        CHECK(store.disk->stats().n_corrupt_files == good.size());
        CHECK(store.disk->stats().n_files == 0);
        CHECK(store.disk->stats().n_bytes == 0);
        CHECK(files_below(folder.path).empty());
        CHECK(store.disk->check_integrity() == "");
    }
}

// Against a list of what should be there: random operations, with a budget that is always too small.
TEST_CASE("random operations keep the store's books right") {
    const Quiet quiet;
    const TemporaryFolder folder;
    Random random(3);
    const std::uint64_t budget_bytes = 8 * page_file_bytes(limits());
    std::vector<PageFile> pages;
    for (std::size_t n = 0; n < 30; ++n) pages.push_back(nth_page(n, limits()));
    auto store = std::make_unique<Store>(folder.path, limits(), budget_bytes);
    for (int step = 0; step < 600; ++step) {
        const PageFile& page = pages[below(random, pages.size())];
        switch (below(random, 12)) {
            case 0: store->disk->erase(page.name); break;
            case 1: store->disk->touch(page.name); break;
            case 2:
                if (below(random, 10) == 0) store->disk->clear();
                break;
            case 3:
                store.reset();
                store = std::make_unique<Store>(folder.path, limits(), budget_bytes);
                break;
            case 4: {
                const auto files = files_below(folder.path);
                if (!files.empty()) put(files[below(random, files.size())], random_bytes(random, 50));
                break;
            }
            case 5:
            case 6:
                store->disk->read_page(page.name, page.parent, as_page(page.tokens), [&page](const Result<Blob>& read) {
                    if (read) CHECK(*read.value() == *page.rows);
                });
                break;
            default: store->disk->write_page(page.name, page.parent, as_page(page.tokens), page.rows, [](bool) {});
        }
        if (below(random, 3) == 0) store->wait();
        REQUIRE(store->disk->check_integrity() == "");
        REQUIRE(store->disk->stats().n_bytes <= budget_bytes);
    }
    store->wait();
    CHECK(files_below(folder.path).size() == store->disk->stats().n_files);
}

}  // TEST_SUITE("memory")
