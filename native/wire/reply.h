// Reply: what the daemon says on stdout, as data, and its one way to become a line. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "wire/command.h"

namespace luce::wire {

using records::ExpertReads;
using records::GenerationStats;
using records::Speculation;
using records::StopReason;

std::string_view name_of(Park::What what);

// `ok [id=] N= … [out=] stop=`: the statistics by their keys. Speculation begins with `accept=`, which is worked out,
// and missing where nothing was drafted.
struct GenerateOk {
    std::optional<RequestId> id;
    GenerationStats stats;
    std::optional<std::string> output_path;  // percent-encoded on the wire
};

// `ok [id=] in= out= parts=a:b,…`: of the prompt's tokens so many would be read, and where they stand in it.
struct CompressOk {
    std::optional<RequestId> id;
    std::int32_t n_in = 0;
    std::int32_t n_out = 0;
    std::vector<PinSpan> parts;
};

// `err <code> [id=<id>] <text>`; control characters in the text become spaces.
struct Err {
    std::optional<RequestId> id;
    Error error;
};

struct Pong {
    std::string word;
};

// `ok [id=]` with nothing else: `quit`, `clear`, `free drafter`.
struct PlainOk {
    std::optional<RequestId> id;
};

// `ok [id=] park target|draft`
struct Parked {
    std::optional<RequestId> id;
    Park::What what = Park::What::target;
};

// `ok [id=] unpark target|draft`
struct Unparked {
    std::optional<RequestId> id;
    Park::What what = Park::What::target;
};

// `[embedding] id= N= values=<base64>`: the reply to `embed`; the values are binary32, little endian.
struct Embedding {
    RequestId id = 0;
    std::int32_t n_tokens = 0;
    std::vector<float> values;
};

struct Cancelled {
    RequestId id = 0;
};

struct PrefillProgress {
    std::optional<RequestId> id;
    std::int32_t n_done = 0;
    std::int32_t n_total = 0;
};

// `[lp] [id=] i=<n> tok:logprob,…`: the chosen token first, then the likeliest ones in falling order.
struct Logprobs {
    std::optional<RequestId> id;
    std::int32_t index = 0;  // of the generated token, from 0
    std::vector<std::pair<Token, float>> entries;
};

// `[plp] [id=] at=<p> tok:logprob,…`: the prompt's token at that position first, then the likeliest ones there.
struct PromptLogprobs {
    std::optional<RequestId> id;
    Position position = 0;
    std::vector<std::pair<Token, float>> entries;
};

// `[snap] [id=] slot= cur_pos=`: a slot holds this now; the reply to `snapshot` and to `load`.
struct SnapshotTaken {
    std::optional<RequestId> id;
    std::int32_t slot = 0;
    Position cur_pos = 0;
};

// `[snap] [id=] slot= from= to=`
struct ThinTaken {
    std::optional<RequestId> id;
    std::int32_t slot = 0;
    Position begin = 0;
    Position end = 0;
};

// `[snap] [id=] freed slot=`
struct SlotFreed {
    std::optional<RequestId> id;
    std::int32_t slot = 0;
};

// `[snap] [id=] slots=0,3`
struct SlotList {
    std::optional<RequestId> id;
    std::vector<std::int32_t> slots;
};

// `[snap] [id=] saved slot= bytes=`
struct SlotSaved {
    std::optional<RequestId> id;
    std::int32_t slot = 0;
    std::uint64_t bytes = 0;
};

// `[snap] inline [id=] slot= cur_pos=`: a point of `snap=` was reached. Not final.
struct InlineSnapshot {
    std::optional<RequestId> id;
    std::int32_t slot = 0;
    Position cur_pos = 0;
};

// `[snap] failed [id=] slot= <code>`: it will not be kept. Not final.
struct InlineSnapshotFailed {
    std::optional<RequestId> id;
    std::int32_t slot = 0;
    ErrorCode code = ErrorCode::internal;
};

// `[image] id= ids=1,2,…`: what stands in a prompt for an image.
struct ImageDescribed {
    RequestId id = 0;
    std::vector<Token> ids;
};

// `[status] key=value …`, `[daemon] ready key=value …`: values are percent-encoded.
struct StatusLine {
    std::vector<std::pair<std::string, std::string>> fields;
};
// `[texts] id= total= short= from= texts=…`: the reply to `texts`.
struct TextsLine {
    std::vector<std::pair<std::string, std::string>> fields;
};

// `[pages] [anew=1] pages=<page>,…`: which pages have come, gone or changed their place; of nobody's request. With
// `anew` all that was told before is void.
struct PagesLine {
    bool begins_anew = false;
    std::vector<std::string> pages;  // each as words with ':' between
};

// `[files] id= next= files=<name>:<bytes>,…`: the reply to `files` and `write`.
struct FilesLine {
    RequestId id = 0;
    std::uint64_t next = 0;          // the number from which on there is more, or will be
    std::vector<std::string> files;  // each as words with ':' between
};

// `[adopted] id= new= known= missing=`: the reply to `adopt`.
struct Adopted {
    RequestId id = 0;
    std::int32_t n_new = 0;
    std::int32_t n_known = 0;
    std::int32_t n_missing = 0;
};

// `[probe] id= N= known= pages=`: of a text of N tokens, those that need not be computed, and its pages that are there.
struct Probed {
    RequestId id = 0;
    std::int32_t n_tokens = 0;
    std::int32_t n_known = 0;
    std::int32_t n_pages = 0;
};

struct ReadyLine {
    std::vector<std::pair<std::string, std::string>> fields;
};

// `[pool] tokens=<n>`: of nobody's request. The pool has become smaller, for want of memory.
struct PoolSize {
    std::int32_t n_tokens = 0;
};

// `[daemon] loading percent=<n>`: before the ready line, in the multiplexed dialect. So much of the weights is read.
struct LoadProgress {
    std::int32_t percent = 0;
};

// `[daemon] out_of_memory reason=<text>`: the last line. The engine ends, because memory ran out.
struct OutOfMemory {
    std::string reason;
};

using Reply = std::variant<GenerateOk, CompressOk, Err, Pong, PlainOk, Cancelled, PrefillProgress, Logprobs,
                           PromptLogprobs, StatusLine, TextsLine, PagesLine, ReadyLine, Parked, Unparked, SnapshotTaken,
                           ThinTaken, SlotFreed, SlotList, SlotSaved, InlineSnapshot, InlineSnapshotFailed, PoolSize,
                           LoadProgress, OutOfMemory, Embedding, ImageDescribed, FilesLine, Adopted, Probed>;

// Adds to a status line what speculation did since the start: `spec_drafted= spec_accepted= spec_steps= [spec_share=]
// [spec_tokens_per_step=] spec_draft_s= spec_verify_s=`; the two in brackets only once there was a step.
void append_speculation(StatusLine& line, const Speculation& speculation);

// The line with its `\n`.
std::string format_reply(const Reply& reply);

}  // namespace luce::wire
