//! Heat as pictures. A cell is one or more pages of code, or one cache line of a page. Its colour says how
//! many bytes were executed there.

use crate::text::{cut, grouped, printable};
use engine::{Heat, HeatSide, Space};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Cells in a row of a picture of pages.
const ACROSS: u64 = 128;
/// Cache lines in a page.
const LINES: u64 = 64;
/// Rows that all spaces of a side may take together. If they are larger, a cell stands for more pages.
const ROWS: u64 = 160;
/// How many of the hottest pages are shown line by line.
const PAGES: usize = 48;
/// Steps of colour, coolest first: `h0` to `h6` in the page.
pub const STEPS: usize = 7;

/// One side, drawn.
#[derive(Debug, Serialize)]
pub struct Side {
    pub title: &'static str,
    pub what: String,
    /// The pages of each space.
    pub spaces: Vec<Picture>,
    /// The cache lines of the hottest pages.
    pub lines: Picture,
}

/// One picture.
#[derive(Debug, Default, Serialize)]
pub struct Picture {
    pub name: String,
    pub about: String,
    /// A description for readers that cannot see the picture.
    pub label: String,
    pub width: u64,
    pub height: u64,
    /// Path data of all cells, below the heat; in `steps`, of the cells of each step of heat.
    pub empty: String,
    pub steps: Vec<String>,
}

/// Both sides on one scale, with the ends of the scales.
#[derive(Debug, Serialize)]
pub struct Maps {
    pub sides: Vec<Side>,
    pub functions: String,
    pub left_out: usize,
    /// How many KiB of code a cell of the pictures of pages stands for.
    pub cell_kib: u64,
    pub page_scale: (String, String),
    pub line_scale: (String, String),
}

pub fn draw(heat: &Heat) -> Maps {
    let sides = [("Before: the originals", &heat.before), ("After: the clones", &heat.after)];
    let spaces = || sides.iter().flat_map(|(_, side)| &side.spaces);
    let pages_per_cell = pages_per_cell(&sides.map(|(_, s)| s.spaces.as_slice()));
    let by_cell = |s: &Space| sums(s, LINES * pages_per_cell);
    let cells = Scale::of(spaces().flat_map(by_cell).map(|(_, n)| n));
    let lines = Scale::of(spaces().flat_map(|s| s.lines.iter().map(|l| l.1)));
    let side = |(title, side): &(&'static str, &HeatSide)| Side {
        title,
        what: format!(
            "{} lines of 64 bytes in {} pages of 4 KiB; 99% of the executed bytes in {} lines, {} pages",
            grouped(side.lines),
            grouped(side.pages),
            grouped(side.hot_lines),
            grouped(side.hot_pages)
        ),
        spaces: side.spaces.iter().map(|s| pages(s, pages_per_cell, &cells)).collect(),
        lines: hottest(&side.spaces, &lines),
    };
    Maps {
        sides: sides.iter().map(side).collect(),
        functions: grouped(heat.functions as u64),
        left_out: heat.left_out,
        cell_kib: 4 * pages_per_cell,
        page_scale: cells.ends(),
        line_scale: lines.ends(),
    }
}

/// Returns how many pages a cell stands for: the smallest power of two at which neither side takes too many
/// rows.
fn pages_per_cell(sides: &[&[Space]]) -> u64 {
    let rows = |s: &[Space], n: u64| s.iter().map(|s| s.pages.div_ceil(n).div_ceil(ACROSS)).sum::<u64>();
    let fits = |n: u64| sides.iter().all(|s| rows(s, n) <= ROWS.max(s.len() as u64));
    (0..32).map(|i| 1 << i).find(|&n| fits(n)).unwrap_or(1 << 32)
}

/// Sums executed bytes by cells of `lines` cache lines.
fn sums(s: &Space, lines: u64) -> BTreeMap<u64, u64> {
    let mut out: BTreeMap<u64, u64> = BTreeMap::new();
    for &(line, n) in &s.lines {
        let sum = out.entry(line / lines).or_default();
        *sum = sum.saturating_add(n);
    }
    out
}

/// A logarithmic scale of colours: each step begins at the same multiple of the step before.
struct Scale {
    least: u64,
    most: u64,
}

impl Scale {
    fn of(all: impl Iterator<Item = u64>) -> Self {
        let (least, most) = all.fold((u64::MAX, 0), |(a, b), n| (a.min(n), b.max(n)));
        Self { least: least.clamp(1, most.max(1)), most: most.max(1) }
    }

    fn step(&self, n: u64) -> usize {
        let span = (self.most as f64 / self.least as f64).ln();
        if span <= 0.0 {
            return STEPS - 1;
        }
        let share = (n.max(1) as f64 / self.least as f64).ln() / span;
        let reached = (1..STEPS).take_while(|&i| share >= i as f64 / STEPS as f64);
        reached.count()
    }

    fn ends(&self) -> (String, String) {
        (grouped(self.least), grouped(self.most))
    }
}

