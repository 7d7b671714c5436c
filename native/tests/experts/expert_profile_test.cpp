// A profile's file: whole, its own model's, or refused.
#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <string>

#include <unistd.h>

#include "experts/expert_profile.h"

TEST_SUITE("experts") {

using namespace luce;
using namespace luce::experts;

namespace {

const std::string kIdentity = "0123456789abcdef0123456789abcdef";

std::string a_path() { return "/tmp/luce-profile-test-" + std::to_string(::getpid()); }

ExpertProfile some_profile() {
    ExpertProfile profile{kIdentity, {}};
    for (std::int32_t layer : {1, 3, 7}) profile.layers.push_back({layer, {1, 2.5, 0, 1e6}, {0, 0, 7, 0.25}});
    return profile;
}

std::string bytes_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

Error refusal(const std::string& bytes) {
    const std::string path = a_path();
    std::ofstream(path, std::ios::binary) << bytes;
    const Result<ExpertProfile> read = read_profile(path, kIdentity);
    ::unlink(path.c_str());
    REQUIRE(!read.ok());
    return read.error();
}

}  // namespace

TEST_CASE("what is written is read") {
    const std::string path = a_path();
    REQUIRE(write_profile(path, some_profile()));
    const Result<ExpertProfile> read = read_profile(path, kIdentity);
    REQUIRE_MESSAGE(read.ok(), read.error().text);
    REQUIRE(read.value().layers.size() == 3);
    CHECK(read.value().layers[2].layer == 7);
    CHECK(read.value().layers[2].decode == some_profile().layers[2].decode);
    CHECK(read.value().layers[2].prefill == some_profile().layers[2].prefill);
    ::unlink(path.c_str());
}

TEST_CASE("a model has a file of its own in the folder, unless one is named") {
    CHECK(profile_file(std::nullopt, "/folder", kIdentity) == "/folder/" + kIdentity + ".experts");
    CHECK(profile_file("/named", "/folder", kIdentity) == "/named");
    CHECK(profile_file("/named", std::nullopt, kIdentity) == "/named");
    CHECK(profile_file(std::nullopt, std::nullopt, kIdentity) == std::nullopt);
}

TEST_CASE("none, another model's and other files are refused") {
    CHECK(read_profile("/nowhere/at/all", kIdentity).error().code == ErrorCode::no_such_file);
    CHECK(read_profile("/tmp", kIdentity).error().code == ErrorCode::no_such_file);
    const std::string path = a_path();
    REQUIRE(write_profile(path, some_profile()));
    const Result<ExpertProfile> other = read_profile(path, std::string(32, 'f'));
    CHECK(other.error().text.find("of another model") != std::string::npos);
    ::unlink(path.c_str());
    CHECK(refusal("").text.find("is no expert profile") != std::string::npos);
    CHECK(refusal("GGUF and so on, which is long enough").text.find("is no expert profile") != std::string::npos);
    CHECK(!write_profile("/nowhere/at/all", some_profile()));
}

TEST_CASE("every change of a byte and every cut is noticed") {
    const std::string path = a_path();
    REQUIRE(write_profile(path, some_profile()));
    const std::string bytes = bytes_of(path);
    ::unlink(path.c_str());
    std::mt19937 random(5);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        std::string changed = bytes;
        changed[i] = static_cast<char>(changed[i] ^ (1 + random() % 255));
        CHECK(refusal(changed).code == ErrorCode::bad_args);
        CHECK(refusal(bytes.substr(0, i)).code == ErrorCode::bad_args);
    }
    CHECK(refusal(bytes + "x").code == ErrorCode::bad_args);
}

TEST_CASE("counts that are none are refused though the checksum is right") {
    for (const double bad : {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
        ExpertProfile profile = some_profile();
        profile.layers[1].prefill[2] = bad;
        const std::string path = a_path();
        REQUIRE(write_profile(path, profile));
        CHECK(read_profile(path, kIdentity).error().text.find("damaged") != std::string::npos);
        ::unlink(path.c_str());
    }
    ExpertProfile empty{kIdentity, {{1, {}, {}}}};
    const std::string path = a_path();
    REQUIRE(write_profile(path, empty));
    CHECK(!read_profile(path, kIdentity).ok());
    ::unlink(path.c_str());
}

}  // TEST_SUITE("experts")
