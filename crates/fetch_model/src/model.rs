//! The front end, one instruction after the other.

use crate::cache::Cache;
use crate::cpu::Cpu;
use crate::direction::{Predictor, mix};
use crate::step::{Flow, Step};
use addr::{Avma, AvmaRange};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The bits of an address in a page of 4 KiB, and of 2 MiB.
const PAGE: u32 = 12;
const HUGE: u32 = 21;
/// Pages of the two kinds have different numbers in the second-level TLB.
const OF_HUGE: u64 = 1 << 63;

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Events {
    /// Instructions executed.
    pub instructions: u64,
    /// Branches taken: jumps, calls and returns among them.
    pub taken_branches: u64,
    /// Lines fetched that were not in the first-level instruction cache.
    pub icache_misses: u64,
    /// Pages that were not in the first-level instruction TLB.
    pub itlb_misses: u64,
    /// Of these, those that were not in the second-level TLB either: the page tables are walked.
    pub itlb_walks: u64,
    /// Direct branches taken that were not in the branch target buffer.
    pub btb_misses: u64,
    /// Conditional branches that went the other way.
    pub direction_misses: u64,
    /// Indirect jumps and calls that led elsewhere.
    pub target_misses: u64,
    /// Returns that led elsewhere.
    pub return_misses: u64,
}

/// A front end and what it has seen.
#[derive(Clone, Debug)]
pub struct Model {
    line: u64,
    returns_most: usize,
    /// In pages of 2 MiB, rising.
    huge: Vec<AvmaRange>,
    icache: Cache<()>,
    itlb: Cache<()>,
    itlb_huge: Cache<()>,
    stlb: Cache<()>,
    btb: Cache<Avma>,
    targets: Cache<Avma>,
    direction: Predictor,
    returns: VecDeque<Avma>,
    /// What was fetched last, which is the most recently used of all.
    last_line: Option<u64>,
    last_page: Option<u64>,
    events: Events,
}

impl Model {
    /// One that has seen nothing. `huge` are the parts of memory that are in pages of 2 MiB; all else is in pages of 4 KiB.
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

    /// What has happened so far.
    #[must_use]
    pub fn events(&self) -> Events {
        self.events
    }

    /// Forgets what has happened; what is in the caches stays.
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
                // By the path where that is known, else where it led last.
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
        // Spread over the sets, so that how code is aligned does not decide how much there is room for.
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

    /// One instruction in each line of `bytes`, `rounds` times.
    fn sweep(from: u64, bytes: u64, rounds: usize) -> Vec<Step> {
        let lines: Vec<u64> = (from..from + bytes).step_by(64).collect();
        let next = lines.iter().cycle().skip(1);
        let round: Vec<Step> = lines.iter().zip(next).map(|(&a, &b)| step(a, 5, Flow::Jump, b)).collect();
        round.repeat(rounds)
    }

    #[test]
    fn what_fits_misses_once_and_what_does_not_always() {
        let fits = run(&sweep(0x10_0000, 32 << 10, 3), &[]);
        assert_eq!((fits.icache_misses, fits.itlb_misses, fits.itlb_walks), (512, 8, 8));
        let beyond = run(&sweep(0x10_0000, 36 << 10, 3), &[]);
        // Of 72 ways wanted in each set's 8, as 9 go round: none is found again.
        assert_eq!(beyond.icache_misses, 3 * 576);
        assert_eq!(beyond.instructions, 3 * 576);
        assert_eq!(beyond.taken_branches, 3 * 576);
    }

    #[test]
    fn pages_go_to_the_second_level_and_huge_ones_are_few() {
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
    fn returns_are_known_as_deep_as_the_stack_is() {
        for depth in [1u64, 16, 17, 40] {
            let call = |i: u64| step(0x1000 * i, 5, Flow::Call, 0x1000 * (i + 1));
            let back = |i: u64| step(0x1000 * (i + 1) + 8, 1, Flow::Return, 0x1000 * i + 5);
            let steps: Vec<Step> = (1..=depth).map(call).chain((1..=depth).rev().map(back)).collect();
            assert_eq!(run(&steps, &[]).return_misses, depth.saturating_sub(16), "{depth}");
        }
    }

    #[test]
    fn a_pointer_that_leads_elsewhere_is_a_miss() {
        let call = |to| step(0x2000, 2, Flow::IndirectCall(Pointer::Other), to);
        let back = |from: u64| step(from, 1, Flow::Return, 0x2002);
        let both = |to: u64| [call(to), back(to)];
        assert_eq!(run(&both(0x3000).repeat(50), &[]).target_misses, 1);
        // In turn: known once the path tells which of the two it is.
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
        // Of a thousand in 1280 sets of 4 hardly one set has five.
        assert!((1000..1100).contains(&fits.btb_misses), "{fits:?}");
        assert!(beyond.btb_misses > 4 * 39_000, "{beyond:?}");
    }

    /// Golden: a fixed path through 100 KiB of code, to the last event. Changes where the model does.
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
