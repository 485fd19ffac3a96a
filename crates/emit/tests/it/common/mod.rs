//! Shared code of the tests: small graphs from bytes, an oracle that steps through original and clone side by
//! side, unwinding checks.
#![allow(dead_code, reason = "each test uses its own part")]
#![allow(clippy::unwrap_used, reason = "tests")]

pub mod graph;
pub mod program;
pub mod rng;
pub mod unwinding;
pub mod walk;

pub use rng::{Layouts, Rng};

use addr::Avma;
use code::{BlockId, Cfg, Liveness, Point};
use emit::{Counter, Function, Request, Unroll};

/// Returns a request for these functions alone: nothing else is cloned or known.
pub fn request(text_at: Avma, data_at: Avma, functions: Vec<Function<'_>>) -> Request<'_> {
    let stubs = Box::leak(Box::default());
    Request { text_at, data_at, functions, stubs, constant: &|_| None }
}

/// Returns random unroll factors for each loop that can be unrolled, and for a random range that perhaps
/// cannot.
pub fn unrolls(cfg: &Cfg, order: &[BlockId], rng: &mut Rng) -> Vec<Unroll> {
    let anything = Unroll { first: rng.below(order.len()), blocks: rng.below(4), copies: 1 };
    let loops = emit::loops(cfg, order).into_iter().chain([anything]);
    loops.map(|r| Unroll { copies: u32::try_from(rng.below(5)).unwrap(), ..r }).collect()
}

/// Returns counters at about half of the points of a function that can have one, from the offset `next` on.
pub fn counters(cfg: &Cfg, rng: &mut Rng, next: &mut u32) -> Vec<Counter> {
    let liveness = Liveness::compute(cfg);
    let mut points = Vec::new();
    for from in cfg.block_ids() {
        points.push(Point::Block(from));
        let mut index = 0;
        cfg.successors(from, |_| {
            points.push(Point::Edge { from, index });
            index += 1;
        });
    }
    let counter = |at: Point| {
        let spot = at.countable(cfg, &liveness).filter(|_| rng.coin())?;
        *next += 8;
        Some(Counter { at, spot, offset: *next - 8 })
    };
    points.into_iter().filter_map(counter).collect()
}
