//! Prints a graph as text.

use super::CONDITIONS;
use crate::{Block, BlockId, Cfg, Dest, Inst, JumpTable, TableForm, Term};
use addr::AvmaRange;
use iced_x86::{Formatter, GasFormatter};
use std::fmt::{self, Display, Write};

/// The column at which comments begin.
const COMMENT: usize = 34;

impl Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}", self.0)
    }
}

impl Display for Dest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dest::Block(b) => b.fmt(f),
            Dest::Outside(at) => at.fmt(f),
        }
    }
}

impl Display for Cfg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "function {}", self.entry)?;
        for AvmaRange { start, end } in &self.parts {
            writeln!(f, "part {start}..{end}")?;
        }
        for functions in self.functions.chunks(8) {
            write!(f, "functions")?;
            for at in functions {
                write!(f, " {at}")?;
            }
            writeln!(f)?;
        }
        let mut disassembler = disassembler();
        for (i, block) in self.blocks.iter().enumerate() {
            let pad = if block.landing_pad { " pad" } else { "" };
            writeln!(f, "block b{i} {}{pad}", block.range.start)?;
            for inst in insts(self, block) {
                write_inst(f, inst, &mut disassembler)?;
            }
            write_term(f, &block.term)?;
        }
        for (i, table) in self.tables.iter().enumerate() {
            write_table(f, i, table)?;
        }
        Ok(())
    }
}

/// Works like [`Cfg::insts_of`], but also for an unsound graph, which must be printable.
fn insts<'a>(cfg: &'a Cfg, block: &Block) -> &'a [Inst] {
    let range = usize::try_from(block.insts.start).ok().zip(usize::try_from(block.insts.end).ok());
    range.and_then(|(start, end)| cfg.insts.get(start..end)).unwrap_or_default()
}

fn disassembler() -> GasFormatter {
    let mut gas = GasFormatter::new();
    let options = gas.options_mut();
    options.set_branch_leading_zeros(false);
    options.set_small_hex_numbers_in_decimal(true);
    options.set_uppercase_hex(false);
    options.set_rip_relative_addresses(false);
    gas
}

fn write_inst(f: &mut fmt::Formatter<'_>, inst: &Inst, gas: &mut GasFormatter) -> fmt::Result {
    let mut line = String::from(" ");
    for byte in inst.bytes.as_slice() {
        write!(line, " {byte:02x}")?;
    }
    write!(line, "{:1$}; ", ' ', COMMENT.saturating_sub(line.len()).max(1))?;
    gas.format(&inst.decoded, &mut line);
    writeln!(f, "{line}")
}

fn write_term(f: &mut fmt::Formatter<'_>, term: &Term) -> fmt::Result {
    match term {
        Term::Fall { next } => writeln!(f, "  fall {next}"),
        Term::Jump { to } => writeln!(f, "  jump {to}"),
        Term::Cond { cc, taken, fall } => {
            let name = CONDITIONS.iter().find(|c| c.1 == *cc).map_or("none", |c| c.0);
            writeln!(f, "  cond {name} {taken} else {fall}")
        }
        Term::CondShort { taken, fall } => writeln!(f, "  short {taken} else {fall}"),
        Term::Switch { table } => writeln!(f, "  switch t{}", table.0),
        Term::Indirect => writeln!(f, "  indirect"),
        Term::Return => writeln!(f, "  return"),
        Term::NoReturnCall { next } => writeln!(f, "  noreturn {next}"),
        Term::Trap => writeln!(f, "  trap"),
    }
}

fn write_table(f: &mut fmt::Formatter<'_>, i: usize, table: &JumpTable) -> fmt::Result {
    write!(f, "table t{i} {} ", table.at)?;
    match table.form {
        TableForm::Absolute8 => writeln!(f, "absolute8")?,
        TableForm::Relative4 { base } => writeln!(f, "relative4 {base}")?,
    }
    if let Some(load) = table.cloneable {
        write!(f, "  load {} ", load.inst.0)?;
        if let Some(base) = load.base_value {
            write!(f, "base {base} ")?;
        }
        writeln!(f, "differs {}..{}", load.differs.0.0, load.differs.1.0)?;
    }
    // Eight per line: a switch may have hundreds.
    for targets in table.targets.chunks(8) {
        write!(f, "  to")?;
        for target in targets {
            write!(f, " {target}")?;
        }
        writeln!(f)?;
    }
    Ok(())
}
