//! A profiler without any knowledge of whet. It works as profilers that unwind in the kernel, by tables made
//! of files.
//!
//! It reads `/proc/PID/maps`, and leaves out mappings as such a profiler does: those without a file, of
//! `/dev/zero` and of a `memfd`. It opens the file behind each code mapping by `/proc/PID/map_files` and takes
//! its program headers, frame tables and symbols. Of the process it has the registers and the stacks alone.

use addr::{Avma, AvmaRange, ReadMemory};
use engine::Pid;
use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EvaluationResult, LittleEndian, Register, RegisterRule,
    UnwindContext, UnwindExpression, UnwindSection, Value,
};
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tracee::{Process, Regs, Seized};

type Bytes<'a> = gimli::EndianSlice<'a, LittleEndian>;

/// The number of the return address, as DWARF counts registers of x86-64.
const RETURN: u16 = 16;
const STACK: u16 = 7;
const REGISTERS: usize = 17;
const MOST_FRAMES: usize = 400;

/// A mapping of code.
#[derive(Debug)]
struct Mapping {
    range: AvmaRange,
    offset: u64,
    path: String,
}

/// What the profiler keeps of one file.
struct Module {
    /// Loaded segments: offset in the file, size, address as the file states it.
    segments: Vec<(u64, u64, u64)>,
    hdr: (u64, Vec<u8>),
    frames: (u64, Vec<u8>),
    /// Start, end and name.
    symbols: Vec<(u64, u64, String)>,
}

/// What was seen of one thread at one moment.
#[derive(Debug)]
pub struct Stack {
    /// The names of frames, the innermost first; `None` if a frame has none.
    pub frames: Vec<(String, Option<String>)>,
    /// True if unwinding ended where the tables say that a thread begins.
    pub whole: bool,
    /// True if the thread was in user code, not in a system call.
    pub running: bool,
}

impl Stack {
    /// Returns whether a frame is in a file of clones.
    pub fn has_clones(&self) -> bool {
        self.frames.iter().any(|(path, _)| is_of_clones(path))
    }

    /// Returns whether each frame in a clone has a name.
    pub fn clones_have_names(&self) -> bool {
        self.frames.iter().filter(|(path, _)| is_of_clones(path)).all(|(_, name)| name.is_some())
    }
}

fn is_of_clones(path: &str) -> bool {
    path.ends_with(".whet")
}

/// Stops all threads of a process again and again, and returns the stack of each.
pub fn profile(pid: Pid, time: Duration) -> Vec<Stack> {
    let process = Process::open(pid).unwrap();
    let mut modules = BTreeMap::new();
    let (mut stacks, end) = (Vec::new(), Instant::now() + time);
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(17));
        let maps = maps(&process);
        let Ok(stopped) = Seized::seize(&process).unwrap().stop(Duration::from_millis(200)) else { continue };
        for tid in stopped.threads() {
            let regs = stopped.regs(tid).unwrap();
            stacks.push(unwind(&process, &maps, &mut modules, &regs));
        }
        stopped.release().unwrap();
    }
    stacks
}

fn maps(process: &Process) -> Vec<Mapping> {
    let text = process.maps_text().unwrap();
    let one = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (range, perms, offset) = (words.next()?, words.next()?, words.next()?);
        let (_device, inode) = (words.next()?, words.next()?);
        let path = words.collect::<Vec<_>>().join(" ");
        let path = path.trim_end_matches(" (deleted)");
        let anonymous = inode == "0" || path == "/dev/zero" || path.starts_with("/memfd:");
        let hex = |s: &str| u64::from_str_radix(s, 16).ok();
        let (start, end) = range.split_once('-')?;
        let range = AvmaRange::new(Avma(hex(start)?), Avma(hex(end)?));
        let keep = perms.contains('x') && (!anonymous || path == "[vdso]");
        keep.then_some(Mapping { range, offset: hex(offset)?, path: path.to_owned() })
    };
    text.lines().filter_map(one).collect()
}

impl Module {
    fn open(process: &Process, mapping: &Mapping) -> Option<Self> {
        let AvmaRange { start, end } = mapping.range;
        let bytes = match mapping.path.as_str() {
            "[vdso]" => process.bytes(mapping.range).ok()?,
            _ => {
                std::fs::read(format!("/proc/{}/map_files/{:x}-{:x}", process.pid(), start.0, end.0)).ok()?
            }
        };
        let file = object::File::parse(&*bytes).ok()?;
        let segments = file.segments().map(|s| (s.file_range().0, s.file_range().1, s.address())).collect();
        let section = |name| {
            let s = file.section_by_name(name)?;
            Some((s.address(), s.data().ok()?.to_vec()))
        };
        let named = |s: object::Symbol<'_, '_>| {
            let name = s.name().ok().filter(|n| !n.is_empty())?.to_owned();
            (s.kind() == object::SymbolKind::Text).then(|| (s.address(), s.address() + s.size(), name))
        };
        let symbols = file.symbols().chain(file.dynamic_symbols()).filter_map(named).collect();
        let (hdr, frames) = (section(".eh_frame_hdr")?, section(".eh_frame")?);
        Some(Self { segments, hdr, frames, symbols })
    }

    /// Returns the address that the file states for an offset.
    fn address(&self, offset: u64) -> Option<u64> {
        let (from, _, at) =
            self.segments.iter().find(|(from, len, _)| (*from..from + len).contains(&offset))?;
        Some(at + (offset - from))
    }

    fn name(&self, at: u64) -> Option<String> {
        self.symbols.iter().find(|(start, end, _)| (*start..*end).contains(&at)).map(|s| s.2.clone())
    }

