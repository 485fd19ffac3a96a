//! Counters in every function of real programs: the share of control flow that they determine.
#![expect(clippy::print_stdout, reason = "a test that reports")]

#[path = "../../code/tests/it/support/mod.rs"]
mod support;

use code::{Liveness, Point, Term};
use profile::{CounterPlan, Counts};
use std::path::Path;
use support::Program;

/// A number of things, and how many of them no counter can see.
#[derive(Default, Debug)]
struct Dark {
    all: usize,
    dark: usize,
}

impl Dark {
    fn add(&mut self, dark: bool) {
        self.all += 1;
        self.dark += usize::from(dark);
    }

    fn percent(&self) -> f64 {
        100.0 * self.dark as f64 / self.all.max(1) as f64
    }
}

#[derive(Default, Debug)]
struct Survey {
    blocks: Dark,
    edges: Dark,
    table_edges: Dark,
    /// Cycles of the flow, and those that no counter determines.
    cycles: Dark,
    functions: Dark,
    /// Functions with a jump table that cannot be cloned, through which control leaves for the original.
    leaving: Dark,
}

fn survey(path: &str) -> Survey {
    let p = Program::load(Path::new(path));
    let mut s = Survey::default();
    for f in p.functions.iter().filter(|f| !f.plt) {
        let Ok(cfg) = p.analyse(f) else { continue };
        let liveness = Liveness::compute(&cfg);
        let countable = |p: Point| p.countable(&cfg, &liveness);
        for (block, from) in cfg.blocks.iter().zip(cfg.block_ids()) {
            s.blocks.add(countable(Point::Block(from)).is_none());
            let mut index = 0;
            cfg.successors(from, |_| {
                let dark = countable(Point::Edge { from, index }).is_none();
                if matches!(block.term, Term::Switch { .. }) {
                    s.table_edges.add(dark);
                } else {
                    s.edges.add(dark);
                }
                index += 1;
            });
        }
        let plan = CounterPlan::new(&cfg, &Counts::default(), &countable);
        s.cycles.all += plan.points().len() + plan.missing_counters();
        s.cycles.dark += plan.missing_counters();
        s.functions.add(plan.missing_counters() > 0);
        s.leaving.add(cfg.tables.iter().any(|t| t.cloneable.is_none()));
    }
    println!("{path}: not to be counted:");
    for (what, d) in [
        ("blocks", &s.blocks),
        ("edges", &s.edges),
        ("edges of tables", &s.table_edges),
        ("cycles", &s.cycles),
        ("functions not all listed", &s.functions),
        ("functions that leave by a table", &s.leaving),
    ] {
        println!("  {what}: {} of {} ({:.3} %)", d.dark, d.all, d.percent());
    }
    s
}

#[test]
fn counters_determine_nearly_all_counts() {
    for path in ["/usr/sbin/mariadbd", "/lib/x86_64-linux-gnu/libc.so.6"] {
        if Path::new(path).exists() {
            let s = survey(path);
            for (what, most) in [(&s.blocks, 0.5), (&s.edges, 1.0), (&s.functions, 1.0)] {
                assert!(what.percent() < most, "{path}: {s:?}");
            }
        }
    }
}
