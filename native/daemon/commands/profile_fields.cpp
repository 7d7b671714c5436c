#include "daemon/commands/profile_fields.h"

#include <string>
#include <utility>

namespace luce::daemon {

StatusFields describe_profile(const StepProfile::Sums& sums) {
    StatusFields fields;
    const auto add = [&fields](std::string name, auto value) {
        fields.emplace_back(std::move(name), std::to_string(value));
    };
    const PartSum& calls = sums.of(Part::submit);
    add("steps", sums.of(Part::step).n_spans);
    add("calls", calls.n_spans);
    for (std::size_t i = 0; i < calls.counts.size(); ++i) {
        add("call_" + std::string(traits_of(Part::submit).counts[i]), calls.counts[i]);
    }
    add("time_s", sums.seconds);
    for (std::size_t i = 0; i < kParts; ++i) {
        const auto part = static_cast<Part>(i);
        const std::string name(traits_of(part).name);
        add((is_of_engine(part) ? "time_" : "") + name + "_s", sums.of(part).seconds);
        if (traits_of(part).counts[0] == "bytes") add(name + "_bytes", sums.of(part).counts[0]);
    }
    return fields;
}

}  // namespace luce::daemon
