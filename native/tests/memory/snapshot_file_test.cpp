// Tests of snapshot files: whole ones come back, thin ones too, damaged, hostile and foreign ones are refused.
#include <doctest/doctest.h>

#include <sys/stat.h>

#include <limits>

#include "memory/snapshots/snapshot_file.h"
#include "tests/memory/disk_samples.h"

TEST_SUITE("memory") {

using namespace luce;
using namespace luce::memory;
using namespace luce::memory::samples;

namespace {

constexpr std::size_t kHeaderBytes = 104;

SnapshotContents random_contents(Random& random, std::size_t n_tokens, Position begin, bool with_checkpoint) {
    SnapshotContents contents;
    contents.root = root_name(kIdentity);
    contents.tokens = random_tokens(random, n_tokens);
    contents.begin = begin;
    for (std::size_t i = static_cast<std::size_t>(begin) / kPageSize; i < n_tokens / kPageSize; ++i) {
        contents.pages.push_back(std::make_shared<const Bytes>(random_bytes(random, kPageSize * limits().row_bytes)));
    }
    if (below(random, 2) == 0) contents.scores = random_scores(random, contents.pages.size());
    if (with_checkpoint)
        contents.checkpoint = random_checkpoint(random, contents.root, n_tokens % kPageSize, 777, true).checkpoint;
    if (with_checkpoint && static_cast<Position>(n_tokens) > begin + 1) {
        const Position position =
            begin + 1 + static_cast<Position>(below(random, n_tokens - 1 - static_cast<std::size_t>(begin)));
        const auto n_rest = static_cast<std::size_t>(position % kPageSize);
        contents.earlier = {position, random_checkpoint(random, contents.root, n_rest, 555, true).checkpoint};
    }
    return contents;
}

Bytes encoded(const SnapshotContents& contents) {
    Bytes bytes;
    const Result<std::uint64_t> n = encode_snapshot(append_to(bytes), kIdentity, contents, limits());
    REQUIRE(n);
    CHECK(n.value() == bytes.size());
    return bytes;
}

Result<SnapshotContents> decoded(const Bytes& bytes, const TierLimits& within = limits()) {
    SpanSource source(bytes);
    return decode_snapshot(source, kIdentity, within);
}

bool refused(const Result<SnapshotContents>& result) {
    return !result && result.error().code == ErrorCode::bad_snapshot && !result.error().text.empty();
}

void check_same(const SnapshotContents& a, const SnapshotContents& b) {
    CHECK(a.root == b.root);
    CHECK(a.tokens == b.tokens);
    CHECK(a.begin == b.begin);
    REQUIRE(a.pages.size() == b.pages.size());
    for (std::size_t i = 0; i < a.pages.size(); ++i) CHECK(*a.pages[i] == *b.pages[i]);
    REQUIRE((a.checkpoint == nullptr) == (b.checkpoint == nullptr));
    if (a.checkpoint) CHECK(same(*a.checkpoint, *b.checkpoint));
    REQUIRE(a.earlier.has_value() == b.earlier.has_value());
    if (a.earlier) CHECK(a.earlier->position == b.earlier->position);
    if (a.earlier) CHECK(same(*a.earlier->data, *b.earlier->data));
    CHECK(a.scores == b.scores);
}

}  // namespace

TEST_CASE("snapshots come back as they were: empty, whole, thin, with and without a checkpoint") {
    const TemporaryFolder folder;
    Random random(1);
    const std::string path = (folder.path / "a.snap").string();
    for (const std::size_t n_tokens : {0, 1, 63, 64, 65, 1000}) {
        for (const Position begin : {0, 1, 64, 100}) {
            if (begin > static_cast<Position>(n_tokens)) continue;
            for (const bool with_checkpoint : {false, true}) {
                const SnapshotContents contents = random_contents(random, n_tokens, begin, with_checkpoint);
                const Result<std::uint64_t> written = write_snapshot(path, kIdentity, contents, limits());
                REQUIRE(written);
                CHECK(written.value() == std::filesystem::file_size(path));
                const Result<SnapshotContents> read = read_snapshot(path, kIdentity, limits());
                REQUIRE(read);
                check_same(read.value(), contents);
            }
        }
    }
    CHECK(files_below(folder.path).size() == 1);
}

TEST_CASE("another model's snapshot is refused and says so") {
    const TemporaryFolder folder;
    Random random(2);
    const std::string path = (folder.path / "a.snap").string();
    REQUIRE(write_snapshot(path, kOtherIdentity, random_contents(random, 100, 0, true), limits()));
    const Result<SnapshotContents> read = read_snapshot(path, kIdentity, limits());
    REQUIRE(refused(read));
    CHECK(read.error().text.find("another model or with another KV type") != std::string::npos);
    CHECK(read.error().text.find(path) != std::string::npos);
    CHECK(read.error().text.find(kOtherIdentity) != std::string::npos);
    CHECK(read_snapshot(path, "short", limits()).error().code == ErrorCode::bad_args);
    CHECK(read_snapshot(path + "x", kIdentity, limits()).error().code == ErrorCode::no_such_file);
}

TEST_CASE("what is no regular file is neither waited for nor replaced, a link keeps pointing") {
    const TemporaryFolder folder;
    Random random(3);
    const SnapshotContents contents = random_contents(random, 100, 0, true);
    const std::string fifo = (folder.path / "fifo").string();
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    CHECK(refused(read_snapshot(fifo, kIdentity, limits())));
    CHECK(refused(read_snapshot(folder.path.string(), kIdentity, limits())));
    CHECK(write_snapshot(fifo, kIdentity, contents, limits()).error().code == ErrorCode::io_error);
    CHECK(std::filesystem::is_fifo(fifo));
    put(folder.path / "target", {});
    std::filesystem::create_symlink(folder.path / "target", folder.path / "link");
    REQUIRE(write_snapshot((folder.path / "link").string(), kIdentity, contents, limits()));
    CHECK(std::filesystem::is_symlink(folder.path / "link"));
    CHECK(read_snapshot((folder.path / "target").string(), kIdentity, limits()));
    CHECK(read_snapshot((folder.path / "link").string(), kIdentity, limits()));
    CHECK(write_snapshot((folder.path / "no" / "folder").string(), kIdentity, contents, limits()).error().code ==
          ErrorCode::io_error);
}

TEST_CASE("contents that do not fit together are not written, and the old file stays") {
    const TemporaryFolder folder;
    Random random(4);
    const std::string path = (folder.path / "a.snap").string();
    const SnapshotContents good = random_contents(random, 200, 0, true);
    REQUIRE(write_snapshot(path, kIdentity, good, limits()));
    const Bytes before = content_of(path);
    const auto failure = [&](const SnapshotContents& contents) {
        return write_snapshot(path, kIdentity, contents, limits()).error().code;
    };
    SnapshotContents bad = good;
    bad.pages.pop_back();
    CHECK(failure(bad) == ErrorCode::bad_args);
    bad = good;
    bad.pages[1] = std::make_shared<const Bytes>(3);
    CHECK(failure(bad) == ErrorCode::bad_args);
    bad = good;
    bad.pages[1] = nullptr;
    CHECK(failure(bad) == ErrorCode::bad_args);
    bad = good;
    bad.begin = -1;
    CHECK(failure(bad) == ErrorCode::bad_args);
    bad = good;
    bad.begin = 201;
    CHECK(failure(bad) == ErrorCode::bad_args);
    bad = good;
    bad.tokens[3] = limits().n_vocab;
    CHECK(failure(bad) == ErrorCode::bad_args);
    for (const float hostile : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        bad = good;
        bad.scores = {1.0F, std::nullopt, hostile};
        CHECK(failure(bad) == ErrorCode::bad_args);
    }
    bad = good;
    bad.scores = {1.0F, std::nullopt};
    CHECK(failure(bad) == ErrorCode::bad_args);
    bad = good;
    bad.checkpoint = random_checkpoint(random, good.root, 9, 1, false).checkpoint;
    CHECK(failure(bad) == ErrorCode::bad_args);
    for (const Position outside : {-1, 0, 200}) {
        bad = good;
        bad.earlier->position = outside;
        CHECK(failure(bad) == ErrorCode::bad_args);
    }
    bad = good;
    bad.earlier->data = random_checkpoint(random, good.root, kPageSize, 1, false).checkpoint;
    CHECK(failure(bad) == ErrorCode::bad_args);
    CHECK(content_of(path) == before);
    CHECK(files_below(folder.path).size() == 1);
}

TEST_CASE("a snapshot without an earlier checkpoint is a file that the version before reads") {
    Random random(8);
    SnapshotContents contents = random_contents(random, 200, 0, true);
    CHECK(encoded(contents)[8] == kSnapshotFormatWithEarlier);
    contents.earlier.reset();
    CHECK(encoded(contents)[8] == kSnapshotFormat);
}

TEST_CASE("damaged snapshots are refused, however they are damaged") {
    Random random(5);
    SnapshotContents contents = random_contents(random, 200, 0, true);
    contents.scores = random_scores(random, 3);
    const Bytes bytes = encoded(contents);
    for (int i = 0; i < times("LUCE_TEST_CORRUPTIONS", 1000); ++i) CHECK(refused(decoded(damaged(random, bytes))));
    for (std::size_t n = 0; n < bytes.size(); n += 1 + n / 64) {
        CHECK(refused(decoded(Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n)))));
    }
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
        Bytes flipped = bytes;
        flipped[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
        CHECK(refused(decoded(flipped)));
    }
}

