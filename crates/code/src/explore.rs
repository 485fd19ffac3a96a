//! Recursive descent: finds the bytes of a function that are instructions.

use crate::decode::{Flow, Surroundings, classify};
use crate::{Inst, InstBytes, Part, Refusal};
use addr::{Addr, Avma, AvmaRange};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};
use unwind::{CfaRule, Row};

/// The most instructions of a function.
const MAX_INSTS: usize = 200_000;

/// One instruction with its control flow.
pub(crate) struct Found {
    pub(crate) inst: Inst,
    pub(crate) flow: Flow,
}

/// Returns whether bytes that are refused for this reason may be no code at all.
fn is_junk(why: &Refusal) -> bool {
    matches!(why, Refusal::BadInstruction | Refusal::OverlappingCode | Refusal::NoUnwindInfo)
}

/// The marks of one byte.
const START: u8 = 1;
const INSIDE: u8 = 2;
const LEADER: u8 = 4;

struct PartMap<'a> {
    part: &'a Part<'a>,
    decoder: Decoder<'a>,
    marks: Vec<u8>,
}

/// All instructions decoded so far. INVARIANT(no-overlap): every byte belongs to at most one instruction of
/// `found`.
pub(crate) struct Explorer<'a> {
    around: Surroundings<'a>,
    rows: &'a [Row],
    maps: Vec<PartMap<'a>>,
    pub(crate) found: Vec<Found>,
    leaders: Vec<Avma>,
    work: Vec<Avma>,
}

/// A state to which [`Explorer::rollback`] returns.
#[derive(Clone, Copy)]
pub(crate) struct Checkpoint {
    found: usize,
    leaders: usize,
}

impl<'a> Explorer<'a> {
    pub(crate) fn new(around: Surroundings<'a>, parts: &'a [Part<'a>], rows: &'a [Row]) -> Self {
        let maps = parts
            .iter()
            .map(|part| PartMap {
                part,
                decoder: Decoder::with_ip(64, part.bytes, part.range.start.0, DecoderOptions::NONE),
                marks: vec![0; part.bytes.len()],
            })
            .collect();
        Self { around, rows, maps, found: Vec::new(), leaders: Vec::new(), work: Vec::new() }
    }

    /// Returns the unwind row of an instruction.
    pub(crate) fn row(&self, at: Avma) -> Option<&'a Row> {
        row_at(self.rows, at)
    }

    pub(crate) fn inside(&self, at: Avma) -> bool {
        self.locate(at).is_some()
    }

    /// Returns whether an instruction was decoded from `at`.
    pub(crate) fn is_start(&self, at: Avma) -> bool {
        self.mark(at) & START != 0
    }

    /// Returns whether `at` is inside a decoded instruction.
    pub(crate) fn is_interior(&self, at: Avma) -> bool {
        self.mark(at) & INSIDE != 0
    }

    pub(crate) fn is_leader(&self, at: Avma) -> bool {
        self.mark(at) & LEADER != 0
    }

    fn mark(&self, at: Avma) -> u8 {
        self.locate(at).and_then(|(p, o)| self.maps.get(p)?.marks.get(o).copied()).unwrap_or(0)
    }

    fn locate(&self, at: Avma) -> Option<(usize, usize)> {
        self.maps.iter().enumerate().find_map(|(p, m)| {
            let o = m.part.range.contains(at).then(|| at.since(m.part.range.start))??;
            Some((p, usize::try_from(o).ok()?))
        })
    }

    pub(crate) fn checkpoint(&self) -> Checkpoint {
        Checkpoint { found: self.found.len(), leaders: self.leaders.len() }
    }

    /// Removes everything that was decoded since the checkpoint.
    pub(crate) fn rollback(&mut self, to: Checkpoint) {
        self.work.clear();
        self.forget(to.found);
        for at in self.leaders.split_off(to.leaders) {
            if let Some((p, o)) = self.locate(at) {
                self.maps[p].marks[o] &= !LEADER;
            }
        }
    }

    fn forget(&mut self, from: usize) {
        for f in self.found.split_off(from) {
            if let Some((p, o)) = self.locate(f.inst.at) {
                let len = f.inst.bytes.as_slice().len();
                for m in &mut self.maps[p].marks[o..o + len] {
                    *m &= LEADER;
                }
            }
        }
    }

    /// Decodes all code that can be reached from `at`, an address inside.
    pub(crate) fn explore(&mut self, at: Avma) -> Result<(), Refusal> {
        self.target(at);
        while let Some(at) = self.work.pop() {
            self.run(at)?;
        }
        Ok(())
    }

    fn target(&mut self, at: Avma) {
        let Some((p, o)) = self.locate(at) else { return };
        let m = &mut self.maps[p].marks[o];
        if *m & LEADER == 0 {
            *m |= LEADER;
            self.leaders.push(at);
            self.work.push(at);
        }
    }

