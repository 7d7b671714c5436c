#include "llama/scoring/key_index.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <limits>
#include <string>

namespace luce::llama {
namespace {

using memory::Bytes;
using memory::PageKeys;
using Floats = LargestProducts::Floats;

constexpr double kLeastDeviation = 1e-4;

}  // namespace

Result<std::unique_ptr<KeyIndex>> KeyIndex::create(const KeyShape& shape, std::int32_t n_threads) {
    if (shape.n_dims == 0 || shape.n_heads_kv == 0 || shape.n_heads == 0 || shape.n_heads % shape.n_heads_kv != 0) {
        return Error{ErrorCode::unsupported, std::to_string(shape.n_heads) + " heads of queries and " +
                                                 std::to_string(shape.n_heads_kv) + " of keys with " +
                                                 std::to_string(shape.n_dims) + " dimensions do not go together"};
    }
    KeyProducts products(shape, std::max(n_threads, 1));
    if (!products.is_there()) return Error{ErrorCode::unsupported, "there is no CPU backend to compare keys with"};
    return std::unique_ptr<KeyIndex>(new KeyIndex(shape, std::move(products)));
}

PageKeys KeyIndex::encode(std::span<const float> keys) const {
    return std::make_shared<Bytes>(pack_keys(shape_, keys));
}

// A page is as large as the end of the one before it.
void KeyIndex::reach_over(LargestProducts& products, std::size_t n_pages) {
    if (products.of_page.empty()) return;
    const std::size_t n_rows = products.of_page.size() / n_pages;
    for (std::size_t i = n_rows; i < products.of_page.size(); ++i) {
        products.of_page[i] = std::max(products.of_page[i], products.at_end[i - n_rows]);
    }
}

std::vector<float> KeyIndex::scores(std::span<const float> queries, std::span<const PageKeys> pages) {
    LargestProducts found = products_.run(queries, pages);
    reach_over(found, pages.size());
    return normalised(found.of_page, pages.size());
}

std::vector<float> KeyIndex::scores(std::span<const float> queries, std::span<const PageKeys> blocks,
                                    std::span<const std::size_t> ends) {
    assert(!ends.empty() && ends.back() == blocks.size());
    LargestProducts found = products_.run(queries, blocks);
    reach_over(found, blocks.size());
    Floats& largest = found.of_page;
    if (largest.empty()) return {};
    // Page by page to the front: what is written over has been looked at.
    const std::size_t n_rows = largest.size() / blocks.size();
    std::size_t block = 0;
    for (std::size_t page = 0; page < ends.size(); ++page) {
        float* const most = largest.data() + page * n_rows;
        std::copy_n(largest.data() + block * n_rows, n_rows, most);
        while (++block < ends[page]) {
            const float* const other = largest.data() + block * n_rows;
            for (std::size_t row = 0; row < n_rows; ++row) most[row] = std::max(most[row], other[row]);
        }
    }
    largest.resize(ends.size() * n_rows);
    return normalised(largest, ends.size());
}

std::vector<float> KeyIndex::normalised(std::span<const float> largest, std::size_t n_all) {
    if (largest.empty()) return {};
    const std::size_t n_rows = largest.size() / n_all;
    const auto n_pages = static_cast<double>(n_all);
    // Page by page, as they lie; first the means, so that the deviations lose nothing.
    std::vector<double> means(n_rows, 0.0);
    std::vector<double> squares(n_rows, 0.0);
    const auto for_each = [&](const auto& visit) {
        for (std::size_t page = 0; page < n_all; ++page) {
            for (std::size_t row = 0; row < n_rows; ++row) visit(page, row, largest[page * n_rows + row]);
        }
    };
    for_each([&](std::size_t, std::size_t row, double s) { means[row] += s; });
    for (double& mean : means) mean /= n_pages;
    for_each([&](std::size_t, std::size_t row, double s) { squares[row] += (s - means[row]) * (s - means[row]); });
    for (double& square : squares) square = 1 / (std::sqrt(square / n_pages) + kLeastDeviation);
    std::vector<float> scores(n_all);
    for (std::size_t page = 0; page < n_all; ++page) {
        // Several at a time, so that none waits for the one before it.
        std::array<float, 8> best;
        best.fill(std::numeric_limits<float>::lowest());
        for (std::size_t row = 0; row < n_rows; ++row) {
            const auto z = static_cast<float>((largest[page * n_rows + row] - means[row]) * squares[row]);
            float& most = best[row % best.size()];
            // A query or key that is no number says nothing: it loses every comparison.
            most = z > most ? z : most;
        }
        scores[page] = *std::max_element(best.begin(), best.end());
    }
    return scores;
}

}  // namespace luce::llama
