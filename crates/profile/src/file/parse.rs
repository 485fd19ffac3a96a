//! Parsing of the text form.

use super::print::{BINDINGS, ORIGINS};
use super::tokens::{Fault, Parsed, Token, Tokens, hex};
use super::{
    Binding, BlockProfile, BuildId, FunctionKey, FunctionProfile, Looks, ModuleProfile, Origin,
    PROFILE_VERSION, Profile,
};
use std::collections::BTreeMap;
use std::fmt;

/// The error for a text that is not a profile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProfileError {
    /// The line, from 1. If the text ends too early, one past the last line.
    pub line: usize,
    /// The column, from 1. Characters.
    pub column: usize,
    /// What is wrong there.
    pub message: String,
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.message)
    }
}

impl std::error::Error for ProfileError {}

impl std::str::FromStr for Profile {
    type Err = ProfileError;

    /// Parses the text form. The documentation at the head of `file.rs` describes it.
    ///
    /// # Errors
    /// Returns [`ProfileError`] at the first place that cannot be parsed, is repeated, or lacks something.
    fn from_str(text: &str) -> Result<Self, ProfileError> {
        let mut parser = Parser::default();
        let mut lines = 0;
        for (line, i) in text.lines().zip(1..) {
            lines = i;
            if line.trim_ascii().is_empty() || line.starts_with('#') {
                continue;
            }
            let mut tokens = Tokens { line, at: 0 };
            parser.line(&mut tokens).map_err(|Fault(at, message)| ProfileError {
                line: i,
                column: line.get(..at).map_or(1, |before| before.chars().count() + 1),
                message,
            })?;
        }
        match parser.stage {
            Stage::End => Ok(parser.profile),
            Stage::Start => Err(early(lines, "no profile: its first line is `whet-profile 3`")),
            Stage::Inside => Err(early(lines, "the text is cut off: it ends with the line `end`")),
        }
    }
}

impl Profile {
    /// Parses a profile from a file's bytes.
    ///
    /// # Errors
    /// Returns [`ProfileError`], also if the bytes are not UTF-8.
    pub fn read(bytes: &[u8]) -> Result<Self, ProfileError> {
        std::str::from_utf8(bytes).map_err(|e| not_text(bytes, e.valid_up_to()))?.parse()
    }
}

fn not_text(bytes: &[u8], at: usize) -> ProfileError {
    let before = String::from_utf8_lossy(bytes.get(..at).unwrap_or_default());
    let line = before.rsplit('\n').next().unwrap_or_default();
    let message = "these bytes are no UTF-8 text".to_owned();
    ProfileError { line: before.matches('\n').count() + 1, column: line.chars().count() + 1, message }
}

fn early(lines: usize, message: &str) -> ProfileError {
    ProfileError { line: lines + 1, column: 1, message: message.to_owned() }
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    /// Nothing has been read.
    #[default]
    Start,
    Inside,
    End,
}

#[derive(Default)]
struct Parser {
    stage: Stage,
    /// The version that the text states.
    version: u64,
    profile: Profile,
    /// The keywords of the head's numbers that have been read.
    said: Vec<String>,
    module: Option<BuildId>,
    function: Option<FunctionKey>,
}

impl Parser {
    fn line(&mut self, tokens: &mut Tokens<'_>) -> Parsed<()> {
        let first = tokens.next("a word")?;
        match (self.stage, first.text) {
            (Stage::Start, "whet-profile") => {
                let (at, version) = (tokens.at, tokens.number()?);
                if !(1..=u64::from(PROFILE_VERSION)).contains(&version) {
                    let known = format!("version {version} is not known, only those up to {PROFILE_VERSION}");
                    return Err(Fault(at + 1, known));
                }
                self.version = version;
                self.stage = Stage::Inside;
            }
            (Stage::Start, _) => return Err(first.fault("no profile: expected `whet-profile 3`")),
            (Stage::End, _) => return Err(first.fault("expected nothing after `end`")),
            (Stage::Inside, "end") => self.stage = Stage::End,
            (Stage::Inside, "module") => self.module(tokens)?,
            (Stage::Inside, "function") => self.function(tokens)?,
            (Stage::Inside, "call") => self.call(first, tokens)?,
            (Stage::Inside, "shape") => self.shape(first, tokens)?,
            (Stage::Inside, "hits") => self.hits(first, tokens)?,
            (Stage::Inside, "leads") => self.site(first, tokens, false)?,
            (Stage::Inside, "table") => self.site(first, tokens, true)?,
            (Stage::Inside, text) if text.starts_with(['+', '-']) => self.block(first, tokens)?,
            (Stage::Inside, _) => self.head(first, tokens)?,
        }
        tokens.done()
    }

    fn head(&mut self, first: Token<'_>, tokens: &mut Tokens<'_>) -> Parsed<()> {
        let p = &mut self.profile;
        let number = match first.text {
            "exe" if self.module.is_none() => {
                let exe = tokens.rest();
                return if p.exes.insert(exe) { Ok(()) } else { Err(first.fault("said twice")) };
            }
            "runs" => &mut p.runs,
            "when" => &mut p.when,
            "sampled" => &mut p.sampled,
            "counted" => &mut p.counted,
            "samples" => &mut p.samples,
            "left-out" => &mut p.left_out,
            _ => return Err(first.fault("expected a line's first word")),
        };
        if self.module.is_some() || self.said.iter().any(|s| s == first.text) {
            return Err(first.fault("expected once, before the modules"));
        }
        self.said.push(first.text.to_owned());
        *number = tokens.number()?;
        Ok(())
    }

