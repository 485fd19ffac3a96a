use super::*;
use crate::{Piece, sweep};
use std::collections::{BTreeMap, BTreeSet};

/// A module of 64 KiB of `nop` at 0, with FDEs and branches added.
#[derive(Default)]
struct Module {
    fdes: Vec<Fde>,
    code: Vec<(u64, Vec<u8>)>,
    names: BTreeMap<u64, &'static str>,
    /// Starts of FDEs whose first frame is not an entry's.
    framed: BTreeSet<u64>,
    taken: BTreeSet<u64>,
    far_pads: Vec<(usize, Avma)>,
    plt: Vec<AvmaRange>,
}

impl Module {
    fn new(starts: &[u64]) -> Self {
        let fdes = starts.iter().map(|s| fde(*s, s + 0x100)).collect();
        Self { fdes, ..Self::default() }
    }

    fn branch(mut self, op: u8, from: u64, to: u64) -> Self {
        let distance = i32::try_from(to.cast_signed() - from.cast_signed() - 5).unwrap();
        self.code.push((from, [&[op][..], &distance.to_le_bytes()].concat()));
        self
    }

    fn jmp(self, from: u64, to: u64) -> Self {
        self.branch(0xe9, from, to)
    }

    fn call(self, from: u64, to: u64) -> Self {
        self.branch(0xe8, from, to)
    }

    fn framed(mut self, at: u64) -> Self {
        self.framed.insert(at);
        self
    }

    fn name(mut self, at: u64, name: &'static str) -> Self {
        self.names.insert(at, name);
        self
    }

    fn merge(&self) -> Extents {
        let mut bytes = vec![0x90; 0x1_0000];
        for (at, code) in &self.code {
            let at = usize::try_from(*at).unwrap();
            bytes[at..at + code.len()].copy_from_slice(code);
        }
        let text = AvmaRange::with_len(Avma(0), bytes.len() as u64);
        let branches = sweep(&Piece::cut(text, &bytes, self.fdes.iter().map(|f| f.range)));
        merge(&MergeInput {
            fdes: &self.fdes,
            starts_like_entry: &|i| !self.framed.contains(&self.fdes[i].range.start.0),
            branches: &branches,
            name: &|at| self.names.get(&at.0).copied(),
            is_address_taken: &|at| self.taken.contains(&at.0),
            symbols_in: &|r| self.names.range(r.start.0..r.end.0).map(|n| Avma(*n.0)).collect(),
            far_pads: &self.far_pads,
            plt: &self.plt,
        })
    }

    /// Returns the starts of the parts of each function.
    fn parts(&self) -> Vec<Vec<u64>> {
        self.merge().functions.iter().map(|f| f.parts.iter().map(|p| p.start.0).collect()).collect()
    }
}

fn fde(start: u64, end: u64) -> Fde {
    Fde {
        range: AvmaRange::new(Avma(start), Avma(end)),
        personality: None,
        lsda: None,
        signal_frame: false,
        offset: start,
    }
}

const P: u64 = 0x1000;
const Q: u64 = 0x2000;
const COLD: u64 = 0x5000;

#[test]
fn joined_by_a_jump_from_one_parent() {
    // To the start or to the middle, with the frame of an entry or not, and back again.
    let base = || Module::new(&[P, Q, COLD]).call(Q, P);
    assert_eq!(base().framed(COLD).jmp(P + 8, COLD).parts(), [vec![P, COLD], vec![Q]]);
    assert_eq!(
        base().framed(COLD).jmp(P + 8, COLD + 9).jmp(COLD + 0x20, P + 1).parts(),
        [vec![P, COLD], vec![Q]]
    );
    assert_eq!(base().jmp(P + 8, COLD).jmp(P + 16, COLD + 7).parts(), [vec![P, COLD], vec![Q]]);
    let e = base().jmp(P + 8, COLD).merge();
    assert_eq!((e.functions[0].entry, &e.functions[0].fdes[..]), (Avma(P), &[0, 2][..]));
    assert!(!e.functions[0].multiple_entries() && !e.functions[0].plt);
}

#[test]
fn a_cold_part_may_have_a_cold_part() {
    let m = Module::new(&[P, COLD, 0x6000])
        .jmp(P, COLD)
        .jmp(COLD, 0x6000)
        .jmp(0x6010, COLD + 1)
        .jmp(P + 9, 0x6001);
    assert_eq!(m.framed(COLD).framed(0x6000).parts(), [vec![P, COLD, 0x6000]]);
}

