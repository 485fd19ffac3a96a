//! Parses the text form of a graph.

use super::CONDITIONS;
use crate::{
    Block, BlockId, Cfg, Dest, Inst, InstBytes, InstId, JumpTable, TableForm, TableId, TableLoad, Term,
};
use addr::{Addr, Avma, AvmaRange};
use iced_x86::{ConditionCode, Decoder, DecoderOptions};

/// The error for a text that is no graph.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ParseError {
    /// The line, from 1; one past the last if the text ends too early.
    pub line: usize,
    /// The error message.
    pub message: String,
}

type Message = String;

/// Parses a graph from its text form (described in the module's head).
///
/// # Errors
/// [`ParseError`] at the first line that is invalid, or that names a block, table or instruction which the
/// text does not have.
pub fn parse(text: &str) -> Result<Cfg, ParseError> {
    let mut parser = Parser::default();
    let mut count = 0;
    for (i, line) in text.lines().enumerate() {
        count = i + 1;
        parser.line_number = count;
        let line = line.split(';').next().unwrap_or_default();
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if !words.is_empty() {
            parser.line(&words).map_err(|message| ParseError { line: count, message })?;
        }
    }
    parser.finish(count + 1)
}

/// A block whose end may not have been read yet.
struct OpenBlock {
    start: Avma,
    /// The address behind the instructions parsed so far.
    end: Avma,
    first: u32,
    landing_pad: bool,
    /// The block's end, and the instruction count there.
    closed: Option<(Term, u32)>,
}

/// A reference to something that may be defined later.
enum Mention {
    Block(u32),
    Table(u32),
    /// Up to and including the count: the end of a half-open range.
    Inst(u32),
}

#[derive(Default)]
struct Parser {
    line_number: usize,
    entry: Option<Avma>,
    parts: Vec<AvmaRange>,
    insts: Vec<Inst>,
    blocks: Vec<OpenBlock>,
    tables: Vec<JumpTable>,
    functions: Vec<Avma>,
    /// References that must be defined in the end, with their lines.
    mentions: Vec<(usize, Mention)>,
}

impl Parser {
    fn line(&mut self, words: &[&str]) -> Result<(), Message> {
        match *words {
            ["function", at] => {
                if self.entry.is_some() {
                    return Err("a second function".into());
                }
                self.entry = Some(address(at)?);
                Ok(())
            }
            ["part", range] => {
                self.parts.push(part(range)?);
                Ok(())
            }
            ["functions", ref rest @ ..] => {
                for word in rest {
                    self.function(address(word)?)?;
                }
                Ok(())
            }
            ["block", id, at] => self.block(id, at, false),
            ["block", id, at, "pad"] => self.block(id, at, true),
            ["table", id, at, "absolute8"] => self.table(id, at, TableForm::Absolute8),
            ["table", id, at, "relative4", base] => {
                self.table(id, at, TableForm::Relative4 { base: address(base)? })
            }
            ["load", ref rest @ ..] => self.load(rest),
            ["to", ref targets @ ..] => self.targets(targets),
            _ => match self.term(words)? {
                Some(term) => self.close(term),
                None => self.inst(words),
            },
        }
    }

    fn function(&mut self, at: Avma) -> Result<(), Message> {
        if self.functions.last().is_some_and(|&last| last >= at) {
            return Err("functions must rise".into());
        }
        self.functions.push(at);
        Ok(())
    }

    fn count(&self) -> Result<u32, Message> {
        u32::try_from(self.insts.len()).map_err(|_| "too many instructions".into())
    }

    fn block(&mut self, id: &str, at: &str, landing_pad: bool) -> Result<(), Message> {
        if numbered(id, 'b')? as usize != self.blocks.len() {
            return Err(format!("expected block b{}", self.blocks.len()));
        }
        self.check_closed()?;
        let start = address(at)?;
        let first = self.count()?;
        self.blocks.push(OpenBlock { start, end: start, first, landing_pad, closed: None });
        Ok(())
    }

    fn check_closed(&self) -> Result<(), Message> {
        match self.blocks.last() {
            Some(b) if b.closed.is_none() => Err("the block before has no end".into()),
            _ => Ok(()),
        }
    }

    fn open_block(&mut self) -> Result<&mut OpenBlock, Message> {
        self.blocks.last_mut().filter(|b| b.closed.is_none()).ok_or_else(|| "outside of a block".into())
    }

    fn inst(&mut self, words: &[&str]) -> Result<(), Message> {
        let bytes: Vec<u8> = words.iter().map(|w| byte(w)).collect::<Result<_, _>>()?;
        let kept = InstBytes::new(&bytes).ok_or("an instruction has at most 15 bytes")?;
        let block = self.open_block()?;
        let at = block.end;
        let decoded = Decoder::with_ip(64, &bytes, at.raw(), DecoderOptions::NONE).decode();
        if decoded.is_invalid() || decoded.len() != bytes.len() {
            return Err("not exactly one instruction".into());
        }
        let end = at.raw().checked_add(bytes.len() as u64).ok_or("beyond the end of the address space")?;
        block.end = Avma(end);
        self.insts.push(Inst { at, decoded, bytes: kept });
        Ok(())
    }

