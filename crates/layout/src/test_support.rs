//! Shared code of the tests of orders.

/// A small random generator (xorshift): the same graphs on every machine.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }

    pub(crate) fn index(&mut self, n: usize) -> usize {
        usize::try_from(self.below(n as u64)).unwrap()
    }
}

/// Visits every order of the elements from index `k` on.
pub(crate) fn permutations(order: &mut Vec<usize>, k: usize, visit: &mut dyn FnMut(&[usize])) {
    if k == order.len() {
        visit(order);
    }
    for i in k..order.len() {
        order.swap(k, i);
        permutations(order, k + 1, visit);
        order.swap(k, i);
    }
}
