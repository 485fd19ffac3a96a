//! Encodes a plan at an address: bytes, map entries and jump tables.

use crate::Fragments;
use crate::count;
use crate::items::{Item, ItemId, Kind, Op, Place, Plan, Target};
use crate::map::{Entry, Link};
use crate::reach::{rel8, rel32};
use crate::request::{Function, Stubs};
use crate::{inline, table};
use addr::{Addr, Avma, AvmaRange};
use code::{BlockId, Cfg, Dest, InstId, Refusal, TableId};
use iced_x86::Code;
use rustc_hash::FxHashMap;
use std::fmt;

/// Size of an `endbr64`. Bytes.
const ENDBR64_LEN: u64 = 4;

/// The addresses at which a clone is entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entrance {
    /// Its first instruction.
    pub(crate) start: Avma,
    /// The entry for direct calls and jumps: behind the `endbr64`, if the clone begins with one. `endbr64`
    /// only permits indirect branches (Intel SDM volume 1, 18.1), so direct branches do not need it.
    pub(crate) direct: Avma,
    /// Whether a redirect in the original leads here.
    pub(crate) redirected: bool,
}

impl Entrance {
    /// Returns the entrance of this function's clone at `start`.
    pub(crate) fn of(f: &Function<'_>, start: Avma) -> Self {
        Self { start, direct: behind_mark(f.cfg, start), redirected: f.is_redirected }
    }
}

/// Returns `start`, or the address behind the `endbr64` with which the function or its clone begins there.
pub(crate) fn behind_mark(cfg: &Cfg, start: Avma) -> Avma {
    let first = cfg.insts_of(BlockId(0)).first();
    let marked = first.is_some_and(|i| i.decoded.code() == Code::Endbr64);
    start.add(if marked { ENDBR64_LEN } else { 0 })
}

/// The addresses of other functions' clones.
pub(crate) struct Clones<'a> {
    /// The clones of this request, by the original's entry.
    pub(crate) here: FxHashMap<Avma, Entrance>,
    /// Cloned blocks that other clones call ([`Plan::rests`]), by the original block's start.
    pub(crate) rests: FxHashMap<Avma, Avma>,
    pub(crate) stubs: &'a Stubs,
    pub(crate) constant: &'a dyn Fn(Avma) -> Option<Avma>,
}

impl Clones<'_> {
    /// Returns the valid destinations of a direct call or jump to `original`, the best first.
    pub(crate) fn of(&self, original: Avma) -> impl Iterator<Item = Avma> {
        let clone = self.here.get(&original);
        let direct = clone.map(|e| e.direct).or_else(|| self.rests.get(&original).copied());
        direct.into_iter().chain(clone.map(|e| e.start)).chain([original])
    }

    /// Returns whether redirects, while in force, lead control from `original` to a clone.
    fn is_redirected(&self, original: Avma) -> bool {
        self.here.get(&original).is_some_and(|e| e.redirected)
    }
}

impl fmt::Debug for Clones<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clones").field("here", &self.here).finish_non_exhaustive()
    }
}

/// A clone's bytes.
#[derive(Clone, Debug)]
pub(crate) struct Encoded {
    pub(crate) fragments: Fragments,
    /// The bytes of all fragments.
    pub(crate) bytes: Vec<u8>,
    /// The instructions, in clone order.
    pub(crate) insts: Vec<EncodedInst>,
    /// The address of the clone's data.
    pub(crate) data_at: Avma,
    /// The clone's data: the tables of the plan, each padded to 8 bytes, then its constants.
    pub(crate) data: Vec<u8>,
    /// [`crate::CloneInfo::entrances`].
    pub(crate) entrances: Vec<(Avma, Avma)>,
}

/// One instruction of a clone, or of its original only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncodedInst {
    pub(crate) entry: Entry,
    /// The original instruction that was copied or dropped.
    pub(crate) inst: Option<InstId>,
}

