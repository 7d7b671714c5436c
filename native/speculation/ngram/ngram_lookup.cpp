#include "speculation/ngram/ngram_lookup.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "speculation/ngram/answer_memory.h"
#include "speculation/ngram/copy_edits.h"
#include "speculation/ngram/ngram_index.h"

namespace luce::speculation {

namespace {

constexpr std::size_t kLongNgram = 8;    // kept besides the short ngrams, so that common ones do not hide a long copy
constexpr std::size_t kLongest = 32;     // what is longer equal is no better a place …
constexpr std::size_t kMostEqual = 128;  // … but makes what comes next likelier, up to here
constexpr std::size_t kMostLongPlaces = 16;  // looked at for a draft, latest first
constexpr std::size_t kMostShortPlaces = 32;
constexpr std::size_t kMostVoters = 16;
constexpr std::size_t kSure = 32;               // equal tokens from which a draft may be as long as is wanted; before,
constexpr std::size_t kPerEqual = 2;            // drafted tokens for each equal one, because chance ends soon
constexpr std::size_t kOnPathMost = 15;         // or as many where the lane was copying
constexpr std::size_t kMostAtOnce = 1U << 16U;  // tokens made known in a call, so that none takes long
constexpr std::size_t kOnPath = 4;              // equal tokens that show where a lane is copying from
constexpr std::size_t kProven = 16;             // copied tokens after which it is no chance
constexpr std::size_t kWindow = 16;             // how far from there it is looked for after a departure
constexpr std::size_t kReturn = 64;             // and for how many tokens
constexpr float kLeastWorth = 0.1F;             // below this no target call is cheap enough

// What speaks for a token: how many places there are and how many go on with it, that the lane was copying there, or
// that it has changed the same tokens before.
enum class Evidence : std::uint8_t { one, all, most, some, on_path, beside_path, edited };
constexpr std::size_t kEvidences = 7;

// Equal tokens before the proposed one, those of the draft included (of an edit: how often it was made): the lowest
// number of each class.
constexpr std::array<std::size_t, 11> kLengths = {1, 2, 3, 4, 5, 7, 10, 16, 32, 64, kMostEqual};

// How often proposals with the same evidence were right, of late. A draft's later tokens are counted only if those
// before them were right: then as much more is equal, and they are worth what a longer match is worth.
class HitRates {
public:
    struct Cell {
        std::size_t evidence = 0;
        std::size_t length = 0;
    };

    HitRates() {
        for (std::size_t i = 0; i < kEvidences; ++i) {
            for (std::size_t j = 0; j < kLengths.size(); ++j) counts_[i][j] = {kPrior[i][j] * kPriorTries, kPriorTries};
        }
    }

    static Cell cell_of(Evidence evidence, std::size_t length) {
        const auto above = std::upper_bound(kLengths.begin(), kLengths.end(), std::max(length, kLengths[0]));
        return {static_cast<std::size_t>(evidence), static_cast<std::size_t>(above - kLengths.begin()) - 1};
    }

    float of(Cell cell) const {
        const Count& count = counts_[cell.evidence][cell.length];
        return count.n_hits / count.n_tries;
    }

    void learn(Cell cell, bool is_hit) {
        Count& count = counts_[cell.evidence][cell.length];
        if (count.n_tries >= kMemory) count = {count.n_hits / 2, count.n_tries / 2};
        count.n_hits += is_hit ? 1.0F : 0.0F;
        ++count.n_tries;
    }

private:
    struct Count {
        float n_hits = 0.0F;
        float n_tries = 0.0F;
    };