    /// Parses the end of a block, if these words are one.
    fn term(&mut self, words: &[&str]) -> Result<Option<Term>, Message> {
        Ok(Some(match *words {
            ["fall", next] => Term::Fall { next: self.dest(next)? },
            ["jump", to] => Term::Jump { to: self.dest(to)? },
            ["cond", cc, taken, "else", fall] => {
                Term::Cond { cc: condition(cc)?, taken: self.dest(taken)?, fall: self.dest(fall)? }
            }
            ["short", taken, "else", fall] => {
                Term::CondShort { taken: self.dest(taken)?, fall: self.dest(fall)? }
            }
            ["switch", table] => {
                let table = numbered(table, 't')?;
                self.mentions.push((self.line_number, Mention::Table(table)));
                Term::Switch { table: TableId(table) }
            }
            ["indirect"] => Term::Indirect,
            ["return"] => Term::Return,
            ["noreturn", next] => Term::NoReturnCall { next: address(next)? },
            ["trap"] => Term::Trap,
            _ => return Ok(None),
        }))
    }

    fn close(&mut self, term: Term) -> Result<(), Message> {
        let count = self.count()?;
        let block = self.open_block()?;
        if block.first == count {
            return Err("a block without instructions".into());
        }
        block.closed = Some((term, count));
        Ok(())
    }

    fn table(&mut self, id: &str, at: &str, form: TableForm) -> Result<(), Message> {
        self.check_closed()?;
        if numbered(id, 't')? as usize != self.tables.len() {
            return Err(format!("expected table t{}", self.tables.len()));
        }
        self.tables.push(JumpTable { at: address(at)?, form, targets: Vec::new(), cloneable: None });
        Ok(())
    }

    fn load(&mut self, words: &[&str]) -> Result<(), Message> {
        let (inst, base_value, differs) = match *words {
            [inst, "differs", differs] => (inst, None, differs),
            [inst, "base", base, "differs", differs] => (inst, Some(address(base)?), differs),
            _ => return Err("expected: load I [base A] differs I..I".into()),
        };
        let (from, to) = differs.split_once("..").ok_or("expected: I..I")?;
        let (inst, from, to) = (decimal(inst)?, decimal(from)?, decimal(to)?);
        let load = TableLoad { inst: InstId(inst), base_value, differs: (InstId(from), InstId(to)) };
        let last = inst.checked_add(1).ok_or("too large")?;
        for end in [last, from, to] {
            self.mentions.push((self.line_number, Mention::Inst(end)));
        }
        let table = self.tables.last_mut().ok_or("outside of a table")?;
        if table.cloneable.replace(load).is_some() {
            return Err("a second load".into());
        }
        Ok(())
    }

    fn targets(&mut self, words: &[&str]) -> Result<(), Message> {
        let targets: Vec<Dest> = words.iter().map(|w| self.dest(w)).collect::<Result<_, _>>()?;
        self.tables.last_mut().ok_or("outside of a table")?.targets.extend(targets);
        Ok(())
    }

    fn dest(&mut self, word: &str) -> Result<Dest, Message> {
        if !word.starts_with('b') {
            return Ok(Dest::Outside(address(word)?));
        }
        let block = numbered(word, 'b')?;
        self.mentions.push((self.line_number, Mention::Block(block)));
        Ok(Dest::Block(BlockId(block)))
    }

    fn finish(self, end: usize) -> Result<Cfg, ParseError> {
        self.check_closed().map_err(|message| ParseError { line: end, message })?;
        for (line, mention) in &self.mentions {
            let (what, n, count) = match *mention {
                Mention::Block(b) => ("block", b, self.blocks.len()),
                Mention::Table(t) => ("table", t, self.tables.len()),
                Mention::Inst(i) => ("instruction", i, self.insts.len() + 1),
            };
            if n as usize >= count {
                return Err(ParseError { line: *line, message: format!("there is no {what} {n}") });
            }
        }
        let entry = self.entry.ok_or(ParseError { line: end, message: "no function".into() })?;
        let blocks = self.blocks.into_iter().filter_map(|b| {
            let (term, count) = b.closed?;
            let range = AvmaRange::new(b.start, b.end);
            Some(Block { range, insts: b.first..count, term, landing_pad: b.landing_pad })
        });
        Ok(Cfg {
            entry,
            parts: self.parts,
            insts: self.insts,
            blocks: blocks.collect(),
            tables: self.tables,
            functions: self.functions,
        })
    }
}

fn address(word: &str) -> Result<Avma, Message> {
    let digits = word.strip_prefix("0x").filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
    digits
        .and_then(|d| u64::from_str_radix(d, 16).ok())
        .map(Avma)
        .ok_or_else(|| format!("{word:?} is no address"))
}

fn part(word: &str) -> Result<AvmaRange, Message> {
    let (start, end) = word.split_once("..").ok_or("expected: A..A")?;
    Ok(AvmaRange::new(address(start)?, address(end)?))
}

fn decimal(word: &str) -> Result<u32, Message> {
    let digits = Some(word).filter(|d| d.bytes().all(|b| b.is_ascii_digit()));
    digits.and_then(|d| d.parse().ok()).ok_or_else(|| format!("{word:?} is no number"))
}

fn numbered(word: &str, prefix: char) -> Result<u32, Message> {
    word.strip_prefix(prefix)
        .and_then(|n| decimal(n).ok())
        .ok_or_else(|| format!("{word:?} is not {prefix}N"))
}

fn byte(word: &str) -> Result<u8, Message> {
    let hex = word.len() == 2 && word.bytes().all(|b| b.is_ascii_hexdigit());
    let value = if hex { u8::from_str_radix(word, 16).ok() } else { None };
    value.ok_or_else(|| format!("{word:?} is neither a byte nor anything else known here"))
}

fn condition(word: &str) -> Result<ConditionCode, Message> {
    let found = CONDITIONS.iter().find(|c| c.0 == word).map(|c| c.1);
    found.ok_or_else(|| format!("{word:?} is no condition"))
}