#[test]
fn uncertain_fragments_are_not_joined() {
    let apart = vec![vec![P], vec![Q], vec![COLD]];
    let base = || Module::new(&[P, Q, COLD]).call(Q + 0x80, P).call(P + 0x80, Q).jmp(P, COLD);
    assert_eq!(base().parts(), [vec![P, COLD], vec![Q]], "the base itself is sure");
    assert_eq!(base().jmp(Q, COLD).framed(COLD).parts(), apart, "two parents");
    assert_eq!(base().call(Q, COLD).framed(COLD).parts(), apart, "called");
    assert_eq!(base().call(Q, COLD + 3).framed(COLD).parts(), apart, "called in the middle");
    assert_eq!(base().jmp(0x9000, COLD).framed(COLD).parts(), apart, "jump from code of no FDE");
    assert_eq!(base().name(COLD, "f").parts(), apart, "a function by name and frame");
    let lea = [0x48, 0x8d, 0x05, 0xf9, 0x2f, 0, 0].to_vec();
    let mut m = base();
    m.code.push((Q, lea));
    assert_eq!(m.parts(), apart, "its address is computed");
    let mut m = base();
    m.taken.insert(COLD);
    assert_eq!(m.parts(), apart, "data holds its address");
    m = m.framed(COLD);
    assert_eq!(m.parts(), [vec![P, COLD], vec![Q]], "but it cannot be called with this frame");
    m.fdes[2].personality = Some(Avma(1));
    assert_eq!(m.parts(), apart, "another personality");
    let mut m = base();
    m.fdes[2].signal_frame = true;
    assert_eq!(m.parts(), apart, "a signal frame");
}

#[test]
fn symbols_decide_the_parent() {
    let base = || Module::new(&[P, Q, COLD]).call(Q + 0x80, P).call(P + 0x80, Q).jmp(P, COLD);
    let named = |name| base().name(P, "f").name(Q, "g").name(COLD, name);
    assert_eq!(named("f.cold").parts(), [vec![P, COLD], vec![Q]]);
    assert_eq!(named("f.cold.12").parts(), [vec![P, COLD], vec![Q]]);
    // The name decides between two functions that jump there.
    assert_eq!(named("f.cold").jmp(Q, COLD).parts(), [vec![P, COLD], vec![Q]]);
    assert_eq!(named("g.cold").jmp(Q, COLD).parts(), [vec![P], vec![Q, COLD]]);
    assert_eq!(named("h.cold").jmp(Q, COLD).parts(), [vec![P], vec![Q], vec![COLD]]);
    // Two functions of the same name do not decide.
    assert_eq!(named("f.cold").name(Q, "f").jmp(Q, COLD).parts(), [vec![P], vec![Q], vec![COLD]]);
    assert_eq!(cold_base("f.cold"), Some("f"));
    assert_eq!(cold_base("f.cold.1.cold"), Some("f.cold.1"));
    assert_eq!(cold_base("f.cold.x"), None);
    assert_eq!(cold_base("f.colder"), None);
    assert_eq!(cold_base(".cold"), None);
    assert_eq!(cold_base("cold"), None);
}

#[test]
fn a_nameless_function_reached_only_by_tail_calls() {
    // Jumps from one function: joined to it. Jumps from two: a function, which keeps its own cold part.
    let one = Module::new(&[P, Q, COLD]).jmp(P, Q).jmp(Q + 8, COLD).jmp(COLD + 8, Q + 0x20).framed(COLD);
    assert_eq!(one.parts(), [vec![P, Q, COLD]]);
    let two =
        Module::new(&[P, Q, 0x3000, COLD]).jmp(P, Q).jmp(0x3000, Q).jmp(Q + 8, COLD).jmp(COLD + 8, Q + 1);
    assert_eq!(two.parts(), [vec![P], vec![Q, COLD], vec![0x3000]]);
    // A ring that nothing enters: all are functions, or only the fragment that looks like one.
    let ring = Module::new(&[P, COLD]).jmp(P, COLD).jmp(COLD, P);
    assert_eq!(ring.parts(), [vec![P], vec![COLD]]);
    assert_eq!(Module::new(&[P, COLD]).jmp(P, COLD).jmp(COLD, P).framed(COLD).parts(), [vec![P, COLD]]);
    let odd = Module::new(&[P, COLD]).jmp(P, COLD).jmp(COLD, P).framed(COLD).framed(P);
    assert_eq!(odd.parts(), [vec![P], vec![COLD]]);
}

