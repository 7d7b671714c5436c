// Tests of the disk store on real folders: what is written is found again, the budget holds, other daemons and other
// memories share the folder, and a disk that fails stops nothing but writing.
#include <doctest/doctest.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>

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

// A store of its own on a folder, waiting for every answer.
struct Store {
    explicit Store(const fs::path& folder, std::uint64_t budget_bytes = kPlenty, const char* identity = kIdentity) {
        Result<std::unique_ptr<IoWorker>> started = IoWorker::start(kPlenty);
        REQUIRE(started);
        worker = std::move(started).value();
        Result<std::unique_ptr<DiskStore>> opened =
            DiskStore::open({folder.string(), budget_bytes, identity, limits()}, *worker, clock);
        REQUIRE(opened);
        disk = std::move(opened).value();
    }
    ~Store() { CHECK(disk->check_integrity() == ""); }

    void wait() { REQUIRE(worker->drain(std::chrono::seconds(60))); }

    bool write(const PageFile& page) {
        std::optional<bool> done;
        disk->write_page(page.name, page.parent, as_page(page.tokens), page.rows, [&](bool ok) { done = ok; });
        CHECK(!done);
        wait();
        REQUIRE(done);
        return *done;
    }
    bool write(const CheckpointFile& checkpoint) {
        std::optional<bool> done;
        disk->write_checkpoint(checkpoint.page, checkpoint.rest, {checkpoint.checkpoint, {}},
                               [&](bool ok) { done = ok; });
        wait();
        REQUIRE(done);
        return *done;
    }
    Result<Blob> read(const PageFile& page) {
        std::optional<Result<Blob>> done;
        disk->read_page(page.name, page.parent, as_page(page.tokens), [&](Result<Blob> rows) { done.emplace(rows); });
        CHECK(!done);
        wait();
        REQUIRE(done);
        return *done;
    }
    Result<CheckpointBlob> read(const CheckpointFile& checkpoint) {
        std::optional<Result<CheckpointBlob>> done;
        disk->read_checkpoint(checkpoint.page, 0, checkpoint.rest, [&](const Result<ScoredCheckpoint>& read) {
            done.emplace(read ? Result<CheckpointBlob>(read.value().checkpoint) : Result<CheckpointBlob>(read.error()));
        });
        wait();
        REQUIRE(done);
        return *done;
    }
    ErrorCode failure(const auto& what) {
        const auto result = read(what);
        REQUIRE(!result);
        return result.error().code;
    }
    bool has(const PageFile& page) const { return disk->has_page(page.name); }

    ManualClock clock;
    std::unique_ptr<IoWorker> worker;
    std::unique_ptr<DiskStore> disk;  // goes before the worker
};

fs::path path_of(const fs::path& folder, const PageFile& page, const char* identity = kIdentity) {
    const DiskFileName name = DiskFileName::of_page(page.name);
    return folder / identity / to_folder_name(name) / to_file_name(name);
}

void age(const fs::path& path, std::chrono::seconds by) { fs::last_write_time(path, fs::last_write_time(path) - by); }

}  // namespace