    static constexpr float kPriorTries = 16.0F;
    static constexpr float kMemory = 512.0F;
    // Rounded from what edits of code, code and prose gave, a hundred of each, half a million tokens.
    static constexpr float kPrior[kEvidences][kLengths.size()] = {
        {0.30F, 0.39F, 0.52F, 0.61F, 0.67F, 0.76F, 0.85F, 0.92F, 0.94F, 0.97F, 0.98F},   // one
        {0.60F, 0.70F, 0.79F, 0.82F, 0.86F, 0.90F, 0.93F, 0.96F, 0.98F, 0.985F, 0.99F},  // all
        {0.36F, 0.40F, 0.43F, 0.47F, 0.50F, 0.50F, 0.50F, 0.60F, 0.70F, 0.70F, 0.70F},   // most
        {0.12F, 0.16F, 0.20F, 0.21F, 0.21F, 0.21F, 0.21F, 0.25F, 0.25F, 0.25F, 0.25F},   // some
        {0.48F, 0.78F, 0.79F, 0.86F, 0.86F, 0.88F, 0.90F, 0.94F, 0.98F, 0.985F, 0.99F},  // on_path
        {0.23F, 0.54F, 0.69F, 0.70F, 0.79F, 0.80F, 0.88F, 0.93F, 0.96F, 0.97F, 0.98F},   // beside_path
        {0.70F, 0.85F, 0.90F, 0.92F, 0.94F, 0.95F, 0.96F, 0.97F, 0.98F, 0.98F, 0.98F},   // edited
    };

    std::array<std::array<Count, kLengths.size()>, kEvidences> counts_{};
};

// How many tokens before the place are equal to those at the text's end.
std::size_t n_equal_before(std::span<const Token> source, std::size_t place, std::span<const Token> text,
                           std::size_t n_most = kLongest) {
    std::size_t n = 0;
    while (n < std::min({place, text.size(), n_most}) && source[place - 1 - n] == text[text.size() - 1 - n]) ++n;
    return n;
}

// The places where the text's end stood before, with the most equal tokens; latest first.
struct Found {
    std::vector<std::size_t> places;
    std::size_t n_equal = 0;
    std::optional<Evidence> evidence;  // unset: how far the places agree
};

struct Vote {
    Token token = 0;
    Evidence evidence = Evidence::one;
};

// What most of the places go on with, n_after tokens later; of as many, what the latest does. REQUIRES: all do go on
Vote vote_of(std::span<const Token> source, const std::vector<std::size_t>& places, std::size_t n_after) {
    Vote vote;
    std::size_t n_for = 0;
    for (const std::size_t candidate : places) {
        const Token token = source[candidate + n_after];
        const auto agrees = [&](std::size_t place) { return source[place + n_after] == token; };
        const auto n = static_cast<std::size_t>(std::count_if(places.begin(), places.end(), agrees));
        if (n <= n_for) continue;
        n_for = n;
        vote.token = token;
    }
    if (places.size() > 1) {
        vote.evidence = n_for == places.size()      ? Evidence::all
                        : 2 * n_for > places.size() ? Evidence::most
                                                    : Evidence::some;
    }
    return vote;
}

// What was proposed, until the text shows what was right of it.
struct Pending {
    std::size_t n_text = 0;  // of the text that it was proposed for
    bool of_answers = false;
    Tokens tokens;
    std::vector<HitRates::Cell> cells;
};

// Where a lane was copying from when its text had n_text tokens.
struct Path {
    std::size_t n_back = 0;  // from the text's end to the place
    std::size_t n_text = 0;
    std::size_t n_copied = 0;  // tokens that it has copied there in all
};

struct Lane {
    explicit Lane(std::size_t n_least) : shorter(n_least), longer(kLongNgram) {}

