#include "llama/scoring/key_index.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cmath>
#include <limits>
#include <string>
#include <thread>

namespace luce::llama {
namespace {

using memory::Bytes;
using memory::PageKeys;

constexpr double kLeastDeviation = 1e-4;
// Of a thread that is worth starting.
constexpr std::size_t kLeastPages = 64;

Error unsupported(std::string text) { return {ErrorCode::unsupported, std::move(text)}; }

}  // namespace

Result<std::unique_ptr<KeyIndex>> KeyIndex::create(const KeyShape& shape, std::int32_t n_threads, Threads threads) {
    if (shape.n_dims == 0 || shape.n_heads_kv == 0 || shape.n_heads == 0 || shape.n_heads % shape.n_heads_kv != 0) {
        return unsupported(std::to_string(shape.n_heads) + " heads of queries and " + std::to_string(shape.n_heads_kv) +
                           " of keys with " + std::to_string(shape.n_dims) + " dimensions do not go together");
    }
    return std::unique_ptr<KeyIndex>(new KeyIndex(shape, std::max(n_threads, 1), threads));
}

KeyIndex::KeyIndex(const KeyShape& shape, std::int32_t n_threads, Threads threads)
    : shape_(shape), workers_(static_cast<std::size_t>(n_threads), KeyProducts(shape)) {
    if (threads == Threads::of_computation) computing_.emplace(n_threads);
}

PageKeys KeyIndex::encode(std::span<const float> keys) const {
    return std::make_shared<Bytes>(pack_keys(shape_, keys));
}

std::vector<float> KeyIndex::decode(const Bytes& encoded) const { return unpack_keys(shape_, encoded); }

KeyIndex::Products KeyIndex::products(std::span<const float> queries, std::span<const PageKeys> pages) {
    const RoundedQueries asked(shape_, queries);
    const std::size_t n_rows = asked.n_rows();
    Products found{Floats(n_rows * pages.size()), Floats(n_rows * pages.size())};
    std::atomic<std::size_t> next = 0;
    on_threads(pages.size(), [&](std::size_t thread) {
        for (std::size_t i = next++; i < pages.size(); i = next++) {
            const auto of_page = [&](Floats& rows) { return std::span(rows).subspan(i * n_rows, n_rows); };
            workers_[thread].run(asked, *pages[i], of_page(found.largest), of_page(found.at_end));
        }
    });
    return found;
}

void KeyIndex::on_threads(std::size_t n_pages, const std::function<void(std::size_t)>& work) {
    if (computing_) return computing_->run(work);
    const std::size_t n_threads = std::min(workers_.size(), n_pages / kLeastPages);
    std::vector<std::jthread> others;
    for (std::size_t i = 1; i < n_threads; ++i) others.emplace_back(work, i);
    work(0);
}

// A page is as large as the end of the one before it.
void KeyIndex::reach_over(Products& products, std::size_t n_pages) {
    if (products.largest.empty()) return;
    const std::size_t n_rows = products.largest.size() / n_pages;
    for (std::size_t i = n_rows; i < products.largest.size(); ++i) {
        products.largest[i] = std::max(products.largest[i], products.at_end[i - n_rows]);
    }
}

std::vector<float> KeyIndex::largest_products(std::span<const float> queries, std::span<const PageKeys> pages) {
    const Floats largest = products(queries, pages).largest;
    const std::size_t n_queries = queries.size() / (shape_.n_heads * shape_.n_dims);
    const std::size_t group = shape_.n_heads / shape_.n_heads_kv;
    std::vector<float> ordered;
    ordered.reserve(largest.size());
    for (std::size_t page = 0; !largest.empty() && page < pages.size(); ++page) {
        const float* const of_page = largest.data() + page * n_queries * shape_.n_heads;
        for (std::size_t query = 0; query < n_queries; ++query) {
            for (std::size_t head = 0; head < shape_.n_heads; ++head) {
                ordered.push_back(of_page[(head / group * n_queries + query) * group + head % group]);
            }
        }
    }
    return ordered;
}

std::vector<float> KeyIndex::scores(std::span<const float> queries, std::span<const PageKeys> pages) {
    Products found = products(queries, pages);
    reach_over(found, pages.size());
    return normalised(found.largest, pages.size());
}

std::vector<float> KeyIndex::scores(std::span<const float> queries, std::span<const PageKeys> blocks,
                                    std::span<const std::size_t> ends) {
    assert(!ends.empty() && ends.back() == blocks.size());
    Products found = products(queries, blocks);
    reach_over(found, blocks.size());
    Floats& largest = found.largest;
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
