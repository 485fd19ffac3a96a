//! User time as flame graphs: callers above, the functions that they call below, and a frame as wide as its
//! share of the samples.

use crate::text::{cut, grouped, percent, printable};
use engine::{Flame, FlameFrame, FlameSide};
use serde::Serialize;

/// Frames with a smaller share of the samples are left out: they are narrower than a line.
const NARROWEST: f64 = 0.001;
/// The largest number of rows.
const DEEPEST: usize = 40;
/// Height of a row. Tenths of rem.
const ROW: usize = 13;

/// Both sides, drawn.
#[derive(Debug, Serialize)]
pub struct Flames {
    pub sides: Vec<Side>,
    /// Functions whose callers are not known.
    pub without_callers: usize,
}

/// One flame graph.
#[derive(Debug, Serialize)]
pub struct Side {
    pub title: &'static str,
    pub what: String,
    /// A description for readers that cannot see the picture.
    pub label: String,
    /// Height in rem.
    pub height: String,
    pub frames: Vec<Frame>,
}

/// One frame.
#[derive(Debug, Serialize)]
pub struct Frame {
    pub name: String,
    /// The figures, shown while a pointer is on the frame.
    pub about: String,
    /// `o`: the function itself runs in its original. `c`: in its clone. `n`: it has no samples of its own.
    /// `x`: it is no function of the profile.
    pub kind: char,
    /// Left edge and width in percent, upper edge in rem.
    pub left: String,
    pub width: String,
    pub top: String,
}

pub fn draw(flame: &Flame, program: &str) -> Flames {
    let mut sides = vec![side("Before: the originals", &flame.before, program)];
    sides.extend(flame.after.as_ref().map(|after| side("Now, with the clones", after, program)));
    Flames { sides, without_callers: flame.without_callers }
}

fn side(title: &'static str, side: &FlameSide, program: &str) -> Side {
    let mut canvas = Canvas { all: side.samples.max(1), frames: Vec::new(), rows: 0 };
    canvas.add(Bar { name: program, samples: side.samples, own: 0, kind: 'n' }, (0, 0));
    let mut left = 0;
    for root in &side.roots {
        canvas.tree(root, (left, 1));
        left = left.saturating_add(root.samples);
    }
    canvas.add(Bar { name: "[other code]", samples: side.other, own: side.other, kind: 'x' }, (left, 1));
    let hottest = side.roots.first().map(|r| r.name.as_str()).unwrap_or_default();
    Side {
        title,
        what: format!(
            "{} samples, {} of them outside the functions of the profile",
            grouped(side.samples),
            percent(side.other as f64 / canvas.all as f64)
        ),
        label: format!(
            "flame graph of {} samples; the widest: {}",
            grouped(side.samples),
            printable(&cut(hottest, 60))
        ),
        height: rem(canvas.rows * ROW),
        frames: canvas.frames,
    }
}

fn rem(tenths: usize) -> String {
    format!("{}.{}", tenths / 10, tenths % 10)
}

struct Canvas {
    all: u64,
    frames: Vec<Frame>,
    rows: usize,
}

/// One bar of the graph.
#[derive(Clone, Copy)]
struct Bar<'a> {
    name: &'a str,
    samples: u64,
    /// Samples in it alone.
    own: u64,
    /// Its class on the page.
    kind: char,
}

impl Canvas {
    fn tree(&mut self, f: &FlameFrame, (left, row): (u64, usize)) {
        let kind = match f.in_clone {
            _ if f.own == 0 => 'n',
            Some(share) if share >= 0.5 => 'c',
            _ => 'o',
        };
        if !self.add(Bar { name: &f.name, samples: f.samples, own: f.own, kind }, (left, row)) {
            return;
        }
        let mut left = left;
        for callee in &f.callees {
            self.tree(callee, (left, row + 1));
            left = left.saturating_add(callee.samples);
        }
    }

    /// Adds a frame. Returns false if it has no place: it is too narrow or too deep.
    fn add(&mut self, bar: Bar<'_>, (left, row): (u64, usize)) -> bool {
        let Bar { name, samples, own, kind } = bar;
        let share = |n: u64| n as f64 / self.all as f64;
        if share(samples) < NARROWEST || row >= DEEPEST {
            return false;
        }
        let name = printable(name);
        let own = if own > 0 { format!(", {} of them in it alone", grouped(own)) } else { String::new() };
        let about = format!("{name}: {} ({} samples{own})", percent(share(samples)), grouped(samples));
        self.frames.push(Frame {
            about,
            name,
            kind,
            left: format!("{:.3}", share(left) * 100.0),
            width: format!("{:.3}", share(samples) * 100.0),
            top: rem(row * ROW),
        });
        self.rows = self.rows.max(row + 1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(name: &str, own: u64, in_clone: Option<f64>, callees: Vec<FlameFrame>) -> FlameFrame {
        let samples = own + callees.iter().map(|c| c.samples).sum::<u64>();
        FlameFrame { name: name.to_owned(), samples, own, in_clone, callees }
    }

    #[test]
    fn frames_are_as_wide_as_their_samples() {
        let leaf = frame("leaf", 30, Some(1.0), Vec::new());
        let tiny = frame("tiny", 1, None, Vec::new());
        let root = frame("root", 0, None, vec![frame("mid", 20, Some(0.1), vec![leaf]), tiny]);
        let other = 2000 - root.samples;
        let drawn = side("t", &FlameSide { samples: 2000, other, roots: vec![root] }, "prog");
        let shown: Vec<_> = drawn
            .frames
            .iter()
            .map(|f| (f.name.as_str(), f.kind, f.left.as_str(), f.width.as_str(), f.top.as_str()))
            .collect();
        assert_eq!(
            shown,
            [
                ("prog", 'n', "0.000", "100.000", "0.0"),
                ("root", 'n', "0.000", "2.550", "1.3"),
                ("mid", 'o', "0.000", "2.500", "2.6"),
                ("leaf", 'c', "0.000", "1.500", "3.9"),
                ("[other code]", 'x', "2.550", "97.450", "1.3"),
            ]
        );
        assert_eq!(drawn.height, "5.2");
        assert_eq!(drawn.frames[2].about, "mid: 2.5% (50 samples, 20 of them in it alone)");
    }

    #[test]
    fn deep_stacks_end_at_the_last_row() {
        let deep = (0..100).fold(frame("f", 5, None, Vec::new()), |f, _| frame("f", 0, None, vec![f]));
        let drawn = side("t", &FlameSide { samples: 5, other: 0, roots: vec![deep] }, "prog");
        assert_eq!(drawn.frames.len(), DEEPEST);
    }
}