    fn module(&mut self, tokens: &mut Tokens<'_>) -> Parsed<()> {
        let token = tokens.next("a build-id")?;
        let id = token.build_id()?;
        let module = ModuleProfile { name: tokens.rest(), functions: BTreeMap::new() };
        if self.profile.modules.insert(id.clone(), module).is_some() {
            return Err(token.fault("a module is listed once"));
        }
        self.module = Some(id);
        self.function = None;
        Ok(())
    }

    fn function(&mut self, tokens: &mut Tokens<'_>) -> Parsed<()> {
        let token = tokens.next("an address")?;
        let at = token.address()?;
        let hash = tokens.next("a hash")?;
        let key = FunctionKey {
            at,
            hash: hex(hash.text).ok_or_else(|| hash.fault("expected hexadecimal digits"))?,
        };
        let how = tokens.next("how it was counted")?;
        let known = ORIGINS.iter().find(|o| o.0 == how.text && (self.version > 1 || o.1 != Origin::Stayed));
        let wrong = || how.fault("expected `counted`, `inferred` or `stayed`");
        let origin = known.ok_or_else(wrong)?.1;
        tokens.keyword("entered")?;
        let entered = tokens.number()?;
        tokens.keyword("samples")?;
        let samples = tokens.number()?;
        tokens.keyword("size")?;
        let size = tokens.next("a size")?.address()?.0;
        let kind = tokens.next("a kind of symbol")?;
        let binding: Binding = BINDINGS
            .iter()
            .find(|b| b.0 == kind.text)
            .ok_or_else(|| kind.fault("expected `global`, `local`, `shared` or `none`"))?
            .1;
        let f = FunctionProfile {
            name: tokens.rest(),
            binding,
            size,
            origin,
            samples,
            entered,
            ..Default::default()
        };
        let module = self.module.as_ref().and_then(|id| self.profile.modules.get_mut(id));
        let module = module.ok_or_else(|| token.fault("expected a module first"))?;
        if module.functions.insert(key, f).is_some() {
            return Err(token.fault("a function is listed once"));
        }
        self.function = Some(key);
        Ok(())
    }

    fn current(&mut self, first: Token<'_>) -> Parsed<&mut FunctionProfile> {
        let module = self.module.as_ref().and_then(|id| self.profile.modules.get_mut(id));
        let function = module.zip(self.function).and_then(|(m, key)| m.functions.get_mut(&key));
        function.ok_or_else(|| first.fault("expected a function first"))
    }

    fn block(&mut self, first: Token<'_>, tokens: &mut Tokens<'_>) -> Parsed<()> {
        let start = first.distance()?;
        let mut block =
            BlockProfile { last: tokens.distance()?, count: tokens.number()?, edges: BTreeMap::new() };
        while !tokens.is_done() {
            let to = tokens.next("a distance")?;
            if block.edges.insert(to.distance()?, tokens.number()?).is_some() {
                return Err(to.fault("an edge is listed once"));
            }
        }
        if self.current(first)?.blocks.insert(start, block).is_some() {
            return Err(first.fault("a block is listed once"));
        }
        Ok(())
    }

    fn call(&mut self, first: Token<'_>, tokens: &mut Tokens<'_>) -> Parsed<()> {
        let from = tokens.distance()?;
        let whom = tokens.next("an address")?;
        let (place, count) = (whom.place()?, tokens.number()?);
        if self.current(first)?.calls.insert((from, place), count).is_some() {
            return Err(whom.fault("a call is listed once"));
        }
        Ok(())
    }

    /// Returns an error for a line that exists only from version `since` on, if the text has an earlier one.
    fn since(&self, since: u64, first: Token<'_>) -> Parsed<()> {
        let fault = || first.fault(&format!("version {} has no such line", self.version));
        if self.version >= since { Ok(()) } else { Err(fault()) }
    }

    fn shape(&mut self, first: Token<'_>, tokens: &mut Tokens<'_>) -> Parsed<()> {
        self.since(3, first)?;
        let token = tokens.next("a hash")?;
        let shape = hex(token.text).ok_or_else(|| token.fault("expected hexadecimal digits"))?;
        if self.current(first)?.shape.replace(shape).is_some() {
            return Err(first.fault("expected one shape of each function"));
        }
        Ok(())
    }

    fn hits(&mut self, first: Token<'_>, tokens: &mut Tokens<'_>) -> Parsed<()> {
        self.since(2, first)?;
        let mut hits = BTreeMap::new();
        while !tokens.is_done() {
            let at = tokens.next("a distance")?;
            if hits.insert(at.distance()?, tokens.number()?).is_some() {
                return Err(at.fault("a block is listed once"));
            }
        }
        let own = &mut self.current(first)?.hits;
        if !own.is_empty() || hits.is_empty() {
            return Err(first.fault("expected some blocks, once for each function"));
        }
        *own = hits;
        Ok(())
    }

    fn site(&mut self, first: Token<'_>, tokens: &mut Tokens<'_>, by_table: bool) -> Parsed<()> {
        self.since(2, first)?;
        let at = tokens.distance()?;
        tokens.keyword("of")?;
        let mut looks = Looks { all: tokens.number()?, saw: BTreeMap::new() };
        while !tokens.is_done() {
            let place = tokens.next("an address")?;
            if looks.saw.insert(place.place()?, tokens.number()?).is_some() {
                return Err(place.fault("a place is listed once"));
            }
        }
        let site = self.current(first)?.sites.entry(at).or_default();
        let own = if by_table { &mut site.tables } else { &mut site.callees };
        if *own != Looks::default() || looks == Looks::default() {
            return Err(first.fault("expected some looks, once for each instruction"));
        }
        *own = looks;
        Ok(())
    }
}