fn pages(s: &Space, per_cell: u64, scale: &Scale) -> Picture {
    let sums = sums(s, LINES * per_cell);
    let cells = s.pages.div_ceil(per_cell).max(1);
    let touched = sums.len() as u64;
    let name = printable(&cut(&s.name, 60));
    let about =
        format!("from {}, {} KiB, {} lines touched", s.at, s.pages * 4, grouped(s.lines.len() as u64));
    let mut picture = Picture {
        label: format!("{name}: {} of {} cells have executed code", grouped(touched), grouped(cells)),
        name: if s.clones { format!("{name} (clones)") } else { name },
        about,
        width: ACROSS,
        height: cells.div_ceil(ACROSS),
        empty: String::new(),
        steps: vec![String::new(); STEPS],
    };
    for row in 0..picture.height {
        run(&mut picture.empty, 0, row, (cells - row * ACROSS).min(ACROSS));
    }
    picture.fill(sums.into_iter().map(|(cell, n)| (cell % ACROSS, cell / ACROSS, scale.step(n))));
    picture
}

/// Draws the hottest pages of all spaces, the hottest first, a row each.
fn hottest(spaces: &[Space], scale: &Scale) -> Picture {
    let mut all: Vec<(u64, &Space, u64)> =
        spaces.iter().flat_map(|s| sums(s, LINES).into_iter().map(move |(page, n)| (n, s, page))).collect();
    all.sort_by(|a, b| b.0.cmp(&a.0).then(a.2.cmp(&b.2)));
    let total = all.iter().fold(0u64, |sum, p| sum.saturating_add(p.0)).max(1);
    let pages = all.len();
    all.truncate(PAGES);
    let shown = all.iter().fold(0u64, |sum, p| sum.saturating_add(p.0));
    let mut picture = Picture {
        name: format!("The {} hottest pages", all.len()),
        about: format!(
            "of {}; they hold {:.1}% of the executed bytes",
            grouped(pages as u64),
            shown as f64 / total as f64 * 100.0
        ),
        label: format!("cache lines of the {} hottest pages, one row for each page", all.len()),
        width: LINES,
        height: (all.len() as u64).max(1),
        empty: String::new(),
        steps: vec![String::new(); STEPS],
    };
    let mut cells = Vec::new();
    for (row, (_, space, page)) in (0u64..).zip(&all) {
        run(&mut picture.empty, 0, row, LINES);
        let from = space.lines.partition_point(|l| l.0 < page * LINES);
        let here = space.lines.iter().skip(from).take_while(|l| l.0 < (page + 1) * LINES);
        cells.extend(here.map(|&(line, n)| (line % LINES, row, scale.step(n))));
    }
    picture.fill(cells.into_iter());
    picture
}

impl Picture {
    /// Draws cells, given by rising row and column. Neighbours of one colour are drawn as one rectangle.
    fn fill(&mut self, cells: impl Iterator<Item = (u64, u64, usize)>) {
        let mut open: Option<(u64, u64, usize, u64)> = None;
        for (x, y, step) in cells {
            match &mut open {
                Some((ox, oy, os, n)) if *oy == y && *os == step && *ox + *n == x => *n += 1,
                _ => {
                    self.close(open);
                    open = Some((x, y, step, 1));
                }
            }
        }
        self.close(open);
    }

    fn close(&mut self, open: Option<(u64, u64, usize, u64)>) {
        if let Some((x, y, step, n)) = open
            && let Some(path) = self.steps.get_mut(step)
        {
            run(path, x, y, n);
        }
    }
}

/// Adds a rectangle of one row to path data.
fn run(path: &mut String, x: u64, y: u64, width: u64) {
    let _ = write!(path, "M{x} {y}h{width}v1h-{width}z");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(pages: u64, lines: &[(u64, u64)]) -> Space {
        Space { name: "m".to_owned(), clones: false, at: "0x1000".to_owned(), pages, lines: lines.to_vec() }
    }

    #[test]
    fn colours_rise_with_the_logarithm() {
        let scale = Scale::of([1, 10_000_000].into_iter());
        let steps: Vec<usize> = (0..8).map(|i| scale.step(10u64.pow(i))).collect();
        assert_eq!(steps, [0, 1, 2, 3, 4, 5, 6, 6]);
        assert_eq!((Scale::of([5].into_iter()).step(5), Scale::of(std::iter::empty()).step(0)), (6, 6));
    }

    #[test]
    fn a_cell_is_a_page() {
        let heat = [space(300, &[(0, 4), (1, 4), (64, 8), (129 * 64, 1)])];
        let scale = Scale::of([1, 8].into_iter());
        let p = pages(&heat[0], 1, &scale);
        assert_eq!((p.width, p.height), (128, 3));
        assert_eq!(p.empty, "M0 0h128v1h-128zM0 1h128v1h-128zM0 2h44v1h-44z");
        assert_eq!(p.steps[6], "M0 0h2v1h-2z", "two neighbours of one colour");
        assert_eq!(p.steps[0], "M1 1h1v1h-1z");
        let lines = hottest(&heat, &scale);
        assert_eq!((lines.height, lines.steps[6].as_str()), (3, "M0 1h1v1h-1z"));
    }

    #[test]
    fn large_spaces_have_coarser_cells() {
        let both = |pages| pages_per_cell(&[&[space(pages, &[])], &[]]);
        assert_eq!([both(1), both(ACROSS * ROWS), both(ACROSS * ROWS + 1), both(1 << 20)], [1, 1, 2, 64]);
    }
}