TEST_CASE("pages and checkpoints are found again by another store, bit for bit") {
    const TemporaryFolder folder;
    Random random(1);
    const PageFile page = random_page(random, root_name(kIdentity));
    const PageFile next = random_page(random, page.name);
    const CheckpointFile checkpoint = random_checkpoint(random, next.name, 7, 1000, true);
    const CheckpointFile other_checkpoint = random_checkpoint(random, next.name, 0, 1, false);
    {
        Store store(folder.path / "made" / "here");
        CHECK(!store.has(page));
        CHECK(store.failure(page) == ErrorCode::no_such_file);
        CHECK(store.write(page));
        CHECK(store.write(next));
        CHECK(store.write(checkpoint));
        CHECK(store.write(other_checkpoint));
        CHECK(*store.read(page).value() == *page.rows);
    }
    Store store(folder.path / "made" / "here");
    CHECK(store.has(page));
    CHECK(store.has(next));
    CHECK(*store.read(page).value() == *page.rows);
    CHECK(*store.read(next).value() == *next.rows);
    CHECK(same(*store.read(checkpoint).value(), *checkpoint.checkpoint));
    CHECK(same(*store.read(other_checkpoint).value(), *other_checkpoint.checkpoint));
    CHECK(store.disk->checkpoints_after(page.name).empty());
    std::vector<CheckpointOnDisk> checkpoints = store.disk->checkpoints_after(next.name);
    std::sort(checkpoints.begin(), checkpoints.end(), [](const auto& a, const auto& b) { return a.n_rest < b.n_rest; });
    REQUIRE(checkpoints.size() == 2);
    CHECK(checkpoints[0].name == other_checkpoint.name);
    CHECK(checkpoints[1].name == checkpoint.name);
    CHECK(checkpoints[1].n_rest == 7);
    CHECK(checkpoints[1].n_bytes == checkpoint_file_bytes(7, *checkpoint.checkpoint, 0));
    const DiskStats stats = store.disk->stats();
    CHECK(stats.n_files == 4);
    CHECK(stats.n_read_files == 4);
    CHECK(stats.n_read_bytes == stats.n_bytes);
    CHECK(stats.n_corrupt_files == 0);
    CHECK(stats.n_foreign_files == 0);
    CHECK(!store.disk->has_foreign());
    CHECK((fs::status(path_of(folder.path / "made" / "here", page)).permissions() & fs::perms::others_all) ==
          fs::perms::none);
}

TEST_CASE("what is wrong about the options is an error") {
    const TemporaryFolder folder;
    const Result<std::unique_ptr<IoWorker>> worker = IoWorker::start(0);
    const ManualClock clock;
    const auto failure = [&](const fs::path& path, const char* identity) {
        return DiskStore::open({path.string(), 0, identity, limits()}, *worker.value(), clock).error().code;
    };
    CHECK(failure(folder.path, "short") == ErrorCode::bad_args);
    put(folder.path / "file", {});
    CHECK(failure(folder.path / "file", kIdentity) == ErrorCode::io_error);
    CHECK(failure(folder.path / "file" / "below", kIdentity) == ErrorCode::io_error);
}

TEST_CASE("the same page is written once, however often it is asked for") {
    const TemporaryFolder folder;
    Random random(2);
    const PageFile page = random_page(random, root_name(kIdentity));
    Store store(folder.path);
    int answers = 0;
    for (int i = 0; i < 5; ++i) {
        store.disk->write_page(page.name, page.parent, as_page(page.tokens), page.rows,
                               [&](bool ok) { answers += ok ? 1 : 0; });
    }
    store.wait();
    CHECK(answers == 5);
    CHECK(store.disk->stats().n_written_files == 1);
    CHECK(store.write(page));
    CHECK(files_below(folder.path).size() == 1);
    CHECK(store.disk->stats().n_bytes == page_file_bytes(limits()));
}

TEST_CASE("the budget holds at every moment, the longest unused go first") {
    const TemporaryFolder folder;
    Random random(3);
    const std::uint64_t n_bytes = page_file_bytes(limits());
    Store store(folder.path, 3 * n_bytes + n_bytes / 2);
    std::vector<PageFile> pages;
    for (int i = 0; i < 5; ++i) pages.push_back(random_page(random, root_name(kIdentity)));
    for (int i = 0; i < 3; ++i) CHECK(store.write(pages[static_cast<std::size_t>(i)]));
    store.disk->touch(pages[0].name);
    CHECK(store.write(pages[3]));
    CHECK(store.has(pages[0]));
    CHECK(!store.has(pages[1]));
    CHECK(store.write(pages[4]));
    CHECK(!store.has(pages[2]));
    CHECK(store.disk->stats().n_evicted_files == 2);
    CHECK(files_below(folder.path).size() == 3);
    const CheckpointFile large = random_checkpoint(random, pages[0].name, 1, 4000, false);
    CHECK(store.write(large));
    CHECK(store.disk->stats().n_bytes <= 3 * n_bytes + n_bytes / 2);

    Store tiny(folder.path, n_bytes - 1);
    CHECK(!tiny.write(pages[1]));
    Store none(folder.path, 0);
    CHECK(!none.write(pages[1]));
    CHECK(none.has(pages[4]));
    CHECK(none.disk->stats().n_unwritten_files == 1);
}

