// Templates of the library: maps, sorting with closures, strings, std::function, variants.
//#Lang: c++
//#Flags: -std=c++17
#include "guest.h"
#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

using Value = std::variant<uint64_t, std::string, std::vector<int>, char>;

APART uint64_t weigh(const Value &value) {
    return std::visit(
        [](const auto &v) -> uint64_t {
            using T = std::decay_t<decltype(v)>;
            if constexpr (std::is_same_v<T, uint64_t>) return v * 3;
            else if constexpr (std::is_same_v<T, char>) return static_cast<uint64_t>(v) + 7;
            else return v.size() + 11;
        },
        value);
}

APART Value make(uint64_t k) {
    switch (k % 4) {
    case 0: return k;
    case 1: return std::string(k % 40, 'x');
    case 2: return std::vector<int>(k % 9, 3);
    default: return static_cast<char>('a' + k % 26);
    }
}

static uint64_t round_once() {
    uint64_t r = guest_seed, x = 1;
    std::map<std::string, uint64_t> ordered;
    std::unordered_map<uint64_t, Value> hashed;
    std::vector<uint64_t> keys;
    for (int i = 0; i < 300; i++) {
        uint64_t k = next_random(&r);
        ordered["key " + std::to_string(k % 997)] += k;
        hashed[k % 499] = make(k >> 8);
        keys.push_back(k);
    }
    for (auto &[key, value] : ordered) x = mix(x, value + key.size());
    for (uint64_t k = 0; k < 499; k++)
        if (auto it = hashed.find(k); it != hashed.end()) x = mix(x, weigh(it->second));
    uint64_t turn = x;
    std::sort(keys.begin(), keys.end(), [turn](uint64_t a, uint64_t b) { return (a ^ turn) < (b ^ turn); });
    std::stable_sort(keys.begin(), keys.end(), [](uint64_t a, uint64_t b) { return a % 100 < b % 100; });
    std::vector<std::function<uint64_t(uint64_t)>> steps;
    for (int i = 0; i < 6; i++)
        steps.emplace_back(i % 2 ? std::function<uint64_t(uint64_t)>([i](uint64_t v) { return v * 3 + static_cast<uint64_t>(i); })
                                 : [x](uint64_t v) { return v ^ x; });
    for (uint64_t k : keys) x = mix(x, steps[k % 6](k));
    return x;
}

int main() { return guest_run("containers", round_once); }