    /// Decodes from `at` until control ends, leaves the parts, or reaches decoded code.
    fn run(&mut self, start: Avma) -> Result<(), Refusal> {
        let Some((p, mut o)) = self.locate(start) else { return Ok(()) };
        // Bytes behind a call, up to the next branch, may be junk. If so, the call does not return.
        let mut call: Option<usize> = None;
        // Only padding since the call. If the frame then differs, this is another piece of code.
        let mut padding = false;
        loop {
            if let Some(c) = call.filter(|_| padding)
                && !self.same_frame(self.found[c].inst.at, self.maps[p].part.range.start.add(o as u64))
            {
                self.no_return(c);
                return Ok(());
            }
            let map = &mut self.maps[p];
            match map.marks.get(o) {
                None => break,
                Some(m) if m & START != 0 => return Ok(()),
                // `je 1f; lock; 1: cmpxchg`: the jump past the prefix leaves the graph.
                Some(m) if m & INSIDE != 0 && is_locked(map, o) => return Ok(()),
                Some(_) => {}
            }
            let found = match decode_at(map, o).and_then(|i| self.judge(p, o, i)) {
                Ok(f) => f,
                Err(e) => {
                    let Some(c) = call.filter(|_| is_junk(&e)) else { return Err(e) };
                    self.no_return(c);
                    return Ok(());
                }
            };
            let flow = found.flow;
            if flow == Flow::Leave {
                return Ok(());
            }
            padding &= found.inst.decoded.mnemonic() == Mnemonic::Nop;
            o += self.add(p, o, found)?;
            match flow {
                Flow::Next => {}
                Flow::Call => {
                    call = Some(self.found.len() - 1);
                    padding = true;
                }
                Flow::Cond(_, to) | Flow::CondShort(to) => {
                    call = None;
                    self.target(to);
                }
                Flow::Jump(to) => {
                    self.target(to);
                    return Ok(());
                }
                Flow::NoReturnCall | Flow::Indirect | Flow::Return | Flow::Trap | Flow::Leave => {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Adds an instruction at offset `o` of part `p`. Returns its size.
    fn add(&mut self, p: usize, o: usize, found: Found) -> Result<usize, Refusal> {
        let len = found.inst.bytes.as_slice().len();
        let marks = &mut self.maps[p].marks;
        marks[o] |= START;
        for m in &mut marks[o + 1..o + len] {
            *m |= INSIDE;
        }
        if self.found.len() >= MAX_INSTS {
            return Err(Refusal::TooLarge);
        }
        self.found.push(found);
        Ok(len)
    }

    /// Marks a call of the present run as one that does not return.
    fn no_return(&mut self, call: usize) {
        self.forget(call + 1);
        self.found[call].flow = Flow::NoReturnCall;
    }

    fn same_frame(&self, a: Avma, b: Avma) -> bool {
        matches!((self.row(a), self.row(b)), (Some(a), Some(b)) if same_cfa(a, b))
    }

    fn judge(&self, p: usize, o: usize, decoded: Instruction) -> Result<Found, Refusal> {
        let map = &self.maps[p];
        let bytes = map.part.bytes.get(o..o + decoded.len()).ok_or(Refusal::BadInstruction)?;
        let at = Avma(decoded.ip());
        // INVARIANT(no-overlap)
        if map.marks[o..o + bytes.len()].iter().any(|m| m & (START | INSIDE) != 0) {
            return Err(Refusal::OverlappingCode);
        }
        let row = self.row(at).ok_or(Refusal::NoUnwindInfo)?;
        let mut flow = classify(&decoded, bytes, &self.around)?;
        let inst = Inst { at, decoded, bytes: InstBytes::new(bytes).ok_or(Refusal::BadInstruction)? };
        if flow == Flow::Call && !self.comes_back(p, row, inst.end()) {
            flow = Flow::NoReturnCall;
        }
        Ok(Found { inst, flow })
    }

    /// Returns whether the code after a call looks like its continuation: it is in the same part, with the
    /// same frame.
    fn comes_back(&self, p: usize, row: &Row, next: Avma) -> bool {
        self.maps[p].part.range.contains(next) && self.row(next).is_some_and(|r| same_cfa(r, row))
    }

    /// Returns all decoded instructions, by part and rising address.
    pub(crate) fn sorted(&self) -> Vec<u32> {
        let mut out = Vec::with_capacity(self.found.len());
        let mut by_part: Vec<(usize, Avma, u32)> = self
            .found
            .iter()
            .zip(0u32..)
            .map(|(f, i)| (self.locate(f.inst.at).map_or(0, |l| l.0), f.inst.at, i))
            .collect();
        by_part.sort_unstable();
        out.extend(by_part.into_iter().map(|(_, _, i)| i));
        out
    }

    pub(crate) fn parts(&self) -> Vec<AvmaRange> {
        self.maps.iter().map(|m| m.part.range).collect()
    }
}

/// Returns whether the byte before is a `lock` prefix with which a decoded instruction starts.
fn is_locked(map: &PartMap<'_>, o: usize) -> bool {
    let Some(before) = o.checked_sub(1) else { return false };
    map.part.bytes.get(before) == Some(&0xf0) && map.marks.get(before).is_some_and(|m| m & START != 0)
}

fn decode_at(map: &mut PartMap<'_>, o: usize) -> Result<Instruction, Refusal> {
    map.decoder.set_position(o).map_err(|_| Refusal::BadInstruction)?;
    map.decoder.set_ip(map.part.range.start.0.wrapping_add(o as u64));
    let i = map.decoder.decode();
    if i.is_invalid() { Err(Refusal::BadInstruction) } else { Ok(i) }
}

/// Returns the row of `at` among rows sorted by address.
pub(crate) fn row_at(rows: &[Row], at: Avma) -> Option<&Row> {
    let n = rows.partition_point(|r| r.range.start <= at);
    rows.get(n.checked_sub(1)?).filter(|r| r.range.contains(at))
}

/// Returns whether two rows compute the frame address in the same way.
pub(crate) fn same_cfa(a: &Row, b: &Row) -> bool {
    match (&a.cfa, &b.cfa) {
        (CfaRule::RegOffset(r, o), CfaRule::RegOffset(s, p)) => r == s && o == p,
        (CfaRule::Expr(a), CfaRule::Expr(b)) => a == b,
        _ => false,
    }
}
