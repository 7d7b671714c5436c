// Command: what a command line asks for, as data. Every field holds what the line said and nothing else: defaults are
// the daemon's business. Ranges that need no model (a probability, a count) are checked by the parser; ids against the
// vocabulary and lengths against the context are not its to know.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "records/records.h"

namespace luce::wire {

// A request's number on the wire, 0 <= id. Positional commands run as request 0.
using RequestId = std::int32_t;

using records::SamplerKind;
using records::SamplingArgs;  // what a line leaves out is as the daemon does it by default: greedy, no penalty

struct GrammarTrigger {
    enum class Kind { word, pattern, pattern_full, token };
    Kind kind = Kind::word;
    std::string text;  // word, pattern, pattern_full
    Token token = 0;   // token
};

// What constrains the output, as llama.cpp's `common` defines it (common_params_sampling).
struct ConstraintArgs {
    std::optional<std::string> grammar;       // GBNF text
    std::optional<std::string> grammar_path;  // or the file that holds it
    bool grammar_lazy = false;
    std::vector<GrammarTrigger> triggers;
    std::vector<Token> preserved;
    std::optional<std::string> generation_prompt;  // text the template has already put before the answer
    std::optional<std::int32_t> think_budget;      // tokens of reasoning, >= 0
    std::vector<Token> think_start;
    std::vector<std::vector<Token>> think_end;  // alternatives; the first is the one that is forced
    std::vector<Token> think_message;           // forced before the end, once the budget is spent
};

struct SnapshotPoint {
    Position position = 0;
    std::int32_t slot = 0;
};

struct PinSpan {
    Position begin = 0;
    Position end = 0;  // one past the last
};

// An image in the prompt: where its ids begin, and its file.
struct ImageAt {
    Position position = 0;
    std::string path;  // not empty
};

struct MemoryArgs {
    std::optional<std::int32_t> restore_slot;
    std::optional<Position> restore_at;    // only with restore_slot
    std::vector<std::int32_t> chain;       // thin slots that extend restore_slot, in order; only with it
    std::vector<SnapshotPoint> snapshots;  // no slot twice
    std::vector<Position> marks;           // at most kMaxMarks
    std::optional<Position> turn;          // where the user's last message ends
    std::vector<PinSpan> pins;             // at most kMaxMarks
    std::optional<bool> reuse;             // look for a prefix that is still there, without being told a slot
    std::optional<std::uint64_t> salt;     // sets the text apart from all that have another one, or none …
    std::optional<Position> salt_from;     // … from this position on; only with it