    NgramIndex shorter;
    NgramIndex longer;
    std::size_t n_text = 0;
    std::vector<Pending> pending;  // two of each n_text at the most, so no more than twice what a draft can be long
    std::optional<Path> path;
    std::size_t n_prompt = 0;
    CopyEdits edits;  // of what it copies from its prompt
};

void search(const NgramIndex& index, Place place, std::span<const Token> source, std::span<const Token> text,
            std::size_t n_least, std::size_t n_places, Found& found) {
    for (; place != 0 && n_places > 0; place = index.before(place), --n_places) {
        const std::size_t n_equal = n_equal_before(source, place, text);
        if (n_equal < n_least || n_equal < found.n_equal) continue;
        if (n_equal > found.n_equal) found.places.clear();
        found.n_equal = n_equal;
        if (found.places.size() < kMostVoters) found.places.push_back(place);
    }
}

// Near where the lane was copying from: one equal token there, two beside it. Of as many, what is nearest.
Found search_path(std::span<const Token> text, const Path& path) {
    Found found;
    const auto consider = [&](std::size_t place, Evidence evidence, std::size_t n_least) {
        if (place == 0 || place >= text.size()) return;
        const std::size_t n_equal = n_equal_before(text, place, text);
        if (n_equal >= n_least && n_equal > found.n_equal) found = {{place}, n_equal, evidence};
    };
    const std::size_t expected = text.size() - path.n_back;
    consider(expected, Evidence::on_path, 1);
    for (std::size_t i = 1; i <= kWindow; ++i) {
        consider(expected + i, Evidence::beside_path, 2);
        if (i < expected) consider(expected - i, Evidence::beside_path, 2);
    }
    return found;
}

Found find_in(const AnswerMemory& answers, std::span<const Token> text, std::size_t n_least) {
    Found found;
    const auto [shorter, longer] = std::tie(answers.shorter(), answers.longer());
    search(longer, longer.latest_like(text), answers.text(), text, std::max(n_least, kLongNgram), kMostLongPlaces,
           found);
    if (!found.places.empty()) return found;
    search(shorter, shorter.latest_like(text), answers.text(), text, n_least, kMostShortPlaces, found);
    return found;
}

Found find(const Lane& lane, std::span<const Token> text, std::size_t n_least, std::size_t n_most) {
    Found found;
    search(lane.longer, lane.longer.latest(text), text, text, std::max(n_least, kLongNgram), kMostLongPlaces, found);
    if (found.places.empty()) {
        search(lane.shorter, lane.shorter.latest(text), text, text, n_least, kMostShortPlaces, found);
    }
    if (!lane.path || lane.path->n_copied < kProven || text.size() - lane.path->n_text > kReturn) return found;
    Found on_path = search_path(text, *lane.path);
    if (on_path.n_equal != found.n_equal) return on_path.n_equal > found.n_equal ? on_path : found;
    // A text that repeats itself copies from so near its end that others have more to propose.
    return !on_path.places.empty() && on_path.places.front() + n_most <= text.size() ? on_path : found;
}

// The search stops counting what is equal where no place is better any more.
Found measured(Found found, std::span<const Token> source, std::span<const Token> text) {
    if (found.n_equal == kLongest) found.n_equal = n_equal_before(source, found.places.front(), text, kMostEqual);
    return found;
}

// What is proposed of one text.
struct Copied {
    Pending pending;
    std::vector<float> confidence;
    std::size_t place = 0;  // that it was copied from

    double n_expected() const {  // tokens that are right
        double n_right = 0, chance = 1;
        for (const float one : confidence) n_right += chance *= static_cast<double>(one);
        return n_right;
    }
};

}  // namespace

struct NgramLookup::State {
    explicit State(std::size_t n_least) : n_least(n_least), answers(n_least, kLongNgram) {}

    Lane& lane_of(LaneId id) { return lanes.try_emplace(static_cast<std::int32_t>(id), n_least).first->second; }
    HitRates& rates_of(const Pending& pending) { return pending.of_answers ? rates_of_answers : rates; }
    void advance(Lane& lane, std::span<const Token> text, std::size_t n_known);
    void learn(const Lane& lane, Pending& pending, std::span<const Token> text);
    Copied copy(std::span<const Token> source, Found found, std::size_t n_text, std::size_t n_most,
                const CopyEdits& edits);
    void push(Copied& copied, Token token, HitRates::Cell cell);
    void follow_path(Lane& lane, std::span<const Token> text, std::size_t place, std::size_t n_equal);
    Draft propose(Lane& lane, const DraftAsk& ask, std::size_t n_most);