#[test]
fn landing_pads_in_another_fragment() {
    let mut m = Module::new(&[P, Q, COLD]).call(Q, P).framed(COLD);
    m.far_pads = vec![(0, Avma(COLD + 5))];
    assert_eq!(m.parts(), [vec![P, COLD], vec![Q]]);
    m.far_pads.push((1, Avma(COLD + 5)));
    assert_eq!(m.parts(), [vec![P], vec![Q], vec![COLD]]);
    m.far_pads = vec![(usize::MAX, Avma(COLD))];
    assert_eq!(m.parts(), [vec![P], vec![Q], vec![COLD]]);
}

#[test]
fn unsound_fdes_are_dropped() {
    let mut m = Module::new(&[P, Q, COLD]).call(Q, P).jmp(P, COLD);
    m.fdes.insert(1, fde(P + 0x40, P + 0x41));
    m.fdes.insert(1, fde(P + 0x20, P + 0x20));
    m.fdes.insert(3, fde(P + 0x60, P + 0x200));
    let e = m.merge();
    assert_eq!((e.overlapping, e.empty), (3, 1));
    // Without its parent, the owner of the cold part is unknown.
    assert_eq!(m.parts(), [vec![Q], vec![COLD]]);
}

#[test]
fn plt_is_marked_and_never_joined() {
    let mut m = Module::new(&[P, Q, COLD]).jmp(Q, P).jmp(P, COLD);
    m.plt = vec![AvmaRange::with_len(Avma(P), 0x80)];
    let e = m.merge();
    assert_eq!(e.functions.iter().map(|f| f.plt).collect::<Vec<_>>(), [true, false, false]);
    assert_eq!(m.parts(), [vec![P], vec![Q], vec![COLD]]);
}

#[test]
fn several_functions_under_one_fde() {
    let m = Module::new(&[P, Q])
        .name(P, "a")
        .name(P + 0x10, "b")
        .call(Q, P + 0x20)
        .call(Q + 8, P)
        .jmp(Q + 16, P + 4);
    let e = m.merge();
    assert_eq!(e.functions[0].other_entries, [Avma(P + 0x10), Avma(P + 0x20)]);
    assert!(e.functions[0].multiple_entries() && !e.functions[1].multiple_entries());
}

#[test]
fn any_module_gives_disjoint_functions() {
    arbtest::arbtest(|u| {
        let mut m = Module::default();
        for _ in 0..u.int_in_range(0..=8)? {
            let start = u.int_in_range(0..=0xf0)? * 0x100;
            m.fdes.push(fde(start, start + u.int_in_range(0..=5)? * 0x40));
        }
        m.fdes.sort_by_key(|f| f.range.start);
        for _ in 0..u.int_in_range(0..=12)? {
            let (from, to) = (u.int_in_range(0..=0xfff0)?, u.int_in_range(0..=0xfff0)?);
            m = m.branch(*u.choose(&[0xe8, 0xe9, 0xe9])?, from, to);
        }
        for f in m.fdes.clone() {
            if u.arbitrary()? {
                m = m.framed(f.range.start.0);
            }
        }
        for _ in 0..u.int_in_range(0..=2)? {
            m.far_pads.push((u.int_in_range(0..=9)?, Avma(u.int_in_range(0..=0xffff)?)));
        }
        let e = m.merge();
        let mut all: Vec<usize> = e.functions.iter().flat_map(|f| f.fdes.iter().copied()).collect();
        assert_eq!(all.len() + e.overlapping + e.empty, m.fdes.len());
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len() + e.overlapping + e.empty, m.fdes.len());
        for (a, b) in all.iter().zip(all.iter().skip(1)) {
            assert!(!m.fdes[*a].range.overlaps(&m.fdes[*b].range));
        }
        for f in &e.functions {
            assert_eq!(f.parts.len(), f.fdes.len());
            assert_eq!(f.entry, f.parts[0].start);
            assert!(f.parts.iter().skip(1).zip(f.parts.iter().skip(2)).all(|(a, b)| a < b));
        }
        Ok(())
    })
    .budget_ms(1000);
}
