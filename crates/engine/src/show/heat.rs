//! Where in the address space code ran before, and where the same work runs now.
//!
//! The figures follow from the counts in the target and the clones' address maps; nothing is measured.
//! Before, each block ran at its original address. Now each instruction runs at its clone's address if it was
//! cloned, else at its original address. A jump that only the clone has is assumed to run as often as the
//! edge for which it stands. Guards are assumed to hold and inlined paths not to be left. What runs inlined counts in the
//! caller's clone, and in the callee's as well. A model (`loop_copies`) distributes the iterations of an unrolled loop
//! over its copies.

use crate::Target;
use crate::plan::loop_copies::{Flows, LoopCopies};
use crate::records::profile_store::loaded;
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use emit::{AddressMap, Link};
use iced_x86::{Decoder, DecoderOptions};
use image::Image;
use layout::{Footprint, LINE_BYTES, PAGE_BYTES, Span};
use profile::{FunctionProfile, Origin, Profile};
use rustc_hash::FxHashMap;
use splice::Installed;
use std::collections::BTreeMap;

/// Heat before and after, for the same executions.
#[derive(Clone, Debug)]
pub struct Heat {
    /// Functions that are included.
    pub functions: usize,
    /// Functions that are left out: their counts were inferred, which is another unit, or their blocks could
    /// not be located.
    pub left_out: usize,
    /// Heat of the originals.
    pub before: HeatSide,
    /// Heat of the clones, and of code that still runs in originals.
    pub after: HeatSide,
}

/// Heat of one side.
#[derive(Clone, Debug)]
pub struct HeatSide {
    /// Cache lines of 64 bytes that hold executed code.
    pub lines: u64,
    /// Pages of 4096 bytes that hold executed code.
    pub pages: u64,
    /// The fewest lines that hold 99% of the executed bytes.
    pub hot_lines: u64,
    /// The fewest pages that hold 99% of the executed bytes.
    pub hot_pages: u64,
    /// The executed ranges, by address.
    pub spaces: Vec<Space>,
}

/// One module's code, or one code cache.
#[derive(Clone, Debug)]
pub struct Space {
    /// The module's file name, or what the cache holds.
    pub name: String,
    /// True if it is a code cache.
    pub clones: bool,
    /// Process address of the first page.
    pub at: String,
    /// How many pages it has, including pages where nothing ran.
    pub pages: u64,
    /// Executed lines, by ascending number from the first page on: number and executed bytes.
    pub lines: Vec<(u64, u64)>,
}

/// 99% in ten-thousandths.
const HOT_PER_10K: u64 = 9900;
/// The largest size of a block. A larger block shows that whet did not write the profile.
const LONGEST_BLOCK: u64 = 1 << 20;
/// The largest size of a space. A picture has no room for a larger space.
const LARGEST_SPACE: u64 = 4 << 30;