/// One fragment of a clone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fragment<'a> {
    pub(crate) range: AvmaRange,
    pub(crate) bytes: &'a [u8],
    pub(crate) insts: &'a [EncodedInst],
    /// The position of its first byte.
    from: u32,
}

impl Encoded {
    /// Returns the entries of the map, in clone order.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.insts.iter().map(|i| i.entry).collect()
    }

    /// Returns the fragments, each with its contents; `None` if bytes and entries do not match the fragments.
    pub(crate) fn fragments(&self) -> Option<Vec<Fragment<'_>>> {
        let (mut bytes, mut insts) = (&self.bytes[..], &self.insts[..]);
        let mut out = Vec::with_capacity(2);
        for (from, range) in self.fragments.with_positions() {
            let len = u32::try_from(range.len()).ok()?;
            let count = insts.partition_point(|i| i.entry.at.checked_sub(from).is_none_or(|at| at < len));
            let (bytes, insts) = (bytes.split_off(..len as usize)?, insts.split_off(..count)?);
            out.push(Fragment { range, bytes, insts, from });
        }
        (bytes.is_empty() && insts.is_empty()).then_some(out)
    }
}

impl<'a> Fragment<'a> {
    /// Returns the address of an entry.
    pub(crate) fn address(&self, e: &Entry) -> Avma {
        self.range.start.add(u64::from(e.at.saturating_sub(self.from)))
    }

    /// Returns the bytes from an entry on.
    pub(crate) fn bytes_from(&self, e: &Entry) -> Option<&'a [u8]> {
        self.bytes.get(e.at.checked_sub(self.from)? as usize..)
    }
}

/// The reason why a plan cannot be encoded at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Misfit {
    /// The function cannot be cloned in any form.
    Refused(Refusal),
    /// This jump table cannot be cloned there; without it the function may fit.
    Table(TableId),
}

impl From<Refusal> for Misfit {
    fn from(r: Refusal) -> Self {
        Misfit::Refused(r)
    }
}

/// Encodes a plan that [`crate::relax::relax`] has worked on. Its fragments lie at `fragments` and its data
/// at `data_at`.
///
/// # Errors
/// [`Misfit`] if a displacement does not fit.
pub(crate) fn encode(
    f: &Function<'_>,
    plan: &Plan,
    fragments: Fragments,
    data_at: Avma,
    clones: &Clones<'_>,
) -> Result<Encoded, Misfit> {
    let mut e = Encoder {
        f,
        plan,
        clones,
        out: Encoded {
            fragments,
            bytes: Vec::with_capacity(plan.text_len() as usize),
            insts: Vec::with_capacity(plan.items.len()),
            data_at,
            data: Vec::with_capacity(plan.data_len()),
            entrances: Vec::with_capacity(plan.entrances.len()),
        },
    };
    for (id, item) in plan.numbered_items() {
        e.item(id, item)?;
    }
    for t in &plan.tables {
        e.table(t.id).ok_or(Misfit::Table(t.id))?;
    }
    e.out.data.extend(plan.constants.iter().flat_map(|c| c.to_le_bytes()));
    for &(inst, item) in &plan.entrances {
        let original = f.cfg.insts.get(inst.index()).ok_or(Refusal::RoundTrip)?.at;
        let address = e.address_of(item);
        e.out.entrances.push((original, address));
    }
    Ok(e.out)
}

struct Encoder<'a> {
    f: &'a Function<'a>,
    plan: &'a Plan,
    clones: &'a Clones<'a>,
    out: Encoded,
}

