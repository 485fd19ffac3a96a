use super::*;
use crate::parse;
use addr::Avma;

fn cfg(blocks: &str) -> Cfg {
    parse(&format!("function 0x1000\npart 0x1000..0x1100\n{blocks}\n")).unwrap()
}

fn all(cfg: &Cfg) -> RedirectSites {
    redirect_sites(cfg, &|_| true, &|_| true)
}

/// Returns the sites: their form, and the offsets of the first and last changed byte from the entry.
fn places(found: &RedirectSites) -> Vec<(SiteForm, u64, u64)> {
    found.sites.iter().map(|s| (s.form, s.range.start.0 - 0x1000, s.range.end.0 - 0x1001)).collect()
}

/// `push rbp; mov rbp, rsp; sub rsp, 0x100; ret`
const PROLOGUE: &str = "block b0 0x1000\n 55\n 48 89 e5\n 48 81 ec 00 01 00 00\n c3\n return";

#[test]
fn the_first_instruction_with_a_rex_prefix_and_room_for_a_jump() {
    let found = all(&cfg(PROLOGUE));
    assert_eq!(places(&found), [(SiteForm::Jump, 5, 9)]);
    assert!(found.complete);
    assert_eq!((found.sites[0].inst, found.sites[0].leads_to), (InstId(2), InstId(2)));
}

#[test]
fn the_first_byte_of_an_instruction_never_changes() {
    // Without a prefix; with prefixes that allow a jump behind them, with and without room for it; with other
    // prefixes.
    for (code, want) in [
        ("b8 01 00 00 00\n c3", vec![]),
        ("48 8d 05 00 10 00 00\n c3", vec![(SiteForm::Jump, 1, 5)]),
        ("48 89 5c 24 08\n c3", vec![]),
        ("48 89 9c 24 08 00 00 00\n c3", vec![(SiteForm::Jump, 1, 5)]),
        ("64 48 8b 04 25 28 00 00 00\n c3", vec![(SiteForm::Jump, 1, 5)]),
        ("f2 0f 10 44 24 08\n c3", vec![(SiteForm::Jump, 1, 5)]),
        ("f2 0f 10 04 24\n c3", vec![]),
        ("66 0f 6f 05 00 10 00 00\n c3", vec![(SiteForm::WideJump, 1, 6)]),
        ("66 0f 6f 44 24 10\n c3", vec![]),
        ("66 2e 0f 1f 84 00 00 00 00 00\n c3", vec![(SiteForm::WideJump, 1, 6)]),
        ("f3 0f 6f 05 00 10 00 00\n c3", vec![]),
        ("f0 0f b1 0d 00 10 00 00\n c3", vec![]),
        ("67 8d 84 00 00 01 00 00\n c3", vec![]),
        ("ff 35 00 10 00 00\n c3", vec![(SiteForm::IndirectJump, 1, 5)]),
        ("ff 90 00 02 00 00\n c3", vec![(SiteForm::IndirectJump, 1, 5)]),
        ("ff 50 10\n c3", vec![]),
        // A call's displacement is a site of its own: data16 data16 rex.W call.
        ("66 66 48 e8 00 10 00 00\n c3", vec![]),
        ("48 e8 00 10 00 00\n c3", vec![]),
    ] {
        let cfg = cfg(&format!("block b0 0x1000\n {code}\n return"));
        let found = all(&cfg);
        assert_eq!(places(&found), want, "{code}");
        let starts: Vec<Avma> = cfg.insts.iter().map(|i| i.at).collect();
        assert!(found.sites.iter().all(|s| !starts.iter().any(|&at| s.range.contains(at))));
        assert_eq!(found.complete, !want.is_empty());
    }
}

/// `bnd jmp b1`, padding, `b1: ret`: the displacement changes, not the bytes behind the prefix.
#[test]
fn a_jump_with_a_prefix_keeps_its_opcode() {
    let cfg = cfg("block b0 0x1000\n f2 e9 02 00 00 00\n jump b1\nblock b1 0x1008\n c3\n return");
    assert_eq!(places(&all(&cfg)), [(SiteForm::Displacement, 2, 5)]);
}

/// `test eax, eax; je b2` with a long displacement; b1: `ret`; b2: `mov rax, [rip]; ret`.
const FORKS: &str = "block b0 0x1000\n 85 c0\n 0f 84 01 00 00 00\n cond e b2 else b1\n\
                     block b1 0x1008\n c3\n return\n\
                     block b2 0x1009\n 48 8b 05 00 10 00 00\n c3\n return";