/// Computes heat from the profile in the target. Returns `None` if the profile has no counts.
pub(crate) fn heat(target: &Target, installed: &Installed, image: &Image, profile: &Profile) -> Option<Heat> {
    let newest: Vec<_> = installed.of(installed.generation()).collect();
    let stored = newest.iter().filter_map(|c| c.map(&target.process).ok());
    let maps: FxHashMap<Avma, AddressMap> =
        stored.flat_map(|bytes| crate::build::map_store::read(&bytes)).collect();
    let mut tame = profile.clone();
    tame.tame();
    let all = || tame.modules.values().flat_map(|m| m.functions.values());
    // Inferred counts have another unit than exact counts.
    let counted = all().any(|f| f.origin == Origin::Counted);
    let (mut functions, mut left_out) = (0, 0);
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let pristine = target.pristine();
    let loaded = loaded(image);
    for (build, module) in &tame.modules {
        let Some(&id) = loaded.get(build) else {
            left_out += module.functions.len();
            continue;
        };
        let here = image.module(id);
        for (key, f) in &module.functions {
            let entry = here.bias.avma(key.at);
            let blocks = ((f.origin == Origin::Counted) == counted)
                .then(|| blocks(f, entry, here.extent, &pristine))
                .flatten();
            let Some(blocks) = blocks else {
                left_out += 1;
                continue;
            };
            functions += 1;
            before.extend(blocks.iter().map(|b| span(b.range, b.count)));
            after.extend(now(&blocks, f, entry, maps.get(&entry)));
        }
    }
    if before.is_empty() {
        return None;
    }
    let mut spaces: Vec<(String, bool, AvmaRange)> = Vec::new();
    for m in image.modules() {
        let code = image.exec_ranges(m);
        if let (Some(first), Some(last)) = (code.first(), code.last()) {
            let name = m.file_name().unwrap_or("?").to_owned();
            spaces.push((name, false, AvmaRange::new(first.start, last.end)));
        }
    }
    for c in &newest {
        let code = AvmaRange::with_len(c.header.text.start, c.header.code_bytes);
        let number = u64::from(c.header.index) + 1;
        spaces.push((format!("code cache {number} of {}", c.header.caches), true, code));
    }
    Some(Heat { functions, left_out, before: side(&before, &spaces), after: side(&after, &spaces) })
}

/// A block that ran.
struct Ran {
    range: AvmaRange,
    count: u64,
    /// Its offset in the profile.
    from: i64,
}

/// Returns a function's blocks. Returns `None` if a block lies outside the module, or cannot be read.
fn blocks(f: &FunctionProfile, entry: Avma, module: AvmaRange, memory: &dyn ReadMemory) -> Option<Vec<Ran>> {
    f.blocks
        .iter()
        .map(|(&from, b)| {
            let (start, last) = (entry.offset(from), entry.offset(b.last));
            let inside = module.contains(start) && module.contains(last);
            last.since(start).filter(|&len| inside && len < LONGEST_BLOCK)?;
            let room = module.end.since(last)?.min(15);
            let bytes = memory.bytes(AvmaRange::with_len(last, room)).ok()?;
            let len = Decoder::with_ip(64, &bytes, last.0, DecoderOptions::NONE).decode().len();
            Some(Ran { range: AvmaRange::new(start, last.add(len as u64)), count: b.count, from })
        })
        .collect()
}

fn span(range: AvmaRange, count: u64) -> Span {
    Span { at: range.start.0, size: range.len(), count }
}

fn block_at(blocks: &[Ran], at: Avma) -> Option<&Ran> {
    let after = blocks.partition_point(|b| b.range.start <= at);
    blocks.get(after.checked_sub(1)?).filter(|b| b.range.contains(at))
}

/// The counts that [`LoopCopies`] reads.
struct Known<'a> {
    blocks: &'a [Ran],
    f: &'a FunctionProfile,
    entry: Avma,
}

impl Flows for Known<'_> {
    fn block_of(&self, at: Avma) -> Option<Avma> {
        block_at(self.blocks, at).map(|b| b.range.start)
    }

    fn ran(&self, block: Avma) -> u64 {
        block_at(self.blocks, block).map_or(0, |b| b.count)
    }

    fn goes(&self, from: Avma, to: Avma) -> u64 {
        let edges = block_at(self.blocks, from).and_then(|b| self.f.blocks.get(&b.from)).map(|b| &b.edges);
        edges.and_then(|e| e.get(&to.distance(self.entry))).copied().unwrap_or(0)
    }
}

