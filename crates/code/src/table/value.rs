//! Value numbering: two places hold the same number only if they hold the same 64-bit value.
//!
//! Every value has 64 bits. Narrow values are the zero extensions of their low bits, so `cmp cl, 9` and
//! `movzx eax, cl` use the same value. Arithmetic is modulo 2^64. A truncated operand is brought to a normal
//! form: everything that cannot change the remaining bits is removed.

use rustc_hash::FxHashMap;

/// A value's number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct V(u32);

/// The form of a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Node {
    Const(u64),
    /// Unknown; the number makes it distinct from others.
    Opaque(u32),
    /// Unknown, except for an upper bound that follows from its origin; the number makes it distinct from
    /// others.
    Upto(u32, u64),
    /// One of two values, unknown which; the number makes it distinct from others.
    Either(u32, V, V),
    /// The value with some unknown bits cleared; the number makes it distinct from others.
    Cleared(u32, V),
    /// The result of the load with this number, zero-extended from this many bytes.
    Load(u32, u8),
    /// The low bits, zero-extended.
    Zext(V, u8),
    /// The low bits, sign-extended.
    Sext(V, u8),
    /// The first value with its low bits replaced by those of the second.
    Merge(V, V, u8),
    Add(V, u64),
    Sum(V, V),
    Shl(V, u8),
    Shr(V, u8),
    And(V, u64),
}

/// All values of one evaluation, with the facts from branches.
#[derive(Default)]
pub(super) struct Values {
    nodes: Vec<Node>,
    numbers: FxHashMap<Node, V>,
    opaque: u32,
    /// Upper bounds, unsigned and inclusive, from conditional branches.
    facts: FxHashMap<V, u64>,
}

pub(super) fn mask(bits: u8) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

fn sign_extend(x: u64, bits: u8) -> u64 {
    if bits >= 64 {
        return x;
    }
    let s = 64 - u32::from(bits);
    ((x << s).cast_signed() >> s).cast_unsigned()
}

impl Values {
    pub(super) fn clear(&mut self) {
        self.nodes.clear();
        self.numbers.clear();
        self.facts.clear();
        self.opaque = 0;
    }

    pub(super) fn node(&self, v: V) -> Node {
        self.nodes[v.0 as usize]
    }

