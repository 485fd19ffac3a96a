//! From text to profile.

use super::print::{BINDINGS, clean};
use super::{
    Binding, BlockProfile, BuildId, Callee, FunctionKey, FunctionProfile, ModuleProfile, PROFILE_VERSION,
    Profile,
};
use addr::Svma;
use std::collections::BTreeMap;
use std::fmt;

/// A text that is no profile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProfileError {
    /// The line, from 1; one past the last where the text ends too early.
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

    /// Reads the text form (the module's head describes it).
    ///
    /// # Errors
    /// [`ProfileError`] at the first place that cannot be understood, is said twice, or is missing.
    fn from_str(text: &str) -> Result<Self, ProfileError> {
        let mut parser = Parser::default();
        let mut lines = 0;
        for (line, i) in text.lines().zip(1..) {
            lines = i;
            if line.trim_ascii().is_empty() || line.starts_with('#') {
                continue;
            }
            let mut words = Words { line, at: 0 };
            parser.line(&mut words).map_err(|Fault(at, message)| ProfileError {
                line: i,
                column: line.get(..at).map_or(1, |before| before.chars().count() + 1),
                message,
            })?;
        }
        match parser.stage {
            Stage::End => Ok(parser.profile),
            Stage::Start => Err(early(lines, "no profile: its first line is `whet-profile 1`")),
            Stage::Inside => Err(early(lines, "the text is cut off: it ends with the line `end`")),
        }
    }
}

impl Profile {
    /// The same from a file's bytes.
    ///
    /// # Errors
    /// [`ProfileError`], also where they are not UTF-8.
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

/// What is wrong, and at which byte of the line.
struct Fault(usize, String);

type Parsed<T> = Result<T, Fault>;

/// The words of a line.
struct Words<'a> {
    line: &'a str,
    at: usize,
}

#[derive(Clone, Copy)]
struct Word<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Words<'a> {
    fn skip_blanks(&mut self) -> &'a str {
        let rest = self.line.get(self.at..).unwrap_or_default();
        let trimmed = rest.trim_ascii_start();
        self.at += rest.len() - trimmed.len();
        trimmed
    }

    fn next(&mut self, what: &str) -> Parsed<Word<'a>> {
        let rest = self.skip_blanks();
        let text = rest.split(|c: char| c.is_ascii_whitespace()).next().unwrap_or_default();
        if text.is_empty() {
            return Err(Fault(self.at, format!("expected {what}")));
        }
        let word = Word { text, at: self.at };
        self.at += text.len();
        Ok(word)
    }

    /// All that is left, which may be nothing.
    fn rest(&mut self) -> String {
        let rest = clean(self.skip_blanks());
        self.at = self.line.len();
        rest
    }

    fn is_done(&mut self) -> bool {
        self.skip_blanks().is_empty()
    }

    fn done(&mut self) -> Parsed<()> {
        if self.is_done() { Ok(()) } else { Err(Fault(self.at, "expected the end of the line".to_owned())) }
    }

    fn word(&mut self, wanted: &str) -> Parsed<()> {
        let word = self.next(&format!("`{wanted}`"))?;
        if word.text == wanted { Ok(()) } else { Err(word.fault(&format!("expected `{wanted}`"))) }
    }

    fn number(&mut self) -> Parsed<u64> {
        let word = self.next("a number")?;
        let digits = Some(word.text).filter(|t| t.bytes().all(|b| b.is_ascii_digit()));
        digits.and_then(|t| t.parse().ok()).ok_or_else(|| word.fault("expected a number below 2^64"))
    }

    fn distance(&mut self) -> Parsed<i64> {
        self.next("a distance")?.distance()
    }
}

impl Word<'_> {
    fn fault(self, message: &str) -> Fault {
        Fault(self.at, format!("{message}, not {:?}", self.text))
    }

    fn distance(self) -> Parsed<i64> {
        let wrong = || self.fault("expected a distance such as +1f or -20");
        let (negative, digits) = match self.text.as_bytes() {
            [b'+', ..] => (false, &self.text[1..]),
            [b'-', ..] => (true, &self.text[1..]),
            _ => return Err(wrong()),
        };
        let size = hex(digits).ok_or_else(wrong)?;
        let signed = if negative { 0i64.checked_sub_unsigned(size) } else { i64::try_from(size).ok() };
        signed.ok_or_else(wrong)
    }

    fn address(self) -> Parsed<Svma> {
        let digits = self.text.strip_prefix("0x").and_then(hex);
        digits.map(Svma).ok_or_else(|| self.fault("expected an address such as 0x1f"))
    }

    fn build_id(self) -> Parsed<BuildId> {
        BuildId::parse(self.text)
            .ok_or_else(|| self.fault("expected a build-id: an even number of hexadecimal digits"))
    }
}

fn hex(digits: &str) -> Option<u64> {
    let sound = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    sound.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    /// Nothing was read.
    #[default]
    Start,
    Inside,
    End,
}

