// Tests of the file that keeps what was found out about a model's layers: it comes back as it was, and whatever else
// lies in its place is refused with a reason.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "llama/scoring/kept_layer.h"

TEST_SUITE_BEGIN("llama");

using namespace luce;
using llama::calibration_folder;
using llama::keep_layer;
using llama::KeptLayer;
using llama::read_kept_layer;

namespace {

namespace fs = std::filesystem;

const std::string kName = "0123456789abcdef0123456789abcdef";
const std::string kOther = "1123456789abcdef0123456789abcdef";

class Folder {
public:
    Folder() {
        std::string path = (fs::temp_directory_path() / "luce-layers-XXXXXX").string();
        REQUIRE(::mkdtemp(path.data()) != nullptr);
        root_ = path;
    }
    ~Folder() { fs::remove_all(root_); }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;

    std::string path() const { return (root_ / "some" / "where").string(); }
    std::string file(const std::string& name = kName) const { return path() + "/" + name + ".layer"; }

private:
    fs::path root_;
};

std::vector<char> bytes_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::string& path, const std::vector<char>& bytes) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

void check_is_refused(const Folder& folder, const std::string& name = kName) {
    const auto read = read_kept_layer(folder.path(), name);
    REQUIRE(!read);
    CHECK(read.error().code == ErrorCode::bad_snapshot);
    CHECK(read.error().text.find(folder.file(name)) == 0);
}

}  // namespace

TEST_CASE("what was found is there again, a layer or none") {
    const Folder folder;
    const auto before = read_kept_layer(folder.path(), kName);
    REQUIRE(before.ok());
    CHECK(!before.value());
    for (const KeptLayer& kept : {KeptLayer{11, 0.875F}, KeptLayer{0, 1.0F}, KeptLayer{std::nullopt, 0}}) {
        REQUIRE(keep_layer(folder.path(), kName, kept));
        const auto read = read_kept_layer(folder.path(), kName);
        REQUIRE(read.ok());
        REQUIRE(read.value());
        CHECK(read.value()->layer == kept.layer);
        CHECK(read.value()->mean_reciprocal_rank == kept.mean_reciprocal_rank);
    }
    CHECK(!read_kept_layer(folder.path(), kOther).value());
    CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("a file that was changed in any way is refused") {
    const Folder folder;
    REQUIRE(keep_layer(folder.path(), kName, {11, 0.875F}));
    const std::vector<char> good = bytes_of(folder.file());
    REQUIRE(good.size() == 64);
    for (std::size_t i = 0; i < good.size(); ++i) {
        for (const int bit : {0, 7}) {
            std::vector<char> bad = good;
            bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
            write(folder.file(), bad);
            check_is_refused(folder);
        }
    }
    for (std::size_t n = 0; n < good.size(); ++n) {
        write(folder.file(), {good.begin(), good.begin() + static_cast<std::ptrdiff_t>(n)});
        check_is_refused(folder);
    }
    std::vector<char> longer = good;
    longer.push_back('\0');
    write(folder.file(), longer);
    check_is_refused(folder);
    // Another model's, under this one's name.
    REQUIRE(keep_layer(folder.path(), kOther, {7, 0.5F}));
    write(folder.file(), bytes_of(folder.file(kOther)));
    check_is_refused(folder);
    // It can be written over.
    REQUIRE(keep_layer(folder.path(), kName, {11, 0.875F}));
    CHECK(bytes_of(folder.file()) == good);
}

TEST_CASE("a checksum that fits makes no sense of nonsense") {
    const Folder folder;
    for (const KeptLayer& nonsense : {KeptLayer{-1, 0.5F}, KeptLayer{1 << 20, 0.5F}, KeptLayer{3, 2.0F},
                                      KeptLayer{3, -1.0F}, KeptLayer{3, std::numeric_limits<float>::quiet_NaN()}}) {
        REQUIRE(keep_layer(folder.path(), kName, nonsense));
        check_is_refused(folder);
    }
}

TEST_CASE("what is no file is not waited for; a folder that cannot be made is an error") {
    const Folder folder;
    fs::create_directories(folder.path());
    REQUIRE(::mkfifo(folder.file().c_str(), 0600) == 0);
    check_is_refused(folder);
    fs::remove(folder.file());
    fs::create_directory(folder.file());
    check_is_refused(folder);
    CHECK(!keep_layer(folder.path(), kName, {3, 0.5F}));
    CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);  // no scratch file is left

    const std::string below_a_file = folder.path() + "/file/below";
    write(folder.path() + "/file", {'x'});
    const auto kept = keep_layer(below_a_file, kName, {3, 0.5F});
    REQUIRE(!kept);
    CHECK(kept.error().code == ErrorCode::io_error);
    CHECK(kept.error().text.find(below_a_file) == 0);
    CHECK(!read_kept_layer(below_a_file, kName));
}

TEST_CASE("findings are kept where the user keeps what can be found out again") {
    CHECK(calibration_folder("/c", "/h") == "/c/luce-daemon/layers");
    CHECK(calibration_folder(nullptr, "/h") == "/h/.cache/luce-daemon/layers");
    CHECK(calibration_folder("", "/h") == "/h/.cache/luce-daemon/layers");
    CHECK(calibration_folder("c", "/h") == "/h/.cache/luce-daemon/layers");
    CHECK(!calibration_folder(nullptr, nullptr));
    CHECK(!calibration_folder("c", "h"));
}

TEST_SUITE_END();
