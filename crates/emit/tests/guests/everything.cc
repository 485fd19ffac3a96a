// Uses what makes cloning hard: exceptions through many frames, cleanups, rethrow, exception specifications, dense switches,
// virtual calls, tail calls, recursion, `loop` and `jrcxz`, locale-heavy library code. Prints what it computes.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

static uint64_t state = 88172645463325252ull;
static uint32_t rnd() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return uint32_t(state >> 11);
}

struct Loud {
    int &count;
    explicit Loud(int &c) : count(c) { ++count; }
    ~Loud() { --count; }
};

struct Shape {
    virtual ~Shape() = default;
    virtual long area(int scale) const = 0;
};
struct Square : Shape {
    long side;
    explicit Square(long s) : side(s) {}
    long area(int k) const override { return side * side * k; }
};
struct Line : Shape {
    long area(int k) const override {
        if (k > 6) throw std::domain_error("line of scale " + std::to_string(k));
        return k;
    }
};

static int live;

__attribute__((noinline)) long deep(int n, const Shape &s) {
    Loud loud(live);
    if (n == 0) return s.area(int(rnd() % 9));
    std::string ballast(size_t(n), 'x');
    long r = deep(n - 1, s);
    return r + long(ballast.size());
}

__attribute__((noinline)) long guarded(int n, const Shape &s) {
    try {
        return deep(n, s);
    } catch (const std::domain_error &e) {
        if (n % 3 == 0) throw std::runtime_error(std::string("again: ") + e.what());
        return -long(std::string(e.what()).size());
    }
}

__attribute__((noinline)) void only_int(int n) noexcept(false) {
    if (n % 2) throw n;
    if (n % 5 == 0) throw "text";
}

__attribute__((noinline)) long vm(const std::vector<uint8_t> &code, long a) {
    long acc = a, b = 1;
    for (size_t pc = 0; pc < code.size(); ++pc) {
        switch (code[pc]) {
        case 0: acc += b; break;
        case 1: acc -= b * 3; break;
        case 2: acc ^= acc << 3; break;
        case 3: b = acc & 0xff; break;
        case 4: if (acc & 1) pc += 1; break;
        case 5: acc = acc / (b | 1); break;
        case 6: std::swap(acc, b); break;
        case 7: acc += long(rnd() & 7); break;
        case 8: acc = ~acc; break;
        case 9: if (b == 77) throw std::out_of_range("vm"); break;
        case 10: b += 11; break;
        case 11: acc = acc > 1000000000000 ? 1 : acc * 5; break;
        default: acc += 1000;
        }
    }
    return acc;
}

__attribute__((noinline)) const char *name(int n) {
    switch (n) {
    case 10: return "ten";
    case 11: return "eleven";
    case 12: std::puts("dozen"); return "twelve";
    case 13: return "thirteen";
    case 14: return name(n - 1);
    case 15: return "fifteen";
    case 17: return "seventeen";
    default: return n < 0 ? "less" : "more";
    }
}

__attribute__((noinline)) uint64_t looped(uint64_t n) {
    uint64_t sum = 0;
    asm volatile("jrcxz 2f\n1: add %%rcx, %0\n loop 1b\n2:" : "+r"(sum), "+c"(n) : : "cc");
    return sum;
}

int main() {
    Square sq(5);
    Line line;
    long total = 0;
    for (int i = 0; i < 3000; ++i) {
        const Shape &s = i % 2 ? static_cast<const Shape &>(sq) : line;
        try {
            total += guarded(i % 17, s);
        } catch (const std::runtime_error &e) {
            total += long(std::string(e.what()).size()) * 1000;
        }
        try {
            only_int(int(rnd() % 30));
        } catch (int n) {
            total += n;
        } catch (const char *t) {
            total += t[0];
        }
    }
    std::printf("%ld live %d\n", total, live);

    for (int i = 0; i < 300; ++i) {
        std::vector<uint8_t> code(200);
        for (auto &c : code) c = uint8_t(rnd() % 14);
        try {
            total ^= vm(code, i);
        } catch (const std::exception &e) {
            total += e.what()[0];
        }
    }
    std::printf("%ld\n", total);

    for (int i = 8; i < 20; ++i) std::cout << name(i) << ' ' << looped(uint64_t(i - 8)) << '\n';
    std::map<std::string, std::vector<int>> words;
    std::istringstream in("the quick brown fox jumps over the lazy dog and the cat 12.5 -7 0x1f");
    for (std::string w; in >> w;) words[w].push_back(int(w.size()));
    std::regex re("([a-z]+)o([a-z]*)");
    for (auto &[w, n] : words) {
        std::smatch m;
        if (std::regex_match(w, m, re)) std::cout << m[1] << '/' << m[2] << ' ';
        std::cout << w << n.size() << '\n';
        try {
            std::cout << std::stod(w) << '\n';
        } catch (const std::invalid_argument &e) {
            std::cout << e.what() << '\n';
        }
    }
    std::vector<uint32_t> v(5000);
    std::generate(v.begin(), v.end(), rnd);
    std::sort(v.begin(), v.end(), std::greater<>());
    std::function<int(int)> fib = [&](int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); };
    std::cout << v[0] << ' ' << v[2500] << ' ' << fib(20) << std::endl;
    try {
        auto p = std::make_unique<Square>(3);
        throw std::string("last");
    } catch (const std::string &s) {
        std::cout << s << ' ' << live << std::endl;
    }
    return int(total & 0x3f);
}
