// Calls of very small functions: getters, setters and constants. They are called directly, and through
// virtual tables that are always the same, nearly always the same, or mixed; some of the callees throw. Other
// callees have a short path that is nearly always taken, and long paths that call, throw and continue.
//#Lang: c++
#include "guest.h"
#include <memory>
#include <stdexcept>
#include <vector>

static uint64_t limits[4] = {3, 5, 7, 11};
static uint64_t written;
static double factor = 1.25;

struct Point {
    uint64_t x, y;
    double weight;
};

// Small leaves.
APART uint64_t constant() { return 0x51deu; }
APART uint64_t field(const Point *p) { return p->y; }
APART uint64_t *inside(Point *p) { return &p->x; }
APART uint64_t from_data() { return limits[2]; }
APART void to_data(uint64_t x) { written = x; }
APART void add_to_data(uint64_t x) { written += x; }
APART void nothing() {}
APART uint64_t sum(uint64_t a, uint64_t b) { return a * 3 + b; }
APART bool is_small(uint64_t a) { return a < 1000; }
APART double scaled(const Point *p) { return p->weight * factor; }

// Callees with short and long paths.
struct Words {
    uint64_t *words;
    uint64_t count, misses;
};
APART uint64_t out_of_range(Words *w, uint64_t i) {
    w->misses++;
    if (i % 3 == 0) throw std::out_of_range("word");
    return mix(i, w->misses);
}
APART uint64_t at(Words *w, uint64_t i) { return i < w->count ? w->words[i] : out_of_range(w, i); }
APART void put(Words *w, uint64_t i, uint64_t x) {
    if (i >= w->count) {
        // Only this path has a frame of its own.
        uint64_t near[4] = {x, i, w->count, w->misses};
        for (unsigned k = 0; k < 4; k++) w->misses += out_of_range(w, near[k] | 1) & 3;
        return;
    }
    w->words[i] = x;
}
APART bool same_point(const Point *a, const Point *b) { return a->x == b->x && a->y == b->y && a->weight == b->weight; }
APART uint64_t larger(uint64_t a, uint64_t b) {
    if (a > b) return a;
    return b;
}
APART int sign(int64_t x) {
    if (x == 0) return 0;
    if (x < 0) return -1;
    return 1;
}

struct Node {
    uint64_t value = 1;
    static int alive;
    Node() { alive++; }
    virtual ~Node() { alive--; }
    virtual uint64_t kind() const { return 1; }
    virtual uint64_t get() const { return value; }
    virtual void set(uint64_t v) { value = v; }
    virtual uint64_t data() const { return limits[0]; }
    virtual void idle() {}
    virtual double share() const { return factor; }
    virtual uint64_t work(uint64_t x) { return mix(x, value); }
    virtual uint64_t many(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g) {
        return mix(mix(a ^ b, c ^ d), mix(e ^ f, g));
    }
    virtual uint64_t risky(uint64_t x) {
        if (x % 5 == 0) throw x;
        return x + 1;
    }
};
int Node::alive;

struct Left : Node {
    uint64_t other = 9;
    uint64_t kind() const override { return 2; }
    uint64_t get() const override { return other; }
    void set(uint64_t v) override { other = v ^ 1; }
    uint64_t data() const override { return limits[1]; }
    void idle() override { written++; }
    double share() const override { return 2.5; }
    uint64_t work(uint64_t x) override { return mix(x, other) + 1; }
    uint64_t risky(uint64_t x) override {
        if (x % 7 == 0) throw std::runtime_error("left");
        return x + 2;
    }
};

struct Right : Node {
    uint64_t kind() const override { return value ^ 3; }
    uint64_t get() const override { return value * 5 + limits[3]; }
    uint64_t work(uint64_t x) override { return x - value; }
    uint64_t many(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g) override {
        return a + b * 2 + c * 3 + d * 4 + e * 5 + f * 6 + g * 7;
    }
};

struct Cleanup {
    uint64_t &to;
    explicit Cleanup(uint64_t &t) : to(t) {}
    ~Cleanup() { to = mix(to, 0xc1ea); }
};

