// Tests of base/: the standards' examples for hash and checksum, real files for the atomic writer.
#include <doctest/doctest.h>

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <vector>

#include "base/atomic_file.h"
#include "base/crc32c.h"
#include "base/sha256.h"
#include "base/sha256_blocks.h"

TEST_SUITE("base") {

using namespace luce;

namespace {

std::string hex_of(std::string_view text) {
    Sha256 hash;
    hash.update(text);
    return to_hex(hash.finish());
}

struct TemporaryFolder {
    TemporaryFolder() {
        std::string pattern = (std::filesystem::temp_directory_path() / "luce-test-XXXXXX").string();
        path = mkdtemp(pattern.data());
    }
    ~TemporaryFolder() { std::filesystem::remove_all(path); }
    std::filesystem::path path;
};

std::string content_of(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("SHA-256 gives the standard's examples, in one piece and in many") {
    CHECK(hex_of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(hex_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(hex_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    const std::string million(1000000, 'a');
    CHECK(hex_of(million) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    Sha256 pieces;
    for (std::size_t at = 0, n = 1; at < million.size(); at += n, n = n % 150 + 1) {
        n = std::min(n, million.size() - at);
        pieces.update(std::string_view(million).substr(at, n));
    }
    CHECK(to_hex(pieces.finish()) == hex_of(million));
}

TEST_CASE("SHA-256 is the same with and without the processor's instructions") {
    std::vector<std::uint8_t> bytes(64 * 33);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * i + i / 7);
    for (std::size_t n_blocks = 0; n_blocks <= 33; ++n_blocks) {
        Sha256State fast = {1, 2, 3, 4, 0xfffffff5, 6, 7, 8};
        Sha256State portable = fast;
        sha256_blocks(fast, bytes.data(), n_blocks);
        sha256_blocks_portable(portable, bytes.data(), n_blocks);
        CHECK(fast == portable);
    }
}

TEST_CASE("CRC-32C gives the standard's examples, by instruction and by table, in one piece and in two") {
    // RFC 3720, B.4, and the check value of the catalogue of parametrised CRCs.
    const std::string digits = "123456789";
    const std::vector<std::uint8_t> zeros(32, 0);
    const std::vector<std::uint8_t> ones(32, 0xff);
    std::vector<std::uint8_t> rising(32);
    std::iota(rising.begin(), rising.end(), std::uint8_t{0});
    const std::vector<std::uint8_t> falling(rising.rbegin(), rising.rend());
    for (const auto crc : {crc32c, crc32c_portable}) {
        CHECK(crc({}, 0) == 0);
        CHECK(crc({reinterpret_cast<const std::uint8_t*>(digits.data()), digits.size()}, 0) == 0xe3069283);
        CHECK(crc(zeros, 0) == 0x8a9136aa);
        CHECK(crc(ones, 0) == 0x62a8ab43);
        CHECK(crc(rising, 0) == 0x46dd794e);
        CHECK(crc(falling, 0) == 0x113fdb5c);
    }
    std::vector<std::uint8_t> bytes(300);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 37 + i / 5);
    const std::span<const std::uint8_t> all(bytes);
    for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
        CHECK(crc32c(all.subspan(cut), crc32c(all.first(cut))) == crc32c(all));
        CHECK(crc32c(all.subspan(cut)) == crc32c_portable(all.subspan(cut)));
    }
}

TEST_CASE("a file is replaced whole, and nothing is left beside it") {
    const TemporaryFolder folder;
    const std::string path = (folder.path / "out.bin").string();
    REQUIRE(write_file_atomically(path, "first"));
    REQUIRE(write_file_atomically(path, std::string(100000, 'x')));
    CHECK(content_of(path) == std::string(100000, 'x'));
    CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 1);
}

TEST_CASE("a file that cannot be written is an error that names it") {
    const Result<void> missing = write_file_atomically("/nonexistent-folder/out.bin", "x");
    REQUIRE(!missing);
    CHECK(missing.error().code == ErrorCode::io_error);
    CHECK(missing.error().text.find("/nonexistent-folder/out.bin") != std::string::npos);

    const TemporaryFolder folder;
    const std::string occupied = (folder.path / "folder").string();
    std::filesystem::create_directories(occupied + "/inner");
    REQUIRE(!write_file_atomically(occupied, "x"));
    CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 1);
}

TEST_CASE("a file that was not committed leaves nothing, and a link can be replaced itself") {
    const TemporaryFolder folder;
    const std::string path = (folder.path / "out.bin").string();
    {
        Result<AtomicFile> file = AtomicFile::create(path, 0600);
        REQUIRE(file);
        REQUIRE(file.value().write(std::vector<std::uint8_t>(1000, 1)));
        CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 1);
    }
    CHECK(std::filesystem::is_empty(folder.path));

    REQUIRE(write_file_atomically((folder.path / "target").string(), "kept"));
    std::filesystem::create_symlink(folder.path / "target", path);
    Result<AtomicFile> file = AtomicFile::create(path, 0600);
    REQUIRE(file);
    REQUIRE(file.value().commit());
    CHECK(!std::filesystem::is_symlink(path));
    CHECK((std::filesystem::status(path).permissions() & std::filesystem::perms::all) ==
          (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
    CHECK(content_of(folder.path / "target") == "kept");
}

TEST_CASE("what is no regular file is not replaced, a link keeps pointing") {
    const TemporaryFolder folder;
    const std::string fifo = (folder.path / "fifo").string();
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    CHECK(write_file_atomically(fifo, "x").error().code == ErrorCode::io_error);
    CHECK(std::filesystem::is_fifo(fifo));
    CHECK(!write_file_atomically("/dev/null", "x"));

    REQUIRE(write_file_atomically((folder.path / "target").string(), "old"));
    std::filesystem::create_symlink(folder.path / "target", folder.path / "link");
    REQUIRE(write_file_atomically((folder.path / "link").string(), "through"));
    CHECK(std::filesystem::is_symlink(folder.path / "link"));
    CHECK(content_of(folder.path / "target") == "through");
}

}  // TEST_SUITE("base")
