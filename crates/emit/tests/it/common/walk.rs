//! The oracle: walks the original's graph and the clone's bytes in step, under the same random decisions.
//!
//! It does not use the map or anything of how the clone was made. It uses only the graph, the bytes of both,
//! and the effect of instructions on control flow. Direct jumps and nops change nothing but the address, so
//! both sides skip them; the clone's side also skips counters. The remaining instructions must be the same
//! sequence. The map is checked against the walk.

use super::rng::Rng;
use addr::{Addr, Avma, ReadMemory};
use code::{Cfg, Dest, Inst, TableForm, Term};
use emit::{CloneInfo, Link, Output};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use rustc_hash::FxHashMap;

/// Returns, for each original's entry, the address at which its clone is called: behind the `endbr64` with
/// which it begins, if any.
pub fn clones(out: &Output) -> FxHashMap<Avma, Avma> {
    let text_at = out.clones.iter().map(|c| c.entry).min().unwrap_or(Avma(0));
    let called = |entry: Avma| {
        let from = usize::try_from(entry.0 - text_at.0).unwrap();
        entry.add(if out.text[from..].starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) { 4 } else { 0 })
    };
    out.clones.iter().map(|c| (c.original, called(c.entry))).collect()
}

/// Totals over the walks.
#[derive(Debug, Default, Clone, Copy)]
pub struct Seen {
    pub steps: u64,
    pub left_to_original: u64,
    pub cloned_switches: u64,
    pub in_further_copies: u64,
}

pub struct Walker<'a> {
    pub out: &'a Output,
    pub text_at: Avma,
    pub data_at: Avma,
    /// All originals, by entry.
    pub clones: &'a FxHashMap<Avma, Avma>,
    cfg: &'a Cfg,
    by_address: FxHashMap<u64, (usize, &'a Inst)>,
}

impl<'a> Walker<'a> {
    pub fn new(
        out: &'a Output,
        clones: &'a FxHashMap<Avma, Avma>,
        text_at: Avma,
        data_at: Avma,
        cfg: &'a Cfg,
    ) -> Self {
        let mut by_address = FxHashMap::default();
        for (n, b) in cfg.blocks.iter().enumerate() {
            for i in &cfg.insts[b.insts.start as usize..b.insts.end as usize] {
                by_address.insert(i.at.0, (n, i));
            }
        }
        Self { out, text_at, data_at, clones, cfg, by_address }
    }

    fn in_text(&self, at: u64) -> bool {
        at >= self.text_at.0 && at < self.text_at.0 + self.out.text.len() as u64
    }

    /// Decodes the instruction at an address of either copy; `None` outside both.
    fn decode(&self, at: u64) -> Option<Instruction> {
        if self.in_text(at) {
            let from = usize::try_from(at - self.text_at.0).unwrap();
            let i = Decoder::with_ip(64, &self.out.text[from..], at, DecoderOptions::NONE).decode();
            assert!(
                !i.is_invalid() && i.mnemonic() != Mnemonic::Int3 || i.len() == 1,
                "bad bytes at {at:#x}"
            );
            return Some(i);
        }
        self.by_address.get(&at).map(|(_, i)| i.decoded)
    }

    /// Skips instructions that only change the address.
    fn settle(&self, mut at: u64) -> u64 {
        for _ in 0..1000 {
            match self.decode(at) {
                Some(i) if i.is_jmp_short_or_near() => at = i.near_branch_target(),
                Some(i) if i.mnemonic() == Mnemonic::Nop => at = i.next_ip(),
                _ => return at,
            }
        }
        // A loop of jumps only: no difference between the two sides can be seen.
        u64::MAX
    }

    /// Returns whether two addresses outside the function match: they are equal, or the first is the clone of
    /// the function at the second.
    fn same_place(&self, clone: u64, original: u64) -> bool {
        clone == original || self.clones.get(&Avma(original)) == Some(&Avma(clone))
    }