APART uint64_t direct(Point &p, uint64_t x) {
    for (unsigned i = 0; i < 8; i++) {
        x = mix(x, constant() + field(&p));
        nothing();
        to_data(x);
        *inside(&p) += from_data();
        add_to_data(p.x);
        nothing();
        x = mix(x, sum(x, written));
        p.y = x >> 7;
        if (is_small(x & 2047)) x++;
        p.weight = scaled(&p) / (1 + static_cast<double>(constant() & 1));
        if (p.weight > 1e6) p.weight = 1;
    }
    return mix(x, static_cast<uint64_t>(p.weight * 1024));
}

APART uint64_t by_ways(Words &w, uint64_t x) {
    Point a = {x, 1, 2.5}, b = a;
    for (unsigned i = 0; i < 70; i++) {
        uint64_t cleaned = x;
        // From time to time the index is beyond the end.
        uint64_t place = i % 35 == 0 ? w.count + x % 7 : x % w.count;
        try {
            Cleanup cleanup(cleaned);
            x = mix(x, at(&w, place));
            put(&w, place, x);
        } catch (const std::out_of_range &e) {
            x = mix(x, strlen(e.what()));
        }
        x = larger(x, cleaned);
        if (i % 50 == 49) b.y ^= x;
        if (same_point(&a, &b)) x++;
        x += static_cast<uint64_t>(2 + sign(static_cast<int64_t>(i % 40) - 1));
    }
    return mix(x, w.misses);
}

// Consecutive calls. Nothing between them sets flags that could be taken for those of a guard.
APART uint64_t look(Node &n, uint64_t x) {
    n.set(x >> 3);
    n.idle();
    x = mix(x, n.kind());
    x = mix(x, n.get());
    x = mix(x, n.data());
    return x + static_cast<uint64_t>(n.share() * 4);
}

APART uint64_t use(Node &n, uint64_t x) {
    x = n.work(x);
    return n.many(x, 2, x >> 5, 4, 5, x >> 9, x >> 13);
}

APART uint64_t dare(Node &n, uint64_t x) {
    uint64_t cleaned = x;
    try {
        Cleanup cleanup(cleaned);
        x = n.risky(x);
        x = mix(x, n.risky(x));
    } catch (uint64_t thrown) {
        x = mix(thrown, n.kind());
    } catch (const std::exception &e) {
        x = mix(x, strlen(e.what()));
    }
    return mix(x, cleaned);
}

// Each mixture of kinds has call sites of its own.
template <int kind> APART uint64_t one_way(const std::vector<std::unique_ptr<Node>> &nodes, uint64_t x) {
    for (auto &n : nodes) {
        x = mix(x, n->kind());
        x = mix(x, n->get());
        n->set(x >> (kind + 1));
        n->idle();
        x = n->work(x);
    }
    return x;
}

static std::vector<std::unique_ptr<Node>> nodes_of(int kind) {
    std::vector<std::unique_ptr<Node>> nodes;
    uint64_t r = guest_seed;
    for (unsigned i = 0; i < 200; i++) {
        uint64_t which = kind == 0 ? 9 : kind == 1 ? next_random(&r) % 20 : next_random(&r) % 3;
        switch (which) {
        case 0: nodes.push_back(std::make_unique<Left>()); break;
        case 1: nodes.push_back(std::make_unique<Right>()); break;
        default: nodes.push_back(std::make_unique<Node>());
        }
    }
    return nodes;
}

static uint64_t round_once() {
    uint64_t x = 1;
    Point p = {1, 2, 1.5};
    written = 0;
    for (int i = 0; i < 50; i++) x = direct(p, x);
    uint64_t words[64] = {};
    Words w = {words, 64, 0};
    for (int i = 0; i < 20; i++) x = by_ways(w, x);
    for (int kind = 0; kind < 3; kind++) {
        auto nodes = nodes_of(kind);
        for (int i = 0; i < 5; i++) {
            x = kind == 0 ? one_way<0>(nodes, x) : kind == 1 ? one_way<1>(nodes, x) : one_way<2>(nodes, x);
            for (auto &n : nodes) x = use(*n, look(*n, x));
        }
        for (unsigned i = 0; i < nodes.size(); i += 9) x = dare(*nodes[i], x);
    }
    CHECK(Node::alive == 0);
    return mix(x, written);
}

int main() { return guest_run("inlining", round_once); }
