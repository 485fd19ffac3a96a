//! Printing of the text form.

use super::{
    Binding, BlockProfile, FunctionKey, FunctionProfile, Looks, Origin, PROFILE_VERSION, Place, Profile,
};
use std::fmt::{self, Display, Write};

/// The comment at the start of each file, for readers without documentation.
const HELP: &str = "\
# How often code ran, by module (build-id) and function (stated address, hash of its graph). Read by whet.
# A block: +START +LAST-INSTRUCTION COUNT, then +TO COUNT for each edge; distances from the entry in hexadecimal.
# An indirect call (leads; table: by its virtual table): +WHERE of LOOKS, then ADDRESS[@BUILD-ID] LOOKS that saw it.
";

/// The keywords for the origins of counts.
pub(super) const ORIGINS: [(&str, Origin); 3] =
    [("inferred", Origin::Inferred), ("stayed", Origin::Stayed), ("counted", Origin::Counted)];

/// The keywords for the kinds of symbols.
pub(super) const BINDINGS: [(&str, Binding); 4] = [
    ("none", Binding::None),
    ("shared", Binding::Shared),
    ("local", Binding::Local),
    ("global", Binding::Global),
];

impl Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_head(f, self)?;
        for (id, module) in &self.modules {
            writeln!(f, "module {id}{}", Text(&module.name))?;
            for (key, function) in &module.functions {
                write_function(f, *key, function)?;
            }
        }
        f.write_str("end\n")
    }
}

fn write_head(f: &mut impl Write, p: &Profile) -> fmt::Result {
    writeln!(f, "whet-profile {PROFILE_VERSION}")?;
    f.write_str(HELP)?;
    for exe in &p.exes {
        writeln!(f, "exe{}", Text(exe))?;
    }
    let numbers = [
        ("runs", p.runs),
        ("when", p.when),
        ("sampled", p.sampled),
        ("counted", p.counted),
        ("samples", p.samples),
        ("left-out", p.left_out),
    ];
    numbers.iter().filter(|(_, n)| *n > 0).try_for_each(|(word, n)| writeln!(f, "{word} {n}"))
}

fn write_function(f: &mut impl Write, key: FunctionKey, p: &FunctionProfile) -> fmt::Result {
    let binding = BINDINGS.iter().find(|b| b.1 == p.binding).map_or("none", |b| b.0);
    writeln!(
        f,
        "function {} {:016x} {} entered {} samples {} size {:#x} {binding}{}",
        key.at,
        key.hash,
        ORIGINS.iter().find(|o| o.1 == p.origin).map_or("inferred", |o| o.0),
        p.entered,
        p.samples,
        p.size,
        Text(&p.name)
    )?;
    if let Some(shape) = p.shape {
        writeln!(f, "shape {shape:016x}")?;
    }
    if !p.hits.is_empty() {
        f.write_str("hits")?;
        p.hits.iter().try_for_each(|(at, n)| write!(f, " {} {n}", Distance(*at)))?;
        writeln!(f)?;
    }
    for (start, BlockProfile { last, count, edges }) in &p.blocks {
        write!(f, "{} {} {count}", Distance(*start), Distance(*last))?;
        for (to, n) in edges {
            write!(f, " {} {n}", Distance(*to))?;
        }
        writeln!(f)?;
    }
    for ((at, callee), n) in &p.calls {
        writeln!(f, "call {} {callee} {n}", Distance(*at))?;
    }
    for (at, site) in &p.sites {
        write_looks(f, "leads", *at, &site.callees)?;
        write_looks(f, "table", *at, &site.tables)?;
    }
    Ok(())
}

fn write_looks(f: &mut impl Write, word: &str, at: i64, looks: &Looks) -> fmt::Result {
    if *looks == Looks::default() {
        return Ok(());
    }
    write!(f, "{word} {} of {}", Distance(at), looks.all)?;
    looks.saw.iter().try_for_each(|(place, n)| write!(f, " {place} {n}"))?;
    writeln!(f)
}

impl Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.module {
            None => self.at.fmt(f),
            Some(id) => write!(f, "{}@{id}", self.at),
        }
    }
}

/// A distance, printed with its sign.
struct Distance(i64);

impl Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { '-' } else { '+' };
        write!(f, "{sign}{:x}", self.0.unsigned_abs())
    }
}

/// A name, printed as the last word of a line; nothing if it is empty.
struct Text<'a>(&'a str);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = clean(self.0);
        if name.is_empty() { Ok(()) } else { write!(f, " {name}") }
    }
}

/// Returns a name without leading and trailing blanks, and with control characters replaced. Such characters
/// would break the line or be lost at its ends.
pub(super) fn clean(name: &str) -> String {
    name.trim().chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Returns the size of the text without its functions. Bytes.
pub(super) fn fixed_len(p: &Profile) -> usize {
    let mut len = Length(0);
    let _ = write_head(&mut len, p);
    let _ = p.modules.iter().try_for_each(|(id, m)| writeln!(len, "module {id}{}", Text(&m.name)));
    // The line `left-out` may grow, so it is counted at its longest. The other line is `end`.
    len.0 + "left-out 18446744073709551615\nend\n".len()
}

/// Returns the size of the text of one function. Bytes.
pub(super) fn function_len(key: FunctionKey, p: &FunctionProfile) -> usize {
    let mut len = Length(0);
    let _ = write_function(&mut len, key, p);
    len.0
}

struct Length(usize);

impl Write for Length {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.0 += s.len();
        Ok(())
    }
}