    /// Walks once from the entry; panics at the first difference.
    pub fn walk(&self, info: &CloneInfo, rng: &mut Rng, max_steps: u32, seen: &mut Seen) {
        let (mut c, mut o) = (info.entry.0, self.cfg.entry.0);
        let mut table_at = None;
        for _ in 0..max_steps {
            (c, o) = (self.settle_inside(c, info), self.settle(o));
            if o == u64::MAX || c == u64::MAX {
                assert_eq!(c, o, "only one side loops without end");
                return;
            }
            let Some(&(block, inst)) = self.by_address.get(&o) else {
                assert!(self.same_place(c, o), "{c:#x} is not {o:#x}");
                return;
            };
            if !info.fragments().contains(Avma(c)) {
                assert_eq!(c, o, "left to another place");
                seen.left_to_original += 1;
                return;
            }
            seen.steps += 1;
            assert_eq!(info.map.to_original(Avma(c)), Some(Avma(o)), "map at {c:#x}");
            let is_further = info.map.entries_at(Avma(c)).last().is_some_and(|e| e.link == Link::Again);
            assert_eq!(info.map.to_clone(Avma(o)) == Some(Avma(c)), !is_further, "map at {o:#x}");
            seen.in_further_copies += u64::from(is_further);
            let i = self.decode(c).unwrap();
            let was = &inst.decoded;
            if let Some(t) = self.reads_cloned_table(&i, was) {
                table_at = Some(t);
                assert!(
                    info.map.move_to_clone(Avma(o)).is_some()
                        || i.flow_control() == FlowControl::IndirectBranch
                );
            }
            match was.flow_control() {
                FlowControl::ConditionalBranch => {
                    let taken = rng.coin();
                    let mut inverse = *was;
                    inverse.negate_condition_code();
                    let same = i.mnemonic() == was.mnemonic();
                    assert!(
                        same || was.is_jcc_short_or_near() && i.mnemonic() == inverse.mnemonic(),
                        "{i:?} for {was:?}"
                    );
                    let go =
                        |x: &Instruction, taken| if taken { x.near_branch_target() } else { x.next_ip() };
                    (c, o) = (go(&i, taken == same), go(was, taken));
                }
                FlowControl::Call if was.op0_kind() == OpKind::NearBranch64 => {
                    let (to, wants) = (i.near_branch_target(), was.near_branch_target());
                    assert_eq!(i.mnemonic(), Mnemonic::Call);
                    match self.clones.get(&Avma(wants)) {
                        Some(clone) => assert_eq!(to, clone.0, "the clone is called"),
                        None => assert_eq!(to, wants, "the original is called"),
                    }
                    (c, o) = (i.next_ip(), was.next_ip());
                }
                FlowControl::IndirectBranch => {
                    let Term::Switch { table } = self.cfg.blocks[block].term else { return };
                    let t = &self.cfg.tables[table.index()];
                    let n = rng.below(t.targets.len());
                    o = match t.targets[n] {
                        Dest::Block(b) => self.cfg.blocks[b.index()].range.start.0,
                        Dest::Outside(at) => at.0,
                    };
                    c = match table_at.take() {
                        Some(at) => {
                            seen.cloned_switches += 1;
                            assert_eq!(
                                info.map.move_to_original(Avma(i.ip())),
                                if i.op0_kind() == OpKind::Memory { Some(Avma(was.ip())) } else { None }
                            );
                            self.entry(at, t.form, n)
                        }
                        None => o,
                    };
                }
                FlowControl::Return => {
                    assert_eq!(&i, was);
                    return;
                }
                _ => {
                    let same_bytes = i == *was;
                    assert!(same_bytes || table_at.is_some(), "{i:?} for {was:?}");
                    (c, o) = (i.next_ip(), was.next_ip());
                }
            }
        }
    }

    /// Works like `settle`, but stops where control leaves the clone: the code there is the original's.
    fn settle_inside(&self, at: u64, info: &CloneInfo) -> u64 {
        let mut at = at;
        for _ in 0..1000 {
            match self.decode(at) {
                Some(i) if self.in_text(at) && !info.fragments().contains(Avma(at)) => {
                    let _ = i;
                    return at;
                }
                Some(i) if i.is_jmp_short_or_near() => at = i.near_branch_target(),
                Some(i) if i.mnemonic() == Mnemonic::Nop => at = i.next_ip(),
                Some(i) if i.memory_segment() == Register::GS => at = self.over_counter(&i),
                _ => return at,
            }
        }
        u64::MAX
    }

    /// Returns the address behind a counter that starts with `i`.
    fn over_counter(&self, i: &Instruction) -> u64 {
        if i.mnemonic() == Mnemonic::Inc {
            return i.next_ip();
        }
        let r = i.op0_register();
        let add = self.decode(i.next_ip()).unwrap();
        assert_eq!((add.mnemonic(), add.op0_register(), add.memory_base()), (Mnemonic::Lea, r, r));
        let store = self.decode(add.next_ip()).unwrap();
        assert_eq!((store.mnemonic(), store.op1_register()), (Mnemonic::Mov, r));
        assert_eq!(store.memory_displacement64(), i.memory_displacement64());
        store.next_ip()
    }

    /// Returns the table that a clone's instruction reads, if the original's reads another.
    fn reads_cloned_table(&self, i: &Instruction, was: &Instruction) -> Option<u64> {
        let load = self.cfg.tables.iter().filter_map(|t| t.cloneable);
        let load = load.into_iter().find(|l| self.cfg.insts[l.inst.index()].at.0 == was.ip())?;
        if i.memory_displacement64() == was.memory_displacement64() {
            return None;
        }
        assert_eq!(
            (i.mnemonic(), i.memory_base(), i.memory_index()),
            (was.mnemonic(), was.memory_base(), was.memory_index())
        );
        Some(load.base_value.unwrap_or_default().0.wrapping_add(i.memory_displacement64()))
    }

    fn entry(&self, at: u64, form: TableForm, n: usize) -> u64 {
        let mem = (self.data_at, &self.out.data[..]);
        match form {
            TableForm::Absolute8 => mem.u64(Avma(at + 8 * n as u64)).unwrap(),
            TableForm::Relative4 { base } => {
                let e = mem.u32(Avma(at + 4 * n as u64)).unwrap().cast_signed();
                base.0.wrapping_add_signed(i64::from(e))
            }
        }
    }
}
