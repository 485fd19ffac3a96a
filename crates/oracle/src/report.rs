//! The results of examinations.

use addr::Avma;
use std::collections::BTreeMap;
use std::fmt;
use tracee::Sig;

/// Why the comparison of one function ended without a mismatch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// Both returned to the caller.
    Returned,
    /// Both left the frame in another way: a jump over frames, another stack.
    Left,
    /// The limit of instructions was reached.
    Limit,
    /// Both are about to execute an instruction that reads or changes the world outside the twin, or depends
    /// on the clock or the CPU.
    Instruction(String),
    /// Both are about to use memory that they share with the target.
    SharedMemory,
    /// A decision of the program depended on a code address, as in the unwinder.
    ByCodeAddress,
    /// Both raised the same signal.
    Signal(Sig),
    /// A twin ended. Another process killed it.
    Lost,
}

impl End {
    /// Returns a name to count by.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            End::Returned => "returned".to_owned(),
            End::Left => "left".to_owned(),
            End::Limit => "limit".to_owned(),
            End::Instruction(i) => i.clone(),
            End::SharedMemory => "shared memory".to_owned(),
            End::ByCodeAddress => "by code address".to_owned(),
            End::Signal(s) => format!("signal {s}"),
            End::Lost => "lost".to_owned(),
        }
    }
}

/// What differed. The first of each pair is the original's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Difference {
    /// The two sides went to addresses that do not correspond.
    Path,
    /// A general register.
    Register {
        /// Its name.
        name: &'static str,
        /// Its values.
        values: (u64, u64),
    },
    /// The flags.
    Flags {
        /// Their values.
        values: (u64, u64),
    },
    /// The segment bases.
    Segments,
    /// The extended state.
    Vectors {
        /// Offset of the first difference in the XSAVE area. Bytes.
        at: usize,
    },
    /// A dead value was read. It is one of three: the register with the destination of a cloned jump table,
    /// read after the jump; a register or flag that only the clone changed; the word pushed by a call whose
    /// callee is inlined.
    Dead {
        /// Its name.
        name: &'static str,
    },
    /// The clone's code for a call does not do what the call does.
    Inline {
        /// A description.
        what: &'static str,
    },
    /// The address of a memory operand that is written.
    Place {
        /// The addresses.
        values: (Avma, Avma),
    },
    /// A word of memory.
    Memory {
        /// Its address.
        at: Avma,
        /// Its values.
        values: (u64, u64),
    },
    /// Only one side raised a signal, or the signals differ.
    Signals {
        /// The signals.
        values: (Option<Sig>, Option<Sig>),
    },
    /// The clone's tables give other frames than the original's.
    Frames {
        /// A description.
        what: String,
    },
}

/// One function whose clone did something else than the original.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// The entry of the original that was examined.
    pub original: Avma,
    /// Its name.
    pub name: String,
    /// What differed.
    pub difference: Difference,
    /// The addresses at which the twins were then.
    pub at: (Avma, Avma),
    /// How many pairs of instructions agreed before.
    pub after: u64,
    /// The last instructions of both, as text, oldest first.
    pub trail: Vec<(String, String)>,
    /// General registers that differ.
    pub registers: Vec<(&'static str, u64, u64)>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} ({}), after {} instructions: {:x?}",
            self.name, self.original, self.after, self.difference
        )?;
        writeln!(f, "  original at {}, clone at {}", self.at.0, self.at.1)?;
        for (a, b) in &self.trail {
            writeln!(f, "  {a:<60} | {b}")?;
        }
        for (name, a, b) in &self.registers {
            writeln!(f, "  {name}: {a:#x} | {b:#x}")?;
        }
        Ok(())
    }
}

/// The results of all comparisons.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Entries of the originals that were examined, each once.
    pub examined: Vec<Avma>,
    /// The number of clones with compared instructions: the examined clones, and clones that they called.
    pub clones_run: usize,
    /// How many clones of the newest generation the target has.
    pub clones: usize,
    /// Pairs of instructions compared.
    pub instructions: u64,
    /// Pairs of which the second instruction was in a clone.
    pub clone_instructions: u64,
    /// Pairs of which the second instruction was in a further copy of an unrolled loop.
    pub again: u64,
    /// Distinct clone instructions that were compared.
    pub distinct: usize,
    /// How often the stacks of both sides were unwound.
    pub unwound: u64,
    /// How often a stack could not be unwound as far as needed, because a rule is missing or cannot be
    /// followed.
    pub not_unwound: u64,
    /// Executed instructions that only the clones' side has: jumps, nops and redirects.
    pub extra: u64,
    /// Executed instructions that only the originals' side has: jumps, and stubs and `endbr64` that clones
    /// bypass.
    pub dropped: u64,
    /// Clone instructions between the read of a cloned jump table and its jump.
    pub unmovable: u64,
    /// Calls whose callees are inlined, executed to the callee's end or not. Their instructions are among
    /// those compared.
    pub inlined: u64,
    /// Inlined calls in which control left the inlined path.
    pub exits: u64,
    /// Executed guards before indirect calls.
    pub guards: u64,
    /// Guards that did not hold.
    pub guards_failed: u64,
    /// How the comparisons ended.
    pub ends: BTreeMap<String, usize>,
    /// Comparisons that ended because a decision of the program depended on a code address, in the form of
    /// mismatches.
    pub by_code_address: Vec<Mismatch>,
    /// All mismatches.
    pub mismatches: Vec<Mismatch>,
}

impl Report {
    /// Adds the results of another examination. Its clones are counted again.
    pub fn add(&mut self, other: &Report) {
        self.examined.extend(&other.examined);
        self.clones_run += other.clones_run;
        self.clones += other.clones;
        self.instructions += other.instructions;
        self.clone_instructions += other.clone_instructions;
        self.again += other.again;
        self.distinct += other.distinct;
        self.unwound += other.unwound;
        self.not_unwound += other.not_unwound;
        self.extra += other.extra;
        self.dropped += other.dropped;
        self.unmovable += other.unmovable;
        self.inlined += other.inlined;
        self.exits += other.exits;
        self.guards += other.guards;
        self.guards_failed += other.guards_failed;
        for (end, n) in &other.ends {
            *self.ends.entry(end.clone()).or_default() += n;
        }
        self.by_code_address.extend_from_slice(&other.by_code_address);
        self.mismatches.extend_from_slice(&other.mismatches);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} functions examined, {} of {} clones run; {} pairs of instructions compared, {} in clones ({} distinct, {} in further copies of loops), {} \
             in the window of a table; {} extra, {} dropped; {} calls answered in place, {} of them not to their end, {} guards of which {} did not hold; \
             unwound {} times, not {} times; {} mismatches; ends {:?}",
            self.examined.len(),
            self.clones_run,
            self.clones,
            self.instructions,
            self.clone_instructions,
            self.distinct,
            self.again,
            self.unmovable,
            self.extra,
            self.dropped,
            self.inlined,
            self.exits,
            self.guards,
            self.guards_failed,
            self.unwound,
            self.not_unwound,
            self.mismatches.len(),
            self.ends
        )
    }
}
