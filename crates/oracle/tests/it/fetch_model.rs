//! Compares the fetch model with another simulator, and paths followed through clones with what clones
//! execute.

use crate::support::paths::Paths;
use crate::support::stress;
use addr::{Addr, Avma, ReadMemory};
use engine::{OptimizeOptions, Pid, optimize, redo, undo};
use fetch_model::{Cpu, Geometry, ICE_LAKE_SERVER, Inst, Model, Step};
use iced_x86::{Decoder, DecoderOptions};
use rustc_hash::FxHashMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracee::{Process, Run, Stepped, Tid, Watched};

const PATIENCE: Duration = Duration::from_secs(60);

/// Most instructions that are stepped.
const MOST_STEPS: usize = 2_000_000;

/// Records what a twin of a process's main thread executes, from the next entry to a function until it
/// returns. A repeated instruction is recorded once. `start` makes the thread come there; the thread itself
/// goes on meanwhile. The guest gets the end of the twin.
fn recorded(pid: Pid, entry: Avma, start: &mut dyn FnMut()) -> Vec<Step> {
    let process = Process::open(pid).unwrap();
    let mut twin = {
        let mut thread = Watched::seize(&process, Tid(pid.0)).unwrap();
        start();
        assert_eq!(thread.run_to(&[entry], PATIENCE).unwrap(), Run::Hit);
        thread.twin().unwrap()
    };
    let mut known: FxHashMap<Avma, Inst> = FxHashMap::default();
    let mut path = Vec::new();
    let mut at = entry;
    let stack = twin.regs().unwrap().0.rsp;
    for _ in 0..MOST_STEPS {
        let inst = *known.entry(at).or_insert_with(|| {
            let mut bytes = [0; 15];
            twin.process().read(at, &mut bytes).unwrap();
            Inst::of(&Decoder::with_ip(64, &bytes, at.0, DecoderOptions::NONE).decode())
        });
        assert_eq!(twin.step().unwrap(), Stepped::Done);
        let regs = twin.regs().unwrap();
        let next = regs.ip();
        if at != next {
            path.push(inst.step(at, next));
        }
        if regs.0.rsp > stack {
            return path;
        }
        at = next;
    }
    panic!("the function does not return");
}

/// A program of `lines.c`.
struct Lines(PathBuf);

