//! Match tables, enums with payloads, trait objects and iterators.
//#Lang: rust

#[path = "support/guest.rs"]
mod guest;

use guest::{mix, next_random};
use std::collections::{BTreeMap, HashMap};

enum Op {
    Add(u64),
    Mul(u32),
    Xor { with: u64, turn: u32 },
    Not,
    Swap,
    Shift(u8),
    Call(Box<dyn Step>),
    Text(String),
}

trait Step {
    fn step(&self, x: u64) -> u64;
    fn twice(&self, x: u64) -> u64 {
        self.step(self.step(x))
    }
}

struct Plus(u64);
struct Times(u64);
struct Both(Plus, Times);

impl Step for Plus {
    fn step(&self, x: u64) -> u64 {
        x.wrapping_add(self.0)
    }
}
impl Step for Times {
    fn step(&self, x: u64) -> u64 {
        x.wrapping_mul(self.0 | 1)
    }
    fn twice(&self, x: u64) -> u64 {
        self.step(x) ^ 1
    }
}
impl Step for Both {
    fn step(&self, x: u64) -> u64 {
        self.1.step(self.0.step(x))
    }
}

#[inline(never)]
fn execute(ops: &[Op], mut x: u64) -> u64 {
    let mut y = 9;
    for op in ops {
        x = match op {
            Op::Add(n) => x.wrapping_add(*n),
            Op::Mul(n) => x.wrapping_mul(u64::from(*n) | 1),
            Op::Xor { with, turn } => (x ^ with).rotate_left(*turn),
            Op::Not => !x,
            Op::Swap => std::mem::replace(&mut y, x),
            Op::Shift(n @ 0..=20) => x >> n,
            Op::Shift(n) => x << (n % 64),
            Op::Call(step) => step.twice(x),
            Op::Text(s) => mix(x, s.bytes().map(u64::from).sum()),
        };
    }
    mix(x, y)
}

#[inline(never)]
fn classify(c: char) -> u64 {
    match c {
        'a' | 'e' | 'i' | 'o' | 'u' => 1,
        'b'..='d' => 2,
        'f'..='h' => 3,
        'j' => 4,
        'k'..='n' => 5,
        'p' | 'q' => 6,
        'r' => 7,
        's' => 8,
        't' => 9,
        '0'..='9' => 10,
        ' ' => 11,
        'é' => 12,
        _ => 13,
    }
}

fn make(k: u64) -> Op {
    match k % 10 {
        0 => Op::Add(k),
        1 => Op::Mul(k as u32),
        2 => Op::Xor { with: k, turn: (k >> 8) as u32 % 64 },
        3 => Op::Not,
        4 => Op::Swap,
        5 => Op::Shift((k >> 9) as u8 % 60),
        6 => Op::Call(Box::new(Plus(k))),
        7 => Op::Call(Box::new(Times(k))),
        8 => Op::Call(Box::new(Both(Plus(k), Times(k >> 3)))),
        _ => Op::Text(format!("{k:x} é")),
    }
}

fn round() -> u64 {
    let mut r = guest::seed();
    let mut x = 1;
    for _ in 0..60 {
        let ops: Vec<Op> = (0..40).map(|_| make(next_random(&mut r))).collect();
        for _ in 0..5 {
            x = execute(&ops, x);
        }
        let text = format!("{x:x} klmnop qrst ueé {r}");
        x = text.chars().fold(x, |x, c| mix(x, classify(c)));
        let mut sorted: BTreeMap<u64, usize> = BTreeMap::new();
        let mut hashed: HashMap<u64, u64> = HashMap::new();
        for (i, word) in text.split(' ').enumerate() {
            sorted.insert(word.len() as u64, i);
            *hashed.entry(word.len() as u64).or_default() += 1;
        }
        x = sorted.iter().fold(x, |x, (k, v)| mix(x, k + *v as u64));
        x = mix(x, hashed.values().sum());
    }
    x
}

fn main() {
    guest::run("matches", round);
}
