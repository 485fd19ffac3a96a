//! Formats one function for people: its graph, with original and clone side by side.

use crate::text::{cut, grouped, percent, printable};
use engine::{Anatomy, Asm, BlockAnatomy, CodeRange, ExplainReport, FunctionReport, Pairing, Warmth};
use std::fmt::Write;

/// Widest column of code. Characters.
const WIDEST: usize = 64;

pub fn function(r: &ExplainReport) -> String {
    let functions = r.functions.iter().filter_map(|f| Some((f, f.anatomy.as_ref()?)));
    functions.map(|(f, a)| one(r, f, a)).collect::<Vec<_>>().join("\n\n")
}

fn one(r: &ExplainReport, f: &FunctionReport, a: &Anatomy) -> String {
    let mut s = printable(a.demangled.as_deref().unwrap_or(&f.name));
    if a.demangled.is_some() {
        let _ = write!(s, "\n  symbol     {}", printable(&f.name));
    }
    let _ = write!(
        s,
        "\n  process    {} (pid {}), {}, generation {}",
        printable(&r.exe),
        r.pid,
        r.state.word(),
        r.generation
    );
    let _ = write!(
        s,
        "\n  original   {} {}; stated address {}",
        printable(&a.module),
        ranges(&a.original),
        a.stated
    );
    if !a.clone.is_empty() {
        let _ = write!(s, "\n  clone      {}", ranges(&a.clone));
    }
    if !a.redirects.is_empty() {
        let redirects: Vec<String> = a.redirects.iter().map(|(kind, n)| format!("{kind} {n}")).collect();
        let _ = write!(s, "\n  redirects  {}", redirects.join(", "));
    }
    let _ = write!(s, "\n  standing   {}", a.why);
    match (a.counted, a.entered) {
        (Some(counted), Some(entered)) => {
            let how = if counted { "counted" } else { "inferred from samples; only ratios mean something" };
            let _ = write!(
                s,
                "\n  counts     entered {}, {} sample{} ({how})",
                grouped(entered),
                grouped(f.samples),
                if f.samples == 1 { "" } else { "s" }
            );
        }
        _ => s.push_str("\n  counts     none known"),
    }
    let width = a
        .blocks
        .iter()
        .flat_map(|b| &b.code)
        .filter_map(|row| row.original.as_ref())
        .map(|i| asm(i).chars().count());
    let width = width.max().unwrap_or(0).min(WIDEST);
    for b in &a.blocks {
        block(&mut s, b, width, !a.clone.is_empty());
    }
    if a.blocks.is_empty() {
        s.push_str("\n\nits graph could not be made, so there is none to show");
    }
    s
}

fn ranges(all: &[CodeRange]) -> String {
    let each = |(i, s): (usize, &CodeRange)| {
        let what = ["", "rarely run: "].get(i).copied().unwrap_or("");
        format!("{what}{}, {} bytes", s.at, s.bytes)
    };
    all.iter().enumerate().map(each).collect::<Vec<_>>().join("; ")
}

fn block(s: &mut String, b: &BlockAnatomy, width: usize, has_clone: bool) {
    let _ = write!(s, "\n\nblock {} at {}", b.block, b.at);
    match (&b.clone, b.runs) {
        (Some(at), runs) => {
            let _ = write!(s, ", clone {at} [{}]", runs.word());
        }
        (None, _) if has_clone => s.push_str(" [left to the original]"),
        (None, Warmth::Hot | Warmth::Warm | Warmth::Original) => {}
    }
    if let Some(n) = b.count {
        let _ = write!(s, ", ran {}", grouped(n));
    }
    if b.landing_pad {
        s.push_str(", exceptions come here");
    }
    for e in &b.edges {
        let _ = write!(s, "\n  {:<6} ", e.way);
        match e.block {
            Some(to) => {
                let _ = write!(s, "block {to}");
            }
            None => {
                let _ = write!(s, "{} (another function, or not in the graph)", e.to);
            }
        }
        if let Some(n) = e.count {
            let _ = write!(s, "  {}", grouped(n));
        }
        if let Some(p) = e.probability {
            let _ = write!(s, "  {}", percent(p));
        }
        if e.leaves_clone {
            s.push_str("  goes on in the original");
        }
    }
    if b.edges.is_empty() {
        let _ = write!(s, "\n  ends: {}", b.ends);
    }
    for row in &b.code {
        let left = row.original.as_ref().map_or(String::new(), |i| cut(&asm(i), width));
        let (mark, right) = match (row.pairing, &row.clone) {
            (Pairing::Original, _) => {
                let _ = write!(s, "\n    {left}");
                continue;
            }
            (Pairing::Copy, Some(i)) => (' ', asm(i)),
            (Pairing::Again, Some(i)) => ('=', asm(i)),
            (Pairing::Extra, Some(i)) => ('+', asm(i)),
            (Pairing::Inlined, Some(i)) => ('*', format!("{}  (in place of the call)", asm(i))),
            (Pairing::Dropped, _) | (_, None) => ('-', "(not needed)".to_owned()),
        };
        let _ = write!(s, "\n    {left:<width$} {mark}| {right}");
    }
}

fn asm(i: &Asm) -> String {
    match &i.to {
        Some(to) => format!("{}  {} <{}>", i.at, i.text, printable(to)),
        None => format!("{}  {}", i.at, i.text),
    }
}
