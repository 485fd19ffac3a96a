//! The model. It executes one instruction after the other.

use crate::cache::Cache;
use crate::cpu::Cpu;
use crate::direction::{Predictor, mix};
use crate::step::{Flow, Step};
use addr::{Avma, AvmaRange};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Bits of an offset within a page of 4 KiB, and within a page of 2 MiB.
const PAGE: u32 = 12;
const HUGE: u32 = 21;
/// Marks the numbers of 2 MiB pages, so that they differ from the numbers of 4 KiB pages in the second-level
/// TLB.
const OF_HUGE: u64 = 1 << 63;

/// Counted events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Events {
    /// Instructions executed.
    pub instructions: u64,
    /// Taken branches, including jumps, calls and returns.
    pub taken_branches: u64,
    /// Fetched lines that were not in the first-level instruction cache.
    pub icache_misses: u64,
    /// Pages that were not in the first-level instruction TLB.
    pub itlb_misses: u64,
    /// First-level misses that also missed the second-level TLB, so that the page tables are walked.
    pub itlb_walks: u64,
    /// Taken direct branches that were not in the branch target buffer with this destination.
    pub btb_misses: u64,
    /// Conditional branches whose direction was predicted wrong.
    pub direction_misses: u64,
    /// Indirect jumps and calls whose destination was not predicted.
    pub target_misses: u64,
    /// Returns whose destination was not predicted.
    pub return_misses: u64,
}

/// The state of the modelled CPU, and the events so far.
#[derive(Clone, Debug)]
pub struct Model {
    line: u64,
    returns_most: usize,
    /// Memory in pages of 2 MiB, by rising address.
    huge: Vec<AvmaRange>,
    icache: Cache<()>,
    itlb: Cache<()>,
    itlb_huge: Cache<()>,
    stlb: Cache<()>,
    btb: Cache<Avma>,
    targets: Cache<Avma>,
    direction: Predictor,
    returns: VecDeque<Avma>,
    /// The line and the page fetched last. Each is the most recently used entry, so fetching it again changes
    /// nothing.
    last_line: Option<u64>,
    last_page: Option<u64>,
    events: Events,
}

impl Model {
    /// Makes a model with empty caches. `huge` lists the memory in pages of 2 MiB; all other memory is in
    /// pages of 4 KiB.
    #[must_use]
    pub fn new(cpu: &Cpu, huge: &[AvmaRange]) -> Self {
        let mut huge = huge.to_vec();
        huge.sort_unstable();
        Self {
            line: u64::from(cpu.line.max(1)),
            returns_most: cpu.returns as usize,
            huge,
            icache: Cache::new(cpu.icache),
            itlb: Cache::new(cpu.itlb),
            itlb_huge: Cache::new(cpu.itlb_huge),
            stlb: Cache::new(cpu.stlb),
            btb: Cache::new(cpu.btb),
            targets: Cache::new(cpu.targets),
            direction: Predictor::new(&cpu.direction),
            returns: VecDeque::new(),
            last_line: None,
            last_page: None,
            events: Events::default(),
        }
    }

    /// Returns the events so far.
    #[must_use]
    pub fn events(&self) -> Events {
        self.events
    }

    /// Sets the events to 0. The contents of the caches stay.
    pub fn warmed_up(&mut self) {
        self.events = Events::default();
    }

    /// Executes an instruction.
    pub fn execute(&mut self, step: &Step) {
        self.events.instructions += 1;
        let last = step.at.0.saturating_add(u64::from(step.len.max(1)) - 1);
        for line in step.at.0 / self.line..=last / self.line {
            self.fetch(line);
        }
        self.branch(step);
    }