TEST_CASE("many writes at once keep the budget too") {
    const TemporaryFolder folder;
    Random random(4);
    const std::uint64_t n_bytes = page_file_bytes(limits());
    Store store(folder.path, 5 * n_bytes);
    int n_written = 0;
    for (int i = 0; i < 20; ++i) {
        const PageFile page = random_page(random, root_name(kIdentity));
        store.disk->write_page(page.name, page.parent, as_page(page.tokens), page.rows,
                               [&](bool ok) { n_written += ok ? 1 : 0; });
    }
    store.wait();
    CHECK(n_written == 5);
    CHECK(files_below(folder.path).size() == 5);
    CHECK(store.disk->stats().n_bytes == 5 * n_bytes);
}

TEST_CASE("a text is evicted from its end, also after a restart") {
    const TemporaryFolder folder;
    Random random(5);
    const std::uint64_t n_bytes = page_file_bytes(limits());
    std::vector<PageFile> pages;
    std::vector<PageName> names;
    for (int i = 0; i < 4; ++i) {
        pages.push_back(random_page(random, i == 0 ? root_name(kIdentity) : pages.back().name));
        names.push_back(pages.back().name);
    }
    {
        Store store(folder.path);
        for (const PageFile& page : pages) CHECK(store.write(page));
        store.disk->touch(names);
        store.wait();
    }
    Store store(folder.path, 4 * n_bytes);
    CHECK(store.write(random_page(random, root_name("x"))));
    CHECK(!store.has(pages[3]));
    CHECK(store.write(random_page(random, root_name("x"))));
    CHECK(!store.has(pages[2]));
    CHECK(store.has(pages[0]));
    CHECK(store.has(pages[1]));
}

TEST_CASE("other memories' files are not found, count, and go when they are the oldest") {
    const TemporaryFolder folder;
    Random random(6);
    const std::uint64_t n_bytes = page_file_bytes(limits());
    const PageFile theirs = random_page(random, root_name(kOtherIdentity));
    {
        Store other(folder.path, kPlenty, kOtherIdentity);
        CHECK(other.write(theirs));
    }
    age(path_of(folder.path, theirs, kOtherIdentity), std::chrono::seconds(100));
    Store store(folder.path, 2 * n_bytes);
    CHECK(store.disk->has_foreign());
    CHECK(!store.has(theirs));
    CHECK(store.disk->stats().n_foreign_files == 1);
    CHECK(store.disk->stats().n_bytes == n_bytes);
    const PageFile first = random_page(random, root_name(kIdentity));
    CHECK(store.write(first));
    store.disk->clear();
    store.wait();
    CHECK(files_below(folder.path).size() == 1);
    CHECK(store.write(first));
    CHECK(store.write(random_page(random, root_name(kIdentity))));
    CHECK(store.disk->stats().n_foreign_files == 0);
    CHECK(!fs::exists(path_of(folder.path, theirs, kOtherIdentity)));
    CHECK(store.has(first));
}

TEST_CASE("a page under another identity's folder is refused") {
    const TemporaryFolder folder;
    Random random(7);
    const PageFile page = random_page(random, root_name(kOtherIdentity));
    {
        Store other(folder.path, kPlenty, kOtherIdentity);
        CHECK(other.write(page));
    }
    fs::rename(folder.path / kOtherIdentity, folder.path / kIdentity);
    Store store(folder.path);
    CHECK(store.has(page));
    CHECK(store.failure(page) == ErrorCode::bad_snapshot);
    CHECK(!store.has(page));
    CHECK(files_below(folder.path).empty());
    CHECK(store.disk->stats().n_corrupt_files == 1);
}

