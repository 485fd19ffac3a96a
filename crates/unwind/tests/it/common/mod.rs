//! An ELF file as memory, and gimli's own frame tables as the reference.
#![allow(dead_code, reason = "each test binary uses its share")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first surprise and says what it skips"
)]

use addr::{Addr, Avma, AvmaRange, ReadMemory, Unreadable};
use gimli::{BaseAddresses, EhFrame, EndianSlice, LittleEndian, UnwindContext, UnwindTableRow};
use object::elf::{FileHeader64, PT_DYNAMIC, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use std::sync::Arc;
use unwind::{CfaRule, Reg, RegRule, Row};

pub type Section<'a> = EhFrame<EndianSlice<'a, LittleEndian>>;

/// A file's PT_LOAD segments at bias 0, with RELATIVE relocations applied.
pub struct Elf {
    segments: Vec<(u64, Vec<u8>)>,
    pub eh_frame_at: Avma,
}

impl ReadMemory for Elf {
    fn read(&self, at: Avma, buf: &mut [u8]) -> Result<(), Unreadable> {
        let err = Unreadable { at, len: buf.len() as u64 };
        let bytes = self.from(at).and_then(|b| b.get(..buf.len())).ok_or(err)?;
        buf.copy_from_slice(bytes);
        Ok(())
    }
}

impl Elf {
    pub fn load(path: &str) -> Option<Elf> {
        let Ok(data) = std::fs::read(path) else {
            println!("skipped: there is no {path} here");
            return None;
        };
        let data = &data[..];
        let header = FileHeader64::<object::LittleEndian>::parse(data).unwrap();
        let endian = header.endian().unwrap();
        let mut elf = Elf { segments: Vec::new(), eh_frame_at: Avma(0) };
        let sections = header.sections(endian, data).unwrap();
        if let Some((_, section)) = sections.section_by_name(endian, b".eh_frame") {
            elf.eh_frame_at = Avma(section.sh_addr(endian));
        }
        let mut dynamic = None;
        for ph in header.program_headers(endian, data).unwrap() {
            match ph.p_type(endian) {
                PT_LOAD => {
                    let mut bytes = ph.data(endian, data).unwrap().to_vec();
                    bytes.resize(usize::try_from(ph.p_memsz(endian)).unwrap(), 0);
                    elf.segments.push((ph.p_vaddr(endian), bytes));
                }
                PT_DYNAMIC => dynamic = Some(Avma(ph.p_vaddr(endian))),
                _ => {}
            }
        }
        if let Some(dynamic) = dynamic {
            elf.relocate(dynamic);
        }
        Some(elf)
    }

    /// Applies the R_X86_64_RELATIVE relocations of DT_RELA.
    fn relocate(&mut self, dynamic: Avma) {
        let tag = |wanted: u64| {
            (0..)
                .map(|i| dynamic.add(i * 16))
                .map_while(|at| Some((self.u64(at).ok()?, at)))
                .take_while(|t| t.0 != 0)
                .find(|t| t.0 == wanted)
                .map(|t| self.u64(t.1.add(8)).unwrap())
        };
        let (Some(rela), Some(size)) = (tag(7), tag(8)) else { return };
        let words: Vec<u64> = self
            .bytes(AvmaRange::with_len(Avma(rela), size))
            .unwrap()
            .chunks_exact(8)
            .map(|c| u64::from_le_bytes(c.try_into().unwrap()))
            .collect();
        for r in words.chunks_exact(3).filter(|r| r[1] == 8) {
            let (start, bytes) =
                self.segments.iter_mut().find(|(s, b)| (*s..*s + b.len() as u64).contains(&r[0])).unwrap();
            let at = usize::try_from(r[0] - *start).unwrap();
            bytes[at..at + 8].copy_from_slice(&r[2].to_le_bytes());
        }
    }

    /// Returns all bytes of the segment from `at` on.
    pub fn from(&self, at: Avma) -> Option<&[u8]> {
        self.segments.iter().find_map(|(start, bytes)| {
            bytes.get(usize::try_from(at.since(Avma(*start))?).ok()?..).filter(|b| !b.is_empty())
        })
    }
}

/// Returns gimli's view of a section.
pub fn section(bytes: &[u8], at: Avma) -> (Section<'_>, BaseAddresses) {
    let mut section = EhFrame::new(bytes, LittleEndian);
    section.set_address_size(8);
    (section, BaseAddresses::default().set_eh_frame(at.raw()))
}

/// Converts one of gimli's rows.
pub fn row(bytes: &[u8], row: &UnwindTableRow<usize>) -> Row {
    let expr = |e: &gimli::UnwindExpression<usize>| Arc::from(&bytes[e.offset..e.offset + e.length]);
    let mut regs: Vec<(Reg, RegRule)> = row
        .registers()
        .map(|(reg, rule)| {
            let rule = match rule {
                gimli::RegisterRule::Undefined => RegRule::Undefined,
                gimli::RegisterRule::SameValue => RegRule::SameValue,
                gimli::RegisterRule::Offset(o) => RegRule::Offset(*o),
                gimli::RegisterRule::ValOffset(o) => RegRule::ValOffset(*o),
                gimli::RegisterRule::Register(r) => RegRule::Register(Reg(r.0)),
                gimli::RegisterRule::Expression(e) => RegRule::Expr(expr(e)),
                gimli::RegisterRule::ValExpression(e) => RegRule::ValExpr(expr(e)),
                other => panic!("{other:?}"),
            };
            (Reg(reg.0), rule)
        })
        .collect();
    regs.sort_by_key(|r| r.0);
    Row {
        range: AvmaRange::new(Avma(row.start_address()), Avma(row.end_address())),
        cfa: match row.cfa() {
            gimli::CfaRule::RegisterAndOffset { register, offset } => {
                CfaRule::RegOffset(Reg(register.0), *offset)
            }
            gimli::CfaRule::Expression(e) => CfaRule::Expr(expr(e)),
        },
        regs,
        args_size: row.saved_args_size(),
    }
}

/// Returns gimli's rows of the FDE at `offset`, truncated at its end, without empty rows, and with equal
/// neighbours joined.
pub fn gimli_rows(
    bytes: &[u8],
    section: &Section<'_>,
    bases: &BaseAddresses,
    ctx: &mut UnwindContext<usize>,
    offset: u64,
) -> Vec<Row> {
    let offset = gimli::EhFrameOffset(usize::try_from(offset).unwrap());
    let fde =
        gimli::UnwindSection::fde_from_offset(section, bases, offset, gimli::UnwindSection::cie_from_offset);
    let fde = fde.unwrap();
    let mut table = fde.rows(section, bases, ctx).unwrap();
    let mut out: Vec<Row> = Vec::new();
    while let Some(next) = table.next_row().unwrap() {
        let mut next = row(bytes, next);
        next.range.end = next.range.end.min(Avma(fde.end_address()));
        match out.last_mut() {
            _ if next.range.is_empty() => {}
            Some(last) if last.same_rule(&next) => last.range.end = next.range.end,
            _ => out.push(next),
        }
    }
    out
}