    fn fetch(&mut self, line: u64) {
        if self.last_line == Some(line) {
            return;
        }
        self.last_line = Some(line);
        let at = Avma(line.saturating_mul(self.line));
        let after = self.huge.partition_point(|r| r.start <= at);
        let huge = after.checked_sub(1).and_then(|i| self.huge.get(i)).is_some_and(|r| r.contains(at));
        let page = if huge { at.0 >> HUGE | OF_HUGE } else { at.0 >> PAGE };
        if self.last_page != Some(page) {
            self.last_page = Some(page);
            let first = if huge { &mut self.itlb_huge } else { &mut self.itlb };
            if first.put(page, ()).is_none() {
                self.events.itlb_misses += 1;
                if self.stlb.put(page, ()).is_none() {
                    self.events.itlb_walks += 1;
                }
            }
        }
        if self.icache.put(line, ()).is_none() {
            self.events.icache_misses += 1;
        }
    }

    fn branch(&mut self, step: &Step) {
        let (at, next) = (step.at, step.next);
        match step.flow {
            Flow::On => return,
            Flow::Conditional => {
                let taken = next != step.after();
                if self.direction.predict(at, taken) != taken {
                    self.events.direction_misses += 1;
                }
                if !taken {
                    return;
                }
                self.direct(at, next);
            }
            Flow::Jump | Flow::Call => self.direct(at, next),
            Flow::IndirectJump(_) | Flow::IndirectCall(_) => {
                // The destination is predicted by address and path if both are known, else by address alone.
                let by_path = mix(at.0 ^ mix(self.direction.path()));
                let known = self.btb.put(mix(at.0), next);
                if self.targets.put(by_path, next).or(known) != Some(next) {
                    self.events.target_misses += 1;
                }
            }
            Flow::Return => {
                if self.returns.pop_back() != Some(next) {
                    self.events.return_misses += 1;
                }
            }
        }
        if step.flow.is_call() {
            if self.returns.len() >= self.returns_most {
                self.returns.pop_front();
            }
            self.returns.push_back(step.after());
        }
        self.events.taken_branches += 1;
        self.direction.passed(at, next);
    }