impl Lines {
    fn build(dir: &Path, work: u32) -> Self {
        let program = dir.join(format!("lines{work}"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guests/lines.c");
        let flags = "-w -O2 -nostdlib -static -fno-pie -no-pie -ffreestanding -fno-stack-protector \
                     -fcf-protection=none";
        let (work, source) = (format!("-DWORK={work}"), source.to_str().unwrap());
        let args = flags.split(' ').filter(|f| !f.is_empty()).chain([&*work, source]);
        assert!(testkit::build("gcc", args, &program));
        Self(program)
    }

    /// Returns the address at which its work begins, by `nm`.
    fn work(&self) -> Avma {
        let said = Command::new("nm").arg(&self.0).output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        let line = said.lines().find(|l| l.ends_with(" T work")).unwrap();
        Avma(u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap())
    }

    fn path(&self) -> Vec<Step> {
        struct Guest(Child);
        impl Drop for Guest {
            fn drop(&mut self) {
                let _ = self.0.kill();
                let _ = self.0.wait();
            }
        }
        let child = Command::new(&self.0).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut guest = Guest(child);
        let pid = Pid(i32::try_from(guest.0.id()).unwrap());
        let mut stdin = guest.0.stdin.take().unwrap();
        let path = recorded(pid, self.work(), &mut || stdin.write_all(b"s").unwrap());
        guest.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        path
    }

    /// Returns instructions and first-level misses by cachegrind, of one round of its work and the code
    /// around it.
    fn by_cachegrind(&self, dir: &Path, cache: Geometry) -> (u64, u64) {
        let out = dir.join("cachegrind.out");
        let bytes = cache.sets * cache.ways * 64;
        let mut child = Command::new("valgrind")
            .args(["--tool=cachegrind", "--cache-sim=yes", "-q"])
            .arg(format!("--I1={bytes},{},64", cache.ways))
            .arg(format!("--cachegrind-out-file={}", out.display()))
            .arg(&self.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(b"s").unwrap();
        assert!(child.wait().unwrap().success());
        let text = std::fs::read_to_string(out).unwrap();
        let words = |key: &str| -> Vec<String> {
            let line = text.lines().find_map(|l| l.strip_prefix(key)).unwrap();
            line.split_whitespace().map(str::to_owned).collect()
        };
        let (events, sums) = (words("events:"), words("summary:"));
        let sum = |name: &str| sums[events.iter().position(|e| e == name).unwrap()].parse().unwrap();
        (sum("Ir"), sum("I1mr"))
    }
}

/// Returns instructions, and instructions that missed: cachegrind counts one miss if an instruction misses
/// both its lines.
fn by_the_model(path: &[Step], cache: Geometry) -> (u64, u64) {
    let mut model = Model::new(&Cpu { icache: cache, ..ICE_LAKE_SERVER }, &[]);
    let (mut missed, mut before) = (0, 0);
    for step in path {
        model.execute(step);
        let now = model.events().icache_misses;
        missed += u64::from(now > before);
        before = now;
    }
    (model.events().instructions, missed)
}

/// Most instructions, and most lines, that a whole run of a program has around the work.
const AROUND: (u64, u64) = (64, 8);

#[test]
fn the_instruction_cache_agrees_with_cachegrind() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("left out: there is no valgrind here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let caches = [Geometry { sets: 64, ways: 8 }, Geometry { sets: 32, ways: 2 }];
    for work in 1..=3 {
        let lines = Lines::build(dir.path(), work);
        let path = lines.path();
        // Only the first program runs with all caches: the programs differ in how they access memory, the
        // caches do not.
        let some = if work == 1 || stress() { &caches[..] } else { &caches[..1] };
        for &cache in some {
            let (instructions, misses) = by_the_model(&path, cache);
            let (all, all_misses) = lines.by_cachegrind(dir.path(), cache);
            eprintln!(
                "work {work}, {cache:?}: {instructions} instructions, {misses} misses; by cachegrind {all}, {all_misses}"
            );
            assert!((instructions..=instructions + AROUND.0).contains(&all));
            assert!(misses.abs_diff(all_misses) <= AROUND.1);
            assert!(instructions > 40_000 && (work == 3 || misses > 3000));
        }
    }
}

/// A guest's recorded path, and the same path followed through its clones.
#[test]
fn a_path_through_originals_is_followed_through_clones() {
    let builds = [("gcc", &["-O2"][..]), ("clang", &["-O2", "-fPIE", "-pie"])];
    for (compiler, flags) in builds.into_iter().take(if stress() { 2 } else { 1 }) {
        let mut paths = Paths::start(compiler, flags);
        let pid = paths.pid();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    paths.work(b's');
                }
            });
            // Long enough for many rounds of the work. On a busy machine few rounds fit into less time, and
            // not every round has all of the work.
            let sampling = Duration::from_secs(2);
            let counting = Some(Duration::from_secs(2));
            let options = OptimizeOptions { sampling, counting, ..OptimizeOptions::default() };
            let optimized = optimize(pid, &options, &mut |_| {});
            done.store(true, Ordering::Relaxed);
            optimized.unwrap();
        });
        let entry =
            engine::explain(pid, Some("p_all"), &mut engine::Debuginfod::default()).unwrap().functions[0]
                .at
                .clone();
        let entry = Avma(u64::from_str_radix(entry.trim_start_matches("0x"), 16).unwrap());
        let mut record = || {
            let path = recorded(pid, entry, &mut || paths.tell(b's'));
            paths.wait();
            path
        };
        let with = record();
        undo(pid).unwrap();
        let without = record();
        redo(pid).unwrap();
        let mut followed = Vec::new();
        let lost = engine::follow_path(pid, &without, &mut |s| followed.push(s)).unwrap();
        for (i, (followed, real)) in followed.iter().zip(&with).enumerate() {
            assert_eq!(followed, real, "{compiler}, instruction {i}");
        }
        assert_eq!((lost, followed.len()), (Some(0), with.len()), "{compiler}");
        assert!(with.iter().any(|s| s.at.since(entry).is_none_or(|n| n > 1 << 20)), "none in clones");

        // A path drawn from counts, which miss code behind tables that cannot be cloned. On both sides, about
        // as many branches per instruction are taken as in the recorded path.
        let drawn = engine::fetch_report(pid).unwrap().unwrap();
        let truth = [&without, &with].map(|path| {
            let mut model = Model::new(&ICE_LAKE_SERVER, &[]);
            path.iter().for_each(|s| model.execute(s));
            model.events()
        });
        eprintln!("{compiler}: {drawn:?}\n{truth:?}");
        assert_eq!(drawn.lost, 0);
        for (drawn, truth) in [(drawn.without, truth[0]), (drawn.with, truth[1])] {
            let taken = |e: &fetch_model::Events| e.taken_branches as f64 / e.instructions as f64;
            assert!((taken(&drawn) / taken(&truth) - 1.0).abs() < 0.15);
        }
        paths.end();
    }
}
