// The same terms as llama.cpp's two links, added up in the same order: so the same sum, and the same token for a seed.
#include "llama/sampling/temperature_draw.h"

#include <cmath>
#include <random>

#include "llama/decoding/logit_choice.h"

namespace luce::llama {
namespace {

constexpr float kVanishes = -104.0F;  // expf of less is zero

}  // namespace

Result<Token> draw_by_temperature(std::span<const float> logits, float temperature, std::uint32_t seed,
                                  std::vector<float>& terms) {
    Result<Token> likeliest = argmax(logits);
    if (!likeliest) return likeliest;
    const float peak = logits[static_cast<std::size_t>(likeliest.value())] / temperature;
    if (!std::isfinite(peak)) return Error{ErrorCode::bad_args, "the temperature leaves no finite logits"};
    terms.resize(logits.size());
    double sum = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
        const float x = logits[i] / temperature - peak;
        terms[i] = x > kVanishes ? expf(x) : 0.0F;  // none for a NaN
        sum += terms[i];
    }
    std::mt19937 random(seed);
    const double target = sum * std::uniform_real_distribution<double>(0.0, 1.0)(random);
    double reached = 0;
    for (std::size_t i = 0; i < terms.size(); ++i) {
        reached += terms[i];
        if (reached >= target) return static_cast<Token>(i);
    }
    return static_cast<Token>(terms.size() - 1);
}

}  // namespace luce::llama
