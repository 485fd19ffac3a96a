//! One of the two executions: a twin with its state, memory and code.

use crate::Error;
use crate::atlas::Atlas;
use crate::decoded::{Code, Decoded, FLAGS, State};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use rustc_hash::FxHashSet;
use std::rc::Rc;
use tracee::{Regs, Stepped, Twin};

/// Room for the extended state of any CPU, AMX included. Bytes.
const XSAVE_MAX: usize = 16 << 10;
const PAGE: u64 = 4096;

#[derive(Debug)]
pub(crate) struct Side {
    twin: Twin,
    pub(crate) now: State,
    /// Pages of code that have the originals' bytes again; `None` in the clones' world, which stays as it is.
    restored: Option<FxHashSet<Avma>>,
    xsave: Vec<u8>,
    xsave_len: usize,
}

impl Side {
    /// Makes a side whose twin continues at `ip`. In the originals' world, redirects in data are undone here,
    /// and redirects in code before they are executed.
    pub(crate) fn new(mut twin: Twin, ip: Avma, originals: Option<&Atlas>) -> Result<Self, Error> {
        let mut regs = twin.regs()?;
        regs.0.rip = ip.0;
        twin.set_regs(&regs)?;
        for old in originals.iter().flat_map(|atlas| atlas.data_olds()) {
            twin.process().write(old.at, &old.bytes)?;
        }
        Ok(Self {
            now: state(&regs),
            twin,
            restored: originals.map(|_| FxHashSet::default()),
            xsave: vec![0; XSAVE_MAX],
            xsave_len: 0,
        })
    }

    pub(crate) fn memory(&self) -> &tracee::Process {
        self.twin.process()
    }

    /// Returns the instruction that it is about to execute.
    pub(crate) fn next(&mut self, code: &mut Code, atlas: &Atlas) -> Result<Rc<Decoded>, Error> {
        self.restore(atlas)?;
        Ok(code.at(self.now.ip(), self.twin.process()))
    }

    /// Executes one instruction.
    pub(crate) fn step(&mut self) -> Result<Stepped, Error> {
        let stepped = self.twin.step()?;
        if stepped == Stepped::Done {
            self.now = state(&self.twin.regs()?);
        }
        Ok(stepped)
    }

    /// Reads the extended state.
    pub(crate) fn xsave(&mut self) -> Result<&[u8], Error> {
        self.xsave_len = self.twin.xsave(&mut self.xsave)?;
        Ok(&self.xsave[..self.xsave_len])
    }

    /// Returns the extended state as it was when last read.
    pub(crate) fn last_xsave(&self) -> &[u8] {
        &self.xsave[..self.xsave_len]
    }

    /// Reads words of memory; `None` for a word that cannot be read.
    pub(crate) fn words(&self, range: AvmaRange) -> Vec<Option<u64>> {
        let memory = self.twin.process();
        if let Ok(bytes) = memory.bytes(range) {
            return bytes.as_chunks::<8>().0.iter().map(|w| Some(u64::from_le_bytes(*w))).collect();
        }
        (0..range.len() / 8).map(|i| memory.u64(range.start.add(8 * i)).ok()).collect()
    }

    /// Writes the originals' bytes into the pages of the next instruction. All pages at once would take too
    /// long: a server has a hundred thousand redirects.
    fn restore(&mut self, atlas: &Atlas) -> Result<(), Error> {
        let Some(done) = &mut self.restored else { return Ok(()) };
        let ip = self.now.ip();
        for page in [ip.align_down(PAGE), ip.add(15).align_down(PAGE)] {
            if done.insert(page) {
                for old in atlas.olds_in(AvmaRange::with_len(page, PAGE)) {
                    self.twin.process().write(old.at, &old.bytes)?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the registers of a thread that are compared.
pub(crate) fn state(regs: &Regs) -> State {
    let r = &regs.0;
    State {
        gprs: [
            r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13,
            r.r14, r.r15,
        ],
        ip: r.rip,
        flags: r.eflags & FLAGS,
        fs_base: r.fs_base,
        gs_base: r.gs_base,
    }
}