/// Returns where a function's blocks run with its clone.
fn now(blocks: &[Ran], f: &FunctionProfile, entry: Avma, map: Option<&AddressMap>) -> Vec<Span> {
    let Some(map) = map else { return blocks.iter().map(|b| span(b.range, b.count)).collect() };
    let mut out = Vec::new();
    let mut current: Option<&Ran> = None;
    let fragments = map.fragments();
    let mut loops = LoopCopies::new(map, &Known { blocks, f, entry });
    let mut copy = None;
    let ends = map.entries().iter().skip(1).map(|e| e.at);
    let size = u32::try_from(fragments.size()).unwrap_or(u32::MAX);
    for (place, (e, end)) in map.in_line().iter().zip(ends.chain([size])).enumerate() {
        let count = if e.link == Link::Extra && !map.is_guard(place) {
            let way = |b: &Ran| f.blocks.get(&b.from)?.edges.get(&e.original.distance(entry)).copied();
            // A filler runs as often as the code around it.
            current.map_or(0, |b| way(b).unwrap_or(b.count))
        } else {
            current = block_at(blocks, e.original);
            copy = loops.next(e.original);
            current.map_or(0, |b| b.count)
        };
        let count = copy.map_or(count, |c| c.part(count));
        if end > e.at && count > 0 {
            let range = AvmaRange::with_len(fragments.address(e.at), u64::from(end - e.at));
            out.push(span(range, count));
        }
    }
    let stays = blocks.iter().filter(|b| map.to_clone(b.range.start).is_none());
    out.extend(stays.map(|b| span(b.range, b.count)));
    out
}