impl Encoder<'_> {
    fn item(&mut self, id: ItemId, item: &Item) -> Result<(), Misfit> {
        self.entry(item.at, item, self.link(id, item));
        let end = self.out.fragments.address(item.at).add(u64::from(item.len));
        let start = self.out.bytes.len();
        let copied = item.inst.map(|i| &self.f.cfg.insts[i.index()]);
        if let (Kind::Verbatim | Kind::RipRelative { .. } | Kind::Call { .. } | Kind::Skip { .. }, Some(i)) =
            (item.kind, copied)
        {
            self.out.bytes.extend(i.bytes.as_slice());
        }
        match item.kind {
            Kind::Verbatim | Kind::Dropped | Kind::Inlined => {}
            Kind::RipRelative { disp_at } => {
                let to = Avma(copied.ok_or(Refusal::RoundTrip)?.decoded.ip_rel_memory_address());
                let disp = rel32(end, to).ok_or(Refusal::OutOfReach)?;
                self.patch(start + usize::from(disp_at), &disp)?;
            }
            Kind::Call { to, through_redirect } => self.call(to, through_redirect, end)?,
            Kind::Through { slot, call } => {
                self.out.bytes.extend([0xff, if call { 0x15 } else { 0x25 }]);
                self.out.bytes.extend(rel32(end, slot).ok_or(Refusal::OutOfReach)?);
            }
            Kind::TableLoad { table } => self.table_load(table)?,
            Kind::Skip { over } => {
                let over = self.len_of_next(id, over).ok_or(Refusal::RoundTrip)?;
                let at = self.out.bytes.len().checked_sub(1).ok_or(Refusal::RoundTrip)?;
                self.patch(at, &[over])?;
            }
            Kind::Over { cond, over } => {
                let over = self.len_of_next(id, over).ok_or(Refusal::RoundTrip)?;
                self.out.bytes.extend([0x70 | cond, over]);
            }
            Kind::Count { step, offset } => self.out.bytes.extend(count::encode(step, offset)),
            Kind::Compare { register, constant } => {
                let constants = self.out.data_at.add(self.plan.tables_len as u64);
                let word = constants.add(8 * u64::from(constant));
                self.out.bytes.extend(inline::compare(register));
                self.out.bytes.extend(rel32(end, word).ok_or(Refusal::OutOfReach)?);
            }
            Kind::Direct { to, in_original } => {
                self.out.bytes.push(0xe8);
                self.out.bytes.extend(self.callee(to, in_original, end)?);
            }
            Kind::Borrowed { index } => {
                let borrowed = self.plan.borrowed.get(index as usize).ok_or(Refusal::RoundTrip)?;
                self.out.bytes.extend(borrowed.bytes.as_slice());
                if let Some((at, to)) = borrowed.operand {
                    self.patch(start + usize::from(at), &rel32(end, to).ok_or(Refusal::OutOfReach)?)?;
                }
            }
            Kind::Branch { op, to, long } => self.branch(op, to, long, end)?,
        }
        Ok(())
    }

    /// Returns how an item stands for its original instruction.
    fn link(&self, id: ItemId, item: &Item) -> Link {
        match (item.kind, item.inst) {
            (Kind::Dropped | Kind::Inlined, _) => Link::Dropped,
            (Kind::Direct { .. } | Kind::Borrowed { .. }, _)
            | (Kind::Branch { op: Op::Cond(_), to: Target::Label(_), .. }, _) => Link::Within,
            (_, Some(_)) if self.plan.is_again(id) => Link::Again,
            (_, Some(_)) => Link::Copy,
            (_, None) => Link::Extra,
        }
    }

    /// Sets the destination of the call that was copied last.
    fn call(&mut self, to: Avma, through_redirect: bool, end: Avma) -> Result<(), Refusal> {
        let disp = self.callee(to, through_redirect && self.clones.is_redirected(to), end)?;
        let at = self.out.bytes.len().checked_sub(4).ok_or(Refusal::RoundTrip)?;
        self.patch(at, &disp)
    }

    /// Adds the instruction that reads a cloned table.
    fn table_load(&mut self, table: TableId) -> Result<(), Misfit> {
        let t = self.plan.table(table).ok_or(Refusal::RoundTrip)?;
        let load = self.f.cfg.tables[table.index()].cloneable.ok_or(Refusal::RoundTrip)?;
        let at = self.out.data_at.add(t.at as u64);
        let disp = table::displacement(&load, at).ok_or(Misfit::Table(table))?;
        let start = self.out.bytes.len();
        self.out.bytes.extend(t.bytes.as_slice());
        Ok(self.patch(start + usize::from(t.disp_at), &disp)?)
    }

    /// Returns the size of the `count` items behind an item, if a short branch reaches over them.
    fn len_of_next(&self, item: ItemId, count: u32) -> Option<u8> {
        let items = self.plan.items.get(item.index() + 1..)?.get(..count as usize)?;
        u8::try_from(items.iter().map(|i| i.len).sum::<u32>()).ok().filter(|&n| n < 128)
    }

    fn branch(&mut self, op: Op, to: Target, long: bool, end: Avma) -> Result<(), Refusal> {
        if !long {
            let Target::Place(p) = to else { return Err(Refusal::RoundTrip) };
            let disp = rel8(end, self.start_of(p)).ok_or(Refusal::RoundTrip)?;
            let opcode = match op {
                Op::Jump => 0xeb,
                Op::Cond(n) => 0x70 | n,
            };
            self.out.bytes.extend([opcode, disp]);
            return Ok(());
        }
        let disp = match to {
            Target::Place(p) => rel32(end, self.start_of(p)),
            Target::Original(at) => rel32(end, at),
            Target::Outside(at) => self.outside(end, at),
            Target::Label(l) => rel32(end, self.address_of(self.plan.labels[l.index()])),
        };
        match op {
            Op::Jump => self.out.bytes.push(0xe9),
            Op::Cond(n) => self.out.bytes.extend([0x0f, 0x80 | n]),
        }
        self.out.bytes.extend(disp.ok_or(Refusal::OutOfReach)?);
        Ok(())
    }

    /// Returns the displacement of a call to the function, or the rest of one, at `to`.
    fn callee(&self, to: Avma, in_original: bool, end: Avma) -> Result<[u8; 4], Refusal> {
        let original = in_original.then(|| rel32(end, to)).flatten();
        original.or_else(|| self.outside(end, to)).ok_or(Refusal::OutOfReach)
    }

    /// Returns the displacement to the clone of the function at `to`. If only the original is within 2 GiB,
    /// returns the displacement to the original.
    fn outside(&self, end: Avma, to: Avma) -> Option<[u8; 4]> {
        self.clones.of(to).find_map(|c| rel32(end, c))
    }

    fn start_of(&self, place: Place) -> Avma {
        self.out.fragments.address(self.plan.block_position(place))
    }

    fn address_of(&self, item: ItemId) -> Avma {
        self.out.fragments.address(self.plan.position(item))
    }

    /// Adds a table to the data; `None` if a destination is out of reach.
    fn table(&mut self, id: TableId) -> Option<()> {
        let t = &self.f.cfg.tables[id.index()];
        for to in &t.targets {
            let to = match *to {
                Dest::Outside(at) => at,
                Dest::Block(b) => match self.plan.places[b.index()] {
                    Some(p) => self.start_of(p),
                    None => self.f.cfg.blocks[b.index()].range.start,
                },
            };
            table::push_entry(&mut self.out.data, t.form, to)?;
        }
        self.out.data.resize(self.out.data.len().next_multiple_of(table::ALIGN), 0);
        Some(())
    }

    fn entry(&mut self, at: u32, item: &Item, link: Link) {
        let movable = link != Link::Within && self.plan.fixed.binary_search(&item.original).is_err();
        let entry = Entry { at, original: item.original, link, movable };
        self.out.insts.push(EncodedInst { entry, inst: item.inst });
    }

    fn patch(&mut self, at: usize, with: &[u8]) -> Result<(), Refusal> {
        let place = self.out.bytes.get_mut(at..at + with.len()).ok_or(Refusal::RoundTrip)?;
        place.copy_from_slice(with);
        Ok(())
    }
}