TEST_CASE("nothing that is not exactly ours is touched, followed or counted") {
    const TemporaryFolder folder;
    const TemporaryFolder elsewhere;
    Random random(8);
    const PageFile page = random_page(random, root_name(kIdentity));
    const fs::path path = path_of(folder.path, page);
    const std::string file_name = path.filename().string();
    fs::create_directories(path.parent_path());
    const std::string other_digits = path.parent_path().filename() == "aa" ? "bb" : "aa";
    fs::create_directories(folder.path / kIdentity / other_digits);
    fs::create_directories(folder.path / "models");
    const std::vector<fs::path> not_ours = {folder.path / file_name,
                                            folder.path / "models" / file_name,
                                            folder.path / kIdentity / file_name,
                                            folder.path / kIdentity / other_digits / file_name,
                                            path.parent_path() / (file_name + "~"),
                                            path.parent_path() / "notes.txt",
                                            path.parent_path() / "x.tmp-abcdef"};
    for (const fs::path& file : not_ours) put(file, Bytes{1, 2, 3});
    put(elsewhere.path / "target", Bytes{1, 2, 3});
    fs::create_symlink(elsewhere.path / "target", path);
    fs::create_directory_symlink(elsewhere.path, folder.path / kOtherIdentity);
    Store store(folder.path, page_file_bytes(limits()));
    CHECK(store.disk->stats().n_files == 0);
    CHECK(store.write(page));
    CHECK(!fs::is_symlink(path));
    CHECK(store.write(random_page(random, page.name)));
    store.disk->clear();
    store.wait();
    for (const fs::path& file : not_ours) CHECK(content_of(file) == Bytes{1, 2, 3});
    CHECK(content_of(elsewhere.path / "target") == Bytes{1, 2, 3});
}

TEST_CASE("what a dead writer left is removed, what a living one writes is not") {
    const TemporaryFolder folder;
    Random random(9);
    const fs::path path = path_of(folder.path, random_page(random, root_name(kIdentity)));
    fs::create_directories(path.parent_path());
    const fs::path dead = path.string() + ".tmp-dead00";
    const fs::path living = path.string() + ".tmp-living";
    put(dead, Bytes{1});
    put(living, Bytes{1});
    const UniqueFd lock(::open(living.c_str(), O_WRONLY | O_CLOEXEC));
    REQUIRE(::flock(lock.get(), LOCK_EX | LOCK_NB) == 0);
    const Store store(folder.path);
    CHECK(!fs::exists(dead));
    CHECK(fs::exists(living));
    CHECK(store.disk->stats().n_files == 0);
}

TEST_CASE("two stores share a folder: what one has written or removed is no trouble for the other") {
    const TemporaryFolder folder;
    Random random(10);
    const PageFile page = random_page(random, root_name(kIdentity));
    Store one(folder.path);
    Store other(folder.path);
    CHECK(one.write(page));
    CHECK(!other.has(page));
    CHECK(other.write(page));
    CHECK(other.has(page));
    one.disk->erase(page.name);
    one.wait();
    CHECK(!one.has(page));
    CHECK(other.failure(page) == ErrorCode::no_such_file);
    CHECK(!other.has(page));
    CHECK(other.disk->stats().n_vanished_files == 1);
    CHECK(other.disk->stats().n_bytes == 0);
    CHECK(one.write(page));
    CHECK(other.write(page));
    one.disk->clear();
    one.wait();
    CHECK(other.write(page));  // known to it, but gone: it is written again
    CHECK(fs::exists(path_of(folder.path, page)));
}

TEST_CASE("what is erased while it is being written is not there") {
    const TemporaryFolder folder;
    Random random(11);
    const PageFile page = random_page(random, root_name(kIdentity));
    const PageFile cleared = random_page(random, root_name(kIdentity));
    Store store(folder.path);
    int n_false = 0;
    const auto count = [&n_false](bool ok) { n_false += ok ? 0 : 1; };
    store.disk->write_page(page.name, page.parent, as_page(page.tokens), page.rows, count);
    store.disk->erase(page.name);
    store.disk->write_page(page.name, page.parent, as_page(page.tokens), page.rows, count);
    store.disk->write_page(cleared.name, cleared.parent, as_page(cleared.tokens), cleared.rows, count);
    store.disk->clear();
    store.wait();
    CHECK(n_false == 3);
    CHECK(store.disk->stats().n_files == 0);
    CHECK(files_below(folder.path).empty());
    CHECK(store.write(page));
}