#[derive(Default)]
struct Parser {
    stage: Stage,
    profile: Profile,
    /// Numbers of the head that were said.
    said: Vec<String>,
    module: Option<BuildId>,
    function: Option<FunctionKey>,
}

impl Parser {
    fn line(&mut self, words: &mut Words<'_>) -> Parsed<()> {
        let first = words.next("a word")?;
        match (self.stage, first.text) {
            (Stage::Start, "whet-profile") => {
                let (at, version) = (words.at, words.number()?);
                if version != u64::from(PROFILE_VERSION) {
                    let known = format!("version {version} is not known, only {PROFILE_VERSION}");
                    return Err(Fault(at + 1, known));
                }
                self.stage = Stage::Inside;
            }
            (Stage::Start, _) => return Err(first.fault("no profile: expected `whet-profile 1`")),
            (Stage::End, _) => return Err(first.fault("expected nothing after `end`")),
            (Stage::Inside, "end") => self.stage = Stage::End,
            (Stage::Inside, "module") => self.module(words)?,
            (Stage::Inside, "function") => self.function(words)?,
            (Stage::Inside, "call") => self.call(first, words)?,
            (Stage::Inside, text) if text.starts_with(['+', '-']) => self.block(first, words)?,
            (Stage::Inside, _) => self.head(first, words)?,
        }
        words.done()
    }

    fn head(&mut self, first: Word<'_>, words: &mut Words<'_>) -> Parsed<()> {
        let p = &mut self.profile;
        let number = match first.text {
            "exe" if self.module.is_none() => {
                let exe = words.rest();
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
        *number = words.number()?;
        Ok(())
    }

    fn module(&mut self, words: &mut Words<'_>) -> Parsed<()> {
        let word = words.next("a build-id")?;
        let id = word.build_id()?;
        let module = ModuleProfile { name: words.rest(), functions: BTreeMap::new() };
        if self.profile.modules.insert(id.clone(), module).is_some() {
            return Err(word.fault("a module is told of once"));
        }
        self.module = Some(id);
        self.function = None;
        Ok(())
    }

    fn function(&mut self, words: &mut Words<'_>) -> Parsed<()> {
        let word = words.next("an address")?;
        let at = word.address()?;
        let hash = words.next("a hash")?;
        let key = FunctionKey {
            at,
            hash: hex(hash.text).ok_or_else(|| hash.fault("expected hexadecimal digits"))?,
        };
        let source = words.next("`counted` or `inferred`")?;
        let counted = match source.text {
            "counted" => true,
            "inferred" => false,
            _ => return Err(source.fault("expected `counted` or `inferred`")),
        };
        words.word("entered")?;
        let entered = words.number()?;
        words.word("samples")?;
        let samples = words.number()?;
        words.word("size")?;
        let size = words.next("a size")?.address()?.0;
        let kind = words.next("a kind of symbol")?;
        let binding: Binding = BINDINGS
            .iter()
            .find(|b| b.0 == kind.text)
            .ok_or_else(|| kind.fault("expected `global`, `local`, `shared` or `none`"))?
            .1;
        let f = FunctionProfile {
            name: words.rest(),
            binding,
            size,
            counted,
            samples,
            entered,
            ..Default::default()
        };
        let module = self.module.as_ref().and_then(|id| self.profile.modules.get_mut(id));
        let module = module.ok_or_else(|| word.fault("expected a module first"))?;
        if module.functions.insert(key, f).is_some() {
            return Err(word.fault("a function is told of once"));
        }
        self.function = Some(key);
        Ok(())
    }

    fn current(&mut self, first: Word<'_>) -> Parsed<&mut FunctionProfile> {
        let module = self.module.as_ref().and_then(|id| self.profile.modules.get_mut(id));
        let function = module.zip(self.function).and_then(|(m, key)| m.functions.get_mut(&key));
        function.ok_or_else(|| first.fault("expected a function first"))
    }

    fn block(&mut self, first: Word<'_>, words: &mut Words<'_>) -> Parsed<()> {
        let start = first.distance()?;
        let mut block =
            BlockProfile { last: words.distance()?, count: words.number()?, edges: BTreeMap::new() };
        while !words.is_done() {
            let to = words.next("a distance")?;
            if block.edges.insert(to.distance()?, words.number()?).is_some() {
                return Err(to.fault("an edge is told of once"));
            }
        }
        if self.current(first)?.blocks.insert(start, block).is_some() {
            return Err(first.fault("a block is told of once"));
        }
        Ok(())
    }

    fn call(&mut self, first: Word<'_>, words: &mut Words<'_>) -> Parsed<()> {
        let from = words.distance()?;
        let whom = words.next("an address")?;
        let (at, module) = match whom.text.split_once('@') {
            None => (whom.address()?, None),
            Some((at, id)) => {
                let id = Word { text: id, at: whom.at + at.len() + 1 };
                (Word { text: at, at: whom.at }.address()?, Some(id.build_id()?))
            }
        };
        let count = words.number()?;
        if self.current(first)?.calls.insert((from, Callee { module, at }), count).is_some() {
            return Err(whom.fault("a call is told of once"));
        }
        Ok(())
    }
}