fn side(spans: &[Span], spaces: &[(String, bool, AvmaRange)]) -> HeatSide {
    let touched = Footprint::of(spans);
    let mut weights: BTreeMap<u64, u64> = BTreeMap::new();
    for s in spans.iter().filter(|s| s.size > 0 && s.count > 0) {
        let last = s.at.saturating_add(s.size - 1);
        for line in s.at / LINE_BYTES..=last / LINE_BYTES {
            let from = s.at.max(line * LINE_BYTES);
            let to = last.min(line * LINE_BYTES + (LINE_BYTES - 1));
            let sum = weights.entry(line).or_default();
            *sum = sum.saturating_add((to - from + 1).saturating_mul(s.count));
        }
    }
    let mut found: Vec<Space> = Vec::new();
    for (name, clones, range) in spaces {
        let first = range.start.align_down(PAGE_BYTES);
        let bytes = range.end.since(first).unwrap_or(0).min(LARGEST_SPACE);
        let base = first.0 / LINE_BYTES;
        let inside = base..base.saturating_add(bytes.div_ceil(LINE_BYTES));
        let lines: Vec<(u64, u64)> = weights.range(inside).map(|(line, n)| (line - base, *n)).collect();
        if !lines.is_empty() {
            let pages = bytes.div_ceil(PAGE_BYTES);
            found.push(Space { name: name.clone(), clones: *clones, at: first.to_string(), pages, lines });
        }
    }
    HeatSide {
        lines: touched.lines,
        pages: touched.pages,
        hot_lines: layout::hottest(spans, LINE_BYTES, HOT_PER_10K),
        hot_pages: layout::hottest(spans, PAGE_BYTES, HOT_PER_10K),
        spaces: found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::test_candidate::{LOOP, cloned_again, cloned_guarded, cloned_inlined};
    use emit::Unroll;

    fn span_of(at: u64, size: u64, count: u64) -> Span {
        Span { at, size, count }
    }

    #[test]
    fn executed_ranges_are_assigned_to_their_spaces() {
        let spaces = [
            ("a".to_owned(), false, AvmaRange::new(Avma(0x1010), Avma(0x3000))),
            ("b".to_owned(), true, AvmaRange::new(Avma(0x8000), Avma(0x8100))),
            ("idle".to_owned(), false, AvmaRange::new(Avma(0x9000), Avma(0xa000))),
        ];
        let side = side(&[span_of(0x1038, 16, 10), span_of(0x2000, 1, 1), span_of(0x8040, 64, 3)], &spaces);
        assert_eq!((side.lines, side.pages), (4, 3));
        let got: Vec<_> = side.spaces.iter().map(|s| (s.name.as_str(), s.pages, s.lines.clone())).collect();
        assert_eq!(got, [("a", 2, vec![(0, 80), (1, 80), (64, 1)]), ("b", 1, vec![(1, 192)])]);
        assert_eq!(side.spaces[0].at, "0x1000");
    }

    #[test]
    fn a_function_without_a_clone_runs_in_the_original() {
        let f = FunctionProfile::default();
        let ran = [Ran { range: AvmaRange::with_len(Avma(0x1000), 8), count: 5, from: 0 }];
        assert_eq!(now(&ran, &f, Avma(0x1000), None), [span_of(0x1000, 8, 5)]);
    }

    #[test]
    fn the_copies_of_a_loop_share_its_iterations() {
        let cfg = code::parse(LOOP).unwrap();
        let twice = Unroll { first: 0, blocks: 1, copies: 2 };
        let out = cloned_again(&cfg, cfg.block_ids().collect(), 2, &[twice], Avma(0x10_0000));
        let ran = |at, len, count, from| Ran { range: AvmaRange::with_len(Avma(at), len), count, from };
        let ran = [ran(0x1000, 5, 80, 0), ran(0x1005, 1, 8, 5)];
        let mut f = FunctionProfile::default();
        f.blocks.insert(0, profile::BlockProfile { edges: [(0, 72), (5, 8)].into(), ..Default::default() });
        let spans = now(&ran, &f, Avma(0x1000), Some(&out.clones[0].map));
        // Nine of ten iterations continue: of 80 executions in both copies, 42 are in the first and 38 in the
        // second.
        let wanted = [(0, 3, 42), (3, 2, 42), (5, 3, 38), (8, 2, 38), (10, 1, 8)];
        assert_eq!(spans, wanted.map(|(at, len, n)| span_of(0x10_0000 + at, len, n)));
    }

    #[test]
    fn the_call_behind_the_exit_of_an_inlined_path_is_not_hot() {
        let ([caller, _], out) = cloned_inlined(Avma(0x10_0000));
        let map = &out.clones[0].map;
        let ran = [Ran { range: AvmaRange::with_len(caller.entry, 6), count: 7, from: 0 }];
        let spans = now(&ran, &FunctionProfile::default(), caller.entry, Some(map));
        // `test; je; add`, and the return.
        assert_eq!(spans.iter().map(|s| s.size).collect::<Vec<_>>(), [3, 6, 3, 1]);
        assert!(spans.iter().all(|s| s.count == 7 && s.at < 0x10_0000 + 13));
    }

    #[test]
    fn a_guard_is_as_hot_as_its_call() {
        let (cfg, out) = cloned_guarded(Avma(0x10_0000));
        let ran = [Ran { range: AvmaRange::with_len(cfg.entry, 4), count: 7, from: 0 }];
        let spans = now(&ran, &FunctionProfile::default(), cfg.entry, Some(&out.clones[0].map));
        // `cmp; jne; call; ret`
        assert_eq!(
            spans,
            [(0, 7), (7, 6), (13, 5), (18, 1)].map(|(at, len)| span_of(0x10_0000 + at, len, 7))
        );
    }

    /// The one-second form of the fuzz target: a profile with offsets of any size is placed or left out.
    #[test]
    fn any_profile_is_placed_or_left() {
        arbtest::arbtest(|u| {
            let mut f = FunctionProfile::default();
            for _ in 0..u.int_in_range(0..=8)? {
                let b = profile::BlockProfile {
                    last: u.arbitrary()?,
                    count: u.arbitrary()?,
                    ..Default::default()
                };
                f.blocks.insert(u.arbitrary()?, b);
            }
            let bytes = [0x90; 64];
            let entry = Avma(u.arbitrary()?);
            let module = AvmaRange::new(Avma(u.arbitrary()?), Avma(u.arbitrary()?));
            let memory = (entry, &bytes[..]);
            if let Some(ran) = blocks(&f, entry, module, &memory) {
                let spans: Vec<Span> = ran.iter().map(|b| span(b.range, b.count)).collect();
                side(&spans, &[("m".to_owned(), false, module)]);
            }
            Ok(())
        })
        .budget_ms(1000);
    }
}
