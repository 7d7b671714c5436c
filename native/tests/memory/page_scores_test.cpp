// Tests of pages' scores in files: what was written comes back, what is no score is refused, and the disk store neither
// believes scores of another text nor miscounts a checkpoint that was written again with scores.
#include <doctest/doctest.h>

#include <limits>

#include "base/log.h"
#include "memory/residency/page_scores.h"
#include "memory/tiers/disk_store.h"
#include "tests/memory/disk_samples.h"

TEST_SUITE("memory") {

using namespace luce;
using namespace luce::memory;
using namespace luce::memory::samples;

namespace {

constexpr std::uint64_t kPlenty = 1 << 30;
constexpr std::size_t kHeaderBytes = 112;

Bytes section_of(const PageScores& scores) {
    Bytes bytes;
    REQUIRE(write_scores(append_to(bytes), scores));
    CHECK(bytes.size() == scores_bytes(scores.size()));
    return bytes;
}

Result<PageScores> scores_in(std::span<const std::uint8_t> bytes, std::size_t n) {
    SpanSource source(bytes);
    return read_scores(source, n);
}

// One page's record as somebody else may have written it, with a checksum that fits.
Bytes hostile_section(std::uint32_t score, std::uint32_t is_set) {
    Bytes record;
    for (const std::uint32_t word : {score, is_set}) {
        const auto bytes = bytes_of(word);
        record.insert(record.end(), bytes.begin(), bytes.end());
    }
    Bytes section;
    REQUIRE(write_section(append_to(section), record));
    return section;
}

struct Store {
    explicit Store(const TemporaryFolder& folder, std::uint64_t budget_bytes = kPlenty) {
        worker = std::move(IoWorker::start(kPlenty)).value();
        const DiskOptions options{folder.path.string(), budget_bytes, kIdentity, limits()};
        disk = std::move(DiskStore::open(options, *worker, clock)).value();
    }
    ~Store() { CHECK(disk->check_integrity() == ""); }

    bool write(const CheckpointFile& checkpoint) {
        bool is_there = false;
        disk->write_checkpoint(checkpoint.page, checkpoint.rest, {checkpoint.checkpoint, checkpoint.scores},
                               [&](bool ok) { is_there = ok; });
        wait();
        return is_there;
    }
    Result<ScoredCheckpoint> read(const CheckpointFile& checkpoint, std::size_t n_pages) {
        std::optional<Result<ScoredCheckpoint>> done;
        disk->read_checkpoint(checkpoint.page, n_pages, checkpoint.rest,
                              [&](const Result<ScoredCheckpoint>& read) { done.emplace(read); });
        wait();
        REQUIRE(done);
        return *done;
    }
    void wait() { REQUIRE(worker->drain(std::chrono::seconds(60))); }

    SteadyClock clock;
    std::unique_ptr<IoWorker> worker;
    std::unique_ptr<DiskStore> disk;  // goes before the worker
};

struct Quiet {
    Quiet() { set_log_level(LogLevel::error); }
    ~Quiet() { set_log_level(LogLevel::info); }
};

// Of the file's header, with a checksum that fits.
void set_word(Bytes& file, std::size_t at, std::uint32_t word) {
    std::copy_n(bytes_of(word).begin(), 4, file.begin() + static_cast<std::ptrdiff_t>(at));
    const std::uint32_t checksum = crc32c(std::span(file).first(kHeaderBytes - 4));
    std::copy_n(bytes_of(checksum).begin(), 4, file.begin() + static_cast<std::ptrdiff_t>(kHeaderBytes - 4));
}

std::filesystem::path only_file(const TemporaryFolder& folder) {
    const auto files = files_below(folder.path);
    REQUIRE(files.size() == 1);
    return files[0];
}

}  // namespace

TEST_CASE("scores come back as they were, and where there are none nothing is written") {
    CHECK(section_of({}).empty());
    CHECK(scores_in({}, 0).value().empty());
    Random random(1);
    for (std::size_t n = 1; n < 300; ++n) {
        const PageScores scores = random_scores(random, n);
        CHECK(scores_in(section_of(scores), n).value() == scores);
    }
    const PageScores special = {0.0F,
                                std::nullopt,
                                -0.0F,
                                std::numeric_limits<float>::max(),
                                std::numeric_limits<float>::denorm_min(),
                                std::numeric_limits<float>::lowest()};
    const PageScores read = scores_in(section_of(special), special.size()).value();
    CHECK(read == special);
    CHECK(std::signbit(read[2].value()));
}

TEST_CASE("sections of scores that are cut short or damaged are refused") {
    Random random(2);
    const Bytes bytes = section_of(random_scores(random, 20));
    const auto is_refused = [](const Result<PageScores>& read) {
        return !read && read.error().code == ErrorCode::bad_snapshot && !read.error().text.empty();
    };
    for (std::size_t n = 0; n < bytes.size(); ++n) CHECK(is_refused(scores_in(std::span(bytes).first(n), 20)));
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
        Bytes flipped = bytes;
        flipped[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
        CHECK(is_refused(scores_in(flipped, 20)));
    }
    CHECK(is_refused(scores_in(bytes, 19)));
    CHECK(is_refused(scores_in(bytes, 21)));
}

TEST_CASE("what is no score is refused, whatever its checksum says") {
    const auto is_refused = [](std::uint32_t score, std::uint32_t is_set) {
        const Result<PageScores> read = scores_in(hostile_section(score, is_set), 1);
        return !read && read.error().code == ErrorCode::bad_snapshot;
    };
    const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
    CHECK(!is_refused(bits(0), 0));
    CHECK(!is_refused(bits(0), 1));
    CHECK(!is_refused(bits(-3.5F), 1));
    for (const float hostile : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity()}) {
        CHECK(is_refused(bits(hostile), 1));
        CHECK(is_refused(bits(hostile), 0));
        CHECK(!can_be_written({1.0F, hostile}));
    }
    CHECK(is_refused(0x7f800001, 1));  // a signalling NaN
    CHECK(is_refused(bits(1), 0));     // a score that is not there
    CHECK(is_refused(bits(-0.0F), 0));
    CHECK(is_refused(bits(1), 2));
    CHECK(is_refused(bits(1), 0x01000000));
    CHECK(can_be_written(PageScores(kMaxScores)));
    CHECK(!can_be_written(PageScores(std::size_t{kMaxScores} + 1)));
}