    fn number(&mut self, n: Node) -> V {
        if let Some(&v) = self.numbers.get(&n) {
            return v;
        }
        // A function has fewer instructions than 2^18, and each makes only a few values.
        let v = V(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        self.nodes.push(n);
        self.numbers.insert(n, v);
        v
    }

    pub(super) fn constant(&mut self, c: u64) -> V {
        self.number(Node::Const(c))
    }

    pub(super) fn as_const(&self, v: V) -> Option<u64> {
        match self.node(v) {
            Node::Const(c) => Some(c),
            _ => None,
        }
    }

    pub(super) fn unknown(&mut self) -> V {
        self.opaque += 1;
        self.number(Node::Opaque(self.opaque))
    }

    /// Returns a new unknown value with an upper bound of its own, independent of branches.
    pub(super) fn upto(&mut self, max: u64) -> V {
        self.opaque += 1;
        self.number(Node::Upto(self.opaque, max))
    }

    /// Returns a new value that is one of two.
    pub(super) fn either(&mut self, a: V, b: V) -> V {
        if a == b {
            return a;
        }
        self.opaque += 1;
        self.number(Node::Either(self.opaque, a, b))
    }

    /// Returns a new value: `v` with some bits cleared.
    pub(super) fn cleared(&mut self, v: V) -> V {
        self.opaque += 1;
        self.number(Node::Cleared(self.opaque, v))
    }

    pub(super) fn load(&mut self, id: u32, bytes: u8) -> V {
        self.number(Node::Load(id, bytes))
    }

    pub(super) fn zext(&mut self, v: V, bits: u8) -> V {
        if bits >= 64 {
            return v;
        }
        let v = self.low(v, bits);
        if let Node::Const(c) = self.node(v) {
            return self.constant(c & mask(bits));
        }
        if self.width_bound(v) <= mask(bits) {
            return v;
        }
        self.number(Node::Zext(v, bits))
    }

    pub(super) fn sext(&mut self, v: V, bits: u8) -> V {
        if bits >= 64 {
            return v;
        }
        let v = self.low(v, bits);
        if let Node::Const(c) = self.node(v) {
            return self.constant(sign_extend(c, bits));
        }
        if self.width_bound(v) <= mask(bits - 1) {
            return v;
        }
        self.number(Node::Sext(v, bits))
    }

    /// Returns the normal form of all values that agree with `v` in the low bits.
    fn low(&mut self, v: V, bits: u8) -> V {
        match self.node(v) {
            Node::Zext(x, b) | Node::Sext(x, b) if b >= bits => self.low(x, bits),
            Node::Merge(_, n, b) if b >= bits => self.low(n, bits),
            Node::Add(x, c) => {
                let x = self.low(x, bits);
                self.add(x, sign_extend(c & mask(bits), bits))
            }
            Node::Sum(a, b) => {
                let (a, b) = (self.low(a, bits), self.low(b, bits));
                self.sum(a, b)
            }
            Node::Shl(x, k) => {
                let x = self.low(x, bits);
                self.shl(x, k)
            }
            Node::And(x, m) => {
                let x = self.low(x, bits);
                if m & mask(bits) == mask(bits) { x } else { self.and(x, m & mask(bits)) }
            }
            _ => v,
        }
    }

    pub(super) fn add(&mut self, v: V, c: u64) -> V {
        if c == 0 {
            return v;
        }
        match self.node(v) {
            Node::Const(x) => self.constant(x.wrapping_add(c)),
            Node::Add(x, d) => self.add(x, d.wrapping_add(c)),
            _ => self.number(Node::Add(v, c)),
        }
    }

    pub(super) fn sum(&mut self, a: V, b: V) -> V {
        match (self.node(a), self.node(b)) {
            (Node::Const(c), _) => self.add(b, c),
            (_, Node::Const(c)) => self.add(a, c),
            (Node::Add(x, c), _) => {
                let s = self.sum(x, b);
                self.add(s, c)
            }
            (_, Node::Add(x, c)) => {
                let s = self.sum(a, x);
                self.add(s, c)
            }
            _ if a == b => self.shl(a, 1),
            _ => self.number(Node::Sum(a.min(b), a.max(b))),
        }
    }

    pub(super) fn shl(&mut self, v: V, k: u8) -> V {
        match self.node(v) {
            _ if k == 0 => v,
            _ if k >= 64 => self.constant(0),
            Node::Const(c) => self.constant(c << k),
            Node::Shl(x, j) => self.shl(x, j.saturating_add(k)),
            _ => self.number(Node::Shl(v, k)),
        }
    }

    pub(super) fn shr(&mut self, v: V, k: u8) -> V {
        match self.node(v) {
            _ if k == 0 => v,
            _ if k >= 64 => self.constant(0),
            Node::Const(c) => self.constant(c >> k),
            _ => self.number(Node::Shr(v, k)),
        }
    }

    pub(super) fn and(&mut self, v: V, m: u64) -> V {
        match self.node(v) {
            Node::Const(c) => self.constant(c & m),
            Node::And(x, n) => self.and(x, n & m),
            _ if self.width_bound(v) & !m == 0 && (m.wrapping_add(1)).is_power_of_two() => v,
            _ if m == 0 => self.constant(0),
            _ => self.number(Node::And(v, m)),
        }
    }

    /// Returns `old` with its low bits replaced.
    pub(super) fn merge(&mut self, old: V, new: V, bits: u8) -> V {
        let new = self.zext(new, bits);
        self.number(Node::Merge(old, new, bits))
    }

    /// Returns the facts from branches so far.
    pub(super) fn facts(&self) -> FxHashMap<V, u64> {
        self.facts.clone()
    }

    /// Restores earlier facts from branches.
    pub(super) fn set_facts(&mut self, facts: FxHashMap<V, u64>) {
        self.facts = facts;
    }

    /// Adds a fact from a branch: `v <= bound`.
    pub(super) fn learn(&mut self, v: V, bound: u64) {
        let b = self.facts.entry(v).or_insert(bound);
        *b = bound.min(*b);
    }

    /// Returns the greatest value that the form of `v` allows, without facts from branches.
    pub(super) fn width_bound(&self, v: V) -> u64 {
        self.bound_by(v, &|_| u64::MAX, 0)
    }

    /// Returns the greatest value that `v` can have. Unsigned, inclusive.
    pub(super) fn bound(&self, v: V) -> u64 {
        self.bound_by(v, &|v| self.facts.get(&v).copied().unwrap_or(u64::MAX), 0)
    }

    fn bound_by(&self, v: V, fact: &dyn Fn(V) -> u64, depth: u32) -> u64 {
        if depth > 16 {
            return u64::MAX;
        }
        let of = |x| self.bound_by(x, fact, depth + 1);
        let by_form = match self.node(v) {
            Node::Const(c) => c,
            Node::Opaque(_) | Node::Merge(..) => u64::MAX,
            Node::Upto(_, max) => max,
            Node::Either(_, a, b) => of(a).max(of(b)),
            Node::Cleared(_, x) => of(x),
            Node::Load(_, bytes) => mask(bytes.saturating_mul(8)),
            Node::Zext(x, b) => Some(of(x)).filter(|&m| m <= mask(b)).unwrap_or(mask(b)),
            // If the zero extension is known to be small, the value is not negative, and both extensions are
            // equal.
            Node::Sext(x, b) => self
                .numbers
                .get(&Node::Zext(x, b))
                .map(|&z| of(z))
                .filter(|&m| m <= mask(b - 1))
                .unwrap_or_else(|| Some(of(x)).filter(|&m| m <= mask(b - 1)).unwrap_or(u64::MAX)),
            Node::Add(x, c) => of(x).saturating_add(c),
            Node::Sum(a, b) => of(a).saturating_add(of(b)),
            Node::Shl(x, k) => of(x).saturating_mul(1 << k.min(63)),
            Node::Shr(x, k) => of(x) >> k.min(63),
            Node::And(x, m) => of(x).min(m),
        };
        by_form.min(fact(v))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interprets a number: returns its value, given each unknown.
    fn value(vs: &Values, v: V, unknown: &[u64]) -> u64 {
        let of = |x| value(vs, x, unknown);
        match vs.node(v) {
            Node::Const(c) => c,
            Node::Opaque(n) => unknown[n as usize % unknown.len()],
            Node::Upto(n, max) => max.min(unknown[n as usize % unknown.len()]),
            Node::Either(n, a, b) => {
                if unknown[n as usize % unknown.len()] & 1 == 0 {
                    of(a)
                } else {
                    of(b)
                }
            }
            Node::Cleared(n, x) => of(x) & unknown[n as usize % unknown.len()],
            Node::Load(_, b) => mask(b * 8),
            Node::Zext(x, b) => of(x) & mask(b),
            Node::Sext(x, b) => sign_extend(of(x), b),
            Node::Merge(o, n, b) => (of(o) & !mask(b)) | (of(n) & mask(b)),
            Node::Add(x, c) => of(x).wrapping_add(c),
            Node::Sum(a, b) => of(a).wrapping_add(of(b)),
            Node::Shl(x, k) => of(x) << k,
            Node::Shr(x, k) => of(x) >> k,
            Node::And(x, m) => of(x) & m,
        }
    }

    #[test]
    fn forms_keep_their_values() {
        // Random programs: the normal forms have the values of plain arithmetic, and the bounds hold.
        arbtest::arbtest(|u| {
            let mut vs = Values::default();
            let unknown: [u64; 3] = u.arbitrary()?;
            let mut plain: Vec<(V, u64)> = Vec::new();
            for _ in 0..3 {
                let v = vs.unknown();
                plain.push((v, value(&vs, v, &unknown)));
            }
            for _ in 0..12 {
                let &(a, x) = u.choose(&plain)?;
                let &(b, y) = u.choose(&plain)?;
                let bits = *u.choose(&[8u8, 16, 32])?;
                let k = u.int_in_range(0..=9u8)?;
                let c: u64 = if u.arbitrary()? { u64::from(u.arbitrary::<u8>()?) } else { u.arbitrary()? };
                plain.push(match u.int_in_range(0..=10u8)? {
                    0 => (vs.zext(a, bits), x & mask(bits)),
                    1 => (vs.sext(a, bits), sign_extend(x, bits)),
                    2 => (vs.add(a, c), x.wrapping_add(c)),
                    3 => (vs.sum(a, b), x.wrapping_add(y)),
                    4 => (vs.shl(a, k), x << k),
                    5 => (vs.shr(a, k), x >> k),
                    6 => (vs.and(a, c), x & c),
                    7 => {
                        let v = vs.upto(c);
                        (v, value(&vs, v, &unknown))
                    }
                    8 => {
                        let v = vs.either(a, b);
                        (v, value(&vs, v, &unknown))
                    }
                    9 => {
                        let v = vs.cleared(a);
                        (v, value(&vs, v, &unknown))
                    }
                    _ => (vs.merge(a, b, bits), (x & !mask(bits)) | (y & mask(bits))),
                });
                let &(v, x) = plain.last().unwrap();
                assert_eq!(value(&vs, v, &unknown), x);
                assert!(vs.bound(v) >= x, "{:?} {x:#x}", vs.node(v));
                // A true fact keeps all bounds true.
                if u.arbitrary()? {
                    vs.learn(v, x.saturating_add(u64::from(u.arbitrary::<u8>()?)));
                    for &(v, x) in &plain {
                        assert!(vs.bound(v) >= x);
                    }
                }
            }
            Ok(())
        })
        .budget_ms(1000);
    }

    #[test]
    fn two_ways_to_one_value_give_one_number() {
        let mut vs = Values::default();
        let rax = vs.unknown();
        // lea ecx,[rax-0x30]; cmp cl,9; ja; movzx ecx,cl
        let ecx = vs.add(rax, 0x30u64.wrapping_neg());
        let ecx = vs.zext(ecx, 32);
        let compared = vs.zext(ecx, 8);
        vs.learn(compared, 9);
        let index = vs.zext(ecx, 8);
        assert_eq!(vs.bound(index), 9);
        // But this does not bound the 32-bit value.
        assert_eq!(vs.bound(ecx), 0xffff_ffff);
        // movsxd of a value known to be small.
        let edi = vs.unknown();
        let low = vs.zext(edi, 32);
        let wide = vs.sext(edi, 32);
        assert_eq!(vs.bound(wide), u64::MAX);
        vs.learn(low, 5);
        assert_eq!(vs.bound(wide), 5);
        assert_eq!(vs.bound(edi), u64::MAX);
    }
}