    fn direct(&mut self, at: Avma, next: Avma) {
        // The hash spreads branches over the sets, so that the alignment of code does not decide how many
        // branches fit.
        if self.btb.put(mix(at.0), next) != Some(next) {
            self.events.btb_misses += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ICE_LAKE_SERVER;
    use crate::step::Pointer;
    use addr::Addr;

    fn step(at: u64, len: u8, flow: Flow, next: u64) -> Step {
        Step { at: Avma(at), len, flow, next: Avma(next) }
    }

    fn run(steps: &[Step], huge: &[AvmaRange]) -> Events {
        let mut model = Model::new(&ICE_LAKE_SERVER, huge);
        steps.iter().for_each(|s| model.execute(s));
        model.events()
    }

    /// Returns one jump in each line of `bytes` bytes, `rounds` times.
    fn sweep(from: u64, bytes: u64, rounds: usize) -> Vec<Step> {
        let lines: Vec<u64> = (from..from + bytes).step_by(64).collect();
        let next = lines.iter().cycle().skip(1);
        let round: Vec<Step> = lines.iter().zip(next).map(|(&a, &b)| step(a, 5, Flow::Jump, b)).collect();
        round.repeat(rounds)
    }

    #[test]
    fn code_that_fits_misses_once_and_larger_code_always() {
        let fits = run(&sweep(0x10_0000, 32 << 10, 3), &[]);
        assert_eq!((fits.icache_misses, fits.itlb_misses, fits.itlb_walks), (512, 8, 8));
        let beyond = run(&sweep(0x10_0000, 36 << 10, 3), &[]);
        // 9 lines go round in each set of 8 ways, so no line is found again.
        assert_eq!(beyond.icache_misses, 3 * 576);
        assert_eq!(beyond.instructions, 3 * 576);
        assert_eq!(beyond.taken_branches, 3 * 576);
    }

    #[test]
    fn small_pages_need_the_second_level_and_huge_pages_are_few() {
        let pages = |n: u64| sweep(0x4000_0000, n << 12, 3);
        let one = run(&pages(256), &[]);
        assert_eq!((one.itlb_misses, one.itlb_walks), (3 * 256, 256));
        let huge = run(&pages(1024), &[AvmaRange::with_len(Avma(0x4000_0000), 4 << 20)]);
        assert_eq!((huge.itlb_misses, huge.itlb_walks), (2, 2));
    }

    #[test]
    fn an_instruction_on_two_lines_fetches_both() {
        let steps = [step(0x103e, 4, Flow::On, 0x1042), step(0x1042, 2, Flow::On, 0x1044)];
        let e = run(&steps, &[]);
        assert_eq!((e.icache_misses, e.itlb_misses, e.instructions, e.taken_branches), (2, 1, 2, 0));
    }

    #[test]
    fn returns_are_predicted_up_to_the_depth_of_the_stack() {
        for depth in [1u64, 16, 17, 40] {
            let call = |i: u64| step(0x1000 * i, 5, Flow::Call, 0x1000 * (i + 1));
            let back = |i: u64| step(0x1000 * (i + 1) + 8, 1, Flow::Return, 0x1000 * i + 5);
            let steps: Vec<Step> = (1..=depth).map(call).chain((1..=depth).rev().map(back)).collect();
            assert_eq!(run(&steps, &[]).return_misses, depth.saturating_sub(16), "{depth}");
        }
    }

    #[test]
    fn a_changed_destination_of_a_pointer_is_a_miss() {
        let call = |to| step(0x2000, 2, Flow::IndirectCall(Pointer::Other), to);
        let back = |from: u64| step(from, 1, Flow::Return, 0x2002);
        let both = |to: u64| [call(to), back(to)];
        assert_eq!(run(&both(0x3000).repeat(50), &[]).target_misses, 1);
        // The destinations alternate: they are predicted once the path distinguishes them.
        let turns: Vec<Step> = [both(0x3000), both(0x4000)].concat().repeat(200);
        let misses = run(&turns, &[]).target_misses;
        assert!((2..100).contains(&misses), "{misses}");
    }

    #[test]
    fn the_branch_target_buffer_has_its_size() {
        let ring = |n: u64| {
            let jumps = (0..n).map(|i| step(64 * i, 5, Flow::Jump, 64 * ((i + 1) % n)));
            jumps.collect::<Vec<_>>().repeat(4)
        };
        let (fits, beyond) = (run(&ring(1000), &[]), run(&ring(40_000), &[]));
        // With 1000 branches in 1280 sets of 4 ways, hardly any set gets five.
        assert!((1000..1100).contains(&fits.btb_misses), "{fits:?}");
        assert!(beyond.btb_misses > 4 * 39_000, "{beyond:?}");
    }

    /// Golden test: all events of a fixed path through 100 KiB of code. They change when the model changes.
    #[test]
    fn a_fixed_path_gives_fixed_events() {
        let mut state = 7u64;
        let mut next = |n: u64| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(state) % n
        };
        let mut model = Model::new(&ICE_LAKE_SERVER, &[]);
        let mut stack = Vec::new();
        let mut at = Avma(0x40_0000);
        for _ in 0..100_000 {
            let far = Avma(0x40_0000 + next(1600) * 64);
            let s = match next(12) {
                0 => step(at.0, 5, Flow::Call, far.0),
                1 => step(at.0, 5, Flow::Jump, far.0),
                2 => step(at.0, 2, Flow::Conditional, if next(4) == 0 { far.0 } else { at.0 + 2 }),
                3 if !stack.is_empty() => step(at.0, 1, Flow::Return, stack.pop().unwrap_or(0)),
                4 => step(at.0, 3, Flow::IndirectCall(Pointer::Table), 0x40_0000 + next(2) * 64),
                _ => step(at.0, 4, Flow::On, at.0 + 4),
            };
            if s.flow.is_call() && stack.len() < 30 {
                stack.push(s.after().0);
            }
            model.execute(&s);
            at = s.next;
        }
        assert!(at.since(Avma(0x40_0000)).is_some());
        let wanted = Events {
            instructions: 100_000,
            taken_branches: 35_652,
            icache_misses: 13_101,
            itlb_misses: 25,
            itlb_walks: 25,
            btb_misses: 18_790,
            direction_misses: 2433,
            target_misses: 7812,
            return_misses: 5040,
        };
        assert_eq!(model.events(), wanted);
    }
}
