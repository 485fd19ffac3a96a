//! The hash of a function's graph, which shows whether the function is still the same.

use addr::Addr;
use code::{BlockId, Cfg, Dest, InstBytes};

/// Returns a hash that is equal for graphs whose counts fit each other. Such graphs have the same bytes,
/// divided into the same blocks, with the same edges between them, all relative to the entry. The hash is
/// FNV-1a, 64 bits (<http://www.isthe.com/chongo/tech/comp/fnv/>). Its value is kept in files, so it must
/// never change.
#[must_use]
pub fn hash(cfg: &Cfg) -> u64 {
    let mut sum = Fnv::new();
    for (block, id) in cfg.blocks.iter().zip(0u32..) {
        sum.number(block.range.start.distance(cfg.entry));
        sum.add(&[u8::from(block.landing_pad)]);
        for inst in cfg.insts_of(BlockId(id)) {
            sum.inst(inst.bytes);
        }
        cfg.successors(BlockId(id), |dest| sum.number(offset(cfg, dest)));
    }
    sum.0
}

/// Returns the distance of a destination from the entry, in bytes.
pub(super) fn offset(cfg: &Cfg, dest: Dest) -> i64 {
    let at = match dest {
        Dest::Block(b) => cfg.blocks.get(b.index()).map_or(cfg.entry, |b| b.range.start),
        Dest::Outside(at) => at,
    };
    at.distance(cfg.entry)
}

pub(super) struct Fnv(pub(super) u64);

impl Fnv {
    pub(super) fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.0 = (self.0 ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
        }
    }

    fn number(&mut self, n: i64) {
        self.add(&n.to_le_bytes());
    }

    fn inst(&mut self, bytes: InstBytes) {
        self.add(bytes.as_slice());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_fnv_1a() {
        let mut sum = Fnv::new();
        sum.add(b"foobar");
        assert_eq!(sum.0, 0x8594_4171_f739_67e8);
    }
}