    /// Unwinds one frame. `Ok(None)` at the start of a thread. Also returns whether a signal interrupted the
    /// caller.
    fn step(&self, process: &Process, at: u64, regs: &Values) -> Result<Option<(Values, bool)>, String> {
        let bases = BaseAddresses::default().set_eh_frame(self.frames.0).set_eh_frame_hdr(self.hdr.0);
        let hdr = EhFrameHdr::new(&self.hdr.1, LittleEndian).parse(&bases, 8).map_err(said)?;
        let frames = EhFrame::new(&self.frames.1, LittleEndian);
        let table = hdr.table().ok_or("no table")?;
        let fde = table.fde_for_address(&frames, &bases, at, EhFrame::cie_from_offset).map_err(said)?;
        let mut context = UnwindContext::new();
        let row = fde.unwind_info_for_address(&frames, &bases, &mut context, at).map_err(said)?;
        let value = |e: &UnwindExpression<usize>, first| {
            let expression = e.get(&frames).map_err(said)?;
            evaluate(process, &expression, fde.cie().encoding(), regs, first)
        };
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                regs.get(*register)?.wrapping_add_signed(*offset)
            }
            CfaRule::Expression(e) => value(e, None)?,
        };
        let word = |at: u64| process.u64(Avma(at)).map_err(|e| e.to_string());
        let mut caller = Values([None; REGISTERS]);
        for (i, slot) in caller.0.iter_mut().enumerate() {
            let number = u16::try_from(i).unwrap();
            let here = regs.0[i];
            *slot = match row.register(Register(number)).unwrap_or(RegisterRule::SameValue) {
                RegisterRule::Undefined if number == RETURN => return Ok(None),
                RegisterRule::Undefined | RegisterRule::SameValue if number == STACK => Some(cfa),
                RegisterRule::Undefined | RegisterRule::SameValue => here,
                RegisterRule::Offset(n) => Some(word(cfa.wrapping_add_signed(n))?),
                RegisterRule::ValOffset(n) => Some(cfa.wrapping_add_signed(n)),
                RegisterRule::Register(r) => Some(regs.get(r)?),
                RegisterRule::Expression(e) => Some(word(value(&e, Some(cfa))?)?),
                RegisterRule::ValExpression(e) => Some(value(&e, Some(cfa))?),
                other => return Err(format!("{other:?}")),
            };
        }
        Ok(Some((caller, fde.is_signal_trampoline())))
    }
}

fn said(e: gimli::Error) -> String {
    e.to_string()
}

/// The registers that are known of a frame.
#[derive(Clone)]
struct Values([Option<u64>; REGISTERS]);

impl Values {
    fn new(regs: &Regs) -> Self {
        let r = regs.0;
        let low = [r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp];
        let high = [r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rip];
        Self(std::array::from_fn(|i| Some(if i < 8 { low[i] } else { high[i - 8] })))
    }

    fn get(&self, r: Register) -> Result<u64, String> {
        self.0.get(usize::from(r.0)).copied().flatten().ok_or_else(|| format!("{r:?} is not known"))
    }
}

fn evaluate(
    process: &Process,
    expression: &gimli::Expression<Bytes<'_>>,
    encoding: gimli::Encoding,
    regs: &Values,
    first: Option<u64>,
) -> Result<u64, String> {
    let mut evaluation = expression.evaluation(encoding);
    if let Some(first) = first {
        evaluation.set_initial_value(first);
    }
    let mut state = evaluation.evaluate().map_err(said)?;
    loop {
        state = match state {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                evaluation.resume_with_register(Value::Generic(regs.get(register)?))
            }
            EvaluationResult::RequiresMemory { address, .. } => {
                let word = process.u64(Avma(address)).map_err(|e| e.to_string())?;
                evaluation.resume_with_memory(Value::Generic(word))
            }
            other => return Err(format!("{other:?}")),
        }
        .map_err(said)?;
    }
    evaluation.value_result().and_then(|v| v.to_u64(u64::MAX).ok()).ok_or_else(|| "no value".to_owned())
}

fn unwind(
    process: &Process,
    maps: &[Mapping],
    modules: &mut BTreeMap<String, Option<Module>>,
    regs: &Regs,
) -> Stack {
    let mut stack = Stack { frames: Vec::new(), whole: false, running: regs.syscall().is_none() };
    let (mut values, mut exact) = (Values::new(regs), true);
    for _ in 0..MOST_FRAMES {
        let Ok(ip) = values.get(Register(RETURN)) else { break };
        // A return address may be that of the next function.
        let at = if exact { ip } else { ip.wrapping_sub(1) };
        let Some(mapping) = maps.iter().find(|m| m.range.contains(Avma(at))) else {
            stack.frames.push((format!("no file at {at:#x}"), None));
            break;
        };
        let module = modules.entry(mapping.path.clone()).or_insert_with(|| Module::open(process, mapping));
        let offset = at - mapping.range.start.0 + mapping.offset;
        let found = module.as_ref().and_then(|m| Some((m, m.address(offset)?)));
        let Some((module, stated)) = found else {
            stack.frames.push((format!("no module at {at:#x} in {}", mapping.path), None));
            break;
        };
        stack.frames.push((mapping.path.clone(), module.name(stated)));
        match module.step(process, stated, &values) {
            Ok(Some((caller, signal))) => (values, exact) = (caller, signal),
            Ok(None) => {
                stack.whole = true;
                break;
            }
            Err(why) => {
                stack.frames.push((why, None));
                break;
            }
        }
    }
    stack
}