#[test]
fn a_long_conditional_jump_leads_to_the_clone_of_its_destination() {
    let cfg = cfg(FORKS);
    let found = all(&cfg);
    assert_eq!(places(&found), [(SiteForm::Displacement, 4, 7)]);
    assert_eq!(cfg.insts[found.sites[0].leads_to.index()].at, Avma(0x1009));
    assert!(!found.complete, "b1 returns in the original");
    // Not to a block that is not cloned.
    let without = redirect_sites(&cfg, &|b| b != BlockId(2), &|_| true);
    assert_eq!(places(&without), []);
}

#[test]
fn each_path_has_its_own_site() {
    // The same with a short displacement.
    let cfg = cfg("block b0 0x1000\n 85 c0\n 74 08\n cond e b2 else b1\n\
                   block b1 0x1004\n 48 8d 05 00 10 00 00\n c3\n return\n\
                   block b2 0x100c\n 48 8b 05 00 10 00 00\n c3\n return");
    let found = all(&cfg);
    assert_eq!(places(&found), [(SiteForm::Jump, 5, 9), (SiteForm::Jump, 13, 17)]);
    assert!(found.complete);
}

#[test]
fn bytes_that_are_not_free_do_not_change() {
    let cfg = cfg(PROLOGUE);
    let busy = AvmaRange::with_len(Avma(0x1009), 1);
    assert_eq!(places(&redirect_sites(&cfg, &|_| true, &|r| !r.overlaps(&busy))), []);
}

#[test]
fn points_passed_before_a_site_are_not_countable() {
    let cfg = cfg("block b0 0x1000\n 85 c0\n 74 08\n cond e b2 else b1\n\
                   block b1 0x1004\n 31 d2\n 48 8d 05 00 10 00 00\n 31 d2\n c3\n return\n\
                   block b2 0x1010\n 31 d2\n c3\n return");
    let found = all(&cfg);
    let liveness = Liveness::compute(&cfg);
    let spot = |p| found.countable(p, &cfg, &liveness).map(|s| s.skip);
    assert_eq!(spot(Point::Block(BlockId(0))), None);
    assert_eq!(spot(Point::Edge { from: BlockId(0), index: 1 }), None);
    assert_eq!(spot(Point::Block(BlockId(1))), Some(1), "at the site, not before it");
    // Control that returns in the original never enters the clone. So counters there count only control that
    // entered the clone before.
    assert_eq!(spot(Point::Edge { from: BlockId(0), index: 0 }), Some(0));
    assert_eq!(spot(Point::Block(BlockId(2))), Some(0));
}

/// Two short paths lead to b2, which has a site: counters could not determine by which path control came.
#[test]
fn a_block_with_two_paths_has_no_countable_site() {
    let cfg = cfg("block b0 0x1000\n 85 c0\n 74 02\n cond e b2 else b1\n\
                   block b1 0x1004\n 31 d2\n fall b2\n\
                   block b2 0x1006\n 48 8d 05 00 10 00 00\n c3\n return");
    assert_eq!(places(&all(&cfg)), [(SiteForm::Jump, 7, 11)]);
    let found = countable_sites(&cfg, &|_| true);
    assert_eq!((places(&found), found.complete), (vec![], false));
    // A loop is no such case if its back edge runs only in the clone.
    let cfg = self::cfg(
        "block b0 0x1000\n 85 c0\n fall b1\n\
                         block b1 0x1002\n 48 8d 05 00 10 00 00\n 75 f7\n cond ne b1 else b2\n\
                         block b2 0x100b\n c3\n return",
    );
    let found = countable_sites(&cfg, &|_| true);
    assert_eq!((places(&found), found.complete), (vec![(SiteForm::Jump, 3, 7)], true));
}

#[test]
fn any_graph_is_searched_in_bounded_time() {
    // A ladder of short jumps without a site.
    let mut text = String::new();
    for n in 0..200 {
        let at = 0x1000 + 4 * n;
        text += &format!("block b{n} {at:#x}\n 85 c0\n 74 00\n cond e b{} else b{}\n", n + 1, n + 1);
    }
    text += "block b200 0x1320\n c3\n return";
    let cfg = parse(&format!("function 0x1000\npart 0x1000..0x1400\n{text}\n")).unwrap();
    let found = all(&cfg);
    assert_eq!((places(&found), found.complete), (vec![], false));
}
