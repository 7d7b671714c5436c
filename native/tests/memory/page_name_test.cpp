// Tests of the names of pages and checkpoints, and of the files that are called after them.
#include <doctest/doctest.h>

#include <set>

#include "base/sha256.h"
#include "memory/pages/page_name.h"
#include "memory/tiers/disk_file_name.h"
#include "tests/memory/disk_samples.h"

TEST_SUITE("memory") {

using namespace luce;
using namespace luce::memory;
using namespace luce::memory::samples;

TEST_CASE("a page is called by the first half of the hash of its parent's name and its tokens") {
    const PageName parent = *page_name_of("000102030405060708090a0b0c0d0e0f");
    Tokens tokens(kPageSize);
    std::string bytes;
    for (int i = 0; i < 16; ++i) bytes.push_back(static_cast<char>(i));
    for (int i = 0; i < kPageSize; ++i) {
        tokens[static_cast<std::size_t>(i)] = i * 0x01020304;
        for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(i * 0x01020304 >> shift));
    }
    Sha256 hash;
    hash.update(bytes);
    CHECK(to_hex(next_name(parent, as_page(tokens))) == to_hex(hash.finish()).substr(0, 32));
}

TEST_CASE("other tokens, parents, lengths and identities have other names") {
    Random random(1);
    const PageName root = root_name(kIdentity);
    const Tokens tokens = random_tokens(random, kPageSize);
    std::set<PageName> names = {root, root_name(kOtherIdentity), root_name(""), next_name(root, as_page(tokens)),
                                next_name(root_name(kOtherIdentity), as_page(tokens))};
    for (std::size_t n = 0; n < kPageSize; ++n) names.insert(checkpoint_name(root, std::span(tokens).first(n)));
    Tokens changed = tokens;
    for (Token& token : changed) {
        ++token;
        names.insert(next_name(root, as_page(changed)));
    }
    CHECK(names.size() == 5 + 64 + 64);
}

TEST_CASE("names go to digits and back, and nothing else is a name") {
    Random random(2);
    for (int i = 0; i < 100; ++i) {
        const PageName name = random_page(random, root_name("x")).name;
        CHECK(page_name_of(to_hex(name)) == name);
    }
    for (const char* text : {"", "00", "000102030405060708090A0B0C0D0E0F", "000102030405060708090a0b0c0d0e0",
                             "000102030405060708090a0b0c0d0e0f0", "000102030405060708090a0b0c0d0e0g",
                             " 00102030405060708090a0b0c0d0e0f"}) {
        CHECK(!page_name_of(text));
        CHECK(!memory_identity_of(text));
    }
}

TEST_CASE("files' names go to text and back, and what differs by a character is not ours") {
    Random random(3);
    const PageName page = random_page(random, root_name("x")).name;
    const CheckpointFile checkpoint = random_checkpoint(random, page, 17, 0, false);
    const DiskFileName of_page = DiskFileName::of_page(page);
    const DiskFileName of_checkpoint = DiskFileName::of_checkpoint(page, 17, checkpoint.name);
    CHECK(to_file_name(of_page) == to_hex(page) + ".page");
    CHECK(to_file_name(of_checkpoint) == to_hex(page) + "-17-" + to_hex(checkpoint.name) + ".tail");
    CHECK(to_folder_name(of_checkpoint) == to_hex(page).substr(0, 2));
    CHECK(parse_file_name(to_file_name(of_page)) == of_page);
    CHECK(parse_file_name(to_file_name(of_checkpoint)) == of_checkpoint);
    CHECK(is_scratch_name(to_file_name(of_page) + ".tmp-abc012"));
    CHECK(is_scratch_name(to_file_name(of_checkpoint) + ".tmp-000000"));
    const std::string hex = to_hex(page);
    for (const std::string& text :
         {std::string(), std::string(".page"), hex, hex + ".pag", hex + ".page ", hex + ".tail", hex + "-.tail",
          hex + "-64-" + hex + ".tail", hex + "--1-" + hex + ".tail", hex + "-07-" + hex + ".tail",
          hex + "-+7-" + hex + ".tail", hex + "-7-" + hex, hex + "-7-" + hex + "0.tail", hex + "-7-.tail",
          hex.substr(1) + ".page", hex + "-99999999999-" + hex + ".tail", "../" + hex + ".page"}) {
        CAPTURE(text);
        CHECK(!parse_file_name(text));
    }
    for (const std::string& text : {hex + ".page", hex + ".page.tmp-", hex + ".page.tmp-abc01", hex + ".tmp-abc012",
                                    hex + ".page.tmp-abC012", hex + ".page.tmp-abc0123", std::string(".tmp-abc012")}) {
        CAPTURE(text);
        CHECK(!is_scratch_name(text));
    }
}

}  // TEST_SUITE("memory")