TEST_CASE("a hostile header with a good checksum gives nothing that does not fit together") {
    Random random(6);
    const Bytes bytes = encoded(random_contents(random, 200, 70, true));
    for (int i = 0; i < times("LUCE_TEST_CORRUPTIONS", 1000); ++i) {
        const Result<SnapshotContents> read = decoded(with_edited_header(random, bytes, kHeaderBytes));
        if (!read) {
            CHECK(refused(read));
            continue;
        }
        // Only the root and a prefix in the same page may be something else.
        CHECK(read.value().begin / kPageSize == 1);
        CHECK(read.value().tokens.size() == 200);
        CHECK(read.value().pages.size() == 2);
    }
}

TEST_CASE("tokens outside the vocabulary and states beyond the model's are refused") {
    Random random(7);
    const SnapshotContents contents = random_contents(random, 100, 0, true);
    const Bytes bytes = encoded(contents);
    TierLimits other = limits();
    other.n_vocab = *std::max_element(contents.tokens.begin(), contents.tokens.end());
    CHECK(refused(decoded(bytes, other)));
    other = limits();
    other.max_state_bytes = 776;
    CHECK(refused(decoded(bytes, other)));
    other = limits();
    other.row_bytes = 0;
    CHECK(refused(decoded(bytes, other)));
}

}  // TEST_SUITE("memory")