TEST_CASE("a disk that fails stops writing only, until time has passed or space was freed") {
    const TemporaryFolder folder;
    Random random(12);
    Store store(folder.path);
    const PageFile good = random_page(random, root_name(kIdentity));
    PageFile page = random_page(random, root_name(kIdentity));
    while (path_of(folder.path, page).parent_path() == path_of(folder.path, good).parent_path()) {
        page = random_page(random, root_name(kIdentity));
    }
    CHECK(store.write(good));
    put(path_of(folder.path, page).parent_path(), {});  // a file where a folder has to be
    CHECK(store.disk->write_trouble().empty());
    CHECK(!store.write(page));
    CHECK(store.disk->stats().n_write_failures == 1);
    CHECK(!store.disk->write_trouble().empty());
    CHECK(*store.read(good).value() == *good.rows);
    CHECK(!store.write(page));
    CHECK(store.disk->stats().n_write_failures == 1);  // not tried
    CHECK(store.disk->stats().n_unwritten_files == 1);
    store.clock.advance(DiskStore::kRetryAfter_s);
    CHECK(!store.write(page));
    CHECK(store.disk->stats().n_write_failures == 2);
    store.disk->erase(good.name);
    store.wait();
    fs::remove(path_of(folder.path, page).parent_path());
    CHECK(store.write(page));
    CHECK(store.disk->write_trouble().empty());
    CHECK(store.disk->stats().n_bytes == page_file_bytes(limits()));
}

TEST_CASE("a file that grows beyond what the disk takes leaves nothing behind") {
    const TemporaryFolder folder;
    Random random(13);
    Store store(folder.path);
    const CheckpointFile checkpoint = random_checkpoint(random, root_name(kIdentity), 3, 4096, true);
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    const auto handler = ::signal(SIGXFSZ, SIG_IGN);
    const rlimit small = {1000, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    const bool written = store.write(checkpoint);
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    ::signal(SIGXFSZ, handler);
    CHECK(!written);
    CHECK(files_below(folder.path).empty());
    CHECK(store.disk->stats().n_bytes == 0);
    store.clock.advance(DiskStore::kRetryAfter_s);
    CHECK(store.write(checkpoint));
}

TEST_CASE("what does not fit the model is not written") {
    const TemporaryFolder folder;
    Random random(14);
    Store store(folder.path);
    PageFile page = random_page(random, root_name(kIdentity));
    page.rows = std::make_shared<const Bytes>(7);
    CHECK(!store.write(page));
    CHECK(!store.write(random_checkpoint(random, page.name, 1, limits().max_state_bytes + 1, false)));
    CHECK(store.disk->write_trouble().empty());
}

TEST_CASE("a store that goes before its answers gets none") {
    const TemporaryFolder folder;
    Random random(15);
    const PageFile page = random_page(random, root_name(kIdentity));
    Store store(folder.path);
    CHECK(store.write(page));
    bool answered = false;
    store.disk->read_page(page.name, page.parent, as_page(page.tokens), [&](const Result<Blob>&) { answered = true; });
    store.disk->write_page(page.name, page.parent, as_page(page.tokens), page.rows, [&](bool) { answered = true; });
    store.disk->erase(page.name);
    Result<std::unique_ptr<DiskStore>> fresh =
        DiskStore::open({folder.path.string(), 0, kIdentity, limits()}, *store.worker, store.clock);
    REQUIRE(fresh);
    store.disk = std::move(fresh).value();
    store.wait();
    CHECK(!answered);
}

TEST_CASE("a folder of many files is listed without reading them") {
    const TemporaryFolder folder;
    Random random(16);
    const int n_files = times("LUCE_TEST_MANY_FILES", 500);
    for (int i = 0; i < n_files; ++i) {
        PageName name;
        std::copy_n(random_bytes(random, 16).begin(), 16, name.bytes.begin());
        const DiskFileName file = DiskFileName::of_page(name);
        fs::create_directories(folder.path / kIdentity / to_folder_name(file));
        put(folder.path / kIdentity / to_folder_name(file) / to_file_name(file), Bytes{1});
    }
    const SteadyClock clock;
    const double start_s = clock.now_s();
    const Store store(folder.path);
    MESSAGE("open() of " << n_files << " files: " << (clock.now_s() - start_s) * 1000 << " ms");
    CHECK(store.disk->stats().n_files == static_cast<std::uint64_t>(n_files));
    CHECK(store.disk->stats().n_bytes == static_cast<std::uint64_t>(n_files));
}

}  // TEST_SUITE("memory")