    std::size_t n_least;
    std::unordered_map<std::int32_t, Lane> lanes;
    AnswerMemory answers;
    HitRates rates;  // of a lane's own text
    HitRates rates_of_answers;
};

// The lane's text goes on as `text`: learns what was right of the drafts, and makes its ngrams known up to n_known.
void NgramLookup::State::advance(Lane& lane, std::span<const Token> text, std::size_t n_known) {
    if (text.size() < lane.n_text) lane = Lane(n_least);  // nobody should; what was known is of another text then
    for (Pending& pending : lane.pending) learn(lane, pending, text);
    std::erase_if(lane.pending, [](const Pending& pending) { return pending.tokens.empty(); });
    lane.n_text = text.size();
    n_known = std::min({n_known, text.size(), lane.shorter.n_known() + kMostAtOnce});
    lane.shorter.extend(text, n_known);
    lane.longer.extend(text, n_known);
}

// Leaves it without tokens when nothing can be learnt from it any more.
void NgramLookup::State::learn(const Lane& lane, Pending& pending, std::span<const Token> text) {
    for (std::size_t i = lane.n_text; i < text.size(); ++i) {
        const std::size_t at = i - pending.n_text;
        const bool is_hit = pending.tokens[at] == text[i];
        rates_of(pending).learn(pending.cells[at], is_hit);
        if (is_hit && at + 1 < pending.tokens.size()) continue;
        pending.tokens.clear();
        return;
    }
}

void NgramLookup::State::push(Copied& copied, Token token, HitRates::Cell cell) {
    copied.pending.tokens.push_back(token);
    copied.pending.cells.push_back(cell);
    copied.confidence.push_back(rates_of(copied.pending).of(cell));
}

// What the places go on with, as far as that is a text, with the edits that are to be expected. `source`: the lane's
// own, or the answers.
Copied NgramLookup::State::copy(std::span<const Token> source, Found found, std::size_t n_text, std::size_t n_most,
                                const CopyEdits& edits) {
    Copied copied{{n_text, source.data() == answers.text().data(), {}, {}}, {}};
    std::vector<std::size_t>& places = found.places;
    std::size_t n_passed = 0;  // tokens of the source
    while (copied.confidence.size() < n_most) {
        const auto ends = [&](std::size_t place) {
            if (place + n_passed >= source.size()) return true;
            return copied.pending.of_answers && source[place + n_passed] == AnswerMemory::kEnd;
        };
        std::erase_if(places, ends);
        if (places.empty()) break;
        const Vote vote = vote_of(source, places, n_passed);
        std::erase_if(places, [&](std::size_t place) { return source[place + n_passed] != vote.token; });
        copied.place = places.front();
        if (const CopyEdit* edit = edits.expected(source, places.front() + n_passed)) {
            // Once it has begun the edit goes on as before.
            auto n_speaking = static_cast<std::size_t>(edit->n_made);
            for (const Token token : edit->after) {
                if (copied.confidence.size() == n_most) break;
                push(copied, token, HitRates::cell_of(Evidence::edited, std::exchange(n_speaking, kMostEqual)));
            }
            places.resize(1);
            n_passed += edit->before.size();
            continue;
        }
        push(copied, vote.token, HitRates::cell_of(found.evidence.value_or(vote.evidence), found.n_equal + n_passed));
        ++n_passed;
    }
    return copied;
}

// The lane copies from this place now, whose last n_equal tokens are those of the text.
void NgramLookup::State::follow_path(Lane& lane, std::span<const Token> text, std::size_t place, std::size_t n_equal) {
    std::size_t n_copied = n_equal;
    if (lane.path) {
        const std::size_t before = lane.path->n_text - lane.path->n_back;
        const std::size_t n_source = place > before ? place - before : 0, n_copy = text.size() - lane.path->n_text;
        const bool goes_on = n_copy <= kReturn && n_source <= n_copy + kWindow && n_copy <= n_source + kWindow;
        if (goes_on) n_copied = std::max(n_copied, lane.path->n_copied + std::min(n_equal, n_copy));
        if (goes_on && place > before && place <= lane.n_prompt) {
            lane.edits.learn(text, lane.path->n_text, before, place);
        }
    }
    lane.path = Path{text.size() - place, text.size(), n_copied};
}

Draft NgramLookup::State::propose(Lane& lane, const DraftAsk& ask, std::size_t n_most) {
    const std::span<const Token> text = ask.text;
    const Found found = measured(find(lane, text, n_least, n_most), text, text);
    if (found.n_equal >= kOnPath) follow_path(lane, text, found.places.front(), found.n_equal);
    const Found of_answers = measured(find_in(answers, text, n_least), answers.text(), text);
    const auto n_most_of = [&](const Found& source) {
        if (source.n_equal >= kSure) return n_most;
        return std::min(n_most, std::max(kPerEqual * source.n_equal, source.evidence ? kOnPathMost : 0));
    };
    const Copied own = copy(text, found, text.size(), n_most_of(found), lane.edits);
    const Copied other = copy(answers.text(), of_answers, text.size(), n_most_of(of_answers), {});
    if (found.n_equal >= kOnPath && own.place > 0) lane.path->n_back = text.size() - own.place;
    const bool is_new = lane.pending.empty() || lane.pending.back().n_text != text.size();
    for (const Copied* copied : {&own, &other}) {
        if (is_new && !copied->confidence.empty()) lane.pending.push_back(copied->pending);
    }
    const Copied& best = other.n_expected() > own.n_expected() ? other : own;
    // Learnt from all the same, so that it can become worth something again.
    if (best.confidence.empty() || best.confidence.front() < kLeastWorth) return {ask.lane, {}, {}};
    return {ask.lane, best.pending.tokens, best.confidence};
}

NgramLookup::NgramLookup(std::int32_t n_most, std::int32_t n_least, bool keeps_answers)
    : traits_{"ngram", n_most, true},
      keeps_answers_(keeps_answers),
      state_(std::make_unique<State>(static_cast<std::size_t>(n_least))) {
    assert(n_most >= 1 && n_least >= 1);
}

NgramLookup::~NgramLookup() = default;

Result<void> NgramLookup::draft(std::span<const DraftAsk> asks, std::vector<Draft>& drafts) {
    for (const DraftAsk& ask : asks) {
        Lane& lane = state_->lane_of(ask.lane);
        state_->advance(lane, ask.text, ask.text.size());
        const std::int32_t n_most = std::clamp(ask.n_most, 0, traits_.n_most);
        drafts.push_back(state_->propose(lane, ask, static_cast<std::size_t>(n_most)));
    }
    return {};
}

void NgramLookup::follow(LaneId lane, std::span<const Token> text, std::int32_t n_computed, std::int32_t /*n_new*/,
                         BatchRows /*rows*/) {
    // Only what is computed: so the work on a long prompt is spread over the calls that compute it.
    state_->advance(state_->lane_of(lane), text, static_cast<std::size_t>(std::max(n_computed, 0)));
}

// What of the text was put back from memory is made known by the next calls, kMostAtOnce tokens each; until then drafts
// come from what is known.
void NgramLookup::begin(LaneId lane, std::span<const Token> text, std::int32_t /*n_computed*/) {
    state_->lane_of(lane) = Lane(state_->n_least);
    state_->lane_of(lane).n_prompt = text.size();
}

void NgramLookup::answered(std::span<const Token> text, std::int32_t n_prompt) {
    if (keeps_answers_) state_->answers.add(text, n_prompt);
}

void NgramLookup::forget(LaneId lane) { state_->lanes.erase(static_cast<std::int32_t>(lane)); }

std::size_t NgramLookup::n_bytes(LaneId lane) const {
    const auto at = state_->lanes.find(static_cast<std::int32_t>(lane));
    if (at == state_->lanes.end()) return 0;
    return at->second.shorter.n_bytes() + at->second.longer.n_bytes();
}

}  // namespace luce::speculation
