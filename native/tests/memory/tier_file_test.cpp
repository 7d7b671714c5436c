// Tests of the bytes of page and checkpoint files: whole ones come back, damaged and hostile ones are refused.
#include <doctest/doctest.h>

#include "memory/tiers/tier_file.h"
#include "tests/memory/disk_samples.h"

TEST_SUITE("memory") {

using namespace luce;
using namespace luce::memory;
using namespace luce::memory::samples;

namespace {

constexpr std::size_t kHeaderBytes = 112;

Bytes encoded(const PageFile& page) {
    Bytes bytes;
    REQUIRE(write_page_file(append_to(bytes), identity(), limits(), page));
    return bytes;
}

Bytes encoded(const CheckpointFile& checkpoint) {
    Bytes bytes;
    REQUIRE(write_checkpoint_file(append_to(bytes), identity(), limits(), checkpoint));
    return bytes;
}

Result<PageFile> page_in(std::span<const std::uint8_t> bytes, const TierLimits& within = limits()) {
    SpanSource source(bytes);
    return read_page_file(source, identity(), within);
}

Result<CheckpointFile> checkpoint_in(std::span<const std::uint8_t> bytes, const TierLimits& within = limits()) {
    SpanSource source(bytes);
    return read_checkpoint_file(source, identity(), within);
}

template <typename T>
bool refused(const Result<T>& result) {
    return !result && result.error().code == ErrorCode::bad_snapshot && !result.error().text.empty();
}

void check_returns(const CheckpointFile& checkpoint) {
    const Bytes bytes = encoded(checkpoint);
    CHECK(bytes.size() ==
          checkpoint_file_bytes(checkpoint.rest.size(), *checkpoint.checkpoint, checkpoint.scores.size()));
    const Result<CheckpointFile> read = checkpoint_in(bytes);
    REQUIRE(read);
    CHECK(read.value().name == checkpoint.name);
    CHECK(read.value().page == checkpoint.page);
    CHECK(read.value().rest == checkpoint.rest);
    CHECK(same(*read.value().checkpoint, *checkpoint.checkpoint));
    CHECK(read.value().scores == checkpoint.scores);
    CHECK(refused(page_in(bytes)));
}

}  // namespace

TEST_CASE("pages come back as they were") {
    Random random(1);
    const PageFile page = random_page(random, root_name(kIdentity));
    const Bytes bytes = encoded(page);
    CHECK(bytes.size() == page_file_bytes(limits()));
    const Result<PageFile> read = page_in(bytes);
    REQUIRE(read);
    CHECK(read.value().name == page.name);
    CHECK(read.value().parent == page.parent);
    CHECK(read.value().tokens == page.tokens);
    CHECK(*read.value().rows == *page.rows);
    CHECK(refused(checkpoint_in(bytes)));
}

TEST_CASE("checkpoints come back as they were, with every part there or not") {
    Random random(2);
    for (const std::size_t n_rest : {0, 1, 63}) {
        for (const std::size_t n_state : {0, 1, 4096}) {
            for (const bool with_logits : {false, true}) {
                for (const std::size_t n_scores : {0, 1, 500}) {
                    check_returns(random_checkpoint(random, root_name(kIdentity), n_rest, n_state, with_logits,
                                                    limits(), n_scores));
                }
            }
        }
    }
}

TEST_CASE("a page of a model without rows is a page") {
    Random random(3);
    const TierLimits none = {.row_bytes = 0, .max_state_bytes = 10, .n_vocab = 300};
    const PageFile page = random_page(random, root_name(kIdentity), none);
    Bytes bytes;
    REQUIRE(write_page_file(append_to(bytes), identity(), none, page));
    CHECK(page_in(bytes, none));
}

TEST_CASE("what is beyond the model's limits is refused, and refused before it is written") {
    Random random(4);
    const CheckpointFile checkpoint = random_checkpoint(random, root_name(kIdentity), 5, 100, true);
    const Bytes bytes = encoded(checkpoint);
    REQUIRE(checkpoint_in(bytes));
    TierLimits other = limits();
    other.has_other_ids = true;  // their ids are beyond the vocabulary
    PageFile with_image = random_page(random, root_name(kIdentity));
    with_image.tokens[3] = 1 << 29;
    CHECK(!fits_page(with_image.tokens, *with_image.rows, limits()));
    CHECK(fits_page(with_image.tokens, *with_image.rows, other));
    with_image.tokens[3] = kFirstSaltedName;
    CHECK(fits_page(with_image.tokens, *with_image.rows, limits()));
    with_image.tokens[3] = -1;
    CHECK(!fits_page(with_image.tokens, *with_image.rows, other));
    other = limits();
    other.max_state_bytes = 99;
    CHECK(refused(checkpoint_in(bytes, other)));
    CHECK(!fits_checkpoint(checkpoint.rest, *checkpoint.checkpoint, {}, other));
    other = limits();
    other.row_bytes = 25;
    CHECK(refused(checkpoint_in(bytes, other)));
    CHECK(!fits_checkpoint(checkpoint.rest, *checkpoint.checkpoint, {}, other));
    other = limits();
    other.n_vocab = *std::max_element(checkpoint.rest.begin(), checkpoint.rest.end());
    CHECK(refused(checkpoint_in(bytes, other)));
    CHECK(!fits_checkpoint(checkpoint.rest, *checkpoint.checkpoint, {}, other));
    CHECK(fits_checkpoint(checkpoint.rest, *checkpoint.checkpoint, {}, limits()));
    SpanSource source(bytes);
    CHECK(refused(read_checkpoint_file(source, *memory_identity_of(kOtherIdentity), limits())));
}

TEST_CASE("damaged files are refused, however they are damaged") {
    Random random(5);
    const Bytes page = encoded(random_page(random, root_name(kIdentity)));
    const Bytes checkpoint = encoded(random_checkpoint(random, root_name(kIdentity), 9, 50, true, limits(), 20));
    for (int i = 0; i < times("LUCE_TEST_CORRUPTIONS", 1000); ++i) {
        CHECK(refused(page_in(damaged(random, page))));
        CHECK(refused(checkpoint_in(damaged(random, checkpoint))));
        CHECK(refused(page_in(with_edited_header(random, page, kHeaderBytes))));
        CHECK(refused(checkpoint_in(with_edited_header(random, checkpoint, kHeaderBytes))));
    }
    for (std::size_t n = 0; n < page.size(); n += 1 + n / 64) {
        CHECK(refused(page_in(std::span(page).first(n))));
    }
    for (std::size_t n = 0; n < checkpoint.size(); ++n) CHECK(refused(checkpoint_in(std::span(checkpoint).first(n))));
    for (std::size_t bit = 0; bit < 8 * checkpoint.size(); ++bit) {
        Bytes flipped = checkpoint;
        flipped[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
        CHECK(refused(checkpoint_in(flipped)));
    }
}

TEST_CASE("rows swapped between two good files are refused by their checksums, tokens by the name") {
    Random random(6);
    const PageFile one = random_page(random, root_name(kIdentity));
    PageFile other = random_page(random, root_name(kIdentity));
    other.name = one.name;
    CHECK(refused(page_in(encoded(other))));
    Bytes bytes = encoded(one);
    const Bytes donor = encoded(other);
    const std::size_t rows_at = kHeaderBytes + 4 * kPageSize + 4 + 4;  // header, tokens and their checksum, no state
    std::copy_n(donor.begin() + static_cast<std::ptrdiff_t>(rows_at), one.rows->size(),
                bytes.begin() + static_cast<std::ptrdiff_t>(rows_at));
    CHECK(refused(page_in(bytes)));
}

TEST_CASE("random bytes are refused") {
    Random random(7);
    for (int i = 0; i < 1000; ++i) {
        const Bytes bytes = random_bytes(random, below(random, 2000));
        CHECK(refused(page_in(bytes)));
        CHECK(refused(checkpoint_in(bytes)));
    }
}

}  // TEST_SUITE("memory")