    // Whether it asks for something that only a daemon that keeps pages can do. `reuse` is a wish, not a demand.
    bool any() const { return restore_slot || !snapshots.empty() || !marks.empty() || turn || !pins.empty(); }
};

// How much of the prompt is read: all of it, parts of it, or parts where much of it is unknown.
enum class Reading { full, sparse, automatic };

// Unset means as the daemon was started.
struct ReadingArgs {
    std::optional<Reading> prefill;
    std::optional<float> share;          // 0 < p <= 1: of the tokens that no memory has, so much is read
    std::optional<std::int32_t> n_from;  // automatic: from so many such tokens on
    std::vector<PinSpan> keep;           // read in any case; at most kMaxMarks
    std::vector<PinSpan> blocks;         // each read whole or not at all; at most kMaxMarks
};

// All generating forms: `<path> <n_gen> …` and with a slot `RESTORE …` and `RESTORE_CHAIN …`,
// `generate <in> <n_gen> <out>`, and `gen id= …`.
struct Generate {
    enum class Form { positional, file, named };
    Form form = Form::positional;
    RequestId id = 0;                        // named form; 0 in the others
    std::vector<Token> prompt;               // inline ids (named form only) …
    std::optional<std::string> prompt_path;  // … or a file: exactly one of the two is given
    std::optional<std::string> output_path;  // file form
    std::int32_t n_generate = 0;             // >= 0
    SamplingArgs sampling;
    ConstraintArgs constraint;
    MemoryArgs memory;
    ReadingArgs reading;
    std::vector<ImageAt> images;  // positions rise; at most kMaxMarks
    std::vector<Token> stop_tokens;
    std::int32_t n_least = 0;  // before so many tokens none is chosen that would end the generation
    bool ignore_eos = false;
    std::int32_t n_logprobs = 0;                    // 0 .. kMaxLogprobs
    std::optional<std::int32_t> n_prompt_logprobs;  // 0 .. kMaxLogprobs; unset: none of the prompt's own …
    Position prompt_logprobs_from = 0;              // … else those from this position on
    std::int32_t n_generated_before = 0;  // the last so many prompt ids were generated by this request earlier
    std::int32_t priority = 0;            // higher first
};

// `compress <path> <keep_x1000> [<scorer>] [nopark]`, `compress id= share= [keep=] [blocks=] prompt=`: the prompt ids
// that a sparse reading would read.
struct Compress {
    std::optional<RequestId> id;             // named form
    std::vector<Token> prompt;               // inline ids (named form only) …
    std::optional<std::string> prompt_path;  // … or a file: exactly one of the two is given
    float share = 0;                         // 0 < p <= 1, of the prompt
    std::vector<PinSpan> keep;               // as in ReadingArgs, named form only
    std::vector<PinSpan> blocks;
    std::optional<std::string> scorer;  // the file of the small model, positional form only; unset: the daemon's
};

// `embed id= prompt=`: the vector of a text, from a daemon that was started for that.
struct Embed {
    RequestId id = 0;
    std::vector<Token> prompt;               // inline ids …
    std::optional<std::string> prompt_path;  // … or a file: exactly one of the two is given
};

struct Cancel {
    RequestId id = 0;
};

struct Status {
    std::optional<RequestId> id;
    bool check = false;  // also verify the accounting
};

struct Ping {
    std::string word;  // may be empty
};

struct Quit {};

// The slots' commands and what else concerns the memory. Those in capitals carry no id, those by name always do.

// `SNAPSHOT <slot>`, `snapshot id= slot= [of=]`: keep the state after a generation.
struct Snapshot {
    std::optional<RequestId> id;
    std::int32_t slot = 0;
    std::optional<RequestId> of;  // the request whose state it is; unset: the last positional generation
};

// `SNAPSHOT_THIN <slot> <from> <to>`, `thin id= slot= from= to= [of=]`: keep only the attention KV of that range.
struct ThinSnapshot {
    std::optional<RequestId> id;
    std::int32_t slot = 0;
    Position begin = 0;
    Position end = 0;  // one past the last; begin < end
    std::optional<RequestId> of;
};

// `FREE_SNAPSHOT <slot>`, `free id= slot=`.
struct FreeSlot {
    std::optional<RequestId> id;
    std::int32_t slot = 0;
};

// `free drafter`: drop the small model that says what of a prompt is read.
struct FreeScorer {};

// `LIST_SLOTS`, `list id=`.
struct ListSlots {
    std::optional<RequestId> id;
};

// `SAVE <slot> <path>`, `save id= slot= path=`: one snapshot becomes one file …
struct SaveSlot {
    std::optional<RequestId> id;
    std::int32_t slot = 0;
    std::string path;  // not empty
};

// … and back: `LOAD <slot> <path>`, `load id= slot= path=`.
struct LoadSlot {
    std::optional<RequestId> id;
    std::int32_t slot = 0;
    std::string path;  // not empty
};

// `park [target|draft]`, `park id= [what=]`: give the weights' memory back …
struct Park {
    enum class What { target, draft };
    std::optional<RequestId> id;
    What what = What::target;
};

// … and take it again: `unpark` in the same two forms.
struct Unpark {
    std::optional<RequestId> id;
    Park::What what = Park::What::target;
};

// `CLEAR [disk]`, `clear id= [disk=]`: drop every page and checkpoint that neither a slot nor a running request holds.
struct Clear {
    std::optional<RequestId> id;
    bool disk = false;  // the disk cache's too
};

// `texts id= [from=] [n=]`: what is remembered, a run of pages each.
struct ListTexts {
    std::optional<RequestId> id;
    std::int32_t first = 0;
    std::optional<std::int32_t> n_most;
};

// `hold id= page= [on=]`: keep the text that ends with this page from leaving memory, or no longer.
struct HoldText {
    std::optional<RequestId> id;
    std::string page;  // its name, not empty
    bool on = true;
};

// `forget id= page=`: drop the run that ends with this page, and all behind it.
struct ForgetText {
    std::optional<RequestId> id;
    std::string page;
};

// `pages id= [on=]`: tell which pages come and go from now on, or no longer.
struct WatchPages {
    std::optional<RequestId> id;
    bool on = true;
};

// `adopt id= files=`: files that have been put into the disk cache's folder …
struct AdoptFiles {
    std::optional<RequestId> id;
    std::vector<std::string> files;  // their names, none empty
};

// … `files id= [since=] [n=]`: those that are there to be taken, in the order in which they came …
struct ListFiles {
    std::optional<RequestId> id;
    std::uint64_t since = 0;
    std::optional<std::int32_t> n_most;
};

// … and `write id= page=`: write the text that ends with this page now.
struct WriteText {
    std::optional<RequestId> id;
    std::string page;  // its name, not empty
};

// `probe id= [salt=] [salt_from=] prompt=`: from where a text could be gone on with, without reading it.
struct ProbeText {
    std::optional<RequestId> id;
    std::optional<std::uint64_t> salt;
    std::optional<Position> salt_from;       // only with salt
    std::vector<Token> prompt;               // inline ids …
    std::optional<std::string> prompt_path;  // … or a raw file: exactly one of the two is given
};

// `image id= path= [salt=]`: the ids that stand in a prompt for the image in a file.
struct DescribeImage {
    RequestId id = 0;
    std::string path;                   // not empty
    std::optional<std::uint64_t> salt;  // of the text that will hold it
};

using Command = std::variant<Generate, Compress, Embed, Cancel, Status, Ping, Quit, Snapshot, ThinSnapshot, FreeSlot,
                             FreeScorer, ListSlots, SaveSlot, LoadSlot, Park, Unpark, Clear, DescribeImage, ListTexts,
                             HoldText, ForgetText, WatchPages, AdoptFiles, ListFiles, WriteText, ProbeText>;

inline constexpr std::int32_t kMaxLogprobs = 100;
inline constexpr std::size_t kMaxMarks = 4096;
inline constexpr std::size_t kMaxLineBytes = 16u << 20;

// A line that is no command. `id` is set where the line carried a readable one, so that the reply can name it;
// `generating` says whether it was meant to generate: such a refusal ends with a sentinel in the plain dialect.
struct ParseError {
    Error error;
    std::optional<RequestId> id;
    bool generating = false;
};

}  // namespace luce::wire