TEST_CASE("a header that promises more scores than any text has pages is refused before memory is taken") {
    Random random(3);
    Bytes bytes;
    const CheckpointFile checkpoint = random_checkpoint(random, root_name(kIdentity), 3, 10, false);
    REQUIRE(write_checkpoint_file(append_to(bytes), identity(), limits(), checkpoint));
    const std::uint32_t n_scores = kMaxScores + 1;
    set_word(bytes, kHeaderBytes - 8, n_scores);
    bytes.resize(bytes.size() + scores_bytes(n_scores));  // as a sparse file would have it
    SpanSource source(bytes);
    const Result<CheckpointFile> read = read_checkpoint_file(source, identity(), limits());
    REQUIRE(!read);
    CHECK(read.error().text == "its counts are not a checkpoint's");
}

TEST_CASE("a checkpoint on disk comes back with the scores of as many pages as there are before it, or is removed") {
    const Quiet quiet;
    const TemporaryFolder folder;
    Random random(4);
    const CheckpointFile checkpoint = random_checkpoint(random, root_name(kIdentity), 5, 100, true, limits(), 12);
    Store store(folder);
    CHECK(store.write(checkpoint));
    const Result<ScoredCheckpoint> read = store.read(checkpoint, 12);
    REQUIRE(read);
    CHECK(read.value().scores == checkpoint.scores);
    CHECK(same(*read.value().checkpoint, *checkpoint.checkpoint));
    CHECK(store.read(checkpoint, 11).error().code == ErrorCode::bad_snapshot);
    CHECK(store.disk->stats().n_corrupt_files == 1);
    CHECK(files_below(folder.path).empty());
    // One without scores may stand behind any number of pages.
    CheckpointFile plain = checkpoint;
    plain.scores.clear();
    CHECK(store.write(plain));
    CHECK(store.read(plain, 12).value().scores.empty());
}

TEST_CASE("files of the format before scores are refused, counted and removed, and written anew") {
    const Quiet quiet;
    const TemporaryFolder folder;
    Random random(5);
    const CheckpointFile checkpoint = random_checkpoint(random, root_name(kIdentity), 5, 100, true);
    const PageFile page = random_page(random, root_name(kIdentity));
    Store store(folder);
    CHECK(store.write(checkpoint));
    store.disk->write_page(page.name, page.parent, as_page(page.tokens), page.rows, [](bool) {});
    store.wait();
    const auto files = files_below(folder.path);
    REQUIRE(files.size() == 2);
    for (const auto& path : files) {
        Bytes bytes = content_of(path);
        set_word(bytes, 8, 1);  // behind the magic
        put(path, bytes);
    }
    CHECK(store.read(checkpoint, 0).error().code == ErrorCode::bad_snapshot);
    store.disk->read_page(page.name, page.parent, as_page(page.tokens), [](const Result<Blob>& rows) {
        REQUIRE(!rows);
        CHECK(rows.error().text == "it has format 1");
    });
    store.wait();
    CHECK(store.disk->stats().n_corrupt_files == 2);
    CHECK(files_below(folder.path).empty());
    CHECK(store.write(checkpoint));
    CHECK(same(*store.read(checkpoint, 0).value().checkpoint, *checkpoint.checkpoint));
}

TEST_CASE("a checkpoint that is written again with scores counts with its new size, within the budget") {
    const TemporaryFolder folder;
    Random random(6);
    CheckpointFile checkpoint = random_checkpoint(random, root_name(kIdentity), 5, 100, true);
    const CheckpointFile other = random_checkpoint(random, root_name(kIdentity), 6, 100, true);
    const std::uint64_t n_plain = checkpoint_file_bytes(5, *checkpoint.checkpoint, 0);
    const std::uint64_t n_scored = checkpoint_file_bytes(5, *checkpoint.checkpoint, 40);
    const std::uint64_t n_other = checkpoint_file_bytes(6, *other.checkpoint, 0);
    Store store(folder, n_scored + n_other - 1);
    CHECK(store.write(other));
    CHECK(store.write(checkpoint));
    CHECK(store.disk->stats().n_bytes == n_plain + n_other);
    checkpoint.scores = random_scores(random, 40);
    CHECK(store.write(checkpoint));
    store.wait();
    CHECK(store.disk->stats().n_bytes == n_scored);  // the other had to go
    CHECK(store.disk->stats().n_files == 1);
    CHECK(std::filesystem::file_size(only_file(folder)) == n_scored);
    CHECK(store.read(checkpoint, 40).value().scores == checkpoint.scores);
    // With other scores it is the same file: what matters today is not worth writing all of it again.
    const Bytes before = content_of(only_file(folder));
    checkpoint.scores = random_scores(random, 40);
    CHECK(store.write(checkpoint));
    CHECK(content_of(only_file(folder)) == before);
}

}  // TEST_SUITE("memory")
